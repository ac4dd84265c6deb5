"""Numbers inside of bars and above them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from ...util.text.numbers import Form, alike, as_measured
from .marks import width_of
from .theme import SMALL, ink_on

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
