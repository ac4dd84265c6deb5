"""Parts that figures share: outlines, an empty figure, room for text."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import plotly.graph_objects as go

from ..colors import SEEN, contrast, edge_of
from ..markup import Html, figure_text
from ..names import TIE
from .dark import GROUND, LIT
from .theme import GREY, finished, tied

THICK = 2  # pixels: a thinner line is dim where a page draws it between its pixels


def outlined(symbol: str, color: str, *, size: float) -> dict[str, Any]:
    """Return a marker of plotly's that is the outline of `symbol`, `size` pixels wide, of a series of `color`."""
    return {"symbol": f"{symbol}-open", "color": outline_of(color), "size": size, "line": {"width": THICK}}


def outline_of(color: str) -> str:
    """The colour of an outline in a series of `color`: the same where it is seen in both themes, else near to it."""
    seen = contrast(color, "#FFFFFF") >= SEEN and contrast(LIT.get(color, color), GROUND) >= SEEN
    return color if seen else edge_of(color)


def category_axis(figure: go.Figure, labels: Sequence[str]) -> None:
    """Write labels below groups of bars, at 0, 1, … on the x axis."""
    figure.update_xaxes(
        tickvals=list(range(len(labels))),
        ticktext=list(labels),
        range=[-0.5, len(labels) - 0.5],
        ticks="",
        showgrid=False,
        tickangle=0,
    )


NOT_HERE = "data set not found"


def nothing_to_draw(title: str, *, note: str = "", text: str = NOT_HERE) -> go.Figure:
    """An empty figure with a line in its middle."""
    figure = go.Figure(go.Scatter(x=[None], y=[None], showlegend=False))
    figure.add_annotation(
        text=figure_text(text), x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"color": GREY}
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return finished(figure, title, note=note, height=220)


# Widths of signs in sizes of the font, of the widest font that figures may have: of DejaVu Sans and Verdana the wider
# one. Arial's are narrower.
_USUAL = 0.64  # a digit's, and that of most small letters
_GROUPS = {
    "ijl'|": 0.28,
    "f ,./:;·" + TIE: 0.37,
    "tr-()[]I": 0.46,
    "sczJ": 0.56,
    "BCEFKLPSTXYZ": 0.7,
    "AGDHNQORUVM": 0.87,
    "w+=×<>~…": 0.84,
    "m@W": 1.0,
    "%": 1.08,
}
_WIDTHS = {sign: width for signs, width in _GROUPS.items() for sign in signs}
_SPACES, _HYPHENS = re.compile(r"(?<= )"), re.compile(r"(?<=[A-Za-z]-)")  # behind which a line may end


def width_of(text: str) -> float:
    """The width of a line of text in sizes of its font."""
    return sum(_WIDTHS.get(sign, _USUAL) for sign in text)


def in_room(text: str, room: float, size: float) -> Html:
    """The text in lines of `room` pixels, its letters `size` pixels high.

    What belongs together stays so, as a name and its count, and a name with hyphens. A word that is wider than the room
    is broken, behind hyphens where it has any.
    """
    words = _SPACES.split(tied(text))
    parted = [[word] if width_of(word.rstrip()) * size <= room else _HYPHENS.split(word) for word in words]
    lines = [""]
    for piece in chain.from_iterable(parted):
        if lines[-1] and width_of((lines[-1] + piece).rstrip()) * size > room:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1]) > 1 and width_of(lines[-1].rstrip()) * size > room:
            most = next(k for k in range(len(lines[-1]) - 1, 0, -1) if k == 1 or width_of(lines[-1][:k]) * size <= room)
            lines[-1:] = [lines[-1][:most], lines[-1][most:]]
    return Html("<br>").join(figure_text(line.rstrip().replace(TIE, " ")) for line in lines)
