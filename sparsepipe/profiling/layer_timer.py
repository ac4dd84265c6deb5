"""Train on one minibatch as a training step does, with a clock at every layer's forward and backward, or without."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..networks.base import AnyNetwork
from ..networks.losses import CrossEntropy, Loss
from ..networks.running import layer_by_layer
from ..runtime.training_state.optimizer import SGD

_ROWS = 4096  # of matrices: enough to have all units at work
_STREAM_BYTES = 512_000_000  # more than any cache


def products(device: torch.device) -> Callable[[], None]:
    """Products of two float32 matrices."""
    a, b = (torch.rand(_ROWS, _ROWS, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def step() -> None:
        torch.mm(a, b, out=out)
        torch.cuda.synchronize(device)

    return step


def copies(device: torch.device) -> Callable[[], None]:
    """Copies from one array to another."""
    source, target = (torch.ones(_STREAM_BYTES // 4, device=device) for _ in range(2))

    def step() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    return step


_MOMENTUM = 0.9


class Updates:
    """Steps on all weights of a module that have gradients: they take their time and leave the weights as they are.

    The optimizer is the runtime's own: torch.optim's classes bring torch's compiler, which takes seconds to import.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = tuple(module.parameters())
        self._optimizer = SGD(momentum=_MOMENTUM, weight_decay=0.0)
        self.begun = False  # once it has, there is what momentum is kept in

    def step(self) -> None:
        weights = [parameter for parameter in self._parameters if parameter.grad is not None]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        with torch.no_grad():
            self._optimizer.step(weights, gradients, 0.0)
        self.begun = True


@dataclass(frozen=True)
class LayerTimes:
    """Times of one forward and backward pass over a network, by layer."""

    forward: Mapping[str, float]  # seconds, by layer id
    backward: Mapping[str, float]
    input_seconds: float  # putting the minibatch on the device as the network takes it

    @property
    def seconds(self) -> float:
        return sum(self.forward.values()) + sum(self.backward.values())


Moment = float | torch.cuda.Event


def moment(device: torch.device) -> Moment:
    """Mark where a device is in its work: on CPUs the clock; on CUDA an event in its stream, which nothing waits for.

    Waiting for the device at every layer would take from a step what launches and kernels gain side by side.
    """
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(start: Moment, end: Moment) -> float:
    """Return the seconds from one moment of a device to a later one, once it has come to that."""
    if isinstance(start, float) or isinstance(end, float):
        assert isinstance(start, float) and isinstance(end, float), "moments of two devices"
        return end - start
    end.synchronize()
    return float(start.elapsed_time(end) / 1e3)


def time_layers(subnetwork: Any, batch: Any, *, device: torch.device) -> LayerTimes:
    """Run a whole network forward and backward, as a training step does, and read the clock at every layer.

    The pass is one call of autograd, as in training: each layer called by itself would pay for a call of its own, some
    25 us. A layer's backward lasts from where the gradient of its output is complete to where that of the next one is,
    which is the layer before it in the table: autograd takes, of the operations whose gradients exist, the one that
    ran last. A layer that no gradient reaches has none; one of several values is reached by the last of theirs. Every
    pass starts from a fresh coordinate manager: the first
    layer to need coordinates or a kernel map pays for making them.
    """
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    before = moment(device)
    tensors = subnetwork.enter(engine.tensor(batch, device))
    put = moment(device)
    forward: dict[str, tuple[Moment, Moment]] = {}
    reached: list[tuple[str, Moment]] = []

    def watch(id: str, value: str) -> None:
        rows = engine.features(tensors[value])
        if rows.requires_grad:
            rows.register_hook(lambda gradient: reached.append((id, moment(device))))

    outputs = subnetwork.network.outputs
    start = moment(device)
    for row in layer_by_layer(subnetwork, tensors, minibatch=0, keep=outputs):
        forward[row.id] = start, moment(device)
        for value in row.outputs:
            if value in tensors:  # else nobody reads it
                watch(row.id, value)
        start = moment(device)
    begin, end = send_back(ends(subnetwork, tensors), device)
    last_reached = dict(reached)  # of a layer with several values, the last one: then its own backward begins
    reached = sorted(last_reached.items(), key=reached.index)
    # A layer that gives out its very input shares its gradient too, which then reaches the two in the layers' order.
    order = [row.id for row in reversed(subnetwork.table) if row.id in last_reached]
    moments = [begin, *(at for _, at in reached[1:]), end]
    backward = dict.fromkeys(subnetwork.layer_ids, 0.0)
    backward.update((id, seconds_between(*both)) for id, both in zip(order, pairwise(moments), strict=True))
    return LayerTimes(
        {id: seconds_between(*both) for id, both in forward.items()}, backward, seconds_between(before, put)
    )


def whole_step(subnetwork: Any, batch: Any, *, device: torch.device) -> float:
    """Return the seconds of one forward and backward pass, from the network's input to the weights' gradients."""
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    entering = subnetwork.enter(engine.tensor(batch, device))
    start = moment(device)
    tensors = subnetwork(entering, minibatch=0, keep=subnetwork.network.outputs)
    forward_end = moment(device)
    backward_start, backward_end = send_back(ends(subnetwork, tensors), device)
    return seconds_between(start, forward_end) + seconds_between(backward_start, backward_end)


def update_step(updates: Updates, *, device: torch.device) -> float:
    """Return the seconds of one update by the gradients that the weights have."""
    start = moment(device)
    updates.step()
    return seconds_between(start, moment(device))


def ends(subnetwork: Any, tensors: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors of a network's output that a loss can send a gradient back from."""
    network: AnyNetwork = subnetwork.network
    output_tensors = [subnetwork.engine.features(tensors[name]) for name in network.outputs]
    return [tensor for tensor in output_tensors if tensor.requires_grad]


def judged(subnetwork: Any, outputs: Mapping[str, Tensor], batch: Any, loss: Loss | None) -> Tensor:
    """Return the loss of a network's outputs; without any given, that of as many classes as there are columns."""
    target = batch.target
    if loss is None:
        (rows,) = outputs.values()
        loss, target = CrossEntropy(rows.shape[1]), torch.arange(len(rows)) % rows.shape[1]
    return loss(subnetwork.result(outputs), target, samples=len(batch))[0]


def send_back(outputs: Sequence[Tensor], device: torch.device) -> tuple[Moment, Moment]:
    """Send back what a loss would, about 1 / rows in size, the same in every pass; return when it began and ended."""
    gradients = []
    for rows in outputs:
        generator = torch.Generator(rows.device).manual_seed(0)
        count = max(len(rows), 1) if rows.dim() else 1
        gradients.append(torch.empty_like(rows).normal_(0, 1 / count, generator=generator))
    begin = moment(device)
    if outputs:
        torch.autograd.backward(list(outputs), gradients)
    return begin, moment(device)
