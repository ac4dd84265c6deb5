"""Markers that are outlines alone, thick and in colours that are seen on light pages and on dark ones."""

from typing import Any

from ..colors import SEEN, contrast, edge_of
from .dark import GROUND, LIT

THICK = 2  # pixels: a thinner line is dim where a page draws it between its pixels


def outlined(symbol: str, color: str, *, size: float) -> dict[str, Any]:
    """Return a marker of plotly's that is the outline of `symbol`, `size` pixels wide, of a series of `color`."""
    return {"symbol": f"{symbol}-open", "color": outline_of(color), "size": size, "line": {"width": THICK}}


def outline_of(color: str) -> str:
    """The colour of an outline in a series of `color`: the same where it is seen in both themes, else near to it."""
    seen = contrast(color, "#FFFFFF") >= SEEN and contrast(LIT.get(color, color), GROUND) >= SEEN
    return color if seen else edge_of(color)
