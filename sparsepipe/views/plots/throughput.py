"""How fast each strategy trains: samples per second, predicted (light) next to measured (full), or emulated."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...records.workload_facts import MINIBATCHES, SAMPLES
from ...util.text.numbers import as_measured
from ..markup import Html
from .marks import SHORTER, fitted, in_room
from .table import noted_of, of_readable, readable, record_names, run_places
from .theme import FONT_SIZE, RUN_COLORS, WIDTH, bar_marker, finished, resting_on, source_key

_AROUND, _LEAST = 110, 90  # pixels beside the axis, about, and of it for each strategy at least
_APART = 6  # pixels between two names side by side
_PAIR = 0.75  # of the distance between two strategies is taken by their bars


def throughput_table(*records: RunRecord, partial: bool = False) -> pd.DataFrame:
    """One row for each run: measured steady-state samples/s, and what its plan predicts (one minibatch a period).

    A damaged run is left out, with a warning. Raises InputError for a run without a summary: one that did not finish;
    `partial`: only where it did not even do two minibatches. Its pace is then that of what it did, and `state` says so.
    If the samples of a minibatch are not known of all runs, the columns have minibatches/s of all of them.
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
    """Draw samples/s of each run compared with what its plan predicts; `partial`: of runs that did not finish, too.

    Minibatches/s, where the samples of a minibatch are not known of all of them.

    `among`: the runs of figures alongside this one; a run has the same colour in all of them (see `run_places`).
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
