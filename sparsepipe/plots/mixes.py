"""Strategies on clusters of unlike devices: throughput of each, and how far below the best possible it is."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from .points import Point, looks, points_table
from .theme import INK, SMALL, finished, hatch

_LABEL = 0.06  # height of a bar's label, as a share of the highest bound


def mixes_table(points: Sequence[Point]) -> pd.DataFrame:
    """One row for each point; `gap`: the share of the bound that is missing."""
    table = points_table(points)
    table["gap"] = (1 - table.samples_per_second / table.bound_samples_per_second).clip(lower=0)
    return table


def mixes(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each cluster, with its bound, and each bar's gap to it in per cent."""
    table = mixes_table(points)
    most = table.bound_samples_per_second.max()
    figure = go.Figure()
    for name, part in table.groupby("strategy", sort=False):
        bar = go.Bar(
            x=[name.replace(" + ", " +<br>") for name in part.cluster],
            y=part.samples_per_second,
            name=name,
            marker={"color": looks(name)["color"], "pattern": hatch("simulated")},
            text=[f"{row.gap:.0%}{_lifted(row.gap * row.bound_samples_per_second, most)}" for row in part.itertuples()],
            textposition="outside",
            textfont_size=SMALL - 2,
            textangle=0,
            constraintext="none",
            cliponaxis=False,
            customdata=part.cluster,
            hovertemplate=f"{name}<br>%{{customdata}}: %{{y:.0f}} samples/s<extra></extra>",
        )
        figure.add_trace(bar)
    bounds = table.drop_duplicates("cluster")
    for k, bound in enumerate(bounds.bound_samples_per_second):
        line = {"color": INK, "width": 1.5, "dash": "dot"}
        figure.add_shape(type="line", x0=k - 0.46, x1=k + 0.46, y0=bound, y1=bound, line=line)
    figure.add_trace(
        go.Scatter(x=[None], y=[None], mode="lines", name="no plan is faster; above bars: what is missing", line=line)
    )
    figure.update_layout(
        barmode="group",
        bargroupgap=0.06,
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        margin={"b": 140},
    )
    figure.update_yaxes(title_text="samples / s", range=[0, most * 1.12])
    figure.update_xaxes(ticks="", showgrid=False, tickangle=0)
    return finished(figure, "Unlike devices: throughput and gap to the optimum", note=note, width=900, height=500)


def _lifted(missing: float, most: float) -> str:
    """An empty line below a label that the bound's line would cross."""
    return "<br> " if 0.004 < missing / most < _LABEL else ""
