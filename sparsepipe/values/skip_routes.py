"""Which stage boundaries a tensor crosses, and where a device keeps it for a later one of its stages.

A tensor travels from the stage that computes it to every stage that reads it, along neighbouring stages. A device that
has it and serves a later stage on its way keeps it until then, so nothing is sent. A skip connection of a U-Net in four
stages on two devices, in a V:

    device 0    stage 0 ────────────── kept ─────────────► stage 3
                   └──────► stage 1 ────► stage 2 ───────────┘
    device 1
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from .graph import LayerGraph
from .plan_parts import StagePlan


class SkipRoute(NamedTuple):
    """The way of one tensor.

    Cut k lies between the stages k - 1 and k.
    """

    cuts: frozenset[int]  # that it crosses in the packet from one stage to the next
    jumps: frozenset[tuple[int, int]]  # (stage that has it, later stage on the same ranks that takes it from there)


@lru_cache(maxsize=4096)
def route(teams: tuple[Hashable, ...], source: int, readers: tuple[int, ...]) -> SkipRoute:
    """Return the way of a tensor from the stage `source` to later stages, in ascending order.

    `teams`: what identifies the devices of each stage; equal for stages on the same ones.
    """
    cuts, jumps, holders, at = set[int](), set[tuple[int, int]](), [source], source
    for reader in readers:
        while at < reader:
            holding = {teams[stage] for stage in holders}
            nearest = max(stage for stage in range(at, reader + 1) if teams[stage] in holding)
            if nearest in (at, at + 1):  # neighbours on the same devices pass a packet, too, which is not sent
                at += 1
                cuts.add(at)
            else:
                jumps.add((max(stage for stage in holders if teams[stage] == teams[nearest]), nearest))
                at = nearest
            holders.append(at)
    return SkipRoute(frozenset(cuts), frozenset(jumps))


def teams_of(plan: StagePlan) -> tuple[Hashable, ...]:
    """Return the ranks of each stage, as `route` takes them."""
    return tuple(stage.ranks for stage in plan.stages)


def layers_across(graph: LayerGraph, plan: StagePlan, *, with_kept: bool = False) -> list[tuple[int, ...]]:
    """List the layers whose outputs cross the boundary before each stage, and after the last.

    `with_kept`: of a stage's boundary also those that its devices kept for it. Layers that load the data count as part
    of the first stage.
    """
    index, before = graph.index, set(graph.input_layers)
    across = [graph.alive(before)]
    for stage in plan.stages:
        before |= {index[id] for id in stage.layers}
        across.append(graph.alive(before))
    if plan.stages_per_rank == 1:
        return across
    routes = _routes_of_layers(graph, plan, {layer for alive in across[1:-1] for layer in alive})
    for cut in range(1, len(plan.stages)):
        across[cut] = tuple(
            layer
            for layer in across[cut]
            if cut in routes[layer].cuts or (with_kept and any(end == cut for _, end in routes[layer].jumps))
        )
    return across


def givers(graph: LayerGraph, plan: StagePlan) -> list[frozenset[int]]:
    """Return for each stage the earlier ones on the same ranks that leave it tensors, with their coordinates."""
    if plan.stages_per_rank == 1:
        return [frozenset()] * len(plan.stages)
    teams = teams_of(plan)
    pairs = {(k - 1, k) for k in range(1, len(teams)) if teams[k - 1] == teams[k]}
    pairs |= {pair for way in _routes_of_layers(graph, plan, range(len(graph.layers))).values() for pair in way.jumps}
    return [frozenset(giver for giver, taker in pairs if taker == k) for k in range(len(teams))]


def _routes_of_layers(graph: LayerGraph, plan: StagePlan, layers: Iterable[int]) -> dict[int, SkipRoute]:
    """Return the way of each layer's output through the stages."""
    teams, index = teams_of(plan), graph.index
    stage_of = dict.fromkeys(graph.input_layers, 0)
    stage_of |= {index[id]: k for k, stage in enumerate(plan.stages) for id in stage.layers}
    routes = {}
    for layer in layers:
        readers = {stage_of[reader] for reader in graph.consumers[layer] if reader in stage_of}
        routes[layer] = route(teams, stage_of[layer], _later(readers, stage_of[layer]))
    return routes


def routes_of_values(
    alive: Sequence[Sequence[str]], reads: Sequence[Iterable[str]], teams: tuple[Hashable, ...]
) -> dict[str, SkipRoute]:
    """Return the way of every value that a boundary carries.

    `alive[k]`: the values that stages from k on need and earlier ones give. `reads[k]`: those that stage k reads.
    """
    sources: dict[str, int] = {}
    for cut, names in enumerate(alive):
        for name in names if cut else ():
            sources.setdefault(name, cut - 1)
    wanted = [set(names).intersection(read) for names, read in zip(alive, reads, strict=True)]
    return {
        name: route(teams, source, _later((k for k, names in enumerate(wanted) if name in names), source))
        for name, source in sources.items()
    }


def _later(stages: Iterable[int], source: int) -> tuple[int, ...]:
    return tuple(sorted(stage for stage in stages if stage > source))
