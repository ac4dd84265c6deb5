"""Pictures of layer graphs: every layer and cut is drawn, none covers another, and each tensor counts once."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from test_plots import NUM_LAYERS, plan, small_profile

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage, partition, plots
from sparsepipe.data.manifests import manifests_folder
from sparsepipe.plots import theme
from sparsepipe.plots.layer_graph import around, overlap
from sparsepipe.plots.layout import layout
from sparsepipe.plots.text_room import width_of


@pytest.fixture(scope="module")
def profile():
    return small_profile()


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


def test_published_graphs_can_be_drawn(shared_reference):
    for name in ("densenet121", "inception_v3"):
        found = Profile.load(shared_reference / "profiles" / "image_classification" / name / "graph.txt")
        figure = plots.layer_graph(found)
        named = next(t for t in figure.data if t.text is not None)
        assert len(named.text) == len(found.graph.layers)


def test_names_that_are_long_are_in_two_lines_and_cut_where_they_tell_least():
    """A box said "MinkowskiGlo", "balMaxPoo… 3": words were broken."""
    longest = "a_very_long_name_of_one_layer_of_many"
    ids = ["conv1_1", "node7", "conv1_1_short", "encoder.layers.0.attention", longest, "a.path.to_one.layer.of.a.block"]
    ids += ["node3", "normalization"]
    kinds = {"node7": "AdaptiveAvgPool2d(1)", "node3": "MinkowskiGlobalMaxPooling()"}
    layers = tuple(Layer(id, kinds.get(id, ""), 1.0) for id in ids)
    named = next(t for t in plots.layer_graph(LayerGraph.chain(layers)).data if t.text is not None)
    told = ["conv1_1", "Adaptive<br>AvgPool2d 7", "conv1_<br>1_short", "…layers.0.<br>attention"]
    assert list(named.text)[:4] == told and set(named.textfont.size) == {10}, "smaller ones are not read"
    parts = [text.split("<br>") for text in named.text]
    assert all(len(part) <= 12 for lines in parts for part in lines) and max(map(len, parts)) == 2
    assert list(named.text)[4:6] == ["a_very_long_<br>name_of_one…", "…one.layer.<br>of.a.block"]
    assert list(named.text)[6:] == ["…GlobalMax<br>Pooling 3", "normalizati…"]


def test_a_box_keeps_its_name_clear_of_its_outline():
    """Names in two lines touched the outline of their stage."""
    kinds = ["MinkowskiGlobalMaxPooling", "MinkowskiConvolution", "BatchNorm2d", "AdaptiveAvgPool2d", "LayerNorm"]
    layers = tuple(Layer(f"node{10 + k}", f"{kind}()", 1.0) for k, kind in enumerate(kinds))
    graph = LayerGraph.chain(layers)
    figure = plots.layer_graph(graph, Plan((Stage(tuple(layer.id for layer in layers), (0,)),)))
    outline = max(trace.line.width for trace in figure.data if trace.fill == "toself")
    width, height = (2 * half * figure.layout.meta["pixels"] - outline for half in layout(graph).half)
    named = next(trace for trace in figure.data if trace.text is not None)
    size = named.textfont.size[0]
    parts = [text.split("<br>") for text in named.text]
    assert max(map(len, parts)) == 2
    assert max(width_of(line) for lines in parts for line in lines) * size <= width - 4, "two pixels at each side"
    assert max(map(len, parts)) * 1.3 * size <= height - 4


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


@pytest.mark.parametrize("last", range(7, 14))
def test_words_of_cuts_cover_no_edge_that_leads_to_the_next_line(last):
    """Those of a cut behind the first layer of a line lay over the arrow to it."""
    layers = tuple(Layer(f"n{k}", "", 1.0) for k in range(24))
    costs = tuple(LayerCost((CostSample(1000, 0.01, 0.02, 1e5),)) for _ in layers)
    found = Profile(LayerGraph.chain(layers), {"cpu": costs}, (1000.0,))
    names = [layer.id for layer in layers]
    figure = plots.layer_graph(found, Plan((Stage(tuple(names[:last]), (0,)), Stage(tuple(names[last:]), (1,)))))
    (one,) = figure.layout.annotations
    own = around((one.x, one.y), (6.5 * len(re.sub("<.*?>", "", one.text).strip()), 13))
    parts = [part for route in layout(found.graph).routes for part in pairwise(route)]
    upright = [(min(a[0], b[0]) - 1, min(a[1], b[1]), max(a[0], b[0]) + 1, max(a[1], b[1])) for a, b in parts]
    assert not any(overlap(own, line) for line in upright)


@pytest.fixture(scope="module", params=["minkunet14a", "densenet121", "chain"])
def branching(request, shared_reference):
    """A graph whose edges skip layers."""
    if request.param == "chain":  # skips over whole lines, and many that begin in one column
        layers = tuple(Layer(f"n{k}", "", 1.0) for k in range(60))
        return LayerGraph.chain(layers, skips=[(k, k + 14 + k % 5) for k in range(0, 40, 2)])
    if request.param == "minkunet14a":
        return Profile.load(manifests_folder().parent / "profiles" / "minkunet14a.json").graph
    return Profile.load(shared_reference / "profiles" / "image_classification" / request.param / "graph.txt").graph


def test_no_edge_runs_behind_a_box(branching):
    """Those that skip layers ran straight through what lay between the lines of a folded drawing."""
    placed = layout(branching)
    (w, h), boxes = placed.half, np.array(placed.positions)
    for (i, j), route in zip(branching.edges, placed.routes, strict=True):
        along = np.concatenate([np.linspace(a, b, 2 + int(math.dist(a, b) // 4)) for a, b in pairwise(route)])
        behind = (np.abs(along[:, None] - boxes) < (w - 1, h - 1)).all(axis=-1).any(axis=0)
        assert not np.delete(behind, [i, j]).any(), f"edge {i} to {j} runs behind {np.flatnonzero(behind)}"


def test_a_drawing_is_as_wide_as_a_page_with_names_that_are_read(branching):
    """At 1,280 pixels names were as small as 7."""
    figure = plots.layer_graph(branching)
    most = (
        860 if len(branching.layers) <= 200 else 1300
    )  # of many layers the whole is in sight, and names are zoomed to
    assert figure.layout.width <= most, "else a page, or a notebook, would make it smaller, and its names"
    left, low, right, high = layout(branching).bounds
    for route in layout(branching).routes:
        assert all(left <= x <= right and low <= y <= high for x, y in route)


def test_cuts_are_marked_on_edges_across_them():
    found = Profile.load(manifests_folder().parent / "profiles" / "minkunet14a.json")
    plan_of_4 = partition(found, Cluster.uniform(4, device_type=found.device_types[0]), planner="model-parallel")
    figure = plots.layer_graph(found, plan_of_4)
    marks = next(trace for trace in figure.data if trace.name == "cut")
    stage = {id: k for k, one in enumerate(plan_of_4.stages) for id in one.layers}
    ids = [layer.id for layer in found.graph.layers]
    cut = [stage[ids[i]] != stage[ids[j]] for i, j in found.graph.edges]
    stretches = [
        (np.array(a), np.array(b))
        for route, own in zip(layout(found.graph).routes, cut, strict=True)
        if own
        for a, b in pairwise(route)
    ]
    assert len(marks.x) >= 3
    for x, y, angle in zip(marks.x, marks.y, marks.marker.angle, strict=True):
        point, turned = np.array((x, y)), math.radians(angle)
        across = np.array((math.sin(turned), math.cos(turned)))  # of a mark that is upright when it is not turned
        on = [
            (b - a) / np.linalg.norm(b - a) for a, b in stretches if np.linalg.norm(b - a) and _away(point, a, b) < 0.5
        ]
        assert on, "it lies on an edge that is cut"
        assert min(abs(one @ across) for one in on) < 0.1, "and across it"


def _away(point, a, b):
    """How far a point is from the stretch between two others."""
    share = np.clip((point - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
    return np.linalg.norm(a + share * (b - a) - point)
