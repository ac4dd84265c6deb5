"""What orders of minibatches of several sizes take, compared with equal minibatches, and the bound for any order."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd
import plotly.graph_objects as go

from ..markup import Html
from .nothing import nothing_to_draw
from .theme import GREY, INK, RUN_COLORS, finished, hatch, source_key

_MARKERS = {"replayed": "circle", "measured": "diamond"}
_DASHES = ({"width": 6, "color": "white"}, {"width": 2.5, "color": INK})  # one on the other: seen on every colour
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
    """Draw a group of bars for each machine, one an order; a dash at a bar is the least that any order takes.

    Bars are simulated; markers are runs of real processes.
    """
    title = "Cost of varying sizes by order of minibatches"
    table = orders_table(epochs)
    if table.empty:
        return nothing_to_draw(title, note=note)
    machines, names = (list(dict.fromkeys(table[column])) for column in ("machine", "order"))
    step, figure = _GROUP / len(names), go.Figure()
    for (order, source), part in table.groupby(["order", "source"], sort=False):
        k = names.index(order)
        color = RUN_COLORS[k % len(RUN_COLORS)]
        if source == "simulated":
            trace = go.Bar(width=0.9 * step, marker={"color": color, "pattern": hatch(source, color)})
            trace.update(text=[f"{value:.2f}" for value in part.over_balanced], textposition="outside")
        else:
            trace = go.Scatter(mode="markers", marker=_marker(source))
        trace.update(
            x=[machines.index(machine) + (k - (len(names) - 1) / 2) * step for machine in part.machine],
            y=part.over_balanced,
            showlegend=False,
            customdata=part.machine,
            hovertemplate=Html("{}, %{{customdata}}: %{{y:.3f}} ×<extra>{}</extra>").format(order, source),
            name=order,
        )
        figure.add_trace(trace)
        known = part.lower_bound.notna().to_numpy()
        places = [place for place, is_known in zip(trace.x, known, strict=True) if is_known]
        for line in _DASHES if places else ():
            figure.add_trace(
                go.Scatter(
                    x=places,
                    y=part.lower_bound[known],
                    mode="markers",
                    marker={"symbol": "line-ew", "size": 18, "line": line},
                    showlegend=False,
                    hovertemplate="any order: at least %{y:.3f} ×<extra></extra>",
                )
            )
    for k, order in enumerate(names):
        figure.add_trace(go.Bar(x=[None], y=[None], name=order, marker={"color": RUN_COLORS[k % len(RUN_COLORS)]}))
    for source in dict.fromkeys(table.source):
        if source == "simulated":
            figure.add_trace(go.Bar(x=[None], y=[None], name=source, marker=source_key(source, INK)))
        else:
            name = f"{source}, by real processes"
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=_marker(source)))
    if table.lower_bound.notna().any():
        key = {"symbol": "line-ew", "size": 12, "line": _DASHES[1]}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name="lower bound for any order", marker=key))
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot", "width": 1.5}, layer="below")
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


def _marker(source: str) -> dict[str, object]:
    """White within, so that it is seen on a bar of any colour."""
    line = {"width": 2, "color": INK}
    return {"symbol": _MARKERS.get(source, "x"), "size": 10, "color": "white", "line": line}
