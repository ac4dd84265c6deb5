"""The table of runs and what is told of a job that runs, from records alone."""

import gzip
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from coded import mentions, raises

from sparsepipe import (
    CostSample,
    Layer,
    LayerCost,
    LayerGraph,
    Plan,
    Profile,
    Span,
    Stage,
    Trace,
    plots,
)
from sparsepipe.cli.run_verbs import runs_list, runs_show
from sparsepipe.launching.lock import hold
from sparsepipe.records import Origin, RunRecord
from sparsepipe.views import html
from sparsepipe.views.widgets import RunsTable, runs_rows, runs_table
from sparsepipe.views.widgets.live import (
    JobView,
    doings,
    doings_table,
    learned,
    log_of,
    newest_spans,
    phase,
    recent_cause,
    recent_pace,
    recent_spans,
    recent_trace,
)


def record(folder, name, *, ranks=2, accuracy=0.5, finished=True):
    stages = tuple(Stage((f"conv{k}",), (k,)) for k in range(ranks))
    config = {"model": "net", "engine": "native", "batch_size": 4}
    made = RunRecord.create(
        folder / name, Plan(stages), config, Origin(created=f"2026-01-0{ranks}", facts={"data": "d"})
    )
    rows = [{"event": "step", "seconds": 1.0, "epoch": 0, "minibatch": 0, "loss": 2.0, "samples": 4, "voxels": 10}]
    if finished:
        validation = {"loss": 1.0, "accuracy": accuracy}
        facts = {"epoch": 0, "minibatches": 1, "samples_per_second": 8.0}
        rows.append({"event": "epoch", "seconds": 2.0, "train": {"loss": 2.0}, "validation": validation, **facts})
        rows.append({"event": "summary", "seconds": 2.0, "samples_per_second": 8.0, "engine": "native"})
    (made.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.write_status("finished" if finished else "running")
    return made


def spans(folder, *rows):
    for rank in {row[0] for row in rows}:
        lines = [
            {"rank": rank, "name": "x", "start": a, "end": b, "kind": kind, "stage": rank, "minibatch": 0, "peer": peer}
            for own, a, b, kind, peer in rows
            if own == rank
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"trace-rank{rank}.jsonl").write_text(text)


@pytest.fixture
def table(tmp_path):
    record(tmp_path, "pipe-001")
    record(tmp_path, "one-001", ranks=1, accuracy=0.75)
    return RunsTable(tmp_path, figures=tmp_path / "figures")


def test_runs_are_listed_newest_first_and_filtered_by_words(table, tmp_path):
    assert list(table.table.run) == ["pipe-001", "one-001"]
    row = table.table.set_index("run").loc["one-001"]
    assert (row.strategy, row.state, row["samples/s"], row.accuracy) == ("one process", "finished", 8.0, "75.0%")
    table.listing.filter.value = "pipeline FINISHED"
    assert list(table.table.run) == ["pipe-001"] and "1 of 2 runs" in table.listing.listed.value
    table.listing.filter.value = "nothing-like-it"
    assert mentions(table.listing.listed.value, "2 runs") and table.listing.marks.options == ()
    empty = RunsTable(tmp_path / "empty")
    assert "No runs in" in empty.listing.listed.value and empty.messages.value == ""
    assert not empty.listing.marks.static_picture()
    table.listing.filter.value = ""
    assert table.listing.marks.static_picture()["text/html"].count("<tr>") == 3, "a table where no kernel is"


def test_a_record_half_written_is_listed_with_its_reason(table, tmp_path):
    (tmp_path / "pipe-001" / "config.json").write_text('{"model": "ne')
    table.listing.again.click()
    states = dict(zip(table.table.run, table.table.state, strict=True))
    assert "cannot be read" in states["pipe-001"] and "config.json" in states["pipe-001"]
    assert states["one-001"] == "finished" and table.messages.value == ""


def test_marked_runs_are_compared(table):
    table.compare.click()
    assert "marked" in table.messages.value
    table.listing.marks.value = ("pipe-001", "one-001")
    table.compare.click()
    assert table.messages.value == "" and table.figures.widget.layout.display == ""
    text = table.figures.throughput.figure
    assert "pipe-001, one-001" in text, "every figure names its records"
    views = (table.figures.accuracy, table.figures.curves)
    accuracy, curves = ([line["line"]["color"] for line in json.loads(view.figure)["data"]] for view in views)
    assert accuracy[::2] == curves[::3] and len({*curves}) == 2, "a run has one colour in all figures"
    table.listing.marks.value = ("one-001",)
    assert table.figures.widget.layout.display == "none", "figures of other runs than those marked are hidden"
    table.listing.marks.value = ("pipe-001", "one-001")
    table.listing.again.click()
    assert table.figures.widget.layout.display == ""


def test_what_is_compared_is_drawn_or_told_and_a_replay_has_learned_nothing(table, tmp_path):
    """The legend named a replay that had no line, and the subtitle called its data synthetic shapes."""
    replay = record(tmp_path, "replay-001", accuracy=None)
    config = json.loads((replay.folder / "config.json").read_text()) | {"engine": "replay"}
    (replay.folder / "config.json").write_text(json.dumps(config))
    rows = [json.loads(line) for line in (replay.folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["synthetic"] = True
    (replay.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record(tmp_path, "blind-001", ranks=3, accuracy=None)
    table.listing.again.click()
    table.listing.marks.value = ("replay-001", "blind-001", "one-001")
    table.compare.click()
    assert table.messages.value == ""
    assert (
        "replay-001, blind-001, one-001" in table.figures.throughput.figure
        and "synthetic" not in table.figures.throughput.figure
    )
    learned = json.loads(table.figures.accuracy.figure)
    assert {trace["name"] for trace in learned["data"]} == {"one process"}
    bars = json.loads(table.figures.throughput.figure)["data"]
    assert {bar["name"] for bar in bars if bar["x"] == [None]} >= {"measured", "emulated"}, "a replay was measured"
    (color,) = {bar["marker"]["color"] for bar in bars if bar["x"] == ["one process"]}
    assert {trace["line"]["color"] for trace in learned["data"]} == {color}, "a run has its colour in both"
    (note,) = learned["heading"]["notes"]
    assert note.startswith("blind-001, one-001") and "pipeline × 3" in note


def test_runs_that_did_not_finish_are_compared_by_what_they_did(table, tmp_path):
    """They were refused: "finish it with --resume"."""
    half = record(tmp_path, "half-001", finished=False)
    table.listing.again.click()
    table.listing.marks.value = ("half-001",)
    table.compare.click()
    assert mentions(table.messages.value, "(running)") and "Traceback" not in table.messages.value
    assert table.figures.widget.layout.display == "none"
    step = {"event": "step", "epoch": 0, "loss": 2.0, "samples": 4, "voxels": 10}
    rows = [step | {"seconds": 1.0 + k, "minibatch": k} for k in range(3)]
    (half.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    half.write_status("cancelled")
    table.listing.again.click()
    assert table.table.set_index("run").loc["half-001", "samples/s"] == 4.0, "two minibatches of 4 in 2 seconds"
    table.compare.click()
    assert table.messages.value == "" and "(cancelled)" in table.figures.throughput.figure
    assert table.figures.accuracy.layout.display == "none", "it finished no epoch"
    table.listing.marks.value = ("half-001", "pipe-001")
    table.compare.click()
    assert table.figures.accuracy.layout.display == "" and "(cancelled)" in table.figures.throughput.figure
    assert "has no summary" not in table.messages.value
    with raises("run.no_summary"):
        plots.throughput(half)  # a paper's figure is of runs that finished


def test_a_replay_that_knows_no_samples_has_no_samples_per_second(tmp_path):
    """A replay of a profile of PipeDream's, at 5.36 minibatches/s, stood with 5 samples/s below runs of 2,125."""
    cost = LayerCost((CostSample(1, 0.01, 0.02, 4000),))
    profile = Profile(LayerGraph.chain([Layer("conv0"), Layer("conv1")]), {"gpu": (cost, cost)}, (1.0,))
    unknown, known = record(tmp_path, "unknown-001"), record(tmp_path, "known-001", ranks=1)
    for one, origin in ((unknown, {}), (known, {"batch_size": 1})):
        config = {"model": "replay", "engine": "replay", "batch_size": 1}
        (one.folder / "config.json").write_text(json.dumps(config))
        replace(profile, origin=origin).save(one.folder / "profile.json")
    unknown, known = (RunRecord.load(one.folder) for one in (unknown, known))
    assert unknown.metrics("summary")[0]["minibatches_per_second"] == 8.0
    assert "minibatches_per_second" in unknown.frame("epoch") and "samples_per_second" not in unknown.frame("epoch")
    assert known.metrics("summary")[0]["samples_per_second"] == 8.0
    shown = RunsTable(tmp_path).table.set_index("run")["samples/s"]
    assert shown.to_dict() == {"unknown-001": "", "known-001": 8.0}
    rows = {row["run"]: row for row in runs_list(SimpleNamespace(folder=tmp_path)).document}
    assert rows["unknown-001"]["samples_per_second"] is None and rows["unknown-001"]["minibatches_per_second"] == 8.0
    assert "minibatches/s: 8.00" in runs_show(SimpleNamespace(run=unknown.folder)).text
    assert "8.00 minibatches/s" in html(unknown) and "8.00 samples/s" in html(known)
    figure = plots.throughput(known, unknown)
    assert figure.layout.yaxis.title.text == "minibatches/s" and "samples/s" not in figure.data[0].hovertemplate
    assert list(plots.throughput_table(known, unknown).minibatches_per_second) == [8.0, 8.0]
    assert plots.throughput(known).layout.yaxis.title.text == "samples/s"


def test_columns_are_added_and_sorted_by(table, tmp_path):
    config = json.loads((tmp_path / "pipe-001" / "config.json").read_text())
    (tmp_path / "pipe-001" / "config.json").write_text(json.dumps(config | {"learning_rate": 0.5}))
    table.listing.columns.value = ("learning_rate", "train loss")
    row = table.table.set_index("run").loc["pipe-001"]
    assert (row.learning_rate, row["train loss"]) == (0.5, 2.0)
    assert table.table.set_index("run").loc["one-001"].learning_rate == ""
    document = json.loads(table.listing.marks.document)
    assert document["columns"][-2:] == ["learning_rate", "train loss"] and document["numbers"][-1]
    heads = dict(zip(document["columns"], document["heads"], strict=True))
    assert (heads["learning_rate"], heads["train loss"]) == ("learning rate", "training loss")
    assert heads["accuracy"] == "validation accuracy", "as figures and the launch board call it"
    numbers = dict(zip(document["columns"], document["numbers"], strict=True))
    assert numbers["accuracy"] and not numbers["run"] and not numbers["strategy"], "shares are numbers, too"
    assert [row[-2] for row in document["rows"] if row[0] == "pipe-001"] == ["0.5"], "as it was given"
    for descending, first in ((False, "pipe-001"), (True, "one-001")):
        table.listing.marks.sort = {"column": "accuracy", "descending": descending}
        assert table.table.run[0] == first, "50.0% is less than 75.0%"
    table.listing.marks.sort = {"column": "learning_rate", "descending": True}
    assert table.table.run[0] == "pipe-001", "what is empty comes last"
    table.listing.marks.sort = {"column": "nowhere", "descending": True}
    assert len(table.table) == 2 and table.messages.value == ""


def test_numbers_are_sorted_by_size_and_texts_after_them(tmp_path):
    from sparsepipe.views.widgets.runs_rows import ordered

    cells = pd.DataFrame({"value": ["10", "9", "", "auto", 2.5, "75%"]})
    assert list(ordered(cells, "value", descending=False).value) == [2.5, "9", "10", "75%", "auto", ""]
    assert list(ordered(cells, "value", descending=True).value) == ["auto", "75%", "10", "9", 2.5, ""]


def settle_configs(folder, **configs):
    """Give runs the settings that they differ in."""
    for name, changes in configs.items():
        path = folder / f"{name}-001" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_runs_are_compared_with_a_baseline_and_by_what_differs(table, tmp_path):
    record(tmp_path, "third-001", accuracy=0.9)
    settle_configs(tmp_path, pipe={"learning_rate": 0.1}, one={"learning_rate": 0.5}, third={"data": "digits"})
    table.listing.again.click()

    def cells():
        document = json.loads(table.listing.marks.document)
        return {row[0]: dict(zip(document["columns"], row, strict=True)) for row in document["rows"]}, document

    table.listing.marks.value = ("pipe-001", "one-001")
    table.listing.flag.click()
    assert mentions(table.messages.value, "2") and not table.listing.baseline
    table.listing.marks.value = ("one-001",)
    table.listing.flag.click()
    rows, document = cells()
    assert document["baseline"] == "one-001" and rows["one-001"]["accuracy"] == "75.0%"
    assert rows["pipe-001"]["accuracy"] == "50.0% (-25.0 points)" and "(+0%)" in rows["pipe-001"]["samples/s"]
    assert rows["third-001"]["accuracy"] == "90.0%", "other data: no difference is told"
    table.listing.diff.value = True
    rows, document = cells()
    assert document["columns"] == ["run", "state", "samples/s", "accuracy", "strategy", "learning_rate"]
    table.listing.marks.value = ("pipe-001", "third-001")
    assert "strategy" not in cells()[1]["columns"], "both are pipelines"
    assert [one.name for one in table.chosen] == ["pipe-001", "third-001"]
    table.compare.click()
    assert mentions(table.messages.value, "third-001", "pipe-001")
    bars = json.loads(table.figures.throughput.figure)["data"]
    assert len({bar["x"][0] for bar in bars if bar["x"] != [None]}) == 1, "no throughput over other data"
    assert {line["name"] for line in json.loads(table.figures.curves.figure)["data"]} == {"pipe-001"}
    table.listing.marks.value = ()
    table.listing.flag.click()
    assert cells()[1]["baseline"] == ""


def test_tags_and_a_note_are_kept_beside_the_record_and_found_by_the_filter(table, tmp_path):
    table.labels.button.click()
    assert "marked" in table.messages.value
    table.listing.marks.value = ("one-001",)
    table.labels.tags.value, table.labels.note.value = "paper, baseline paper", "the <b> one"
    table.labels.button.click()
    assert json.loads((tmp_path / "one-001/labels.json").read_text()) == {
        "tags": ["paper", "baseline"],
        "note": "the <b> one",
    }
    table.listing.filter.value = "baseline"
    assert list(table.table.run) == ["one-001"] and table.table.note[0] == "the <b> one"
    table.listing.filter.value = ""
    table.listing.marks.value = ("pipe-001",)
    assert table.labels.tags.value == ""
    table.listing.marks.value = ("one-001",)
    assert table.labels.tags.value == "paper baseline"
    (tmp_path / "one-001/labels.json").write_text('{"tags": 3}')
    table.listing.again.click()
    assert "labels.json" in table.table.set_index("run").loc["one-001"].note


def test_metrics_are_flat_tables(table, tmp_path):
    made = RunRecord(tmp_path / "one-001")
    epochs = made.frame("epoch")
    assert epochs["train.loss"][0] == 2.0 and epochs["validation.accuracy"][0] == 0.75
    assert list(made.frame().minibatch) == [0]
    rows = made.metrics() + [{"event": "summary", "seconds": 3.0, "stages": [{"stage": 0, "busy_fraction": 0.5}]}]
    (made.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stages = made.frame("stage")
    assert (stages.event[0], stages.stage[0], stages.busy_fraction[0]) == ("summary", 0, 0.5)
    with raises("event.unknown", "step, epoch, stage", event="steps"):
        made.frame("steps")


def test_a_trace_is_opened_as_a_page_and_for_perfetto(table, tmp_path):
    table.listing.marks.value = ("pipe-001",)
    table.trace.click()
    assert "has no trace" in table.messages.value
    spans(tmp_path / "pipe-001", (0, 0.0, 1.0, "forward", -1), (1, 1.0, 2.0, "backward", -1))
    table.trace.click()
    page = (tmp_path / "pipe-001" / "trace.html").read_text()
    assert "pipe-001" in page and "http" not in page.replace("http://www.w3.org", ""), "it asks no server"
    document = json.loads((tmp_path / "pipe-001" / "trace.json").read_text())
    assert Trace.from_chrome(document | {"otherData": {"source": "measured"}}).ranks == (0, 1)
    assert "trace.html" in table.messages.value and "Perfetto" in table.messages.value
    assert table.link.label == "timeline of pipe-001" and gzip.decompress(table.link.page).decode() == page
    table.listing.marks.value = ("pipe-001", "one-001")
    assert not table.link.page
    table.trace.click()
    assert "a trace shows only one" in table.messages.value


def test_runs_are_deleted_after_a_question_and_never_while_they_run(table, tmp_path):
    table.listing.marks.value = ("one-001",)
    table.deletion.button.click()
    assert (
        "Delete one-001" in table.deletion.question.told.value and table.deletion.question.widget.layout.display == ""
    )
    table.deletion.question.no.click()
    assert (tmp_path / "one-001").exists() and table.deletion.question.widget.layout.display == "none"
    table.deletion.button.click()
    table.deletion.question.yes.click()
    assert not (tmp_path / "one-001").exists() and "Deleted: one-001" in table.messages.value
    assert list(runs_table(tmp_path).run) == ["pipe-001"]
    RunRecord(tmp_path / "pipe-001").write_status("running", guard=1)
    lock = hold(tmp_path / "pipe-001")  # as its guard does
    table.listing.marks.value = ("pipe-001",)
    table.deletion.button.click()
    assert mentions(table.messages.value, "pipe-001") and (tmp_path / "pipe-001").exists()
    os.close(lock)
    table.deletion.button.click()
    assert "Delete pipe-001" in table.deletion.question.told.value, "what says that it runs, but does not, can go"


def test_delete_is_about_the_runs_in_the_question(table, tmp_path):
    """The question said "Delete A", B and C were marked meanwhile, "yes" took B and C and left A."""
    record(tmp_path, "third-001")
    table.listing.again.click()
    table.listing.marks.value = ("one-001",)
    table.deletion.button.click()
    table.listing.marks.value = ("pipe-001", "third-001")
    assert table.deletion.question.widget.layout.display == "none", "the question is withdrawn"
    table.deletion.question.yes.click()  # a click that was under way
    assert {path.name for path in tmp_path.iterdir()} >= {"one-001", "pipe-001", "third-001"}
    table.deletion.button.click()
    assert mentions(table.deletion.question.told.value, "pipe-001", "third-001"), "every run is named"
    table.deletion.question.yes.click()
    assert list(runs_table(tmp_path).run) == ["one-001"]


def test_a_run_that_began_after_the_question_is_not_deleted(table, tmp_path):
    table.listing.marks.value = ("one-001", "pipe-001")
    table.deletion.button.click()
    lock = hold(tmp_path / "pipe-001")  # somebody resumes it
    table.deletion.question.yes.click()
    os.close(lock)
    assert "still running" in table.messages.value
    assert (tmp_path / "one-001/plan.json").exists() and (tmp_path / "pipe-001/plan.json").exists(), "all or none"


def test_of_a_link_to_a_run_the_link_goes(table, tmp_path):
    elsewhere = record(tmp_path / "elsewhere", "far-001").folder
    (tmp_path / "link-001").symlink_to(elsewhere)
    table.listing.again.click()
    table.listing.marks.value = ("link-001",)
    table.deletion.button.click()
    assert "only the link" in table.deletion.question.told.value
    table.deletion.question.yes.click()
    assert "Deleted: link-001" in table.messages.value
    assert not (tmp_path / "link-001").is_symlink() and (elsewhere / "plan.json").exists()


def test_damaged_runs_are_left_out_of_a_comparison_and_said(table, tmp_path):
    record(tmp_path, "bad-001")
    (tmp_path / "bad-001/metrics.jsonl").write_bytes(b"\xff\n")
    table.listing.again.click()
    table.listing.marks.value = ("pipe-001", "bad-001", "one-001")
    table.compare.click()
    assert table.figures.widget.layout.display == "" and "bad-001/metrics.jsonl:1" in table.messages.value
    assert "1 damaged run" in table.figures.throughput.figure


def test_doings_are_shares_of_the_last_seconds(tmp_path):
    spans(
        tmp_path,
        (0, 0.0, 90.0, "load", -1),  # long ago, but for its last seconds
        (0, 96.0, 100.0, "forward", -1),
        (1, 95.0, 97.0, "wait", 0),
        (1, 97.0, 98.0, "backward", -1),
        (1, 98.0, 99.0, "send", 0),
        (1, 99.0, 99.5, "wait", -1),
    )
    with (tmp_path / "trace-rank1.jsonl").open("a") as handle:
        handle.write('{"rank": 1, "na')  # a row that is being written
    first, second = doings(newest_spans(tmp_path), window=5.0)
    assert (first.rank, first.work, first.loading) == (0, pytest.approx(0.8), 0)
    assert second.work == pytest.approx(0.2) and second.sending == pytest.approx(0.2)
    assert second.waits_for == {0: pytest.approx(0.4), -1: pytest.approx(0.1)}
    text = doings_table([first, second])
    assert mentions(text, "40%", "rank 0", "10%") and "80% at work" in text
    assert doings(newest_spans(tmp_path / "none")) == []
    text = doings_table([first, second], left_out=[1, 2])
    assert "rank 0, stage" in text and "rank 1, stage" not in text and text.count("unused by") == 2


def test_lanes_and_the_cause_are_of_the_newest_minibatches(tmp_path):
    """The board had five alarms, and not the slow rank's name."""
    made = record(tmp_path, "run-001", finished=False)
    rows = []
    for m in range(12):
        work = [(0, m, m + 0.2, "forward"), (1, m + 0.2, m + 0.5, "forward")]
        work += [(1, m + 0.5, m + 0.8, "backward"), (0, m + 0.8, m + 1.0, "backward")]
        rows += [(rank, start, end, kind, m) for rank, start, end, kind in work]
    for rank in (0, 1):
        lines = [
            {"rank": rank, "name": "x", "start": a, "end": b, "kind": kind, "stage": rank, "minibatch": m, "peer": -1}
            for own, a, b, kind, m in rows
            if own == rank
        ]
        (made.folder / f"trace-rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = recent_trace(made, recent_spans(made))
    assert recent_cause(trace).measured_seconds == pytest.approx(1.0)
    assert recent_cause(replace(trace, spans=())) is None
    view = JobView()
    view.show_lanes(trace, doings(newest_spans(made.folder)))
    first, second = json.loads(view.lanes)["rows"]
    assert mentions(first["told"], "40% at work") and second["spans"][0][2:] == [1, "forward"]
    assert [(start, end) for start, end, *_ in second["spans"]][0] == pytest.approx((0.04, 0.1), abs=0.001)
    view.show_devices(made.plan, None)
    assert json.loads(view.devices)["chips"] == {"local": {"process": [[0], [1]]}}


def test_the_present_pace_is_of_the_newest_rows():
    rows = [step(k, 1.0 + k) | {"samples": 4} for k in range(5)]
    assert recent_pace(rows, samples=True) == 4.0 and recent_pace(rows, samples=False) == 1.0
    resumed = [*rows, {"event": "start", "seconds": 50.0}, step(5, 60.0) | {"samples": 4}]
    assert recent_pace(resumed, samples=True) is None and recent_pace([], samples=True) is None


def step(minibatch, seconds, loss=1.0):
    return {"event": "step", "minibatch": minibatch, "seconds": seconds, "loss": loss}


def test_phases_and_time_left():
    plan = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))))
    start = {"event": "start", "seconds": 1.0, "minibatches": 30, "epoch_minibatches": 10}
    assert phase([], plan, running=True) == (phase([], plan, running=True)[0], 0, 0)
    assert phase([], plan, running=True)[0].startswith("setting up")
    assert phase([start], plan, running=True)[1:] == (0, 30)
    told = phase([start, step(0, 3.0)], plan, running=True)[0]
    assert mentions(told, "epoch 1", 3, "minibatch 1", 30)
    first = [start, *(step(k, k + 1.0) for k in range(10))]
    assert mentions(phase(first[:-2], plan, running=True)[0], "epoch 1", 3, "minibatch 8", 30, "22 s")
    ended = {"event": "epoch", "seconds": 10.0, "epoch": 0, "minibatches": 10, "samples_per_second": 20.0}
    rows = [*first, ended, *(step(10 + k, 10 + 0.5 * (k + 1)) for k in range(10))]
    told, done, total = phase(rows, plan, running=True)
    assert (done, total) == (20, 30) and mentions(told, "epoch 3", 3, "minibatch 20", 30, "5 s")
    resumed = [*rows, start | {"seconds": 40.0}, step(20, 41.0), step(21, 43.0)]
    assert mentions(phase(resumed, plan, running=True)[0], "epoch 3", 3, "minibatch 22", 30, "16 s")
    assert mentions(phase(rows, plan, running=False)[0], 20, "30 minibatches")
    assert mentions(learned(rows), "1.000", "20.0 samples/s")
    damaged = [*rows[:-1], {"event": "step", "minibatch": 19, "loss": None}, rows[-1]]
    assert mentions(learned(damaged), "1.000", "20.0 samples/s")


def test_the_log_of_a_rank_is_its_end(tmp_path):
    assert "no log yet" in log_of(tmp_path, 0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.log").write_text("")
    assert "no warnings" in log_of(tmp_path, 0)
    (tmp_path / "logs" / "rank0.log").write_text("".join(f"line <{k}>\n" for k in range(100)))
    text = log_of(tmp_path, 0)
    assert "line &lt;99&gt;" in text and "line &lt;10&gt;" not in text


@pytest.mark.parametrize("title", ["a </script> title", "@TRACE@", "@TITLE@ of @TRACE@"])
def test_the_page_of_a_trace_holds_its_spans(title):
    page = plots.trace_page(Trace((Span(0, "0F0", 5.0, 6.0),), "measured"), title=title)
    assert title.replace("<", "&lt;").replace(">", "&gt;") in page
    data = page.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(data)["spans"] == [[0, 0.0, 1.0, 0, 0, -1, -1]]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    table = RunsTable(tmp_path)
    with raises("runs.none_marked"):
        _ = table.chosen


def test_rows_of_runs_that_have_ended_are_read_again_only_where_a_file_changed(table, tmp_path, monkeypatch):
    """Each word of a filter and each click on a header read every record: a second and more for 500 runs."""
    read = []
    row_of = runs_rows._row
    monkeypatch.setattr(runs_rows, "_row", lambda folder, more: read.append(folder.name) or row_of(folder, more))
    table.listing.filter.value = "finished"
    before = list(table.table.run)
    assert set(read) == set(), "all of them have ended"
    table.listing.marks.sort = {"column": "run", "descending": False}
    assert read == [] and list(table.table.run) == sorted(before)
    table.listing.marks.value = ("one-001",)
    table.labels.tags.value = "baseline"
    table.labels.button.click()
    assert read == ["one-001"] and "baseline" in list(table.table.tags)
    RunRecord(tmp_path / "pipe-001").write_status("running")
    table.listing.again.click()
    table.listing.again.click()
    assert read[1:] == 2 * ["pipe-001"], "how a run that goes on stands is nothing to keep"


def test_labels_that_are_damaged_hide_nothing_of_the_run(table, tmp_path):
    (tmp_path / "one-001" / "labels.json").write_text("[")
    table.listing.again.click()
    row = table.table[table.table.run == "one-001"].iloc[0]
    assert row["state"] == "finished" and row["samples/s"] and "labels.json" in row["note"]
