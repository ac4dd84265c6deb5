"""How much memory a rank held at its fullest, beyond what its process held before it had a stage."""

import hashlib
import math
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...engines.allocator import allocated_bytes
from ...util.host.background_load import BackgroundLoad, Usage, load_between, num_processors, worst
from ..processes.process import Process
from ..transport.shared_memory import SharedMemory

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Watches from its making on: CUDA's allocator, or what Linux and glibc say of the process (0 if neither says).

    Of a process only memory of its own counts, not the code of libraries, which come in when they are first called.
    """

    def __init__(self, device: torch.device, shared: SharedMemory | None = None) -> None:
        """`shared`: payloads there that came from other processes are held too."""
        self._device, self._shared = device, shared
        if device.type == "cuda":
            torch.cuda.init()  # before, the allocator knows no device
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
        elif self._readable():
            _RESET.write_text("5")  # forget the peak so far
            now = _status()
            self._before, self._of_files = now["RssAnon"], _of_files(now)
        self._allocated = allocated_bytes(device)
        self._allocated_before = self._allocated()
        self.held_bytes = 0

    def restart(self, shared: SharedMemory | None) -> None:
        """Forget the peak so far, where a rank switches to another plan: what it held before it had a stage stays."""
        self._shared, self.held_bytes = shared, 0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._readable():
            _RESET.write_text("5")

    def look(self) -> None:
        """Take note of what is held now, between two layers or actions.

        The peak has also what comes and goes within a layer, which plans count if their profile has it and, on a CPU,
        what the allocator keeps of freed memory.
        """
        shared = self._shared.held_bytes if self._shared else 0
        self.held_bytes = max(self.held_bytes, self._allocated() - self._allocated_before + shared)

    @contextmanager
    def looking_inside(self, weights: Iterable[Tensor]) -> Iterator[None]:
        """While a backward runs, look whenever one of these has its gradient: what came before it in the network is
        still saved, and the gradients of what came after exist.
        """
        hooks = [weight.register_hook(lambda _: self.look()) for weight in weights if weight.requires_grad]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def bytes(self) -> int:
        """Return the most that was held at once so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        if not self._readable():
            return 0
        now = _status()
        # A system may take pages of files back at any time: those that were there at first count as there at the peak.
        return max(0, now["VmHWM"] - max(_of_files(now), self._of_files) - self._before)

    @staticmethod
    def _readable() -> bool:
        return _STATUS.exists() and _RESET.exists()


def _of_files(status: dict[str, int]) -> int:
    """Bytes of the process that are pages of files or shared: libraries' code, payloads of other processes."""
    return status["RssFile"] + status["RssShmem"]


def _status() -> dict[str, int]:
    """The process's figures in bytes."""
    rows = (line.split() for line in _STATUS.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1] == "kB"}


_SHARES = [item.name for item in fields(BackgroundLoad)]


def shared_load(process: Process, start: Usage, end: Usage) -> dict[str, float | None]:
    """Return the largest of each share over all ranks, from one moment to another. Every rank must come here.

    What ranks of the same host use of its processors is no other load, and is taken together.
    """
    own = torch.zeros(process.world_size, 3, dtype=torch.float64)
    own[process.rank] = torch.tensor([_host(), end.own - start.own, torch.get_num_threads()], dtype=torch.float64)
    hosts, ran, threads = process.sum(own, what="end of an epoch").unbind(dim=1)
    here = hosts == hosts[process.rank]
    load = load_between(start, end, ours=float(ran[here].sum()))
    crowd = float(threads[here].sum()) / num_processors()
    shares = torch.zeros(process.world_size, len(_SHARES), dtype=torch.float64)
    known = [*astuple(load)[:-1], crowd]
    shares[process.rank] = torch.tensor([math.nan if share is None else share for share in known])
    return worst(map(_load, process.sum(shares, what="end of an epoch").tolist())).to_json()


def worst_load(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the largest of each share over the rows of several epochs; rows from before anybody looked know none."""
    return worst(BackgroundLoad.from_json(row.get("load")) for row in rows).to_json()


def _load(shares: Sequence[float]) -> BackgroundLoad:
    return BackgroundLoad(*(None if math.isnan(share) else round(share, 4) for share in shares))


def _host() -> float:
    """Return a number that is the same for ranks which may use the same processors of the same host; exact in 64
    bits.
    """
    told = repr((socket.gethostname(), sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()))
    return float(int.from_bytes(hashlib.sha256(told.encode()).digest()[:6]))
