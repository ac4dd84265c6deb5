"""One number of each system in each case, as bars side by side, distinguished by where the number comes from.

Predicted against measured has a panel for each kind of number, ours and what others' own simulators say of the same.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...util.text.numbers import time_unit
from ..colors import mixed
from ..markup import Html
from .marks import THICK, Numbers, category_axis, fewer_digits, fitted, nothing_to_draw, outlined
from .outcomes import in_lines
from .theme import FONT_SIZE, GREY, RUN_COLORS, SMALL, finished, log_ticks, whisker_on

_SOURCES = {"published": 0.55, "log": 0.0, "ours": -0.35}  # share of white, or of black below 0, in a system's colour
_WORDS = {
    "published": "as published: numbers in a plotting script",
    "log": "from the published log",
    "ours": "measured here",
}
_GROUP = 0.84  # of the distance between two cases
_AXIS = 650  # pixels, about
_VALUES = ["value", "least", "most"]
_ROOM_ABOVE, _PLOT = 1.06, 250  # of the highest bar: the axis; pixels of it, about


@dataclass(frozen=True)
class SystemBar:
    """Number of one case and system, with its source: published, read from a log, or measured here ("ours")."""

    case: str
    system: str
    value: float
    source: str = "published"
    least: float | None = None  # of several that `value` is the mean of
    most: float | None = None


def system_bars_table(bars: Sequence[SystemBar]) -> pd.DataFrame:
    """Return one row for each bar."""
    return pd.DataFrame([asdict(bar) for bar in bars], columns=["case", "system", "value", "source", "least", "most"])


def system_bars(
    bars: Sequence[SystemBar],
    *,
    unit: str,
    title: str,
    what: str = "",
    note: str = "",
    systems_are: str = "",
    among: Sequence[str] = (),
    means_of: str = "",
) -> go.Figure:
    """Draw a group of bars for each case, one bar for each system and source. Whiskers are minimum to maximum.

    Args:
        unit: Unit of the values. Values in "s" that are all below a second are drawn in "ms".
        what: Quantity on the axis, before its unit.
        means_of: What a bar is the mean of, for the note.
        systems_are: Words before the names of the systems in the legend.
        among: Systems of related figures. A system has the same colour in all of them.
    """
    table = system_bars_table(bars)
    if table.empty:
        return nothing_to_draw(title, note=note)
    if unit == "s":
        unit, scale = time_unit(_most(table))
        table[_VALUES] = scale * table[_VALUES].astype(float)
    cases, systems = (list(dict.fromkeys(table[column])) for column in ("case", "system"))
    sources = [source for source in _SOURCES if (table.source == source).any()]
    present = set(zip(table.system, table.source, strict=True))
    kinds = [(system, source) for system in systems for source in sources if (system, source) in present]
    colors = system_places(systems, among)
    step = _GROUP / len(kinds)
    numbers = fitted(table.value, step * _AXIS / len(cases), fewer_digits(table.value))
    figure = go.Figure()
    for place, (system, source) in enumerate(kinds):
        part = table[(table.system == system) & (table.source == source)]
        shift = (place - (len(kinds) - 1) / 2) * step
        color = RUN_COLORS[colors[system] % len(RUN_COLORS)]
        color = mixed(color, _SOURCES[source]) if len(sources) > 1 else color
        places = [cases.index(case) + shift for case in part.case]
        bar = go.Bar(
            x=places,
            y=part.value,
            width=0.92 * step,
            error_y=_interval(part, color),
            showlegend=False,
            marker={"color": color},
            customdata=list(part.case),
            hovertemplate=Html("{}<br>%{{customdata}}: %{{y:,.4r}} {}<br>{}<extra></extra>").format(
                system, unit, _WORDS[source]
            ),
        )
        figure.add_trace(bar)
        tops = part.most.astype(float).fillna(part.value)
        figure.add_trace(numbers.over(places, tops, part.value, width=0.92 * step))
    for system in systems:
        color = RUN_COLORS[colors[system] % len(RUN_COLORS)]
        figure.add_trace(go.Bar(x=[None], y=[None], name=system, marker={"color": color}))
    if len(sources) > 1:
        for source in sources:  # a legend in grey: colours stand for systems, lightness for the source
            marker = {"color": mixed(GREY, _SOURCES[source])}
            figure.add_trace(go.Bar(x=[None], y=[None], name=_WORDS[source], marker=marker))
    category_axis(figure, [in_lines(case, max(10, 80 // len(cases))) for case in cases])
    figure.update_yaxes(title_text=f"{what} ({unit})" if what else unit, range=[0, _top(table, numbers)])
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    legend |= {"title": {"text": systems_are, "font": {"size": SMALL}}} if systems_are else {}
    figure.update_layout(barmode="overlay", legend=legend, margin={"b": 104})
    apart = (table.most.astype(float) > table.least.astype(float)).any()
    lines = f"whiskers: min–max{f' over the {means_of}' if means_of else ''}" if apart else ""
    told = "" if len(sources) > 1 else _WORDS[sources[0]]
    return finished(figure, title, note=" · ".join(filter(None, [note, told, lines])), height=430)


def system_places(systems: Sequence[str], among: Sequence[str] = ()) -> dict[str, int]:
    """Each system's place among those of all figures alongside each other, by which it has its colour; others
    follow.
    """
    return {system: place for place, system in enumerate(dict.fromkeys([*among, *systems]))}


def _top(table: pd.DataFrame, numbers: Numbers) -> float:
    """End of the axis, with room for the highest bar's number."""
    return _ROOM_ABOVE * _most(table) * (1 + numbers.height(table.value) / _PLOT)


def _most(table: pd.DataFrame) -> float:
    return float(table[["value", "most"]].astype(float).max().max())


def _interval(part: pd.DataFrame, color: str) -> dict[str, object]:
    """From the least to the most of what a bar is the mean of; nothing if that is one number."""
    known = part.least.notna() & part.most.notna()
    above, below = (part.most - part.value).where(known), (part.value - part.least).where(known)
    drawn = {"color": whisker_on(color), "thickness": 1.5, "width": 3, "visible": bool(known.any())}
    return {"array": above, "arrayminus": below, **drawn}


_PANEL, _COLUMNS = 250, 3
_MANY = 100  # marks of a panel, from which on they are small
_OTHERS = outlined("diamond", RUN_COLORS[1], size=8)
_DOUBTED = outlined("circle", RUN_COLORS[0], size=7)


@dataclass(frozen=True)
class HeldAgainst:
    """Number that others measured or proved, with the prediction made here and that of their own simulator."""

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
    """Return one row for each number, with the relative errors of this prediction and of the published one."""
    columns = ["kind", "name", "measured", "predicted", "unit", "others", "doubt", "known_as", "found_as"]
    table = pd.DataFrame([asdict(one) for one in numbers], columns=columns)
    table["others"] = table.others.astype(float)
    table["error"] = table.predicted / table.measured - 1
    table["others_error"] = table.others / table.measured - 1
    return table


def contradictions(numbers: Sequence[HeldAgainst]) -> str:
    """Name the numbers of records that contradict themselves, and the reason: "step, N3: …; …".

    Empty: there are none.
    """
    return "; ".join(f"{one.kind}, {one.name}: {one.doubt}" for one in numbers if one.doubt)


def held_against(numbers: Sequence[HeldAgainst], *, note: str = "") -> go.Figure:
    """Draw predictions against measurements by others, a panel for each kind, on logarithmic axes.

    On the diagonal, both agree. Marks of records that contradict themselves are outlines; the note gives their number.
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
