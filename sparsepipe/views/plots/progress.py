"""Runs while they train: loss by minibatch, validation accuracy and pace by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...records.rates import MINIBATCHES, SAMPLES
from .theme import RUN_COLORS, finished, whole_ticks

_PACES = (SAMPLES, MINIBATCHES)  # whichever the rows have
_COLUMNS = ["run", "event", "seconds", "minibatch", "loss", "epoch", "validation_accuracy", *_PACES]


def progress_table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """One row for each step and epoch of each run, from its metrics so far."""
    found = []
    for name, events in rows.items():
        for row in events:
            if row["event"] == "step":
                found.append({"run": name, **{key: row[key] for key in ("event", "seconds", "minibatch", "loss")}})
            elif row["event"] == "epoch":
                accuracy = (row.get("validation") or {}).get("accuracy")
                facts = {"epoch": row["epoch"] + 1, **{name: row[name] for name in _PACES if name in row}}
                found.append(
                    {"run": name, "event": "epoch", "seconds": row["seconds"], "validation_accuracy": accuracy, **facts}
                )
    return pd.DataFrame(found, columns=_COLUMNS).astype({"loss": float, "validation_accuracy": float})


def progress(rows: Mapping[str, Sequence[Mapping[str, Any]]], *, note: str = "") -> go.Figure:
    """Draw how runs go: their names → their rows of metrics."""
    table = progress_table(rows)
    pace = next((name for name in _PACES if table[name].notna().any()), _PACES[0])
    figure = make_subplots(rows=1, cols=3, horizontal_spacing=0.09)
    for k, name in enumerate(rows):
        color = RUN_COLORS[k % len(RUN_COLORS)]
        steps, epochs = (table[(table.run == name) & (table.event == event)] for event in ("step", "epoch"))
        steps = steps.sort_values("minibatch")  # replicas tell theirs in turn
        for col, x, y, mode in (
            (1, steps.minibatch, steps.loss, "lines"),
            (2, epochs.epoch, epochs.validation_accuracy * 100, "lines+markers"),
            (3, epochs.epoch, epochs[pace], "lines+markers"),
        ):
            line = go.Scatter(x=x, y=y, mode=mode, name=name, legendgroup=name, showlegend=col == 1, line_color=color)
            figure.add_trace(line, row=1, col=col)
    for col, title, unit in (
        (1, "minibatch", "loss"),
        (2, "epochs", "validation accuracy (%)"),
        (3, "epochs", pace.replace("_per_second", "/s")),
    ):
        figure.update_xaxes(title_text=title, row=1, col=col)
        figure.update_yaxes(title_text=unit, rangemode="tozero", row=1, col=col)
    most = max((row["epoch"] + 1 for events in rows.values() for row in events if row["event"] == "epoch"), default=1)
    for col in (2, 3):
        figure.update_xaxes(dtick=whole_ticks(most), row=1, col=col)
    figure.update_layout(legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"})
    return finished(figure, "Training", note=note, width=960, height=330)
