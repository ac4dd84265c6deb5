"""Modules that had another name, which settings, records and journals of version 0.2.0 and before may give."""

from collections.abc import Mapping

_MOVED: Mapping[str, str] = {
    "sparsepipe.models": "sparsepipe.networks",
    "sparsepipe.losses": "sparsepipe.networks.losses",
    "sparsepipe.profiler": "sparsepipe.profiling",
    "sparsepipe.replication": "sparsepipe.values.replication",
    "sparsepipe.reproduce": "sparsepipe.study",
}


def module_now(name: str) -> str:
    """Return the dotted name that a module has now; what follows a colon stays."""
    old = next((old for old in _MOVED if name == old or name.startswith((f"{old}.", f"{old}:"))), "")
    return _MOVED[old] + name.removeprefix(old) if old else name
