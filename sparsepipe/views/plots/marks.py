"""Parts that figures share: outlines, an empty figure, room for text, lines across a pane, numbers inside of bars."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import plotly.graph_objects as go

from ...util.text.numbers import Form, alike, as_measured
from ..colors import SEEN, contrast, edge_of
from ..markup import TIE, Html, figure_text
from .dark import GROUND, LIT
from .theme import GREY, SMALL, finished, ink_on, tied

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


_ROOM = 1.07  # of the highest thing drawn: where an axis from 0 ends


def level_line(
    figure: go.Figure, level: float, drawn: Iterable[float], *, line: Mapping[str, Any], **pane: int
) -> None:
    """Draw a line at `level` across a pane (`row`, `col`) whose axis begins at 0 and which shows `drawn`.

    plotly ends an axis at a shape that is higher than all data: the line would lie on the edge.
    """
    figure.add_hline(level, line=dict(line), **pane)
    top = max((value for value in drawn if value == value), default=0.0)  # without NaN
    if level * _ROOM > top:
        figure.update_yaxes(range=[0, _ROOM * max(level, top)], **pane)


LEAST = 8.0  # pixels: smaller digits are not read
_APART = 2  # pixels between two numbers side by side
_LINE = 1.25  # of its size: how high a line is


@dataclass(frozen=True)
class Numbers:
    """Format of the numbers of a figure: the same for all, so that they can be compared."""

    form: Form | None  # None: there is no room for any; tables and what the mouse shows have them
    size: float  # pixels
    angle: int  # degrees: 0, or -90 where they stand upright

    def texts(self, values: Iterable[float]) -> list[str]:
        """As they are written; a value that is not known (NaN) is not."""
        return [self.form(value) if self.form and value == value else "" for value in values]

    def of_bars(self, values: Iterable[float]) -> dict[str, Any]:
        """Arguments of `go.Bar` for values over its bars."""
        return {
            "text": self.texts(values),
            "textposition": "outside",
            "textangle": self.angle,
            "textfont": {"size": self.size},
            "constraintext": "none",
            "cliponaxis": False,
        }

    def height(self, values: Iterable[float]) -> float:
        """Pixels that numbers take above a bar."""
        return self.size * (_LINE if self.angle == 0 else max(map(width_of, self.texts(values)), default=0.0))

    def over(self, x: Sequence[Any], tops: Sequence[float], values: Iterable[float], **place: Any) -> go.Bar:
        """Unseen bars up to `tops`, as whiskers reach them or a line, with values over these."""
        return go.Bar(
            x=x,
            y=tops,
            **place,
            marker={"color": "rgba(0,0,0,0)"},
            showlegend=False,
            hoverinfo="skip",
            **self.of_bars(values),
        )


def fitted(values: Iterable[float], room: float, forms: Sequence[Form], *, size: float = SMALL) -> Numbers:
    """Format of numbers with `room` pixels each.

    In the first of `forms`, which tells most, that is no smaller than `LEAST` pixels there; if none is, in that one
    upright; if even a line is too high for that, not at all.
    """
    shown = [value for value in values if value == value]  # without NaN
    for form in forms:
        widest = max((width_of(form(value)) for value in shown), default=1.0)
        fits = min(size, (room - _APART) / widest)
        if fits >= LEAST:
            return Numbers(form, fits, 0)
    upright = min(size, (room - _APART) / _LINE)
    return Numbers(forms[0], upright, -90) if upright >= LEAST else Numbers(None, LEAST, 0)


def fewer_digits(values: Iterable[float]) -> tuple[Form, ...]:
    """Three digits of the largest, or two."""
    known = list(values)
    return alike(known, 3), alike(known, 2)


def short(value: float) -> str:
    """Few signs: "2.4k" for 2417."""
    thousands = value / 1e3
    return f"{thousands:.{1 if thousands < 9.95 else 0}f}k" if value >= 999.5 else as_measured(value)


SHORTER: tuple[Form, ...] = (as_measured, short)


def numbered(bars: go.Bar, numbers: Sequence[str], *, size: float) -> go.Bar:
    """Return bars of one colour with a number in each ("": none), `size` pixels high, in ink that is read on them."""
    font = {"size": size, "color": ink_on(bars.marker.color)}
    return go.Bar(bars).update(
        text=list(numbers), textposition="inside", insidetextanchor="middle", textangle=0, textfont=font
    )
