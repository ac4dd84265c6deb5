"""Routes of edges from one line of a folded drawing to a later one: beside all boxes, never behind them.

┌───┐   ┌───┐   ┌───┐        An edge leaves its box downwards, or beside it where another box stands below. It
│ a ├──►│ b ├──►│ c │        runs between the lines and, past whole lines, in the margin on the nearer side, each
└─┬─┘   └───┘   └─┬─┘        on a track of its own; all edges of one layer leave together, as they carry one tensor.
  └─────────────┐ │ ──┐
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
        """Whether it runs past a whole line."""
        return self.boxes.line_of[edge[1]] > self.boxes.line_of[edge[0]] + 1

    def _is_straight(self, edge: tuple[int, int]) -> bool:
        """Whether its target stands right below its source, with nothing between."""
        (i, j), xs, lines = edge, self.boxes.xs, self.boxes.line_of
        near = lines[j] == lines[i] + 1 and abs(xs[i] - xs[j]) < 1
        return near and self._column(i)[-1] == i and self._column(j)[0] == j

    def _column(self, k: int) -> list[int]:
        """The boxes above each other with one in its line, the highest first."""
        return self._columns[self.boxes.line_of[k], round(self.boxes.xs[k], 1)]

    def _exit(self, i: int) -> tuple[float, bool]:
        """Where edges leave a box, and whether that is below it: else on the side to which its line runs."""
        (w, _), x, column = self.boxes.half, self.boxes.xs[i], self._column(i)
        if column[-1] == i:
            return x + _ASIDE * w, True
        share = 0.2 + 0.15 * (column.index(i) % 3)
        return x + self.boxes.directions[self.boxes.line_of[i]] * (w + share * self.boxes.between), False

    def _entries(self) -> dict[tuple[int, int], tuple[float, bool]]:
        """Where each edge enters its box, and whether that is from above: else on the side that its line comes from."""
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

    def _tracks(self) -> tuple[dict[tuple[int, ...], int], dict[tuple[int, int], int]]:
        """The number of each track between lines, from the upper one on, and of each beside them, from the boxes on."""
        between: dict[int, dict[tuple[int, ...], Interval]] = defaultdict(dict)
        beside: dict[int, dict[tuple[int, int], Interval]] = {1: {}, -1: {}}
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


def _wider(found: dict, key: tuple[int, ...], one: float, other: float) -> None:
    """Let a track reach from one place to another besides what it does already."""
    low, high = found.get(key, (_FAR, -_FAR))
    found[key] = min(low, one, other), max(high, one, other)


def _placed(wanted: Mapping) -> dict:
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
