"""DynPipe's planner as published, with its faults, as a baseline: new cuts for a straight pipeline that has some.

Of each stage's layers the `top_k` that take longest, transfers on both sides included, are candidates: a cut may come
after each of them. Every choice among all candidates but the last is simulated (see `pace`), and the fastest
taken. Devices as they are now come in with the profile: the original multiplies a stage's time by what its predictor
says of the intruder on its device. Its faults:

* Cuts move to heavy layers of the stages as they were alone: the best cut is often no candidate, and the answer to a
  device that has been left alone again is not the first plan.
* Neither the number of stages nor their devices nor their order change, and stages with replicas stay as they are; only
  the stages after the last of those are cut again.
* It looks at every choice, C(2S − 1, S − 1) for S stages: the original takes 17 ms for each disturbed stage of each.
* It asks neither what a move costs nor what is left to gain.
* The simulator has faults of its own.

DynPipe's simulator: the seconds from one minibatch to the next that it expects of a straight pipeline.

99 minibatches go through stages that work one forward, one backward. It knows no memory, no updates and no links that
several transfers share: a transfer delays the minibatch that it carries, and nothing else. Two faults are kept, since
its answers rest on them:

- A middle stage's first forward begins no earlier than its own length less a millisecond: the place before the first
  in the original's list is its last element, whose time is still the −1 that says "not yet".
- The first minibatches, while the pipeline fills, count in the mean like the rest.

Source: DynPipe, `main` in `calculate_new_placement` of its runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np

from ...errors import InputError
from ...util.io.settings import Settings, Several, WholeNumber, setting
from ...util.text.numbers import number_of
from ...values.costs import Array, boundary_link
from ...values.plan import Plan, Stage
from ..base import Problem
from ..baselines import ModelParallel
from ..estimate import estimate

NUM_MINIBATCHES = 99
_NOT_YET = -1e-3  # seconds: the original counts milliseconds from −1

MOST_STAGES = 10  # 92,378 choices
_AT_ONCE = 4096  # choices simulated together


@dataclass(frozen=True, repr=False)
class DynPipe(Settings):
    """DynPipe's repartitioning of a pipeline with one device per stage, whose stages now have `sizes` layers.

    Without `sizes` from the cuts that `ModelParallel` makes. `top_k`: candidates of each stage.
    """

    top_k: int = setting(2, WholeNumber(1), "number of candidate split points of each stage", unit="K")
    sizes: tuple[int, ...] = setting(
        (),
        Several(WholeNumber(1), "(8, 30)"),
        "number of layers of each current stage",
        unit="N,…",
        words="those of model-parallel",
    )
    name = "dynpipe"

    def plan(self, problem: Problem) -> Plan:
        """Raises InputError for more than 10 devices, and for `sizes` that are not those of all layers."""
        before = self._given(problem) if self.sizes else ModelParallel().plan(problem)
        return recut(before, problem, top_k=self.top_k)

    def _given(self, problem: Problem) -> Plan:
        sizes, layers, num_devices = self.sizes, problem.layers, len(problem.cluster.devices)
        if sum(sizes) != len(layers) or len(sizes) > num_devices:
            raise InputError(
                "planner.sizes_malformed",
                f"sizes {list(sizes)} given, expected the layer count of each stage ({len(layers)} in total, at most "
                f"{number_of(num_devices, 'stage')})",
            )
        bounds = np.cumsum([0, *sizes]).tolist()
        return problem.plan(
            [problem.stage(layers[a:b], (rank,)) for rank, (a, b) in enumerate(pairwise(bounds))], self.name
        )


def recut(plan: Plan, problem: Problem, *, top_k: int = 2) -> Plan:
    """Cut the stages after the last one with replicas again, on the devices that they have.

    The plan's estimate has DynPipe's own period, and the default cost model's numbers of each stage. Raises InputError
    for interleaved stages, and for more than 10 stages to cut.
    """
    if plan.stages_per_rank > 1:
        raise InputError(
            "planner.one_stage_per_device",
            "planner dynpipe does not support several stages per device; use one per device",
        )
    first = max((k + 1 for k, stage in enumerate(plan.stages) if len(stage.ranks) > 1), default=0)
    fixed_stages, straight = plan.stages[:first], plan.stages[first:]
    if len(straight) > MOST_STAGES:
        raise InputError(
            "planner.too_many_stages",
            f"planner dynpipe enumerates all splits, but {number_of(len(straight), 'stage')} are too many; use at "
            f"most {MOST_STAGES}",
        )
    period, stages = None, straight
    if len(straight) > 1:
        costs = StraightCosts.of(problem, fixed_stages, straight)
        period, cuts = _fastest(costs, top_k)
        order = [id for stage in straight for id in stage.layers]
        bounds = [0, *cuts, len(order)]
        stages = tuple(
            replace(stage, layers=tuple(order[a:b])) for stage, (a, b) in zip(straight, pairwise(bounds), strict=True)
        )
    new = replace(plan, stages=(*fixed_stages, *stages), planner=DynPipe.name, estimate=None)
    expected = estimate(new, problem)
    return replace(new, estimate=expected if period is None else replace(expected, period_seconds=period))


@dataclass(frozen=True, eq=False)
class StraightCosts:
    """Costs of the layers of a straight pipeline, for cuts anywhere among them."""

    sizes: tuple[int, ...]  # layers of each stage now
    forward: Array  # seconds [S, L] of each layer on the device of each stage
    backward: Array
    transfer: Array  # seconds [S - 1, L] at each boundary, were it after this layer; in either direction

    @classmethod
    def of(cls, problem: Problem, kept: Sequence[Stage], straight: Sequence[Stage]) -> "StraightCosts":
        table, index, cluster = problem.table, problem.graph.index, problem.cluster
        order = [index[id] for stage in straight for id in stage.layers]
        before = {*problem.graph.input_layers, *(index[id] for stage in kept for id in stage.layers)}
        num_bytes = []
        for layer in order:
            before.add(layer)
            num_bytes.append(float(table.payload(before)[0][0]))
        links = [boundary_link(cluster, (*a.ranks, *b.ranks)) for a, b in pairwise(straight)]
        kinds = [cluster.devices[stage.ranks[0]].type.name for stage in straight]
        return cls(
            tuple(len(stage.layers) for stage in straight),
            np.array([table.forward[kind][order, 0] for kind in kinds]),
            np.array([table.backward[kind][order, 0] for kind in kinds]),
            np.array([[link.transfer_time(size) for size in num_bytes] for link in links]),
        )

    @property
    def weights(self) -> Array:
        """Return each layer's weight [L]: its time on the fastest device and its transfers at the slowest boundary.

        The first layer's input counts as much as its output, the last layer's output not at all.
        """
        seconds = self.forward + self.backward
        alone = seconds[seconds.sum(axis=1).argmin()]
        leaving = self.transfer.max(axis=0)
        entering = np.concatenate((leaving[:1], leaving[:-1]))
        inner = leaving.copy()
        inner[[0, -1]] = 0.0
        weights: Array = alone + entering + inner
        return weights

    def candidates(self, top_k: int) -> list[int]:
        """Cuts to choose from: after the heaviest layers of each stage, but for the last of all of them."""
        weights, first, candidate_cuts = self.weights, 0, list[int]()
        for size in self.sizes:
            largest_first = sorted(range(first, first + size), key=lambda k: -weights[k])[:top_k]
            candidate_cuts += sorted(k + 1 for k in largest_first)
            first += size
        return candidate_cuts[:-1]

    def periods(self, cuts: np.ndarray) -> Array:
        """Seconds a minibatch for each row of `cuts` [C, S - 1]."""
        num_layers = self.forward.shape[1]
        bounds = np.hstack((np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), num_layers))).T
        stages = np.arange(len(self.sizes))[:, None]
        forward, backward = (
            (ends := np.pad(np.cumsum(times, axis=1), ((0, 0), (1, 0))))[stages, bounds[1:]] - ends[stages, bounds[:-1]]
            for times in (self.forward, self.backward)
        )
        return pace(forward, backward, self.transfer[stages[:-1], cuts.T - 1])


def _fastest(costs: StraightCosts, top_k: int) -> tuple[float, tuple[int, ...]]:
    """(its period, its cuts) of the fastest choice; of the first among equals."""
    candidates, num_cuts = costs.candidates(top_k), len(costs.sizes) - 1
    if len(candidates) < num_cuts:
        candidates = list(np.cumsum(costs.sizes)[:-1])  # stages of a single layer leave nothing to choose
    choices = np.array(list(combinations(candidates, num_cuts)))
    blocks = [costs.periods(choices[k : k + _AT_ONCE]) for k in range(0, len(choices), _AT_ONCE)]
    periods = np.concatenate(blocks)
    best = int(periods.argmin())
    return float(periods[best]), tuple(choices[best].tolist())


def pace(forward: Array, backward: Array, transfer: Array) -> Array:
    """Seconds a minibatch of each of many pipelines.

    `forward` and `backward` are seconds of each stage `[S, C]` for C pipelines of S ≥ 2 stages, `transfer` those of one
    transfer across each boundary, in either direction, `[S - 1, C]`. The answer is `[C]`.
    """
    num_stages, num_pipelines = forward.shape
    starts = _first_stage_starts(forward, backward, transfer)
    counted = range(num_stages, NUM_MINIBATCHES - num_stages, num_stages)
    total = np.zeros(num_pipelines)
    for minibatch in counted:
        total += starts[minibatch] - starts[minibatch - num_stages]
    mean: Array = total / (num_stages * len(counted))
    return mean


def _first_stage_starts(forward: Array, backward: Array, transfer: Array) -> list[Array]:
    """Return the start of each minibatch's forward in the first stage."""
    num_stages, num_pipelines = forward.shape
    zero = np.zeros(num_pipelines)
    ended = _filled(forward, transfer)  # of each stage, the ends of its forwards
    starts = [end - forward[0] for end in ended[0]]
    gradients = [zero] * num_stages  # of each stage, the end of its last backward
    while len(starts) < NUM_MINIBATCHES:
        for s in range(num_stages):
            begin = np.maximum(ended[s][-1], gradients[s]) if ended[s] else zero
            if s:  # the stage before is one minibatch ahead, and has just ended the next one
                begin = np.maximum(begin, ended[s - 1][len(ended[s])] + transfer[s - 1])
            else:
                starts.append(begin)
            ended[s].append(begin + forward[s])
        for s in reversed(range(num_stages)):
            begin = ended[s][-1]
            if s < num_stages - 1:
                begin = np.maximum(begin, gradients[s + 1] + transfer[s])
            gradients[s] = begin + backward[s]
    return starts


def _filled(forward: Array, transfer: Array) -> list[list[Array]]:
    """The ends of each stage's forwards before its first backward: as many as there are stages after it."""
    num_stages, num_pipelines = forward.shape
    ended: list[list[Array]] = []
    for s in range(num_stages):
        seconds_by_range: list[Array] = []
        for minibatch in range(num_stages - 1 - s):
            begin = (
                seconds_by_range[-1]
                if seconds_by_range
                else np.zeros(num_pipelines)
                if s == 0
                else forward[s] + _NOT_YET
            )
            if s:
                begin = np.maximum(begin, ended[s - 1][minibatch] + transfer[s - 1])
            seconds_by_range.append(begin + forward[s])
        ended.append(seconds_by_range)
    return ended
