"""The ratios in which unlike replicas of a stage may share minibatches, for a search that leaves the choice open.

A search asks of each group of devices whether any ratio keeps a limit of time, with the least share of the busiest
port that any has. That is more than one ratio may do at once, so what it finds is no worse than the best plan; if
there is a ratio for each stage of its path that does all of it, its path is the best plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...values.costs import Array
from ..cuts import Index
from ..device_groups import MAX_SHARE, DeviceGroups
from .chain_search import Path
from .stage_cost_tables import StageModel

MAX_RATIOS = 200_000  # groups × ratios


@dataclass(frozen=True, eq=False)
class ShareRatios:
    """Every group of `model` with every ratio, a row each."""

    model: StageModel
    rows: DeviceGroups
    group: Index  # [rows]: the group of each

    @classmethod
    def of(cls, model: StageModel) -> "ShareRatios | None":
        """Return None if there are too many."""
        if len(model.groups) * MAX_SHARE ** len(model.groups.types) > MAX_RATIOS:
            return None
        rows, like = model.groups.with_shares()
        return cls(model, rows, np.concatenate([np.arange(len(model.groups)), like]))

    @cached_property
    def rates(self) -> Array:
        """[rows, types]: seconds of a minibatch for each second of a type's layers."""
        return self.rows.shares / self.rows.rounds[:, None]

    @cached_property
    def _of_group(self) -> list[Index]:
        return [np.flatnonzero(self.group == group) for group in range(len(self.model.groups))]

    def easiest_ports(self) -> StageModel:
        """The model with the least shares of the busiest ports that any ratio of a group has."""
        device, network = np.ones(len(self.model.groups)), np.ones(len(self.model.groups))
        np.minimum.at(device, self.group, self.rows.device_port)
        np.minimum.at(network, self.group, self.rows.network_port)
        return replace(self.model, device_port=device, network_port=network)

    def limits(self, group: int, seconds: float) -> Array:
        """Seconds of every stage on a group, as `StageModel.every`: below `seconds` where any ratio keeps it there.

        Only stages that the group's own shares do not bring below it, and that any shares at all could, are asked for.
        """
        model, least = self.model, self.model.every(group)
        spans = np.stack([model.every_span(group, kind) for kind in range(len(model.times))])
        work = np.zeros(least.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            for count, span in zip(self.model.groups.of_type[group], spans, strict=True):
                work += count / span if count else 0.0  # inputs a second
            first, last = np.nonzero((least >= seconds) & (1 / work < seconds))
        asked = spans[:, first, last]
        for row in self._of_group[group] if len(first) else ():
            slowest = (self.rates[row][:, None] * asked).max(axis=0)
            least[first, last] = np.minimum(least[first, last], slowest)
        return least

    def fitting(self, path: Path, seconds: float) -> list[Index] | None:
        """Return shares of the types for each stage of a path, with which all is below a limit; None without such."""
        fitting_ratios = []
        for stage_index, (group, first, last) in enumerate(path):
            rows = self._of_group[group]
            spans = self.rates[rows] * self.model.spans(group, first, last)
            good = spans.max(axis=1) < seconds
            for neighbour, cut in _beside(path, stage_index):
                link = self.model.link(group, neighbour)
                network = link == len(self.model.ports) - 1
                share = (self.rows.network_port if network else self.rows.device_port)[rows]
                good &= self.model.ports[link, cut] * share < seconds
            if not good.any():
                return None
            fitting_ratios.append(self.rows.shares[rows[good.argmax()]])
        return fitting_ratios


def _beside(path: Sequence[tuple[int, int, int]], place: int) -> list[tuple[int, int]]:
    """(group next to a stage, the cut between them): before it and after it, if there are such."""
    before = [(path[place - 1][0], path[place][1])] if place else []
    return before + ([(path[place + 1][0], path[place][2])] if place + 1 < len(path) else [])
