"""Plans on hosts whose processors also send and receive: what crosses a cut takes time of the stages next to it.

A processor of a type with `network_seconds_per_byte` computes less while it sends or receives, so a stage's seconds
depend on what crosses both of its cuts, and on whether its neighbours are on other hosts. A stage that holds more then
may take less: a search may neither keep the nearest cut alone (chain_search.py) nor find by halving how far a stage
reaches (graph_search.py). Tables of every stage are searched (`LeastSum`), with each group once for each way in which
its ends may cross the network (`DeviceGroups.with_ends`).

That time only adds to what stages take. So if there is too much for those tables, the other searches, which leave it
out, bound every plan, and tell orders of the devices and cuts to look near.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...values.costs import Array
from ...values.plan import Plan
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import DeviceGroups, device_classes
from .chain_search import Moves, Path
from .min_period import Watch, bisect, unwatched
from .min_step_time import LeastSum, StageSeconds
from .search_space import (
    LATENCY_BUDGET,
    MAX_CUTS,
    STEP_BUDGET,
    Rules,
    Space,
    cuts_along_orders,
    every_move,
    fits,
    moves_in_orders,
    order_moves,
)
from .stage_cost_tables import StageModel

_FEWEST_CUTS = 16  # of a chain that is thinned until it can be searched


def whole_space(problem: Problem, rules: Rules) -> Space | None:
    """All cuts and all moves, by ends; None if that is too much to search."""
    cuts = Cuts.of(problem.table, problem.layers, limit=MAX_CUTS)
    budget = LATENCY_BUDGET if problem.forward_only else STEP_BUDGET
    every = every_move(problem, budget // len(cuts) ** 2) if cuts.complete else None
    if every is None:
        return None
    return _space(problem, rules, cuts, *every, complete=True)


def network_spaces(problem: Problem, rules: Rules) -> Iterator[Space]:
    """`whole_space`, or else spaces along orders of the devices and of the layers, each within the budget."""
    if space := whole_space(problem, rules):
        yield space
        return
    for groups, moves in moves_in_orders(problem):
        for cuts in cuts_along_orders(problem):
            if space := _thinned(problem, rules, cuts, groups, moves):
                yield space


def space_near(problem: Problem, rules: Rules, plan: Plan, masks: Sequence[int]) -> Space | None:
    """Groups of devices that follow each other as in a plan, with the cuts `masks` of it among others."""
    groups, moves = order_moves(problem, _order(problem, plan))
    for cuts in cuts_along_orders(problem):
        if space := _thinned(problem, rules, cuts, groups, moves, masks):
            return space
    return None


def _order(problem: Problem, plan: Plan) -> list[int]:
    """The devices by class in the order of a plan, from the end of the pipeline; those it leaves out come last."""
    class_of_rank = {
        rank: k for k, device_class in enumerate(device_classes(problem.cluster)) for rank in device_class.ranks
    }
    used = [rank for stage in reversed(plan.stages) for rank in stage.ranks]
    return [class_of_rank[rank] for rank in dict.fromkeys([*used, *class_of_rank])]


def _thinned(
    problem: Problem, rules: Rules, cuts: Cuts, groups: DeviceGroups, moves: Moves, masks: Sequence[int] = ()
) -> Space | None:
    """A space of these cuts, of which some are left out until it can be searched, and those of `masks`."""
    while True:
        chosen = Cuts.chosen(cuts.layers, cuts.inputs, {*cuts.masks, *masks}) if masks else cuts
        if space := _space(problem, rules, chosen, groups, moves, complete=False):
            return space
        if len(cuts) <= _FEWEST_CUTS:
            return None
        cuts = cuts.thinned(problem.table, len(cuts) // 2)


def _space(
    problem: Problem, rules: Rules, cuts: Cuts, groups: DeviceGroups, moves: Moves, *, complete: bool
) -> Space | None:
    """The space with each group by its ends; None if that is too much to search."""
    groups_with_ends, like = groups.with_ends()
    count = len(moves.source) * (len(groups_with_ends) // len(groups))
    enough = fits(problem, rules, cuts, count) if problem.forward_only else count * len(cuts) ** 2 <= STEP_BUDGET
    if not enough:
        return None
    return Space.of(problem, rules, cuts, groups_with_ends, moves.doubled(like, len(groups)), complete=complete)


def least_period(space: Space, *, all_devices: bool = False, watch: Watch = unwatched) -> list[Path]:
    """Paths of falling period; no path of the space has a smaller one than the last. Raises InputError without any."""
    model = space.model
    search = LeastSum(_Periods(model), space.moves, model.cuts.follows, space.memory, all_devices)

    def exact(moves: Moves, seconds: float) -> Path | None:
        fastest = search.below(seconds)
        return fastest[0] if fastest else None

    return bisect(model, space.moves, exact, None, watch=watch)


@dataclass(frozen=True, eq=False)
class _Periods:
    """Stages and boundaries that keep a period; no plan that does is better than another."""

    works: StageModel
    sequential = False

    @cached_property
    def latencies(self) -> StageSeconds:
        return _Nothing(len(self.works.cuts))

    @cached_property
    def crossing(self) -> Array:
        return np.zeros_like(self.works.ports)

    def limit(self, group: int, first: int | Index, last: int | Index) -> Array:
        return self.works.seconds(group, first, last)

    def limits(self, group: int) -> Array:
        return self.works.every(group)

    def first_weight(self, group: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class _Nothing:
    """Stages that add nothing to a sum."""

    num_cuts: int

    def seconds(self, group: int, first: int | Index, last: int | Index) -> Array:
        return np.zeros(np.broadcast(first, last).shape)

    def every(self, group: int) -> Array:
        return np.zeros((self.num_cuts, self.num_cuts))
