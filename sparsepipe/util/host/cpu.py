"""This machine's processors, from Linux' /proc/cpuinfo; elsewhere nothing is known."""

import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path


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
