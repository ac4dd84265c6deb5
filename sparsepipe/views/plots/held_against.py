"""Predicted against measured: a panel for each kind of number, ours and what others' own simulators say of the same."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..markup import Html
from .marks import THICK, nothing_to_draw, outlined
from .theme import FONT_SIZE, GREY, RUN_COLORS, finished, log_ticks

_PANEL, _COLUMNS = 250, 3
_MANY = 100  # marks of a panel, from which on they are small
_OTHERS = outlined("diamond", RUN_COLORS[1], size=8)
_DOUBTED = outlined("circle", RUN_COLORS[0], size=7)


@dataclass(frozen=True)
class HeldAgainst:
    """A number that others measured or proved, what is predicted of it here, and what their own simulator says."""

    kind: str  # such as "step of a measured plan"
    name: str
    measured: float
    predicted: float
    unit: str = "s"
    others: float | None = None  # None: they say nothing of it
    doubt: str = ""  # why the record contradicts itself; empty where it does not
    known_as: str = "measured"  # what `measured` is, for an axis: "known optimum" where it was proved
    found_as: str = "predicted"  # what `predicted` is, for an axis


def held_against_table(numbers: Sequence[HeldAgainst]) -> pd.DataFrame:
    """One row for each number, with how far ours and theirs are off, as shares of what was measured."""
    columns = ["kind", "name", "measured", "predicted", "unit", "others", "doubt", "known_as", "found_as"]
    table = pd.DataFrame([asdict(one) for one in numbers], columns=columns)
    table["others"] = table.others.astype(float)
    table["error"] = table.predicted / table.measured - 1
    table["others_error"] = table.others / table.measured - 1
    return table


def contradictions(numbers: Sequence[HeldAgainst]) -> str:
    """Say which numbers are of records that contradict themselves, and how: "step, N3: …; …". Empty if none is."""
    return "; ".join(f"{one.kind}, {one.name}: {one.doubt}" for one in numbers if one.doubt)


def held_against(numbers: Sequence[HeldAgainst], *, note: str = "") -> go.Figure:
    """Draw a panel for each kind, with logarithmic axes: on the line, prediction and measurement agree.

    Numbers whose record contradicts itself are outlines, and the note says how many there are.
    """
    title = "Predictions compared with published measurements"
    table = held_against_table(numbers)
    if table.empty:
        return nothing_to_draw(title, note=note)
    kinds = list(dict.fromkeys(table.kind))
    doubted = int((table.doubt != "").sum())
    told = f"{doubted:,} of {len(table):,} numbers come from inconsistent records"
    if doubted == 1:
        told = f"one of {len(table):,} numbers comes from an inconsistent record"
    note = " · ".join(filter(None, [note, f"outlined: {told}" if doubted else ""]))
    columns = min(_COLUMNS, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=kinds, horizontal_spacing=0.11, vertical_spacing=0.3 / rows
    )
    for place, kind in enumerate(kinds):
        part = table[table.kind == kind]
        row, column = place // columns + 1, place % columns + 1
        for trace in _panel(part):
            figure.add_trace(trace, row=row, col=column)
        unit = part.unit.iloc[0]
        axis = {"type": "log", "tickangle": 0, "row": row, "col": column, **_ticks(_drawn(part))}
        figure.update_xaxes(title_text=f"{part.known_as.iloc[0]} ({unit})", **axis)
        figure.update_yaxes(title_text=f"{part.found_as.iloc[0]} ({unit})", **axis)
    figure.update_annotations(font_size=FONT_SIZE)
    _legend(figure, others=bool(table.others.notna().any()), doubts=bool(doubted))
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"},
        margin={"t": 104, "b": 100},
    )
    return finished(figure, title, note=note, width=960, height=180 + _PANEL * rows)


def _panel(part: pd.DataFrame) -> list[go.Scatter]:
    """The line of agreement, their numbers below, ours above them."""
    values = _drawn(part)
    ends = _ends(values)
    line = {"color": GREY, "width": 1, "dash": "dot"}
    found = [go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip")]
    for column, marker, words in (("others", _OTHERS, "their simulator"), ("predicted", _ours(part), "ours")):
        known = part[part[column].notna()]
        off = [
            f"{name}: {value / measured - 1:+.1%}"
            for name, value, measured in zip(known.name, known[column], known.measured, strict=True)
        ]
        hover = Html("{}<br>%{{customdata}}<extra></extra>").format(words)
        found.append(
            go.Scatter(
                x=known.measured,
                y=known[column],
                mode="markers",
                marker=marker,
                customdata=off,
                hovertemplate=hover,
                showlegend=False,
            )
        )
    return found


def _drawn(part: pd.DataFrame) -> pd.Series:
    return pd.concat([part.measured, part.predicted, part.others]).dropna()


def _ends(values: pd.Series) -> list[float]:
    return [float(values.min()) / 1.3, float(values.max()) * 1.3]


def _ticks(values: pd.Series) -> dict[str, list[Any]]:
    """Ticks of 1, 2 and 5 times powers of ten; if fewer than three would be in sight, evenly apart instead."""
    low, high = _ends(values)
    found = log_ticks(values, most=6)
    if sum(low <= tick <= high for tick in found["tickvals"]) >= 3:
        return found
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next((digit * power for digit in (1, 2, 5) if (high - low) / (digit * power) <= 6), 10 * power)
    ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return {"tickvals": ticks, "ticktext": [f"{tick:.4g}" for tick in ticks]}


def _ours(part: pd.DataFrame) -> dict[str, object]:
    """The markers of our numbers: outlines are opaque, and keep their size among many."""
    size, opacity = (7, 0.85) if len(part) < _MANY else (4, 0.5)
    doubted = part.doubt != ""
    return {
        "color": [_DOUBTED["color"] if doubt else RUN_COLORS[0] for doubt in doubted],
        "symbol": [_DOUBTED["symbol"] if doubt else "circle" for doubt in doubted],
        "size": [_DOUBTED["size"] if doubt else size for doubt in doubted],
        "opacity": [1 if doubt else opacity for doubt in doubted],
        "line": {"width": [THICK if doubt else 0 for doubt in doubted]},
    }


def _legend(figure: go.Figure, *, others: bool, doubts: bool) -> None:
    entries = {"predicted here": {"color": RUN_COLORS[0], "symbol": "circle", "size": 7}}
    if doubts:
        words = "predicted here, from an inconsistent record"
        entries[words] = _DOUBTED
    if others:
        entries["predicted by their simulator"] = _OTHERS
    for name, marker in entries.items():
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker), row=1, col=1)
