"""Bytes that each layer takes for a while, beyond what layers keep for the backward: measured in one training step."""

import copy
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy
from torch.autograd.profiler import record_function

from ..networks.losses import Loss
from ..networks.running import layer_by_layer
from .layer_timer import ends, judged, send_back
from .saved_bytes import Kept

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
    memory_alone = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _no_experiment())
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


def _no_experiment() -> torch._C._profiler._ExperimentalConfig:
    return torch._C._profiler._ExperimentalConfig()


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
