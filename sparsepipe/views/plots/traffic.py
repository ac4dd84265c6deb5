"""Traffic and memory of each strategy: bytes a minibatch between devices, memory of the fullest device."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...util.text.numbers import alike, byte_unit, scaled_bytes
from ..markup import Html
from .bar_numbers import fitted
from .points import Point, looks, points_table
from .theme import FONT_SIZE, GREY, LIGHT_GREY, finished, hatch

_AXIS = 330  # pixels, about


def traffic_table(points: Sequence[Point]) -> pd.DataFrame:
    """One row for each strategy: bytes sent as activations and as gradients, memory of the fullest device."""
    return points_table(points)[
        ["strategy", "cluster", "devices", "activation_bytes", "gradient_bytes", "memory_bytes", "samples_per_second"]
    ]


def traffic(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw bytes sent (activations below, gradients above) and memory, a bar for each strategy."""
    table = traffic_table(points)
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    sent_unit, sent_size = byte_unit((table.activation_bytes + table.gradient_bytes).max())
    kept_unit, kept_size = byte_unit(table.memory_bytes.max())
    for column, label, color in (
        ("activation_bytes", "activations and their gradients", GREY),
        ("gradient_bytes", "weights' gradients", LIGHT_GREY),
    ):
        bar = go.Bar(
            x=table.strategy,
            y=table[column] / sent_size,
            name=label,
            marker={"color": color, "pattern": hatch("simulated", color), "line": {"color": GREY, "width": 1}},
            hovertemplate=Html("%{{x}}<br>{}: %{{y:,.3r}} {}<extra></extra>").format(label, sent_unit),
        )
        figure.add_trace(bar, row=1, col=1)
    fewer = alike(table.memory_bytes / kept_size, 2)
    forms = (partial(scaled_bytes, unit=kept_unit), lambda value: fewer(value / kept_size))  # the axis has the unit
    numbers = fitted(table.memory_bytes, _AXIS / len(table), forms, size=FONT_SIZE)
    colors = [looks(name)["color"] for name in table.strategy]
    memory = go.Bar(
        x=table.strategy,
        y=table.memory_bytes / kept_size,
        marker={"color": colors, "pattern": hatch("simulated", colors[0])},  # the lines of each plotly chooses itself
        **numbers.of_bars(table.memory_bytes),
        showlegend=False,
        hovertemplate="%{x}: %{text}<extra></extra>",
    )
    figure.add_trace(memory, row=1, col=2)
    figure.update_yaxes(title_text=f"sent per minibatch ({sent_unit})", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text=f"peak memory, worst device ({kept_unit})", rangemode="tozero", row=1, col=2)
    figure.update_xaxes(ticks="", showgrid=False, tickangle=-30)
    legend = {"orientation": "h", "x": 0, "y": -0.34, "yanchor": "top", "traceorder": "normal"}
    figure.update_layout(barmode="stack", legend=legend, margin={"b": 130})
    return finished(figure, "Predicted traffic and peak memory by strategy", note=note, width=900, height=450)
