"""One stage's share of the network on one minibatch: forward keeps the graph, backward uses it up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from ...engines import Engine, Feature, Parts, Subnetwork
from ...models import INPUT, Network
from ...plan import Plan
from ..config import RunConfig
from ..failures import PacketMismatch
from ..replication.all_reduce import average_gradients
from ..replication.replica_group import ReplicaGroup
from ..training_state.weights import Version
from ..transport.compression import Compressor, restored
from ..transport.packet import BACKWARD, FORWARD, Packet, Slot, boundary_id
from ..transport.zero_elision import num_present, rectified, values_at, with_zeros
from .loss import Outcome, judge
from .split_backward import Later, split_backward


def boundary(network: Network, plan: Plan, cut: int) -> tuple[str, ...]:
    """Return the tensors alive between stages `cut - 1` and `cut`, in row order: each once, skips included.

    The network's input is one of them where a later layer takes it, and so is its output once it is there.
    """
    if cut <= 0 or cut >= len(plan.stages):
        return ()
    before = {id for stage in plan.stages[:cut] for id in stage.layers} | {INPUT}
    needed = {name for row in network.rows if row.id not in before for name in row.inputs} | {network.rows[-1].id}
    return tuple(name for name in (INPUT, *(row.id for row in network.rows)) if name in before & needed)


def differentiable(network: Network) -> frozenset[str]:
    """Return the tensors that a gradient comes back for: those behind at least one layer with parameters."""
    found: set[str] = set()
    for row in network.rows:
        if row.num_parameters or found & set(row.inputs):
            found.add(row.id)
    return frozenset(found)


@dataclass(frozen=True, eq=False)
class Output:
    """Where a backward enters the graph, and what gradient it expects there; the tensor itself is let go."""

    edge: GradientEdge
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, *tensors: Tensor) -> tuple["Output", ...]:
        """Return one for each of `tensors` that has a graph behind it: none where no backward will come."""
        return tuple(cls(get_gradient_edge(t), t.shape, t.dtype, t.device) for t in tensors if t.requires_grad)


@dataclass(eq=False)
class InFlight:
    """A minibatch between its forward and its backward."""

    minibatch: int
    version: Version
    leaves: tuple[Tensor, ...]  # features that arrived and want a gradient
    outputs: tuple[Output, ...]  # features sent on that will get one; in the last stage the loss alone
    voxels: int = 0
    arrived: Mapping[str, Any] | None = None  # kept for a second forward where the stage recomputes
    labels: Tensor | None = None  # likewise
    weights: tuple[Tensor, ...] = ()  # views of the version's tensors, where the backward is split
    # Which elements of the gradient of each leaf and output cross the boundary, as bits; None: all of them.
    leaves_present: tuple[Tensor | None, ...] = ()
    outputs_present: tuple[Tensor | None, ...] = ()


class StageRunner:
    """Runs the layers of one stage, one minibatch at a time."""

    step_seconds = 0.0  # that a step of the optimizer lasts longer than it does

    def __init__(
        self,
        network: Network,
        engine: Engine,
        plan: Plan,
        stage: int,
        *,
        config: RunConfig,
        device: torch.device,
        per_voxel: bool = False,
        compression: tuple[str, str] = ("none", "none"),
    ) -> None:
        """`compression`: of what leaves forwards and backwards, unless the configuration says how."""
        own = plan.stages[stage]
        self.module = Subnetwork(network, engine, own.layers, seed=config.seed).to(device)
        self._per_voxel, self._num_classes = per_voxel, network.num_classes
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(config.precision)
        self._compression = tuple(config.compression or default for default in compression)
        self.engine, self.device, self.recompute = engine, device, own.recompute
        self.splits = plan.rules.splits_backward
        self.is_first, self.is_last = stage == 0, stage == len(plan.stages) - 1
        self.before, self.after = boundary(network, plan, stage), boundary(network, plan, stage + 1)
        self._keep = (network.rows[-1].id,) if self.is_last else self.after
        self._differentiable, self._rectified = differentiable(network), rectified(network)
        self.id_before, self.id_after = boundary_id(self.before), boundary_id(self.after)
        self.begin(training=True)

    def begin(self, *, training: bool) -> None:
        """Begin a drained stretch: an epoch, what a run that resumes has left of one, or a validation."""
        self.module.train(training)
        self._forwards, self._backwards = map(Compressor, self._compression)

    def forward(self, arrived: Packet | Any, version: Version, minibatch: int) -> tuple[InFlight, dict[str, Any]]:
        """Run the stage on what arrived (a PointBatch in the first stage, a packet in others)."""
        alive, leaves, voxels = self._enter(arrived, trained=True)
        present = () if self.is_first else self._present(self.before, arrived.slots)
        if self.recompute:
            with torch.no_grad():
                statistics = [buffer.clone() for buffer in self.module.buffers()]
                outputs = self._call(alive, version, minibatch)
                for buffer, kept in zip(self.module.buffers(), statistics, strict=True):
                    buffer.copy_(kept)  # the second forward counts, not this one
            return InFlight(minibatch, version, leaves, (), voxels, alive, leaves_present=present), outputs
        flight = InFlight(minibatch, version, leaves, (), voxels, leaves_present=present)
        return flight, self._call(alive, version, minibatch, flight)

    def evaluate(self, arrived: Packet | Any, version: Version, minibatch: int) -> tuple[int, dict[str, Any]]:
        """Run the stage without keeping a graph. Returns the voxel count with the outputs."""
        with torch.no_grad():
            alive, _, voxels = self._enter(arrived, trained=False)
            return voxels, self._call(alive, version, minibatch)

    def leave(
        self, outputs: Mapping[str, Any], minibatch: int, voxels: int
    ) -> tuple[Packet, tuple[Output, ...], tuple[Tensor | None, ...]]:
        """Return the packet for the next stage, those of its tensors that a gradient will come back for, and of which
        of their elements (bits; None: of all). A stage that recomputes has the former only when it has run again.
        """
        parts, slots = self._leaving(outputs)
        small = self._forwards.shrink(slots)
        packet = Packet(FORWARD, minibatch, self.id_after, small, parts.coordinate_sets, voxels)
        return packet, _wanted(slots), self._present(self.after, small)

    def _leaving(self, outputs: Mapping[str, Any]) -> tuple[Parts, tuple[Slot, ...]]:
        parts = self.engine.split({name: outputs[name] for name in self.after})
        features = ((name, parts.features[name]) for name in self.after)
        return parts, tuple(
            Slot(feature.rows, feature.coordinate_set, name in self._differentiable) for name, feature in features
        )

    def loss(
        self, outputs: Mapping[str, Any], labels: Tensor, *, samples: int, detailed: bool = False
    ) -> tuple[Tensor, Outcome]:
        """Return the loss of the minibatch, and what to report of it."""
        output = outputs[self._keep[0]]
        rows = self.engine.features(output) if self._per_voxel else self.engine.rows(output)
        return judge(rows, labels, samples=samples, num_classes=self._num_classes, detailed=detailed)

    def backward(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients of the stage's weights and of the features that arrived.

        `gradients` are those of `flight.outputs`; None stands for 1, the loss's own, times `scale`.
        """
        given = _given(flight.outputs, gradients, scale)
        wanted = [*flight.version.tensors.values(), *flight.leaves]
        if not flight.outputs or not wanted:
            found = [torch.zeros_like(tensor) for tensor in wanted]
        else:
            edges = [output.edge for output in flight.outputs]
            found = list(torch.autograd.grad(edges, wanted, given, allow_unused=True, materialize_grads=True))
        flight.outputs = ()
        count = len(flight.version.tensors)
        return found[:count], found[count:]

    def backward_input(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor], Later]:
        """Return the gradients of the features that arrived, and what is left to do for those of the weights."""
        if not flight.outputs:
            nothing: list[Tensor | None] = [None] * len(flight.weights)
            return [torch.zeros_like(leaf) for leaf in flight.leaves], Later(nothing, flight.weights)
        given = _given(flight.outputs, gradients, scale)
        edges = [output.edge for output in flight.outputs]
        found = split_backward(edges, given, flight.weights, flight.leaves)
        flight.outputs = ()
        return found

    def backward_weight(self, flight: InFlight, later: Later) -> list[Tensor]:
        """Return the gradients of the stage's weights."""
        return later.compute()

    def run_again(self, flight: InFlight) -> dict[str, Any]:
        """Run the forward a second time, now with its graph, on what arrived the first time.

        What left then is not sent again: of its tensors the flight gets those that a gradient comes back for.
        """
        assert flight.arrived is not None
        outputs = self._call(flight.arrived, flight.version, flight.minibatch, flight)
        flight.arrived = None
        if not self.is_last:
            flight.outputs = _wanted(self._leaving(outputs)[1])
        return outputs

    def answer(self, flight: InFlight, gradients: Sequence[Tensor]) -> Packet:
        """Return the packet with the gradients of what arrived, for the stage before."""
        crossing = (
            gradient if present is None else values_at(present, gradient)
            for gradient, present in zip(gradients, flight.leaves_present, strict=True)
        )
        small = self._backwards.shrink(tuple(map(Slot, crossing)))
        return Packet(BACKWARD, flight.minibatch, self.id_before, small, voxels=flight.voxels)

    def average(
        self, gradients: Sequence[Tensor], count: int, replicas: ReplicaGroup | None, *, what: str
    ) -> list[Tensor]:
        """Return the mean gradient of a round of `count` minibatches over the stage's replicas."""
        return average_gradients(gradients, count, replicas, what=what)

    def check_answer(self, flight: InFlight, packet: Packet) -> list[Tensor]:
        """Return the gradients that came back.

        Raises PacketMismatch unless each has its output's shape, or one value for each element that it comes back for.
        """
        pairs = list(zip(flight.outputs, flight.outputs_present, strict=True))
        sent = [tuple(output.shape) if present is None else (num_present(present),) for output, present in pairs]
        back = [slot.shape or tuple(slot.rows.shape) for slot in packet.slots]
        if sent != back:
            raise PacketMismatch(
                f"gradients of minibatch {flight.minibatch} have shapes {back}, its features had {sent}"
            )
        gradients = [restored(slot) for slot in packet.slots]
        return [
            gradient if present is None else with_zeros(gradient.to(present.device), present, output.shape)
            for gradient, (output, present) in zip(gradients, pairs, strict=True)
        ]

    def _present(self, names: Sequence[str], slots: Sequence[Slot]) -> tuple[Tensor | None, ...]:
        """Return, of each tensor that gets a gradient, the bits of the elements that it gets one for; None: of all.

        Both sides of a boundary go by what they know alike: the network, and how the forward's packet was sent.
        """
        return tuple(
            slot.present.to(self.device, copy=True)  # a view would keep the whole packet alive
            if slot.present is not None and name in self._rectified
            else None
            for name, slot in zip(names, slots, strict=True)
            if slot.needs_gradient
        )

    def _enter(self, arrived: Packet | Any, *, trained: bool) -> tuple[dict[str, Any], tuple[Tensor, ...], int]:
        """Return the tensors alive at the boundary before, those of them that want a gradient, and the voxel count."""
        if self.is_first:
            return {INPUT: self.engine.tensor(arrived, self.device)}, (), arrived.num_voxels
        if len(arrived.slots) != len(self.before):
            raise PacketMismatch(f"{len(arrived.slots)} tensors arrived, {len(self.before)} expected: {self.before}")
        leaves: list[Tensor] = []
        features = {}
        for name, slot in zip(self.before, arrived.slots, strict=True):
            rows = restored(slot).to(self.device)
            if trained and slot.needs_gradient:
                rows = rows.requires_grad_()
                rows = rows.view_as(rows) if self.splits else rows  # see split_backward
                leaves.append(rows)
            features[name] = Feature(rows, slot.coordinate_set)
        sets = tuple(s._replace(coordinates=s.coordinates.to(self.device)) for s in arrived.coordinate_sets)
        return self.engine.join(Parts(sets, features)), tuple(leaves), arrived.voxels

    def _call(
        self, alive: Mapping[str, Any], version: Version, minibatch: int, flight: InFlight | None = None
    ) -> dict[str, Any]:
        options, weights = {"minibatch": minibatch, "keep": self._keep}, version.tensors
        if self.splits and flight is not None:
            weights = {name: tensor.view_as(tensor) for name, tensor in weights.items()}
            flight.weights = tuple(weights.values())
        with torch.autocast(self.device.type, dtype=self.half, enabled=self.half is not None):
            return functional_call(self.module, weights, (alive,), options, strict=False)


def _wanted(slots: Sequence[Slot]) -> tuple[Output, ...]:
    return Output.of(*(slot.rows for slot in slots if slot.needs_gradient))


def _given(outputs: Sequence[Output], gradients: Sequence[Tensor | None], scale: float) -> list[Tensor]:
    return [
        torch.full(output.shape, scale, dtype=output.dtype, device=output.device)
        if gradient is None
        else gradient.to(output.device, output.dtype)
        for output, gradient in zip(outputs, gradients, strict=True)
    ]
