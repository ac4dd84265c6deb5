"""Train one minibatch layer by layer, each layer cut off from the others, and time every forward and backward."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.batch import PointBatch
from ..models.rows import INPUT
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
    autograd keeps is counted once, for the first layer that keeps it, weights left out, and so are the kernel maps that
    a layer makes; times mean little then. What MinkowskiEngine keeps past autograd (the input of a first convolution,
    the winners of a pool, its kernel maps) is not seen.
    """
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    start = seconds_of(device)
    tensors: dict[str, Any] = {INPUT: engine.tensor(batch, device)}
    input_seconds = seconds_of(device) - start
    outputs: dict[str, Tensor] = {}
    forward, backward, saved = {}, {}, {}
    counted = {_storage(tensor) for tensor in subnetwork.state_dict().values()}
    map_bytes = 0
    for row in subnetwork.table:
        hooks = _Saved(counted) if count_saved else None
        with hooks.context() if hooks else nullcontext():
            start = seconds_of(device)
            output = subnetwork.run_layer(row, tensors, minibatch=0)
            forward[row.id] = seconds_of(device) - start
        if hooks:
            grown = max(map_bytes, engine.map_bytes(output))
            saved[row.id] = hooks.num_bytes + grown - map_bytes
            map_bytes = grown
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


def _last_gradient(rows: Tensor) -> Tensor:
    """Draw what a loss would send back, about 1 / rows in size: the same for every pass over a minibatch."""
    generator = torch.Generator(rows.device).manual_seed(0)
    return torch.empty_like(rows).normal_(0, 1 / max(len(rows), 1), generator=generator)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Saved:
    """Counts the bytes of tensors kept for the backward whose storage is not yet in `counted`."""

    def __init__(self, counted: set[int]) -> None:
        self.counted, self.num_bytes = counted, 0

    def context(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self.counted:
            self.counted.add(_storage(tensor))
            self.num_bytes += tensor.untyped_storage().nbytes()
        return tensor
