"""How far plans are from the best possible at most, and how long each planner took, network by network."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...util.text.counting import number_of
from ...values.plan import Plan
from ..markup import Html, figure_text
from .nothing import nothing_to_draw
from .points import planner_label
from .theme import FONT_SIZE, RUN_COLORS, RUN_MARKERS, finished, log_ticks

_LEAST_SECONDS = 1e-4  # a logarithmic axis has no place for less
_ROW = 34  # pixels
_SPREAD = 0.6  # of the distance between two rows is taken by the marks of one: alike ones would hide each other


@dataclass(frozen=True)
class Gap:
    """Result of one planner for one network and a number of devices."""

    network: str
    layers: int
    devices: int
    planner: str
    gap: float | None  # share of the period that a better plan could save at most; None: nothing is proven
    seconds: float  # of planning

    @classmethod
    def of(cls, plan: Plan, network: str, devices: int, *, planner: str = "") -> Self:
        """Read it from a plan, which must have an estimate. `planner`: what it is called, its name unless given."""
        assert plan.estimate is not None
        expected = plan.estimate
        label = planner_label(planner or plan.planner)
        return cls(network, len(plan.layers), devices, label, expected.gap, expected.plan_seconds)


def gaps_table(gaps: Sequence[Gap]) -> pd.DataFrame:
    """One row for each."""
    columns = ["network", "layers", "devices", "planner", "gap", "seconds"]
    table = pd.DataFrame([asdict(one) for one in gaps], columns=columns)
    table["gap"] = table.gap.astype(float)
    return table


def gaps(gaps: Sequence[Gap], *, note: str = "") -> go.Figure:
    """Draw a row for each network and number of devices: on the left each planner's gap, on the right its seconds."""
    title = "Optimality gap and planning time"
    table = gaps_table(gaps)
    if table.empty:
        return nothing_to_draw(title, note=note)
    table["row"] = [
        f"{one.network}, {number_of(one.layers, 'layer')}, {number_of(one.devices, 'device')}"
        for one in table.itertuples()
    ]
    table["percent"], table["seconds"] = 100 * table.gap, table.seconds.clip(lower=_LEAST_SECONDS)
    rows = list(dict.fromkeys(table.row))[::-1]  # the first on top
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.07)
    planners = table.planner.nunique()
    for k, (name, part) in enumerate(table.groupby("planner", sort=False)):
        below = ((planners - 1) / 2 - k) / planners * _SPREAD
        marker = {"color": RUN_COLORS[k % len(RUN_COLORS)], "symbol": RUN_MARKERS[k % len(RUN_MARKERS)], "size": 9}
        for column, field, unit in ((1, "percent", "%"), (2, "seconds", "s")):
            hover = Html("{}<br>%{{customdata}}: %{{x:,.3r}} {}<extra></extra>").format(name, unit)
            trace = go.Scatter(
                x=part[field],
                y=[rows.index(row) + below for row in part.row],
                mode="markers",
                name=name,
                legendgroup=str(k),
                showlegend=column == 1,
                marker=marker,
                customdata=part.row,
                hovertemplate=hover,
            )
            figure.add_trace(trace, row=1, col=column)
    most = max(1.0, float(table.percent.max(skipna=True) or 0.0))
    room = [-0.03 * most, 1.05 * most]  # a mark at 0 is whole
    figure.update_xaxes(title_text="optimality gap (% of the plan's time)", range=room, zeroline=True, row=1, col=1)
    figure.update_xaxes(
        title_text="planning time (s, log scale)", type="log", **log_ticks(table.seconds, most=6), row=1, col=2
    )
    figure.update_yaxes(range=[-0.6, len(rows) - 0.4], tickvals=list(range(len(rows))), ticks="", zeroline=False)
    figure.update_yaxes(ticktext=[figure_text(row) for row in rows], tickfont_size=FONT_SIZE, row=1, col=1)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"},
        margin={"l": 300, "t": 84, "b": 110},
    )
    return finished(figure, title, note=note, width=960, height=220 + _ROW * len(rows))
