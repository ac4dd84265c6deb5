"""Sparse engines by name. Only the chosen engine is imported, so that no engine is needed to use another."""

import sys
from collections.abc import Callable

from ..errors import InputError
from .allocator import keep_freed_memory
from .base import CoordinateSet, Engine, Feature, Parts
from .subnetwork import Subnetwork

__all__ = ["ENGINES", "CoordinateSet", "Engine", "Feature", "Parts", "Subnetwork", "engine"]


def _native() -> Engine:
    from .native import NativeEngine

    return NativeEngine()


def _minkowski() -> Engine:
    try:
        from .minkowski import MinkowskiEngine
    except ImportError as error:
        raise InputError(
            f"engine 'minkowski' does not import here ({error}): install MinkowskiEngine 0.5.4 or use 'native'"
        ) from error
    return MinkowskiEngine()


def _auto() -> Engine:
    try:
        chosen, why = _minkowski(), "MinkowskiEngine imports"
    except InputError:
        chosen, why = _native(), "MinkowskiEngine does not import here"
    print(f"engine: {chosen.name} ({why})", file=sys.stderr)
    return chosen


ENGINES: dict[str, Callable[[], Engine]] = {"native": _native, "minkowski": _minkowski, "auto": _auto}


def engine(name: str) -> Engine:
    """Return an engine by name; "auto" is minkowski where it imports, else native, and says which on stderr.

    Raises InputError for an unknown name, and for an engine that does not import.
    """
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}, expected one of {', '.join(ENGINES)}")
    keep_freed_memory()
    return ENGINES[name]()
