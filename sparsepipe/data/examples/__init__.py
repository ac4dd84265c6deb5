"""Data sets of examples: images, texts, a user's own. An example is what a network's forward takes, with its target.

Names are imported when first asked for: to tell such a data set from clouds waits for neither torch nor Pillow.
"""

from typing import TYPE_CHECKING

from ...util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import ExampleBatch, ExampleDataset
    from .opening import open_examples
    from .recognising import is_examples

_HOMES = {"ExampleBatch": "base", "ExampleDataset": "base", "is_examples": "recognising", "open_examples": "opening"}

__all__ = ["ExampleBatch", "ExampleDataset", "is_examples", "open_examples"]

__getattr__, __dir__ = lazy_names(globals(), _HOMES)
