"""Pictures of layer graphs: every layer and cut is drawn, none covers another, and each tensor counts once."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from test_plots import NUM_LAYERS, plan, small_profile

from sparsepipe import Cluster, Layer, LayerGraph, Profile, partition, plots
from sparsepipe.data.manifests import manifests_folder
from sparsepipe.views.plots import theme
from sparsepipe.views.plots.layer_graph import around, overlap
from sparsepipe.views.plots.layout import layout


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


@pytest.mark.parametrize("length", [3, 17, 60])
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
