"""A lower bound of every plan's period on unlike devices of a branching network, by what its stages can be.

A plan is a walk over the numbers of devices that are used of each type: of each the most of the work is kept that may
be done by then, in seconds of one type, the reference. A stage adds what its devices can do between two cuts at most
(connected_stages.py), if it begins at a cut with no more before it than that. What crosses cuts is left out.
"""

import time
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts
from ..device_groups import DeviceGroups, device_classes
from .chain_search import Moves, all_moves
from .connected_stages import ConnectedStages
from .halving import largest_refused
from .search_space import merged
from .stage_cost_tables import StageModel, default_model

SECONDS = 2.0  # of the processor, after which the bound that is proven by then counts
_TOLERANCE = 5e-4
_MOST_MOVES = 50_000
_ROUNDING = 1e-9  # of all work


@dataclass(frozen=True, eq=False)
class ConnectedWalks:
    """Walks over the numbers of devices of each type."""

    stages: ConnectedStages
    model: StageModel  # of groups by type alone
    moves: Moves

    @classmethod
    def of(cls, problem: Problem, stages: ConnectedStages) -> "ConnectedWalks | None":
        """None if there are too many ways to use the devices."""
        easier, layers = merged(problem), tuple(problem.layers)
        classes = device_classes(easier.cluster)
        sizes = [len(device_class.ranks) for device_class in classes]
        if prod((n + 1) * (n + 2) // 2 for n in sizes) > _MOST_MOVES:
            return None
        counts, moves = all_moves(sizes, np.ones(len(classes)))
        ends = Cuts.chosen(layers, problem.table.graph.input_layers, (0, (1 << len(layers)) - 1))
        return cls(stages, default_model(easier, ends, DeviceGroups.of(easier, classes, counts)), moves)

    def exist(self, period: float) -> bool:
        """Return whether stages that each take no longer than a period may do the whole work."""
        stages, moves = self.stages, self.moves
        slack, most = _ROUNDING * stages.whole, np.full(len(moves.used), -inf)
        most[0], done = 0.0, self._done(period)
        for level in moves.levels:
            before = most[moves.source[level], None]
            begins = np.where(stages.first <= before + slack, np.minimum(before, stages.last), -inf)
            reached = (begins + done[moves.group[level]]).max(axis=1)
            np.maximum.at(most, moves.target[level], reached)
        return bool(most.max() >= stages.whole - slack)

    def _done(self, period: float) -> Array:
        """The most that a stage on each group does where it begins at each class, [G, K]."""
        done_work = np.full((len(self.model.groups), len(self.stages.first)), inf)
        room = np.maximum(period - self.model.fixed, 0.0)
        for kind, rates in enumerate(self.model.rates.T):
            classes_with_work = np.flatnonzero(rates > 0)
            done_work[classes_with_work] = np.minimum(
                done_work[classes_with_work], self.stages.done(kind, room[classes_with_work] / rates[classes_with_work])
            )
        return done_work


def connected_stages_bound(
    problem: Problem, stages: ConnectedStages, *, low: float, high: float, seconds: float = SECONDS
) -> float:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`."""
    until, walks = time.process_time() + seconds, ConnectedWalks.of(problem, stages)
    if walks is None:
        return low
    return largest_refused(lambda one: not walks.exist(one), low, high, tolerance=_TOLERANCE, until=until)
