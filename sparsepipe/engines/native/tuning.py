"""Autotuning: the fastest way to convolve on a device, measured once for each class of problem and kept on disk."""

import functools
import json
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from ...data.folder import user_cache
from ...util.io.files import read_whole, write_json
from ...util.io.options import tell

_TURNS = 5  # of each way, after one to warm up
Result = TypeVar("Result")


@functools.cache
def _triton_kernels() -> ModuleType | None:
    try:
        from . import fused
    except ImportError as error:
        tell(f"engine native: no fused kernels on this GPU ({error}); rows are gathered instead")
        return None
    return fused


def fused_kernels(features: Tensor) -> ModuleType | None:
    """Return the fused kernels if they can run on `features`: on CUDA, elsewhere in Triton's interpreter alone."""
    return _triton_kernels() if _runs_triton(features) and features.dtype != torch.float64 else None


def hash_tables(keys: Tensor) -> ModuleType | None:
    """Return the hash table of voxels if it can run on `keys`."""
    if not _runs_triton(keys) or _triton_kernels() is None:
        return None
    from . import fused

    return fused


def _runs_triton(tensor: Tensor) -> bool:
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


class Choices:
    """The fastest way of each class of problem and size on one kind of device, in a file that processes share.

    Sizes count in powers of two. One not measured goes by a neighbour's, so that minibatches of slightly different
    sizes measure nothing again. A damaged file counts as none; one that cannot be written is said once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = self._read()

    def find(self, kind: str, size: int) -> str | None:
        """Return the way chosen for a kind of problem at a size, None if neither it nor a neighbour was measured."""
        known = self._known.get(kind, {})
        return next((known[str(bits)] for bits in _near(size) if str(bits) in known), None)

    def keep(self, kind: str, size: int, way: str) -> None:
        self._known.setdefault(kind, {})[str(size.bit_length())] = way
        on_disk = self._read()
        self._known = {name: on_disk.get(name, {}) | self._known.get(name, {}) for name in {*on_disk, *self._known}}
        try:
            write_json(self.path, self._known)
        except OSError as error:
            warnings.warn(
                f"{self.path}: cannot be written ({error.strerror or error}); kernels are measured again next time",
                stacklevel=2,
            )

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            document = json.loads(read_whole(self.path, own=True))
        except (OSError, ValueError, RecursionError):
            return {}
        whole = isinstance(document, dict) and all(map(_is_measured, document.values()))
        return document if whole else {}


def _is_measured(sizes: object) -> bool:
    return isinstance(sizes, dict) and all(isinstance(way, str) for way in sizes.values())


def _near(size: int) -> tuple[int, int, int]:
    bits = size.bit_length()
    return bits, bits - 1, bits + 1


@functools.cache
def choices_for(device: torch.device) -> Choices:
    """Return the choices of a device: its name and the versions of torch and Triton decide them."""
    kernels = _triton_kernels()
    assert kernels is not None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    facts = re.sub(r"[^\w.+]+", "-", f"{name} torch-{torch.__version__} triton-{kernels.VERSION}")
    return Choices(user_cache() / "kernels" / f"{facts}.json")


def fastest(kind: str, size: int, ways: Mapping[str, Callable[[], Result]], device: torch.device) -> Result:
    """Run a problem the fastest way there is; measure all of them first if that is not known."""
    choices = choices_for(device)
    way = choices.find(kind, size)
    if way is None or way not in ways:
        way = min(ways, key=lambda name: _seconds(ways[name], device))
        choices.keep(kind, size, way)
    return ways[way]()


def _seconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call, compiled and cached. One that does not fit the device takes for ever."""
    kernels, times = _triton_kernels(), []
    assert kernels is not None
    try:
        for _ in range(1 + _TURNS):
            _wait(device)
            start = time.perf_counter()
            function()
            _wait(device)
            times.append(time.perf_counter() - start)
    except kernels.TOO_LARGE:
        return float("inf")
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
