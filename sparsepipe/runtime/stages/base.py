"""What every runner of a stage offers the worker, and what it keeps of a minibatch between forward and backward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...networks.batch_norm import Group
from ...networks.losses import Outcome
from ...values.replication.base import Merge
from ..processes.process import Process
from ..replication.base import Alone, Replication, StatisticsGroup
from ..training_state.weights import Version
from ..transport.packet import Packet


@dataclass(frozen=True, eq=False)
class Output:
    """Entry point of a backward into the graph, and its expected gradient; the tensor itself is released."""

    edge: GradientEdge
    shape: torch.Size  # of the gradient that comes: of all parts, if the stage's ranks share scenes
    dtype: torch.dtype
    device: torch.device
    # If the stage's ranks share scenes: the rows of this part among those of all; None: every part has all rows.
    rows: Any = None

    @classmethod
    def of(cls, *tensors: Tensor) -> tuple["Output", ...]:
        """Return one for each of `tensors` that has a graph behind it: none if no backward will come."""
        return tuple(cls(get_gradient_edge(t), t.shape, t.dtype, t.device) for t in tensors if t.requires_grad)


@dataclass(eq=False)
class InFlight:
    """A minibatch between its forward and its backward."""

    minibatch: int  # its number in the run
    version: Version  # of the weights that its forward met, and its backward will
    leaves: tuple[Tensor, ...] = ()  # received features that want a gradient
    outputs: tuple[Output, ...] = ()  # features sent on that will get one; in the last stage the loss alone
    size: int = 0  # in the workload's unit
    part_sizes: tuple[int, ...] = ()  # of the parts of a minibatch that is split to fit into memory
    received: "Outputs | None" = None  # kept for a second forward where the stage recomputes
    targets: Any = None  # likewise, in the last stage
    weights: tuple[Tensor, ...] = ()  # views of the version's tensors, where the backward is split
    # Which elements of the gradient of each leaf and output cross the boundary, as bits; None: all of them.
    leaves_present: tuple[Tensor | None, ...] = ()
    outputs_present: tuple[Tensor | None, ...] = ()
    leaf_rows: tuple[Any, ...] = ()  # of each leaf, as `Output.rows`


# By name; of a minibatch that is split to fit into memory one mapping for each part.
Outputs = Mapping[str, Any] | tuple[Mapping[str, Any], ...]


def each_part(outputs: Outputs) -> tuple[Mapping[str, Any], ...]:
    """Return the outputs of each part of a minibatch, which is one part unless it is split."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


class SplitSamples(NamedTuple):
    """Samples of a minibatch that is split to fit into memory, as the workload's `batch` reads each part."""

    parts: tuple[Any, ...]

    @property
    def size(self) -> int:
        return sum(int(part.size) for part in self.parts)


class PackedOutputs(NamedTuple):
    """A stage's outputs on their way to the next stage, and what will come back for them."""

    packet: Packet
    outputs: tuple[Output, ...]  # of its tensors, those that a gradient will come back for
    present: tuple[Tensor | None, ...]  # of each of these, the elements that it comes back for, as bits; None: all


class PacketAndSamples(NamedTuple):
    """Input of a later stage that also reads inputs of the network from the samples."""

    packet: Packet
    samples: Any  # as the workload's `batch` reads them, or SplitSamples

    @property
    def size(self) -> int:
        return self.packet.size


class StageRunner(Protocol):
    """Runs the layers of one stage, one minibatch at a time, in the order of the rank's actions.

    Between two calls of `begin` a minibatch goes through these calls, in this order:

        forward ─► pack_outputs ─► ...  unpack_output_gradients ─► backward ─► pack_input_gradients
                   loss, in the last stage, where the backward starts without anything unpacked

    A stage that recomputes keeps what it received, and `run_again` comes before the backward. A schedule that splits
    the backward calls `backward_input`, and `backward_weight` later, in the place of `backward`.
    """

    @property
    def is_first(self) -> bool:
        """Return whether it receives samples, not packets."""
        ...

    @property
    def reads_samples(self) -> bool:
        """Return whether it takes samples: in the first stage alone, in later ones besides packets."""
        ...

    @property
    def is_last(self) -> bool:
        """Return whether it has the loss."""
        ...

    @property
    def reports(self) -> bool:
        """Return whether it reports minibatches: if ranks share scenes, the first of them does for all."""
        ...

    @property
    def id_before(self) -> int:
        """Names the list of tensors that cross the boundary to the stage before: both sides work it out in the same
        way.
        """
        ...

    @property
    def id_after(self) -> int:
        """The same of the boundary to the next stage."""
        ...

    @property
    def kept_from(self) -> tuple[int, ...]:
        """The earlier stages of the same rank, no neighbours, that keep tensors for this one: see
        values/graph.py.
        """
        ...

    @property
    def kept_for(self) -> tuple[int, ...]:
        """The later stages of the same rank, no neighbours, that this one keeps tensors for."""
        ...

    @property
    def averaging_seconds(self) -> float:
        """Seconds that averaging lasts longer than it takes here: over links that are slept for; else 0."""
        ...

    @property
    def step_seconds(self) -> float:
        """The same of a step of the optimizer, on a device that is slept for."""
        ...

    def merge_seconds(self, merge: Merge) -> float:
        """Return by how many seconds a merge with other pipelines lasts longer than it takes here, likewise; else 0."""
        ...

    def parameters(self) -> dict[str, Tensor]:
        """Return what the optimizer steps, by name: as the weights begin."""
        ...

    def buffers(self) -> dict[str, Tensor]:
        """Return what forwards change besides, such as running statistics, by name. To be changed in place."""
        ...

    def constants(self) -> dict[str, Tensor]:
        """Return what forwards read and nothing changes, such as frozen parameters, by name: checkpoints keep it."""
        ...

    def share_statistics(self, group: Group | None) -> None:
        """Let batch norms in training share their statistics with the replicas in `group`; None: each has its own."""
        ...

    def begin(self, *, training: bool, epoch: int = 0) -> None:
        """Begin with an empty pipeline: an epoch, what a run that resumes has left of one, or a validation.

        `epoch`: its number, by which weights may be frozen.
        """
        ...

    def forward(self, received: Any, version: Version, minibatch: int) -> tuple[InFlight, Outputs]:
        """Run the stage with its graph, on what the workload read (first stage), a packet, or both: each has a `size`.

        Returns what is kept until the backward, and its outputs. A split minibatch passes part by part.

        `minibatch` is a number in the run: what is drawn at random, such as dropout, follows from it.
        Raises PacketMismatch for a packet of other tensors, InputError for samples that the layers cannot take.
        """
        ...

    def evaluate(self, received: Any, version: Version, minibatch: int) -> tuple[int, Mapping[str, Any]]:
        """Run the stage without keeping a graph. Returns the minibatch's size with the outputs."""
        ...

    def run_again(self, flight: InFlight) -> Outputs:
        """Run the forward a second time, now with its graph, on what was received the first time.

        What was sent then is not sent again: of its tensors the flight gets those that a gradient comes back for.
        """
        ...

    def pack_outputs(
        self, outputs: Outputs, minibatch: int, size: int, part_sizes: Sequence[int] = ()
    ) -> PackedOutputs:
        """Pack the outputs for the next stage. A stage that recomputes has no `outputs` before it has run again.

        `part_sizes`: as in the flight.
        """
        ...

    def loss(
        self,
        outputs: Mapping[str, Any],
        labels: Any,
        *,
        samples: int,
        detailed: bool = False,
        weights: Sequence[float] | None = None,
    ) -> tuple[Tensor, Outcome]:
        """Return the loss of a minibatch, or one part of it, of so many samples, a scalar, and what to report of it.

        `detailed` and `weights`: see networks/losses/base.py. Raises InputError unless outputs and labels
        are of the same samples.
        """
        ...

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """Return the network's output as its forward gives it; of sparse tensors the rows."""
        ...

    def unpack_output_gradients(self, flight: InFlight, packet: Packet) -> list[Tensor | None]:
        """Return the gradients of `flight.outputs` that came back, each in its output's shape.

        None for an output that the loss does not depend on.

        Raises PacketMismatch for gradients of other shapes.
        """
        ...

    def backward(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the gradients of the stage's parameters and of `flight.leaves`. The graph is let go.

        `gradients` are those of `flight.outputs`; in the last stage [None]: its loss's own is 1, times `scale`.
        Elsewhere None, given or returned, says that the loss does not depend on it, which is no gradient of zero.
        """
        ...

    def backward_input(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor | None], Any]:
        """Return the gradients of `flight.leaves`, and what `backward_weight` will need."""
        ...

    def backward_weight(self, flight: InFlight, later: Any) -> list[Tensor | None]:
        """Return the gradients of the stage's parameters."""
        ...

    def pack_input_gradients(self, flight: InFlight, gradients: Sequence[Tensor | None]) -> Packet:
        """Pack the gradients of `flight.leaves` for the stage before."""
        ...


@dataclass(frozen=True, eq=False)
class Position:
    """A process at one of its stages. Interleaved, a process has several."""

    process: Process
    stage: int
    replication: Replication = field(default_factory=Alone)
    # How packets to the next stage and to the one before are made smaller where nothing is asked for.
    compression: tuple[str, str] = ("none", "none")
    scenes: StatisticsGroup | None = None  # the ranks that share each scene with this one, if any do

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def device(self) -> torch.device:
        return self.process.device
