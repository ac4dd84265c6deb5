"""Which of several are best if some are as good: a sentence that names one of them would be drawn by lot."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .markup import markdown_text

if TYPE_CHECKING:
    import pandas as pd

TIE = 0.02  # of the best: simulations tell paces no finer than that
EXACT = 5e-4  # of the best: less than tables show of numbers that are told exactly


def ties(values: "Mapping[str, float] | pd.Series", *, least: bool = False, within: float = TIE) -> list[str]:
    """Return the names of the largest value, or of the `least`, and of all `within` that share of it, in their order.

    What is no number (NaN) is never best.
    """
    known = {name: value for name, value in values.items() if value == value}
    if not known:
        return []
    best = min(known.values()) if least else max(known.values())
    return [name for name, value in known.items() if abs(value - best) <= within * abs(best)]


def from_to(low: float, high: float, shown: str) -> str:
    """Return "0.3% to 0.5%", or one number if both are written the same; `shown` is their format, as ".1%"."""
    ends = dict.fromkeys((format(low, shown), format(high, shown)))
    return " to ".join(ends)


def in_bold(names: Iterable[str]) -> str:
    """ "**a**, **b** and **c**", as Markdown: names are shown as they are; "nobody" of none."""
    *others, last = [f"**{markdown_text(name)}**" for name in names] or ["nobody"]
    return f"{', '.join(others)} and {last}" if others else last
