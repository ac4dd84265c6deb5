"""Sparse engines by name. Only the chosen engine is imported, so that no engine is needed to use another.

Classes are imported when first asked for, so that the names of engines are known without torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import InputError
from ..util.io.options import tell
from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import CoordinateSet, Engine, Feature, Parts
    from .native.space import scene_parts
    from .pointcept import from_pointcept
    from .subnetwork import Subnetwork

_HOMES = {
    "CoordinateSet": "base",
    "Engine": "base",
    "Feature": "base",
    "Parts": "base",
    "Subnetwork": "subnetwork",
    "from_pointcept": "pointcept",
    "scene_parts": "native.space",
}

__all__ = [
    "AUTO",
    "ENGINES",
    "CoordinateSet",
    "Engine",
    "Feature",
    "Parts",
    "Subnetwork",
    "engine",
    "from_pointcept",
    "scene_parts",
]


def _native() -> "Engine":
    from .native import NativeEngine

    return NativeEngine()


def _minkowski() -> "Engine":
    try:
        from .minkowski import MinkowskiEngine
    except ImportError as error:
        raise InputError(
            "engine.not_importable",
            f"engine 'minkowski' cannot be imported ({error}); install MinkowskiEngine 0.5.4, or use 'native'",
        ) from error
    return MinkowskiEngine()


def _spconv() -> "Engine":
    try:
        from .spconv import SpconvEngine
    except ImportError as error:
        raise InputError(
            "engine.not_importable",
            f"engine 'spconv' cannot be imported ({error}); install sparsepipe[spconv]",
        ) from error
    return SpconvEngine()


def _auto() -> "Engine":
    from .native import direct

    lanes, why_none = direct.compiled()
    if lanes:
        chosen, why = _native(), "native has machine code for this processor"
    else:
        try:
            chosen, why = _minkowski(), f"native has no machine code here: {why_none}"
        except InputError:
            chosen, why = _native(), "MinkowskiEngine cannot be imported"
    tell(f"engine: {chosen.name} ({why})")
    return chosen


def _torch() -> "Engine":
    from .plain import PlainEngine

    return PlainEngine()


AUTO = "auto"  # the one that suits this machine
ENGINES: dict[str, Callable[[], "Engine"]] = {
    "torch": _torch,
    "native": _native,
    "minkowski": _minkowski,
    "spconv": _spconv,
    AUTO: _auto,
}


def engine(name: str) -> "Engine":
    """Return an engine by name; "auto" says which it is, and why.

    It is native where that has machine code for the processor; else minkowski, which is then the faster one, if it
    imports; else native.

    Raises InputError for an unknown name, and for an engine that does not import.
    """
    from .allocator import keep_freed_memory

    if name not in ENGINES:
        raise InputError("engine.unknown", f"unknown engine {name!r}, expected one of {', '.join(ENGINES)}", name=name)
    keep_freed_memory()
    return ENGINES[name]()


__getattr__, __dir__ = lazy_names(globals(), _HOMES)
