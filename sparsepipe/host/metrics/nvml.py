"""What an NVIDIA GPU says of itself, by the library that comes with its driver (NVML); nothing where there is none."""

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_NAMES = ("libnvidia-ml.so.1", "nvml.dll")
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
    the library, where it is another than this machine's.
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
    """The library's own name of a GPU; None where there is no such one."""
    handle = ctypes.c_void_p()
    if isinstance(gpu, int):
        found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(gpu), ctypes.byref(handle)) == 0
        return handle if found else None
    known = gpu.removeprefix("GPU-").removeprefix("MIG-")
    for kind in ("GPU-", "MIG-"):  # a whole one, or an instance of one that is divided
        if nvml.nvmlDeviceGetHandleByUUID((kind + known).encode(), ctypes.byref(handle)) == 0:
            return handle
    return None
