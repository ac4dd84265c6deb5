"""Bytes of tensors that are alive at once while some work runs: the peak of each of its parts."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy
from torch.autograd.profiler import record_function

_MARK = "live bytes: "
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
        if event.kind() == "memory_alloc":
            now += event.cpu_memory_usage()
            parts[-1].most, parts[-1].last = max(parts[-1].most, now), now
        elif event.kind() == "push" and event.name().startswith(_MARK):
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
