"""The network as a graph of layers: edges, sizes of weights, and what crosses a cut."""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from ..errors import InputError
from ..util.derived import Kept, remembered
from ..util.text.numbers import number_of
from .plan_parts import StagePlan


@dataclass(frozen=True, slots=True)
class Layer:
    """Describe a layer of a network: its name, kind and size of weights.

    Attributes:
        id: Name of the layer, unique in its graph, such as "conv1_1".
        description: Kind of the layer, shown in tables and figures. A description that starts with "Input" marks an
            input of the network, which belongs to no stage.
        parameter_bytes: Size of the weights in bytes.

    Example:
        >>> sp.Layer("conv1", "convolution 3x3x3", parameter_bytes=4 * 27 * 16 * 32).parameter_bytes
        55296

    See also:
        `LayerGraph`
    """

    id: str
    description: str = ""
    parameter_bytes: float = 0


@dataclass(frozen=True)
class LayerGraph:
    """List the layers of a network in topological order, with the edges between them.

    Attributes:
        layers: Layers, each after all layers that feed it.
        edges: Pairs (i, j) with i < j: layer number `i` feeds layer number `j`.

    Raises:
        InputError: No layers, a duplicate layer id, a negative size, or an edge with i >= j.

    Example:
        >>> layers = [sp.Layer(name) for name in ("down", "middle", "up")]
        >>> graph = sp.LayerGraph.chain(layers, skips=[(0, 2)])
        >>> graph.edges
        ((0, 1), (0, 2), (1, 2))
        >>> graph.producers_across(2)  # "down" and "middle" feed "up"
        (0, 1)

    See also:
        guides/own_network, `Profile`
    """

    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("graph.empty", "the graph has no layers, expected at least one")
        if len(self.index) != len(self.layers):
            ids = [layer.id for layer in self.layers]
            twice = next(id for id in ids if ids.count(id) > 1)
            raise InputError("graph.layer_twice", f"layer {twice!r} is listed twice; give each layer a unique id")
        for layer in self.layers:
            if not 0 <= layer.parameter_bytes < float("inf"):
                raise InputError(
                    "graph.parameter_bytes",
                    f"layer {layer.id!r} has {layer.parameter_bytes} parameter bytes, expected 0 or more",
                )
        for i, j in self.edges:
            if not 0 <= i < j < len(self.layers):
                raise InputError(
                    "graph.edge_backward",
                    f"edge {(i, j)} does not point forward in a graph of {number_of(len(self.layers), 'layer')}; "
                    "list the layers in topological order",
                )
        object.__setattr__(self, "edges", tuple(sorted(set(self.edges))))

    @classmethod
    def chain(cls, layers: Iterable[Layer], skips: Iterable[tuple[int, int]] = ()) -> "LayerGraph":
        """Build the graph of a chain, in which each layer feeds the next.

        Args:
            layers: The layers, in order.
            skips: Additional edges, as pairs of layer numbers.

        Returns:
            The graph.

        Raises:
            InputError: As `LayerGraph` does.

        Example:
            >>> sp.LayerGraph.chain([sp.Layer("a"), sp.Layer("b")]).is_chain
            True
        """
        layers = tuple(layers)
        return cls(layers, (*((i, i + 1) for i in range(len(layers) - 1)), *skips))

    @classmethod
    def from_ids(cls, layers: Iterable[Layer], edges: Iterable[tuple[str, str]]) -> "LayerGraph":
        """Order `layers` topologically, as close to the given order as the edges allow.

        Raises InputError for an edge with an unknown layer, and for a cycle, which it names.
        """
        layers, edges = tuple(layers), tuple(edges)
        position = {layer.id: k for k, layer in enumerate(layers)}
        if len(position) < len(layers):
            return cls(layers, ())  # which names the layer that is listed twice
        waiting: dict[str, int] = dict.fromkeys(position, 0)
        consumers: dict[str, list[str]] = {id: [] for id in position}
        for source, target in dict.fromkeys(edges):
            for id in (source, target):
                if id not in position:
                    raise InputError(
                        "graph.layer_unknown",
                        f"edge {source!r} -> {target!r} names {id!r}, which is not a layer of the graph",
                    )
            waiting[target] += 1
            consumers[source].append(target)
        order = _topological(position, waiting, consumers)
        index = {id: k for k, id in enumerate(order)}
        return cls(tuple(layers[position[id]] for id in order), tuple((index[a], index[b]) for a, b in edges))

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each layer id in `layers`."""
        return {layer.id: k for k, layer in enumerate(self.layers)}

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Input layers of each layer."""
        return self._neighbours(target=True)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Consumer layers of each layer."""
        return self._neighbours(target=False)

    def _neighbours(self, *, target: bool) -> tuple[tuple[int, ...], ...]:
        neighbours: list[list[int]] = [[] for _ in self.layers]
        for i, j in self.edges:
            neighbours[j if target else i].append(i if target else j)
        return tuple(map(tuple, neighbours))

    @cached_property
    def is_chain(self) -> bool:
        return self.edges == tuple((i, i + 1) for i in range(len(self.layers) - 1))

    @cached_property
    def input_layers(self) -> frozenset[int]:
        """Layers that represent data loading ("Input0" of a graph.txt). They belong to no stage."""
        return frozenset(
            k for k, layer in enumerate(self.layers) if not self.inputs[k] and layer.description.startswith("Input")
        )

    @cached_property
    def kept(self) -> Kept:
        """Cache of values that depend only on this graph (see util/derived.py)."""
        return {}

    def alive(self, before: Iterable[int]) -> tuple[int, ...]:
        """Layers of the down-set `before` whose outputs are needed after it. Each crosses the cut once."""
        alive_before = frozenset(before)

        def found() -> tuple[int, ...]:
            return tuple(sorted({i for i, j in self.edges if i in alive_before and j not in alive_before}))

        return remembered(self.kept, "alive", alive_before, found)

    def producers_across(self, cut: int) -> tuple[int, ...]:
        """Layers before position `cut` whose output is still needed at or after it (skips included)."""
        return self.alive(range(cut))


def _topological(position: dict[str, int], waiting: dict[str, int], consumers: dict[str, list[str]]) -> list[str]:

    ready = [k for id, k in position.items() if not waiting[id]]
    heapq.heapify(ready)
    ids, order = list(position), []
    while ready:
        id = ids[heapq.heappop(ready)]
        order.append(id)
        for target in consumers[id]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, position[target])
    if len(order) < len(position):
        raise InputError("graph.cycle", f"the graph has a cycle: {_cycle(waiting, consumers)}; remove one of its edges")
    return order


def _cycle(waiting: dict[str, int], consumers: dict[str, list[str]]) -> str:
    """Name one cycle. Every layer still waiting has a waiting producer, so walking producers must come round."""
    producer = {target: id for id, targets in consumers.items() if waiting[id] for target in targets if waiting[target]}
    walk = [next(iter(producer))]
    while producer[walk[-1]] not in walk:
        walk.append(producer[walk[-1]])
    loop = walk[walk.index(producer[walk[-1]]) :]
    return " -> ".join([*reversed(loop), loop[-1]])


# Which stage boundaries a tensor crosses, and where a device keeps it for a later one of its stages
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
