"""Bytes that each layer saves for its backward, and bytes that it takes for a while: counted on one minibatch."""

import copy
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy
from torch.autograd.profiler import record_function

from ..engines.allocator import allocated_bytes
from ..networks.base import LayerRow, layer_by_layer
from ..networks.losses import Loss
from .layer_timer import ends, judged, send_back


class Kept(NamedTuple):
    """Tensors that one layer keeps from its forward to its backward."""

    saved_bytes: int
    map_bytes: int = 0  # of them, kernel maps
    input_bytes: int = 0  # of them, outputs of other layers


def kept_bytes(subnetwork: Any, batch: Any, *, device: torch.device) -> tuple[dict[str, Kept], dict[str, Any]]:
    """Run a whole network forward; return the bytes that each layer keeps, and every value, those of the input too.

    A tensor that is kept is counted once, for the first layer that keeps it, weights left out; the kernel maps that a
    layer makes are counted for it.
    """
    tensors: dict[str, Any] = subnetwork.enter(subnetwork.engine.tensor(batch, device))
    count, saved = _Kept(subnetwork, tensors.values(), device), {}
    for row in subnetwork.table:
        with count.watching():
            values = subnetwork.run_layer(row, tensors, minibatch=0)
        tensors |= values
        saved[row.id] = count.by_layer(row, [tensors[name] for name in row.inputs], list(values.values()))
    return saved, tensors


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Kept:
    """Counts what layers save for backward as they run one after the other: each tensor once, for the first of them."""

    def __init__(self, subnetwork: Any, inputs: Iterable[Any], device: torch.device) -> None:
        self._engine, self._allocated = subnetwork.engine, allocated_bytes(device)
        self._counted = {_storage(tensor) for tensor in subnetwork.state_dict().values()}
        # Before the layer ran.
        self._there = {*self._counted, *(_storage(self._engine.features(input)) for input in inputs)}
        self._outputs: set[int] = set()  # of layers that ran
        self._map_bytes = self._num_bytes = self._input_bytes = self._new_bytes = self._before = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is saved while the `with` block runs one layer's forward."""
        self._num_bytes = self._input_bytes = self._new_bytes = 0
        self._before = self._allocated()
        with torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor):
            yield

    def by_layer(self, row: LayerRow, inputs: Sequence[Any], outputs: Sequence[Any]) -> Kept:
        """Return the bytes saved by the layer that just ran."""
        grown = self._allocated() - self._before
        maps = unseen = 0
        for output in outputs:
            self._meet(self._engine.features(output))
            grew = max(0, self._engine.map_bytes(output) - self._map_bytes)
            self._map_bytes += grew
            maps += grew
        if self._engine.keeps_unseen(row):
            unseen = max(0, grown - self._new_bytes)  # beyond the tensors that are known of
            for tensor in inputs:
                self._count(self._engine.features(tensor))
        self._outputs |= {_storage(self._engine.features(output)) for output in outputs}
        return Kept(self._num_bytes + maps + unseen, maps, self._input_bytes)

    def _count(self, tensor: Tensor) -> Tensor:
        self._meet(tensor)
        if _storage(tensor) not in self._counted:
            self._counted.add(_storage(tensor))
            self._num_bytes += tensor.untyped_storage().nbytes()
            self._input_bytes += tensor.untyped_storage().nbytes() * (_storage(tensor) in self._outputs)
        return tensor

    def _meet(self, tensor: Tensor) -> None:
        if _storage(tensor) not in self._there:
            self._there.add(_storage(tensor))
            self._new_bytes += tensor.untyped_storage().nbytes()


_MARK = "live bytes: "
_JUDGED = "loss"
Mark = Callable[[str], None]


@dataclass(slots=True)
class Part:
    """A part of some work: from its mark to the next one."""

    name: str
    most: int  # bytes alive at its fullest, less those that were alive before all parts
    last: int  # at its end


def live_bytes(work: Callable[[Mark], None], *, device: torch.device) -> list[Part]:
    """Run `work`, which begins a new part by each call of its argument; return its parts, the first one unnamed.

    On a CPU every allocation of torch's counts, also those within an operation; memory of other libraries does not.
    """
    gc.collect()  # what is let go meanwhile is the work's own
    return _on_cuda(work, device) if device.type == "cuda" else _on_cpu(work)


def peak_bytes(work: Callable[[], None], *, device: torch.device) -> int:
    """Return the most bytes of tensors that were alive at once while `work` ran, less those from before."""
    return max(part.most for part in live_bytes(lambda mark: work(), device=device))


def _on_cuda(work: Callable[[Mark], None], device: torch.device) -> list[Part]:
    before = torch.cuda.memory_allocated(device)
    parts = [Part("", 0, 0)]

    def end() -> None:
        parts[-1].most = torch.cuda.max_memory_allocated(device) - before
        parts[-1].last = torch.cuda.memory_allocated(device) - before
        torch.cuda.reset_peak_memory_stats(device)

    def mark(name: str) -> None:
        end()
        parts.append(Part(name, parts[-1].last, parts[-1].last))

    torch.cuda.reset_peak_memory_stats(device)
    work(mark)
    end()
    return parts


def _on_cpu(work: Callable[[Mark], None]) -> list[Part]:
    def mark(name: str) -> None:
        with record_function(_MARK + name):
            pass

    # torch.profiler tells the same, and takes ten seconds to begin: it looks for GPUs and their tools first.
    memory_alone = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
    )
    with _without_warnings():
        _enable_profiler_legacy(memory_alone)
        try:
            work(mark)
        finally:
            threads = _disable_profiler_legacy()
    now, parts = 0, [Part("", 0, 0)]
    for event in (event for events in threads for event in events):
        kind = str(event.kind())  # torch's stubs say that it is an int
        if kind == "memory_alloc":
            now += event.cpu_memory_usage()
            parts[-1].most, parts[-1].last = max(parts[-1].most, now), now
        elif kind == "push" and event.name().startswith(_MARK):
            parts.append(Part(event.name().removeprefix(_MARK), now, now))
    return parts


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Drop what torch writes to stderr: a warning of memory that was taken before and is let go meanwhile."""
    before = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Temporary(NamedTuple):
    """Temporary memory of one layer, beyond what it keeps for its backward."""

    left_bytes: int  # made in its backward, and there until the whole backward is done
    forward_bytes: int  # most alive at once in its forward
    backward_bytes: int


def temporary_bytes(
    subnetwork: Any,
    batch: Any,
    kept: Mapping[str, Kept],
    outputs: Mapping[str, int],
    *,
    device: torch.device,
    loss: Loss | None = None,
) -> dict[str, Temporary]:
    """Train on one minibatch; return what is alive while each layer works, beyond what is known.

    What is known: the bytes `kept` by layers up to this one, of which kernel maps stay until the whole backward is done
    and all else is let go layer by layer; and in its backward the gradients of the weights from this one on. The rest
    is workspace, gradients of features, and features that only a layer to come needs; what the loss takes counts in the
    last layer's forward. `outputs`: bytes of each value.
    """
    step = partial(_step, subnetwork, batch, device=device, loss=loss)
    step(lambda name: None)  # makes what is made once
    parts = live_bytes(step, device=device)
    most, last = dict[str, int](), dict[str, int]()
    for part in parts:
        most[part.name] = max(most.get(part.name, 0), part.most)
        last[part.name] = part.last
    network, table = subnetwork.network, subnetwork.table
    most[f"forward {table[-1].id}"] = max(most[f"forward {table[-1].id}"], most[_JUDGED])
    weights = {layer.id: round(layer.parameter_bytes) for layer in network.graph().layers}
    maps, saved = sum(own.map_bytes for own in kept.values()), sum(own.saved_bytes for own in kept.values())
    saved, all_maps, gradients, left, temporaries = saved - maps, maps, 0, 0, dict[str, Temporary]()
    before = {row.id for row in table}
    for row in reversed(table):
        own, backward = kept[row.id], f"backward {row.id}"
        forward_bytes, backward_bytes, more = max(most[f"forward {row.id}"] - saved - maps, 0), 0, 0
        gradients += weights[row.id]
        before.discard(row.id)
        maps -= own.map_bytes
        known = all_maps + gradients + left
        if backward in most:  # else no gradient reaches it
            backward_bytes = max(most[backward] - saved - known, 0)
            alive = sum(outputs.get(name, 0) for name in network.alive(before))
            more = max(last[backward] - (saved - own.saved_bytes + own.map_bytes) - known - alive, 0)
        saved -= own.saved_bytes - own.map_bytes
        temporaries[row.id] = Temporary(more, forward_bytes, backward_bytes)
        left += more
    return temporaries


def _step(subnetwork: Any, batch: Any, mark: Mark, *, device: torch.device, loss: Loss | None) -> None:
    """Run forward and backward as `time_layers` does; the input counts, too."""
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    mark("input")
    tensors = subnetwork.enter(engine.tensor(copy.deepcopy(batch), device))
    names = [f"forward {id}" for id in subnetwork.layer_ids]
    mark(names[0])
    for following, row in zip(
        [*names[1:], _JUDGED],
        layer_by_layer(subnetwork, tensors, minibatch=0, keep=subnetwork.network.outputs),
        strict=True,
    ):
        for value in row.outputs:
            if value in tensors and engine.features(tensors[value]).requires_grad:
                engine.features(tensors[value]).register_hook(lambda _, id=row.id: mark(f"backward {id}"))
        mark(following)
    outputs = {name: engine.features(tensors[name]) for name in subnetwork.network.outputs}
    scalar = judged(subnetwork, outputs, batch, loss)
    if scalar.requires_grad:
        del tensors, outputs  # as a stage lets go what it put out, once its loss is known
        torch.autograd.backward([scalar], [torch.ones_like(scalar)])
    else:  # of a minibatch without labels
        send_back(ends(subnetwork, tensors), device)
    subnetwork.zero_grad(set_to_none=True)
