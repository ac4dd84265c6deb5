"""What of a stage replica is averaged: its newest weights, and its buffers of floating-point numbers."""

from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from ....values.plan import Stage
from ....values.replication.base import Merge
from ...processes.process import Process
from ...training_state.weights import Weights
from ..base import Replication
from .layout import BUFFER, REACHED, WEIGHT, Layout


class Runner(Protocol):
    """What is asked of the runner of a stage's layers."""

    @property
    def is_last(self) -> bool: ...

    def buffers(self) -> dict[str, Tensor]: ...

    def merge_seconds(self, merge: Merge) -> float: ...


class Place(Protocol):
    """What is asked of where a replica stands."""

    @property
    def stage(self) -> int: ...

    @property
    def process(self) -> Process: ...

    @property
    def replication(self) -> Replication: ...


class Replica(Protocol):
    """A stage on one rank, as the worker has it."""

    @property
    def own(self) -> Stage: ...

    @property
    def position(self) -> Place: ...

    @property
    def runner(self) -> Runner: ...

    @property
    def weights(self) -> Weights: ...

    @property
    def writes(self) -> bool:
        """Return whether it is the first of its stage's replicas, which exchanges for all of them."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps of it."""
        ...


class Held:
    """The averaged tensors of a replica, as one vector.

    A version of the weights that a forward has met is never changed: calls come right after an update.
    """

    def __init__(self, replica: Replica, *, of_gradients: bool = False) -> None:
        """`of_gradients`: vectors have gradients in the weights' places, and say which weights have one."""
        self._replica = replica
        self.stage = replica.position.stage
        self._group = replica.position.replication
        layers = replica.own.layers
        self._buffers = [
            name
            for name, buffer in replica.runner.buffers().items()
            if buffer.is_floating_point() and not _of_an_earlier_call(name, layers)
        ]
        weights = replica.weights.newest.tensors if of_gradients else {}
        self._all_reached = {f"{REACHED}{name}": torch.ones(1, device=w.device) for name, w in weights.items()}
        self.layout = Layout(self.tensors() | self._all_reached)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors themselves, named as in checkpoints."""
        buffers = self._replica.runner.buffers()
        found = {f"{WEIGHT}{name}": tensor for name, tensor in self._replica.weights.newest.tensors.items()}
        return found | {f"{BUFFER}{name}": buffers[name] for name in self._buffers}

    def snapshot(self) -> Tensor:
        """Return a copy as they are."""
        return self.layout.flat(self.tensors() | self._all_reached)

    def snapshot_of(self, gradients: list[Tensor | None]) -> Tensor:
        """Return a copy with gradients in the weights' places: zeros if the loss does not reach a weight (None)."""
        tensors = self.tensors()
        for name, gradient in zip(self._replica.weights.names, gradients, strict=True):
            weight = tensors[f"{WEIGHT}{name}"]
            tensors[f"{WEIGHT}{name}"] = torch.zeros_like(weight) if gradient is None else gradient
            tensors[f"{REACHED}{name}"] = torch.tensor([float(gradient is not None)], device=weight.device)
        return self.layout.flat(tensors)

    def gradients(self, flat: Tensor) -> list[Tensor | None]:
        """Return the gradients that a vector has in the weights' places; its buffers become this replica's.

        None for a weight that the loss reaches in no pipeline.
        """
        parts, tensors = self.layout.parts(flat), self.tensors()
        self.layout.copy({name: tensor for name, tensor in tensors.items() if name.startswith(BUFFER)}, flat)
        weights = {name: tensors[f"{WEIGHT}{name}"] for name in self._replica.weights.names}
        return [
            parts[f"{WEIGHT}{name}"].to(weight.device, weight.dtype) if float(parts[f"{REACHED}{name}"]) else None
            for name, weight in weights.items()
        ]

    def apply(self, change: Tensor | None, *, in_place_of: bool = False) -> None:
        """Add a vector to the tensors, or replace them by it, in all replicas of the stage: all come here, and the
        first says what. None: nothing. Raises DeadlinePassed or PeerLost.
        """
        change, in_place_of = self._told(change, in_place_of=in_place_of)
        if change is not None:
            (self.layout.copy if in_place_of else self.layout.add)(self.tensors(), change)

    def told(self, values: Tensor | None) -> Tensor | None:
        """Return what the first replica gives, in all replicas."""
        return self._told(values, in_place_of=False)[0]

    def _told(self, values: Tensor | None, *, in_place_of: bool) -> tuple[Tensor | None, bool]:
        if self._group.num_replicas == 1:
            return values, in_place_of
        device, what = self._replica.position.process.device, "the average between pipelines"
        first = self._replica.own.ranks[0]
        kind = torch.tensor([0 if values is None else 1 + in_place_of], device=device)
        self._group.broadcast(kind, first, what=what)
        if not int(kind):
            return None, False
        values = torch.empty(self.layout.num_elements) if values is None else values
        values = values.to(device)
        self._group.broadcast(values, first, what=what)
        return values, int(kind) == 1 + True


def _of_an_earlier_call(name: str, layers: Collection[str]) -> bool:
    """Return whether a buffer is of a module that is called again here, and for the first time in another stage.

    Then that stage's is averaged: "norm-2" holds "norm.running_mean" alongside "norm".
    """
    place = name.rpartition(".")[0]
    return place not in layers and any(layer.rpartition("-")[0] == place for layer in layers)
