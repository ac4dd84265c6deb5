"""Errors: code, fields and line stay together, whatever users' names hold and wherever they are sent."""

import pickle
import re
from pathlib import Path

import numpy as np

import sparsepipe
from sparsepipe import Plan, Stage
from sparsepipe.data.voxels import OutOfReach
from sparsepipe.errors import InputError, RunFailed
from sparsepipe.launching.failure_cause import cause_of, find_cause
from sparsepipe.runtime.failures import PacketMismatch, described


def test_an_error_is_the_same_in_another_process():
    for kind in (InputError, RunFailed, PacketMismatch):
        error = kind("plan.rank_unknown", "rank 7 of {net}: 100%\nis not there", rank=7)
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), other.code, other.fields) == (kind, "plan.rank_unknown", {"rank": 7})
        assert str(other) == str(error) == r"rank 7 of {net}: 100%\nis not there"


def test_an_error_that_is_made_of_other_things_is_the_same_in_another_process():
    error = OutOfReach(3, np.zeros(3), "lies too far away")
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), other.code, other.fields, str(other)) == (OutOfReach, error.code, {"point": 3}, str(error))


def test_a_failed_run_has_the_code_of_what_its_worker_met(tmp_path):
    error = InputError("batch.label_negative", "label -1 is negative")
    document = described(error, run_dir=tmp_path, rank=0, stage=0)
    cause = find_cause(tmp_path, Plan((Stage(("a",), (0,)),)), {0: 1}, said=[document])
    assert (cause.code, cause.exit_code, cause.reason) == (error.code, 2, f"rank 0 (stage 0): {error}")
    assert cause_of(error, tmp_path).code == error.code
    document = described(RuntimeError("no"), run_dir=tmp_path, rank=0, stage=0)
    assert find_cause(tmp_path, Plan((Stage(("a",), (0,)),)), {0: 1}, said=[document]).code is None


def test_an_error_within_another_sentence_keeps_its_settings():
    """`run --clip-norm 1` said "clip_norm goes with …": what names the pipeline had lost that this is a setting."""
    before, after = "pipeline 1: ", "; wait"
    error = InputError("plan.late", "{planner}", setting={"planner": "optimal"}, rank=7).within(before, after)
    assert (error.code, error.fields) == ("plan.late", {"rank": 7})
    assert error.written(lambda name, value: f"--{name} {value}") == f"{before}--planner optimal{after}"


def test_no_error_is_made_anew_of_its_line():
    """Such a one has lost how the shell writes its settings; `within` keeps them."""
    anew = re.compile(r'\bInputError\(\s*(\w+)\.code, f"[^"]*\{\1\}')
    assert not [path for path in Path(sparsepipe.__file__).parent.rglob("*.py") if anew.search(path.read_text())]
