"""Loss of runs by samples and by seconds: what a rule learns from as much data, and in as much time."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...values.replication import rule_text
from ..markup import Html
from .outcomes import NOBODY, rule_color
from .table import noted_of, of_readable, readable, record_names
from .theme import RUN_DASHES, finished, resting_on

_WINDOWS = 15  # a line is a mean over so many-th a part of a run: minibatches differ


def losses_table(*records: RunRecord) -> pd.DataFrame:
    """One row for each minibatch of each run in the order in which they were done, seconds since the first one.

    `smooth_loss` is the mean of the latest minibatches. A damaged run is left out, with a warning. Raises InputError
    for a run without a loss: one that did not train.
    """
    found = of_readable(records, _rows)
    kept = [records[place] for place, _ in found]
    tables = []
    for name, record, (_, rows) in zip(_names(kept), kept, found, strict=True):
        table = pd.DataFrame(rows)
        table["seconds"] -= table.seconds.iloc[0]
        table["samples"] = table.samples.cumsum()
        table["smooth_loss"] = table.loss.rolling(max(1, len(table) // _WINDOWS), min_periods=1).mean()
        tables.append(table.assign(rule=name, straggler=straggler_of(record), run=record.name))
    return pd.concat(tables, ignore_index=True)


def losses(*records: RunRecord, note: str = "") -> go.Figure:
    """Draw each run's loss over the samples that it has seen, and over seconds."""
    records, left_out = readable(records, _rows)
    table = losses_table(*records)
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05)
    for k, (run, part) in enumerate(table.groupby("run", sort=False)):
        name = part.rule.iloc[0]
        looks = {"color": rule_color(name), "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2}
        by_samples = Html("{}<br>%{{x:.0f}} samples: %{{y:.3f}}<extra></extra>")
        by_seconds = Html("{}<br>%{{x:.1f}} s: %{{y:.3f}}<extra></extra>")
        for col, x, hover in ((1, part.samples, by_samples), (2, part.seconds, by_seconds)):
            line = go.Scatter(
                x=x,
                y=part.smooth_loss,
                mode="lines",
                name=name,
                legendgroup=run,
                showlegend=col == 1,
                line=looks,
                hovertemplate=hover.format(name),
            )
            figure.add_trace(line, row=1, col=col)
    figure.update_yaxes(title_text="loss", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.update_xaxes(title_text="samples, of all pipelines", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="time since the first minibatch (s)", rangemode="tozero", row=1, col=2)
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}, margin={"b": 100}
    )
    text = noted_of(note, records)
    stragglers = dict.fromkeys(straggler_of(record) for record in records)
    told = " · ".join(filter(None, [text, *stragglers, when(records), left_out]))
    figure = finished(figure, "Loss by samples and by time", note=told, height=420)
    return resting_on(figure, Provenance.of(runs=records))


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    rows = [row for row in record.metrics("step") if row.get("loss") is not None]
    if not rows:
        raise InputError(
            "run.no_loss", f"{record.folder}: no minibatch has a loss ({record.status['state']}); omit this run"
        )
    columns = ("minibatch", "seconds", "loss", "samples")
    return [{"pipeline": row.get("pipeline", 0), **{key: row[key] for key in columns}} for row in rows]


def _names(records: Sequence[RunRecord]) -> list[str]:
    """Each run by its rule; one without by its strategy."""
    plans = [record.plan for record in records]
    return [
        name if plan.replication is None else rule_text(plan.replication)
        for plan, name in zip(plans, record_names(records), strict=True)
    ]


def straggler_of(record: RunRecord) -> str:
    """Injected stragglers of a run, in a few words."""
    return record.straggler_note or NOBODY
