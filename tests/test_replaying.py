"""Traces replayed from their own durations, and what their steps would take without what is slow."""

import json
from dataclasses import replace

import pytest
from coded import mentions, raises
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulator import pipeline

from sparsepipe import (
    Cluster,
    DeviceType,
    Link,
    Node,
    Plan,
    Profile,
    RunRecord,
    Span,
    Stage,
    Trace,
    load_trace,
    replay,
    simulate,
    what_if,
)
from sparsepipe.cli import main
from sparsepipe.planning.replaying import Part
from sparsepipe.planning.replaying.dependencies import steps_of
from sparsepipe.planning.simulator import simulate_pipelines
from sparsepipe.records import Origin
from sparsepipe.values.replication import parse_rule
from sparsepipe.values.stragglers import Stragglers

JOBS = {"ST": 32, "SE": 12}  # job → steps; of the second's 43 the first ones


@pytest.fixture(scope="module")
def jobs(shared_data):
    pytest.importorskip("pyarrow")
    folder = shared_data / "outside" / "straggler-traces" / "data"
    if not folder.is_dir():
        pytest.skip(f"no traces of jobs at {folder}: sparsepipe data fetch straggler-analysis")
    return folder


@pytest.fixture(scope="module")
def traces(jobs):
    return {name: first_steps(Trace.load(jobs / f"trace-{name}.parquet"), count) for name, count in JOBS.items()}


def first_steps(trace, count):
    steps = trace.facts["steps"][:count]
    end = max(last for _, _, last in steps)
    spans = tuple(span for span in trace.spans if span.minibatch < end)
    return replace(trace, spans=spans, facts={**trace.facts, "steps": steps})


@pytest.fixture(scope="module")
def published(jobs):
    return {name: json.loads((jobs / f"result-{name}.json").read_text()) for name in JOBS}


@pytest.fixture(scope="module")
def explained(traces):
    return {name: what_if(trace) for name, trace in traces.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_every_step_of_a_real_job_is_replayed_within_a_hundredth(traces, published, name):
    """The whole step; and forwards and backwards alone, with neither transfers nor delays of launches to help."""
    found = replay(traces[name])
    measured = published[name]["step_t_base"]
    assert [str(step.step) for step in found.steps] == [*measured][: JOBS[name]] and len(found.steps) == JOBS[name]
    for step in found.steps:
        assert step.measured_seconds == pytest.approx(measured[str(step.step)], rel=1e-6)
        assert step.replayed_seconds == pytest.approx(step.measured_seconds, rel=0.01)
        assert step.pipeline_replayed_seconds == pytest.approx(step.pipeline_measured_seconds, rel=0.01)
        assert 0.5 < step.pipeline_measured_seconds / step.measured_seconds < 1


@pytest.mark.slow
def test_slow_downs_are_those_that_the_jobs_authors_published(explained, published):
    """result-*.json of ByteDance-Seed/StragglerAnalysis: the whole slow-down, and its split; of SE in its first steps.

    Those are told one by one, as they are without delays, and without anything that is slow.
    """
    launched, even = (sum([*published["SE"][f"step_t_{key}"].values()][: JOBS["SE"]]) for key in ("nodelay", "noblk"))
    assert explained["SE"].slowdown == pytest.approx(launched / even, rel=0.02)
    found, told = explained["ST"], published["ST"]
    assert found.slowdown == pytest.approx(told["blocking_slowdown"], rel=0.02)
    assert found.by[Part("launch")] == pytest.approx(told["launch_slowdown"], rel=0.02)
    for category, words in (("stage", "stage"), ("replica", "dp_rank"), ("operation", "optype")):
        split = told[f"blocking_decompose_by_{words}"]
        own = {str(part.key): value for part, value in found.by.items() if part.category == category}
        assert own.keys() == split.keys()
        for key, value in split.items():
            assert own[key] == pytest.approx(value, rel=0.02), (category, key)


def test_culprits_are_those_that_the_jobs_authors_name(explained):
    """ST: the last stage is long. SE: sequences of unlike lengths, and a long last stage (68%): no one place."""
    assert mentions(explained["ST"].culprit, "stage 3", "1.6 ×")
    assert (
        explained["SE"].culprit.startswith("no single cause: ") and "sizes of microbatches" in explained["SE"].culprit
    )
    assert explained["SE"].share(Part("stage", 1)) == pytest.approx(0.68, abs=0.02)  # their M_S
    assert explained["SE"].by[Part("size")] > 1.3 > 1.01 > explained["ST"].by[Part("size")]


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [("1f1b", {}), ("1f1b-flush", {"num_microbatches": 4}), ("gpipe", {"num_microbatches": 4})],
)
def test_a_simulated_trace_is_replayed_exactly(schedule, settings):
    plan, profile, cluster = pipeline(
        [1.0, 2.0, 1.5], [2.0, 3.0, 2.5], [0.5, 0.25], replicas=(1, 2, 1), schedule=schedule, **settings
    )
    trace = simulate(plan, profile, cluster, [1] * 12)
    found = replay(trace)
    assert len(found.steps) == (12 // settings["num_microbatches"] if settings else 1)
    assert found.largest_error < 1e-9
    assert sum(step.measured_seconds for step in found.steps) == pytest.approx(trace.makespan)


def test_by_hand():
    """Two ranks, a transfer of half a second that the receiver waits for, and a delay of a quarter before its forward.

    rank 0   F0 [0, 1]  send [1, 1.25]                      B0 [5, 7]
    rank 1                  wait [0, 1.5]  F0 [1.75, 2.75]  B0 [2.75, 4.75]  send [4.75, 5]
    """
    spans = (
        Span(0, "0F0", 0.0, 1.0, "forward", 0, 0),
        Span(0, "0F0", 1.0, 1.25, "send", 0, 0, 1),
        Span(1, "1F0", 0.0, 1.5, "wait", 1, 0, 0),
        Span(1, "1F0", 1.75, 2.75, "forward", 1, 0),
        Span(1, "1B0", 2.75, 4.75, "backward", 1, 0),
        Span(1, "1B0", 4.75, 5.0, "send", 1, 0, 0),
        Span(0, "0B0", 2.0, 5.0, "wait", 0, 0, 1),
        Span(0, "0B0", 5.0, 7.0, "backward", 0, 0),
    )
    (step,) = replay(Trace(spans, "measured")).steps
    assert (step.measured_seconds, step.replayed_seconds) == (7.0, 7.0)
    assert (step.pipeline_measured_seconds, step.pipeline_replayed_seconds) == (7.0, 6.0)
    found = what_if(Trace(spans, "measured"))
    assert (found.launched_seconds, found.even_seconds) == (6.75, 6.75 - 0.0)
    assert found.without[Part("launch")] == 6.75


def test_one_slow_device_is_found():
    """Two replicas of two stages; one device of the first stage takes twice as long for everything."""
    plan, profile, _ = pipeline([1.0, 1.0], [2.0, 2.0], replicas=(2, 2), schedule="1f1b-flush", num_microbatches=16)
    costs = profile.costs["d"]
    twice = tuple(
        replace(cost, samples=tuple(replace(s, forward=2 * s.forward, backward=2 * s.backward) for s in cost.samples))
        for cost in costs
    )
    fast, slow = DeviceType("d"), DeviceType("e")
    cluster = Cluster((Node("n", (fast, slow, fast, fast), Link(1.0)),), Link(1.0))
    stages = tuple(
        Stage(stage.layers, stage.ranks, (), tuple(("d", "e", "d", "d")[rank] for rank in stage.ranks))
        for stage in plan.stages
    )
    trace = simulate(replace(plan, stages=stages), Profile(profile.graph, {"d": costs, "e": twice}), cluster, [1] * 64)
    found = what_if(trace)
    assert mentions(found.culprit, "rank 1", "stage 0", 1, "2.0 ×")
    # A step takes 16 forwards and backwards of a stage at least: twice as long here.
    assert found.measured_seconds == pytest.approx(49.0) and found.without[Part("rank", 1)] < 0.7 * 49.0
    assert found.share(Part("rank", 1)) > max(found.share(part) for part in found.without if part.category == "replica")


@pytest.mark.parametrize(("rule", "rank"), [("all-reduce", 5), ("partial-reduce", 0), ("local-sgd:every=4", 5)])
def test_a_slow_rank_of_several_pipelines_is_found(tmp_path, rule, rank):
    """Four like pipelines of two stages. "nothing to explain", it said, where a rank was four times slow.

    Where all wait for the slowest, a step without it takes as long as one with nobody slow. In a run's trace stages are
    numbered over all pipelines, in a simulation's in each: both are told by the numbers of the plan's file.
    """
    plans = [
        Plan((Stage(("l0",), (2 * k,)), Stage(("l1",), (2 * k + 1,))), "1f1b-flush", num_microbatches=2)
        for k in range(4)
    ]
    pipelines = Plan.together(tuple(plans), parse_rule(rule))
    _, profile, _ = pipeline([1.0, 2.0], [2.0, 4.0])
    given = (pipelines, profile, Cluster.uniform(8, device_type="d", link=Link()), [1.0] * 80)
    slow = Stragglers.parse(f"slow:rank={rank},factor=4")
    simulated, healthy = (simulate_pipelines(*given, stragglers=some).trace for some in (slow, None))
    spans = []
    for span in simulated.spans:
        stage = span.stage + 2 * (span.rank // 2)
        spans.append(span._replace(stage=stage, name=f"{stage}{span.name[1:]}"))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(simulated.to_chrome()))
    for trace in (simulated, replace(simulated, spans=tuple(spans)), Trace.load(path)):
        found = what_if(trace)
        assert mentions(found.culprit, f"rank {rank}", rank, f"pipeline {rank // 2}", "4.0 ×")
        assert found.culprit.endswith("are not included") and found.even_seconds <= found.measured_seconds * (1 + 1e-9)
        assert {part.key for part in found.without if part.category == "stage"} == set(range(8))
        if rule == "all-reduce":
            assert found.without[Part("rank", rank)] == found.even_seconds
            assert found.even_seconds * len(steps_of(trace)) == pytest.approx(healthy.makespan)
    assert mentions(what_if(healthy).culprit, "1.1 ×")
    few = tuple(span for span in healthy.spans if span.minibatch < 2)  # a step of one pipeline
    told = what_if(replace(healthy, spans=few)).culprit
    assert mentions(told, "pipeline 0") and "more minibatches" in told


def as_a_run(trace):
    """What ranks of a run tell: they wait until they have what they need, and send what they made at once."""
    last = max(span.stage for span in trace.spans)
    spans, free = [], dict.fromkeys(trace.ranks, 0.0)
    for span in sorted((s for s in trace.spans if s.kind in ("forward", "backward")), key=lambda s: s.start):
        back = span.kind == "backward"
        begins, ends = (last, 0) if back else (0, last)
        if span.stage != begins:
            source = span.rank + (1 if back else -1)
            spans.append(span._replace(kind="wait", start=free[span.rank], end=span.start, peer=source))
        spans.append(span)
        if span.stage != ends:
            to = span.rank + (-1 if back else 1)
            spans.append(span._replace(kind="send", start=span.end, end=span.end, peer=to))
        free[span.rank] = span.end
    return Trace(tuple(spans), "measured")


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_what_lies_at_a_slow_rank_is_no_transfer(slow):
    """A run whose last stage was three times slow had "nothing to explain": what waited there was called a transfer."""
    plan, profile, cluster = pipeline([1.0] * 3, [2.0] * 3, schedule="1f1b")
    trace = simulate(plan, profile, cluster, [1] * 12, stragglers=Stragglers.parse(f"slow:rank={slow},factor=3"))
    run, simulated = as_a_run(trace), what_if(trace)
    found = what_if(run)
    assert replay(run).largest_error < 1e-9
    assert found.culprit == simulated.culprit and f"rank {slow} (stage {slow}) takes" in found.culprit
    assert found.slowdown == pytest.approx(simulated.slowdown) and found.slowdown > 1.3


def test_an_even_pipeline_has_nothing_to_explain():
    plan, profile, cluster = pipeline([1.0, 1.0], [2.0, 2.0], schedule="1f1b-flush", num_microbatches=4)
    found = what_if(simulate(plan, profile, cluster, [1] * 8))
    assert found.slowdown == pytest.approx(1.0) and found.culprit.startswith("nothing to explain")
    assert all(value == pytest.approx(1.0) for value in found.by.values())


@settings(max_examples=15)
@given(
    st.lists(st.tuples(*[st.floats(0.1, 3.0)] * 2), min_size=1, max_size=4),
    st.sampled_from(["1f1b", "1f1b-flush", "zero-bubble"]),
    st.integers(1, 3),
)
def test_any_simulated_pipeline_is_replayed_and_explained(times, schedule, microbatches):
    more = {} if schedule == "1f1b" else {"num_microbatches": 2 * microbatches}
    plan, profile, cluster = pipeline([f for f, _ in times], [b for _, b in times], schedule=schedule, **more)
    trace = simulate(plan, profile, cluster, [1] * 6 * microbatches)
    assert replay(trace).largest_error < 1e-9
    found = what_if(trace)
    assert found.slowdown > 0.5 and found.culprit
    assert "replica 0" not in found.culprit.split(" (")[0] and " in 0 of " not in found.culprit, "the only one"
    assert found.without[Part("launch")] <= found.measured_seconds * (1 + 1e-9)


def test_an_evaluation_is_no_part_of_a_step():
    """Its minibatches have the numbers of those of training, and ranks load, send and wait for them too.

    A run with a validation split had operations that "wait for each other in a cycle".
    """
    spans = (
        Span(0, "0F0", 0.0, 0.5, "load", 0, 0),
        Span(0, "0F0", 0.5, 1.0, "forward", 0, 0),
        Span(0, "0F0", 1.0, 1.5, "send", 0, 0, 1),
        Span(1, "1F0", 0.0, 1.5, "wait", 1, 0, 0),
        Span(1, "1F0", 1.5, 2.0, "forward", 1, 0),
        Span(1, "1B0", 2.0, 3.0, "backward", 1, 0),
        Span(1, "1B0", 3.0, 3.5, "send", 1, 0, 0),
        Span(0, "0B0", 1.5, 3.5, "wait", 0, 0, 1),
        Span(0, "0B0", 3.5, 4.0, "backward", 0, 0),
    )
    evaluation = (
        Span(0, "0F0", 5.0, 5.5, "load", 0, 0),
        Span(0, "0F0", 5.5, 6.0, "evaluate", 0, 0),
        Span(0, "0F0", 6.0, 6.5, "send", 0, 0, 1),
        Span(1, "1F0", 5.0, 6.5, "wait", 1, 0, 0),
        Span(1, "1F0", 6.5, 7.0, "evaluate", 1, 0),
    )
    before = tuple(span._replace(start=span.start - 8, end=span.end - 8) for span in evaluation)
    (alone,) = replay(Trace(spans, "measured")).steps
    assert (alone.measured_seconds, alone.replayed_seconds) == (4.0, 4.0)
    for more in (evaluation, before):
        assert replay(Trace((*spans, *more), "measured")).steps == (alone,)


def test_what_was_left_out_ends_a_step():
    """Between minibatches that a long trace leaves out nothing is known to follow."""
    spans = [Span(0, f"0F{m}", 2.0 * m, 2.0 * m + 3.0, "forward", 0, m) for m in (0, 1, 5, 6)]
    whole = Trace(tuple(spans), "measured")
    assert len(steps_of(whole)) == 2  # 1 ends at 5, 5 begins at 10
    near = tuple(span._replace(start=span.start / 4, end=span.start / 4 + 3) for span in spans)
    assert len(steps_of(Trace(near, "measured"))) == 1
    facts = {"left_out": {"minibatches": [[2, 4]], "spans": 3, "seconds": 0.0}}
    assert len(steps_of(Trace(near, "measured", facts))) == 2


def test_a_step_in_which_nothing_was_computed_is_replayed():
    """A long run's trace leaves out minibatches: of a step the update alone may be there, or nothing that took time."""
    spans = (
        Span(0, "0F0", 0.0, 1.0, "forward", 0, 0),
        Span(0, "0U0", 1.0, 2.0, "update", 0, 0),
        Span(0, "0U1", 2.0, 3.0, "update", 0, 1),
        Span(0, "0F2", 4.0, 4.0, "forward", 0, 2),
    )
    found = replay(Trace(spans, "measured", {"steps": [[0, 0, 1], [1, 1, 2], [2, 2, 3]]}))
    assert [step.pipeline_measured_seconds for step in found.steps] == [1.0, 0.0, 0.0]
    assert found.largest_error == found.largest_pipeline_error == 0.0
    assert mentions(str(found), 3, "0.00%")


def test_steps_may_claim_any_number_of_minibatches():
    spans = tuple(Span(0, f"0F{m}", float(m), m + 0.5, "forward", 0, m) for m in range(4))
    trace = Trace(spans, "measured", {"steps": [[1, 2, 10**15], [0, 0, 2]]})
    assert [(step.number, len(step.spans)) for step in steps_of(trace)] == [(0, 2), (1, 2)]


def test_a_trace_without_training_is_refused():
    with raises("trace.nothing_to_replay"):
        replay(Trace((Span(0, "0E0", 0.0, 1.0, "wait"),), "measured"))


@pytest.mark.slow
def test_verbs_read_a_run_a_chrome_trace_and_a_foreign_file(tmp_path, capsys, jobs):
    plan, profile, cluster = pipeline([1.0, 2.0], [2.0, 4.0], schedule="1f1b-flush", num_microbatches=4)
    simulated = simulate(plan, profile, cluster, [1] * 8)
    record = RunRecord.create(tmp_path / "run", plan, {"model": "m", "engine": "native"}, Origin())
    for rank in simulated.ranks:
        rows = [json.dumps(span._asdict()) + "\n" for span in simulated.spans if span.rank == rank]
        (record.folder / f"trace-rank{rank}.jsonl").write_text("".join(rows))
    assert load_trace(record.folder).spans
    (tmp_path / "chrome.json").write_text(json.dumps(simulated.to_chrome()))
    assert len(verb("replay", jobs / "trace-ST.parquet", "--json", capsys=capsys)["steps"]) == 32
    for file in (record.folder, tmp_path / "chrome.json"):
        document = verb("show", file, "--json", capsys=capsys)
        assert sum(document["anatomy"].values()) == pytest.approx(1.0) and document["ranks"]
        document = verb("replay", file, "--json", capsys=capsys)
        assert len(document["steps"]) == 2
        assert {"step", "measured_seconds", "replayed_seconds"} <= document["steps"][0].keys()
        document = verb("whatif", file, "--json", capsys=capsys)
        assert {"slowdown", "culprit", "by"} <= document.keys()
        assert {"stage", "replica", "operation", "launch", "transfer", "size"} <= document["by"].keys()
        out = tmp_path / "out.json"
        assert verb("export", file, "--out", out, "--json", capsys=capsys)["spans"] == len(Trace.load(out).spans)
    for name in ("show", "replay", "whatif"):
        assert main(["trace", name, str(record.folder)]) == 0
        assert capsys.readouterr().out
    verb("export", record.folder, "--out", tmp_path / "page.html", "--json", capsys=capsys)
    assert (tmp_path / "page.html").read_text().startswith("<!")
    assert main(["trace", "replay", str(tmp_path / "none")]) == 2


def test_views_draw_a_real_job(traces):
    from sparsepipe import plots

    trace = traces["ST"]
    figure = plots.timeline(trace, minibatches=(0, 8))
    assert len(figure.data) > 4
    assert plots.anatomy({"job": trace}).data
    assert max(trace.waited(), key=trace.waited().get) == (1, 3), "the first stage waits for the second's gradients"


def verb(name, *arguments, capsys):
    assert main(["trace", name, *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_no_trace_is_told_in_a_line():
    with raises("trace.not_a_trace", "runs/a"):
        what_if("runs/a")
