"""What waiting costs: samples a second of each replication rule under each straggler."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from ..display.markup import Html
from .outcomes import Outcome, held_up, in_lines, outcomes_table, rule_color
from .theme import GREY, INK, finished, hatch, source_key

_GROUP = 0.86  # of the distance between two stragglers is taken by the bars of one
_MARKERS = {"replayed": "circle", "measured": "diamond"}


def waiting_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row for each outcome. Raises InputError without any."""
    return outcomes_table(outcomes)


def waiting(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each straggler, one a rule; markers are runs of real processes.

    Bars are simulated: where there is no simulation of a rule there is no bar. With several seeds both are means, and
    lines reach from the least to the most. A dotted line is what all pipelines would train if nobody waited.
    """
    table = waiting_table(outcomes)
    stragglers, rules = (list(dict.fromkeys(table[column])) for column in ("straggler", "rule"))
    step = _GROUP / len(rules)
    figure = go.Figure()
    seeds = table.groupby(["source", "rule", "straggler"], sort=False).samples_per_second.agg(["mean", "min", "max"])
    for (source, rule), part in seeds.groupby(["source", "rule"], sort=False):
        kept = part.loc[source, rule]
        shift = (rules.index(rule) - (len(rules) - 1) / 2) * step
        common = {
            "x": [stragglers.index(name) + shift for name in kept.index],
            "y": kept["mean"],
            "error_y": _interval(kept),
            "customdata": list(kept.index),
            "hovertemplate": Html("{}<br>%{{customdata}}: %{{y:.1f}} samples/s<extra>{}</extra>").format(rule, source),
        }
        if source == "simulated":
            color = rule_color(rule)
            bar = {"color": color, "pattern": hatch(source, color)}
            figure.add_trace(
                go.Bar(**common, width=0.92 * step, name=rule, legendgroup=rule, showlegend=False, marker=bar)
            )
            figure.add_trace(go.Bar(x=[None], y=[None], name=rule, legendgroup=rule, marker={"color": color}))
        else:
            alone = rule not in set(table.rule[table.source == "simulated"])  # no bar shows its colour
            color = rule_color(rule) if alone else INK
            marker = _marker(source, color)
            figure.add_trace(go.Scatter(**common, mode="markers", name=rule, showlegend=alone, marker=marker))
    for source in dict.fromkeys(table.source):  # the rules' keys are whole, these in ink: colours stand for rules
        if source == "simulated":
            figure.add_trace(go.Bar(x=[None], y=[None], name=source, marker=source_key(source)))
        else:
            name, marker = f"{source}, by real processes", _marker(source, INK)
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker))
    _own_paces(figure, table, stragglers)
    figure.update_xaxes(
        tickvals=list(range(len(stragglers))),
        ticktext=[in_lines(name, max(12, 80 // len(stragglers))) for name in stragglers],
        range=[-0.5, len(stragglers) - 0.5],
        ticks="",
        showgrid=False,
        tickangle=0,
    )
    figure.update_yaxes(title_text="samples/s, all pipelines", rangemode="tozero")
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(barmode="overlay", legend=legend, margin={"b": 130})
    title = "What waiting costs: pace by replication rule and straggler"
    return finished(figure, title, note=held_up(outcomes, note), height=460)


def _marker(source: str, color: str) -> dict:
    """White within, so that it is seen on a bar of any colour."""
    return {"symbol": _MARKERS.get(source, "x"), "size": 10, "color": "white", "line": {"width": 2, "color": color}}


def _interval(kept: pd.DataFrame) -> dict:
    """From the least of the seeds to the most; nothing is drawn of one seed."""
    above, below = kept["max"] - kept["mean"], kept["mean"] - kept["min"]
    drawn = {"color": INK, "thickness": 1, "width": 3, "visible": bool((above > 0).any())}
    return {"array": above.where(above > 0), "arrayminus": below.where(above > 0), **drawn}


def _own_paces(figure: go.Figure, table: pd.DataFrame, stragglers: Sequence[str]) -> None:
    """Dotted lines: the pace of all if nobody waited, the median over rules and seeds."""
    source = "simulated" if (table.source == "simulated").any() else table.source.iloc[0]
    own = table[table.source == source].groupby("straggler", sort=False).own_pace.median()
    line = {"color": GREY, "width": 1.5, "dash": "dot"}
    for name, pace in own.items():
        place = stragglers.index(name)
        figure.add_shape(type="line", x0=place - 0.47, x1=place + 0.47, y0=pace, y1=pace, line=line)
    figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name="if nobody waited for another", line=line))
    figure.update_yaxes(range=[0, 1.06 * max(own.max(), table.samples_per_second.max())])
