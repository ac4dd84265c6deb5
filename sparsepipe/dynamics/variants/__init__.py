"""Variants: ways to answer devices that change while a job runs, a row each in VARIANTS.

A new one is a file here and its row.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...io.fields import shown
from .base import Situation, Variant
from .epoch import Epoch
from .live import Live
from .measured import Measured
from .never import Never
from .predicted import Predicted

VARIANTS: Mapping[str, type[Any]] = {cls.name: cls for cls in (Never, Epoch, Measured, Predicted, Live)}


def variant(name: str) -> Variant:
    """The variant of a name. Raises InputError for one that is none."""
    if name not in VARIANTS:
        raise InputError(f"replan {shown(name)}: expected one of {', '.join(VARIANTS)}")
    found: Variant = VARIANTS[name]()
    return found


__all__ = ["VARIANTS", "Situation", "Variant", "variant"]
