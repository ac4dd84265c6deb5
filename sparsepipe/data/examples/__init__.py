"""Data sets of examples: images, texts, a user's own. An example is what a network's forward takes, with its target.

Names are imported when first asked for: to tell such a data set from clouds waits for neither torch nor Pillow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import ExampleBatch, ExampleDataset
    from .opening import open_examples
    from .recognising import is_examples

_HOMES = {"ExampleBatch": "base", "ExampleDataset": "base", "is_examples": "recognising", "open_examples": "opening"}

__all__ = ["ExampleBatch", "ExampleDataset", "is_examples", "open_examples"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
