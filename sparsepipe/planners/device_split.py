"""Splits of devices into parts, one for each pipeline: which there are, and which is worth most.

Interchangeable units of devices form a kind; a part is a count of each kind. So few splits are told apart that the best
one can be found by dynamic programming over counts, whatever each part is worth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from ..cluster import Cluster
from ..costs import Array
from ..display.counting import number_of
from ..errors import InputError
from .device_groups import device_classes

MOST_PARTS = 1024  # that a search looks at
Part = tuple[int, ...]


@dataclass(frozen=True)
class Units:
    """The units of each kind, each a tuple of ranks. `complete`: of single devices, so that no split is left out."""

    kinds: tuple[tuple[tuple[int, ...], ...], ...]
    complete: bool = True

    @classmethod
    def of(cls, cluster: Cluster, num_parts: int) -> "Units":
        """Single devices where there are few enough; else whole nodes, or blocks of like devices of a node.

        Devices of one type on one node are of a kind. Raises InputError where even blocks are too many.
        """
        units = cls(tuple(tuple((rank,) for rank in one.ranks) for one in device_classes(cluster)))
        if units.num_parts > MOST_PARTS:
            whole = len(cluster.nodes) >= num_parts
            units = (cls._whole_nodes(cluster) if whole else units)._joined(num_parts)
        if units.num_parts > 4 * MOST_PARTS:
            raise InputError(
                f"{number_of(num_parts, 'pipeline')} on {number_of(len(cluster.devices), 'device')} of "
                f"{len(units.kinds)} kinds: too many to split; ask for fewer pipelines, or plan parts of the cluster "
                "by themselves"
            )
        return units

    @classmethod
    def _whole_nodes(cls, cluster: Cluster) -> "Units":
        like: dict[object, list[tuple[int, ...]]] = {}
        first = 0
        for node in cluster.nodes:
            ranks = tuple(range(first, first + len(node.device_types)))
            like.setdefault((node.link, node.device_types), []).append(ranks)
            first += len(ranks)
        return cls(tuple(map(tuple, like.values())), complete=False)

    def _joined(self, num_parts: int) -> "Units":
        """Join units of a kind two by two, or three by three, and then kinds, until parts or units are few enough."""
        kinds = list(self.kinds)
        while Units(tuple(kinds)).num_parts > MOST_PARTS:
            kinds.sort(key=lambda kind: (-len(kind), len(kind[0]), kind))
            largest = kinds[0]
            if len(largest) > 1:
                size = next(size for size in range(2, len(largest) + 1) if len(largest) % size == 0)
                joined = [_together(largest[i : i + size]) for i in range(0, len(largest), size)]
                following = [tuple(joined), *kinds[1:]]
            else:
                following = [(_together([*kinds[0], *kinds[1]]),), *kinds[2:]]
            if sum(map(len, following)) < num_parts:
                break
            kinds = following
        return Units(tuple(kinds), complete=False)

    @property
    def total(self) -> Part:
        """The part of all units."""
        return tuple(map(len, self.kinds))

    @property
    def num_parts(self) -> int:
        """How many parts there are, the empty one too."""
        return int(np.prod([len(kind) + 1 for kind in self.kinds], dtype=float))

    def parts(self) -> Iterator[Part]:
        """Every part but the empty one."""
        return (part for part in product(*(range(len(kind) + 1) for kind in self.kinds)) if any(part))

    def ranks(self, split: Sequence[Part]) -> list[tuple[int, ...]]:
        """Ranks for each part of a split, in ascending order."""
        taken, found = [0] * len(self.kinds), []
        for part in split:
            ranks: list[int] = []
            for k, count in enumerate(part):
                for unit in self.kinds[k][taken[k] : taken[k] + count]:
                    ranks += unit
                taken[k] += count
            found.append(tuple(sorted(ranks)))
        return found


def _together(units: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(rank for unit in units for rank in unit)


class Worths:
    """What each part is worth, in minibatches per second, and the best split by it."""

    def __init__(self, units: Units, num_parts: int) -> None:
        self.units, self.num_parts = units, num_parts
        self._shape = [count + 1 for count in units.total]

    def array(self) -> Array:
        """An array with a place for each part, [units of kind 0 + 1, units of kind 1 + 1, …]; nothing is known yet."""
        return np.full(self._shape, -np.inf)

    @cached_property
    def _options(self) -> list[Part]:
        """Every part, those nearest to an even share of all first: among equals such a split is found."""
        even = [count / self.num_parts for count in self.units.total]
        away = lambda part: sum((own - mean) ** 2 for own, mean in zip(part, even, strict=True))  # noqa: E731
        return sorted(self.units.parts(), key=away)

    def best(self, worth: Array) -> tuple[float, list[Part]]:
        """Return the most that a split of all units into `num_parts` parts is worth, and that split.

        −infinity and no parts where each split has a part that is worth −infinity.
        """
        options = [part for part in self._options if worth[part] > -np.inf]
        best, picks = worth, []
        for left in range(1, self.num_parts):
            best, pick = self._one_more(worth, options, best, last=left == self.num_parts - 1)
            picks.append(pick)
        at = self.units.total
        value = float(best[at])
        if value == -np.inf:
            return value, []
        split = []
        for pick in reversed(picks):
            part = options[pick[at]]
            split.append(part)
            at = tuple(a - b for a, b in zip(at, part, strict=True))
        return value, [*split, at]

    def _one_more(self, worth: Array, options: Sequence[Part], best: Array, *, last: bool) -> tuple[Array, np.ndarray]:
        """Add a part: the most for each count of units used so far, and the option taken. `last`: all units are."""
        found, pick = self.array(), np.zeros(self._shape, dtype=np.intp)
        total = self.units.total
        for k, part in enumerate(options):
            if last:
                rest = tuple(a - b for a, b in zip(total, part, strict=True))
                if worth[part] + best[rest] > found[total]:
                    found[total], pick[total] = worth[part] + best[rest], k
                continue
            before = tuple(slice(0, size - count) for size, count in zip(self._shape, part, strict=True))
            after = tuple(slice(count, None) for count in part)
            candidate = best[before] + worth[part]
            better = candidate > found[after]
            found[after] = np.where(better, candidate, found[after])
            pick[after] = np.where(better, k, pick[after])
        return found, pick
