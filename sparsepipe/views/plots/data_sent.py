"""Bytes that runs send, and what compression saves."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.provenance import Provenance
from ...util.text.numbers import alike, byte_unit, scaled_bytes
from ..markup import Html
from .marks import fitted
from .table import Point, looks, noted_of, of_readable, points_table, readable
from .theme import FONT_SIZE, GREY, INK, LIGHT_GREY, RUN_COLORS, bar_marker, finished, with_held_up

_SPREAD = 0.5  # of the distance between two ways to compress is taken by the seeds of one
DEFAULT = "default"  # none, or lossless through sockets


def compression_table(*records: RunRecord) -> pd.DataFrame:
    """One row for each run: how it compressed, its seed, what its last epoch reached, bytes sent for a minibatch.

    A damaged run is left out, with a warning. Raises InputError for a run without a validated epoch.
    """
    return pd.DataFrame([row for _, row in of_readable(records, _row)])


def _row(record: RunRecord) -> dict[str, Any]:
    epochs = record.metrics("epoch")
    if not epochs or not epochs[-1]["validation"]:
        raise InputError(
            "run.no_validation",
            f"{record.folder}: has no validated epoch ({record.status['state']}); omit this run",
        )
    if (accuracy := epochs[-1]["validation"].get("accuracy")) is None:
        raise InputError("run.no_accuracy", f"{record.folder}: its validation reports no accuracy; omit this run")
    minibatches = max(epochs[-1]["minibatches"], 1) / len(epochs)
    return {
        "compression": record.config["compression"] or DEFAULT,
        "run": record.name,
        "seed": record.config["seed"],
        "validation_accuracy": accuracy,
        "train_loss": epochs[-1]["train"]["loss"],
        "sent_bytes": epochs[-1]["sent_bytes"] / minibatches,
    }


def compression(*records: RunRecord, note: str = "") -> go.Figure:
    """Draw a bar of bytes for each way to compress, and next to it the accuracies of its seeds, a line at their mean.

    A way with fewer seeds than others has none: its mean would be of other seeds.
    """
    records, left_out = readable(records, _row)
    table = compression_table(*records)
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    sent = table.groupby("compression", sort=False).sent_bytes.mean() / 1e3
    bars = go.Bar(
        x=sent.index,
        y=sent,
        marker={"color": GREY},
        showlegend=False,
        hovertemplate="%{x}: %{y:.1f} kB per minibatch<extra></extra>",
    )
    figure.add_trace(bars, row=1, col=1)
    found = table.groupby("compression", sort=False).validation_accuracy.agg(["mean", "count"])
    means = found["mean"][found["count"] == found["count"].max()] * 100  # of other seeds' it would be another thing
    mean = go.Scatter(
        x=[list(found.index).index(way) for way in means.index],
        y=means,
        mode="markers",
        name="mean",
        marker={"symbol": "line-ew", "size": 26, "line": {"width": 2, "color": INK}},
        customdata=means.index,
        hovertemplate="%{customdata}: %{y:.1f}% on average<extra></extra>",
    )
    ways, width = list(found.index), _SPREAD / max(table.seed.nunique(), 1)
    seeds = [
        go.Scatter(  # side by side: seeds that reached the same would hide each other
            x=[ways.index(way) + (k - (table.seed.nunique() - 1) / 2) * width for way in own.compression],
            y=own.validation_accuracy * 100,
            mode="markers",
            name=f"seed {seed}",
            marker={"color": RUN_COLORS[k % len(RUN_COLORS)], "size": 8},
            customdata=own.compression,
            hovertemplate="%{customdata}, %{fullData.name}: %{y:.1f}%<extra></extra>",
        )
        for k, (seed, own) in enumerate(table.groupby("seed", sort=False))
    ]
    for trace in (mean, *seeds):
        figure.add_trace(trace, row=1, col=2)
    figure.update_yaxes(title_text="sent per minibatch (kB)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="validation accuracy (%)", row=1, col=2)
    figure.update_xaxes(ticks="", showgrid=False, zeroline=False, tickangle=-30)
    figure.update_xaxes(tickvals=list(range(len(ways))), ticktext=ways, row=1, col=2)
    figure.update_layout(legend={"orientation": "h", "x": 1, "xanchor": "right", "y": -0.26, "yanchor": "top"})
    text = noted_of(note, records)
    fewer = [way for way, count in found["count"].items() if count < found["count"].max()]
    alone = f"no mean line (fewer seeds): {', '.join(fewer)}" if fewer else ""
    note = " · ".join(filter(None, [text, alone, left_out]))
    figure = finished(figure, "Compression of stage boundaries: bytes saved and accuracy", note=note, height=420)
    return with_held_up(figure, Provenance.of(runs=records).held_up)


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
            marker={"color": color, "line": {"color": GREY, "width": 1}},
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
        marker=bar_marker("simulated", colors),
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
