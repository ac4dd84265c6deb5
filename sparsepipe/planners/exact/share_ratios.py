"""The ratios in which unlike replicas of a stage may share minibatches, for a search that leaves the choice open.

A search asks of each group of devices whether any ratio keeps a limit of time, with the least share of the busiest
port that any has. That is more than one ratio may do at once, so what it finds is no worse than the best plan; where
there is a ratio for each stage of its path that does all of it, its path is the best plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...costs import Array
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
        """Return None where there are too many."""
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

    def limits(self, group: int) -> Array:
        """Seconds of every stage on a group by the ratio that is best for it, as `StageModel.every`."""
        between = [times[None, :] - times[:, None] for times in self.model.times]
        least = np.full(between[0].shape, np.inf)
        for row in self._of_group[group]:
            slowest = np.zeros_like(least)
            for rate, seconds in zip(self.rates[row], between, strict=True):
                if rate:
                    np.maximum(slowest, rate * seconds, out=slowest)
            np.minimum(least, slowest, out=least)
        return least

    def fitting(self, path: Path, seconds: float) -> list[Index] | None:
        """Return shares of the types for each stage of a path, with which all is below a limit; None without such."""
        found = []
        for place, (group, first, last) in enumerate(path):
            rows = self._of_group[group]
            spans = self.rates[rows] * (self.model.times[:, last] - self.model.times[:, first])
            good = spans.max(axis=1) < seconds
            for neighbour, cut in _beside(path, place):
                link = self.model.link(group, neighbour)
                network = link == len(self.model.ports) - 1
                share = (self.rows.network_port if network else self.rows.device_port)[rows]
                good &= self.model.ports[link, cut] * share < seconds
            if not good.any():
                return None
            found.append(self.rows.shares[rows[good.argmax()]])
        return found


def _beside(path: Sequence[tuple[int, int, int]], place: int) -> list[tuple[int, int]]:
    """(group beside a stage, the cut between them): before it and after it, where there are such."""
    before = [(path[place - 1][0], path[place][1])] if place else []
    return before + ([(path[place + 1][0], path[place][2])] if place + 1 < len(path) else [])
