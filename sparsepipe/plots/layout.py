"""Positions of a graph's layers for drawing: Graphviz's layered layout, long ones folded like lines of text."""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pygraphviz

from ..graph import LayerGraph

Point = tuple[float, float]
BOX = (0.92, 0.3)  # inches: width and height of a layer's box
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
        """Width and height of all boxes together."""
        xs, ys = zip(*self.positions, strict=True)
        return max(xs) - min(xs) + 2 * self.half[0], max(ys) - min(ys) + 2 * self.half[1]


@lru_cache(maxsize=32)
def layout(graph: LayerGraph, *, columns: int = 9) -> Layout:
    """Lay a graph out from left to right; one with more than `columns` columns continues below, there and back."""
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
    """Cut the drawing into lines of about `columns` columns; every other line runs backwards, so that ends meet."""
    steps = sorted({round(x, 1) for x, _ in places})
    column = [steps.index(round(x, 1)) for x, _ in places]
    if len(steps) <= columns * 1.5:
        return Layout(places, routes, half, 1)
    breaks = _breaks(graph, column, len(steps), columns)
    line_of = [bisect_right(breaks, at) for at in column]
    frames = _frames(places, line_of, steps, breaks, half)

    def fold(point: Point, line: int) -> Point:
        origin, x, y, sign = frames[line]
        return x + sign * (point[0] - origin[0]), y + point[1] - origin[1]

    positions = tuple(fold(place, line) for place, line in zip(places, line_of, strict=True))
    bent = []
    for (i, j), route in zip(graph.edges, routes, strict=True):
        if line_of[i] == line_of[j]:
            bent.append(tuple(fold(point, line_of[i]) for point in route))
        else:
            bent.append(_between_lines(positions[i], positions[j], half))
    return Layout(positions, tuple(bent), half, len(frames))


def _breaks(graph: LayerGraph, column: Sequence[int], num_columns: int, columns: int) -> list[int]:
    """First column of every line but the first: near to even lines, where few edges would be broken."""
    broken = [0] * (num_columns + 1)  # edges that a break before this column breaks
    for i, j in graph.edges:
        for at in range(column[i] + 1, column[j] + 1):
            broken[at] += 1
    breaks, start = [], 0
    while num_columns - start > columns * 1.5:
        near = range(start + columns // 2, start + (columns * 3) // 2 + 1)
        start = min(near, key=lambda at: (broken[at], abs(at - start - columns)))
        breaks.append(start)
    return breaks


def _frames(
    places: Sequence[Point], line_of: Sequence[int], steps: Sequence[float], breaks: Sequence[int], half: Point
) -> list[tuple[Point, float, float, int]]:
    """For each line: a point of the drawing, where it goes (x, y), and the line's direction (1 or -1)."""
    frames: list[tuple[Point, float, float, int]] = []
    x = y = 0.0
    for line, first in enumerate([0, *breaks]):
        heights = [place[1] for place, at in zip(places, line_of, strict=True) if at == line]
        last = (breaks[line] if line < len(breaks) else len(steps)) - 1
        sign = 1 if line % 2 == 0 else -1
        y -= (max(heights) - min(heights)) / 2
        frames.append(((steps[first], (max(heights) + min(heights)) / 2), x, y, sign))
        x += sign * (steps[last] - steps[first])  # the next line begins below where this one ends
        y -= (max(heights) - min(heights)) / 2 + 5.2 * half[1]
    return frames


def _between_lines(source: Point, target: Point, half: Point) -> tuple[Point, ...]:
    """A route from one line down to a later one: out of the bottom of a box and into the top of another."""
    start, end = (source[0], source[1] - half[1]), (target[0], target[1] + half[1])
    middle = (start[1] + end[1]) / 2
    return tuple(_bezier((start, (start[0], middle), (end[0], middle), end)))


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
