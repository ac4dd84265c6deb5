"""A figure that says that there is nothing to draw: its data are missing."""

import plotly.graph_objects as go

from ..markup import figure_text
from .theme import GREY, finished

NOT_HERE = "data set not found"


def nothing_to_draw(title: str, *, note: str = "", text: str = NOT_HERE) -> go.Figure:
    """An empty figure with a line in its middle."""
    figure = go.Figure(go.Scatter(x=[None], y=[None], showlegend=False))
    figure.add_annotation(
        text=figure_text(text), x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"color": GREY}
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return finished(figure, title, note=note, height=220)
