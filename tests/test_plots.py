"""Figures hold the data they were given, look the same everywhere, and type no number of their own."""

import ast
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from coded import mentions, raises

from sparsepipe import (
    Cluster,
    CostSample,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Plan,
    Profile,
    Span,
    Stage,
    Trace,
    plots,
)
from sparsepipe.records import Origin, RunRecord
from sparsepipe.util.io.files import write_json, write_rows
from sparsepipe.values.plan import Estimate, StageEstimate
from sparsepipe.views.plots import theme
from sparsepipe.views.plots.layer_costs import time_by_size_table
from sparsepipe.views.plots.table import distinct, is_synthetic, noted, noted_of, strategy

PLOTS = Path(theme.__file__).parent
NUM_LAYERS = 6


def small_profile():
    layers = tuple(Layer(f"conv{k}", f"layer {k}", 1e6 * (k + 1)) for k in range(NUM_LAYERS))

    def cost(k, factor):
        few = CostSample(1000, 0.01 * (k + 1) * factor, 0.02 * (k + 1), 1e6 / (k + 1), 16e3 * (k == 0), 0, 0.001, 0.002)
        many = CostSample(
            2000, 0.02 * (k + 1) * factor, 0.04 * (k + 1), 2e6 / (k + 1), 32e3 * (k == 0), 0, 0.001, 0.002
        )
        return LayerCost((few, many))

    graph = LayerGraph.chain(layers, skips=[(0, 4)])
    costs = {"fast": tuple(cost(k, 1) for k in range(NUM_LAYERS)), "slow": tuple(cost(k, 3) for k in range(NUM_LAYERS))}
    return Profile(graph, costs, (1500.0,), {"data": {"synthetic": True}})


@pytest.fixture(scope="module")
def profile():
    return small_profile()


def plan(sizes, planner="optimal", schedule="1f1b", devices="fast"):
    ids, stages, start = [f"conv{k}" for k in range(NUM_LAYERS)], [], 0
    for rank, size in enumerate(sizes):
        stages.append(Stage(tuple(ids[start : start + size]), (rank,), (), (devices,)))
        start += size
    expected = tuple(StageEstimate(0.01 * size, 1e6 * size, 0.001 * (len(sizes) > 1), 0.0) for size in sizes)
    estimate = Estimate(0.01 * max(sizes), expected, 0.009 * max(sizes), single_device_seconds=0.06)
    return Plan(tuple(stages), schedule, planner=planner, estimate=estimate)


def trace(source="simulated", offset=0.0):
    spans = []
    for m in range(3):
        start = offset + m * 0.1
        spans += [
            Span(0, f"0F{m}", start, start + 0.03, "forward", 0, m),
            Span(0, f"0F{m}", start + 0.03, start + 0.035, "send", 0, m, 1),
        ]
        spans += [
            Span(1, f"1F{m}", start, start + 0.035, "wait", 1, m, 0),
            Span(1, f"1F{m}", start + 0.035, start + 0.05, "forward", 1, m),
        ]
        spans += [
            Span(1, f"1B{m}", start + 0.05, start + 0.07, "backward", 1, m),
            Span(0, f"0B{m}", start + 0.07, start + 0.1, "backward", 0, m),
        ]
    return Trace(tuple(spans), source)


@pytest.fixture
def records(tmp_path):
    """Two finished runs of two epochs, written as the runtime writes them."""
    made = []
    for name, sizes, speed in (("alone", (6,), 100.0), ("pipeline", (3, 3), 180.0)):
        config = {"model": "minkvgg11bn-narrow", "batch_size": 16}
        record = RunRecord.create(tmp_path / name, plan(sizes), config, Origin(facts={"seed": 0}))
        rows = [{"event": "step", "seconds": 0.1, "minibatch": 0, "loss": 2.0, "samples": 16, "voxels": 900}]
        for epoch in range(2):
            told = {"train": {"loss": 1.0, "accuracy": 0.5}, "validation": {"loss": 1.1, "accuracy": 0.4 + 0.1 * epoch}}
            rows.append(
                {
                    "event": "epoch",
                    "seconds": 10.0 * (epoch + 1) / speed,
                    "epoch": epoch,
                    "samples_per_second": speed,
                    **told,
                }
            )
        rows.append({"event": "summary", "seconds": 1.0, "samples_per_second": speed, "synthetic": True})
        write_rows(record.folder / "metrics.jsonl", rows)
        write_json(record.folder / "status.json", {"state": "finished"})
        made.append(record)
    return made


def values(figure, axis="y"):
    """Every number that the traces of a figure show, rounded as pictures are."""
    found = [
        np.asarray(getattr(t, axis), dtype=float)
        for t in figure.data
        if getattr(t, axis, None) is not None and t.type != "box"
    ]
    flat = np.concatenate([part[np.isfinite(part)] for part in found])
    return sorted(np.round(flat, 6))


def shows(figure, expected, axis="y"):
    shown = set(values(figure, axis))
    assert {round(float(value), 6) for value in expected} <= shown


def test_layer_costs_show_their_table(profile):
    table = plots.layer_costs_table(profile)
    assert len(table) == 2 * NUM_LAYERS
    row = table[(table.layer == "conv2") & (table.device_type == "slow")].iloc[0]
    assert row.voxels == 1500 and math.isclose(row.forward_seconds, 0.135) and math.isclose(row.backward_seconds, 0.09)
    figure = plots.layer_costs(profile)
    shows(figure, table.forward_seconds * 1e3)
    shows(figure, table.backward_seconds * 1e3)
    shows(figure, table.output_bytes / 1e6)
    shows(figure, table.parameter_bytes / 1e6)
    at_1000 = plots.layer_costs_table(profile, size=1000)
    assert math.isclose(at_1000.forward_seconds.iloc[0], 0.01)


def test_cut_bytes_shows_its_table(profile):
    figure, table = plots.cut_bytes(profile), plots.cut_bytes_table(profile)
    assert len(table) == NUM_LAYERS - 1
    shows(figure, table.crossing_feature_bytes / 1e6)
    shows(figure, table.crossing_coordinate_bytes / 1e6)


def test_stages_show_their_table_and_each_plans_period():
    plans = (plan((6,), "data-parallel"), plan((2, 4)), plan((3, 3), schedule="gpipe"))
    table = plots.stages_table(*plans)
    assert table.plan.tolist() == ["data-parallel", *["optimal (1f1b)"] * 2, *["optimal (gpipe)"] * 2]
    figure = plots.stages(*plans)
    shows(figure, table.compute_seconds * 1e3)
    shows(figure, table.memory_bytes / 1e6)
    shows(figure, table.period_seconds * 1e3)
    shows(figure, table.transfer_seconds[table.transfer_seconds > 0] * 1e3)
    assert not [t for t in figure.data if t.name == "gradient all-reduce over replicas"], "none of these averages"
    with raises("plan.no_estimate"):
        plots.stages(replace(plans[0], estimate=None))


def test_stages_stack_averaging_on_the_computation_before_it():
    """Data parallel's bar stopped at 204 ms below a period of 224: its averaging was a mark at 20."""
    whole = plan((6,), "data-parallel")
    expected = StageEstimate(0.204, 1e6, 0.0, 0.02)
    figure = plots.stages(replace(whole, estimate=Estimate(0.224, (expected,), single_device_seconds=0.4)))
    bars = [t for t in figure.data if t.type == "bar" and t.yaxis == "y"]
    assert figure.layout.barmode == "stack" and sum(float(t.y[0]) for t in bars) == pytest.approx(224)


def test_compare_shows_how_many_layers_each_stage_has():
    plans = (plan((2, 4)), plan((3, 3), "by hand"))
    table = plots.compare_table(*plans)
    assert table["optimal"].tolist() == [0, 0, 1, 1, 1, 1]
    figure = plots.compare(*plans)
    assert [t.x[0] for t in figure.data] == [2, 4, 3, 3]
    assert [t.base[0] for t in figure.data] == [0, 2, 0, 3]
    assert figure.layout.xaxis.title.text and {"predicted" in a.text for a in figure.layout.annotations} == {True}
    other = Plan((Stage(("else",), (0,)),), planner="other")
    with raises("plot.layers_differ"):
        plots.compare(plans[0], other)


def test_timeline_shows_every_span_in_the_row_of_its_source():
    three = (trace(), trace("emulated", offset=2.0), trace("measured", offset=5.0))
    table = plots.timeline_table(*three)
    assert table.start_seconds.min() == 0 and len(table) == sum(len(t.spans) for t in three)
    figure = plots.timeline(*three)
    drawn = figure.data
    bars = pd.DataFrame({"base": np.concatenate([t.base for t in drawn]), "x": np.concatenate([t.x for t in drawn])})
    expected = pd.DataFrame({"base": table.start_seconds * 1e3, "x": (table.end_seconds - table.start_seconds) * 1e3})
    assert np.allclose(np.sort(bars.to_numpy(), axis=0), np.sort(expected.to_numpy(), axis=0))
    assert {bar.y[0].split(" · ")[1] for bar in drawn} == {"simulated", "emulated", "measured"}
    assert not any(bar.marker.pattern.shape for bar in drawn), "numbers stand on plain bars"
    colors = {t.name: t.marker.color for t in drawn}
    assert colors["stage 1 backward"] == theme.stage_color(1)


def test_timeline_of_some_minibatches_shows_the_time_they_take():
    later = trace("measured")
    # The same minibatch's number again, far behind: another epoch's, and no part of this window.
    again = replace(later, spans=(*later.spans, Span(0, "0F1", 9.0, 9.1, "send", 0, 1, 1)))
    table = plots.timeline_table(again, minibatches=(1, 2))
    # Minibatch 1 is at work from 0.1 s to 0.2 s; of 0 and 2 only instants at the ends of that touch it.
    inside = table[table.end_seconds > table.start_seconds + 1e-9]
    assert set(inside.minibatch) == {1} and set(table.minibatch) <= {0, 1, 2}
    assert table.start_seconds.min() == 0 and table.end_seconds.max() == pytest.approx(0.1)
    (note,) = plots.timeline(again, minibatches=(1, 2)).layout.meta["notes"]
    assert mentions(note, "minibatch 1")
    with raises("trace.minibatches_unknown"):
        plots.timeline(again, minibatches=(7, 9))


def test_an_update_does_not_widen_the_window_of_a_timeline():
    """Two replicas average in rounds of two: the round that ends with minibatch 1 is averaged long after its work."""
    whole = trace("measured")
    round_ends = [Span(0, "0U0", 5.0, 5.5, kind, 0, 1) for kind in ("average", "update")]
    table = plots.timeline_table(replace(whole, spans=(*whole.spans, *round_ends)), minibatches=(0, 2))
    assert table.end_seconds.max() == pytest.approx(0.2)


def test_throughput_shows_measured_beside_predicted(records):
    table = plots.throughput_table(*records)
    assert table.strategy.tolist() == ["one process", "pipeline × 2 (1f1b)"]
    assert table.predicted_samples_per_second.tolist() == pytest.approx([16 / 0.06, 16 / 0.03])
    assert table.speedup_over_first.tolist() == pytest.approx([1, 1.8])
    figure = plots.throughput(*records)
    shows(figure, [100, 180, 16 / 0.06, 16 / 0.03])
    outlined = {bar.offsetgroup for bar in figure.data if bar.marker.line.width}
    assert outlined == {"predicted"}
    assert "synthetic" in figure.layout.title.text


def test_accuracy_shows_epochs_and_seconds(records):
    table = plots.accuracy_table(*records)
    figure = plots.accuracy(*records)
    shows(figure, table.validation_accuracy * 100)
    shows(figure, table.seconds, axis="x")
    shows(figure, [1, 2], axis="x")
    assert "synthetic" in figure.layout.title.text


def test_runs_of_one_name_are_a_mean_in_a_band(records):
    """Seeds of one setting had a line each, and no interval."""
    table = plots.accuracy_table(*records).groupby("epoch").validation_accuracy
    figure = plots.accuracy(*records, names=["pipeline", "pipeline"])
    shows(figure, table.mean() * 100)
    shows(figure, [*table.max() * 100, *table.min()[::-1] * 100])
    assert mentions(figure.layout.title.text, "2 runs")
    named = plots.accuracy(*records, title="Accuracy by engine"), plots.throughput(*records, title="As predicted")
    assert "Accuracy by engine" in named[0].layout.title.text and "As predicted" in named[1].layout.title.text
    assert "by epoch" not in named[0].layout.title.text
    assert sum(trace.showlegend is not False for trace in figure.data) == 1


def test_compression_shows_bytes_and_every_seed(records):
    for record, how, seed in ((records[0], "none", 0), (records[1], "int8", 1)):
        write_json(record.folder / "config.json", record.config | {"compression": how, "seed": seed})
        rows = [{**row, "minibatches": 3 * (row["epoch"] + 1), "sent_bytes": 6000} for row in record.metrics("epoch")]
        write_rows(record.folder / "metrics.jsonl", rows)
    read = [RunRecord.load(record.folder) for record in records]
    table, figure = plots.compression_table(*read), plots.compression(*read)
    assert table.compression.tolist() == ["none", "int8"] and table.seed.tolist() == [0, 1]
    assert table.sent_bytes.tolist() == [2000, 2000], "of a minibatch"
    shows(figure, [2.0, 50.0])
    write_rows(records[0].folder / "metrics.jsonl", [])
    with raises("run.no_validation"):
        plots.compression_table(*records)


def test_unfinished_runs_are_named(records):
    write_rows(records[0].folder / "metrics.jsonl", [])
    with raises("run.no_summary", "alone"):
        plots.throughput(*records)
    with raises("run.no_epoch", "alone"):
        plots.accuracy(*records)


def test_progress_shows_what_came_so_far(records):
    rows = {record.name: record.metrics() for record in records}
    figure = plots.progress(rows)
    shows(figure, [2.0, 40, 50, 100, 180])
    assert len(plots.progress_table({"a": []})) == 0


def test_progress_draws_minibatches_in_order_however_replicas_told_them():
    told = [{"event": "step", "seconds": 1.0, "minibatch": m, "loss": float(m)} for m in (0, 2, 1, 3)]
    assert list(plots.progress({"a": told}).data[0].x) == [0, 1, 2, 3]


def test_clouds_keep_every_point_and_put_the_nearest_on_top():
    points = np.random.default_rng(0).random((50, 3))
    table = plots.clouds_table({"a": points, "b": points[:9]})
    assert len(table) == 59
    own = table[table.panel == "a"]
    assert np.allclose(np.sort(own[["x", "y", "z"]], axis=0), np.sort(points, axis=0))
    assert own.depth.is_monotonic_decreasing
    # The view only turns the cloud: distances stay.
    turned = own[["right", "up", "depth"]].to_numpy()
    assert np.allclose(
        np.linalg.norm(turned[0] - turned[7]),
        np.linalg.norm(own[["x", "y", "z"]].to_numpy()[0] - own[["x", "y", "z"]].to_numpy()[7]),
    )
    figure = plots.clouds({"a": points, "b": points[:9]}, sizes={"b": 0.1})
    assert [len(t.x) for t in figure.data] == [50, 9]
    with raises("cloud.shape"):
        plots.clouds({"a": points[:, :2]})


def test_voxel_counts_show_every_sample():
    figure = plots.voxel_counts({"0.1": np.arange(5), "0.05": np.arange(7)})
    assert sorted(figure.data[0].y) == sorted([*range(5), *range(7)])


def everything(profile, records):
    yield plots.layer_costs(profile)
    yield plots.layer_graph(profile, plan((3, 3)))
    yield plots.cut_bytes(profile)
    yield plots.stages(plan((2, 4)))
    yield plots.compare(plan((2, 4)))
    yield plots.timeline(trace())
    yield plots.throughput(*records)
    yield plots.accuracy(*records)
    yield plots.progress({record.name: record.metrics() for record in records})
    yield plots.clouds({"a": np.eye(3)})
    yield plots.voxel_counts({"0.1": np.arange(5)})


def test_every_figure_has_title_size_template_and_traces_with_names_that_stay(profile, records):
    for figure in everything(profile, records):
        assert isinstance(figure, go.Figure)
        assert figure.layout.title.text.startswith("<b>")
        assert figure.layout.width >= 250 and figure.layout.height >= 250
        assert figure.layout.template.layout.font.family == theme.FONT
        uids = [t.uid for t in figure.data]
        assert all(uids) and len(set(uids)) == len(uids)


def test_the_same_values_give_the_same_figure(profile, records):
    for first, second in zip(everything(profile, records), everything(profile, records), strict=True):
        assert first.to_json() == second.to_json()


def test_real_data_beside_generated_ones_are_named(records):
    """Runs on real scans stood under "synthetic shapes", as others of the figure were on these."""
    scan = RunRecord.create(
        records[0].folder.parent / "scan", plan((6,)), {"model": "m"}, Origin(facts={"data": "sweep"})
    )
    assert noted_of("as asked", [*records, scan]) == "synthetic shapes, sweep · as asked"
    assert noted_of("as asked", [scan]) == "as asked" and noted_of("", [scan]) == "sweep · m"


def test_synthetic_data_is_said_in_the_title(profile):
    assert "synthetic shapes" in plots.layer_costs(profile).layout.title.text
    honest = replace(profile, origin={"data": {"synthetic": False}})
    assert "synthetic" not in plots.layer_costs(honest).layout.title.text
    assert noted("synthetic shapes, seed 0", {"synthetic": True}) == "synthetic shapes, seed 0"
    assert is_synthetic([{"joined": [{"data": {"synthetic": True}}]}]) and not is_synthetic({"synthetic": "no"})


def test_names_tell_strategies_and_repeats_apart():
    assert strategy(plan((6,))) == "one process"
    assert strategy(Plan((Stage(("a",), (0, 1)),))) == "data parallel × 2"
    assert strategy(plan((3, 3))) == "pipeline × 2 (1f1b)"
    assert strategy(Plan((Stage(("a",), (0, 1)), Stage(("b",), (2,))))) == "pipeline × 2-1 (1f1b)"
    assert distinct(["a", "b", "a"]) == ["a #1", "b", "a #2"]


def test_figure_files_hold_no_data():
    """A figure's numbers come from its arguments: the plotting code lists no numbers and reads no file."""
    for path in PLOTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple | ast.Set):
                numbers = [
                    n
                    for n in node.elts
                    if isinstance(n, ast.Constant)
                    and isinstance(n.value, int | float)
                    and not isinstance(n.value, bool)
                ]
                assert len(numbers) <= 3, f"{path.name}:{node.lineno} lists {len(numbers)} numbers"
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                reads = ("read_csv", "read_json", "open", "read_text", "loadtxt", "load")
                assert (
                    path.name in ("export.py", "timeline.py", "chromium_process.py") or name.split(".")[-1] not in reads
                ), f"{path.name}:{node.lineno} reads a file"


def test_figures_are_values_of_json(profile, records):
    for figure in everything(profile, records):
        json.loads(figure.to_json())


def test_planned_and_simulated_values_can_be_drawn(profile):
    from sparsepipe.planning import partition
    from sparsepipe.planning.simulator import simulate

    cluster = Cluster.uniform(3, device_type="fast", link=Link(1e9))
    made = partition(profile, cluster)
    simulated = simulate(made, profile, cluster, [1500.0] * 6)
    assert len(plots.timeline_table(simulated)) == len(simulated.spans)
    assert len(plots.stages_table(made)) == len(made.stages)


def test_time_by_size_shows_points_and_laws(profile):
    table = time_by_size_table(profile, layers=[profile.graph.layers[1].id])
    kind, id = profile.device_types[0], profile.graph.layers[1].id
    own = table[table.device_type == kind]
    samples = profile.costs[kind][1].samples
    assert own[own.what == "measured"].seconds.tolist() == [sample.forward + sample.backward for sample in samples]
    law = own[own.what == "law"]
    assert law.seconds.is_monotonic_increasing and law.extrapolated.any()
    figure = plots.time_by_size(profile, layers=[id])
    assert [trace.line.dash for trace in figure.data if trace.mode == "lines"][:3] == ["dot", "solid", "dot"]
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == profile.measured_sizes(kind), "grey"
    with raises("profile.layer_unknown", "none"):
        time_by_size_table(profile, layers=["none"])
