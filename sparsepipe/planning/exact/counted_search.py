"""Plans and a bound of a chain on many nodes, by paths that count the devices of each type.

A period below which there is no such path is a bound. Otherwise a path says how many devices of each
type stages have, and whether they are on one node; its devices are put on nodes, and slices of their order searched.

Paths of spans that use no more devices of each type than there are, or the proof that below a limit there are none.

Prices alone (placed_stages.py) prove that only where every mixture of paths uses too many devices; here devices are
counted. Of the ways to reach a cut those stay that use fewer of some type than each other way, and of these the ones
that cost, with the cheapest spans after them, no more than all devices do, at each of some prices. Near the longest
period that prices refuse few are left.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import DeviceClass, device_classes
from .chain_search import Path, along_chain
from .placed_stages import Placed, PlacedStages, Placements
from .priced_stages import ever_dearer, too_dear
from .search_space import Rules, Space, order_space

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

    `asked`: cheapest spans at some prices. Raises TimeoutError if neither is known at `until` of
    `time.process_time()`.
    """
    available, priced = stages.placements.available, list(asked)[-_PRICES:]
    prices = np.stack([priced_stage.prices for priced_stage in priced])  # [Q, T]
    before, after = (
        np.stack(cut_ways)
        for cut_ways in (
            [priced_stage.before for priced_stage in priced],
            [priced_stage.after for priced_stage in priced],
        )
    )
    end, none = before.shape[1] - 1, np.zeros((1, len(available)), dtype=np.intp)
    zero = np.zeros(1, dtype=np.intp)
    waiting: dict[int, list[_Ways]] = {0: [_Ways(none, zero - 1, zero, none, zero)]}
    ways_by_cut: dict[int, _Ways] = {}
    spans = _spans(stages, before, after)
    for cut in range(end):
        if cut not in waiting:
            continue
        cut_ways = ways_by_cut[cut] = _fewest(_Ways.joined(waiting.pop(cut)), available)
        for span in spans.get(cut, ()):
            if time.process_time() > until:
                raise TimeoutError
            last = int(stages.last[span])
            options, hosts = stages.options(span)
            chosen = (options @ prices.T + before[:, cut] + after[:, last] <= 1 + _MORE).all(axis=1)
            options, hosts = options[chosen], hosts[chosen]
            own_rows = np.arange(len(cut_ways.used))
            for rows in np.array_split(own_rows, -(-len(own_rows) * len(options) // _AT_ONCE) or 1):
                used = cut_ways.used[rows, None] + options[None]
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
    return _walk(_Ways.joined(waiting[end]), ways_by_cut)


def _spans(stages: PlacedStages, before: Array, after: Array) -> dict[int, list[int]]:
    """The spans that may be part of a path, by the cut at which they begin."""
    spans_by_cut: dict[int, list[int]] = {}
    able = (before[:, stages.first] + after[:, stages.last] <= 1 + _MORE).all(axis=0)
    for span in np.flatnonzero(able).tolist():
        spans_by_cut.setdefault(int(stages.first[span]), []).append(span)
    return spans_by_cut


def _fewest(ways: _Ways, available: Index) -> _Ways:
    """Return the entries that use fewer devices of some type than each other entry; the first of equal ones."""
    *most, _ = available.tolist()
    used_counts = tuple(ways.used[:, :-1].T)
    shape = tuple(n + 1 for n in most)
    key = np.ravel_multi_index(used_counts, shape) if most else np.zeros(len(ways.used), dtype=np.intp)
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


SECONDS = 3.0  # of the processor, after which what is known by then counts
_CLOSE = 0.002  # a gap that is not worth a second
_STEP = 0.004  # of a bound, to the first period that is tried
_SAME = 1e-9


def counted_search(
    problem: Problem, rules: Rules, cuts: Cuts, placed: Placements, *, low: float, high: float, seconds: float = SECONDS
) -> tuple[list[tuple[Space, Path]], float]:
    """Return (paths of periods that fall from `high`, a bound of all periods: `low`, which is one, or more).

    `cuts`: all cuts of a chain; `placed` is of them.
    """
    until, found, step = time.process_time() + seconds, list[tuple[Space, Path]](), _STEP
    least = top = high  # the least period known to have a path, and the longest whose path was of no use on nodes
    while time.process_time() < until:
        if least - low > _CLOSE * high:
            tried = min(low * (1 + step), (low + least) / 2)  # near the bound, where prices leave few ways
        elif high - top > _CLOSE * high:
            tried = (top + high) / 2
        else:
            break
        stages = placed.stages(tried)
        asked = [*ever_dearer(stages.cheapest, placed.available)]
        try:
            spans = None if too_dear(asked[-1]) else counted_path(stages, asked, until=until)
        except TimeoutError:
            break
        if spans is None:
            low, step = tried, 2 * step
            continue
        least = min(least, tried)
        answer = _on_nodes(problem, rules, cuts, placed, spans, high)
        if answer:
            space, path = answer
            high = space.model.period(path)
            found.append(answer)
        top = tried
    return found, low


def _on_nodes(
    problem: Problem, rules: Rules, cuts: Cuts, placed: Placements, spans: Sequence[Span], high: float
) -> tuple[Space, Path] | None:
    """A path below `high` along an order of the devices that spans tell, as short as steps down find."""
    order = order_of_spans(spans, placed.types, device_classes(problem.cluster))
    if not (space := order_space(problem, rules, cuts, order)):
        return None
    best, path = None, along_chain(space.model, space.moves, high * (1 - _SAME))
    while isinstance(path, list):
        best = path
        path = along_chain(space.model, space.moves, space.model.period(path) * (1 - _CLOSE))
    return (space, best) if best else None


def order_of_spans(spans: Sequence[Span], types: Sequence[str], classes: Sequence[DeviceClass]) -> list[int]:
    """The devices by class, from the end of the pipeline; those left out come last.

    Spans on a node, large ones first, go where the least is left next to them. Of the others those with many devices a
    node come first; one after the other, their devices go to the node that has the fewest of them.
    """
    left: dict[str, dict[str, int]] = {}
    class_index = {(device_class.node.name, device_class.type.name): k for k, device_class in enumerate(classes)}
    for device_class in classes:
        left.setdefault(device_class.node.name, dict.fromkeys(types, 0))[device_class.type.name] = len(
            device_class.ranks
        )
    chosen: dict[int, list[int]] = {}
    for span in sorted(range(len(spans)), key=lambda k: (spans[k].hosts > 1, -sum(spans[k].counts) / spans[k].hosts)):
        counts, hosts = spans[span]
        wanted, remaining, nodes = dict(zip(types, counts, strict=True)), list[int](), Counter[str]()
        fitting = [name for name in left if all(left[name][kind] >= n for kind, n in wanted.items())]
        if hosts == 1 and fitting:
            nodes[min(fitting, key=lambda name: sum(left[name].values()))] = 0
        for kind, n in sorted(wanted.items(), key=lambda item: item[1]):
            for _ in range(n):
                able = [name for name in nodes if left[name][kind]] if len(nodes) >= hosts or hosts == 1 else []
                able = able or [name for name in left if left[name][kind]]
                if not able:
                    break
                # An even load, and among equals the node where the most is left.
                name = min(able, key=lambda name: (nodes[name], -sum(left[name].values())))
                nodes[name] += 1
                left[name][kind] -= 1
                remaining.append(class_index[name, kind])
        chosen[span] = sorted(remaining)
    rest = [
        class_index[name, kind] for name, remaining in left.items() for kind, n in remaining.items() for _ in range(n)
    ]
    return [*(k for span in reversed(range(len(spans))) for k in chosen[span]), *rest]
