"""One stage's share of the network on one minibatch: forward keeps the graph, backward uses it up.

A backward in two: first the gradients of the inputs, later those of the weights. No product is computed twice.

    weights ─► W1 ─┐        W2 ─┐          First the chain of joints alone is gone through, and what reaches each joint
    inputs ────► joint ──► ReLU ─► joint ──► loss   is kept; later each joint is asked for its weights' gradients.

A joint is a product of weights and features whose operation computes only those gradients it is asked for: torch's own
matrix products and convolutions, and an engine's that says so (`splits_gradients`). All other weights (biases added on
their own, batch norm, MinkowskiEngine's kernels) get their gradients at first, if they are a by-product.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward

from ...engines import CoordinateSet, Engine, Feature, Parts
from ...engines.subnetwork import build
from ...networks import Network
from ...networks.base import PARTS_APART, AnyNetwork, direct_reads
from ...networks.batch_norm import Group
from ...networks.freezing import RUNNING_MEAN, in_epoch, matches
from ...networks.losses import CrossEntropy, Loss, Outcome
from ...networks.losses.of_users import UserLoss
from ...networks.traced.copies import other_weights
from ...networks.traced.values import is_sparse
from ...values.graph import SkipRoute, routes_of_values, teams_of
from ...values.plan import Plan
from ...values.replication.base import Merge
from ..config import RunConfig
from ..failures import PacketMismatch
from ..replication.base import StatisticsGroup
from ..training_state.weights import Version
from ..transport.compression import Compressor, num_present, restored, values_at, with_zeros
from ..transport.packet import BACKWARD, FORWARD, NO_GRADIENT, Packet, Slot, boundary_id, parts_of, with_parts
from .base import InFlight, Output, Outputs, PackedOutputs, PacketAndSamples, SplitSamples, each_part
from .kept_tensors import HostMemory, MovedTensors, run_in_segments, unchanged_buffers
from .memory_limit import RankMemory, SegmentChoice, unrepeatable_layers
from .scene_parts import SceneParts

_PRODUCTS = ("ConvolutionBackward0", "AddmmBackward0", "MmBackward0", "LinearBackward0", "MkldnnLinearBackward0")


@dataclass(eq=False)
class Later:
    """The gradients of the weights: those found, and for the others (None) the joints that will tell."""

    found: list[Tensor | None]
    weights: Sequence[Tensor]
    joints: Sequence[tuple[tuple[GradientEdge, ...], tuple[Tensor, ...], tuple[int, ...]]] = ()

    def compute(self) -> list[Tensor | None]:
        """Return the gradients of all weights, None of one that the loss does not reach. The graph is let go."""
        for edges, reached, places in self.joints:
            wanted = [self.weights[place] for place in places]
            gradients = gradients_of(wanted, edges, reached)
            for place, gradient in zip(places, gradients, strict=True):
                self.found[place] = gradient
        self.joints = ()
        return list(self.found)


def gradients_of(
    wanted: Sequence[Tensor], outputs: Sequence[GradientEdge], given: Sequence[Tensor], *, retain_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients of the `wanted` tensors, None of one that is not reached, from those `given` at `outputs`.

    It is torch.autograd.grad without its check of symbolic shapes, which imports SymPy: a third of a second and 10 MB
    of each launcher. The engine checks shapes as well.
    """
    return list(
        _engine_run_backward(
            tuple(outputs), tuple(given), retain_graph, False, tuple(wanted), True, accumulate_grad=False
        )
    )


def split_backward(
    outputs: Sequence[GradientEdge], given: Sequence[Tensor], weights: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor | None], Later]:
    """Return the gradients of `inputs` (None: not reached) and what is left to do for the `weights`.

    `given` are the gradients at `outputs`. `inputs` and `weights` are views of leaves, not leaves.
    """
    joints = _joints(outputs, weights, inputs) if inputs else {}
    late = {place for places in joints.values() for place in places}
    early = [place for place in range(len(weights)) if place not in late]
    wanted = [*inputs, *(weights[place] for place in early)]
    caught: dict[Any, tuple[Tensor | None, ...]] = {}
    hooks = [joint.register_prehook(lambda reached, joint=joint: caught.update({joint: reached})) for joint in joints]
    try:
        gradients = gradients_of(wanted, outputs, given, retain_graph=bool(joints))
    finally:
        for hook in hooks:
            hook.remove()
    found: list[Tensor | None] = [None] * len(weights)
    for place, gradient in zip(early, gradients[len(inputs) :], strict=True):
        found[place] = gradient
    kept = [
        _kept(joint, reached, joints[joint]) for joint, reached in caught.items() if not all(g is None for g in reached)
    ]
    return list(gradients[: len(inputs)]), Later(found, weights, kept)


def _kept(joint: Any, reached: Sequence[Tensor | None], places: tuple[int, ...]) -> tuple[Any, Any, tuple[int, ...]]:
    some = [(GradientEdge(joint, k), gradient) for k, gradient in enumerate(reached) if gradient is not None]
    return tuple(edge for edge, _ in some), tuple(gradient for _, gradient in some), places


def _joints(
    outputs: Sequence[GradientEdge], weights: Sequence[Tensor], inputs: Sequence[Tensor]
) -> dict[Any, tuple[int, ...]]:
    """Return joint -> the weights (their places) that only it leads to."""
    place_of = {weight.grad_fn: place for place, weight in enumerate(weights)}
    ends = {tensor.grad_fn for tensor in inputs}
    order = _children_first([output.node for output in outputs])
    leads: dict[Any, bool] = {}  # whether an input lies behind a node
    behind: dict[Any, frozenset[int]] = {}  # the weights behind a node that leads to no input
    claims: dict[Any, frozenset[int]] = {}
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        leads[node] = node in ends or any(leads[child] for child in children)
        own = frozenset({place_of[node]} if node in place_of else ())
        own = own.union(*(behind[child] for child in children if not leads[child]))
        if leads[node]:
            claims[node] = own
        behind[node] = frozenset() if leads[node] else own
    for output in outputs:  # led to without any joint
        claims.setdefault(output.node, behind[output.node])
    counts = [sum(place in claim for claim in claims.values()) for place in range(len(weights))]
    return {
        node: places
        for node, claim in claims.items()
        if leads[node] and _splits(node) and (places := tuple(place for place in sorted(claim) if counts[place] == 1))
    }


def _children_first(roots: Sequence[Any]) -> list[Any]:
    order: list[Any] = []
    seen: set[Any] = set()
    todo = [(root, False) for root in roots]
    while todo:
        node, finished = todo.pop()
        if finished:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo += [(child, False) for child, _ in node.next_functions if child is not None and child not in seen]
    return order


def _splits(node: Any) -> bool:
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return bool(getattr(type(node)._forward_cls, "splits_gradients", False))  # type: ignore[attr-defined]  # torch's
    return node.name() in _PRODUCTS


def routes_of(network: AnyNetwork, plan: Plan, *, training: bool, engine: Engine) -> dict[str, SkipRoute]:
    """Return the way of each value through the stages of a plan; none if all values pass boundary after boundary.

    They do so in a traced network whose layers look up voxels that no value they read lies on.
    """
    looks_up = engine.looks_voxels_up and not isinstance(network, Network)
    if plan.stages_per_rank == 1 or looks_up:
        return {}
    every = {id for stage in plan.stages for id in stage.layers}
    reads = [network.alive(every.difference(stage.layers), training=training) for stage in plan.stages]
    alive = [_alive(network, plan, cut, training=training) for cut in range(len(plan.stages))]
    return routes_of_values(alive, reads, teams_of(plan))


def _alive(network: AnyNetwork, plan: Plan, cut: int, *, training: bool) -> tuple[str, ...]:
    """Return the values that are read behind a cut and come from before it, in order: each once, skips included."""
    before = {id for stage in plan.stages[:cut] for id in stage.layers}
    return network.alive(before, training=training) if 0 < cut < len(plan.stages) else ()


_NO_PARTS = "of several stages, those that share scenes split no minibatch: see memory_need.py"


class Boundary(NamedTuple):
    """The values that cross on one side of a stage, in order, and the number that names this list."""

    names: tuple[str, ...]
    id: int
    # Of the other stages of the same ranks that are no neighbours, those that keep values for this one, or it for them.
    kept: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(
        cls, network: AnyNetwork, plan: Plan, stage: int, *, behind: bool, training: bool, engine: Engine
    ) -> "Boundary":
        """Return the boundary before a stage, or `behind` it.

        Values that a device keeps for a later one of its stages do not cross. If a network differs between training
        and evaluation, so may they.
        """
        cut, names_of = stage + behind, dict[int, list[str]]()
        routes = routes_of(network, plan, training=training, engine=engine)
        alive = _alive(network, plan, cut, training=training)
        names = tuple(name for name in alive if cut in routes[name].cuts) if routes else alive
        for name, way in routes.items():
            for pair in way.jumps:
                if pair[not behind] == stage:
                    names_of.setdefault(pair[behind], []).append(name)
        return cls(names, boundary_id(names), {other: tuple(names_of[other]) for other in sorted(names_of)})

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The values that cross, then those that are kept, stage by stage."""
        return (self.names, *self.kept.values())

    def names_of(self, num_parts: int = 1) -> tuple[str, ...]:
        """The values of a packet's slots and of those it keeps: of each group those of one part after the other."""
        return tuple(name for names in self.groups for name in names * num_parts)


class NetworkStage:
    """Runs the layers of one stage: the member of `StageRunner` (base.py) that trains."""

    averaging_seconds = step_seconds = 0.0

    def __init__(
        self,
        network: AnyNetwork,
        engine: Engine,
        plan: Plan,
        stage: int,
        *,
        config: RunConfig,
        device: torch.device,
        loss: Loss | None = None,
        per_voxel: bool = False,
        compression: tuple[str, str] = ("none", "none"),
        scenes: StatisticsGroup | None = None,
    ) -> None:
        """`loss`: the cross entropy of samples' classes where it is not given. `scenes`: who has their other parts.

        `compression`: of what leaves forwards and backwards, unless the configuration says how.
        """
        own = plan.stages[stage]
        self.module = build(network, engine, own.layers, seed=config.seed).to(device)
        self._per_voxel, self._loss = per_voxel, loss or CrossEntropy(network.num_classes)
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(config.precision)
        if self.half is not None and config.float32_layers:
            keep_in_float32(self.module, config.float32_layers, device)
        self._forwards_compression, self._backwards_compression = (config.compression or each for each in compression)
        self.engine, self.device, self.recompute = engine, device, own.recompute
        self._parts: SceneParts | None = None
        self.reports = scenes is None or scenes.part == 0
        if scenes is not None:
            assert isinstance(network, Network) and network.coarsest_sparse_stride, "a plan that was checked"
            shares = [own.share(rank) for rank in sorted(own.ranks)]  # as process groups number their parts
            self._parts = SceneParts(scenes, shares, network.coarsest_sparse_stride, engine)
        self._segments = own.segment_places([row.id for row in self.module.table])
        self._splits = plan.rules.splits_backward
        self.is_first, self.is_last = stage == 0, stage == len(plan.stages) - 1
        self._boundaries = {
            training: [
                Boundary.of(network, plan, stage, behind=behind, training=training, engine=engine)
                for behind in (False, True)
            ]
            for training in (True, False)
        }
        self._outputs, self._direct = network.outputs, network.direct_inputs
        self._judges_rows = isinstance(network, Network)  # whose output is one tensor, sparse or dense
        self._differentiable, self._rectified = network.differentiable, network.rectified
        self._freeze, self._frozen = config.freeze, frozenset[str]()
        self.reads_samples = self.is_first or bool(direct_reads(network, self.module.table, last=self.is_last))
        self._stage = stage
        self._memory: RankMemory | None = None
        self._host: HostMemory | None = None
        self._synchronised = config.synchronised_batch_norm and len(own.ranks) > 1
        self.begin(training=True)

    @property
    def before(self) -> tuple[str, ...]:
        """The values that come from the stage before, in order."""
        return self._before.names

    @property
    def after(self) -> tuple[str, ...]:
        """The values that go to the next stage, in order."""
        return self._after.names

    @property
    def id_before(self) -> int:
        return self._before.id

    @property
    def kept_from(self) -> tuple[int, ...]:
        return tuple(self._before.kept)

    @property
    def kept_for(self) -> tuple[int, ...]:
        return tuple(self._after.kept)

    @property
    def _before(self) -> Boundary:
        return self._boundaries[self.module.training][0]

    @property
    def _after(self) -> Boundary:
        return self._boundaries[self.module.training][1]

    def limit(self, memory: RankMemory, host: HostMemory | None = None) -> None:
        """Recompute layers of minibatches that would not fit into what limits this rank, or move to `host` what they
        keep.
        """
        self._memory, self._host = memory, host
        memory.open(self._stage, unrepeatable_layers(self.module.table, self.engine, synchronised=self._synchronised))
        memory.begin()

    @property
    def id_after(self) -> int:
        return self._after.id

    def merge_seconds(self, merge: Merge) -> float:
        return 0.0

    def parameters(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.module.named_parameters() if tensor.requires_grad}

    def buffers(self) -> dict[str, Tensor]:
        return dict(self.module.named_buffers())

    def constants(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.module.named_parameters() if not tensor.requires_grad}

    def share_statistics(self, group: Group | None) -> None:
        self.module.synchronise(group)

    def begin(self, *, training: bool, epoch: int = 0) -> None:
        self.module.train(training)
        self._keep_frozen(epoch)
        self._forwards = Compressor(self._forwards_compression)
        self._backwards = Compressor(self._backwards_compression)
        if self._memory is not None:
            self._memory.begin()

    def _keep_frozen(self, epoch: int) -> None:
        """Have weights that are frozen in this epoch get no gradients, and their batch norms keep the statistics."""
        patterns = in_epoch(self._freeze, epoch)
        self._frozen = frozenset(name for name in self.parameters() if matches(patterns, name))
        kept = {name for name in self.buffers() if name.endswith(RUNNING_MEAN) and matches(patterns, name)}
        for path, part in self.module.named_modules():
            if f"{path}.{RUNNING_MEAN}" in kept:
                part.training = False

    def _trained(self, weights: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the weights that get gradients in this epoch."""
        return [name for name in weights if name not in self._frozen]

    def forward(self, received: Any, version: Version, minibatch: int) -> tuple[InFlight, Outputs]:
        alive, leaves, sizes = self._enter(received, trained=True)
        names = self._before.names_of(len(sizes))
        flight = InFlight(
            minibatch,
            version,
            leaves,
            size=sum(sizes),
            part_sizes=sizes if len(sizes) > 1 else (),
            leaves_present=() if self.is_first else self._present(names, _slots_of(_packet_of(received))),
            leaf_rows=self._rows_of_leaves(received, alive),
        )
        if not self.recompute:
            return flight, self._call(alive, version, minibatch, flight)
        flight.received = alive
        if self._memory is not None:
            self._memory.wait(self._stage, minibatch, flight.size, max(sizes))
        with torch.no_grad(), unchanged_buffers(self.module):  # the second forward counts, not this one
            return flight, self._call(alive, version, minibatch)

    def evaluate(self, received: Any, version: Version, minibatch: int) -> tuple[int, dict[str, Any]]:
        with torch.no_grad():
            alive, _, (size,) = self._enter(received, trained=False)
            outputs = self._call(alive, version, minibatch)
        assert isinstance(outputs, dict), "a validation splits no minibatch"
        return size, outputs

    def _rows_of_leaves(self, received: Any, alive: Outputs) -> tuple[Any, ...]:
        """Return which rows of all parts this one has, of each tensor that arrived and wants a gradient, in order."""
        if self.is_first or self._parts is None:
            return ()
        assert isinstance(alive, Mapping), _NO_PARTS
        slots = zip(self._before.names_of(), _slots_of(_packet_of(received)), strict=True)
        return self._parts.rows(alive[name] for name, slot in slots if slot.needs_gradient)

    def pack_outputs(
        self, outputs: Outputs, minibatch: int, size: int, part_sizes: Sequence[int] = ()
    ) -> PackedOutputs:
        if self._parts:
            assert isinstance(outputs, Mapping), _NO_PARTS
            return self._pack_parts(self._parts, outputs, minibatch, size)
        sizes = part_sizes or (size,)
        packets = [self._packed(own, minibatch, each) for own, each in zip(each_part(outputs), sizes, strict=True)]
        packet = with_parts(packets) if part_sizes else packets[0]
        wanted = _wanted(_slots_of(packet))
        packet = replace(packet, slots=self._forwards.shrink(packet.slots))
        return PackedOutputs(packet, wanted, self._present(self._after.names_of(len(sizes)), _slots_of(packet)))

    def _packed(self, outputs: Mapping[str, Any], minibatch: int, size: int) -> Packet:
        """Return the outputs of a minibatch, or one part of it, as they are."""
        parts, slots = self._output_slots(outputs, self.after)
        staying = []
        for stage, names in self._after.kept.items():
            of_stage, rows = self._output_slots(outputs, names)
            packet = Packet(FORWARD, minibatch, 0, rows, of_stage.coordinate_sets, size, tables=of_stage.tables)
            staying.append((stage, packet))
        packet = Packet(FORWARD, minibatch, self.id_after, slots, parts.coordinate_sets, size, tables=parts.tables)
        return replace(packet, kept=tuple(staying))

    def _pack_parts(self, parts: SceneParts, outputs: Mapping[str, Any], minibatch: int, size: int) -> PackedOutputs:
        """Pack the outputs of all parts, on each of the ranks that share scenes; the first sends them."""
        of_all = parts.engine.gather({name: outputs[name] for name in self.after})
        whole, slots = self._output_slots(of_all, self.after)
        small = self._forwards.shrink(slots)
        packet = Packet(FORWARD, minibatch, self.id_after, small, whole.coordinate_sets, size)
        return PackedOutputs(packet, self._part_ends(parts, outputs), self._present(self.after, small))

    def _part_ends(self, parts: SceneParts, outputs: Mapping[str, Any]) -> tuple[Output, ...]:
        """Return where gradients enter this part, each with the shape of all parts."""
        wanted = [outputs[name] for name in self.after if name in self._differentiable]
        wanted = [tensor for tensor in wanted if self.engine.features(tensor).requires_grad]
        ends = zip(Output.of(*map(self.engine.features, wanted)), parts.rows(wanted), strict=True)
        return tuple(
            end if rows is None else replace(end, shape=torch.Size((rows.num_rows, *end.shape[1:])), rows=rows)
            for end, rows in ends
        )

    def _output_slots(self, outputs: Mapping[str, Any], names: Sequence[str]) -> tuple[Parts, tuple[Slot, ...]]:
        parts = self.engine.split({name: outputs[name] for name in names})
        features = ((name, parts.features[name]) for name in names)
        return parts, tuple(
            Slot(feature.rows, feature.coordinate_set, name in self._differentiable) for name, feature in features
        )

    def loss(
        self,
        outputs: Mapping[str, Any],
        labels: Any,
        *,
        samples: int,
        detailed: bool = False,
        weights: Sequence[float] | None = None,
    ) -> tuple[Tensor, Outcome]:
        own = self.module.result(outputs)
        if self._parts:
            output = own if self._per_voxel else self.engine.rows(own)
            judge = partial(self._loss, samples=samples)
            return self._parts.loss(output, labels, judge, self._loss.items, detailed=detailed, weights=weights)
        whole = is_sparse(own) and isinstance(self._loss, UserLoss)
        output = own if whole else self.result(outputs)
        return self._loss(output, labels, samples=samples, detailed=detailed, weights=weights)

    def result(self, outputs: Mapping[str, Any]) -> Any:
        output = self.module.result(outputs)
        if self._parts and self._per_voxel:
            return self._parts.whole(output)
        if self._judges_rows or is_sparse(output):
            return self.engine.features(output) if self._per_voxel else self.engine.rows(output)
        return output

    def backward(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        edges, given = self._entries(flight, gradients, scale)
        weights = flight.version.tensors
        trained = self._trained(weights)
        wanted = [*(weights[name] for name in trained), *flight.leaves]
        found: list[Tensor | None] = [None] * len(wanted)
        if edges and wanted:
            found = gradients_of(wanted, edges, given)
        self._leave(flight)
        of_weights = dict(zip(trained, found, strict=False))
        return [of_weights.get(name) for name in weights], found[len(trained) :]

    def _leave(self, flight: InFlight) -> None:
        if self._memory is not None:
            self._memory.leave(self._stage, flight.minibatch)

    def backward_input(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor | None], Later]:
        edges, given = self._entries(flight, gradients, scale)
        views = dict(zip(flight.version.tensors, flight.weights, strict=True))
        weights = [views[name] for name in self._trained(views)]
        if not edges:
            return [None] * len(flight.leaves), Later([None] * len(weights), weights)
        return split_backward(edges, given, weights, flight.leaves)

    def _entries(
        self, flight: InFlight, gradients: Sequence[Tensor | None], scale: float
    ) -> tuple[list[GradientEdge], list[Tensor]]:
        """Return where the backward enters the graph, with which gradients; the flight lets go of it."""
        outputs, flight.outputs = flight.outputs, ()
        if self.is_last:
            gradients = [torch.full(o.shape, scale, dtype=o.dtype, device=o.device) for o in outputs]
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
        return [o.edge for o, _ in pairs], [g.to(o.device, o.dtype) for o, g in pairs]

    def backward_weight(self, flight: InFlight, later: Later) -> list[Tensor | None]:
        names = list(flight.version.tensors)
        of_weights = dict(zip(self._trained(flight.version.tensors), later.compute(), strict=True))
        self._leave(flight)
        return [of_weights.get(name) for name in names]

    def run_again(self, flight: InFlight) -> Outputs:
        assert flight.received is not None
        outputs = self._call(flight.received, flight.version, flight.minibatch, flight)
        flight.received = None
        if self._parts and not self.is_last:
            assert isinstance(outputs, Mapping), _NO_PARTS
            flight.outputs = self._part_ends(self._parts, outputs)
        elif not self.is_last:
            groups = (self._output_slots(part, names)[1] for names in self._after.groups for part in each_part(outputs))
            flight.outputs = _wanted([slot for slots in groups for slot in slots])
        return outputs

    def pack_input_gradients(self, flight: InFlight, gradients: Sequence[Tensor | None]) -> Packet:
        if self._parts:
            gradients = self._parts.gather(gradients, flight.leaves, flight.leaf_rows)
        slots = tuple(
            NO_GRADIENT if gradient is None else Slot(gradient if present is None else values_at(present, gradient))
            for gradient, present in zip(gradients, flight.leaves_present, strict=True)
        )
        num_parts, staying = len(flight.part_sizes) or 1, []
        at = num_parts * self._num_gradients(self.before)
        packet = Packet(
            BACKWARD, flight.minibatch, self.id_before, self._backwards.shrink(slots[:at]), size=flight.size
        )
        for stage, names in self._before.kept.items():
            end = at + num_parts * self._num_gradients(names)
            staying.append((stage, Packet(BACKWARD, flight.minibatch, 0, slots[at:end], size=flight.size)))
            at = end
        return replace(packet, kept=tuple(staying))

    def _num_gradients(self, names: Sequence[str]) -> int:
        return sum(name in self._differentiable for name in names)

    def unpack_output_gradients(self, flight: InFlight, packet: Packet) -> list[Tensor | None]:
        """Raises PacketMismatch unless each has its output's shape, or a value for each element that it has."""
        pairs = list(zip(flight.outputs, flight.outputs_present, strict=True))
        sent = [tuple(output.shape) if present is None else (num_present(present),) for output, present in pairs]
        slots = _slots_of(packet)
        back = [slot.shape or tuple(slot.rows.shape) for slot in slots]
        absent = [slot.is_no_gradient for slot in slots]
        if len(sent) != len(back) or any(a != b and not none for a, b, none in zip(sent, back, absent, strict=True)):
            raise PacketMismatch(
                "packet.gradient_shapes",
                f"gradients of minibatch {flight.minibatch} have shapes {back}, but its features had {sent}",
                minibatch=flight.minibatch,
                sent=sent,
            )
        gradients = [None if none else restored(slot) for slot, none in zip(slots, absent, strict=True)]
        whole = [
            gradient
            if gradient is None or present is None
            else with_zeros(gradient.to(present.device), present, output.shape)
            for gradient, (output, present) in zip(gradients, pairs, strict=True)
        ]
        if self._parts is None:
            return whole
        return [
            None if gradient is None else self._parts.select(gradient.to(self.device), output.rows)
            for gradient, output in zip(whole, flight.outputs, strict=True)
        ]

    def _present(self, names: Sequence[str], slots: Sequence[Slot]) -> tuple[Tensor | None, ...]:
        """Return, of each tensor that gets a gradient, the bits of the elements that it gets one for; None: of all.

        Both sides of a boundary go by what both know: the network, and how the forward's packet was sent.
        """
        return tuple(
            slot.present.to(self.device, copy=True)  # a view would keep the whole packet alive
            if slot.present is not None and name in self._rectified
            else None
            for name, slot in zip(names, slots, strict=True)
            if slot.needs_gradient
        )

    def _enter(self, received: Any, *, trained: bool) -> tuple[Outputs, tuple[Tensor, ...], tuple[int, ...]]:
        """Return the tensors alive at the boundary before, those of them that want a gradient, and each part's size."""
        samples = received if self.is_first else received.samples if self.reads_samples else None
        batches = samples.parts if isinstance(samples, SplitSamples) else (samples,)
        if self.is_first:
            read = tuple(map(self._read, batches))
            return read if len(read) > 1 else read[0], (), tuple(int(batch.size) for batch in batches)
        packets = parts_of(_packet_of(received))
        direct = [self._read(batch) for batch in batches] if self.reads_samples else [{}] * len(packets)
        unpacked = [
            self._unpack(packet, trained=trained, like=next(iter(values.values()), None))
            for packet, values in zip(packets, direct, strict=True)
        ]
        alive = tuple(
            {**{name: values[name] for name in self._direct if name in values}, **tensors}
            for (tensors, _), values in zip(unpacked, direct, strict=True)
        )
        leaves = self._by_group([leaves for _, leaves in unpacked])
        return alive if len(alive) > 1 else alive[0], leaves, tuple(packet.size for packet in packets)

    def _by_group(self, leaves: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Return the leaves of a minibatch's parts as `Boundary.names_of` has their names."""
        if len(leaves) == 1:
            return tuple(leaves[0])
        ends = [0, *accumulate(map(self._num_gradients, self._before.groups))]
        return tuple(leaf for start, end in pairwise(ends) for own in leaves for leaf in own[start:end])

    def _read(self, batch: Any) -> dict[str, Any]:
        tensor = self.engine.tensor(batch, self.device)
        return self.module.enter(self._parts.part(tensor) if self._parts else tensor)

    def _unpack(self, packet: Packet, *, trained: bool, like: Any = None) -> tuple[dict[str, Any], list[Tensor]]:
        """`like`: a part of the same minibatch, if ranks share scenes and the stage reads samples, too."""
        expected = self._before.names_of()
        if len(_slots_of(packet)) != len(expected):
            raise PacketMismatch(
                "packet.tensor_count",
                f"{len(_slots_of(packet))} tensors arrived, but {len(expected)} were expected: {expected}",
            )
        packets = packet, *(part for _, part in packet.kept)
        if any(part.tables for part in packets):  # which say on their own how tensors are put together
            groups = [*zip(self._before.groups, packets, strict=True)]
        else:
            groups = [(expected, _joined(packet))]
        leaves: list[Tensor] = []
        if self._parts:
            division = self._parts.divide(packet, self.device, like=like)
            parts = self._parts_of(expected, packet, leaves, trained=trained, of_part=division.rows)
            return self._parts.engine.join_part(parts, division), leaves
        joined = [self.engine.join(self._parts_of(names, part, leaves, trained=trained)) for names, part in groups]
        return {name: value for part in joined for name, value in part.items()}, leaves

    def _parts_of(
        self,
        names: Sequence[str],
        packet: Packet,
        leaves: list[Tensor],
        *,
        trained: bool,
        of_part: Sequence[Tensor] | None = None,
    ) -> Parts:
        """Return the tensors of a packet in parts; append those that want a gradient to `leaves`.

        `of_part`: the rows of each coordinate set that a part has. None: all.
        """
        features = {}
        for name, slot in zip(names, packet.slots, strict=True):
            rows = restored(slot).to(self.device)
            if of_part is not None and slot.coordinate_set is not None:
                rows = rows.index_select(0, of_part[slot.coordinate_set])
            if trained and slot.needs_gradient:
                rows = rows.requires_grad_()
                rows = rows.view_as(rows) if self._splits else rows  # see split_backward
                leaves.append(rows)
            features[name] = Feature(rows, slot.coordinate_set)
        sets = tuple(s._replace(coordinates=s.coordinates.to(self.device)) for s in packet.coordinate_sets)
        tables = tuple(table.to(self.device) for table in packet.tables)
        return Parts(sets, features, tables)

    def _call(self, alive: Outputs, version: Version, minibatch: int, flight: InFlight | None = None) -> Outputs:
        """Run the layers, of a split minibatch on one part after the other: the backward runs each part again."""
        keep = self._outputs if self.is_last else self._after.names_of()
        weights = version.tensors
        if self._splits and flight is not None:
            weights = {name: tensor.view_as(tensor) for name, tensor in weights.items()}
            flight.weights = tuple(weights.values())
        choice = SegmentChoice(self._segments if flight is not None else ())
        if self._memory is not None and flight is not None:
            choice = self._memory.enter(self._stage, minibatch, flight.size, max(flight.part_sizes, default=None))
        context = partial(self._running, weights)
        outputs: list[dict[str, Any]] = []
        for k, part in enumerate(each_part(alive)):
            moved = self._moved_tensors(part, weights) if choice.moves else None
            options: dict[str, Any] = {"minibatch": minibatch + k * PARTS_APART, "keep": keep}
            with context(), moved.saving() if moved else nullcontext():
                if choice.segments:
                    options |= {"context": context, "moved": moved}
                    outputs.append(run_in_segments(self.module, part, choice.segments, **options))
                else:
                    outputs.append(self.module(part, **options))
        return tuple(outputs) if isinstance(alive, tuple) else outputs[0]

    def _moved_tensors(self, alive: Mapping[str, Any], weights: Mapping[str, Tensor]) -> MovedTensors:
        """Return where the tensors go that the layers save, but for weights, buffers and what the stage received."""
        assert self._host is not None, "the memory that chose this has its rate"
        received = [self.engine.features(value) for value in alive.values()]
        staying = [*weights.values(), *self.module.buffers(), *filter(torch.is_tensor, received)]
        return MovedTensors(self._host, self.engine, staying)

    @contextmanager
    def _running(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Have the block run the layers with these weights, in the stage's precision."""
        with torch.autocast(self.device.type, dtype=self.half, enabled=self.half is not None):
            with other_weights(self.module, weights):
                yield


def keep_in_float32(module: nn.Module, types: Sequence[str], device: torch.device) -> None:
    """Have the layers whose class matches one of `types`, such as "*Norm*", compute in float32 under autocast."""

    def wide(value: object) -> object:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    def in_float32(forward: Callable[..., object], *given: object, **named: object) -> object:
        with torch.autocast(device.type, enabled=False):
            return forward(*map(wide, given), **{name: wide(value) for name, value in named.items()})

    for part in module.modules():
        if any(fnmatchcase(type(part).__name__, pattern) for pattern in types):
            part.forward = partial(in_float32, part.forward)


def _packet_of(received: Packet | PacketAndSamples) -> Packet:
    return received.packet if isinstance(received, PacketAndSamples) else received


def _slots_of(packet: Packet) -> tuple[Slot, ...]:
    """Return the tensors that crossed a boundary, then those that were kept."""
    return (*packet.slots, *(slot for _, staying in packet.kept for slot in staying.slots))


def _joined(packet: Packet) -> Packet:
    """Return one packet of all tensors, in which those on the same coordinates share them."""
    sets, slots = list(packet.coordinate_sets), list(packet.slots)
    for _, staying in packet.kept:
        places = []
        for voxels in staying.coordinate_sets:
            alike = (k for k, other in enumerate(sets) if _same_voxels(voxels, other))
            if (number := next(alike, None)) is None:
                taken = {other.family for other in sets if other.tensor_stride == voxels.tensor_stride}
                family = 1 + max(other.family for other in sets) if voxels.family in taken else voxels.family
                number = len(sets)
                sets.append(voxels._replace(family=family))
            elif sets[number].manager is None:
                sets[number] = sets[number]._replace(manager=voxels.manager)
            places.append(number)
        slots += [
            slot if slot.coordinate_set is None else replace(slot, coordinate_set=places[slot.coordinate_set])
            for slot in staying.slots
        ]
    return replace(packet, slots=tuple(slots), coordinate_sets=tuple(sets), kept=())


def _same_voxels(first: CoordinateSet, other: CoordinateSet) -> bool:
    coordinates = other.coordinates
    return first.tensor_stride == other.tensor_stride and torch.equal(
        first.coordinates.to(coordinates.device), coordinates
    )


def _wanted(slots: Sequence[Slot]) -> tuple[Output, ...]:
    return Output.of(*(slot.rows for slot in slots if slot.needs_gradient))
