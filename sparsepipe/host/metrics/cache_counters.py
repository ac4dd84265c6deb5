"""The processor's own counters of one process: instructions and cache misses, where the kernel lets us read them.

perf_event_open(2). Virtual machines often have none, and /proc/sys/kernel/perf_event_paranoid may forbid it.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from contextlib import suppress

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE = 0
_COUNTERS = {"instructions": 1, "cache misses": 3}
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0
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
        """Return the totals since the counters were made, by name; empty where there are none."""
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
    """Return a descriptor of one counter, below 0 where the kernel or the processor refuses."""
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
