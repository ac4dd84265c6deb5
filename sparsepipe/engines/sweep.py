"""Train one minibatch layer by layer, each layer cut off from the others, and time every forward and backward."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.batch import PointBatch
from ..models.rows import INPUT, Row
from .allocator import allocated_bytes
from .subnetwork import Subnetwork


@dataclass(frozen=True)
class Sweep:
    """What one pass over a network took."""

    forward: Mapping[str, float]  # seconds, by layer id
    backward: Mapping[str, float]
    saved_bytes: Mapping[str, int]  # kept by autograd for the backward; empty unless asked for
    input_seconds: float  # putting the minibatch on the device as a sparse tensor
    tensors: Mapping[str, Any]  # every layer's output, and the input under "input"; the input alone unless asked for


def seconds_of(device: torch.device) -> float:
    """Read the clock once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def sweep(subnetwork: Subnetwork, batch: PointBatch, *, device: torch.device, count_saved: bool = False) -> Sweep:
    """Run a whole network forward, then backward in reverse, as a training step does, with a cut at every layer.

    Every layer's output is detached and becomes the leaf that its consumers read, so its gradient is what they sum
    into it; the last output gets a random one. A sweep starts from a fresh coordinate manager: the first layer to need
    coordinates or a kernel map pays for making them, as it does in training. With `count_saved` every tensor that
    is kept for the backward is counted once, for the first layer that keeps it, weights left out, and so are the kernel
    maps that a layer makes; times mean little then.
    """
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    start = seconds_of(device)
    tensors: dict[str, Any] = {INPUT: engine.tensor(batch, device)}
    input_seconds = seconds_of(device) - start
    outputs: dict[str, Tensor] = {}
    forward, backward, saved = {}, {}, {}
    kept = _Kept(subnetwork, tensors[INPUT], device) if count_saved else None
    for row in subnetwork.table:
        with kept.watching() if kept else nullcontext():
            start = seconds_of(device)
            output = subnetwork.run_layer(row, tensors, minibatch=0)
            forward[row.id] = seconds_of(device) - start
        if kept:
            saved[row.id] = kept.by_layer(row, [tensors[name] for name in row.inputs], output)
        outputs[row.id] = engine.features(output)
        tensors[row.id] = engine.replace(output, outputs[row.id].detach().requires_grad_())
    last = subnetwork.table[-1].id
    gradients = {last: _last_gradient(outputs[last])}
    for row in reversed(subnetwork.table):
        output = outputs.pop(row.id)
        # What an uncut step has let go of by now is let go of here too: its memory, still in the caches, is used again.
        leaf = engine.features(tensors[row.id] if count_saved else tensors.pop(row.id))
        gradient, leaf.grad = gradients.pop(row.id, leaf.grad), None
        del leaf
        start = seconds_of(device)
        if output.requires_grad and gradient is not None:
            torch.autograd.backward(output, gradient)
        backward[row.id] = seconds_of(device) - start
    return Sweep(forward, backward, saved, input_seconds, tensors)


def whole_step(subnetwork: Subnetwork, batch: PointBatch, *, device: torch.device) -> float:
    """Return the seconds of one uncut forward and backward pass, from the sparse input to the weights' gradients."""
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    last = subnetwork.table[-1].id
    tensor = engine.tensor(batch, device)
    start = seconds_of(device)
    rows = engine.features(subnetwork({INPUT: tensor}, minibatch=0, keep=(last,))[last])
    torch.autograd.backward(rows, _last_gradient(rows))
    return seconds_of(device) - start


def update_step(optimizer: torch.optim.Optimizer, *, device: torch.device) -> float:
    """Return the seconds of one step of the optimizer by the gradients that the weights have."""
    start = seconds_of(device)
    optimizer.step()
    return seconds_of(device) - start


def _last_gradient(rows: Tensor) -> Tensor:
    """Draw what a loss would send back, about 1 / rows in size: the same for every pass over a minibatch."""
    generator = torch.Generator(rows.device).manual_seed(0)
    return torch.empty_like(rows).normal_(0, 1 / max(len(rows), 1), generator=generator)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Kept:
    """Counts what layers, run one after the other, keep for their backward: each tensor for the first that keeps it."""

    def __init__(self, subnetwork: Subnetwork, input: Any, device: torch.device) -> None:
        self._engine, self._allocated = subnetwork.engine, allocated_bytes(device)
        self._counted = {_storage(tensor) for tensor in subnetwork.state_dict().values()}
        self._there = {*self._counted, _storage(self._engine.features(input))}  # before the layer ran
        self._map_bytes = self._num_bytes = self._new_bytes = self._before = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While a layer runs forward."""
        self._num_bytes, self._new_bytes, self._before = 0, 0, self._allocated()
        with torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor):
            yield

    def by_layer(self, row: Row, inputs: Sequence[Any], output: Any) -> int:
        """Return the bytes that the layer keeps which just ran."""
        grown = self._allocated() - self._before
        self._meet(self._engine.features(output))
        made = max(0, self._engine.map_bytes(output) - self._map_bytes)
        self._map_bytes += made
        if self._engine.keeps_unseen(row):
            made += max(0, grown - self._new_bytes)  # beyond the tensors that are known of
            for tensor in inputs:
                self._count(self._engine.features(tensor))
        return self._num_bytes + made

    def _count(self, tensor: Tensor) -> Tensor:
        self._meet(tensor)
        if _storage(tensor) not in self._counted:
            self._counted.add(_storage(tensor))
            self._num_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def _meet(self, tensor: Tensor) -> None:
        if _storage(tensor) not in self._there:
            self._there.add(_storage(tensor))
            self._new_bytes += tensor.untyped_storage().nbytes()
