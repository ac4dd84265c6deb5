"""How fast each strategy trains: samples per second, predicted (light) next to measured (full), or emulated.

Their bytes sent, and what compression saves of them, beside.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...records.run_progress import MINIBATCHES, SAMPLES
from ...util.text.numbers import alike, as_measured, byte_unit, scaled_bytes
from ..markup import Html
from .marks import SHORTER, fitted, in_room
from .table import Point, looks, noted_of, of_readable, points_table, readable, record_names, run_places
from .theme import (
    FONT_SIZE,
    GREY,
    INK,
    LIGHT_GREY,
    RUN_COLORS,
    WIDTH,
    bar_marker,
    finished,
    resting_on,
    source_key,
    with_held_up,
)

_AROUND, _LEAST = 110, 90  # pixels beside the axis, about, and of it for each strategy at least
_APART = 6  # pixels between two names side by side
_PAIR = 0.75  # of the distance between two strategies is taken by their bars


def throughput_table(*records: RunRecord, partial: bool = False) -> pd.DataFrame:
    """Return one row for each run: measured steady-state throughput, and the prediction of its plan.

    A damaged run is omitted, with a warning. With `partial`, an unfinished run of two minibatches or more has the
    throughput so far, and `state` names its state. If the samples per minibatch of any run are unknown, the columns are
    in minibatches/s. Raises InputError for a run without a summary, or with `partial` for one of fewer than two
    minibatches.
    """
    found = of_readable(records, _partial_row if partial else _row)
    names = record_names([records[place] for place, _ in found])
    table = pd.DataFrame([{"strategy": name, **row} for name, (_, row) in zip(names, found, strict=True)])
    if not all(records[place].knows_samples for place, _ in found):
        for column in (f"predicted_{SAMPLES}", SAMPLES):
            table[column] = table[column].astype(float) / table.batch_size
        table = table.rename(columns={name: name.replace(SAMPLES, MINIBATCHES) for name in table.columns})
        table["batch_size"] = [row["batch_size"] if records[place].knows_samples else None for place, row in found]
    paces = table[SAMPLES if SAMPLES in table else MINIBATCHES]
    table["speedup_over_first"] = paces / paces.iloc[0]
    return table


def pace_of(record: RunRecord) -> float | None:
    """Samples/s of a run: of its summary, else of its last epoch, else of its minibatches so far; None before two.

    None, too, of a run that does not know how many samples a minibatch has.
    """
    return _counted(record) if record.knows_samples else None


def _counted(record: RunRecord) -> float | None:
    """The pace of a run by its settings' batch size, which is 1 if no one knows it."""
    for event in ("summary", "epoch"):
        rows = [pace for row in record.metrics(event) if (pace := row.get(SAMPLES, row.get(MINIBATCHES))) is not None]
        if rows:
            return float(rows[-1])
    steps = record.metrics("step")
    seconds = steps[-1]["seconds"] - steps[0]["seconds"] if steps else 0.0
    return sum(row.get("samples", 0) for row in steps[1:]) / seconds if seconds > 0 else None


def _partial_row(record: RunRecord) -> dict[str, Any]:
    if record.metrics("summary"):
        return _row(record) | {"state": record.status["state"]}
    pace = _counted(record)
    if pace is None:
        raise InputError(
            "run.too_short",
            f"{record.folder}: has fewer than two minibatches ({record.status['state']}); omit this run",
        )
    return _told(record, pace) | {"state": record.status["state"]}


def _row(record: RunRecord) -> dict[str, Any]:
    summaries = record.metrics("summary")
    if not summaries:
        raise InputError(
            "run.no_summary",
            f"{record.folder}: has no summary ({record.status['state']}); complete the run (train --resume), or omit "
            "it",
        )
    return _told(record, summaries[-1][SAMPLES if record.knows_samples else MINIBATCHES])


def _told(record: RunRecord, samples_per_second: float) -> dict[str, Any]:
    batch_size, estimate = record.config["batch_size"], record.plan.estimate
    period = estimate.period_seconds if estimate else None  # of several pipelines if none waits
    return {
        "run": record.name,
        "processes": len(record.plan.ranks),
        SAMPLES: samples_per_second,
        f"predicted_{SAMPLES}": batch_size / period if period else None,
        "batch_size": batch_size,
        "model": record.model,
    }


def throughput(
    *records: RunRecord,
    title: str = "Throughput by strategy",
    note: str = "",
    partial: bool = False,
    among: Sequence[RunRecord] = (),
) -> go.Figure:
    """Draw the measured throughput of each run and the prediction of its plan, in samples/s.

    If the samples per minibatch of any run are unknown, the unit is minibatches/s.

    Args:
        partial: Whether unfinished runs are drawn, too.
        among: Runs of related figures. A run has the same colour in all of them.
    """
    among = among or records
    records, left_out = readable(records, _partial_row if partial else _row)
    table = throughput_table(*records, partial=partial)
    if partial:
        ended = zip(table.strategy, table.state, strict=True)
        table["strategy"] = [name if state == "finished" else f"{name} ({state})" for name, state in ended]
    figure = go.Figure()
    pace, unit = (SAMPLES, "samples/s") if SAMPLES in table else (MINIBATCHES, "minibatches/s")
    columns = {f"predicted_{pace}": "predicted", pace: "measured"}
    shown = {column: place for column, place in columns.items() if table[column].notna().any()}
    paces = table[[*shown]].astype(float).to_numpy().ravel()
    width = max(WIDTH, _AROUND + _LEAST * len(table))
    room = (width - _AROUND) / len(table)
    numbers = fitted(paces, _PAIR * room / max(len(shown), 1), SHORTER, size=FONT_SIZE)
    keys: dict[str, tuple[str, str]] = {}  # in the legend → source, and whose place in a pair it has
    for k, record, row in zip(run_places(records, among), records, table.to_dict("records"), strict=True):
        color = RUN_COLORS[k % len(RUN_COLORS)]
        done = record.workload.source
        for column, place in shown.items():
            source, label = ("simulated", place) if place == "predicted" else (done, done)
            keys[label] = source, place
            bar = go.Bar(
                x=[_in_lines(row["strategy"], room)],
                y=[row[column]],
                offsetgroup=place,
                showlegend=False,
                marker=bar_marker(source, color),
                **numbers.of_bars([row[column]]),
                hovertemplate=Html("%{{x}}<br>{} {} {}<extra></extra>").format(
                    label, as_measured(row[column] or 0.0), unit
                ),
            )
            figure.add_trace(bar)
    for label, (source, place) in keys.items():  # in grey: colours stand for strategies, the tone for the source
        figure.add_trace(go.Bar(x=[None], y=[None], name=label, offsetgroup=place, marker=source_key(source)))
    figure.update_layout(
        barmode="group",
        bargap=1 - _PAIR,
        bargroupgap=0.08,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
    )
    figure.update_yaxes(title_text=unit, rangemode="tozero")
    figure.update_xaxes(ticks="", showgrid=False, tickangle=0)
    text = noted_of(note, records)
    note = " · ".join(filter(None, [text, when(records), left_out]))
    figure = finished(figure, title, note=note, width=width)
    return resting_on(figure, Provenance.of(runs=records))


def _in_lines(name: str, room: float) -> Html:
    """A strategy's name, with what distinguishes it from another, in lines that take so many pixels at most."""
    parts = name.replace(" (", "\n(").replace(", ", ",\n").split("\n")
    return Html("<br>").join(in_room(part, room - _APART, FONT_SIZE) for part in parts)


_SPREAD = 0.5  # of the distance between two ways to compress is taken by the seeds of one
DEFAULT = "default"  # none, or lossless through sockets


def compression_table(*records: RunRecord) -> pd.DataFrame:
    """Return one row for each run: encoding, seed, metrics of the last epoch, bytes sent per minibatch.

    A damaged run is omitted, with a warning. Raises InputError for a run without a validated epoch.
    """
    return pd.DataFrame([row for _, row in of_readable(records, _compressed)])


def _compressed(record: RunRecord) -> dict[str, Any]:
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
    """Draw the bytes of each encoding as a bar, and the accuracies of its seeds with a line at their mean.

    An encoding with fewer seeds than the others has no mean, because it would be a mean of other seeds.
    """
    records, left_out = readable(records, _compressed)
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
    """Return one row for each strategy: bytes sent as activations and as gradients, peak memory of the worst device."""
    return points_table(points)[
        ["strategy", "cluster", "devices", "activation_bytes", "gradient_bytes", "memory_bytes", "samples_per_second"]
    ]


def traffic(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw bytes sent (activations below, gradients above) and peak memory, a bar for each strategy."""
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
