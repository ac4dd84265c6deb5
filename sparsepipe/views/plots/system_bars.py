"""One number of each system in each case, as bars side by side, distinguished by where the number comes from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd
import plotly.graph_objects as go

from ...util.text.numbers import time_unit
from ..colors import mixed
from ..markup import Html
from .marks import Numbers, category_axis, fewer_digits, fitted, nothing_to_draw
from .outcomes import in_lines
from .theme import GREY, RUN_COLORS, SMALL, finished, whisker_on

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
    """A number: of which case and system, and whether it was published, read off a log, or measured here ("ours")."""

    case: str
    system: str
    value: float
    source: str = "published"
    least: float | None = None  # of several that `value` is the mean of
    most: float | None = None


def system_bars_table(bars: Sequence[SystemBar]) -> pd.DataFrame:
    """One row for each bar."""
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
    """Draw a group of bars for each case, one a system and source; lines reach from the least to the most.

    The note says so if there are lines, and of what the bars are means: `means_of`, "runs".
    `unit`: of the values; those in "s" that end below a second are drawn in "ms". `what`: what the axis tells, before
    its unit. `systems_are`: what distinguishes the systems, in words before their names in the legend. `among`: the
    systems of the figures alongside this one, in the same order for all of them, by which a system has its colour.
    """
    table = system_bars_table(bars)
    if table.empty:
        return nothing_to_draw(title, note=note)
    if unit == "s":
        unit, scale = time_unit(_most(table))
        table[_VALUES] = scale * table[_VALUES].astype(float)
    cases, systems = (list(dict.fromkeys(table[column])) for column in ("case", "system"))
    sources = [source for source in _SOURCES if (table.source == source).any()]
    kinds = [(system, source) for system in systems for source in sources if _any(table, system, source)]
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


def _any(table: pd.DataFrame, system: str, source: str) -> bool:
    return bool(((table.system == system) & (table.source == source)).any())


def _interval(part: pd.DataFrame, color: str) -> dict[str, object]:
    """From the least to the most of what a bar is the mean of; nothing if that is one number."""
    known = part.least.notna() & part.most.notna()
    above, below = (part.most - part.value).where(known), (part.value - part.least).where(known)
    drawn = {"color": whisker_on(color), "thickness": 1.5, "width": 3, "visible": bool(known.any())}
    return {"array": above, "arrayminus": below, **drawn}
