"""A path that uses no more devices than there are, looked for where prices of devices say that one may be.

From the end of the pipeline, one stage is put in front of the other. A beginning is worth continuing if, at all
prices that were asked for, it costs no more with the cheapest stages before it than all devices do; of those at each
cut the ones that are the least dear at any of the prices are kept. What is found is below the limit where groups may
sit on any node; `devices_in_order` puts them on nodes, and slices of that order are searched (search_space.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...values.costs import Array
from ..cuts import Index
from ..device_groups import DeviceClass
from .chain_search import Path
from .joined_nodes import ON_A_NODE, JoinedNodes
from .priced_stages import Priced, PricedStages

_WIDTH = 150  # beginnings at each cut
_OPTIONS = 100  # groups to put in front of them
_PRICES = 8  # of those that were asked last
_MORE = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class _Beginnings:
    """Stages from a cut to the end of the network, a row each."""

    used: Index  # [N, T]
    kind: Index  # [N]: of the first of the stages
    value: Array  # [N]: what they and all before them cost at least, at the prices where that is most
    group: Index  # [N]: of the first of the stages
    behind: Index  # [N]: the row, among those kept at `cut`, of the stages behind it
    cut: Index  # [N]: where it ends

    def rows(self, chosen: Index) -> "_Beginnings":
        return _Beginnings(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def best(self, count: int) -> "_Beginnings":
        """The least dear of those that differ."""
        order = np.argsort(self.value, kind="stable")
        keys = np.column_stack([self.kind, self.used])[order]
        _, first = np.unique(keys, axis=0, return_index=True)
        return self.rows(order[np.sort(first)[:count]])

    @classmethod
    def joined(cls, parts: Sequence["_Beginnings"]) -> "_Beginnings":
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


def guided_path(stages: PricedStages, asked: Sequence[Priced]) -> Path | None:
    """Return a path of the joined model below the limit of `stages`; None if none was found."""
    search = _Search(stages, list(asked)[-_PRICES:])
    return search.path()


class _Search:
    """One look for a path."""

    def __init__(self, stages: PricedStages, asked: Sequence[Priced]) -> None:
        self.stages, self.joined = stages, stages.joined
        self.size = len(self.joined.model.cuts)
        self.prices = np.stack([one.prices for one in asked])  # [P, T]
        self.before = np.stack([one.before for one in asked])  # [P, K, S]
        self.price = self.joined.counts @ self.prices.T  # [G, P]
        reachable = np.logical_or.reduce(stages.allowed, axis=0)  # [K, S]: by any kind of sender
        reachable[:, 0] = True
        places = np.where(reachable, np.arange(self.size), self.size)
        self.nearest = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
        none = np.zeros(1, dtype=np.intp)
        start = _Beginnings(
            np.zeros((1, len(self.joined.available)), dtype=np.intp), none - 1, np.zeros(1), none - 1, none, none
        )
        self.waiting: dict[int, list[_Beginnings]] = {self.size - 1: [start]}
        self.kept: dict[int, _Beginnings] = {}

    def path(self) -> Path | None:
        for cut in range(self.size - 1, 0, -1):
            if cut not in self.waiting:
                continue
            best_beginnings = self.kept[cut] = _Beginnings.joined(self.waiting.pop(cut)).best(_WIDTH)
            whole = self._grown(cut, best_beginnings)
            if whole is not None:
                return self._walk(whole)
        return None

    def _grown(self, cut: int, own: _Beginnings) -> _Beginnings | None:
        """Put each group in front of stages that begin at a cut; return what reaches the start of the network."""
        kind, groups = self.stages.kind, self._options(cut, own)
        first = self.nearest[kind[groups], self.stages.first[groups, cut - 1]]
        used = own.used[:, None, :] + self.joined.counts[groups][None, :, :]
        ahead = self.before[:, kind[groups], first].T
        value = ((own.used @ self.prices.T)[:, None, :] + (self.price[groups] + ahead)[None]).max(axis=2)
        good = (used <= self.joined.available).all(axis=2) & (value <= _MORE)
        if cut < self.size - 1:
            good &= self.stages.allowed[kind[groups][None, :], own.kind[:, None], cut]
        row, column = np.nonzero(good)
        group = groups[column]
        grown_beginnings = _Beginnings(
            used[row, column], kind[group], value[row, column], group, row, np.full(len(row), cut, dtype=np.intp)
        )
        start = first[column]
        if (start == 0).any():
            return grown_beginnings.rows(np.flatnonzero(start == 0)).best(1)
        for first_cut in np.unique(start):
            self.waiting.setdefault(int(first_cut), []).append(
                grown_beginnings.rows(np.flatnonzero(start == first_cut)).best(_WIDTH)
            )
        return None

    def _options(self, cut: int, own: _Beginnings) -> Index:
        """The groups that are the least dear in front of any of the stages."""
        first = self.nearest[self.stages.kind[: len(self.price)], self.stages.first[:, cut - 1]]
        able = np.flatnonzero(first < cut)
        ahead = self.before[:, self.stages.kind[able], first[able]].T
        least = (own.used @ self.prices.T).min(axis=0)
        value = (least + self.price[able] + ahead).max(axis=1)
        able, value = able[value <= _MORE], value[value <= _MORE]
        return able[np.argsort(value, kind="stable")[:_OPTIONS]]

    def _walk(self, found: _Beginnings) -> Path:
        path, first, row = [], 0, 0
        while True:
            last = int(found.cut[row])
            path.append((int(found.group[row]), first, last))
            if last == self.size - 1:
                return path
            found, row, first = self.kept[last], int(found.behind[row]), last


def devices_in_order(joined: JoinedNodes, path: Path, classes: Sequence[DeviceClass]) -> tuple[int, ...]:
    """The devices by class, from the end of the pipeline, for a path of the joined model; those left out come last.

    Groups on a node, large ones first, go where the least is left next to them; the others take what is left then.
    """
    model, left = joined.model, [len(device_class.ranks) for device_class in classes]
    names = list(dict.fromkeys(device_class.node.name for device_class in classes))
    class_index = {(device_class.node.name, device_class.type.name): k for k, device_class in enumerate(classes)}
    chosen: dict[int, list[int]] = {}
    sizes = [int(joined.counts[group].sum()) for group, _, _ in path]
    alone = [model.groups.placement[group] == ON_A_NODE for group, _, _ in path]
    for stage in sorted(range(len(path)), key=lambda k: (not alone[k], -sizes[k])):
        wanted = dict(zip(model.groups.types, joined.counts[path[stage][0]].tolist(), strict=True))
        free = {
            name: {kind: left[class_index[name, kind]] if (name, kind) in class_index else 0 for kind in wanted}
            for name in names
        }
        fitting = [name for name in names if all(free[name][kind] >= n for kind, n in wanted.items())]
        fitting.sort(key=lambda name: sum(free[name].values()))
        spread = sorted(names, key=lambda name: -sum(free[name][kind] for kind, n in wanted.items() if n))
        device_order = list[int]()
        for name in fitting[:1] if alone[stage] and fitting else spread:
            for kind, n in wanted.items():
                taken = min(n, free[name][kind])
                if taken:
                    device_order += [class_index[name, kind]] * taken
                    wanted[kind] -= taken
                    left[class_index[name, kind]] -= taken
        chosen[stage] = device_order
    rest = [k for k, count in enumerate(left) for _ in range(count)]
    return (*(k for stage in reversed(range(len(path))) for k in chosen[stage]), *rest)
