"""Rows on disk are whole at any moment; a run that resumes forgets what it will do again."""

import json
import time

from sparsepipe.launching.followed_job import Tail
from sparsepipe.records import RunRecord
from sparsepipe.runtime.reporting.recorder import Recorder, forget_rows
from sparsepipe.util.io.files import read_rows, write_rows
from sparsepipe.values.trace import Span


def test_spans_and_metrics_are_read_back(tmp_path) -> None:
    recorder = Recorder(tmp_path, rank=3, stage=1, origin=time.monotonic())
    recorder.span("wait", "1F7", 0.25, 0.5, minibatch=7, peer=2)
    recorder.metric("step", minibatch=7, loss=1.5)
    recorder.close()
    (span,) = RunRecord(tmp_path).trace().spans
    assert span == Span(3, "1F7", 0.25, 0.5, "wait", 1, 7, 2)
    (row,) = RunRecord(tmp_path).metrics("step")
    assert row["loss"] == 1.5 and 0 <= row["seconds"] < 60
    assert recorder.restart() == [(1, "wait", 0.25, 0.5)]


def test_rows_reach_the_disk_while_the_run_goes_on(tmp_path) -> None:
    recorder = Recorder(tmp_path, rank=0, stage=0, origin=time.monotonic())
    for k in range(1000):
        recorder.span("forward", f"0F{k}", k, k + 1.0, minibatch=k)
    rows = [json.loads(line) for line in (tmp_path / "trace-rank0.jsonl").read_text().splitlines()]
    assert len(rows) >= 700, "no more than a batch waits"
    recorder.close()


def test_a_row_torn_by_a_kill_spoils_no_later_one(tmp_path) -> None:
    for tail in ("", '{"rank": 0, "name": "1F'):
        first = Recorder(tmp_path, rank=0, stage=0, origin=0.0)
        first.span("forward", "0F0", 0.0, 1.0, minibatch=0)
        first.close()
        with (tmp_path / "trace-rank0.jsonl").open("a") as handle:
            handle.write(tail)
        again = Recorder(tmp_path, rank=0, stage=0, origin=0.0)
        again.span("forward", "0F1", 1.0, 2.0, minibatch=1)
        again.close()
        assert [span.name for span in RunRecord(tmp_path).trace().spans] == ["0F0", "0F1"]
        (tmp_path / "trace-rank0.jsonl").unlink()


def _rows() -> list[dict]:
    steps = [{"event": "step", "seconds": k, "minibatch": k} for k in range(6)]
    epochs = [{"event": "epoch", "seconds": 3, "minibatches": 3}, {"event": "epoch", "seconds": 6, "minibatches": 6}]
    return [*steps[:3], epochs[0], *steps[3:], epochs[1], {"event": "summary", "seconds": 7}]


def test_a_run_that_resumes_forgets_what_it_does_again(tmp_path) -> None:
    write_rows(tmp_path / "metrics.jsonl", _rows())
    forget_rows(tmp_path, 3)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row.get("minibatch", row["event"]) for row in rows] == [0, 1, 2, "epoch", "resume"]
    assert rows[-1]["minibatches"] == 3


def test_a_reader_sees_each_row_once(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"event": "step", "minibatch": 0}\n{"event": "st')
    assert [row["minibatch"] for row in tail.read()] == [0]
    with path.open("a") as handle:
        handle.write('ep", "minibatch": 1}\n')
    assert [row["minibatch"] for row in tail.read()] == [1]
    assert tail.read() == []


def test_a_reader_goes_on_behind_the_resume(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, _rows())
    tail = Tail(path)
    assert len(tail.read()) == 9
    forget_rows(tmp_path, 3)
    with path.open("a") as handle:
        handle.write('{"event": "step", "minibatch": 3, "seconds": 9}\n')
    assert [row["event"] for row in tail.read()] == ["resume", "step"]
