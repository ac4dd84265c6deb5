"""Accuracy of each strategy's run, by epoch and by time."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...util.text.numbers import number_of
from ..markup import Html
from .marks import level_line
from .table import noted_of, of_readable, readable, record_names, run_places
from .theme import INK, RUN_COLORS, RUN_DASHES, RUN_MARKERS, finished, resting_on, whole_ticks

_ROOM = 1.04  # of the last epoch: its marker is whole
_MOST_MARKERS = 30  # of a line: more would hide it


_SCORES = ("train_accuracy", "validation_accuracy", "train_loss", "validation_loss")


def accuracy_table(*records: RunRecord, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row for each epoch of each run: accuracies, losses, seconds since the start of the run.

    Runs are distinguished by strategy, or by `names`. A damaged run is omitted, with a warning. Raises InputError for a
    run without a finished epoch.
    """
    found = of_readable(records, _rows)
    kept = [records[place] for place, _ in found]
    called = [names[place] for place, _ in found] if names else record_names(kept)
    table = pd.DataFrame(
        [{"strategy": name, **row} for name, (_, rows) in zip(called, found, strict=True) for row in rows]
    )
    return table.astype({column: float for column in _SCORES if column in table})  # None of all is no number, too


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    epochs = record.metrics("epoch")
    if not epochs:
        raise InputError(
            "run.no_epoch",
            f"{record.folder}: has no finished epoch ({record.status['state']}); train longer, or omit this run",
        )
    rows = []
    for row in epochs:
        validation = row.get("validation") or {}
        rows.append(
            {
                "run": record.name,
                "epoch": row["epoch"] + 1,  # epochs that are done
                "seconds": row["seconds"],
                "train_accuracy": row["train"].get("accuracy"),
                "validation_accuracy": validation.get("accuracy"),
                "train_loss": row["train"].get("loss"),
                "validation_loss": validation.get("loss"),
            }
        )
    return rows


def accuracy(
    *records: RunRecord,
    names: Sequence[str] | None = None,
    level: tuple[str, float] | None = None,
    title: str = "Accuracy by epoch and by time",
    note: str = "",
    among: Sequence[RunRecord] = (),
) -> go.Figure:
    """Draw validation accuracy (training accuracy if there is no validation) by epoch and by time.

    Runs of the same name, such as several seeds, are one line: their mean, with a band from minimum to maximum. Runs
    without such an accuracy are named in the note and omitted.

    Args:
        runs: Records of the runs.
        names: Name of each run. Default: its strategy.
        level: A name and an accuracy, drawn as a horizontal line for comparison.
        among: Runs of related figures. A run looks the same in all of them.
    """
    if names and len(names) != len(records):
        raise InputError(
            "plot.name_count", f"{len(names)} names for {number_of(len(records), 'run')}: expected one each"
        )
    called = dict(zip(map(id, records), names, strict=True)) if names else {}
    among = among or records
    records, left_out = readable(records, _rows)
    own = [called[id(record)] for record in records] if names else record_names(records)
    table = accuracy_table(*records, names=own)
    places = dict(zip(own, run_places(records, among, own), strict=True))
    column, what = (
        ("validation_accuracy", "validation")
        if table.validation_accuracy.notna().any()
        else ("train_accuracy", "training")
    )
    untold = [name for name, runs in table.groupby("strategy", sort=False) if runs[column].isna().all()]
    table = table[~table.strategy.isin(untold)]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    several = 0
    for name, runs in table.groupby("strategy", sort=False):
        k = places[name]
        count, part = _means(runs, column)
        several = max(several, count)
        color = RUN_COLORS[k % len(RUN_COLORS)]
        style = {
            "line": {"color": color, "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2},
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
                hovertemplate=Html("{}<br>{}: %{{y:.1f}}%<extra></extra>").format(name, Html(unit)),
            )
            figure.add_trace(line, row=1, col=col)
            if count > 1:
                figure.add_trace(_band(part, x, color, name), row=1, col=col)
    if level:
        label, line = f"{level[0]}: {level[1]:.1%}", {"color": INK, "width": 1, "dash": "dot"}
        for col in (1, 2):
            level_line(figure, level[1] * 100, table[column] * 100, line=line, row=1, col=col)
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=label, line=line), row=1, col=1)
    figure.update_yaxes(title_text=f"{what} accuracy (%)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.update_xaxes(
        title_text="epochs",
        dtick=whole_ticks(table.epoch.max()),
        tick0=0,
        range=[0, _ROOM * table.epoch.max()],
        row=1,
        col=1,
    )  # both axes of time begin at 0, with their lines
    figure.update_xaxes(title_text="time since launch (s)", rangemode="tozero", row=1, col=2)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}, margin={"b": 100})
    text = noted_of(note, records)
    bands = f"mean of {several} runs; band: min–max" if several > 1 else ""
    without = f"no {what} accuracy of {', '.join(untold)}" if untold else ""
    note = " · ".join(filter(None, [text, when(records), bands, without, left_out]))
    figure = finished(figure, title, note=note, height=420)
    return resting_on(figure, Provenance.of(runs=records))


def _means(runs: pd.DataFrame, column: str) -> tuple[int, pd.DataFrame]:
    """Number of runs of each name, and means over the epochs that all finished; `low` and `high` of the accuracy."""
    found = runs.groupby("epoch").agg(
        seconds=("seconds", "mean"),
        **{column: (column, "mean")},
        low=(column, "min"),
        high=(column, "max"),
        runs=(column, "size"),
    )
    count = int(found.runs.max())
    return count, found[found.runs == count].reset_index()


def _band(part: pd.DataFrame, x: pd.Series, color: str, name: str) -> go.Scatter:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return go.Scatter(
        x=[*x, *x[::-1]],
        y=[*part.high * 100, *part.low[::-1] * 100],
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.18)",
        line={"width": 0},
        mode="lines",
        legendgroup=name,
        showlegend=False,
        hoverinfo="skip",
    )
