"""What waiting costs: samples/s of each replication rule under each straggler."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from ..markup import Html
from .outcomes import Outcome, held_up, in_lines, outcomes_table, rule_color
from .theme import GREY, INK, finished, hatch, source_key, whisker_on

_GROUP = 0.86  # of the distance between two stragglers is taken by the bars of one
_ALIKE = 0.001  # of a pace: two lines side by side that are no farther apart are one
_MARKERS = {"replayed": "circle", "measured": "diamond"}


def waiting_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row for each outcome. Raises InputError without any."""
    return outcomes_table(outcomes)


def waiting(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each straggler, one a rule; markers are runs of real processes.

    Bars are simulated: if there is no simulation of a rule there is no bar. With several seeds both are means, and
    lines reach from the least to the most. The dotted line at a bar is the pace of the same runs, with their
    minibatches and delays, had no pipeline waited for another: a bar reaches it at most. If delays are drawn, or who
    is slow does other minibatches, rules meet other delays, and their lines are of other heights.
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
            bar = {"color": color, "pattern": hatch(source, color)}
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
    figure.update_xaxes(
        tickvals=list(range(len(stragglers))),
        ticktext=[in_lines(name, max(12, 80 // len(stragglers))) for name in stragglers],
        range=[-0.5, len(stragglers) - 0.5],
        ticks="",
        showgrid=False,
        tickangle=0,
    )
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
