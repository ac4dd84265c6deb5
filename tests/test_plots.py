"""Figures hold the data they were given, look the same everywhere, and type no number of their own."""

import ast
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io
import pytest

from sparsepipe import (
    Cluster,
    CostSample,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Plan,
    Profile,
    Span,
    Stage,
    Trace,
    partition,
    plots,
)
from sparsepipe.data.manifests import manifests_folder
from sparsepipe.io.files import write_json, write_rows
from sparsepipe.plan import Estimate, StageEstimate
from sparsepipe.plots import dark, theme
from sparsepipe.plots.free_places import around, overlap
from sparsepipe.plots.layout import layout
from sparsepipe.plots.outcomes import rule_color
from sparsepipe.plots.table import distinct, is_synthetic, noted, noted_of, strategy
from sparsepipe.record import Origin, RunRecord
from sparsepipe.replication import RULES

PLOTS = Path(theme.__file__).parent
NUM_LAYERS = 6


@pytest.fixture(scope="module")
def profile():
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


def test_layer_graph_counts_each_tensor_across_a_cut_once(profile):
    table = plots.layer_graph_table(profile).set_index("layer")
    # After conv2, its own output and that of conv0, which conv4 still needs; both live on conv0's coordinates.
    assert math.isclose(table.crossing_feature_bytes["conv2"], 1.5e6 + 0.5e6)
    assert math.isclose(table.crossing_coordinate_bytes["conv2"], 24e3)
    assert table.inputs["conv4"] == "conv0 conv3"
    cuts = plots.cuts_table(profile, plan((3, 3)))
    assert cuts.layers.tolist() == ["conv0 conv2"]
    assert math.isclose(cuts.feature_bytes[0], 2e6)


def test_layer_graph_draws_every_layer_its_stage_and_the_bytes_of_its_cuts(profile):
    figure = plots.layer_graph(profile, plan((3, 3)))
    named = next(t for t in figure.data if t.text is not None)
    assert list(named.text) == [f"conv{k}" for k in range(NUM_LAYERS)]
    assert list(named.marker.color) == pytest.approx([(0.015 + 0.03) * (k + 1) * 1e3 for k in range(NUM_LAYERS)])
    assert {"stage 0", "stage 1"} <= {t.name for t in figure.data}
    assert any("2.02 MB" in note.text for note in figure.layout.annotations)
    outlines = {t.line.color for t in figure.data if t.fill == "toself"}
    assert outlines == {theme.stage_color(0), theme.stage_color(1)}


def test_layer_graph_without_costs_shows_parameters(profile):
    figure = plots.layer_graph(profile.graph)
    named = next(t for t in figure.data if t.text is not None)
    assert list(named.marker.color) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("length", [3, 16, 17, 60, 230])
def test_layout_keeps_boxes_apart_and_routes_from_box_to_box(length):
    graph = LayerGraph.chain(
        (Layer(f"n{k}") for k in range(length)), skips=[(k, k + 2) for k in range(0, length - 2, 5)]
    )
    placed = layout(graph)
    width, height = 2 * placed.half[0], 2 * placed.half[1]
    points = np.array(placed.positions)
    gaps = np.abs(points[:, None] - points[None])
    apart = (gaps[..., 0] >= width - 0.5) | (gaps[..., 1] >= height - 0.5) | np.eye(length, dtype=bool)
    assert apart.all()
    for (i, j), route in zip(graph.edges, placed.routes, strict=True):
        for end, layer in ((route[0], i), (route[-1], j)):
            assert abs(end[0] - points[layer][0]) <= width * 0.6 and abs(end[1] - points[layer][1]) <= height * 1.2


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
    assert not [t for t in figure.data if t.name == "averaging over replicas"], "none of these averages"
    with pytest.raises(InputError, match="carries no estimate"):
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
    with pytest.raises(InputError, match="other layers"):
        plots.compare(plans[0], other)


def test_timeline_shows_every_span_hatched_by_its_source_and_measured_solid():
    three = (trace(), trace("replayed", offset=2.0), trace("measured", offset=5.0))
    table = plots.timeline_table(*three)
    assert table.start_seconds.min() == 0 and len(table) == sum(len(t.spans) for t in three)
    figure = plots.timeline(*three)
    bars = pd.DataFrame(
        {"base": np.concatenate([t.base for t in figure.data]), "x": np.concatenate([t.x for t in figure.data])}
    )
    expected = pd.DataFrame({"base": table.start_seconds * 1e3, "x": (table.end_seconds - table.start_seconds) * 1e3})
    assert np.allclose(np.sort(bars.to_numpy(), axis=0), np.sort(expected.to_numpy(), axis=0))
    shapes = {bar.y[0].split(" · ")[1]: bar.marker.pattern.shape for bar in figure.data}
    assert shapes == {"simulated": "-", "replayed": "|", "measured": ""}
    colors = {t.name: t.marker.color for t in figure.data}
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
    assert "the time of minibatch 1<" in plots.timeline(again, minibatches=(1, 2)).layout.title.text + "<"
    with pytest.raises(InputError, match="no work on minibatches"):
        plots.timeline(again, minibatches=(7, 9))


def test_a_window_says_which_minibatches_it_is_for_and_which_are_beside_them():
    """A subtitle said minibatches 10 to 16, and bars were numbered 9 to 17."""
    spans = [Span(0, f"0F{m}", m * 1.0, m + 1.5, "forward", 0, m) for m in range(4)]
    figure = plots.timeline(Trace(tuple(spans), "measured"), minibatches=(1, 3), note="last epoch")
    assert "last epoch · the time of minibatches 1 to 2, parts of 0 to 3 beside them" in figure.layout.title.text
    assert "the time of" not in plots.timeline(Trace(tuple(spans), "measured")).layout.title.text


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
    hatched = {bar.offsetgroup for bar in figure.data if bar.marker.pattern.shape}
    assert hatched == {"predicted"}
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
    assert "means of 2 runs" in figure.layout.title.text
    assert sum(trace.showlegend is not False for trace in figure.data) == 1


def test_few_epochs_have_a_tick_each_and_a_users_network_its_files_name(records, tmp_path):
    """Three epochs had the ticks 1 2 2 3 3, and the second line a folder of this machine."""
    assert plots.accuracy(*records).layout.xaxis.dtick == 1
    shutil.copytree(records[0].folder, tmp_path / "own")
    settings = json.loads((tmp_path / "own" / "config.json").read_text()) | {"model": "/some/where/net.py:build"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(settings))
    assert RunRecord(tmp_path / "own").model == "net.py:build"
    assert "net.py:build" in plots.accuracy(RunRecord(tmp_path / "own")).layout.title.text
    assert "/some/where" not in plots.accuracy(RunRecord(tmp_path / "own")).to_json()


def test_tasks_have_a_column_each_with_speeds_above_and_accuracy_below(records):
    runs = {"images": records, "words": records[:1]}
    table = plots.tasks_table(runs)
    assert table.task.tolist() == ["images"] * 4 + ["words"] * 2
    assert table.strategy.unique().tolist() == ["one process", "pipeline × 2 (1f1b)"]
    assert table.samples_per_second.tolist() == [100, 100, 180, 180, 100, 100] and set(table.seed) == {0}
    figure = plots.tasks(runs)
    shows(figure, [100, 180, 16 / 0.06, 16 / 0.03])
    shows(figure, table.validation_accuracy * 100)
    assert [note.text for note in figure.layout.annotations] == ["images", "words"]
    legend = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert legend == ["one process", "pipeline × 2 (1f1b)", "predicted", "measured"], "each once"
    with_level = plots.tasks(runs, levels={"words": 0.07})
    assert [shape.y0 for shape in with_level.layout.shapes] == [pytest.approx(7)]
    assert "the most frequent answer alone" in [trace.name for trace in with_level.data]
    assert "synthetic" in figure.layout.title.text
    with pytest.raises(InputError, match="no runs to draw"):
        plots.tasks({"images": []})


def test_the_number_of_several_seeds_stands_over_their_line(records, tmp_path):
    """It lay over it, at the height of the mean."""
    shutil.copytree(records[0].folder, tmp_path / "again")
    rows = [row | {"samples_per_second": 140.0} for row in records[0].metrics() if row["event"] != "step"]
    write_rows(tmp_path / "again/metrics.jsonl", rows)
    write_json(tmp_path / "again/config.json", records[0].config | {"seed": 1})
    figure = plots.tasks({"images": [records[0], RunRecord(tmp_path / "again")]})
    (number,) = (bar for bar in figure.data if bar.type == "bar" and list(bar.text or ()) == ["120"])
    (bar,) = (bar for bar in figure.data if bar.type == "bar" and bar.y[0] == 120)
    assert number.y[0] == 140 == bar.y[0] + bar.error_y.array[0] and number.offsetgroup == bar.offsetgroup


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
    with pytest.raises(InputError, match="has no epoch that was validated"):
        plots.compression_table(*records)


def test_unfinished_runs_are_named(records):
    write_rows(records[0].folder / "metrics.jsonl", [])
    with pytest.raises(InputError, match=r"alone.*no summary"):
        plots.throughput(*records)
    with pytest.raises(InputError, match=r"alone.*no finished epoch"):
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
    with pytest.raises(InputError, match="shape"):
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


def test_a_long_line_below_the_title_goes_on_in_the_next_line():
    figure = theme.finished(
        go.Figure(), "Costs", note="synthetic shapes · " + "one thread of a processor · " * 12, width=900
    )
    lines = figure.layout.title.text.split("<br>")[1:]
    widest = max(len(re.sub("<[^>]*>", "", line)) for line in lines)
    assert len(lines) == 3 and widest * 6.4 < 900 - 20
    short = theme.finished(go.Figure(), "Costs", note="synthetic shapes", width=900)
    further = figure.layout.margin.t - theme.TEMPLATE.layout.margin.t
    assert further == figure.layout.height - short.layout.height == 40


def test_a_cell_shows_a_figure_as_wide_as_the_page_and_its_own_size_stays():
    """A note in lines for a figure of 900 pixels was cut off by a page that had 848."""
    note, doubt = "one thread of a processor · " * 12, "other processes used 90 % of the cores, " * 5
    figure = theme.doubted(theme.finished(go.Figure(), "Costs", note=f"shapes\n{note}", width=900), [doubt])
    before = figure.to_json()
    shown = plotly.io.renderers["plotly_mimetype"].to_mimebundle(figure.to_dict())["application/vnd.plotly.v1+json"]
    layout = shown["layout"]
    assert figure.to_json() == before and "width" not in layout and layout["autosize"]
    lines = [re.sub("<[^>]*>", "", line) for line in layout["title"]["text"].split("<br>")]
    assert max(map(len, lines)) * 6.4 < theme.WIDTH and " ".join(lines[1:]) == f"shapes {note}doubtful: {doubt}".strip()
    narrow = theme.doubted(theme.finished(go.Figure(), "Costs", note=f"shapes\n{note}"), [doubt]).layout
    assert layout["title"]["text"] == narrow.title.text, "as if it had been drawn for that width"
    assert (layout["height"], layout["margin"]["t"]) == (narrow.height, narrow.margin.t)
    heading = theme.heading_of(figure)
    assert heading.title == "Costs" and heading.notes == ("shapes", note) and heading.doubt == f"doubtful: {doubt}"
    assert figure.layout.height - heading.height == figure.layout.margin.t - heading.margin > 0
    strange = go.Figure(layout={"width": 900}).to_dict()
    assert plots.as_wide_as_the_page(strange) == strange and theme.heading_of(go.Figure(strange)) is None


def test_no_button_uploads_the_data():
    for name in ("plotly_mimetype", "notebook"):
        assert plotly.io.renderers[name].config["showSendToCloud"] is False


def test_stage_colours_are_told_apart_by_colour_blind_eyes():
    """Machado et al. 2009: how the palette looks without red, green or blue cones; neighbours still differ."""
    views = {
        "normal": np.eye(3),
        "protanopia": np.array(
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
        ),
        "deuteranopia": np.array(
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
        ),
        "tritanopia": np.array(
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
        ),
    }
    colors = np.array([[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in theme.STAGE_COLORS])
    for name, view in views.items():
        seen = np.clip(np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4) @ view.T, 0, 1)
        for a, b in zip(seen, seen[1:], strict=False):
            assert np.linalg.norm(a - b) > 0.15, name
    apart = [np.linalg.norm(a - b) for k, a in enumerate(colors) for b in colors[:k]]
    assert len(colors) == 14 and min(apart) > 0.15, "no two of fourteen stages look alike, with all cones at least"


def test_parts_of_the_time_have_no_stages_colour():
    from sparsepipe.plots.anatomy import _COLORS

    assert not {*_COLORS.values()} & {theme.stage_color(k, kind) for k in range(14) for kind in ("forward", "backward")}
    assert len({theme.stage_color(0, kind) for kind in ("forward", "backward", "weights", "update", "average")}) == 5


@pytest.mark.parametrize("stage", range(14))
def test_text_on_a_stages_colour_can_be_read(stage):
    """White on orange was 2 : 1; WCAG 2.1 asks for 4.5 of small text, and 3 of graphics."""
    for kind in ("forward", "backward", "weights", "update", "average"):
        color = theme.stage_color(stage, kind)
        ink = theme.INK_ON if theme.ink_on(color) == theme.INK_ON else "#FFFFFF"
        line, opacity = theme.hatch_lines(color, worded=True)
        hatched = theme.mixed(color, opacity if line == "#FFFFFF" else -opacity)
        assert min(_contrast(color, ink), _contrast(hatched, ink)) >= 4.5
        assert _contrast(hatched, color) >= 1.6, "and the lines are seen"


def test_a_hatch_is_seen_on_every_series_in_both_themes():
    """White lines of what was predicted were lost on the series that is white on a dark page, and weak on yellow."""
    colors = {*theme.RUN_COLORS, *map(rule_color, RULES), *theme.STAGE_COLORS, theme.INK, theme.GREY}
    for color in colors:
        line, opacity = theme.hatch_lines(color)
        assert _contrast(color, theme.mixed(color, opacity if line == "#FFFFFF" else -opacity)) >= 2.4
        if lit := dark.LIT.get(color):
            share = opacity if dark.LIT_LINES[lit] == "#FFFFFF" else -opacity
            assert _contrast(lit, theme.mixed(lit, share)) >= 2.4


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color):
    parts = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


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
                    path.name in ("export.py", "trace_page.py", "chromium_process.py")
                    or name.split(".")[-1] not in reads
                ), f"{path.name}:{node.lineno} reads a file"


def test_figures_are_values_of_json(profile, records):
    for figure in everything(profile, records):
        json.loads(figure.to_json())


def test_published_graphs_can_be_drawn(shared_reference):
    for name in ("densenet121", "inception_v3"):
        found = Profile.load(shared_reference / "profiles" / "image_classification" / name / "graph.txt")
        figure = plots.layer_graph(found)
        named = next(t for t in figure.data if t.text is not None)
        assert len(named.text) == len(found.graph.layers)


def test_names_that_are_long_are_smaller_in_two_lines_and_cut_where_they_tell_least():
    longest = "a_very_long_name_of_one_layer_of_many"
    ids = ["conv1_1", "node7", "conv1_1_short", "encoder.layers.0.attention", longest, "a.path.to_one.layer.of.a.block"]
    layers = tuple(Layer(id, "AdaptiveAvgPool2d(1)" if id == "node7" else "", 1.0) for id in ids)
    named = next(t for t in plots.layer_graph(LayerGraph.chain(layers)).data if t.text is not None)
    told = ["conv1_1", "Adaptive<br>AvgPool2d 7", "conv1_1_short", "encoder.layers.<br>0.attention"]
    assert list(named.text)[:4] == told and list(named.textfont.size)[:4] == [10, 8, 8, 8]
    parts = [text.split("<br>") for text in named.text]
    assert all(len(part) <= 15 for lines in parts for part in lines) and max(map(len, parts)) == 2
    assert "".join(parts[4]) == f"{longest[:29]}…" and "".join(parts[5]) == ids[5]


def test_words_of_cuts_cover_no_layer():
    """Those of cut 1 | 2 stood on a layer of the network with branches."""
    found = Profile.load(manifests_folder().parent / "profiles" / "minkunet14a.json")
    for count in (3, 5):
        cluster = Cluster.uniform(count, device_type=found.device_types[0])
        figure = plots.layer_graph(found, partition(found, cluster, planner="model-parallel"))
        placed = layout(found.graph)
        boxes = [around(at, (2 * placed.half[0], 2 * placed.half[1])) for at in placed.positions]
        told = [(one, re.sub("<.*?>", "", one.text).strip()) for one in figure.layout.annotations]
        words = [around((one.x, one.y), (6.5 * len(text), 13)) for one, text in told]
        assert len(words) == count - 1
        (left, right), (low, high) = figure.layout.xaxis.range, figure.layout.yaxis.range
        for k, own in enumerate(words):
            assert not any(overlap(own, other) for other in [*boxes, *words[:k]])
            assert left <= own[0] and own[2] <= right and low <= own[1] and own[3] <= high, "else they are not drawn"


def test_planned_and_simulated_values_can_be_drawn(profile):
    from sparsepipe.planners import partition
    from sparsepipe.simulator import simulate

    cluster = Cluster.uniform(3, device_type="fast", link=Link(1e9))
    made = partition(profile, cluster)
    simulated = simulate(made, profile, cluster, [1500.0] * 6)
    assert len(plots.timeline_table(simulated)) == len(simulated.spans)
    assert len(plots.stages_table(made)) == len(made.stages)
