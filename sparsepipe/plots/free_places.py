"""Where words go that may not cover boxes: the nearest place that is free."""

from collections.abc import Iterable, Sequence
from itertools import product
from math import hypot

from .layout import Point

Box = tuple[float, float, float, float]  # left, low, right, high
_MARKS = 6  # that are tried, of many
_LATER = 0.5  # of the words' width: how much farther a place may be to stay by an earlier mark


def around(centre: Point, size: Point) -> Box:
    """The box of a `size` (width, height) around its centre."""
    (x, y), (width, height) = centre, size
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def free_place(marks: Sequence[Point], size: Point, taken: Iterable[Box], within: Box, *, step: float) -> Point:
    """The centre of words of a `size` near one of `marks`, the earlier the better, that covers nothing `taken`.

    Heights are tried in steps of `step`. Words stay `within` a box as far as they cover nothing there; where everything
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
