"""How far apart the pipelines of a run are: their weights' distance from each average, when it was made."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...values.replication import rule_text
from ...values.replication.base import Arithmetic
from ..markup import Html
from .losses import straggler_of
from .outcomes import rule_color
from .table import noted_of, of_readable, readable
from .theme import RUN_DASHES, finished, resting_on

_MOST_MARKERS = 60  # of a line: more would hide it


def distances_table(*records: RunRecord) -> pd.DataFrame:
    """One row for each average of each run: mean and most of its members' ||own - average|| / ||average||.

    Under a rule that averages gradients weights are the same everywhere: its distances are 0. A damaged run is left
    out, with a warning. Raises InputError for a run in which nothing was averaged.
    """
    found = of_readable(records, _rows)
    rows = [{"run": records[place].name, **row} for place, own in found for row in own]
    return pd.DataFrame(rows)


def distances(*records: RunRecord, note: str = "") -> go.Figure:
    """Draw for each run how far its pipelines were from each of its averages, over time."""
    records, left_out = readable(records, _rows)
    table = distances_table(*records)
    figure = go.Figure()
    for k, (_, part) in enumerate(table.groupby("run", sort=False)):
        name = part.rule.iloc[0]
        line = go.Scatter(
            x=part.seconds - part.seconds.min(),
            y=100 * part.distance,
            mode="lines+markers" if len(part) <= _MOST_MARKERS else "lines",
            name=name,
            line={"color": rule_color(name), "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2},
            hovertemplate=Html("{}<br>%{{x:.1f}} s: %{{y:.3f}}%<extra></extra>").format(name),
        )
        figure.add_trace(line)
    figure.update_xaxes(title_text="time since the first average (s)", rangemode="tozero")
    figure.update_yaxes(title_text="distance from the average (%)", rangemode="tozero")
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}, margin={"b": 100}
    )
    text = noted_of(note, records)
    stragglers = dict.fromkeys(map(straggler_of, records))
    told = " · ".join(filter(None, [text, *stragglers, when(records), left_out]))
    figure = finished(figure, "Distance between pipeline replicas", note=told)
    return resting_on(figure, Provenance.of(runs=records))


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    applied = [row for row in record.merges("applied") if row.get("applied", True)]
    rule = record.plan.replication
    if rule is None or not applied:
        raise InputError(
            "run.no_averages", f"{record.folder}: nothing was averaged ({record.status['state']}); leave it out"
        )
    alike = rule.arithmetic is Arithmetic.MEAN_GRADIENTS
    found: dict[int, list[dict[str, Any]]] = {}
    for row in applied:
        found.setdefault(row["merge"], []).append(row)
    return [
        {
            "rule": rule_text(rule),
            "merge": merge,
            "seconds": max(row["seconds"] for row in rows),
            "distance": 0.0 if alike else sum(row["distance"] for row in rows) / len(rows),
            "most_distance": 0.0 if alike else max(row["distance"] for row in rows),
        }
        for merge, rows in found.items()
    ]
