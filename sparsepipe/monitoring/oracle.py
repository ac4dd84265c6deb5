"""The oracle: the best sequence of plans for one who knows every slow-down in advance, with the cost of each change."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.stragglers import Stragglers
from .decision import CAUTION, Caution, candidates, for_real
from .factors import Factors
from .moves import Pace, cost_of, moves_between, transfer_seconds
from .segments import UNDISTURBED, Followed, Segment, seconds_of, simulate_plans

_MOST_STRETCHES = 64
_MOST_PLANS = 12


@dataclass(frozen=True)
class Stretch:
    """Minibatches in which no device changes."""

    first: int
    end: int
    factors: Factors


def stretches(stragglers: Stragglers, num_ranks: int, num_minibatches: int) -> tuple[Stretch, ...]:
    """Return the slowdown of each rank over a run, without delays that are independent of its work (stops, jitter).

    If it changes more often than 64 times, the run is cut into as many equal stretches, with means.
    """
    slow = np.array(
        [
            [
                1 + stragglers.extra_seconds(rank, m, 2.0) - stragglers.extra_seconds(rank, m, 1.0)
                for rank in range(num_ranks)
            ]
            for m in range(num_minibatches)
        ]
    ).reshape(num_minibatches, num_ranks)
    changes = [0, *(np.flatnonzero((slow[1:] != slow[:-1]).any(axis=1)) + 1).tolist(), num_minibatches]
    if len(changes) - 1 > _MOST_STRETCHES:
        changes = np.linspace(0, num_minibatches, _MOST_STRETCHES + 1).astype(int).tolist()
    return tuple(
        Stretch(a, b, Factors(tuple(np.round(slow[a:b].mean(axis=0), 2).tolist())))
        for a, b in zip(changes, changes[1:], strict=False)
        if b > a
    )


def oracle_segments(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers = UNDISTURBED,
    caution: Caution = CAUTION,
) -> tuple[Segment, ...]:
    """Simulate the run of somebody who changes plans where devices do, as often as it pays, or never."""
    found = best_plans(plan, profile, cluster, stretches(stragglers, len(cluster.devices), len(sizes)), caution)
    choices = [
        simulate_plans(plans, profile, cluster, sizes, stragglers=stragglers, caution=caution)
        for plans in ([(0, plan)], found)
    ]
    return min(choices, key=seconds_of)


def best_plans(
    plan: Plan, profile: Profile, cluster: Cluster, parts: Sequence[Stretch], caution: Caution = CAUTION
) -> list[Followed]:
    """The plan of each stretch, so that the run is shortest: exact over the optimal plans of all stretches.

    Dynamic programming over stretches. The run begins with `plan`, and may leave it at once.
    """
    plans = _plans(plan, profile, cluster, parts)
    paces = [[Pace.of(one, *part.factors.scaled(profile, cluster)) for one in plans] for part in parts]
    sending = [[transfer_seconds(moves_between(a, b, profile, cluster), cluster) for b in plans] for a in plans]
    best, came_from = np.array([0.0] + [np.inf] * (len(plans) - 1)), list[np.ndarray]()
    for k, part in enumerate(parts):
        changing = np.zeros((len(plans), len(plans)))
        for a, b in np.ndindex(len(plans), len(plans)):
            if a != b:
                changing[a, b] = cost_of(
                    paces[max(k - 1, 0)][a],
                    paces[k][b],
                    transfer_seconds=sending[a][b],
                    other_seconds=caution.other_seconds,
                ).seconds
        reached = best[:, None] + changing
        came_from.append(reached.argmin(axis=0))
        best = reached.min(axis=0) + [(part.end - part.first) * pace.seconds_per_minibatch for pace in paces[k]]
    at, chosen = int(best.argmin()), list[int]()
    for pick in reversed(came_from):
        chosen.append(at)
        at = int(pick[at])
    followed: list[Followed] = [(0, plan)]
    for part, one in zip(parts, reversed(chosen), strict=True):
        if plans[one] != followed[-1][1]:
            followed = [*(f for f in followed if f[0] < part.first), (part.first, plans[one])]
    return followed


def _plans(plan: Plan, profile: Profile, cluster: Cluster, parts: Sequence[Stretch]) -> list[Plan]:
    """The present plan, and the best ones for each way that devices are; of too many for those that last longest."""
    lasting: dict[tuple[float, ...], int] = {}
    for part in parts:
        lasting[part.factors.ranks] = lasting.get(part.factors.ranks, 0) + part.end - part.first
    found = [plan]
    for ranks in sorted(lasting, key=lambda ranks: -lasting[ranks])[:_MOST_PLANS]:
        now, devices = Factors(ranks).scaled(profile, cluster)
        for new in (for_real(one, cluster) for one in candidates(plan, now, devices, ())):
            if all(
                [stage.layers for stage in new.stages] != [s.layers for s in one.stages] or new.ranks != one.ranks
                for one in found
            ):
                found.append(new)
    return found
