"""Positions of a graph's layers for drawing: Graphviz's layered layout, long ones folded like lines of text."""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import pygraphviz

from ..graph import LayerGraph
from .edge_routes import EdgeRoutes, FoldedBoxes, Point

# Inches: width and height of a layer's box, which has room for a name in two lines within a stage's outline.
BOX = (1.06, 0.44)
_GAP = 3.2  # half heights of a box from one line to the next, at least
_FEW = 200  # layers that are drawn to be read as they are, on a page of 1,280 pixels
_COLUMNS, _COLUMNS_OF_MANY = 6, 11
_POINTS = 72  # Graphviz answers in points, 72 an inch
_lock = threading.Lock()  # Graphviz keeps global state: one layout at a time


@dataclass(frozen=True)
class Layout:
    """Centres of the layers' boxes and the routes of the edges, in points; `half` is half a box's width and height."""

    positions: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]  # one for each edge of the graph, in its order, from source to target
    half: Point
    num_lines: int

    @property
    def extent(self) -> Point:
        """Width and height of all that is drawn."""
        left, low, right, high = self.bounds
        return right - left, high - low

    @cached_property
    def bounds(self) -> tuple[float, float, float, float]:
        """The left, low, right and high end of all boxes and edges."""
        w, h = self.half
        corners = [(x + a * w, y + b * h) for x, y in self.positions for a, b in ((-1, -1), (1, 1))]
        xs, ys = zip(*corners, *(point for route in self.routes for point in route), strict=True)
        return min(xs), min(ys), max(xs), max(ys)


@lru_cache(maxsize=32)
def layout(graph: LayerGraph, *, columns: int | None = None) -> Layout:
    """Lay a graph out from left to right; one with more than `columns` columns continues below, there and back.

    Without `columns` a line has as many as a page shows with names that are read.
    """
    if columns is None:
        columns = _COLUMNS if len(graph.layers) <= _FEW else _COLUMNS_OF_MANY
    with _lock:
        drawn = _dot(graph)
    places = tuple(_point(drawn.get_node(str(k)).attr["pos"]) for k in range(len(graph.layers)))
    routes = tuple(_route(drawn.get_edge(str(i), str(j)).attr["pos"]) for i, j in graph.edges)
    half = (BOX[0] * _POINTS / 2, BOX[1] * _POINTS / 2)
    return _folded(graph, places, routes, half, columns)


def _dot(graph: LayerGraph) -> pygraphviz.AGraph:
    drawn = pygraphviz.AGraph(directed=True)
    drawn.graph_attr.update(rankdir="LR", ranksep="0.24", nodesep="0.18")
    # No label: plotly writes the names, and Graphviz, which would look for fonts, warns of text that does not fit.
    drawn.node_attr.update(shape="box", width=str(BOX[0]), height=str(BOX[1]), fixedsize="true", label="")
    drawn.add_nodes_from(str(k) for k in range(len(graph.layers)))
    drawn.add_edges_from((str(i), str(j)) for i, j in graph.edges)
    drawn.layout("dot")
    return drawn


def _folded(
    graph: LayerGraph, places: tuple[Point, ...], routes: tuple[tuple[Point, ...], ...], half: Point, columns: int
) -> Layout:
    """Cut the drawing into lines of `columns` columns at most; every other line runs backwards, so that ends meet."""
    steps = sorted({round(x, 1) for x, _ in places})
    column = [steps.index(round(x, 1)) for x, _ in places]
    if len(steps) <= columns:
        return Layout(places, routes, half, 1)
    breaks = _breaks(graph, column, len(steps), columns)
    line_of = [bisect_right(breaks, at) for at in column]
    within = [line_of[i] == line_of[j] for i, j in graph.edges]
    spans = _spans(places, routes, graph, line_of, half)
    starts = _starts(steps, breaks)

    def fold(point: Point, line: int) -> Point:
        first, x, sign = starts[line]
        return x + sign * (point[0] - first), point[1] - sum(spans[line]) / 2

    folded = [fold(place, line) for place, line in zip(places, line_of, strict=True)]
    xs, heights = zip(*folded, strict=True)
    directions = [sign for *_, sign in starts]
    boxes = FoldedBoxes(xs, heights, line_of, directions, half, steps[1] - steps[0] - 2 * half[0])
    edge_routes = EdgeRoutes(boxes, [edge for edge, own in zip(graph.edges, within, strict=True) if not own])
    middles, gaps, y = list[float](), list[Point](), 0.0
    for line, (low, high) in enumerate(spans):
        middles.append(y - (high - low) / 2)
        y -= high - low
        gaps.append((y - edge_routes.gap(line, _GAP * half[1]), y))
        y = gaps[-1][0]
    positions = tuple((x, middles[line] + height) for (x, height), line in zip(folded, line_of, strict=True))
    bent = []
    for edge, route, own in zip(graph.edges, routes, within, strict=True):
        if own:
            line = line_of[edge[0]]
            bent.append(tuple((x, middles[line] + height) for x, height in (fold(point, line) for point in route)))
        else:
            bent.append(edge_routes.route(edge, middles, gaps))
    return Layout(positions, tuple(bent), half, len(spans))


def _breaks(graph: LayerGraph, column: Sequence[int], num_columns: int, most: int) -> list[int]:
    """First column of every line but the first: near to even lines, where few edges would be broken."""
    broken = [0] * (num_columns + 1)  # edges that a break before this column breaks
    for i, j in graph.edges:
        for at in range(column[i] + 1, column[j] + 1):
            broken[at] += 1
    breaks, start = [], 0
    while (left := num_columns - start) > most:
        even, begin = left / -(-left // most), start
        near = range(start + max(1, 2 * most // 3), start + most + 1)
        start = min(near, key=lambda at: (broken[at], abs(at - begin - even)))
        breaks.append(start)
    return breaks


def _starts(steps: Sequence[float], breaks: Sequence[int]) -> list[tuple[float, float, int]]:
    """For each line: where its first column is in the drawing, where that goes, and the line's direction (1 or -1).

    A line begins below where the one before it ends, but for what would make the whole wider than the longest line.
    """
    found, x = list[tuple[float, float, int]](), 0.0
    lengths = [steps[end - 1] - steps[first] for first, end in pairwise([0, *breaks, len(steps)])]
    for line, (first, length) in enumerate(zip([0, *breaks], lengths, strict=True)):
        sign = 1 if line % 2 == 0 else -1
        x = min(x, max(lengths) - length) if sign > 0 else max(x, length)
        found.append((steps[first], x, sign))
        x += sign * length
    return found


def _spans(
    places: Sequence[Point], routes: Sequence[Sequence[Point]], graph: LayerGraph, line_of: Sequence[int], half: Point
) -> list[Point]:
    """The lowest and the highest point of each line: of its boxes, and of the edges that stay in it."""
    found: dict[int, list[float]] = {}
    for (_, y), line in zip(places, line_of, strict=True):
        found.setdefault(line, []).extend((y - half[1], y + half[1]))
    for (i, j), route in zip(graph.edges, routes, strict=True):
        if line_of[i] == line_of[j]:
            found[line_of[i]].extend(y for _, y in route)
    return [(min(found[line]), max(found[line])) for line in sorted(found)]


def _point(text: str) -> Point:
    x, y = text.split(",")[-2:]
    return float(x), float(y)


def _route(text: str) -> tuple[Point, ...]:
    """The spline of one edge as Graphviz writes it, "e,x,y x,y x,y …": its end first, then cubic control points."""
    words = text.split()
    end = [_point(word) for word in words if word.startswith("e,")]
    return (*_bezier(tuple(_point(word) for word in words if word[1] != ",")), *end)


def _bezier(control: tuple[Point, ...], pieces: int = 6) -> list[Point]:
    """Points along a chain of cubic Bézier curves."""
    points = [control[0]]
    for k in range(0, len(control) - 3, 3):
        a, b, c, d = control[k : k + 4]
        for t in (piece / pieces for piece in range(1, pieces + 1)):
            u = 1 - t
            x, y = (u**3 * a[n] + 3 * u * u * t * b[n] + 3 * u * t * t * c[n] + t**3 * d[n] for n in (0, 1))
            points.append((x, y))
    return points
