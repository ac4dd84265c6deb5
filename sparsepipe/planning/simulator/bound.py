"""A time that no order of some minibatches beats under a plan: what their sizes cost at least, however they come.

Derivation. Let F, B and C be seconds of a forward, a backward and a transfer, t = F + B, and `fill` and `drain` what a
minibatch takes before a stage, forwards, and behind it, backwards. The order decides which minibatch comes at which
position; actions, updates and the number of minibatches in flight belong to positions and are the same in every order.
Each of these holds in every order, so the largest does:

work       A device works one action after the other. Before its first, some minibatch fills the stages before it; after
           its last, some minibatch drains through them:  min fill + Σ t + min drain + updates.
           Of replicas with weights w that add up to 1, the last is no earlier than the weighted mean: each minibatch
           counts with min over replicas of w·t.
rounds     Replicas wait for each other at every update, so what lies between two updates takes as long as its largest
           minibatch. With groups of n₁ ≥ n₂ ≥ … minibatches, of which L are in none, the k-th largest of the groups'
           maxima is at least the (L + n₁ + … + nₖ₋₁ + 1)-th largest minibatch: that many are not all in fewer groups.
flight     A stage holds D minibatches at most, each from its forward to its backward, and so for as long as it takes
           through all later stages and back:  min fill + Σ (round trip) / D + min drain.
ports      A port carries one transfer after the other:  min (fill + F) + Σ C + min (rest of the way).

A pipeline that flushes fills and drains in every step, with other minibatches each time: the smallest so many of them
count, and the first stage's update with each. If the backward is split, weights' gradients may come last, and
nothing has to drain after them: these schedules count one fill alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...values.cluster import Cluster
from ...values.costs import Array
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.schedule import Op, Program, compile
from .simulation import BACKWARD, FORWARD, INPUT, durations


def lower_bound(plan: Plan, profile: Profile, cluster: Cluster, sizes: Sequence[float]) -> float:
    """Compute a lower bound on the time of an epoch under a plan, for any order of its minibatches.

    Args:
        plan: Plan. Pipeline replicas share the minibatches.
        profile: Costs of the layers.
        cluster: The devices and links.
        sizes: Size of each minibatch at the network's input, in the profile's `size_unit`.

    Returns:
        Lower bound in seconds. Stragglers can only increase the time.

    Raises:
        InputError: A plan that cannot run.

    Example:
        >>> bound = sp.lower_bound(plan, profile, cluster, sizes)
        >>> 0 < bound <= sp.simulate(plan, profile, cluster, sizes).makespan
        True

    See also:
        guides/scenes_of_varying_size, `simulate`
    """
    plan.check(profile.graph, cluster)
    if not len(sizes):
        return 0.0
    each = [_Times.of(pipeline, profile, cluster, sizes) for pipeline in plan.pipelines]
    shared = _shared(np.array([times.slowest_work for times in each]))
    return max(shared, max(each[0].bounds()) if len(each) == 1 else 0.0)


def _shared(seconds: Array) -> float:
    """Least time in which workers do all minibatches, each by one of them: `seconds` [workers, minibatches].

    Weighted by how fast the workers are, the mean of their times is at most the longest.
    """
    totals = seconds.sum(axis=1)
    if not totals.all():  # a worker that takes no time
        return 0.0
    weights = (1 / totals) / (1 / totals).sum()
    return float((weights[:, None] * seconds).min(axis=0).sum())


def _smallest(seconds: Array, count: int) -> float:
    """The sum of the `count` smallest."""
    return float(np.sort(seconds)[:count].sum())


@dataclass(frozen=True)
class _Times:
    """Seconds of each minibatch in each stage of a pipeline, on the replica that is fastest for it."""

    plan: Plan
    program: Program
    work: dict[int, dict[int, Array]]  # rank → stage → forward and backward [M]
    forward: list[Array]  # of each stage [M]
    backward: list[Array]  # until the stage before has its gradients
    transfers: list[tuple[Array, Array]]  # behind each stage but the last: forwards and backwards
    once: list[float]  # of each stage: averaging and the optimizer's step, once an update
    fill: list[Array]  # before each stage and behind the last
    drain: list[Array]

    @classmethod
    def of(cls, plan: Plan, profile: Profile, cluster: Cluster, sizes: Sequence[float]) -> "_Times":
        seconds, averaging, updates, sending = durations(plan, profile, cluster, sizes)
        arrays = {
            rank: {s: np.array(passes) for s, passes in stage_seconds.items()}
            for rank, stage_seconds in seconds.items()
        }
        back = INPUT if plan.rules.splits_backward else BACKWARD
        none = np.zeros(len(sizes))
        forward, backward, transfers, once, fill, drain = [], [], [], [], [none], [none]
        program = compile(plan, len(sizes))
        for s, stage in enumerate(plan.stages):
            forward.append(np.min([arrays[rank][s][FORWARD] for rank in stage.ranks], axis=0))
            backward.append(np.min([arrays[rank][s][back] for rank in stage.ranks], axis=0))
            once.append(averaging[s] + min(updates[s, rank] for rank in stage.ranks))
            pair = (none, none)
            if (later := program.source(s, Op.BACKWARD)) is not None:
                ranks = [(a, b) for a in stage.ranks for b in plan.stages[later].ranks]
                there = [sending[FORWARD, s, a, b][0] for a, b in ranks]
                again = [sending[BACKWARD, later, b, a][0] for a, b in ranks]
                pair = np.min(there, axis=0), np.min(again, axis=0)
            transfers.append(pair)
            fill.append(fill[-1] + forward[-1] + pair[0])
            drain.append(drain[-1] + backward[-1] + pair[1])
        work = {
            rank: {s: stage_seconds[FORWARD] + stage_seconds[BACKWARD] for s, stage_seconds in of.items()}
            for rank, of in arrays.items()
        }
        return cls(plan, program, work, forward, backward, transfers, once, fill, drain)

    @property
    def slowest_work(self) -> Array:
        """Seconds of each minibatch [M] at the device that works longest: a mean of its replicas' by their paces."""
        parts = []
        for stages, ranks in self._devices():
            seconds = np.array([sum(self.work[rank][s] for s in stages) for rank in ranks])
            paces = 1 / np.maximum(seconds.sum(axis=1), np.finfo(float).tiny)
            parts.append(((paces / paces.sum())[:, None] * seconds).min(axis=0))
        return max(parts, key=lambda part: float(part.sum()))

    def bounds(self) -> Iterator[float]:
        """Yield the bounds of the module's derivation."""
        for stages, ranks in self._devices():
            first, replicas = stages[0], self.plan.stages[stages[0]].num_replicas
            seconds = np.array([sum(self.work[rank][s] for s in stages) for rank in ranks])
            together = self.plan.stages[first].shares_scenes  # each has a part of every minibatch
            shared = float(seconds.sum(axis=1).max()) if together else _shared(seconds)
            counts = [self.program.num_updates(s) for s in stages]
            updates = sum(count * self.once[s] for s, count in zip(stages, counts, strict=True))
            busy = [shared, self._rounds(first)] if replicas > 1 and len(stages) == 1 else [shared]
            yield max(busy) + updates
            # A replica's last backward is before the last update, or the last but one of a round that is not whole.
            last = min(1 if replicas == 1 else 2, *counts) * sum(self.once[s] for s in stages)
            yield max(busy) + self._around(first) + (0.0 if self.plan.flushes else updates - last)
        end = len(self.plan.stages)
        for s, stage in enumerate(self.plan.stages):
            trip = self.fill[end] - self.fill[s] + self.drain[end] - self.drain[s]
            held = sum(self.program.in_flight(s, rank) for rank in stage.ranks[: stage.num_replicas])
            yield float(trip.sum()) / held + self._around(s)
            later = self.program.source(s, Op.BACKWARD)
            if later is not None and len(stage.ranks) == len(self.plan.stages[later].ranks) == 1:
                there, again = self.transfers[s]
                rest = self.fill[end] - self.fill[later] + self.drain[end]
                yield float((self.fill[s] + self.forward[s]).min() + there.sum() + rest.min())
                whole = self.fill[end] + self.drain[end] - self.drain[later]
                yield float(whole.min() + again.sum() + (self.drain[s] + self.backward[s]).min())

    def _devices(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield the stages of each place in the pipeline, the first stage first, and its replicas' ranks."""
        for stages in self.plan.positions:
            yield stages, self.plan.stages[stages[0]].ranks

    def _around(self, stage: int) -> float:
        """Seconds in which a stage has nothing to do: before its first forward and after its last backward."""
        plan = self.plan
        if plan.rules.splits_backward:
            return float(self.fill[stage].min())
        if not plan.flushes:
            return float(self.fill[stage].min() + self.drain[stage].min())
        steps = -(-self.program.num_minibatches // plan.num_microbatches)
        return _smallest(self.fill[stage], steps) + _smallest(self.drain[stage], steps) + steps * self.once[0]

    def _rounds(self, stage: int) -> float:
        """Seconds between the updates of a stage's replicas, each as long as its largest minibatch."""
        fastest = np.min([self.work[rank][stage] for rank in self.plan.stages[stage].ranks], axis=0)
        groups = Counter[int]()  # update → minibatches whose forward and backward lie before it and behind the last
        for rank in self.plan.stages[stage].ranks:
            begun, update = dict[int, int](), 0
            for s, op, minibatch in self.program.actions_of(rank):
                if s != stage:
                    continue
                if op is Op.UPDATE:
                    update += 1
                elif op is Op.FORWARD:
                    begun[minibatch] = update
                elif op is not Op.BACKWARD_INPUT and begun[minibatch] == update:
                    groups[update] += 1
        counts = sorted(groups.values(), reverse=True)
        places = len(fastest) - sum(counts) + np.cumsum([0, *counts])[:-1].astype(int)
        return float(np.sort(fastest)[::-1][places].sum())
