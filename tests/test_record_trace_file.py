"""A long run's trace is bounded on disk and when read; what is left out is left out of every rank, and said."""

import json
import random
import time

import pytest
from coded import raises

from sparsepipe import InputError, Plan, RunRecord, Span, Stage, Trace
from sparsepipe.records import Origin, trace_file
from sparsepipe.records.trace_file import MEGABYTES, bytes_of_rank, merged, read_spans
from sparsepipe.runtime.reporting.recorder import Recorder
from sparsepipe.util.io.files import write_rows
from sparsepipe.views import html
from sparsepipe.views.plots.timeline import epoch_trace, timeline, trace_page, working_epoch

EPOCH = 10


def run(folder, *, minibatches, epoch=EPOCH, trace_bytes=2**40, ranks=2):
    """A record as its workers write it: a validation follows each epoch, whose minibatches count from 0 again."""
    made = RunRecord.create(
        folder, Plan(tuple(Stage((f"c{k}",), (k,)) for k in range(ranks))), {"engine": "x"}, Origin()
    )
    for rank in range(ranks):
        settings = {"trace_bytes": trace_bytes, "epoch_minibatches": epoch}
        recorder = Recorder(folder, rank=rank, stage=rank, origin=time.monotonic(), **settings)
        for m in range(minibatches):
            at = m + 0.1 * rank
            recorder.span("wait", f"{rank}F{m % epoch}", at, at + 0.1, minibatch=m, peer=0)
            recorder.span("forward", f"{rank}F{m % epoch}", at + 0.1, at + 0.3, minibatch=m)
            recorder.span("backward", f"{rank}B{m % epoch}", at + 0.4, at + 0.6, minibatch=m)
            if m % epoch == epoch - 1:
                recorder.span("evaluate", f"{rank}F0", at + 0.7, at + 0.8, minibatch=0)
                recorder.span("send", f"{rank}F0", at + 0.8, at + 0.9, minibatch=0, peer=0)
        recorder.close()
    start = {"event": "start", "seconds": 0.0, "epoch_minibatches": epoch, "minibatches": minibatches}
    steps = [{"event": "step", "seconds": m, "epoch": m // epoch, "minibatch": m} for m in range(minibatches)]
    write_rows(folder / "metrics.jsonl", [start, *steps])
    return made


def test_input_halves_of_backwards_are_i_in_files_that_call_them_b(tmp_path):
    """As they did before whole backwards and halves had letters of their own."""
    path = tmp_path / "trace-rank1.jsonl"
    spans = [("1F0", "forward"), ("1B0", "backward"), ("1W0", "weights"), ("1B1", "backward")]
    rows = [Span(1, name, k, k + 1, kind, 1, int(name[-1]))._asdict() for k, (name, kind) in enumerate(spans)]
    write_rows(path, rows)
    assert [span.name for span in read_spans(path).spans] == ["1F0", "1I0", "1W0", "1B1"]


def minibatches_of(trace):
    return sorted({span.minibatch for span in trace.spans if span.kind == "backward"})


def test_a_long_run_keeps_so_many_bytes_and_its_newest_epochs(tmp_path):
    """25 minutes of training left 38 MB of spans, which took 10 seconds and 439 MB to read."""
    limit, last = 64 * 1024, 1200
    record = run(tmp_path / "run", minibatches=last, trace_bytes=limit)
    for path in record.folder.glob("trace-rank*.jsonl"):
        assert path.stat().st_size <= limit
    trace = record.trace()
    kept = minibatches_of(trace)
    assert kept[:EPOCH] == list(range(EPOCH)) and kept[-2 * EPOCH :] == list(range(last - 2 * EPOCH, last))
    told = trace.left_out["minibatches"]
    missing = {m for first, end in told for m in range(first, end + 1)}
    assert missing == set(range(last)) - set(kept), "what is said to be missing is what is missing"
    assert all(first % EPOCH == 0 and end % EPOCH == EPOCH - 1 for first, end in told), "whole epochs go"
    written = last * 3 * 2 + last // EPOCH * 2 * 2
    assert trace.left_out["spans"] == written - len(trace.spans)
    assert len([span for span in trace.spans if span.kind == "evaluate"]) == 2 * len(kept) // EPOCH
    assert len(kept) > 80, "about half of the bytes are in use"


def test_epochs_are_whole_or_refused(tmp_path):
    record = run(tmp_path / "run", minibatches=1200, trace_bytes=64 * 1024)
    assert {span.minibatch for span in working_epoch(record, 119).spans} == set(range(EPOCH))
    assert epoch_trace(record, 119).left_out == {} and epoch_trace(record, 0).spans
    first, last = record.trace().left_out["minibatches"][0]
    with raises("run.trace_left_out", first, last):
        epoch_trace(record, first // EPOCH)


def test_a_timeline_says_where_its_epoch_is_faster_or_slower_than_its_run(tmp_path):
    """The last epoch of a run was drawn beside the pace of all of them, and was 7% faster."""
    record = run(tmp_path / "run", minibatches=30)
    assert "paces" not in epoch_trace(record, 2).facts, "of a run that did not end"
    paces = [2126.0, 2142.0, 2441.0]
    epochs = [{"event": "epoch", "seconds": 9.0, "epoch": k, "samples_per_second": p} for k, p in enumerate(paces)]
    rows = [*record.metrics(), *epochs, {"event": "summary", "seconds": 9.0, "samples_per_second": 2125.0}]
    write_rows(record.folder / "metrics.jsonl", rows)
    drawn = [timeline(working_epoch(record, k), note="an epoch").layout.meta["notes"] for k in range(3)]
    told = "this epoch: 2,441 samples/s, 1.15 × as fast as the median one (2,125 samples/s)"
    assert drawn == [["an epoch"], ["an epoch"], [f"an epoch · {told}"]]


def test_an_epoch_too_long_to_keep_keeps_its_newest_minibatches(tmp_path):
    record = run(tmp_path / "run", minibatches=1500, epoch=1500, trace_bytes=64 * 1024)
    kept = minibatches_of(record.trace())
    assert kept[0] == 0 and kept[-50:] == list(range(1450, 1500))
    with raises("run.trace_left_out", MEGABYTES):
        working_epoch(record, 0)


def test_what_one_rank_leaves_out_is_left_out_of_all(tmp_path):
    """Else the other ranks would seem to work alone, and this one to idle."""
    record = run(tmp_path / "run", minibatches=40)
    path = record.folder / "trace-rank1.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    of_epoch = len(rows) // 4
    kept = rows[:of_epoch] + rows[2 * of_epoch :]  # with the validation behind it
    write_rows(path, [{"left_out": [10, 19], "spans": of_epoch}, *kept])
    trace = record.trace()
    assert minibatches_of(trace) == [*range(10), *range(20, 40)]
    assert trace.left_out == {
        "minibatches": [[10, 19]],
        "spans": 2 * 32,
        "seconds": pytest.approx(20.1 - 9.7),
    }
    assert trace.shown_seconds == pytest.approx(trace.makespan - 10.4)


def test_a_long_trace_written_before_is_thinned_as_it_is_read(tmp_path, monkeypatch):
    record = run(tmp_path / "run", minibatches=2000)
    whole = record.trace()
    assert whole.left_out == {} and len(minibatches_of(whole)) == 2000
    monkeypatch.setenv(MEGABYTES, "0.2")
    trace = record.trace()
    assert len(trace.spans) < len(whole.spans) / 4
    assert trace.left_out["spans"] == len(whole.spans) - len(trace.spans)
    assert minibatches_of(trace)[-20:] == list(range(1980, 2000))
    assert working_epoch(record, 199).spans


def test_a_run_that_resumes_goes_on_with_a_thinned_file(tmp_path):
    record = run(tmp_path / "run", minibatches=1200, trace_bytes=64 * 1024)
    before = record.trace().left_out["spans"]
    for rank in (0, 1):
        again = Recorder(record.folder, rank=rank, stage=rank, origin=0.0, trace_bytes=64 * 1024, epoch_minibatches=10)
        for m in range(1200, 1800):
            again.span("forward", "0F0", m, m + 0.5, minibatch=m)
        again.close()
    trace = record.trace()
    assert trace.left_out["spans"] > before
    assert sum(path.stat().st_size for path in record.folder.glob("trace-rank*.jsonl")) <= 2 * 64 * 1024


def test_what_was_left_out_is_told_wherever_the_trace_is_shown(tmp_path):
    trace = run(tmp_path / "run", minibatches=1200, trace_bytes=64 * 1024).trace()
    told = f"left out: {trace.left_out['spans']} spans of minibatches"
    assert told in html(trace)
    assert told in trace_page(trace, title="x")
    document = json.loads(json.dumps(trace.to_chrome()))
    assert document["otherData"]["left_out"] == trace.left_out
    assert Trace.from_chrome(document).left_out == trace.left_out


def test_the_share_of_a_rank(monkeypatch):
    assert bytes_of_rank(1) == 16 * 2**20 and bytes_of_rank(4) == 4 * 2**20
    monkeypatch.setenv(MEGABYTES, "8")
    assert bytes_of_rank(2) == 4 * 2**20
    for wrong in ("0", "-1", "many", "inf", "nan"):
        monkeypatch.setenv(MEGABYTES, wrong)
        with raises("trace.megabytes_malformed", MEGABYTES, wrong):
            bytes_of_rank(1)


def test_ranges_that_touch_become_one():
    assert merged([(5, 6), (0, 2), (3, 3), (9, 9)]) == [(0, 3), (5, 6), (9, 9)]


@pytest.mark.parametrize("mark", ['{"left_out": 3}', '{"left_out": [4, 2]}', '{"left_out": [1, 2], "spans": "many"}'])
def test_a_damaged_mark_is_refused(tmp_path, mark):
    path = tmp_path / "trace-rank0.jsonl"
    path.write_text(mark + "\n")
    with pytest.raises(InputError, match=r"trace-rank0.jsonl:1: "):
        read_spans(path)


def test_what_is_missing_and_the_gaps_that_it_leaves_are_those_that_are_counted_one_by_one():
    """A file of many long ranges filled the memory with their numbers, and time grew with ranges times spans."""
    draw = random.Random(0)
    for _ in range(50):
        ranges = [
            (first, first + draw.randrange(6)) for first in (draw.randrange(40) for _ in range(draw.randrange(8)))
        ]
        spans = [Span(0, "", 2.0 * m, 2.0 * m + 3, "forward", 0, m) for m in draw.sample(range(48), draw.randrange(12))]
        numbers = {number for first, last in ranges for number in range(first, last + 1)}
        missing = trace_file._inside(ranges)
        assert {number for number in range(-1, 60) if missing(number)} == numbers
        seconds = 0.0
        for first, last in ranges:
            ends = [span.end for span in spans if span.minibatch < first]
            starts = [span.start for span in spans if span.minibatch > last]
            seconds += max(0.0, min(starts) - max(ends)) if starts and ends else 0.0
        assert trace_file._seconds_between(spans, ranges) == pytest.approx(seconds)
    many = trace_file._inside([(k * 10**6, k * 10**6 + 999_998) for k in range(3000)])
    assert many(5_999_998) and not many(5_999_999)
