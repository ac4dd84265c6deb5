"""What orders of minibatches of several sizes take, compared with equal minibatches, and the bound for any order."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd
import plotly.graph_objects as go

from ..display.markup import Html
from .nothing import nothing_to_draw
from .theme import GREY, INK, RUN_COLORS, finished, hatch, source_key

_GROUP = 0.8  # of the distance between two machines is taken by the bars of one


@dataclass(frozen=True)
class OrderedEpoch:
    """An epoch in one order on one machine."""

    order: str
    machine: str  # such as "4 stages"
    over_balanced: float  # times as long as minibatches that each cost the mean of all
    lower_bound: float | None = None  # the least that any order takes, in the same unit; None: not known
    source: str = "simulated"


def orders_table(epochs: Sequence[OrderedEpoch]) -> pd.DataFrame:
    """One row for each epoch."""
    columns = ["order", "machine", "over_balanced", "lower_bound", "source"]
    return pd.DataFrame([asdict(one) for one in epochs], columns=columns)


def orders(epochs: Sequence[OrderedEpoch], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each machine, one an order; a dash at a bar is the least that any order takes."""
    title = "What varying sizes cost, by order of minibatches"
    table = orders_table(epochs)
    if table.empty:
        return nothing_to_draw(title, note=note)
    machines, names = (list(dict.fromkeys(table[column])) for column in ("machine", "order"))
    step, figure = _GROUP / len(names), go.Figure()
    for (order, source), part in table.groupby(["order", "source"], sort=False):
        k = names.index(order)
        color = RUN_COLORS[k % len(RUN_COLORS)]
        x = [machines.index(machine) + (k - (len(names) - 1) / 2) * step for machine in part.machine]
        bar = go.Bar(
            x=x,
            y=part.over_balanced,
            width=0.9 * step,
            showlegend=False,
            legendgroup=order,
            marker={"color": color, "pattern": hatch(source, color)},
            text=[f"{value:.2f}" for value in part.over_balanced],
            textposition="outside",
            customdata=part.machine,
            hovertemplate=Html("{}, %{{customdata}}: %{{y:.3f}} ×<extra>{}</extra>").format(order, source),
            name=order,
        )
        figure.add_trace(bar)
        known = part.lower_bound.notna().to_numpy()
        if known.any():
            marker = {"symbol": "line-ew", "size": 16, "line": {"width": 2.5, "color": INK}}
            bound = go.Scatter(
                x=[place for place, is_known in zip(x, known, strict=True) if is_known],
                y=part.lower_bound[known],
                mode="markers",
                marker=marker,
                showlegend=False,
                hovertemplate="any order: at least %{y:.3f} ×<extra></extra>",
            )
            figure.add_trace(bound)
    for k, order in enumerate(names):
        key = {"color": RUN_COLORS[k % len(RUN_COLORS)]}
        figure.add_trace(go.Bar(x=[None], y=[None], name=order, legendgroup=order, marker=key))
    for source in dict.fromkeys(table.source):
        figure.add_trace(go.Bar(x=[None], y=[None], name=source, marker=source_key(source, INK)))
    if table.lower_bound.notna().any():
        key = {"symbol": "line-ew", "size": 12, "line": {"width": 2.5, "color": INK}}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name="least in any order", marker=key))
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot", "width": 1.5})
    figure.update_xaxes(
        tickvals=list(range(len(machines))),
        ticktext=machines,
        range=[-0.5, len(machines) - 0.5],
        ticks="",
        showgrid=False,
    )
    most = 1.1 * max(1.0, float(table.over_balanced.max()))
    figure.update_yaxes(title_text="time over equal minibatches", range=[0, most])
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(barmode="overlay", legend=legend, margin={"b": 100})
    return finished(figure, title, note=note, height=440)
