"""Positions of a graph's layers for drawing: Graphviz's layered layout, long ones folded like lines of text.

Routes of edges from one line of a folded drawing to a later one: around all boxes, never behind them.

┌───┐   ┌───┐   ┌───┐        An edge leaves its box downwards, or next to it where another box stands below. It
│ a ├──►│ b ├──►│ c │        runs between the lines and, past whole lines, in the margin on the nearer side, each
└─┬─┘   └───┘   └─┬─┘        on a track of its own; all edges of one layer leave together, as they carry one tensor.
  └─────────────┐ │ ──┐
"""

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import pygraphviz

from ...values.graph import LayerGraph

Point = tuple[float, float]
Interval = tuple[float, float]
TRACK = 8.0  # points from one track to the next
_MARGIN = 12.0  # points from the boxes to the first track beside them
_APART = 8.0  # points between the ends of edges into one box
_ASIDE = 0.4  # of half a box: how far right of its middle edges leave, and how far left of it they come; none meet so
_FAR = 1e9


@dataclass(frozen=True)
class FoldedBoxes:
    """Boxes of a folded drawing whose lines do not have their places below each other yet."""

    xs: Sequence[float]
    heights: Sequence[float]  # of each box's centre over the middle of its line
    line_of: Sequence[int]
    directions: Sequence[int]  # of each line: 1 to the right, -1 to the left
    half: Point  # half a box's width and height
    between: float  # points between columns, which are free of boxes


class EdgeRoutes:
    """The tracks of `edges` between different lines; `route` gives one's points once it is known where lines are."""

    def __init__(self, boxes: FoldedBoxes, edges: Iterable[tuple[int, int]]) -> None:
        self.boxes, self.edges = boxes, list(edges)
        self._columns = defaultdict[tuple[int, float], list[int]](list)  # boxes above each other, the highest first
        for k in sorted(range(len(boxes.xs)), key=lambda k: -boxes.heights[k]):
            self._columns[boxes.line_of[k], round(boxes.xs[k], 1)].append(k)
        bent = [edge for edge in self.edges if not self._is_straight(edge)]
        self._leaves = {i: self._exit(i) for i, _ in bent}
        self._enters = self._entries()
        self._side = {edge: self._nearer_side(edge) for edge in bent if self._passes(edge)}
        self._between, self._beside = self._tracks()
        edge_of = [x for x, _ in (*self._leaves.values(), *self._enters.values())]
        self._right = max([max(boxes.xs) + boxes.half[0], *edge_of])
        self._left = min([min(boxes.xs) - boxes.half[0], *edge_of])

    def gap(self, line: int, least: float) -> float:
        """Points that are needed below a line for what runs there."""
        return max(least, (self._count(line) + 1) * TRACK)

    def route(self, edge: tuple[int, int], middles: Sequence[float], gaps: Sequence[Interval]) -> tuple[Point, ...]:
        """The corners of an edge, from its source to its target.

        `middles`: the height of each line; `gaps`: the lowest and highest point of the free space below each line.
        """
        (i, j), boxes = edge, self.boxes
        (w, h), lines = boxes.half, boxes.line_of
        y0, y1 = (middles[lines[k]] + boxes.heights[k] for k in edge)
        if self._is_straight(edge):
            return (boxes.xs[i], y0 - h), (boxes.xs[j], y1 + h)
        (x0, below), (x1, above) = self._leaves[i], self._enters[edge]
        start = [(x0, y0 - h)] if below else [(boxes.xs[i] + boxes.directions[lines[i]] * w, y0), (x0, y0)]
        end = [(x1, y1 + h)] if above else [(x1, y1), (boxes.xs[j] - boxes.directions[lines[j]] * w, y1)]
        leave, enter = self._keys(edge)
        if edge in self._side:
            beside, out, back = self._beside_at(edge), self._height(leave, gaps), self._height(enter, gaps)
            middle = [(x0, out), (beside, out), (beside, back), (x1, back)]
        else:
            middle = [(x0, self._height(leave, gaps)), (x1, self._height(leave, gaps))]
        return (*start, *middle, *end)

    def _passes(self, edge: tuple[int, int]) -> bool:
        """Return whether it runs past a whole line."""
        return self.boxes.line_of[edge[1]] > self.boxes.line_of[edge[0]] + 1

    def _is_straight(self, edge: tuple[int, int]) -> bool:
        """Return whether its target stands right below its source, with nothing between."""
        (i, j), xs, lines = edge, self.boxes.xs, self.boxes.line_of
        near = lines[j] == lines[i] + 1 and abs(xs[i] - xs[j]) < 1
        return near and self._column(i)[-1] == i and self._column(j)[0] == j

    def _column(self, k: int) -> list[int]:
        """The boxes above each other with one in its line, the highest first."""
        return self._columns[self.boxes.line_of[k], round(self.boxes.xs[k], 1)]

    def _exit(self, i: int) -> tuple[float, bool]:
        """Return where edges leave a box, and whether below it; otherwise on the side of its line."""
        (w, _), x, column = self.boxes.half, self.boxes.xs[i], self._column(i)
        if column[-1] == i:
            return x + _ASIDE * w, True
        share = 0.2 + 0.15 * (column.index(i) % 3)
        return x + self.boxes.directions[self.boxes.line_of[i]] * (w + share * self.boxes.between), False

    def _entries(self) -> dict[tuple[int, int], tuple[float, bool]]:
        """Return where each edge enters its box, and whether from above; otherwise on the side of its line."""
        found: dict[tuple[int, int], tuple[float, bool]] = {}
        into = defaultdict[int, list[tuple[int, int]]](list)
        for edge in self.edges:
            if not self._is_straight(edge):
                into[edge[1]].append(edge)
        for j, edges in into.items():
            (w, _), x, column = self.boxes.half, self.boxes.xs[j], self._column(j)
            if column[0] == j:
                shifts = [(k + 1) // 2 * _APART * (1 if k % 2 else -1) - _ASIDE * w for k in range(len(edges))]
                found |= {
                    edge: (x + max(2 - w, min(-2, shift)), True) for edge, shift in zip(edges, shifts, strict=True)
                }
            else:
                aside = w + (0.2 + 0.15 * (column.index(j) % 2)) * self.boxes.between
                found |= dict.fromkeys(edges, (x - self.boxes.directions[self.boxes.line_of[j]] * aside, False))
        return found

    def _nearer_side(self, edge: tuple[int, int]) -> int:
        """The margin, 1 on the right and -1 on the left, by which an edge is shorter."""
        x0, x1 = self._leaves[edge[0]][0], self._enters[edge][0]
        left, right = min(self.boxes.xs), max(self.boxes.xs)
        return 1 if (right - x0) + (right - x1) <= (x0 - left) + (x1 - left) else -1

    def _keys(self, edge: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The names of the tracks on which an edge leaves its line, and comes to the other one."""
        lines = self.boxes.line_of
        return (lines[edge[0]], edge[0]), (lines[edge[1]] - 1, *edge)

    def _tracks(self) -> tuple[dict[tuple[int, ...], int], dict[tuple[int, ...], int]]:
        """The number of each track between lines, from the upper one on, and of each next to them, from the boxes
        on.
        """
        between: dict[int, dict[tuple[int, ...], Interval]] = defaultdict(dict)
        beside: dict[int, dict[tuple[int, ...], Interval]] = {1: {}, -1: {}}
        for edge in self._enters:
            (x0, _), (x1, _), (leave, enter) = self._leaves[edge[0]], self._enters[edge], self._keys(edge)
            if edge in self._side:
                side = self._side[edge]
                _wider(between[leave[0]], leave, x0, side * _FAR)
                _wider(between[enter[0]], enter, x1, side * _FAR)
                _wider(beside[side], (side, edge[0]), leave[0], enter[0])
            else:
                _wider(between[leave[0]], leave, x0, x1)
        rows = {key: place for wanted in between.values() for key, place in _placed(wanted).items()}
        return rows, {key: place for wanted in beside.values() for key, place in _placed(wanted).items()}

    def _count(self, line: int) -> int:
        return max((place + 1 for key, place in self._between.items() if key[0] == line), default=0)

    def _height(self, key: tuple[int, ...], gaps: Sequence[Interval]) -> float:
        low, high = gaps[key[0]]
        return high - (high - low) * (self._between[key] + 1) / (self._count(key[0]) + 1)

    def _beside_at(self, edge: tuple[int, int]) -> float:
        side = self._side[edge]
        away = _MARGIN + self._beside[side, edge[0]] * TRACK
        return self._right + away if side > 0 else self._left - away


def _wider(found: dict[tuple[int, ...], Interval], key: tuple[int, ...], one: float, other: float) -> None:
    """Let a track reach from one place to another besides what it does already."""
    low, high = found.get(key, (_FAR, -_FAR))
    found[key] = min(low, one, other), max(high, one, other)


def _placed(wanted: Mapping[tuple[int, ...], Interval]) -> dict[tuple[int, ...], int]:
    """The number of a track for each interval, so that none overlap on one: the shortest are nearest to 0."""
    taken: list[list[Interval]] = []
    found = {}
    for key, (low, high) in sorted(wanted.items(), key=lambda pair: (pair[1][1] - pair[1][0], pair[1], pair[0])):
        free = (k for k, own in enumerate(taken) if all(high < a or b < low for a, b in own))
        place = next(free, len(taken))
        if place == len(taken):
            taken.append([])
        taken[place].append((low, high))
        found[key] = place
    return found


# Inches: width and height of a layer's box, which has room for a name in two lines within a stage's outline.
BOX = (1.06, 0.44)
_GAP = 3.2  # half heights of a box from one line to the next, at least
_FEW = 200  # layers that are drawn to be read as they are, on a page of 1,280 pixels
_COLUMNS, _COLUMNS_OF_MANY = 6, 11
_POINTS = 72  # Graphviz answers in points, 72 an inch
_lock = threading.Lock()  # Graphviz keeps global state: one layout at a time


@dataclass(frozen=True)
class BoxLayout:
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
def layout(graph: LayerGraph, *, columns: int | None = None) -> BoxLayout:
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
) -> BoxLayout:
    """Cut the drawing into lines of `columns` columns at most; every other line runs backwards, so that ends meet."""
    steps = sorted({round(x, 1) for x, _ in places})
    column = [steps.index(round(x, 1)) for x, _ in places]
    if len(steps) <= columns:
        return BoxLayout(places, routes, half, 1)
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
    return BoxLayout(positions, tuple(bent), half, len(spans))


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
    """For each line: where its first column is in the drawing, if that goes, and the line's direction (1 or -1).

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
