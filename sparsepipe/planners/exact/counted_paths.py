"""Paths of spans that use no more devices of each type than there are, or the proof that below a limit there are none.

Prices alone (placed_stages.py) prove that only where every mixture of paths uses too many devices; here devices are
counted. Of the ways to reach a cut those stay that use fewer of some type than each other way, and of these the ones
that cost, with the cheapest spans after them, no more than all devices do, at each of some prices. Near the longest
period that prices refuse few are left.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...costs import Array
from ..cuts import Index
from .placed_stages import Placed, PlacedStages

_MORE = 1e-9  # than all devices cost, beyond rounding
_PRICES = 8  # of those that were asked last
_AT_ONCE = 500_000  # ways to go on from a cut by a span


class Span(NamedTuple):
    """Stages between two boundaries that the network carries."""

    counts: tuple[int, ...]  # devices of each type
    hosts: int  # over how many nodes; with 1 these may be several stages, with more it is one


@dataclass(frozen=True, eq=False)
class _Ways:
    """Ways to reach a cut, a row each."""

    used: Index  # [N, T]: devices
    cut: Index  # [N]: where the last span begins
    row: Index  # [N]: of the ways that are kept there
    span: Index  # [N, T]: devices of the last span
    hosts: Index  # [N]

    @classmethod
    def joined(cls, parts: "Sequence[_Ways]") -> "_Ways":
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))

    def rows(self, chosen: Index) -> "_Ways":
        return _Ways(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def counted_path(stages: PlacedStages, asked: Sequence[Placed], *, until: float) -> list[Span] | None:
    """Return spans in pipeline order that are below the limit of `stages`; None as proof that no plan is.

    `asked`: cheapest spans at some prices. Raises TimeoutError where neither is known at `until` of
    `time.process_time()`.
    """
    available, priced = stages.placements.available, list(asked)[-_PRICES:]
    prices = np.stack([one.prices for one in priced])  # [Q, T]
    before, after = (np.stack(own) for own in ([one.before for one in priced], [one.after for one in priced]))
    end, none = before.shape[1] - 1, np.zeros((1, len(available)), dtype=np.intp)
    zero = np.zeros(1, dtype=np.intp)
    waiting: dict[int, list[_Ways]] = {0: [_Ways(none, zero - 1, zero, none, zero)]}
    kept: dict[int, _Ways] = {}
    spans = _spans(stages, before, after)
    for cut in range(end):
        if cut not in waiting:
            continue
        own = kept[cut] = _fewest(_Ways.joined(waiting.pop(cut)), available)
        for span in spans.get(cut, ()):
            if time.process_time() > until:
                raise TimeoutError
            last = int(stages.last[span])
            options, hosts = stages.options(span)
            chosen = (options @ prices.T + before[:, cut] + after[:, last] <= 1 + _MORE).all(axis=1)
            options, hosts = options[chosen], hosts[chosen]
            own_rows = np.arange(len(own.used))
            for rows in np.array_split(own_rows, -(-len(own_rows) * len(options) // _AT_ONCE) or 1):
                used = own.used[rows, None] + options[None]
                row, column = np.nonzero((used <= available).all(axis=2))
                used = used[row, column]
                good = (used @ prices.T + after[:, last] <= 1 + _MORE).all(axis=1)
                if good.any():
                    row, column, used = rows[row[good]], column[good], used[good]
                    begins = np.full(len(row), cut)
                    ways = _Ways(used, begins, row, options[column], hosts[column])
                    waiting.setdefault(last, []).append(_fewest(ways, available))
    if end not in waiting:
        return None
    return _walk(_Ways.joined(waiting[end]), kept)


def _spans(stages: PlacedStages, before: Array, after: Array) -> dict[int, list[int]]:
    """The spans that may be part of a path, by the cut at which they begin."""
    found: dict[int, list[int]] = {}
    able = (before[:, stages.first] + after[:, stages.last] <= 1 + _MORE).all(axis=0)
    for span in np.flatnonzero(able).tolist():
        found.setdefault(int(stages.first[span]), []).append(span)
    return found


def _fewest(ways: _Ways, available: Index) -> _Ways:
    """Those that use fewer devices of some type than each other one; of equals the first."""
    *most, _ = available.tolist()
    place = tuple(ways.used[:, :-1].T)
    shape = tuple(n + 1 for n in most)
    key = np.ravel_multi_index(place, shape) if most else np.zeros(len(ways.used), dtype=np.intp)
    order = np.lexsort((ways.used[:, -1], key))
    order = order[np.flatnonzero(np.diff(key[order], prepend=-1))]
    key, last = key[order], ways.used[order, -1]
    least = np.full(int(np.prod(shape)), np.iinfo(np.intp).max)
    least[key] = last
    table = least.reshape(shape)
    fewer = np.full_like(table, np.iinfo(np.intp).max)  # the least of the last type where another type has fewer
    whole = table.copy()
    for axis in range(len(shape)):
        np.minimum.accumulate(whole, axis=axis, out=whole)
    for axis in range(len(shape)):
        behind = [slice(None)] * len(shape)
        ahead = list(behind)
        behind[axis], ahead[axis] = slice(None, -1), slice(1, None)
        fewer[tuple(ahead)] = np.minimum(fewer[tuple(ahead)], whole[tuple(behind)])
    return ways.rows(np.sort(order[fewer.ravel()[key] > last]))


def _walk(ways: _Ways, kept: dict[int, _Ways]) -> list[Span]:
    spans, row = list[Span](), 0
    while int(ways.cut[row]) >= 0:
        spans.append(Span(tuple(ways.span[row].tolist()), int(ways.hosts[row])))
        ways, row = kept[int(ways.cut[row])], int(ways.row[row])
    return spans[::-1]
