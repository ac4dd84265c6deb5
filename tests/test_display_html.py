"""What notebooks show of values: true numbers, one SVG, no text of the user's as markup, nothing heavy imported."""

import itertools
import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    RunRecord,
    Span,
    Stage,
    Trace,
    partition,
    replay,
    simulate,
    what_if,
)
from sparsepipe.display.colors import (
    GROUNDS,
    STAGE_COLORS,
    TYPE_COLORS,
    WORK_SHADES,
    contrast,
    edge_of,
    type_colors,
    work_color,
)
from sparsepipe.display.table import html_table
from sparsepipe.plots import dark, theme
from sparsepipe.record import Origin
from sparsepipe.trace import WORK
from sparsepipe.widgets.view_model import COLORS, PALETTE

COSTS = tuple(LayerCost((CostSample(0, 0.01 * (k + 1), 0.02, 1e6),)) for k in range(6))
PROFILE = Profile(LayerGraph.chain(tuple(Layer(f"conv{k}", "", 2e6) for k in range(6))), {"gpu": COSTS}, (100.0,))
CLUSTER = Cluster.uniform(2, device_type="gpu", link=Link(1e9, 1e-5))


def svg(text):
    """The drawing, parsed: that it can be is part of the test."""
    return ElementTree.fromstring(re.search(r"<svg.*?</svg>", text, re.DOTALL)[0])


def titles(text):
    return [node.text for node in svg(text).iter("{http://www.w3.org/2000/svg}title")]


def cells(text):
    """The page with its cells, wherever they stand in their columns."""
    return re.sub(r"<(t[dh]) style='text-align:[^']*'>", r"<\1>", text)


def test_columns_of_numbers_end_and_columns_of_words_begin_on_one_line():
    rows = [("alpha", "16.7 ms", "2 GB/s, 5 µs", "–"), ("9", "1,200 ms", "4 GB/s", "7%")]
    found = str(html_table(["node", "time", "link", "share"], rows, rest="… 2 more"))
    sides = [re.findall(r"text-align:(\w+)", row) for row in found.split("</tr>")]
    assert sides == [["left", "right", "left", "right"]] * 3 + [["left"], []]
    assert str(html_table(["", ""], [("<b>", "1")])).count("<tr>") == 1 and "&lt;b&gt;" in str(
        html_table([""], [["<b>"]])
    )


def test_a_plan_shows_its_stages():
    plan = partition(PROFILE, CLUSTER)
    text = plan._repr_html_()
    assert titles(text) == [f"stage {k}: {len(stage.layers)} layers" for k, stage in enumerate(plan.stages)]
    first = plan.estimate.stages[0]
    assert f"{first.compute_seconds * 1e3:.0f} ms" in text and "conv5" in text
    printed = re.split("  +", str(plan).splitlines()[1])
    assert re.findall(r"<th[^>]*>([^<]*)</th>", text) == printed, "one plan, one table"
    assert "by hand" in Plan((Stage(("a",), (0,)),))._repr_html_(), "without an estimate"


def test_a_profile_shows_its_layers():
    text = PROFILE._repr_html_()
    assert titles(text)[5] == "conv5 on gpu: 80.0 ms" and len(titles(text)) == 6
    assert "●</span> gpu</td><td>210 ms</td><td>120 ms</td><td>conv5</td>" in cells(text)


def test_a_cluster_shows_nodes_and_links():
    kinds = (DeviceType("fast", 8e9),) * 2, (DeviceType("slow"),)
    cluster = Cluster((Node("a", kinds[0], Link(1e10)), Node("b", kinds[1], Link())), Link(1e9, 5e-5))
    text = cluster._repr_html_()
    assert titles(text) == ["a", "fast on a", "fast on a", "b", "slow on b"]
    assert "2 × fast" in text and "1 GB/s, 50 µs" in text and "8 GB" in text and "no limit" in text and "free" in text


def test_a_type_of_devices_has_one_colour_in_every_value_of_a_page():
    """A profile's value had the same four types in other colours than the cluster's, by the order they stood in."""
    names = ["native-2t", "native-1t", "minkowski-2t", "minkowski-1t"]
    profile = Profile(PROFILE.graph, dict.fromkeys(names, COSTS), (100.0,))
    kinds = [DeviceType(name) for name in reversed(names)]
    few, every = (
        Cluster((Node("a", tuple(kinds[1:3]), Link()),), Link()),
        Cluster((Node("a", tuple(kinds), Link()),), Link()),
    )
    swatches = [
        dict(re.findall(r"color:(#\w+)'>●</span> ([\w-]+)", value._repr_html_())) for value in (profile, few, every)
    ]
    of_profile, *others = ({name: color for color, name in found.items()} for found in swatches)
    assert len(set(of_profile.values())) == 4 and all(one.items() <= of_profile.items() for one in others)
    assert [len(one) for one in others] == [2, 4]
    for value in (profile, every):  # and in the drawing
        drawn = {node.get("fill") for node in svg(value._repr_html_()).iter("{http://www.w3.org/2000/svg}rect")}
        assert drawn - {"none"} == set(of_profile.values())


def test_whatever_is_drawn_is_seen_on_light_pages_and_on_dark_ones():
    """Forwards were pale on white, updates and averages black on black: neither had a line around it."""

    def seen(*colors):
        return min(max(contrast(color, ground) for color in colors) for ground in (*GROUNDS, dark.GROUND)) >= 3

    shades = {work_color(k, kind) for k in range(len(STAGE_COLORS)) for kind in WORK_SHADES}
    known = shades | {*STAGE_COLORS, *TYPE_COLORS} | {theme.stage_color(0, kind) for kind in ("wait", "load", "send")}
    assert all(seen(edge_of(color)) for color in known)
    in_views = {*itertools.chain(*COLORS), PALETTE["wait"], PALETTE["other"]}
    assert PALETTE["edges"] == {color: edge_of(color) for color in in_views}
    assert all(contrast(color, theme.ink_on(color).replace("white", "#FFFFFF")) >= 4.5 for color in known)
    kinds = [*WORK, "average"]
    spans = [Span(k, "x", float(j), j + 0.9, kind, k, j) for k in range(12) for j, kind in enumerate(kinds)]
    spans += [Span(0, "x", 90.0, 90.001, kind, 0, 99) for kind in kinds]  # thin ones
    stages = Plan(tuple(Stage((f"conv{k}",), (k,)) for k in range(len(STAGE_COLORS))))
    names = [f"type {k}" for k in range(len(TYPE_COLORS))]
    every = Cluster((Node("a", tuple(map(DeviceType, names)), Link()),), Link())
    profile = Profile(PROFILE.graph, dict.fromkeys(names, COSTS), (100.0,))
    for value in (Trace(tuple(spans), "measured"), stages, every, profile):
        shown = value._repr_html_()
        for node in svg(shown).iter("{http://www.w3.org/2000/svg}rect"):
            assert seen(*{node.get("fill"), node.get("stroke")} - {"none"}), ElementTree.tostring(node)
        marks = re.findall(r"stroke:1px (#\w+);color:(#\w+)'>", shown)
        assert all(seen(*mark) for mark in marks) and ("Trace" in type(value).__name__ or len(marks) > 10)


def test_all_types_that_this_package_comes_with_have_colours_of_their_own():
    shipped = ["native-1t", "native-2t", "minkowski-1t", "minkowski-2t", "cpu", "native", "minkowski"]
    published = ["RTX", "TITAN V", "TITAN Xp", "V100"]
    alone = [type_colors([name])[name] for name in (*shipped, *published)]
    assert len(set(alone)) == len(alone), "each by its name alone"
    many = [f"type {k}" for k in range(30)]
    assert len(set(type_colors(many[:14]).values())) == 14 and len(type_colors(many)) == 30


def test_a_type_of_devices_has_no_stages_colour():
    """On one page a type's mark had a stage's colour, as if the stage were of that type."""
    names = [*PROFILE.device_types, *(f"type {k}" for k in range(40))]
    types = {*type_colors(names).values()}
    shades = {work_color(k, kind) for k in range(len(STAGE_COLORS)) for kind in WORK_SHADES}
    apart = min(math.dist(_rgb(one), _rgb(other)) for one in types for other in shades | {*STAGE_COLORS})
    assert len(types) == 14 and apart > 0.05, "colours from 0 to 1"
    assert min(math.dist(_rgb(a), _rgb(b)) for a, b in itertools.combinations(types, 2)) > 0.15
    for color in types:
        ink = theme.INK_ON if theme.ink_on(color) == theme.INK_ON else "#FFFFFF"
        assert theme.contrast(color, ink) >= 4.5
        assert min(theme.contrast(color, ground) for ground in ("#FFFFFF", "#111111")) > 1.7, "and on either page"
    stages, machines = partition(PROFILE, CLUSTER)._repr_html_(), PROFILE._repr_html_() + CLUSTER._repr_html_()
    assert "■" in stages and "●" not in stages and "●" in machines and "■" not in machines, "and no stage's mark"


def _rgb(color):
    return [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]


def test_values_print_as_a_few_lines():
    """`print(profile)` and `print(trace)` filled the terminal with every number there is."""
    trace = simulate(partition(PROFILE, CLUSTER), PROFILE, CLUSTER, [100] * 6)
    values = {
        "profile": PROFILE,
        "cluster": CLUSTER,
        "trace": trace,
        "replay": replay(trace),
        "what if": what_if(trace),
    }
    told = {name: str(value).splitlines() for name, value in values.items()}
    assert all(len(lines) <= 20 and max(map(len, lines)) <= 160 for lines in told.values()), told
    assert told["profile"][0].startswith(f"profile of {len(PROFILE.graph.layers)} layers on ")
    assert told["cluster"][0].startswith(f"{len(CLUSTER.devices)} devices on ") and "memory: " in told["cluster"][-1]
    work = f"{trace.busy(0) / trace.makespan:.0%}"
    head, rank = told["trace"][1].split(), told["trace"][2].split()
    assert head == ["rank", "work", "idle", "averaging", "waiting", "sending"] and rank[1] == work and rank[4] == "–"
    assert f"<td>{'</td><td>'.join(rank)}</td>" in cells(trace._repr_html_()), (
        "a page and a terminal have the same shares"
    )
    assert told["what if"][-1] == values["what if"].culprit in values["what if"]._repr_html_()
    assert str(Trace((), "measured")) == "measured trace: 0 spans of 0 ranks in 0 ms"


def test_a_trace_shows_its_ranks():
    trace = simulate(partition(PROFILE, CLUSTER), PROFILE, CLUSTER, [100] * 6)
    text = trace._repr_html_()
    assert len(titles(text)) >= 12 and "simulated trace" in text
    work = trace.busy(0) / trace.makespan
    assert (
        f"<td>0</td><td>{work:.0%}</td><td>{1 - work:.0%}</td>" in cells(text) and "idle: all time without work" in text
    )
    assert "without spans" in Trace((), "measured")._repr_html_()
    many = Trace(tuple(Span(0, "0F0", k, k + 1) for k in range(5000)), "measured")._repr_html_()
    assert len(many) < 200_000 and "drawn" in many


@pytest.mark.parametrize("broken", [False, True])
def test_a_record_shows_how_it_stands_also_half_written(tmp_path, broken):
    record = RunRecord.create(tmp_path / "run", partition(PROFILE, CLUSTER), {"model": "net"}, Origin())
    rows = [json.dumps({"event": "step", "seconds": 1, "minibatch": k, "loss": 9 - k}) for k in range(9)]
    (record.folder / "metrics.jsonl").write_text("\n".join([*rows, ""]))
    if broken:
        (record.folder / "plan.json").write_text("{")
        assert "run run cannot be read" in RunRecord(record.folder)._repr_html_()
        return
    text = record._repr_html_()
    assert (
        "run run, started" in text
        and "<td>minibatches</td><td>9</td>" in cells(text)
        and titles(text) == ["loss by minibatch"]
    )


def test_names_are_text_and_not_markup():
    plan = Plan((Stage(("<b>a</b>",), (0,), device_types=("<i>gpu</i>",)),), warnings=("<script>",))
    text = plan._repr_html_()
    assert not any(markup in text for markup in ("<i>", "<script>", "<b>a"))


def test_nothing_is_imported_to_show_a_value():
    code = (
        "import sys, sparsepipe; sparsepipe.Cluster.uniform(2)._repr_html_(); "
        "print(sorted({'plotly', 'pandas', 'torch', 'IPython'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
