"""Time, output bytes and parameters of each layer: bars by layer, a panel for each quantity."""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...util.text.sizes import size_words
from ...values.profile import Profile
from ..markup import Html
from .table import noted
from .theme import BACKWARD_COLOR, BESIDE_TITLE, FORWARD_COLOR, GREY, SMALL, finished

_NAMED = 80  # layers that can be named along the axis; of more, plotly names some


def layer_costs_table(profile: Profile, *, size: float | None = None) -> pd.DataFrame:
    """One row for each layer and device type, for a minibatch of this size (the mean one when not given)."""
    at = profile.size() if size is None else size
    rows = []
    for kind in profile.device_types:
        for k, layer in enumerate(profile.graph.layers):
            cost = profile.cost(k, kind, at)
            rows.append(
                {
                    "layer": layer.id,
                    "device_type": kind,
                    profile.size_unit: at,
                    "forward_seconds": cost.forward,
                    "backward_seconds": cost.backward,
                    "forward_spread_seconds": cost.forward_spread,
                    "backward_spread_seconds": cost.backward_spread,
                    "output_bytes": cost.output_bytes,
                    "parameter_bytes": layer.parameter_bytes,
                }
            )
    return pd.DataFrame(rows)


def layer_costs(profile: Profile, *, size: float | None = None, note: str = "") -> go.Figure:
    """Draw each layer's forward and backward time (a panel for each device type), its output and its parameters.

    The thin line on a bar is the interquartile range of its time.
    """
    table = layer_costs_table(profile, size=size)
    kinds = profile.device_types
    figure = make_subplots(rows=len(kinds) + 2, cols=1, shared_xaxes=True, vertical_spacing=0.045)
    for row, kind in enumerate(kinds, start=1):
        part = table[table.device_type == kind]
        whole = part.forward_seconds + part.backward_seconds
        half = (part.forward_spread_seconds + part.backward_spread_seconds) / 2
        below = half.clip(upper=whole) * 1e3
        spread = {"array": half * 1e3, "arrayminus": below, "thickness": 1, "width": 2, "color": GREY}
        for name, color in (("forward", FORWARD_COLOR), ("backward", BACKWARD_COLOR)):
            bar = go.Bar(
                x=part.layer,
                y=part[f"{name}_seconds"] * 1e3,
                name=name,
                marker_color=color,
                error_y=spread if name == "backward" and half.any() else None,
                showlegend=row == 1,
                hovertemplate=Html("%{{x}}<br>{} %{{y:.3f}} ms<extra>{}</extra>").format(name, kind),
            )
            figure.add_trace(bar, row=row, col=1)
        figure.update_yaxes(rangemode="tozero", row=row, col=1)
        figure.update_yaxes(title_text=f"{kind} (ms)" if len(kinds) > 1 else "time (ms)", row=row, col=1)
        if row > 1:  # one scale for all device types: which one is faster shows
            figure.update_yaxes(matches="y", row=row, col=1)
    part = table[table.device_type == kinds[0]]
    for row, column, what in (
        (len(kinds) + 1, "output_bytes", "output"),
        (len(kinds) + 2, "parameter_bytes", "parameters"),
    ):
        bar = go.Bar(
            x=part.layer,
            y=part[column] / 1e6,
            marker_color=GREY,
            showlegend=False,
            hovertemplate=Html("%{{x}}<br>{} %{{y:.3f}} MB<extra></extra>").format(what),
        )
        figure.add_trace(bar, row=row, col=1)
        figure.update_yaxes(title_text=f"{what} (MB)", row=row, col=1)
    figure.update_layout(barmode="stack", bargap=0.15, legend={**BESIDE_TITLE, "traceorder": "normal"})
    few = len(profile.graph.layers) <= _NAMED
    figure.update_xaxes(tickangle=-90, tickfont_size=SMALL - 2, dtick=1 if few else None, row=len(kinds) + 2, col=1)
    figure.update_xaxes(ticks="", row=1, col=1)
    text = noted(note, profile.origin)
    at = table[profile.size_unit].iloc[0]
    count = f"{at:,.0f} {size_words(profile.size_unit)} per minibatch" if at else ""
    lines = "thin lines: interquartile range over passes" if table.backward_spread_seconds.any() else ""
    second = " · ".join(part for part in (text, count, lines) if part)
    return finished(figure, "Cost of each layer", note=second, width=900, height=260 + 150 * (len(kinds) + 1))
