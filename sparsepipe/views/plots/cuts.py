"""Bytes that cross a cut after each layer: features and coordinates of one minibatch."""

import pandas as pd
import plotly.graph_objects as go

from ...values.profile import Profile
from ..markup import Html
from .layer_graph import layer_graph_table
from .table import noted
from .theme import BACKWARD_COLOR, FORWARD_COLOR, SMALL, finished


def cut_bytes_table(profile: Profile, *, device_type: str | None = None) -> pd.DataFrame:
    """One row for each cut of the layers in their order: bytes that cross it, forward."""
    table = layer_graph_table(profile, device_type=device_type)
    return table[["layer", "crossing_feature_bytes", "crossing_coordinate_bytes"]].iloc[:-1]


def cut_bytes(profile: Profile, *, device_type: str | None = None, note: str = "") -> go.Figure:
    """Draw what crosses a cut after each layer. If bars are low, a boundary between stages is cheap."""
    table = cut_bytes_table(profile, device_type=device_type)
    figure = go.Figure()
    for column, name, color in (
        ("crossing_feature_bytes", "features", BACKWARD_COLOR),
        ("crossing_coordinate_bytes", "coordinates", FORWARD_COLOR),
    ):
        hover = Html("cut after %{{x}}<br>{} %{{y:.3f}} MB<extra></extra>").format(name)
        figure.add_trace(
            go.Bar(x=table.layer, y=table[column] / 1e6, name=name, marker_color=color, hovertemplate=hover)
        )
    figure.update_layout(barmode="stack", bargap=0.15, legend={"x": 0.99, "xanchor": "right", "y": 0.99})
    few = len(table) <= 80
    figure.update_xaxes(title_text="cut after layer", tickangle=-90, tickfont_size=SMALL - 2, dtick=1 if few else None)
    figure.update_yaxes(title_text="sent forward per minibatch (MB)", rangemode="tozero")
    return finished(figure, "Bytes sent by a cut after each layer", note=noted(note, profile.origin), width=900)
