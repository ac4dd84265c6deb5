"""What each strategy learns: accuracy by epoch and by time, side by side."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..errors import InputError
from ..record import RunRecord
from .table import noted, record_names, told_by, trained_on
from .theme import INK, RUN_COLORS, RUN_DASHES, RUN_MARKERS, SMALL, finished

_MOST_MARKERS = 30  # of a line: more would hide it


def accuracy_table(*records: RunRecord, names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row for each epoch of each run: accuracies, losses, seconds since the run began.

    Runs are told apart by strategy, or by `names`. Raises InputError for a run without a finished epoch.
    """
    rows = []
    for name, record in zip(names or record_names(records), records, strict=True):
        epochs = record.metrics("epoch")
        if not epochs:
            raise InputError(
                f"{record.folder}: has no finished epoch ({record.status['state']}); train it longer, or leave it out"
            )
        for row in epochs:
            validation = row.get("validation") or {}
            rows.append(
                {
                    "strategy": name,
                    "run": record.name,
                    "epoch": row["epoch"] + 1,  # epochs that are done
                    "seconds": row["seconds"],
                    "train_accuracy": row["train"].get("accuracy"),
                    "validation_accuracy": validation.get("accuracy"),
                    "train_loss": row["train"].get("loss"),
                    "validation_loss": validation.get("loss"),
                }
            )
    return pd.DataFrame(rows)


def accuracy(
    *records: RunRecord, names: Sequence[str] | None = None, level: tuple[str, float] | None = None, note: str = ""
) -> go.Figure:
    """Draw validation accuracy (training accuracy where there is no validation) by epoch and by time.

    `level`: what it is held against, a name and an accuracy, as a line across.
    """
    table = accuracy_table(*records, names=names)
    column, what = (
        ("validation_accuracy", "validation")
        if table.validation_accuracy.notna().any()
        else ("train_accuracy", "training")
    )
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    for k, (name, part) in enumerate(table.groupby("strategy", sort=False)):
        style = {
            "line": {"color": RUN_COLORS[k % len(RUN_COLORS)], "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2},
            "marker": {"symbol": RUN_MARKERS[k % len(RUN_MARKERS)], "size": 7},
        }
        for col, x, unit in ((1, part.epoch, "epoch %{x}"), (2, part.seconds, "%{x:.1f} s")):
            line = go.Scatter(
                x=x,
                y=part[column] * 100,
                mode="lines+markers" if len(part) <= _MOST_MARKERS else "lines",
                name=name,
                legendgroup=name,
                showlegend=col == 1,
                **style,
                hovertemplate=f"{name}<br>{unit}: %{{y:.1f}} %<extra></extra>",
            )
            figure.add_trace(line, row=1, col=col)
    if level:
        label = f"{level[0]}: {level[1]:.1%}"
        figure.add_hline(level[1] * 100, line={"color": INK, "width": 1, "dash": "dot"}, row=1, col="all")
        figure.add_annotation(
            x=0.02,
            xref="x domain",
            y=level[1] * 100,
            yref="y",
            yanchor="bottom",
            text=label,
            showarrow=False,
            font={"size": SMALL, "color": INK},
        )
    figure.update_yaxes(title_text=f"{what} accuracy (%)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.update_xaxes(title_text="epochs", tickformat="d", row=1, col=1)
    figure.update_xaxes(title_text="time since launch (s)", rangemode="tozero", row=1, col=2)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}, margin={"b": 100})
    text = noted(note, told_by(records)) if note else trained_on(records)
    return finished(figure, "Accuracy by epoch and by time", note=text, height=420)
