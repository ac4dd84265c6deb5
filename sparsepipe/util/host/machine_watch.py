"""What the machine says while a process computes: metrics by name, the same names every time on one machine.

The processor's own counters of one process: instructions and cache misses, where the kernel lets us read them.

perf_event_open(2). Virtual machines often have none, and /proc/sys/kernel/perf_event_paranoid may forbid it.
"""

import ctypes
import os
import platform
import re
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import InputError
from .background_load import cpu_seconds, processor_seconds, processors_of, thread_times

_FOLDER = Path("/proc/pressure")
_TOTAL = re.compile(r"(some|full) .*\btotal=(\d+)")
_PROC = Path("/proc")
_SWITCHES = {"voluntary_ctxt_switches": "given up", "nonvoluntary_ctxt_switches": "taken off"}
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE = 0
_COUNTERS = {"instructions": 1, "cache misses": 3}
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0
_NAMES = ("libnvidia-ml.so.1", "nvml.dll")

_LEAST_SECONDS = 1e-3


class MachineWatch:
    """Watches the machine from the place of one process (its id; this one's where none is given).

    `read` gives the metrics since the last `read`, or since the watch was made. `ours`: ids of processes at the same
    work, which are no intruders. `gpu`: the UUID of the process's GPU, or its number among NVML's, to add its gauges.
    """

    def __init__(self, pid: int | None = None, *, ours: Collection[int] = (), gpu: int | str | None = None) -> None:
        self.pid, self._ours, self._gpu = pid or os.getpid(), tuple(ours), gpu
        self._cache = CacheCounters(self.pid)
        self._at, self._before = time.monotonic(), self._totals()

    def read(self) -> dict[str, float]:
        """Return shares of time and numbers a second since the last reading, by name.

        `waited`: of the time in which the process could work, without a processor. `ran`: processors' worth of its own
        work. `busy`, `busy anywhere`: of others' work where it may run, and on all processors. `pressure …`: shares of
        time in which tasks stalled. Raises InputError for a process that is gone.
        """
        now, totals = time.monotonic(), self._totals()
        if not totals.get("ran") and self._before.get("ran"):
            raise InputError("watch.process_gone", f"process {self.pid} has ended; give the id of a running process")
        seconds = max(_LEAST_SECONDS, now - self._at)
        grown = {name: max(0.0, total - self._before.get(name, total)) for name, total in totals.items()}
        self._at, self._before = now, totals
        return {**_metrics(grown, seconds), **(gpu_metrics(self._gpu) if self._gpu is not None else {})}

    def close(self) -> None:
        self._cache.close()

    def __enter__(self) -> "MachineWatch":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            self.close()

    def _totals(self) -> dict[str, float]:
        """Counters that only grow, by name."""
        return {
            **scheduled(self.pid, self._ours),
            **{f"pressure {name}": seconds for name, seconds in stalled_seconds().items()},
            **self._cache.read(),
        }


def _metrics(grown: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Turn what counters grew by into shares and rates."""
    if "ran" not in grown:
        return {name: total / seconds for name, total in grown.items()}
    able = grown["ran"] + grown["waited"]
    rates = {name: total / seconds for name, total in grown.items() if name != "waited"}
    return {"waited": grown["waited"] / able if able else 0.0, **rates}


def stalled_seconds(folder: Path = _FOLDER) -> Mapping[str, float]:
    """Return the seconds since boot in which some, or all, tasks waited for each resource; empty if none is reported.

    The names are such as "cpu some". "cpu full" is left out: it means nothing for a whole machine.
    """
    found = {}
    for resource in ("cpu", "memory", "io"):
        try:
            text = (folder / resource).read_text()
        except OSError:  # another system, or a kernel without it
            continue
        for which, microseconds in _TOTAL.findall(text):
            if (resource, which) != ("cpu", "full"):
                found[f"{resource} {which}"] = int(microseconds) / 1e6
    return found


def scheduled(pid: int, ours: Collection[int] = ()) -> Mapping[str, float]:
    """Return totals of a process and of the processors that it may use, as far as the system reports them.

    "ran" and "waited": seconds of its threads on processors and in the run queue. "busy" and "stolen": seconds of its
    processors at work for others than it and `ours` (ids), and given to other virtual machines; "busy anywhere": of all
    processors. "given up" and "taken off": how often its threads left a processor, by themselves or not.
    """
    threads = thread_times(pid)
    if not threads:
        return {}
    found: dict[str, float] = {
        "ran": sum(ran for ran, _ in threads.values()),
        "waited": sum(wait for _, wait in threads.values()),
    }
    own = processors_of(pid)
    used = {other: cpu_seconds(other) for other in ours}
    beside = sum(seconds for other, seconds in used.items() if processors_of(other) & own)
    busy, stolen = processor_seconds(own)
    anywhere, _ = processor_seconds(range(os.cpu_count() or 1))
    if busy is not None and stolen is not None and anywhere is not None:
        found |= {"busy": busy - found["ran"] - beside, "stolen": stolen}
        found |= {"busy anywhere": anywhere - found["ran"] - sum(used.values())}
    return {**found, **_switches(pid)}


def _switches(pid: int) -> Mapping[str, float]:
    found: dict[str, float] = {}
    with suppress(OSError):
        for folder in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError):  # a thread that has just ended
                for line in (folder / "status").read_text().splitlines():
                    key, _, value = line.partition(":")
                    if key in _SWITCHES:
                        found[_SWITCHES[key]] = found.get(_SWITCHES[key], 0.0) + int(value)
    return found


_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6


class CacheCounters:
    """Counters of a process: its main thread, and what that starts from now on."""

    def __init__(self, pid: int) -> None:
        self._descriptors: dict[str, int] = {}
        for name, number in _COUNTERS.items():
            descriptor = _opened(pid, number)
            if descriptor >= 0:
                self._descriptors[name] = descriptor

    def read(self) -> Mapping[str, float]:
        """Return the totals since the counters were made, by name; empty if there are none."""
        found = {}
        for name, descriptor in self._descriptors.items():
            with suppress(OSError, struct.error):
                found[name] = float(struct.unpack("Q", os.read(descriptor, 8))[0])
        return found

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


def _opened(pid: int, number: int) -> int:
    """Return a descriptor of one counter, below 0 if the kernel or the processor refuses."""
    call = _SYSCALL.get(platform.machine())
    if call is None or platform.system() != "Linux":
        return -1
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    attributes = struct.pack("IIQQQQQ", _HARDWARE, _ATTRIBUTE_BYTES, number, 0, 0, 0, flags).ljust(
        _ATTRIBUTE_BYTES, b"\0"
    )
    library = ctypes.CDLL(None, use_errno=True)
    any_processor, no_group, closed_on_exec = -1, -1, 8
    return int(
        library.syscall(
            ctypes.c_long(call),
            ctypes.c_char_p(attributes),
            ctypes.c_int(pid),
            ctypes.c_int(any_processor),
            ctypes.c_int(no_group),
            ctypes.c_ulong(closed_on_exec),
        )
    )


_GRAPHICS_CLOCK, _SM_CLOCK, _MEMORY_CLOCK = 0, 1, 2
_TRANSMITTED, _RECEIVED = 0, 1  # PCIe, kB/s over the last 20 ms


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


@lru_cache(maxsize=1)
def library() -> Any:
    """Return NVML, initialised; None on a machine without it."""
    for name in _NAMES:
        try:
            found = ctypes.CDLL(name)
            if found.nvmlInit_v2() == 0:
                return found
        except (OSError, AttributeError):
            continue
    return None


def gpu_metrics(gpu: int | str, nvml: Any = None) -> Mapping[str, float]:
    """Return what a GPU says of now; empty without NVML, or without that GPU.

    `gpu` is its UUID, as torch and `nvidia-smi -L` tell it, or its number among NVML's, which need not be CUDA's. A
    gauge that this GPU does not have is left out. Utilizations are of the last sampling period, 1/6 s to 1 s. `nvml`:
    the library, if it is another than this machine's.
    """
    nvml = nvml or library()
    handle = _handle(nvml, gpu) if nvml is not None else None
    if handle is None:
        return {}
    found: dict[str, float] = {}
    used = _Utilization()
    if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)) == 0:
        found |= {"gpu busy share": used.gpu / 100, "gpu memory busy share": used.memory / 100}
    memory = _Memory()
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 and memory.total:
        found["gpu memory used share"] = memory.used / memory.total
    number = ctypes.c_uint()
    if nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(number)) == 0:
        found["gpu watts"] = number.value / 1e3
    for name, clock in (("graphics", _GRAPHICS_CLOCK), ("sm", _SM_CLOCK), ("memory", _MEMORY_CLOCK)):
        if nvml.nvmlDeviceGetClockInfo(handle, ctypes.c_int(clock), ctypes.byref(number)) == 0:
            found[f"gpu {name} clock MHz"] = float(number.value)
    for name, counter in (("sent", _TRANSMITTED), ("received", _RECEIVED)):
        if nvml.nvmlDeviceGetPcieThroughput(handle, ctypes.c_int(counter), ctypes.byref(number)) == 0:
            found[f"gpu pcie {name} kB/s"] = float(number.value)
    return found


def _handle(nvml: Any, gpu: int | str) -> ctypes.c_void_p | None:
    """The library's own name of a GPU; None if there is no such one."""
    handle = ctypes.c_void_p()
    if isinstance(gpu, int):
        found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(gpu), ctypes.byref(handle)) == 0
        return handle if found else None
    known = gpu.removeprefix("GPU-").removeprefix("MIG-")
    for kind in ("GPU-", "MIG-"):  # a whole one, or an instance of one that is divided
        if nvml.nvmlDeviceGetHandleByUUID((kind + known).encode(), ctypes.byref(handle)) == 0:
            return handle
    return None
