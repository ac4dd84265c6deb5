"""A line across a pane at what the data are compared with, with room between it and the pane's edge."""

from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go

_ROOM = 1.07  # of the highest thing drawn: where an axis from 0 ends


def level_line(
    figure: go.Figure, level: float, drawn: Iterable[float], *, line: Mapping[str, Any], **pane: int
) -> None:
    """Draw a line at `level` across a pane (`row`, `col`) whose axis begins at 0 and which shows `drawn`.

    plotly ends an axis at a shape that is higher than all data: the line would lie on the edge.
    """
    figure.add_hline(level, line=dict(line), **pane)
    top = max((value for value in drawn if value == value), default=0.0)  # without NaN
    if level * _ROOM > top:
        figure.update_yaxes(range=[0, _ROOM * max(level, top)], **pane)
