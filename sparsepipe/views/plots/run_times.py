"""Times of runs: each iteration, waiting, and the seconds lost to each cause."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.numbers import time_unit
from ..markup import Html, figure_text
from .marks import category_axis, nothing_to_draw
from .outcomes import Outcome, held_up, in_lines, outcomes_table, rule_color, sourced
from .theme import (
    DARK_GREY,
    GREY,
    INK,
    RUN_COLORS,
    SMALL,
    WIDTH,
    bar_marker,
    finished,
    source_key,
    stage_color,
    whisker_on,
)

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
    """Return one row for each iteration of each variant, with the marks at it."""
    happened = {name: dict(told) for name, told in (marks or {}).items()}
    rows = [
        {"variant": name, "iteration": at, "seconds": seconds, "mark": happened.get(name, {}).get(at, "")}
        for name, points in series.items()
        for at, seconds in points
    ]
    return pd.DataFrame(rows, columns=["variant", "iteration", "seconds", "mark"])


def iteration_times(series: Series, marks: Marks | None = None, *, title: str = "", note: str = "") -> go.Figure:
    """Draw the time of each iteration, one panel for each variant, on the same axes. Vertical lines are marks.

    Nothing is smoothed or omitted. Times above 1.5 times the 99th percentile are drawn at that limit; hover and the
    table show their values. Labels of marks are drawn above the lines if there is room; the table contains all of them.
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
    """Return the labels of marks, with equal labels of close marks only once."""
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


# What a simulation or a run counts → how a reader knows it, and its colour.
CAUSES: Mapping[str, tuple[str, str]] = {
    "group": ("waited for other pipelines", stage_color(1)),
    "exchange": ("waited for the average", stage_color(0)),
    "bound": ("paused: too far ahead of the slowest pipeline", stage_color(2)),
    "straggler": ("own straggler delay", DARK_GREY),
}


def lost_seconds_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return one row for each outcome and cause: seconds of all its pipeline replicas.

    Raises InputError without outcomes.
    """
    rows = [
        {
            "rule": one.rule,
            "straggler": one.straggler,
            "source": one.source,
            "seed": one.seed,
            "cause": cause,
            "lost_seconds": one.lost_seconds[cause],
        }
        for one in outcomes
        for cause in CAUSES
        if cause in one.lost_seconds
    ]
    if not rows:
        raise InputError("plot.nothing", "no lost seconds to draw; give outcomes with lost seconds")
    return pd.DataFrame(rows)


def lost_seconds(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw a bar for each outcome: the seconds that its pipeline replicas lost, by cause."""
    table = lost_seconds_table(outcomes)
    several = len({one.source for one in outcomes}) > 1
    names = [in_lines(f"{one.rule}, {one.source}" if several else one.rule, 30) for one in outcomes]
    figure = go.Figure()
    for cause in dict.fromkeys(table.cause):
        told, color = CAUSES[cause]
        bar = go.Bar(
            x=[one.lost_seconds.get(cause, 0.0) for one in outcomes],
            y=names,
            orientation="h",
            name=told,
            marker=bar_marker([one.source for one in outcomes], color),
            hovertemplate=Html("%{{y}}<br>{}: %{{x:.2f}} s<extra></extra>").format(told),
        )
        figure.add_trace(bar)
    figure.update_xaxes(title_text="lost time (s), all pipelines", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], ticks="", showgrid=False)
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(barmode="stack", legend=legend, margin={"b": 100})
    height = 230 + 30 * max(3, len(outcomes))
    return finished(figure, "Lost time by cause", note=sourced(outcomes, note), height=height)


_GROUP = 0.86  # of the distance between two stragglers is taken by the bars of one
_ALIKE = 0.001  # of a pace: two lines side by side that are no farther apart are one
_MARKERS = {"emulated": "circle", "measured": "diamond"}


def waiting_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return one row for each outcome. Raises InputError without outcomes."""
    return outcomes_table(outcomes)


def waiting(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each straggler, one bar for each synchronization scheme. Markers are real processes.

    Bars are simulated. With several seeds, bars and markers are means, and whiskers are minimum to maximum. The dotted
    line at a bar is the standalone throughput: that of the same runs, with the same minibatches and delays, without
    waiting for other replicas. A bar reaches it at most. Lines of one straggler may differ, because delays are drawn at
    random and slow replicas train other minibatches.
    """
    outcomes = list(outcomes)
    table = waiting_table(outcomes)
    unit = "/s or ".join(dict.fromkeys(one.counted for one in outcomes)) + "/s"
    stragglers, rules = (list(dict.fromkeys(table[column])) for column in ("straggler", "rule"))
    step = _GROUP / len(rules)
    figure = go.Figure()
    seeds = table.groupby(["source", "rule", "straggler"], sort=False).samples_per_second.agg(["mean", "min", "max"])
    for (source, rule), part in seeds.groupby(["source", "rule"], sort=False):
        kept = part.loc[source, rule]
        shift = (rules.index(rule) - (len(rules) - 1) / 2) * step
        if source == "simulated":
            color = rule_color(rule)
            bar = bar_marker(source, color)
            trace = go.Bar(width=0.92 * step, legendgroup=rule, showlegend=False, marker=bar)
        else:
            alone = rule not in set(table.rule[table.source == "simulated"])  # no bar shows its colour
            color = rule_color(rule) if alone else INK
            marker = _marker(source, color)
            trace = go.Scatter(mode="markers", showlegend=alone, marker=marker)
        trace.update(
            x=[stragglers.index(name) + shift for name in kept.index],
            y=kept["mean"],
            error_y=_interval(kept, rule_color(rule) if source == "simulated" else GREY),
            customdata=list(kept.index),
            hovertemplate=Html("{}<br>%{{customdata}}: %{{y:.1f}} {}<extra>{}</extra>").format(rule, unit, source),
            name=rule,
        )
        figure.add_trace(trace)
        if source == "simulated":
            figure.add_trace(go.Bar(x=[None], y=[None], name=rule, legendgroup=rule, marker={"color": color}))
    for source in dict.fromkeys(table.source):  # the rules' keys are whole, these in ink: colours stand for rules
        if source == "simulated":
            figure.add_trace(go.Bar(x=[None], y=[None], name=source, marker=source_key(source, INK)))
        else:
            name, marker = f"{source}, by real processes", _marker(source, INK)
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker))
    _own_paces(figure, table, stragglers, rules)
    category_axis(figure, [in_lines(name, max(12, 80 // len(stragglers))) for name in stragglers])
    figure.update_yaxes(title_text=f"{unit}, all pipelines", rangemode="tozero")
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(barmode="overlay", legend=legend, margin={"b": 130})
    title = "Synchronization stall: throughput by scheme and straggler"
    spread = "whiskers: min–max over seeds" if (seeds["max"] > seeds["min"]).any() else ""
    told = " · ".join(filter(None, [note, spread]))
    return finished(figure, title, note=held_up(outcomes, told), height=460)


def _marker(source: str, color: str) -> dict[str, object]:
    """White within, so that it is seen on a bar of any colour."""
    return {"symbol": _MARKERS.get(source, "x"), "size": 10, "color": "white", "line": {"width": 2, "color": color}}


def _interval(kept: pd.DataFrame, color: str) -> dict[str, object]:
    """From the least of the seeds to the most; nothing is drawn of one seed."""
    above, below = kept["max"] - kept["mean"], kept["mean"] - kept["min"]
    drawn = {"color": whisker_on(color), "thickness": 1.5, "width": 3, "visible": bool((above > 0).any())}
    return {"array": above.where(above > 0), "arrayminus": below.where(above > 0), **drawn}


def _own_paces(figure: go.Figure, table: pd.DataFrame, stragglers: Sequence[str], rules: Sequence[str]) -> None:
    """Dotted lines: the pace of each bar's own runs if no one had waited, the mean over seeds as the bar is."""
    source = "simulated" if (table.source == "simulated").any() else table.source.iloc[0]
    own = table[table.source == source].groupby(["straggler", "rule"], sort=False).own_pace.mean()
    x: list[float | None] = []
    y: list[float | None] = []
    for place, straggler in enumerate(stragglers):
        edges = [place + (k / len(rules) - 0.5) * _GROUP for k in range(len(rules) + 1)]
        for left, right, rule in zip(edges, edges[1:], rules, strict=False):
            pace = own.get((straggler, rule))
            if pace is None:
                continue
            if x and x[-1] == left and abs(y[-1] - pace) < _ALIKE * pace:  # one line goes on
                x[-1], y[-2:] = right, [max(y[-1], pace)] * 2
            else:
                x += [None, left, right]
                y += [None, pace, pace]
    line = {"color": INK, "width": 1.5, "dash": "dot"}
    name = "the same runs without synchronization stalls"
    figure.add_trace(go.Scatter(x=x, y=y, mode="lines", name=name, line=line, hoverinfo="skip"))
    figure.update_yaxes(range=[0, 1.06 * max(own.max(), table.samples_per_second.max())])
