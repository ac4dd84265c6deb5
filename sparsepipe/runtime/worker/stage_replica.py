"""One stage on one rank: the runner of its layers, its weights, its optimizer. Interleaved, a rank has several."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...values.plan import Plan, Stage
from ..config import RunConfig
from ..pipelines.base import Averager
from ..stages.base import Position, StageRunner
from ..training_state import checkpoint
from ..training_state.parameter_groups import open_optimizer
from ..training_state.weights import AVERAGE, UPDATES, MovingAverage, Version, Weights, validated_weights
from ..workloads.base import Workload
from .epoch_parts import Averaged

# Kinds of tensors that are none of an optimizer's.
_OF_NETWORKS = ("weight:", "buffer:")
_OF_AVERAGES = ("outer:", "outer_velocity:", "outer_version:", "pushed:")  # between pipelines
_NOT_OF_OPTIMIZERS = (*_OF_NETWORKS, *_OF_AVERAGES, AVERAGE, UPDATES)


class WeightsNotFinite(RuntimeError):
    """Weights, or what goes with them, are NaN or infinite: a checkpoint of them would be of no use."""


@dataclass(eq=False)
class StageReplica:
    """The stage, its place in the plan, and this rank's position there."""

    own: Stage
    position: Position
    runner: StageRunner
    weights: Weights
    moving_average: MovingAverage | None = None  # of the weights, where one is asked for
    averager: Averager | None = None  # with other pipelines, where there are any
    kept: dict[str, Tensor] = field(default_factory=dict)  # by it, while layers change hands; of a first replica

    @classmethod
    def open(cls, plan: Plan, config: RunConfig, *, position: Position, workload: Workload) -> "StageReplica":
        """Build a stage as this rank holds it, its weights as the seed draws them."""
        runner = workload.runner(plan, position)
        parameters = runner.parameters()
        weights = Weights(parameters, open_optimizer(config, parameters))
        average = MovingAverage(weights.newest.tensors, config.ema) if config.ema is not None else None
        return cls(plan.stages[position.stage], position, runner, weights, average)

    @property
    def stage(self) -> int:
        return self.position.stage

    @property
    def writes(self) -> bool:
        """Return whether this replica writes the stage's part of a checkpoint."""
        return self.position.rank == self.own.ranks[0]

    @property
    def validated(self) -> Version:
        """The weights that are validated: their moving averages, if there are any, or the newest."""
        return self.moving_average.version if self.moving_average else self.weights.newest

    def average(self, averaged: Averaged | None, *, stepped: bool = True) -> None:
        """Average the newest weights: with other pipelines if that is due, over time if they `stepped`."""
        if averaged and self.averager:
            self.averager.after_step(averaged.update, samples=averaged.samples)
        if stepped and self.moving_average:
            self.moving_average.update(self.weights.newest.tensors)

    def average_statistics(self) -> None:
        """Bring the replicas' running statistics together. Ranks that share scenes have the same ones already."""
        if self.own.shares_scenes:
            return
        share = self.own.share(self.position.rank) / self.own.round
        self.position.replication.average_buffers(list(self.runner.buffers().values()), share)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of this stage, by their names in checkpoints."""
        state = self.weights.optimizer.state(self.weights.names)
        state |= self.moving_average.state() if self.moving_average else {}
        return checkpoint.as_tensor_map(self.weights.newest.tensors, state, self._beside_weights())

    def for_checkpoint(self) -> dict[str, Tensor]:
        """Return this stage's part of a checkpoint: its tensors, and the averaging state."""
        return self.tensors() | (self.averager.state() if self.averager else {})

    def _beside_weights(self) -> dict[str, Tensor]:
        """Return the further tensors of the stage's layers, by name: running statistics, frozen parameters."""
        return {**self.runner.buffers(), **self.runner.constants()}

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with tensors of the ranks that had these layers before, which are this stage's from here on."""
        self.load_tensors(tensors, adopt=True)
        self.kept = {key: tensor for key, tensor in tensors.items() if key.startswith(_OF_AVERAGES)}

    def not_finite(self) -> str | None:
        """Name a tensor of this stage that is not finite, such as "weight conv1_1.kernel"; None if all are."""
        for key, tensor in self.tensors().items():
            if not bool(tensor.isfinite().all()):
                return key.replace(":", " ", 1)
        return None

    def load(self, found: checkpoint.Checkpoint) -> None:
        """Take this stage's layers from a checkpoint, whoever held them before."""
        self.load_tensors(self._read(found))

    def load_weights(self, found: checkpoint.Checkpoint) -> None:
        """Take this stage's layers from a checkpoint without what an optimizer keeps of them: for inference.

        Of weights that have moving averages, these.
        """
        tensors = self._read(found)
        of_network = {key: tensor for key, tensor in tensors.items() if key.startswith(_OF_NETWORKS)}
        self.load_tensors(
            of_network | {f"weight:{name}": tensor for name, tensor in validated_weights(tensors).items()}
        )

    def _read(self, found: checkpoint.Checkpoint) -> dict[str, Tensor]:
        tensors = self._as_trained_here(found.read(self.own.layers))
        for name, buffer in self.runner.buffers().items():
            if not buffer.numel() and f"buffer:{name}" in tensors:  # an observer's: it gets its size in a forward
                buffer.resize_(tensors[f"buffer:{name}"].shape)
        own = checkpoint.as_tensor_map(self.weights.newest.tensors, {}, self._beside_weights())
        found.check_shapes(tensors, own)
        return tensors

    def _as_trained_here(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name weights as this run has them: what the checkpoint's run froze may be trained now, and the reverse."""
        trained, frozen = set(self.weights.names), set(self.runner.constants())
        changed = {f"buffer:{name}": f"weight:{name}" for name in trained}
        changed |= {f"weight:{name}": f"buffer:{name}" for name in frozen}
        named = {changed.get(key, key): tensor for key, tensor in tensors.items()}
        return {
            key: tensor
            for key, tensor in named.items()
            if key.startswith(_OF_NETWORKS) or key.split(":", 1)[1] not in frozen
        }

    def load_tensors(self, tensors: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        """Take this stage's layers from tensors named as in checkpoints, among which there may be others.

        They are copied, unless they are this stage's to `adopt`: weights and optimizer continue with them as they are.
        """
        device = self.position.device  # where the optimizer keeps what it goes on from
        tensors = {key: tensor.to(device) for key, tensor in tensors.items()}
        weights = checkpoint.without_prefix(tensors, "weight:")
        if adopt:
            for name, parameter in self.runner.parameters().items():
                parameter.data = weights[name].detach()  # what it was made with is let go
            self.weights.adopt(weights)
        else:
            self.weights.load(weights)
        state = {key: tensor for key, tensor in tensors.items() if not key.startswith(_NOT_OF_OPTIMIZERS)}
        self.weights.optimizer.load(self.weights.names, state, adopt=adopt)
        if self.moving_average:
            self.moving_average.load(tensors, self.weights.newest.tensors)
        buffers = checkpoint.without_prefix(tensors, "buffer:")
        with torch.no_grad():
            for name, buffer in self._beside_weights().items():
                buffer.copy_(buffers[name])
