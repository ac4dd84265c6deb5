"""Times of training steps on one minibatch: of every layer, of whole steps, and repeated until they are certain."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..networks.base import AnyNetwork, layer_by_layer
from ..networks.losses import CrossEntropy, Loss
from ..runtime.training_state.optimizer import SGD
from ..util.host.background_load import RUN_QUEUE_WAIT, thread_times, waited_share
from ..values.profile import AGREEMENT

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


_ENOUGH_SECONDS = 0.5  # what passes take together at least, if that is not more than the most of them
_AGAIN_SECONDS = 2.0  # what is taken again at most, where that is more than the least of passes


@dataclass(frozen=True)
class Round:
    """One repeat: a pass timed layer by layer, if asked a whole step timed at once, and an update after each."""

    layers: LayerTimes
    whole: float | None  # seconds
    updates: tuple[float, ...]  # seconds each
    waited_share: float | None  # of the time in which its threads could work: without a processor


@dataclass(frozen=True)
class Repeats:
    """The repeats on one minibatch that count, and how many were repeated because of other load."""

    rounds: tuple[Round, ...]
    num_again: int = 0

    @property
    def median(self) -> LayerTimes:
        """The median of every time over the rounds."""
        passes = [one.layers for one in self.rounds]
        forward, backward = (
            {id: statistics.median(one[id] for one in way) for id in way[0]}
            for way in ([one.forward for one in passes], [one.backward for one in passes])
        )
        return LayerTimes(forward, backward, statistics.median(one.input_seconds for one in passes))

    @property
    def layers_over_whole(self) -> float | None:
        """The sum of the layers' median seconds over the median of whole steps, if there were any."""
        wholes = [one_round.whole for one_round in self.rounds if one_round.whole is not None]
        return self.median.seconds / statistics.median(wholes) if wholes else None


@dataclass(frozen=True)
class Repeater:
    """Repetitions of steps on one network: `least` times, and up to `most` until their times are certain.

    Steps are known once half a second has gone into them and the layers agree with whole steps, as a disturbance
    passes. `crowded`: our own threads are more than the processors, so that they wait for each other in every round.
    """

    subnetwork: Any  # a StageModule of the whole network
    updates: Updates
    device: torch.device
    least: int
    most: int
    crowded: bool = False

    def repeat(self, batch: object, *, whole: bool) -> Repeats:
        """Take rounds on one minibatch, `whole` steps among them if asked.

        Rounds whose threads waited for a processor are taken again: as often as the least that counts, or for two
        seconds. What is delayed after that counts all the same.
        """
        rounds: list[Round] = []
        again: list[Round] = []
        while len(rounds) < self.least or (len(rounds) < self.most and not _enough(rounds)):
            one = self._round(batch, whole=whole)
            (again if self._held_up(one) and self._may_drop(again) else rounds).append(one)
        return Repeats(tuple(rounds), len(again))

    def _round(self, batch: object, *, whole: bool) -> Round:
        # In turns, so that what else the machine does meets both, and each after an update, as in training: what it
        # wrote takes the place of much that a small network would find in the caches.
        before = thread_times()
        layers = time_layers(self.subnetwork, batch, device=self.device)
        if not self.updates.begun:
            self.updates.step()  # makes what momentum is kept in
        updates = [update_step(self.updates, device=self.device)]
        seconds = None
        if whole:
            seconds = whole_step(self.subnetwork, batch, device=self.device)
            updates.append(update_step(self.updates, device=self.device))
        return Round(layers, seconds, tuple(updates), waited_share(before, thread_times()))

    def _held_up(self, one: Round) -> bool:
        return not self.crowded and one.waited_share is not None and one.waited_share > RUN_QUEUE_WAIT

    def _may_drop(self, again: Sequence[Round]) -> bool:
        return len(again) < self.least or (len(again) < self.most and _seconds(again) < _AGAIN_SECONDS)


def _enough(rounds: Sequence[Round]) -> bool:
    """Return whether short steps were repeated, and whether the layers agree with whole steps."""
    ratio = Repeats(tuple(rounds)).layers_over_whole
    return _seconds(rounds) >= _ENOUGH_SECONDS and (ratio is None or abs(ratio - 1) <= AGREEMENT)


def _seconds(rounds: Sequence[Round]) -> float:
    return sum(one_round.layers.seconds for one_round in rounds)
