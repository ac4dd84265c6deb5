"""Accuracy, loss or another number over hours, seconds or minibatches: a panel a task, a line a system."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..markup import Html
from .nothing import nothing_to_draw
from .system_bars import system_places
from .theme import RUN_COLORS, RUN_DASHES, RUN_MARKERS, SMALL, finished

Curve = Sequence[tuple[float, float]]  # (hours, seconds or minibatches, value)
Panels = Mapping[str, Mapping[str, Curve]]  # task → system → curve
_MOST_POINTS = 2000  # of a line on screen; the table has all
_MOST_MARKERS = 30  # of a line: more would hide it
_PANEL, _COLUMNS = 230, 3
# What an axis is called, and the unit of a point on it.
_CLOCKS = {"hours": ("time (h)", "h"), "seconds": ("time (s)", "s"), "minibatches": ("minibatch", "minibatches")}


def learning_curves_table(panels: Panels, *, clock: str = "hours") -> pd.DataFrame:
    """One row for each point of each system's curve on each task; `clock` is the column of when."""
    rows = [
        {"task": task, "system": system, clock: when, "value": value}
        for task, curves in panels.items()
        for system, curve in curves.items()
        for when, value in curve
    ]
    return pd.DataFrame(rows, columns=["task", "system", clock, "value"])


def learning_curves(
    panels: Panels,
    *,
    unit: str = "top-1 accuracy (%)",
    clock: str = "hours",
    title: str = "",
    note: str = "",
    among: Sequence[str] = (),
) -> go.Figure:
    """Draw curves over hours, or "seconds" or "minibatches" where that is the `clock` of their points.

    A task whose name has a unit in brackets at its end has that for its own axis: "BERT (loss)", "light (accuracy, %)".
    `among`: the systems of the figures alongside this one, as `system_bars` takes them: a system has one colour in all.
    Raises ValueError for another clock.
    """
    if clock not in _CLOCKS:
        raise ValueError(f"clock {clock!r}, expected one of {', '.join(_CLOCKS)}")
    axis, unit_of_x = _CLOCKS[clock]
    title = title or f"Accuracy by {clock}"
    if not panels:
        return nothing_to_draw(title, note=note)
    tasks = list(panels)
    systems = system_places([system for curves in panels.values() for system in curves], among)
    columns = min(_COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    names = [task.rpartition(" (")[0] or task for task in tasks]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=names if len(tasks) > 1 else None,
        horizontal_spacing=0.09,
        vertical_spacing=0.2 / max(1, rows - 1),
    )
    for place, task in enumerate(tasks):
        row, column = place // columns + 1, place % columns + 1
        for system, curve in panels[task].items():
            k = systems[system]
            shown = curve[:: max(1, len(curve) // _MOST_POINTS)]
            line = go.Scatter(
                x=[when for when, _ in shown],
                y=[value for _, value in shown],
                mode="lines+markers" if len(shown) <= _MOST_MARKERS else "lines",
                name=system,
                legendgroup=system,
                showlegend=not any(system in panels[before] for before in tasks[:place]),
                line={"color": RUN_COLORS[k % len(RUN_COLORS)], "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2},
                marker={"symbol": RUN_MARKERS[k % len(RUN_MARKERS)], "size": 6},
                hovertemplate=Html("{}<br>%{{x:,.3r}} {}: %{{y:,.4r}}<extra></extra>").format(system, unit_of_x),
            )
            figure.add_trace(line, row=row, col=column)
        own = task.rpartition(" (")[2].rstrip(")").replace(", %", " (%)") if " (" in task else unit
        figure.update_yaxes(title_text=own, rangemode="tozero", row=row, col=column)
        figure.update_xaxes(title_text=axis, rangemode="tozero", row=row, col=column)
    figure.update_annotations(font_size=SMALL + 1)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"},
        margin={"t": 98 if len(tasks) > 1 else 64, "b": 90},
    )
    return finished(figure, title, note=note, height=180 + _PANEL * rows)
