"""This machine's processors, from Linux' /proc/cpuinfo, and how many OpenMP threads an engine may use on them."""

import os
import platform
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ...errors import InputError
from ..text.numbers import number_of
from .background_load import num_processors


@lru_cache(maxsize=1)
def facts() -> dict[str, str]:
    """Return what `/proc/cpuinfo` says of the first processor, by its keys; empty if there is none."""
    try:
        return parsed(Path("/proc/cpuinfo").read_text())
    except OSError:  # not Linux
        return {}


def parsed(cpuinfo: str) -> dict[str, str]:
    """Return the first value of each key in the text of `/proc/cpuinfo`."""
    found: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def name() -> str:
    """The processor's name; empty if the system does not say."""
    return named(facts()) or platform.processor()


def named(told: Mapping[str, str]) -> str:
    """Return the name in a processor's facts, with family and model where it is that of a whole line of them.

    Virtual machines say "AMD EPYC" of generations of which one is twice as fast as another.
    """
    found = told.get("model name", "")
    if not found or any(letter.isdigit() for letter in found) or "cpu family" not in told:
        return found
    return f"{found} (family {told['cpu family']}, model {told.get('model', '?')})"


WAITING = "OMP_WAIT_POLICY"


def waiting(engine: str, threads: int) -> dict[str, str]:
    """Return the variables to add to the environment of a process that runs an engine (its name) on `threads` threads.

    MinkowskiEngine's OpenMP threads wait by spinning, and so take the processors from those of its BLAS library: if
    there are several they are asked to sleep, unless the environment says already how they wait. "auto" is
    MinkowskiEngine if it is installed and native has no machine code, as far as is known without torch.
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
    return "avx2" in facts().get("flags", "").split() and find_spec("llvmlite") is not None


def check_threads(threads: int | None) -> None:
    """Raise InputError for more threads than this process may use cores: they would only take turns."""
    cores = num_processors()
    if threads is not None and threads > cores:
        raise InputError(
            "threads.too_many",
            f"{{threads}} is {threads}, but this process can use {number_of(cores, 'core')}; expected 1 to {cores}",
            setting="threads",
        )
