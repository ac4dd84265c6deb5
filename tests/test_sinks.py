"""Metrics on their way to trackers: which numbers a row has, TensorBoard's own reader, a sink of one's own."""

import json
from argparse import Namespace

import pytest
from coded import mentions, raises

from sparsepipe.cli import main
from sparsepipe.cli.launches import open_sinks
from sparsepipe.records.sinks import open_sink, scalars
from sparsepipe.study import equal_stages

STEP = {
    "event": "step",
    "seconds": 1.5,
    "epoch": 0,
    "minibatch": 3,
    "loss": 2.5,
    "voxels": 128,
    "note": "a",
    "ok": True,
}
STAGE = {"stage": 1, "ranks": [1], "busy_fraction": 0.5}
EPOCH = {"event": "epoch", "epoch": 0, "minibatches": 4, "train": {"loss": 2.0}, "validation": {"accuracy": 0.5}}


def test_the_numbers_of_rows():
    assert scalars(STEP) == (4, {"step/loss": 2.5, "step/voxels": 128.0})
    found = {"epoch/train/loss": 2.0, "epoch/validation/accuracy": 0.5, "stage 1/busy_fraction": 0.5}
    assert scalars(EPOCH | {"stages": [STAGE, "damaged"]}) == (4, found)
    assert scalars(STEP | {"pipeline": 2})[1]["step/loss of pipeline 2"] == 2.5
    assert scalars(EPOCH | {"validation": None}) == (4, {"epoch/train/loss": 2.0})
    for row in (
        {"event": "start", "minibatches": 4},
        {"event": "step"},
        {"event": "summary", "minibatches": 4, "x": 1},
    ):
        assert scalars(row) is None


OWN = """
import json
class Lines:
    def __init__(self, folder): self.path, self.rows = folder, []
    def __call__(self, row): self.rows.append(row["event"])
    def close(self):
        with open(self.path, "w") as file: file.write(json.dumps(self.rows))
def wrong(folder): return 7
def offline(folder): raise OSError("no\\nroute")
class Down(Lines):
    def __call__(self, row):
        super().__call__(row)
        if len(self.rows) == 2: raise RuntimeError("server\\nis down")
    def close(self):
        super().close()
        raise RuntimeError("still down")
"""


@pytest.mark.slow
def test_a_sink_of_ones_own_gets_every_row_of_a_run_and_is_closed(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    plan = equal_stages("minkvgg11bn-narrow", 2).save(tmp_path / "plan.json")
    words = f"run {plan} --model minkvgg11bn-narrow --data digits --voxel-size 0.2 --num-points 64 --batch-size 4"
    words += f" --engine native --minibatches 3 --no-validation --checkpoint-every 0 --run-dir {tmp_path / 'run'}"
    assert main([*words.split(), "--log", f"{tmp_path}/own.py:Lines", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows[0] == "start" and rows.count("step") == 3 and rows[-1] == "summary"


def test_a_sink_that_raises_ends_no_run_and_is_told_of_once(tmp_path, capsys):
    """A tracker whose server was down ended the run with a traceback."""
    (tmp_path / "own.py").write_text(OWN)
    options = Namespace(log=[[f"{tmp_path}/own.py:Down", str(tmp_path / "rows.json")]])
    (sink,) = open_sinks(options)
    for _ in range(4):
        sink(STEP)
    sink.close()
    assert json.loads((tmp_path / "rows.json").read_text()) == ["step", "step"]
    (told,) = capsys.readouterr().err.splitlines()
    assert mentions(told, "own.py:Down", "RuntimeError")


def test_what_is_no_sink_is_refused(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with raises("sink.raises", "own.py:offline", "no route", kind="OSError"):
        open_sink(f"{tmp_path}/own.py:offline", tmp_path)
    with raises("sink.malformed"):
        open_sink(f"{tmp_path}/own.py:wrong", tmp_path)


def test_what_cannot_be_logged_to_is_told_in_one_line(tmp_path):
    with raises("sink.unknown", "tensorboard", kind="wandb"):
        open_sink("wandb", tmp_path)
    with raises("option.of_followed_run"):
        open_sinks(Namespace(log=[["tensorboard", str(tmp_path)]], detach=True))


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = open_sink("tensorboard", tmp_path / "board")
    for k in range(5):
        sink(STEP | {"minibatch": k, "loss": 5.0 - k})
    sink(EPOCH | {"minibatches": 5})
    sink.close()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("step/loss")] == [(k + 1, 5.0 - k) for k in range(5)]
    assert [(each.step, each.value) for each in events.Scalars("epoch/validation/accuracy")] == [(5, 0.5)]
