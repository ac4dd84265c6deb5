"""How many OpenMP threads an engine may use, and whether they spin or sleep: set before torch is imported."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from ...errors import InputError
from ..text.counting import number_of
from . import cpu
from .background_load import num_processors

WAITING = "OMP_WAIT_POLICY"


def waiting(engine: str, threads: int) -> dict[str, str]:
    """Return the variables to add to the environment of a process that runs an engine (its name) on `threads` threads.

    MinkowskiEngine's OpenMP threads wait by spinning, and so take the processors from those of its BLAS library: if
    there are several they are asked to sleep, unless the environment says already how they wait. "auto" is
    MinkowskiEngine where that is installed and native has no machine code, as far as is known without torch.
    """
    said = {WAITING, "GOMP_SPINCOUNT"} & os.environ.keys()
    return {WAITING: "passive"} if threads > 1 and engine in _SPIN and _SPIN[engine]() and not said else {}


_SPIN: Mapping[str, Callable[[], bool]] = {  # engines whose threads spin, and whether they do on this machine
    "minkowski": lambda: True,
    "auto": lambda: not _has_machine_code() and find_spec("MinkowskiEngine") is not None,
}


def _has_machine_code() -> bool:
    """Return whether the native engine's machine code can be expected: a processor with AVX2, and llvmlite to compile
    it.
    """
    return "avx2" in cpu.facts().get("flags", "").split() and find_spec("llvmlite") is not None


def check_threads(threads: int | None) -> None:
    """Raise InputError for more threads than this process may use cores: they would only take turns."""
    cores = num_processors()
    if threads is not None and threads > cores:
        raise InputError(
            "threads.too_many",
            f"{{threads}} is {threads}, but this process can use {number_of(cores, 'core')}; expected 1 to {cores}",
            setting="threads",
        )
