"""Figures of strategies side by side: what they tell of points and traces, by hand."""

from dataclasses import replace

import pytest
from coded import mentions, raises

from sparsepipe import (
    Cluster,
    CostSample,
    Layer,
    LayerCost,
    LayerGraph,
    Plan,
    Profile,
    RunRecord,
    Span,
    Stage,
    Trace,
    plots,
    simulate,
)
from sparsepipe.planning.simulator import simulate_pipelines
from sparsepipe.records import Origin
from sparsepipe.util.io.files import write_rows
from sparsepipe.values.replication import parse_rule
from sparsepipe.values.stragglers import Stragglers
from sparsepipe.views.plots.table import STRATEGIES, Point

POINTS = [
    Point(name, cluster, 4, 100.0 * (k + 1), bound_samples_per_second=800.0, activation_bytes=1e6 * k,
          gradient_bytes=2e6, memory_bytes=1e9 * (k + 1))
    for cluster in ("2 a + 2 b", "4 a")
    for k, name in enumerate(STRATEGIES)
]  # fmt: skip


def texts(figure):
    return [text for trace in figure.data for text in (trace.text or ())]


def test_mixes_tell_the_gap_to_the_bound():
    table = plots.mixes_table(POINTS)
    assert table.gap.tolist()[:6] == pytest.approx([1 - 100 * (k + 1) / 800 for k in range(6)])
    figure = plots.mixes(POINTS)
    assert len(figure.layout.shapes) == 2 and "88%" in texts(figure) and "25%" in texts(figure)
    assert "optimality gap" in figure.layout.title.text and "optimum" not in figure.layout.title.text
    bars, gaps = [t for t in figure.data if t.type == "bar"], figure.data[-1]
    assert set(gaps.x) == {x for bar in bars for x in bar.x} and all(800 < y < 820 for y in gaps.y), (
        "above the bound, none crosses"
    )


def test_mixes_say_where_a_strategy_has_no_plan():
    figure = plots.mixes([point for point in POINTS if (point.strategy, point.cluster) != ("PipeDream", "4 a")])
    assert [note.text for note in figure.layout.annotations] == ["PipeDream: no plan"]


def test_scaling_draws_a_line_a_strategy_marks_replays_and_bars_for_what_was_measured():
    here = [Point("optimal", "here", 2, 50.0), Point("optimal", "here", 2, 40.0, "measured", run="a-001")]
    replay = Point("optimal", "", 4, 590.0, "emulated", run="replay-1")
    figure = plots.scaling([*POINTS[:6], replay], here)
    names = [trace.name for trace in figure.data]
    assert names[:6] == list(STRATEGIES) and any(name.startswith("optimal, emulated") for name in names)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.y[0] for bar in bars] == [50.0, 40.0]
    assert [bar.marker.line.width for bar in bars] == [(1.5,), (0.0,)], "what is simulated is light, with an outline"
    table = plots.scaling_table([*POINTS[:6], replay], here)
    assert set(table.run) == {"", "replay-1", "a-001"}
    titles = [note.text for note in figure.layout.annotations]
    assert mentions(titles[1], "2 processes"), "and one device is one"
    bound = next(trace for trace in figure.data if trace.name.startswith("provable upper bound"))
    assert bound.line.dash == "dot" and figure.layout.legend.itemwidth > 2 * 16, "seen beside the tick in its key"


def test_speedups_are_over_one_device_of_the_same_network():
    slow = [replace(point, samples_per_second=point.samples_per_second / 50) for point in POINTS[6:]]
    replay = Point("optimal", "2 a + 2 b", 4, 450.0, "emulated", run="replay-1")
    points = [*POINTS[:6], *slow, replay]
    table = plots.speedups_table(points)
    assert table.speedup.tolist() == pytest.approx([1, 2, 3, 4, 5, 6] * 2 + [4.5])
    figure = plots.speedups(points)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == list(STRATEGIES[1:]) and list(bars[0].y) == pytest.approx([2, 2])
    (circles,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert list(circles.y) == [4.5] and circles.x[0] == bars[-1].x[0], "on its plan's bar"
    assert figure.layout.meta["notes"] == [], "nothing is faster than the optimal plan"
    with raises("plot.no_single_device", "4 a"):
        plots.speedups(POINTS[:6] + POINTS[7:])


def test_speedups_say_where_another_strategy_is_faster_than_the_optimal_planners_plan():
    """Data parallelism stood above "optimal" in a figure, and nothing said why."""
    quick = [replace(p, samples_per_second=660.0) if p.strategy == "data parallel" else p for p in POINTS[:6]]
    (note,) = plots.speedups([*quick, *POINTS[6:]], note="4 devices").layout.meta["notes"]
    found = "data parallel is 1.10 × as fast as optimal for"
    assert mentions(note, "4 devices", found, POINTS[0].cluster)


def test_traffic_stacks_what_is_sent():
    figure = plots.traffic(POINTS[:6])
    assert figure.layout.barmode == "stack"
    assert list(figure.data[0].y) == [0, 1, 2, 3, 4, 5] and list(figure.data[1].y) == [2] * 6
    assert "6.00 GB" in texts(figure)
    less = [replace(point, memory_bytes=point.memory_bytes / 100) for point in POINTS[:6]]
    figure = plots.traffic(less)
    assert "60.0 MB" in texts(figure) and max(figure.data[-1].y) == 60, "labels and axis in one unit"
    assert "(MB)" in figure.layout.yaxis2.title.text and "(MB)" in figure.layout.yaxis.title.text


def test_no_points_are_refused():
    with raises("plot.nothing"):
        plots.points_table([])


def profile(batch_size):
    cost = LayerCost((CostSample(100, 0.1, 0.3, 1e6, 2e5, 4e6),))
    graph = LayerGraph.chain((Layer("a"), Layer("b")))
    return Profile(graph, {"cpu": (cost, cost)}, (100.0,), {"batch_size": batch_size} if batch_size else {})


def test_sparse_against_dense_is_told_per_sample():
    table = plots.sparse_dense_table({"sparse": [(0.25, profile(4))]})
    (row,) = table.to_dict("records")
    assert row["seconds"] == pytest.approx(0.2) and row["memory_bytes"] == pytest.approx(2.1e6)
    assert row["cells"] == 64 and row["voxels"] == 25
    assert len(plots.sparse_dense({"sparse": [(0.25, profile(4))], "dense": [(0.25, profile(4))]}).data) == 4
    with raises("profile.no_batch_size"):
        plots.sparse_dense_table({"sparse": [(0.25, profile(None))]})


def test_a_trace_says_in_the_notes_of_its_figures_what_held_its_ranks_up(tmp_path):
    """Simulated, of several pipelines, of a run, and read from a file again; once, and nothing where nobody was."""
    profile = Profile(LayerGraph.chain([Layer("a")]), {"d": (LayerCost((CostSample(1, 1.0, 2.0, 0.0),)),)})
    cluster, spec = Cluster.uniform(2, device_type="d"), "slow:rank=0,factor=4"
    plans, given = [Plan((Stage(("a",), (rank,)),)) for rank in (0, 1)], Stragglers.parse(spec)
    alone = simulate(plans[0], profile, cluster, [1] * 3, stragglers=given)
    several = Plan.together(tuple(plans), parse_rule("all-reduce"))
    together = simulate_pipelines(several, profile, cluster, [1] * 4, stragglers=given).trace
    RunRecord.create(tmp_path / "run", plans[0], {"stragglers": spec}, Origin.here(seed=0))
    write_rows(tmp_path / "run/trace-rank0.jsonl", [Span(0, "0F0", 0.0, 1.0)._asdict()])
    measured = RunRecord.load(tmp_path / "run").trace()
    for told in (alone, together, measured, Trace.from_chrome(alone.to_chrome()), alone.between(0.0, 9.0)):
        for figure in (plots.timeline(told), plots.anatomy({"first": told, "second": told})):
            assert figure.layout.title.text.count("injected delay: rank 0") == 1
    free = simulate(plans[0], profile, cluster, [1] * 3, stragglers=Stragglers())
    assert not free.facts and "held up" not in plots.timeline(free).layout.title.text
    assert plots.timeline(alone, note=given.note()).layout.title.text.count(given.note()) == 1


def test_anatomy_by_hand():
    spans = (  # rank 0 works 8 of 10 s, rank 1 works 4: means 6; a send of 1 s beside no work on rank 1
        Span(0, "0F0", 0.0, 8.0),
        Span(0, "0F1", 8.0, 10.0, "wait"),
        Span(1, "1F0", 1.0, 5.0, stage=1),
        Span(1, "1F0", 5.0, 6.0, "send", stage=1),
        Span(1, "1F0", 4.0, 5.0, "send", stage=1),  # beside the work: costs nothing
        Span(1, "1F1", 6.0, 9.0, "wait", stage=1),
    )
    (row,) = plots.anatomy_table({"run": Trace(spans, "measured")}).to_dict("records")
    assert row["work"] == pytest.approx(0.6)
    assert row["imbalance"] == pytest.approx(0.2)
    assert row["communication"] == pytest.approx(0.05)
    assert row["other"] == pytest.approx(0.1), "rank 1 says nothing of 2 s"
    assert row["dependency"] == pytest.approx(0.05)
    (row,) = plots.anatomy_table({"run": Trace(spans, "simulated")}).to_dict("records")
    assert row["other"] == 0 and row["dependency"] == pytest.approx(0.15)
    assert len(plots.anatomy({"run": Trace(spans, "measured")}).data) == 5
    assert plots.anatomy({"run": Trace(spans, "emulated")}).data[0].y == ("run, emulated",)
    with raises("trace.empty", name="empty"):
        plots.anatomy_table({"empty": Trace((), "measured")})
