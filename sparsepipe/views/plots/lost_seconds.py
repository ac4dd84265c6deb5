"""Seconds that pipelines lost, by cause: who was waited for, and what a straggler takes by itself."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ..markup import Html
from .outcomes import Outcome, in_lines, sourced
from .theme import DARK_GREY, finished, hatch, hatch_shape, stage_color

# What a simulation or a run counts → how a reader knows it, and its colour.
CAUSES: Mapping[str, tuple[str, str]] = {
    "group": ("waited for other pipelines", stage_color(1)),
    "exchange": ("waited for the average", stage_color(0)),
    "bound": ("paused: too far ahead of the slowest pipeline", stage_color(2)),
    "straggler": ("own straggler delay", DARK_GREY),
}


def lost_seconds_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row for each outcome and cause: seconds of all its pipelines together. Raises InputError without any."""
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
        raise InputError("plot.nothing", "no lost seconds to draw: expected outcomes that count them")
    return pd.DataFrame(rows)


def lost_seconds(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw a bar for each outcome: the seconds that its pipelines lost, one part for each cause."""
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
            marker={"color": color, "pattern": {**hatch("simulated", color), "shape": _shapes(outcomes)}},
            hovertemplate=Html("%{{y}}<br>{}: %{{x:.2f}} s<extra></extra>").format(told),
        )
        figure.add_trace(bar)
    figure.update_xaxes(title_text="lost time (s), all pipelines", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], ticks="", showgrid=False)
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(barmode="stack", legend=legend, margin={"b": 100})
    height = 230 + 30 * max(3, len(outcomes))
    return finished(figure, "Lost time by cause", note=sourced(outcomes, note), height=height)


def _shapes(outcomes: Sequence[Outcome]) -> list[str]:
    return [hatch_shape(one.source) for one in outcomes]
