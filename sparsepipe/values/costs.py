"""Costs of layers, stages and boundaries in seconds and bytes, for both planners and the simulator."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ..util.derived import remembered
from .cluster import Cluster, Link
from .graph import LayerGraph, givers, layers_across
from .plan import Plan, Stage
from .profile import COORDINATE_BYTES, MEMORY_FIELDS, Profile
from .schedule import compile_until_steady

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
# Of a step of SGD with momentum, which reads three numbers a weight and writes two: a copy reads one, writes one, and
# fetches what it writes to.
_COPY = 3 / 5
_HAND_MAPS_OVER = ("native",)  # engines
_WHOLE_NUMBER = re.compile(r"(\w+)=(\d+)\b(?!\.)")  # of a layer's description
Port = tuple[object, ...]  # names a port among those of a cluster
OPTIMIZER_SLOTS = 1  # momentum: one number beside each weight


@dataclass(frozen=True, eq=False)
class LayerTable:
    """The costs of a profile as arrays [layers, voxel counts]; a layer that stands for loading data costs nothing.

    What a step takes in addition to its layers is in the forward of the first and of the last of them.

    Sizes do not depend on the device; if profiles of two types differ (rounding, a different count), the larger
    counts.
    """

    graph: LayerGraph
    sizes: Array  # [V], of minibatches, in the profile's unit
    forward: dict[str, Array]  # device type → seconds [L, V]
    backward: dict[str, Array]
    map_seconds: dict[str, Array]  # of making the kernel map a layer multiplies by
    map_maker: tuple[int, ...]  # for each layer, the one that makes its kernel map; −1: it needs none
    hands_maps_over: bool  # whether a device's later stage has the maps of its earlier one that leaves it tensors
    output_bytes: Array  # [L, V]
    coordinate_bytes: Array
    between_hosts: "Crossing"
    held: "Crossing"  # in memory: of minibatches that are large at each stride
    saved_bytes: Array
    kernel_map_bytes: Array  # of these
    saved_input_bytes: Array  # of these
    backward_left_bytes: Array
    forward_temporary_bytes: Array
    backward_temporary_bytes: Array
    parameter_bytes: Array  # [L]
    update_rates: dict[str, float]  # device type → seconds of the optimizer for each byte of weights
    reading: dict[str, float]  # device type → seconds of reading a minibatch once more
    readers: frozenset[str]  # layers whose stage reads minibatches, beside the first

    @classmethod
    def of(cls, profile: Profile, sizes: Sequence[float] | Array, types: Iterable[str] | None = None) -> "LayerTable":
        """Evaluate the costs of `types` (all of the profile when not given) at each of `sizes`.

        Raises InputError for a type that was not profiled.
        """
        names = tuple(dict.fromkeys(profile.device_types if types is None else types))
        counts = np.asarray(sizes, dtype=float)
        key = (names, counts.tobytes())
        return remembered(profile.kept, "layer table", key, lambda: cls._evaluated(profile, counts, names))

    @classmethod
    def _evaluated(cls, profile: Profile, counts: Array, names: tuple[str, ...]) -> "LayerTable":
        graph = profile.graph
        inputs = graph.input_layers
        computes = np.array([[0.0 if k in inputs else 1.0] for k in range(len(graph.layers))])
        costs_by_type = {name: profile.costs_of_large(name, counts) for name in names}
        columns = {
            field: {name: one[field] for name, one in costs_by_type.items()} for field in costs_by_type[names[0]]
        }
        large = ("large_output_bytes", "large_coordinate_bytes")
        sizes = ("output_bytes", "coordinate_bytes", *large, "saved_bytes", *MEMORY_FIELDS)
        most = {field: np.maximum.reduce(list(columns[field].values())) for field in sizes}
        if not most["saved_bytes"].any():  # a graph.txt does not tell: autograd keeps about what each layer puts out
            most["saved_bytes"] = most["output_bytes"] * computes
        forward = {name: times * computes for name, times in columns["forward"].items()}
        computing = np.flatnonzero(computes)
        for name, overhead in profile.step_overheads.items():
            if name in forward:
                forward[name][computing[0]] += overhead.input_seconds
                forward[name][computing[-1]] += overhead.loss_seconds
        return cls(
            graph,
            counts,
            forward,
            {name: times * computes for name, times in columns["backward"].items()},
            columns["kernel_map_seconds"],
            _map_makers(profile),
            all(part.get("engine") in (None, *_HAND_MAPS_OVER) for part in profile.measured_parts(names)),
            most["output_bytes"],
            most["coordinate_bytes"],
            Crossing.of(columns),
            Crossing(most["large_output_bytes"], most["large_output_bytes"], most["large_coordinate_bytes"]),
            most["saved_bytes"],
            most["kernel_map_bytes"],
            most["saved_input_bytes"],
            most["backward_left_bytes"],
            most["forward_temporary_bytes"],
            most["backward_temporary_bytes"],
            np.array([layer.parameter_bytes for layer in graph.layers], dtype=float),
            {name: profile.update_rates.get(name, 0.0) for name in names},
            {name: one.reading_seconds for name, one in profile.step_overheads.items()},
            frozenset(profile.sample_readers) | {graph.layers[k].id for k in computing[:1]},
        )

    def of_forwards(self) -> "LayerTable":
        """The network while it only computes outputs: no backward, no optimizer; what its layers put out is kept."""
        backward = {name: np.zeros_like(seconds) for name, seconds in self.backward.items()}
        rates = dict.fromkeys(self.update_rates, 0.0)
        none = np.zeros_like(self.saved_bytes)
        return replace(
            self,
            backward=backward,
            update_rates=rates,
            saved_bytes=self.held.outputs,
            kernel_map_bytes=none,
            saved_input_bytes=none,
            backward_left_bytes=none,
            forward_temporary_bytes=none,
            backward_temporary_bytes=none,
        )

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """Forward and backward together."""
        return {name: self.forward[name] + self.backward[name] for name in self.forward}

    def stage_forward(self, layers: Sequence[int], device_type: str, maps_made: Sequence[int]) -> Array:
        """Seconds of a stage's forward [V]: its layers', and making again the kernel maps that earlier stages made.

        A plan's estimate, which adds up layers, leaves the latter out: what simulates or replays the plan does not.
        `maps_made`: of `maps_made_again`.
        """
        seconds: Array = self.forward[device_type][list(layers)].sum(axis=0)
        return seconds + self.map_seconds[device_type][list(maps_made)].sum(axis=0)

    def maps_made_again(self, plan: Plan) -> list[list[int]]:
        """Return for each stage the layers of earlier stages whose kernel maps it makes again.

        A stage has the maps of earlier ones on the same ranks that leave it tensors, if the engine hands maps over.
        """
        again, there = list[list[int]](), list[set[int]]()
        for stage, earlier in zip(plan.stages, givers(self.graph, plan), strict=True):
            own = {self.graph.index[id] for id in stage.layers}
            needed = {self.map_maker[k] for k in own} - {-1}
            known = set[int]().union(*(there[k] for k in earlier)) if self.hands_maps_over else set[int]()
            again.append(sorted(needed - own - known))
            there.append(needed | known)
        return again

    def recomputed(self, stage: Stage) -> list[int]:
        """Return the layers of a stage whose forward runs twice: all, those of its segments, or none."""
        rows = [self.graph.index[id] for id in stage.layers]
        if stage.segments:
            rows.sort()
            ends = stage.segment_places([self.graph.layers[k].id for k in rows])
            return [k for first, end in ends for k in rows[first:end]]
        return rows if stage.recompute else []

    def reading_again(self, plan: Plan, stage: int, device_type: str) -> float:
        """Seconds in which a stage reads a minibatch that the first stage's process, another one, reads too.

        Stages of one process read it once. A search for a plan, which adds up layers, leaves this out: a plan's
        estimate, and what simulates or replays it, does not.
        """
        stage_of_layer = plan.stages[stage]
        earlier = (other for other in plan.stages[:stage] if not self.readers.isdisjoint(other.layers))
        if (
            not stage
            or self.readers.isdisjoint(stage_of_layer.layers)
            or any(set(o.ranks) & set(stage_of_layer.ranks) for o in earlier)
        ):
            return 0.0
        return self.reading.get(device_type, 0.0)

    @property
    def is_read_again(self) -> bool:
        """Return whether a plan may have stages that read minibatches again, and reading takes time: see
        `reading_again`.
        """
        return len(self.readers) > 1 and any(self.reading.values())

    def update_time(self, layers: Sequence[int], device_types: Iterable[str], *, kept: bool = False) -> float:
        """Seconds of one step of the optimizer on these layers' weights, on the slowest of some device types.

        `kept`: the version before stays, so the weights are copied first. A plan's estimate leaves that out.
        """
        rate = max(self.update_rates[name] for name in device_types) * (1 + _COPY * kept)
        return rate * float(self.parameter_bytes[list(layers)].sum())

    @cached_property
    def coordinate_owner(self) -> tuple[int, ...]:
        """For each layer, the layer that made the coordinates its output lives on; −1: the network's input."""
        owner: list[int] = []
        for k, inputs in enumerate(self.graph.inputs):
            owner.append(k if self.coordinate_bytes[k].any() else owner[inputs[0]] if inputs else -1)
        return tuple(owner)

    @cached_property
    def input_coordinates(self) -> Array:
        """Bytes of the input's coordinates [V]; 0 for a dense network, if no layer makes coordinates."""
        return self.sizes * COORDINATE_BYTES if self.coordinate_bytes.any() else np.zeros_like(self.sizes)

    @property
    def within_host(self) -> "Crossing":
        """Return what crosses a cut between devices of one host: tensors as they are."""
        return Crossing(self.output_bytes, self.output_bytes, self.coordinate_bytes)

    def stage_bytes(
        self,
        layers: Sequence[int],
        inside: Sequence[Flags] | None = None,
        *,
        column: int | slice = 1,
    ) -> tuple[Array, Array, Array]:
        """Bytes of one minibatch in stages of some of `layers`: (kept for its backward, at most at work, least of it).

        `inside`: for each of `layers`, in their order, whether it is in each of several stages [P]; without it all are
        in one stage, whose bytes are given for each of the sizes of minibatches in `column`. Of a minibatch at work
        count, with the gradients of the stage's weights:

            forward    what layers keep up to this one, and what this one takes for a while
            backward   what layers keep up to this one, all kernel maps, what this one takes for a while, what later
                       ones left, the gradients of the weights from it on, and those that came for what later ones sent

        The last of these may fall as a stage grows. Without it, the least of what is at work never does.
        Each stage makes the kernel maps that it needs. Coordinates are there in the forward alone, among what layers
        take for a while. What the stage receives, kept or not, counts elsewhere. Of profiles without temporary bytes
        all that is kept, coordinates too, and all gradients count.
        """
        of = {field: getattr(self, field)[:, column] for field in (*MEMORY_FIELDS, "saved_bytes")}
        outputs = self.held.outputs[:, column]
        whole = np.ones(np.size(self.sizes[column]), dtype=bool)
        within = dict(zip(layers, [whole] * len(layers) if inside is None else inside, strict=True))
        nothing = np.zeros(len(next(iter(within.values()), whole)))
        weights = sum((layer_bytes * self.parameter_bytes[k] for k, layer_bytes in within.items()), nothing)
        if not self.tells_temporaries:
            made = self.held.coordinates[:, column]
            kept = sum((layer_bytes * (of["saved_bytes"][k] + made[k]) for k, layer_bytes in within.items()), nothing)
            return kept, kept + weights, kept + weights
        nowhere = np.zeros(len(nothing), dtype=bool)
        there = dict(within)  # of each maker of kernel maps, whether its map is there
        staying, passing, most = nothing, nothing, nothing
        kept_of = {}  # each layer, until its backward
        for k, layer_bytes in within.items():
            maker, inputs = self.map_maker[k], self.graph.inputs[k]
            staying = staying + layer_bytes * of["kernel_map_bytes"][k]
            if maker not in (-1, k):
                known = there.get(maker, nowhere)
                staying = staying + (layer_bytes & ~known) * of["kernel_map_bytes"][maker]
                there[maker] = known | layer_bytes
            received = (
                layer_bytes & ~np.logical_or.reduce([within.get(p, nowhere) for p in inputs]) if inputs else nowhere
            )
            kept_of[k] = (
                layer_bytes * (of["saved_bytes"][k] - of["kernel_map_bytes"][k]) - received * of["saved_input_bytes"][k]
            )
            passing = passing + kept_of[k]
            most = np.maximum(most, layer_bytes * (staying + passing + of["forward_temporary_bytes"][k]))
        kept, later, returned = staying + passing, nothing, nothing
        most = least = np.maximum(most, np.maximum(kept, weights))
        for k, layer_bytes in reversed(within.items()):
            later = later + layer_bytes * self.parameter_bytes[k]
            working = staying + passing + of["backward_temporary_bytes"][k] + later
            least = np.maximum(least, layer_bytes * working)
            # Gradients of its output, and of those of earlier layers, are among what it takes for a while.
            most = np.maximum(most, layer_bytes * (working + returned))
            if read := [within.get(reader, nowhere) for reader in self.graph.consumers[k]]:
                returned = returned + layer_bytes * ~np.logical_and.reduce(read) * outputs[k]
            later = later + layer_bytes * of["backward_left_bytes"][k]
            passing = passing - kept_of[k]
        return kept, np.maximum(most, least), least

    @cached_property
    def slab_halos(self) -> tuple[tuple[float, float], ...]:
        """For each layer, the shares of its input that a slab of a dense grid fetches from the slab before and behind.

        A grid of n cells along its first axis is n planes. A kernel reaches beyond a slab's first output, and its last.
        """
        cells: dict[int, int] = {}  # along the first axis of each layer's output, if that is a grid
        halos: list[tuple[float, float]] = []
        for k, layer in enumerate(self.graph.layers):
            facts = {name: int(number) for name, number in _WHOLE_NUMBER.findall(layer.description)}
            size = next((cells[i] for i in self.graph.inputs[k] if i in cells), None)
            before = behind = 0
            if layer.description.startswith("dense_grid("):
                cells[k] = facts["size"]
            elif size is not None and not layer.description.startswith("flatten("):
                stride, padding = facts.get("stride", 1), facts.get("padding", 0)
                reach = facts.get("dilation", 1) * (facts.get("kernel_size", 1) - 1)
                before, behind = padding, max(0, reach - padding - stride + 1)
                cells[k] = max(1, (size + 2 * padding - reach - 1) // stride + 1)
            halos.append((before / (size or 1), behind / (size or 1)))
        return tuple(halos)

    def sends_halo(self, layer: int) -> bool:
        """Return whether parts of a scene exchange cells or voxels before a layer."""
        return self.map_maker[layer] >= 0 or any(self.slab_halos[layer])

    def halo_bytes(self, layers: Sequence[int], parts: int) -> Array:
        """Estimate the bytes that a part of scenes receives in a forward, [V]; a backward returns as many.

        A scan is a surface, of which a plane meets about √n of n voxels. A part between two others has two borders.
        Of a dense grid the cells at the borders count.
        """
        total: Array = np.zeros(len(self.sizes))
        for k in layers:
            if any(self.slab_halos[k]):
                planes = sum(self.slab_halos[k]) if parts > 2 else max(self.slab_halos[k])
                total = total + planes * sum(self.output_bytes[i] for i in self.graph.inputs[k])
            elif self.map_maker[k] >= 0:
                owner = self.coordinate_owner[k]
                rows = (self.coordinate_bytes[owner] if owner >= 0 else self.input_coordinates) / COORDINATE_BYTES
                total = total + self.output_bytes[k] / np.sqrt(np.maximum(rows, 1)) * min(2, parts - 1)
        return total

    def halo_seconds(self, cluster: Cluster, stage: Stage, layers: Sequence[int]) -> Array:
        """Estimate the seconds of a forward's halos on the busiest rank that shares scenes, [V]; a backward's too."""
        if not stage.shares_scenes or len(stage.ranks) < 2:
            return np.zeros(len(self.sizes))
        link = boundary_link(cluster, stage.ranks)
        exchanges = sum(map(self.sends_halo, layers))
        seconds: Array = exchanges * link.latency + self.halo_bytes(layers, len(stage.ranks)) / link.bandwidth
        return seconds

    def parts_seconds(self, cluster: Cluster, plan: Plan, k: int, layers: Sequence[int]) -> tuple[Array, Array]:
        """Estimate the seconds that ranks which share scenes send to each other in stage `k`: forwards, backwards, [V].

        Halos, and what a pass sends to another stage: it is gathered from all parts before.
        """
        stage = plan.stages[k]
        forward = backward = self.halo_seconds(cluster, stage, layers)
        if stage.shares_scenes and len(stage.ranks) > 1 and len(plan.stages) > 1:
            payloads = self.payloads(plan)
            if k + 1 < len(plan.stages):
                forward = forward + self.gathering_seconds(cluster, stage, payloads[k + 1][0])
            if k:
                backward = backward + self.gathering_seconds(cluster, stage, payloads[k][1])
        return forward, backward

    def gathering_seconds(self, cluster: Cluster, stage: Stage, num_bytes: Array) -> Array:
        """Estimate the seconds in which each rank that shares scenes receives the others' rows, `num_bytes` in all."""
        link, elsewhere = boundary_link(cluster, stage.ranks), 1 - min(stage.parts_of_work())
        seconds: Array = link.latency + elsewhere * num_bytes / link.bandwidth
        return seconds

    @cached_property
    def tells_temporaries(self) -> bool:
        """Return whether the profile has what layers take for a while: those from before have not."""
        return bool(self.forward_temporary_bytes.any() or self.backward_temporary_bytes.any())

    def crossing(self, *, between_hosts: bool = False, held: bool = False) -> "Crossing":
        """Return what crosses a cut: within a host, between hosts, or as memory has to hold it."""
        return self.held if held else self.between_hosts if between_hosts else self.within_host

    def payload(self, before: Iterable[int], *, between_hosts: bool = False, held: bool = False) -> tuple[Array, Array]:
        """Bytes that cross the cut after the down-set `before`, forwards and backwards, each `[V]`: see `crossing`.

        Every tensor alive counts once; forwards come the coordinates, once for each distinct set of them.
        """
        return self._bytes_of(self.graph.alive(before), self.crossing(between_hosts=between_hosts, held=held))

    def payloads(self, plan: Plan, *, between_hosts: bool = False, held: bool = False) -> list[tuple[Array, Array]]:
        """Bytes at the boundary before each stage of a plan and after the last, forwards and backwards: see `payload`.

        A tensor that a device keeps for a later one of its stages crosses no boundary on the way. It counts as `held`
        where that stage takes it.
        """
        bytes_of = self.crossing(between_hosts=between_hosts, held=held)
        across = layers_across(self.graph, plan, with_kept=held)
        return [self._bytes_of(layers, bytes_of) for layers in across]

    def _bytes_of(self, layers: Iterable[int], bytes_of: "Crossing") -> tuple[Array, Array]:
        alive = list(layers)
        owners = {self.coordinate_owner[k] for k in alive}
        coordinates = bytes_of.coordinates[sorted(owners - {-1})].sum(axis=0)
        forward = bytes_of.outputs[alive].sum(axis=0) + coordinates
        return forward + (self.input_coordinates if -1 in owners else 0.0), bytes_of.gradients[alive].sum(axis=0)


@dataclass(frozen=True, eq=False)
class Crossing:
    """Bytes of each layer's output, of the gradient that comes back for it, and of its coordinates, as sent: [L, V]."""

    outputs: Array
    gradients: Array
    coordinates: Array

    @classmethod
    def of(cls, columns: Mapping[str, Mapping[str, Array]]) -> "Crossing":
        """Return the bytes on sockets between hosts, from the cost fields by device type: as measured, or plain bytes.

        Of device types that differ, the larger counts.
        """
        plain = {"output": "output_bytes", "gradient": "output_bytes", "coordinate": "coordinate_bytes"}
        pieces = []
        for what, field in plain.items():
            of_types = [
                np.where(coded > 0, np.minimum(coded, columns[field][name]), columns[field][name])
                for name, coded in columns[f"coded_{what}_bytes"].items()
            ]
            pieces.append(np.maximum.reduce(of_types))
        return cls(*pieces)


def _map_makers(profile: Profile) -> tuple[int, ...]:
    """For each layer the first one whose kernel map has the same pairs and cost: it is the same; −1: it needs none."""
    first: dict[tuple[tuple[float, float], ...], int] = {}
    makers = []
    for k, cost in enumerate(next(iter(profile.costs.values()))):
        maps = tuple((sample.kernel_map_pairs, sample.kernel_map_seconds) for sample in cost.samples)
        makers.append(first.setdefault(maps, k) if any(seconds for _, seconds in maps) else -1)
    return tuple(makers)


def boundary_link(cluster: Cluster, ranks: Sequence[int]) -> Link:
    """The link that neighbouring stages with these ranks use: a node's own where all sit on it, else the network."""
    nodes = {cluster.devices[rank].node.name for rank in ranks}
    return cluster.devices[ranks[0]].node.link if len(nodes) == 1 else cluster.network


def port_share(cluster: Cluster, stage: Stage, *, network: bool) -> float:
    """The share of all minibatches that the busiest port of `stage` carries.

    A device has a port of its own on its node's link; all devices of a node share the node's port to the network.
    Ranks that share scenes all receive every minibatch, and the first of them sends what they made.
    """
    if stage.shares_scenes:
        return 1.0
    if not network:
        return max(stage.shares) / stage.round
    of_node: dict[str, int] = {}
    for rank, share in zip(stage.ranks, stage.shares, strict=True):
        name = cluster.devices[rank].node.name
        of_node[name] = of_node.get(name, 0) + share
    return max(of_node.values()) / stage.round


def copies(pair: Sequence[Stage]) -> tuple[int, int]:
    """Packets that are sent for a minibatch between two stages, forwards and backwards: one to each rank in need."""
    before, after = (len(stage.ranks) if stage.shares_scenes else 1 for stage in pair)
    return after, before


def port_loads(cluster: Cluster, pair: Sequence[Stage], *, network: bool) -> tuple[float, float]:
    """Packets per minibatch through the busiest port between two stages, forwards and backwards: see `port_share`."""
    before, after = (port_share(cluster, stage, network=network) for stage in pair)
    forward, backward = copies(pair)
    return (
        max(before * forward, after * (forward if network else 1)),
        max(after * backward, before * (backward if network else 1)),
    )


def ports(cluster: Cluster, rank: int, peer: int, *, forward: bool) -> tuple[Port, Port]:
    """The port by which what `rank` sends leaves, and the one by which it reaches `peer`: one transfer at a time each.

    A device has one for each neighbouring stage and direction; between nodes, all devices of a node share the node's.
    """
    node, other = (cluster.devices[r].node.name for r in (rank, peer))
    if node == other:
        return (rank, forward, "out"), (peer, forward, "in")
    return (node, "out"), (other, "in")


def share_elsewhere(
    cluster: Cluster, stage: Stage, rank: int, other: Stage, *, device: Callable[[int], int] = int
) -> float:
    """The share of a replica's minibatches, 0 … 1, that a replica on another node has in a neighbouring stage.

    `device`: which device of the cluster a rank is.
    """
    name = cluster.devices[device(rank)].node.name
    apart = [cluster.devices[device(other.ranks[replica_turn])].node.name != name for replica_turn in other.turns]
    if all(apart) or not any(apart):
        return float(apart[0])
    turns_of_rank = [turn for turn, replica_turn in enumerate(stage.turns) if stage.ranks[replica_turn] == rank]
    step = gcd(stage.round, other.round)  # turns of both that are as far apart meet, all as often
    met = [apart[turn] for first in turns_of_rank for turn in range(first % step, other.round, step)]
    return sum(met) / len(met)


def network_time(
    cluster: Cluster,
    plan: Plan,
    stage: int,
    rank: int,
    crossing: Callable[[int], tuple[Array, Array]],
    *,
    device: Callable[[int], int] = int,
) -> tuple[Array, Array]:
    """Seconds of its own time that a replica's device takes to send and receive a minibatch: (forward, backward), [V].

    Receiving what a pass needs counts with the pass, as does sending what it gives: while a processor copies, checks
    and acknowledges it does not compute (`DeviceType.network_seconds_per_byte`). Averaging of gradients, which replicas
    wait for, is no longer by it. `crossing`: bytes between hosts at the cut before a stage, forwards and backwards;
    `device`: which device of the cluster a rank is.
    """
    each, sending_stage = cluster.devices[device(rank)].type.network_seconds_per_byte, plan.stages[stage]
    total: list[Array | float] = [0.0, 0.0]
    for cut, other in ((stage, stage - 1), (stage + 1, stage + 1)):
        if 0 <= other < len(plan.stages):
            share = share_elsewhere(cluster, sending_stage, rank, plan.stages[other], device=device)
            total = [sum_ + each * share * size for sum_, size in zip(total, crossing(cut), strict=True)]
    return np.asarray(total[0]), np.asarray(total[1])


def averaging_time(cluster: Cluster, ranks: Sequence[int], parameter_bytes: float) -> float:
    """Seconds of one all-reduce of the gradients over a stage's replicas: see `averaging_line`."""
    counts = Counter(cluster.devices[rank].node.name for rank in ranks)
    shared = [node.link for node in cluster.nodes if counts[node.name] > 1]
    per_byte = max((1 / link.bandwidth for link in shared), default=0.0)
    inside = per_byte, max((link.latency for link in shared), default=0.0)
    outside = 1 / cluster.network.bandwidth, cluster.network.latency
    each, once = averaging_line(max(counts.values()), len(counts), inside, outside)
    return float(once + each * parameter_bytes)


def averaging_line(
    most: int | Array, hosts: int | Array, inside: tuple[float | Array, float | Array], outside: tuple[float, float]
) -> tuple[Array, Array]:
    """(seconds for each byte of gradients, seconds besides) of an all-reduce over replicas on so many `hosts`.

    Within each host a ring, or what sends as many bytes: 2(k−1) messages of 1/k of the gradients, k the `most` replicas
    on one host. Then likewise between one of each host, and from these to the others of their hosts along a tree of
    ⌈log₂ k⌉ messages of all gradients. `inside` and `outside`: (seconds a byte, seconds a message) of the slowest link
    within a host that has several, and of the network. Numbers, or arrays of one shape.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    tree = np.where(np.greater(hosts, 1), np.ceil(np.log2(most)), 0.0)
    within, between = 2 * np.subtract(most, 1), 2 * np.subtract(hosts, 1)
    each: Array = (within / most + tree) * inside[0] + between / hosts * outside[0]
    once: Array = (within + tree) * inside[1] + between * outside[1]
    return each, once


Place = tuple[int, int]  # (pipeline, stage)


class MergeCosts:
    """Cost of what stages of different pipelines send each other in a merge, and how long it is on its way.

    Of each layer every member reduces an equal part (as in runtime/replication/between_pipelines/mean.py): with n
    members a stage sends (n - 1)/n of its bytes, and gets as many back, once to be reduced and once as the result.
    Pieces of a stage for several others share its port; they travel alongside activations.
    """

    def __init__(self, plans: Sequence[Plan], cluster: Cluster, graph: LayerGraph, *, share: float = 1.0) -> None:
        """`share`: bytes that are sent for each byte of weights, fewer where a rule encodes them."""
        self.plans, self.cluster = plans, cluster
        self._layer_bytes = {layer.id: layer.parameter_bytes * share for layer in graph.layers}
        self._layers = {
            (k, s): set(stage.layers) for k, plan in enumerate(plans) for s, stage in enumerate(plan.stages)
        }
        self._known: dict[tuple[Place, Place], float] = {}

    def stages(self, pipeline: int) -> list[Place]:
        return [(pipeline, s) for s in range(len(self.plans[pipeline].stages))]

    def of(self, place: Place) -> float:
        """Bytes of all of a stage's layers."""
        return self.shared(place, place)

    def shared(self, one: Place, other: Place) -> float:
        """Bytes of the layers that two stages have in common."""
        if (one, other) not in self._known:
            both = self._layers[one] & self._layers[other]
            self._known[one, other] = float(sum(self._layer_bytes[id] for id in both))
        return self._known[one, other]

    def peers(self, one: Place, members: Sequence[int]) -> list[Place]:
        """The stages of the other members that have layers of one."""
        places = (other_place for k in members if k != one[0] for other_place in self.stages(k))
        return [other_place for other_place in places if self.shared(one, other_place)]

    def seconds(self, one: Place, members: Sequence[int]) -> float:
        """Seconds of sending a stage's pieces to be reduced elsewhere; getting its results takes as long.

        The first replica of each stage exchanges for all.
        """
        rank = self.plans[one[0]].stages[one[1]].ranks[0]
        sent = [
            (self.cluster.link(rank, self.plans[k].stages[s].ranks[0]), self.shared(one, (k, s)))
            for k, s in self.peers(one, members)
        ]
        return max((link.latency for link, _ in sent), default=0.0) + sum(
            size / len(members) / link.bandwidth for link, size in sent
        )

    def seconds_to_result(self, one: Place, members: Sequence[int]) -> float:
        """Seconds from when the parts of all are ready until a stage has the result of a merge."""
        around = [one, *self.peers(one, members)]
        reducing = {other_place for other in around for other_place in (other, *self.peers(other, members))}
        return max(self.seconds(other_place, members) for other_place in reducing) + self.seconds(one, members)

    def server_seconds(self, place: Place) -> float:
        """Seconds of sending all of a stage's layers to a parameter server; to have the server's takes as long."""
        link = self.cluster.network if len(self.cluster.nodes) > 1 else self.cluster.nodes[0].link
        return link.transfer_time(self.of(place)) if self.of(place) else 0.0


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of a stage's layers: those that every minibatch in flight takes again, and those that it does not."""

    parameter_bytes: float
    saved_bytes: float  # activations, kernel maps and coordinates made within the stage, one minibatch
    incoming_bytes: float  # what it receives, one minibatch
    working_bytes: float  # of the minibatch at work: what it keeps, temporaries and gradients of the weights

    def part(self, share: float) -> "MemoryNeed":
        """Return what a device needs that computes a share of each scene: weights and their gradients are whole."""
        gradients = min(self.parameter_bytes, self.working_bytes)
        working = gradients + share * (self.working_bytes - gradients)
        return MemoryNeed(self.parameter_bytes, share * self.saved_bytes, share * self.incoming_bytes, working)

    def total(self, *, versions: int, minibatches: int, recompute: bool = False, runs: bool = True) -> float:
        """Bytes on one replica: weights × versions, optimizer state, minibatches in flight, one of them at work.

        `runs`: the stage is the one of its device's that is at work.
        """
        fixed = self.parameter_bytes * (versions + OPTIMIZER_SLOTS) + minibatches * self.incoming_bytes
        if not runs or not minibatches:
            return fixed + self.parameter_bytes + (0.0 if recompute else minibatches * self.saved_bytes)
        # With recomputation only the inputs of the others wait.
        return fixed + self.working_bytes + (0.0 if recompute else (minibatches - 1) * self.saved_bytes)


@lru_cache(maxsize=65536)
def depth(
    schedule: str, num_microbatches: int, shares: tuple[int, ...], later_ranks: int, warmup: int | None = None
) -> tuple[int, int]:
    """Weight versions and minibatches in flight, on the fullest replica of a stage with `later_ranks` after it."""
    stages = [Stage(("own",), tuple(range(len(shares))), shares, warmup=warmup)]
    if later_ranks:
        stages.append(Stage(("later",), tuple(range(len(shares), len(shares) + later_ranks))))
    plan = Plan(tuple(stages), schedule, num_microbatches=num_microbatches)
    fullest = max(zip(shares, plan.stages[0].ranks, strict=True))[1]
    program = compile_until_steady(plan)
    return program.num_versions(0, fullest), program.in_flight(0, fullest)
