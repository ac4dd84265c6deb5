"""The time of each minibatch over a run, a panel a variant: what an intruder costs, and what is done about it."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...util.text.numbers import time_unit
from ..markup import Html, figure_text
from .nothing import nothing_to_draw
from .theme import GREY, INK, RUN_COLORS, SMALL, WIDTH, finished

Series = Mapping[str, Sequence[tuple[int, float]]]  # variant → (iteration, seconds)
Marks = Mapping[str, Sequence[tuple[int, str]]]  # variant → (iteration, what happened)
_CURVES, _BETWEEN, _AROUND = 84, 16, 120  # pixels: what lines have of a panel, between panels, above and below all
_LANE, _GLYPH = 14, 5.6  # pixels: a line of words above the lines, a character of them
_LANES = 3  # of words, at most: marks whose words have no room there are lines alone
_RIGHT = 90  # pixels for names on the right
_WIDTH = WIDTH - 70 - _RIGHT  # pixels of an axis, about
_COUNT = " × "  # between what a mark says and how often it is there
_APART = 0.07  # of the axis: marks of one text that are closer to each other have it once, with their number


class _Label(NamedTuple):
    """Words at a mark, in a lane above the lines: 0 is the lowest."""

    at: int
    text: str
    lane: int


def iteration_times_table(series: Series, marks: Marks | None = None) -> pd.DataFrame:
    """One row for each iteration of each variant, with what happened at it."""
    happened = {name: dict(told) for name, told in (marks or {}).items()}
    rows = [
        {"variant": name, "iteration": at, "seconds": seconds, "mark": happened.get(name, {}).get(at, "")}
        for name, points in series.items()
        for at, seconds in points
    ]
    return pd.DataFrame(rows, columns=["variant", "iteration", "seconds", "mark"])


def iteration_times(series: Series, marks: Marks | None = None, *, title: str = "", note: str = "") -> go.Figure:
    """Draw every variant's times by iteration below each other, on the same axes; vertical lines are marks.

    Nothing is smoothed or left out. A time beyond 1.5 times what 99 of 100 iterations take is drawn as that: what
    it is is said where the mouse rests, and by the table. What marks say stands above all lines, as far as there is
    room: the table has all of it.
    """
    title = title or "Time per minibatch, by variant"
    if not series:
        return nothing_to_draw(title, note=note)
    names, table = list(series), iteration_times_table(series)
    top, span = 1.5 * table.seconds.quantile(0.99), max(1, table.iteration.max() - table.iteration.min())
    found = {name: _told(_texts((marks or {}).get(name, ()), span), span) for name in names}
    words, silent = {name: labels for name, (labels, _) in found.items()}, any(left for _, left in found.values())
    counted = any(_COUNT in label.text for labels in words.values() for label in labels)
    height = _CURVES + _LANE * max((label.lane + 1 for labels in words.values() for label in labels), default=0)
    whole = height * len(names) + _BETWEEN * (len(names) - 1)
    unit, scale = time_unit(top)
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=_BETWEEN / whole)
    for row, name in enumerate(names, start=1):
        color, points = RUN_COLORS[(row - 1) % len(RUN_COLORS)], series[name]
        line = go.Scatter(
            x=[at for at, _ in points],
            y=[scale * min(seconds, top) for _, seconds in points],
            customdata=[scale * seconds for _, seconds in points],
            mode="lines",
            name=name,
            showlegend=False,
            line={"color": color, "width": 1},
            hovertemplate=Html("{}<br>minibatch %{{x}}: %{{customdata:,.4r}} {}<extra></extra>").format(name, unit),
        )
        figure.add_trace(line, row=row, col=1)
        seen = scale * top * height / _CURVES
        axis = Html("time per<br>minibatch ({})").format(unit)  # in two lines: a panel is low
        figure.update_yaxes(title_text=axis, range=[0, seen], tickvals=_ticks(scale * top), row=row, col=1)
        _named(figure, row, name, color, scale * top)
        _mark(figure, row, (marks or {}).get(name, ()), words[name], scale * top)
    figure.update_xaxes(title_text="minibatch", row=len(names), col=1)
    figure.update_layout(margin_r=_RIGHT)
    said = {text for of_one in (marks or {}).values() for _, text in of_one}
    told = [
        "vertical lines: events" if said else "",
        "numbers at the lines: layers of each stage in the new plan" if any(map(_tells_layers, said)) else "",
        "× N: one label for N lines" if counted else "",
        "unlabelled lines are listed in the table" if silent else "",
    ]
    return finished(figure, title, note=" · ".join(filter(None, [note, *told])), height=_AROUND + whole)


def _tells_layers(mark: str) -> bool:
    return re.match(r"\d+( \(|-|, \d)", mark) is not None


def _ticks(top: float) -> list[float]:
    """At most four whole steps of 1, 2 or 5 times a power of ten from 0 on: as far as the lines may reach."""
    steps = (digit * 10.0**power for power in range(-9, 9) for digit in (1, 2, 5))
    step = next((each for each in steps if top <= 4.5 * each), top)
    return [round(k * step, 9) for k in range(int(top / step) + 1)] if top > 0 else [0.0]


def _axis(letter: str, row: int) -> str:
    return letter if row == 1 else f"{letter}{row}"


def _named(figure: go.Figure, row: int, name: str, color: str, top: float) -> None:
    """The variant's name at the right of its lines, if no mark can be."""
    figure.add_annotation(
        x=1.01,
        xref=f"{_axis('x', row)} domain",
        y=top,
        yref=_axis("y", row),
        xanchor="left",
        yanchor="top",
        text=Html("<b>{}</b>").format(figure_text(name)),
        showarrow=False,
        font={"color": color, "size": SMALL + 1},
    )


def _texts(marks: Sequence[tuple[int, str]], span: float) -> list[tuple[int, str]]:
    """What marks say, each text of a group of close ones once."""
    groups: list[list[tuple[int, str]]] = []
    for at, text in sorted(marks, key=lambda mark: mark[0]):
        if groups and at - groups[-1][0][0] < _APART * span:
            groups[-1].append((at, text))
        else:
            groups.append([(at, text)])
    found: list[tuple[int, str]] = []
    for group in groups:
        counts = Counter(text for _, text in group)
        first = {text: at for at, text in reversed(group)}
        found += [(first[text], text if count == 1 else f"{text}{_COUNT}{count}") for text, count in counts.items()]
    return found


def _told(texts: Sequence[tuple[int, str]], span: float) -> tuple[list[_Label], bool]:
    """The texts that have room in so many lanes, and whether some have none: layers are left out first."""
    labels = _in_lanes(texts, span)
    if _fits(labels):
        return labels, False
    kept: list[tuple[int, str]] = []
    for text in sorted(texts, key=lambda one: _tells_layers(one[1])):
        kept += [text] if _fits(_in_lanes([*kept, text], span)) else []
    return _in_lanes(kept, span), True


def _fits(labels: Sequence[_Label]) -> bool:
    return all(label.lane < _LANES for label in labels)


def _in_lanes(texts: Sequence[tuple[int, str]], span: float) -> list[_Label]:
    """Texts in lanes if no two of them meet.

    From the right to the left, each as low as it can be: above those that begin where it stands, as their lines go up
    to them from below. Its own line is on the left of all words in lower lanes.
    """
    labels: list[_Label] = []
    begins: list[float] = []  # of the words that are farthest to the left, by lane
    for at, text in sorted(texts, key=lambda one: one[0], reverse=True):
        end = at + (_GLYPH * len(text) + _LANE) / _WIDTH * span
        lane = max((k + 1 for k, begin in enumerate(begins) if begin < end), default=0)
        begins[lane : lane + 1] = [at]
        labels.append(_Label(at, text, lane))
    return labels


def _mark(figure: go.Figure, row: int, marks: Sequence[tuple[int, str]], labels: Sequence[_Label], top: float) -> None:
    """A vertical line for each mark, up to its words where it has some of its own."""
    lane_of = {label.at: label.lane + 1 for label in sorted(labels, key=lambda label: label.lane)}
    x_axis, y_axis = _axis("x", row), _axis("y", row)
    lane = top * _LANE / _CURVES  # of the axis that a lane is high
    for at in {at for at, _ in marks}:
        line = {"color": GREY, "width": 1, "dash": "dot"}
        y = top + lane * lane_of.get(at, 0)
        figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=y, line=line, xref=x_axis, yref=y_axis)
    for label in labels:
        figure.add_annotation(
            xref=x_axis,
            yref=y_axis,
            x=label.at,
            y=top + lane * label.lane,
            xanchor="left",
            yanchor="bottom",
            borderpad=0,
            text=figure_text(label.text),
            showarrow=False,
            font={"size": SMALL - 2, "color": INK},
        )
