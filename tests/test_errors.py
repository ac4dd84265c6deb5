"""Errors: code, fields and line stay together, whatever users' names hold and wherever they are sent."""

import pickle

from sparsepipe import Plan, Stage
from sparsepipe.errors import InputError, RunFailed
from sparsepipe.launchers.failure_cause import cause_of, find_cause
from sparsepipe.runtime.failures import PacketMismatch, described


def test_an_error_is_the_same_in_another_process():
    for kind in (InputError, RunFailed, PacketMismatch):
        error = kind("plan.rank_unknown", "rank 7 of {net}: 100%\nis not there", rank=7)
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), other.code, other.fields) == (kind, "plan.rank_unknown", {"rank": 7})
        assert str(other) == str(error) == r"rank 7 of {net}: 100%\nis not there"


def test_a_failed_run_has_the_code_of_what_its_worker_met(tmp_path):
    error = InputError("batch.label_negative", "label -1 is negative")
    document = described(error, run_dir=tmp_path, rank=0, stage=0)
    cause = find_cause(tmp_path, Plan((Stage(("a",), (0,)),)), {0: 1}, said=[document])
    assert (cause.code, cause.exit_code, cause.reason) == (error.code, 2, f"rank 0 (stage 0): {error}")
    assert cause_of(error, tmp_path).code == error.code
    document = described(RuntimeError("no"), run_dir=tmp_path, rank=0, stage=0)
    assert find_cause(tmp_path, Plan((Stage(("a",), (0,)),)), {0: 1}, said=[document]).code is None
