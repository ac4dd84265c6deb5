"""The network as a graph of layers, coloured by cost; with a plan also its stages, cuts and what crosses them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from math import atan2, degrees, dist, hypot
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from ...util.text.numbers import duration, scaled_bytes
from ...values.costs import LayerTable
from ...values.graph import Layer, LayerGraph
from ...values.plan import Plan
from ...values.profile import Profile
from ..markup import Html, figure_text
from .layout import BoxLayout, Point, layout
from .table import crossing, noted, stage_of_layers
from .theme import COST_SCALE, GREY, INK, SMALL, finished, ink_on, stage_color

Box = tuple[float, float, float, float]  # left, low, right, high
_MARKS = 6  # that are tried, of many
_LATER = 0.5  # of the words' width: how much farther a place may be to stay by an earlier mark


def around(centre: Point, size: Point) -> Box:
    """The box of a `size` (width, height) around its centre."""
    (x, y), (width, height) = centre, size
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def free_place(marks: Sequence[Point], size: Point, taken: Iterable[Box], within: Box, *, step: float) -> Point:
    """The centre of words of a `size` near one of `marks`, the earlier the better, that covers nothing `taken`.

    Heights are tried in steps of `step`. Words stay `within` a box as far as they cover nothing there; if everything
    near the marks is taken, they are where they cover least.
    """
    width, height = size
    away = [sign * (height / 2 + 3 + k * step) for k in (half / 2 for half in range(5)) for sign in (1, -1)]
    shifts = [(dx, dy) for dx, dy in product((0.0, width / 4, -width / 4, width / 2, -width / 2), away)]
    shifts += [(sign * (width / 2 + 8), 0.0) for sign in (1, -1)]
    boxes, found = list(taken), []
    for rank, (x, y) in enumerate(marks[:_MARKS]):
        reach = around((x, y), (3 * width, 2 * (height + 2 * step + 6)))
        near = [box for box in boxes if overlap(box, reach)]
        for dx, dy in shifts:
            own = around((x + dx, y + dy), size)
            covered = sum(overlap(own, box) for box in near) + width * height - overlap(own, within)
            found.append((round(covered, 3), hypot(dx, dy) + rank * _LATER * width, (x + dx, y + dy)))
    return min(found, key=lambda one: one[:2])[2]  # above a mark rather than below it


def overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


_STEPS = 24  # shades of cost: each is one trace
_NUMBERED = re.compile(r"(?:node|layer)?_?([0-9]+)")
_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of "Conv2d(3, 64, kernel_size=(3, 3))"
_PIXELS = 1.12  # for each point of Graphviz's layout
_NAME = SMALL - 1  # pixels of the letters of a name
_LETTERS = 12  # of a name that a box has room for in a line; it has room for two lines
_PARTING = "_.- "  # signs between words
_WORD_ENDS = re.compile(r"[_.\- ]|(?<=[a-z0-9])(?=[A-Z])")  # where a name may go on in a second line
_OUTLINE = 4  # pixels of a stage's
_LETTER = 7.6  # pixels of a cut's words, which are bold; some more, as a narrow page makes boxes smaller, not words
_MARK = (18.0, 18.0)  # points: width and height of a cut's mark, whichever way it is turned
_ARROW = 7.0  # points: how wide an arrow's head is
_STRETCH = 14.0  # points of an edge that run straight, at least, where it is marked as cut
_BEHIND = "rgba(255,255,255,0.8)"  # a cut's words, where they lie over boxes and lines


def layer_graph_table(
    source: Profile | LayerGraph, plan: Plan | None = None, *, device_type: str | None = None
) -> pd.DataFrame:
    """Return one row for each layer: cost at the mean minibatch, stage, inputs, and bytes still needed after it."""
    profile, graph = (source, source.graph) if isinstance(source, Profile) else (None, source)
    kind = (device_type or profile.device_types[0]) if profile else ""
    size = profile.size() if profile else 0.0
    costs = LayerTable.of(profile, [size], [kind]) if profile else None
    rows = []
    for k, (layer, stage) in enumerate(zip(graph.layers, stage_of_layers(graph, plan), strict=True)):
        row = {
            "layer": layer.id,
            "description": layer.description,
            "inputs": " ".join(graph.layers[i].id for i in graph.inputs[k]),
            "parameter_bytes": layer.parameter_bytes,
            "stage": stage,
        }
        if profile and costs is not None:
            cost = profile.cost(k, kind, size)
            features, coordinates = crossing(costs, range(k + 1))
            row |= {
                "device_type": kind,
                "forward_seconds": cost.forward,
                "backward_seconds": cost.backward,
                "output_bytes": cost.output_bytes,
                "crossing_feature_bytes": features,
                "crossing_coordinate_bytes": coordinates,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def cuts_table(profile: Profile, plan: Plan, *, device_type: str | None = None) -> pd.DataFrame:
    """Return one row for each stage boundary: the layers whose outputs cross it, and the bytes per minibatch."""
    costs = LayerTable.of(profile, [profile.size()], [device_type or profile.device_types[0]])
    rows, before = [], set()
    for k, stage in enumerate(plan.stages[:-1]):
        before |= {profile.graph.index[id] for id in stage.layers}
        features, coordinates = crossing(costs, before)
        names = " ".join(profile.graph.layers[i].id for i in profile.graph.alive(before))
        rows.append({"after_stage": k, "layers": names, "feature_bytes": features, "coordinate_bytes": coordinates})
    return pd.DataFrame(rows, columns=["after_stage", "layers", "feature_bytes", "coordinate_bytes"])


def layer_graph(
    source: Profile | LayerGraph, plan: Plan | None = None, *, device_type: str | None = None, note: str = ""
) -> go.Figure:
    """Draw the layer graph. Fill: forward and backward time, or parameters without a profile. Outline: stage.

    A long graph is folded like lines of text; every second line runs to the left. Hover shows the numbers of a layer.
    """
    profile, graph = (source, source.graph) if isinstance(source, Profile) else (None, source)
    table = layer_graph_table(source, plan, device_type=device_type)
    value = (table.forward_seconds + table.backward_seconds) * 1e3 if profile else table.parameter_bytes / 1e6
    what = "forward + backward (ms)" if profile else "parameters (MB)"
    placed = layout(graph)
    figure = go.Figure(_edges(placed))
    high = float(value.max()) or 1.0
    fills = sample_colorscale(COST_SCALE, [round(v / high * _STEPS) / _STEPS for v in value])
    _boxes(figure, placed, fills, table.stage)
    texts = [Html("<br>").join(map(figure_text, lines_of(layer_name(layer)))) for layer in graph.layers]
    names = go.Scatter(
        x=[x for x, _ in placed.positions],
        y=[y for _, y in placed.positions],
        mode="markers+text",
        text=texts,
        textfont={"size": [_NAME] * len(texts), "color": [ink_on(_hex(fill)) for fill in fills]},
        marker={
            "opacity": 0,
            "size": 18,
            "color": value,
            "colorscale": COST_SCALE,
            "cmin": 0,
            "cmax": high,
            "colorbar": {
                "title": {"text": what, "side": "right", "font": {"size": SMALL}},
                "thickness": 12,
                "lenmode": "pixels",
                "len": min(230, round(max(placed.extent[1], 120) * _PIXELS)),
                "y": 1,
                "yanchor": "top",
                "outlinewidth": 0,
            },
        },
        customdata=table.layer,
        hovertext=[_hover(row) for row in table.to_dict("records")],
        hoverinfo="text",
        showlegend=False,
    )
    figure.add_trace(names)
    drawn = [placed.bounds]
    if plan:
        drawn += _cuts(
            figure, placed, graph, table, cuts_table(profile, plan, device_type=device_type) if profile else None
        )
    lefts, lows, rights, highs = zip(*drawn, strict=True)  # plotly hides words that begin outside of the axes
    pad = 8
    figure.update_xaxes(range=[min(lefts) - pad, max(rights) + pad], visible=False, showgrid=False, zeroline=False)
    figure.update_yaxes(
        range=[min(lows) - pad, max(highs) + pad], scaleanchor="x", visible=False, showgrid=False, zeroline=False
    )
    width, height = max(rights) - min(lefts), max(highs) - min(lows)
    figure.update_layout(
        # A view that is narrower than the figure makes it less high, too, and names smaller: see plot_view.py.
        meta={"keeps_ratio": True, "pixels": _PIXELS},
        dragmode="pan",
        hovermode="closest",
        margin={"l": 10, "r": 10, "b": 10},
        legend={"orientation": "h", "x": 0, "y": 0, "yanchor": "top"},
    )
    text = noted(note, profile.origin if profile else None)
    return finished(
        figure,
        "Layers, coloured by cost" + (", stages outlined" if plan else ""),
        note=text,
        width=round(min(width, 1400) * _PIXELS) + 130,
        height=round(max(height, 120) * _PIXELS) + 130,
    )


def layer_name(layer: Layer) -> str:
    """Return the text of a box: the layer's name; for a numbered layer its kind, too: "Conv2d 12" for "node12"."""
    number, kind = _NUMBERED.fullmatch(layer.id), _KIND.match(layer.description)
    return f"{kind[0]} {number[1]}" if number and kind else layer.id


def lines_of(name: str) -> tuple[str, ...]:
    """A name as its box has room for it: in two lines if it is long, which end between its words.

    Of one that is longer than that whole words are left out: the last ones, or the first ones of a path and of a kind
    with a number ("…GlobalMax", "Pooling 3"). Hover shows the whole name.
    """
    if len(name) <= _LETTERS:
        return (name,)
    ends = [0, *(found.end() for found in _WORD_ENDS.finditer(name)), len(name)]
    words = [_shortened(name[a:b]) for a, b in pairwise(ends) if a < b]
    ends_tell = "." in name or name.rpartition(" ")[2].isdigit()
    for left_out in range(len(words)):
        kept = words[left_out:] if ends_tell else words[: len(words) - left_out]
        if left_out:
            kept = ["…", *kept] if ends_tell else [*kept[:-1], kept[-1].rstrip(_PARTING) + "…"]
        told = [("".join(kept[:k]).rstrip(), "".join(kept[k:])) for k in range(1, len(kept))]
        fitting = [lines for lines in told if max(map(len, lines)) <= _LETTERS]
        if fitting:
            return min(fitting, key=lambda lines: abs(len(lines[0]) - len(lines[1])))
    return (words[0],)


def _shortened(word: str) -> str:
    """A word that a line has room for."""
    return word if len(word.rstrip()) <= _LETTERS else f"{word[: _LETTERS - 1]}…"


def _hex(color: str) -> str:
    """A colour of a scale, "rgb(0, 34, 78)", as "#00224E"."""
    return "#" + "".join(f"{round(float(part)):02X}" for part in color[4:-1].split(","))


def _edges(placed: BoxLayout) -> list[go.Scatter]:
    xs, ys, heads, angles = [], [], [], []
    for route in placed.routes:
        xs += [x for x, _ in route] + [None]
        ys += [y for _, y in route] + [None]
        (x0, y0), (x1, y1) = route[-2], route[-1]
        heads.append((x1, y1))
        angles.append(90 - degrees(atan2(y1 - y0, x1 - x0)))  # a marker's angle turns clockwise from up
    lines = go.Scatter(x=xs, y=ys, mode="lines", line={"width": 1.2, "color": GREY}, hoverinfo="skip", showlegend=False)
    arrows = go.Scatter(
        x=[x for x, _ in heads],
        y=[y for _, y in heads],
        mode="markers",
        marker={"symbol": "arrow", "size": 7, "angle": angles, "color": GREY},
        hoverinfo="skip",
        showlegend=False,
    )
    return [lines, arrows]


def _boxes(figure: go.Figure, placed: BoxLayout, fills: list[str], stages: pd.Series) -> None:
    """One trace for each shade and stage, not for each layer: hundreds of layers stay quick."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for k, (fill, stage) in enumerate(zip(fills, stages, strict=True)):
        groups.setdefault((fill, None if pd.isna(stage) else int(stage)), []).append(k)
    w, h = placed.half
    for (fill, stage), members in groups.items():
        xs, ys = [], []
        for k in members:
            x, y = placed.positions[k]
            xs += [x, x + w, x + w, x - w, x - w, x, None]  # from the middle of a side: ends leave a notch in a corner
            ys += [y - h, y - h, y + h, y + h, y - h, y - h, None]
        line = {"width": 1, "color": INK} if stage is None else {"width": 4, "color": stage_color(stage)}
        figure.add_trace(
            go.Scatter(
                x=xs, y=ys, mode="lines", fill="toself", fillcolor=fill, line=line, hoverinfo="skip", showlegend=False
            )
        )
    for stage in sorted({stage for _, stage in groups if stage is not None}):
        key = {"symbol": "square-open", "size": 12, "color": stage_color(stage), "line": {"width": 4}}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=f"stage {stage}", marker=key))


def _cuts(
    figure: go.Figure, placed: BoxLayout, graph: LayerGraph, table: pd.DataFrame, cuts: pd.DataFrame | None
) -> list[Box]:
    """Mark every edge that leaves its stage, and write next to one of each boundary what crosses it: at a short one.

    Returns where the words are.
    """
    stages = table.stage.tolist()
    marks = dict[Point, float]()  # where, and how it is turned; edges of one layer may leave together
    of_cut: dict[int, list[Point]] = {}
    routed = zip(graph.edges, placed.routes, strict=True)
    for (i, j), route in sorted(routed, key=lambda each: dist(each[1][0], each[1][-1])):
        if pd.isna(stages[i]) or pd.isna(stages[j]) or stages[i] == stages[j]:
            continue
        point, angle = _marked(route)
        marks[point] = angle
        of_cut.setdefault(int(stages[i]), []).append(point)
    words = [] if cuts is None else _cut_words(figure, placed, of_cut, cuts)
    xs, ys = zip(*marks, strict=True) if marks else ((None,), (None,))
    mark = {"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": INK}, "angle": list(marks.values())}
    cut = go.Scatter(x=xs, y=ys, mode="markers", marker=mark, name="cut", showlegend=bool(marks), hoverinfo="skip")
    figure.add_trace(cut)
    return words


def _marked(route: Sequence[Point]) -> tuple[Point, float]:
    """Return the position of an edge's cut mark, and the mark's rotation in degrees.

    It is in the middle of the first part that runs straight for long enough, or else of the longest part.
    """
    parts = [[route[0], route[1]]]
    for point in route[2:]:
        (x0, y0), (x1, y1) = parts[-1]
        turn = abs((x1 - x0) * (point[1] - y1) - (y1 - y0) * (point[0] - x1))
        if turn <= 0.05 * dist(parts[-1][0], parts[-1][1]) * dist(parts[-1][1], point):
            parts[-1][1] = point
        else:
            parts.append([parts[-1][1], point])
    long = next((part for part in parts if dist(*part) >= _STRETCH), None) or max(parts, key=lambda part: dist(*part))
    (x0, y0), (x1, y1) = long
    turned = -degrees(atan2(y1 - y0, x1 - x0)) % 180  # a marker's angle turns clockwise
    return ((x0 + x1) / 2, (y0 + y1) / 2), round(turned, 1)


def _cut_words(
    figure: go.Figure, placed: BoxLayout, of_cut: Mapping[int, Sequence[Point]], cuts: pd.DataFrame
) -> list[Box]:
    """Write what crosses each boundary where it covers no box and no words of another; returns where that is."""
    width, height = 2 * placed.half[0] + _OUTLINE, 2 * placed.half[1] + _OUTLINE
    taken = [around(centre, (width, height)) for centre in placed.positions]
    lefts, lows, rights, highs = zip(*taken, strict=True)
    within = (min(lefts), min(lows), max(rights), max(highs) + 2 * height)  # there is room above the first line
    marks = [around(point, _MARK) for points in of_cut.values() for point in points] + _lines(placed)
    for cut, points in of_cut.items():
        row = cuts[cuts.after_stage == cut].iloc[0]
        told = f"cut {cut} | {cut + 1}: {scaled_bytes(row.feature_bytes + row.coordinate_bytes)}"
        size = (len(told) * _LETTER / _PIXELS, 1.4 * SMALL / _PIXELS)
        x, y = free_place(points, size, [*taken, *marks], within, step=height)
        taken.append(around((x, y), size))
        words = Html(" <b>{}</b> ").format(told)
        figure.add_annotation(x=x, y=y, text=words, showarrow=False, font_size=SMALL, bgcolor=_BEHIND, borderpad=0)
    return taken[len(placed.positions) :]


def _lines(placed: BoxLayout) -> list[Box]:
    """Return the areas of vertical and horizontal parts of edges, as wide as an arrowhead."""
    parts = [part for route in placed.routes for part in pairwise(route)]
    boxes = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, abs(a[0] - b[0]), abs(a[1] - b[1])) for a, b in parts]
    return [
        around((x, y), (width + _ARROW, height + _ARROW)) for x, y, width, height in boxes if min(width, height) < 1
    ]


def _hover(row: Mapping[str, Any]) -> Html:
    lines = [
        Html("<b>{}</b>").format(row["layer"]),
        row["description"],
        f"parameters {scaled_bytes(row['parameter_bytes'])}",
    ]
    if "forward_seconds" in row:
        lines.insert(2, f"forward {duration(row['forward_seconds'])}, backward {duration(row['backward_seconds'])}")
        lines.append(f"output {scaled_bytes(row['output_bytes'])}")
        lines.append(
            f"a cut here sends {scaled_bytes(row['crossing_feature_bytes'] + row['crossing_coordinate_bytes'])}"
        )
    if not pd.isna(row["stage"]):
        lines.append(f"stage {int(row['stage'])}")
    return Html("<br>").join(line for line in lines if line)
