"""Moves: which layers change hands from one plan to another, and what that takes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..planning.forecast import steady_rate
from ..planning.simulator import simulate
from ..values.cluster import Cluster
from ..values.costs import OPTIMIZER_SLOTS, LayerTable
from ..values.plan import Plan
from ..values.profile import Profile
from .factors import Factors

_TELLS_BANDWIDTH = 5e-3  # seconds that a transfer must be expected to take


@dataclass(frozen=True)
class LayerMove:
    """Layers that one rank sends to another, which had none of their state."""

    source: int
    target: int
    layers: tuple[str, ...]
    num_bytes: float  # weights and optimizer state


@dataclass(frozen=True)
class MoveCost:
    """Seconds that a change of plan takes from training, by part."""

    drain_seconds: float  # the old plan's stages run empty
    transfer_seconds: float
    fill_seconds: float  # the new plan's stages wait for the first minibatches
    other_seconds: float  # to agree, to build stages and to open connections

    @property
    def seconds(self) -> float:
        return self.drain_seconds + self.transfer_seconds + self.fill_seconds + self.other_seconds

    def to_json(self) -> dict[str, float]:
        return {"seconds": self.seconds, **asdict(self)}


@dataclass(frozen=True)
class Pace:
    """Simulated throughput of a plan on minibatches of the mean size."""

    seconds_per_minibatch: float  # in steady state
    ends_seconds: float  # what filling and draining the pipeline once adds

    @classmethod
    def of(cls, plan: Plan, profile: Profile, cluster: Cluster) -> "Pace":
        count = 4 * (len(plan.ranks) + 2 * max(plan.num_microbatches, *(stage.round for stage in plan.stages)))
        trace = simulate(plan, profile, cluster, [profile.size()] * count)
        seconds = 1 / steady_rate(trace, plan, count)
        return cls(seconds, max(0.0, trace.makespan - count * seconds))


def moves_between(plan: Plan, new: Plan, profile: Profile, cluster: Cluster) -> tuple[LayerMove, ...]:
    """Return the moved layers: each layer that is new to a rank of `new` is sent to it once.

    It comes from the rank among those that had it that has least to send so far, from the rank's own node if it can.
    What no one had before (a layer without a holder) does not travel.
    """
    had, holders = _held(plan), defaultdict[str, list[int]](list)
    for rank, layers in had.items():
        for id in layers:
            holders[id].append(rank)
    size = {layer.id: layer.parameter_bytes * (1 + OPTIMIZER_SLOTS) for layer in profile.graph.layers}
    to_send: defaultdict[int, float] = defaultdict(float)
    found: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for target, layers in _held(new).items():
        node = cluster.devices[target].node.name
        for id in layers:
            if id in had.get(target, ()) or not holders[id]:
                continue
            source = min(holders[id], key=lambda rank: (cluster.devices[rank].node.name != node, to_send[rank], rank))
            to_send[source] += size[id]
            found[source, target].append(id)
    return tuple(
        LayerMove(source, target, tuple(layers), sum(size[id] for id in layers))
        for (source, target), layers in sorted(found.items())
    )


def _held(plan: Plan) -> dict[int, dict[str, None]]:
    """Rank → the layers that it has, in order."""
    held: dict[int, dict[str, None]] = {rank: {} for rank in plan.ranks}
    for stage in plan.stages:
        for rank in stage.ranks:
            held[rank] |= dict.fromkeys(stage.layers)
    return held


def transfer_seconds(
    moves: Iterable[LayerMove], cluster: Cluster, factors: Factors | None = None, *, seen_bytes: float = 0.0
) -> float:
    """Seconds until all has arrived: a rank sends one layer after another, and receives so; ranks do it at once.

    Links are those of `cluster`, slower by `factors` which were seen on transfers of `seen_bytes`.
    """
    busy: defaultdict[tuple[str, int], float] = defaultdict(float)
    for move in moves:
        link = cluster.link(move.source, move.target)
        slower = max(1.0, factors.link(move.source, move.target)) if factors else 1.0
        seconds, seen = link.transfer_time(move.num_bytes), link.transfer_time(seen_bytes)
        # Short transfers tell of delays, as of a receiver that waits for its processor, and not of bandwidth.
        seconds = seconds * slower if seen >= _TELLS_BANDWIDTH else seconds + seen * (slower - 1)
        busy["out", move.source] += seconds
        busy["in", move.target] += seconds
    return max(busy.values(), default=0.0)


def largest_payload(plan: Plan, profile: Profile) -> float:
    """Bytes of the largest transfer of a minibatch of the mean size, in either direction; 0 for a single stage."""
    crossing = LayerTable.of(profile, [profile.size()]).payloads(plan)[1 : len(plan.stages)]
    return max((float(size[0]) for both in crossing for size in both), default=0.0)


def cost_of(before: Pace, after: Pace, *, transfer_seconds: float, other_seconds: float) -> MoveCost:
    """Return what a change between two plans of these paces costs.

    A run that changes its plan once fills and drains each of two pipelines where it would one: half of both is charged.
    """
    return MoveCost(before.ends_seconds / 2, transfer_seconds, after.ends_seconds / 2, other_seconds)


def nearest(plan: Plan, new: Plan, profile: Profile, cluster: Cluster) -> Plan:
    """Return `new` with like devices exchanged such that the fewest bytes change hands.

    Devices are identical that have a type and a node in common. Exact for one stage per device; others stay as they
    are.
    """
    from scipy.optimize import linear_sum_assignment  # here, as few commands ask for it

    if new.stages_per_rank > 1:
        return new
    had = _held(plan)
    size = {layer.id: layer.parameter_bytes + 1 for layer in profile.graph.layers}  # without weights: work to build it
    seats = [(k, place) for k, stage in enumerate(new.stages) for place in range(len(stage.ranks))]
    alike: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for device in cluster.devices:
        alike[device.type.name, device.node.name].append(device.rank)
    ranks = [list(stage.ranks) for stage in new.stages]
    for group in alike.values():
        own = [(k, place) for k, place in seats if new.stages[k].ranks[place] in group]
        # One that is left out may be taken in the place of another.
        missing = [
            [sum(size[id] for id in new.stages[k].layers if id not in had.get(rank, ())) for rank in group]
            for k, _ in own
        ]
        if own:
            for row, column in zip(*linear_sum_assignment(np.array(missing)), strict=True):
                k, place = own[row]
                ranks[k][place] = group[column]
    stages = tuple(replace(stage, ranks=tuple(own)) for stage, own in zip(new.stages, ranks, strict=True))
    return replace(new, stages=stages)


def to_json(moves: Iterable[LayerMove]) -> list[dict[str, Any]]:
    """Return the moves as JSON values."""
    return [{**asdict(move), "layers": list(move.layers)} for move in moves]
