"""Strategies on clusters of unlike devices: throughput of each, and how far below the best possible it is."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from ..markup import Html, figure_text
from .bar_numbers import fitted
from .points import Point, looks, points_table
from .theme import DARK_GREY, INK, SMALL, finished, hatch

_ABOVE = 0.008  # of the axis is free between the bound and the labels above it
_AXIS = 780  # pixels, about
_GROUP = 0.86  # of the distance between two clusters is taken by the bars of one


def mixes_table(points: Sequence[Point]) -> pd.DataFrame:
    """One row for each point; `gap`: the share of the bound that is missing."""
    table = points_table(points)
    table["gap"] = (1 - table.samples_per_second / table.bound_samples_per_second).clip(lower=0)
    return table


def mixes(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each cluster, with its bound, and above it each bar's gap to it in per cent.

    The bound is proven, the optimum is not known: what is missing to the bound may not be there to be had.
    """
    table = mixes_table(points)
    clusters, strategies = (list(dict.fromkeys(table[column])) for column in ("cluster", "strategy"))
    step = _GROUP / len(strategies)
    table["place"] = [
        clusters.index(row.cluster) + (strategies.index(row.strategy) - (len(strategies) - 1) / 2) * step
        for row in table.itertuples()
    ]
    most = max(table.bound_samples_per_second.max(), table.samples_per_second.max())
    figure = go.Figure()
    for name, part in table.groupby("strategy", sort=False):
        color = looks(name)["color"]
        bar = go.Bar(
            x=part.place,
            y=part.samples_per_second,
            width=0.92 * step,
            name=name,
            marker={"color": color, "pattern": hatch("simulated", color)},
            customdata=part.cluster,
            hovertemplate=Html("{}<br>%{{customdata}}: %{{y:.0f}} samples/s<extra></extra>").format(name),
        )
        figure.add_trace(bar)
    bounds = table.drop_duplicates("cluster")
    line = {"color": INK, "width": 1.5, "dash": "dot"}
    for k, bound in enumerate(bounds.bound_samples_per_second):
        figure.add_shape(type="line", x0=k - 0.46, x1=k + 0.46, y0=bound, y1=bound, line=line)
    key = "provable upper bound for this profile"
    figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=key, line=line))
    # In one row above the bound, where neither the line nor a bar crosses them.
    tops = table[["samples_per_second", "bound_samples_per_second"]].max(axis=1) + _ABOVE * most
    gaps = fitted(table.gap, step * _AXIS / len(clusters), ["{:.0%}".format], size=SMALL - 1)
    figure.add_trace(gaps.over(table.place, tops, table.gap, width=0.92 * step))
    drawn = set(zip(table.cluster, table.strategy, strict=True))
    for c, cluster in enumerate(clusters):
        for s, name in enumerate(strategies):
            if (cluster, name) not in drawn:
                figure.add_annotation(
                    x=c + (s - (len(strategies) - 1) / 2) * step,
                    y=0,
                    yanchor="bottom",
                    text=f"{name}: no plan",
                    textangle=-90,
                    showarrow=False,
                    font={"size": SMALL - 1, "color": DARK_GREY},
                )
    figure.update_layout(
        barmode="overlay",
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        margin={"b": 140},
    )
    figure.update_yaxes(title_text="samples/s, simulated", range=[0, most * 1.12])
    labels = [figure_text(name).replace(" + ", Html(" +<br>")) for name in clusters]
    figure.update_xaxes(
        tickvals=list(range(len(clusters))),
        ticktext=labels,
        range=[-0.5, len(clusters) - 0.5],
        ticks="",
        showgrid=False,
        tickangle=0,
    )
    title = "Heterogeneous devices: simulated throughput and optimality gap"
    note = " · ".join(filter(None, [note, "above each bar: optimality gap"]))
    return finished(figure, title, note=note, width=900, height=500)
