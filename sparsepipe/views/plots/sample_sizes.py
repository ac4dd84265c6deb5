"""Clouds, their voxels, and orders of minibatches of several sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, cos, radians, sin
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...values.replication import rule_text
from ...values.replication.base import Arithmetic
from ..markup import Html, figure_text
from .marks import nothing_to_draw
from .outcomes import rule_color, straggler_of
from .table import noted_of, of_readable, readable
from .theme import GREY, INK, POINT_SHADES, RUN_COLORS, RUN_DASHES, SMALL, bar_marker, finished, resting_on, source_key

_AZIMUTH, _ELEVATION = radians(35), radians(25)
_PANEL = 210  # pixels


def clouds_table(panels: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return one row for each point of each panel: x, y, z, and its position in the picture (right, up, depth)."""
    if not panels:
        raise InputError("plot.nothing", "no clouds to draw; give at least one")
    return pd.concat(
        [_projected(name, np.asarray(points, dtype=float)) for name, points in panels.items()], ignore_index=True
    )


def _projected(name: str, points: np.ndarray) -> pd.DataFrame:
    """An orthographic view, nearest points last, so that they are drawn on top."""
    if points.ndim != 2 or points.shape[1] != 3 or not len(points):
        raise InputError(
            "cloud.shape", f"cloud {name!r} has shape {list(points.shape)}, expected [N, 3] with N of 1 or more"
        )
    x, y, z = points.T
    right = x * cos(_AZIMUTH) - y * sin(_AZIMUTH)
    away = x * sin(_AZIMUTH) + y * cos(_AZIMUTH)
    up = z * cos(_ELEVATION) + away * sin(_ELEVATION)
    depth = away * cos(_ELEVATION) - z * sin(_ELEVATION)
    table = pd.DataFrame({"panel": name, "x": x, "y": y, "z": z, "right": right, "up": up, "depth": depth})
    return table.sort_values("depth", ascending=False, kind="stable")


def _shades(depth: pd.Series) -> list[str]:
    """A colour for each point by how far it is from the eye: the nearer, the lighter."""
    near = (depth.max() - depth) / max(np.ptp(depth), 1e-9)
    return [POINT_SHADES[place] for place in (near * len(POINT_SHADES)).astype(int).clip(upper=len(POINT_SHADES) - 1)]


def clouds(
    panels: Mapping[str, np.ndarray],
    *,
    sizes: Mapping[str, float] | None = None,
    columns: int = 4,
    title: str = "Point clouds",
    note: str = "",
) -> go.Figure:
    """Draw point clouds [N, 3], one panel for each name.

    Args:
        panels: Name → points.
        sizes: Name → edge of its voxels, in the unit of the points. These voxels are drawn to scale; without it, points
            are dots.
    """
    table = clouds_table(panels)
    names = list(panels)
    columns = min(columns, len(names))
    rows = ceil(len(names) / columns)
    titles = [Html("{}<br>").format(figure_text(name)) for name in names]
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=titles, horizontal_spacing=0.02, vertical_spacing=0.14 / rows
    )
    for k, (name, part) in enumerate(table.groupby("panel", sort=False)):
        span = max(np.ptp(part.right), np.ptp(part.up), 1e-9)
        side = (sizes or {}).get(name)
        pixels = 3.2 if side is None else max(2.5, 0.92 * _PANEL * side / (span * 1.1))
        outline = {"width": 0 if pixels < 5 else 0.5, "color": "white"}
        marks = go.Scatter(
            x=part.right,
            y=part.up,
            mode="markers",
            marker={
                "symbol": "circle" if side is None else "square",
                "size": pixels,
                "color": _shades(part.depth),
                "line": outline,
            },
            customdata=part[["x", "y", "z"]],
            hovertemplate="%{customdata[0]:,.6~g}, %{customdata[1]:,.6~g}, %{customdata[2]:,.6~g}<extra></extra>",
            name=name,
            showlegend=False,
        )
        row, col = k // columns + 1, k % columns + 1
        figure.add_trace(marks, row=row, col=col)
        # Every panel shows the same share of its own extent, so that proportions can be compared.
        middle_x, middle_y = (part.right.max() + part.right.min()) / 2, (part.up.max() + part.up.min()) / 2
        figure.update_xaxes(
            range=[middle_x - span * 0.55, middle_x + span * 0.55], visible=False, showgrid=False, row=row, col=col
        )
        figure.update_yaxes(
            range=[middle_y - span * 0.55, middle_y + span * 0.55], visible=False, showgrid=False, row=row, col=col
        )
    figure.update_annotations(font_size=SMALL)
    figure.update_layout(margin={"l": 14, "r": 14, "t": 84, "b": 14})
    explained = " · ".join(part for part in (note, "lighter points are nearer") if part)
    return finished(figure, title, note=explained, width=40 + columns * _PANEL, height=90 + rows * (_PANEL + 24))


def voxel_counts_table(counts: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return one row for each sample at each voxel size."""
    if not counts:
        raise InputError("plot.nothing", "no voxel counts to draw; give at least one voxel size")
    parts = [pd.DataFrame({"voxel_size": name, "voxels": np.asarray(values)}) for name, values in counts.items()]
    return pd.concat(parts, ignore_index=True)


def voxel_counts(counts: Mapping[str, np.ndarray], *, note: str = "") -> go.Figure:
    """Draw the number of voxels per sample at each voxel size: a box (quartiles) and its outliers."""
    table = voxel_counts_table(counts)
    box = go.Box(
        x=table.voxel_size,
        y=table.voxels,
        marker={"color": RUN_COLORS[0], "size": 3},
        line_width=1.5,
        boxpoints="outliers",
        showlegend=False,
    )
    figure = go.Figure(box)
    figure.update_xaxes(
        title_text="voxel size (fraction of the longest side)", type="category", ticks="", showgrid=False
    )
    figure.update_yaxes(title_text="active voxels per sample", rangemode="tozero")
    return finished(figure, "Active voxels by voxel size", note=note)


_MARKERS = {"emulated": "circle", "measured": "diamond"}
_DASHES = ({"width": 6, "color": "white"}, {"width": 2.5, "color": INK})  # one on the other: seen on every colour
_GROUP = 0.8  # of the distance between two machines is taken by the bars of one


@dataclass(frozen=True)
class OrderedEpoch:
    """Time of an epoch in one order of minibatches, under one plan."""

    order: str
    machine: str  # such as "4 stages"
    over_balanced: float  # times as long as minibatches that each cost the mean of all
    lower_bound: float | None = None  # the least that any order takes, in the same unit; None: not known
    source: str = "simulated"


def orders_table(epochs: Sequence[OrderedEpoch]) -> pd.DataFrame:
    """Return one row for each epoch."""
    columns = ["order", "machine", "over_balanced", "lower_bound", "source"]
    return pd.DataFrame([asdict(one) for one in epochs], columns=columns)


def orders(epochs: Sequence[OrderedEpoch], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each plan, one bar for each order. A dash is the lower bound for any order.

    Bars are simulated; markers are runs of real processes.
    """
    title = "Cost of varying sizes by order of minibatches"
    table = orders_table(epochs)
    if table.empty:
        return nothing_to_draw(title, note=note)
    machines, names = (list(dict.fromkeys(table[column])) for column in ("machine", "order"))
    step, figure = _GROUP / len(names), go.Figure()
    for (order, source), part in table.groupby(["order", "source"], sort=False):
        k = names.index(order)
        color = RUN_COLORS[k % len(RUN_COLORS)]
        if source == "simulated":
            trace = go.Bar(width=0.9 * step, marker=bar_marker(source, color))
            trace.update(text=[f"{value:.2f}" for value in part.over_balanced], textposition="outside")
        else:
            trace = go.Scatter(mode="markers", marker=_marker(source))
        trace.update(
            x=[machines.index(machine) + (k - (len(names) - 1) / 2) * step for machine in part.machine],
            y=part.over_balanced,
            showlegend=False,
            customdata=part.machine,
            hovertemplate=Html("{}, %{{customdata}}: %{{y:.3f}} ×<extra>{}</extra>").format(order, source),
            name=order,
        )
        figure.add_trace(trace)
        known = part.lower_bound.notna().to_numpy()
        places = [place for place, is_known in zip(trace.x, known, strict=True) if is_known]
        for line in _DASHES if places else ():
            figure.add_trace(
                go.Scatter(
                    x=places,
                    y=part.lower_bound[known],
                    mode="markers",
                    marker={"symbol": "line-ew", "size": 18, "line": line},
                    showlegend=False,
                    hovertemplate="any order: at least %{y:.3f} ×<extra></extra>",
                )
            )
    for k, order in enumerate(names):
        figure.add_trace(go.Bar(x=[None], y=[None], name=order, marker={"color": RUN_COLORS[k % len(RUN_COLORS)]}))
    for source in dict.fromkeys(table.source):
        if source == "simulated":
            figure.add_trace(go.Bar(x=[None], y=[None], name=source, marker=source_key(source, INK)))
        else:
            name = f"{source}, by real processes"
            figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=_marker(source)))
    if table.lower_bound.notna().any():
        key = {"symbol": "line-ew", "size": 12, "line": _DASHES[1]}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name="lower bound for any order", marker=key))
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot", "width": 1.5}, layer="below")
    figure.update_xaxes(
        tickvals=list(range(len(machines))),
        ticktext=machines,
        range=[-0.5, len(machines) - 0.5],
        ticks="",
        showgrid=False,
    )
    most = 1.1 * max(1.0, float(table.over_balanced.max()))
    figure.update_yaxes(title_text="time over equal minibatches", range=[0, most])
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(barmode="overlay", legend=legend, margin={"b": 100})
    return finished(figure, title, note=note, height=440)


def _marker(source: str) -> dict[str, object]:
    """White within, so that it is seen on a bar of any colour."""
    line = {"width": 2, "color": INK}
    return {"symbol": _MARKERS.get(source, "x"), "size": 10, "color": "white", "line": line}


_MOST_MARKERS = 60  # of a line: more would hide it


def distances_table(*records: RunRecord) -> pd.DataFrame:
    """Return one row for each average of each run, with distances of its members.

    A distance is ||own - average|| / ||average||; the columns are its mean and maximum. If a scheme averages gradients,
    all replicas have the same weights, and the distances are 0. A damaged run is omitted, with a warning. Raises
    InputError for a run without averages.
    """
    found = of_readable(records, _rows)
    rows = [{"run": records[place].name, **row} for place, own in found for row in own]
    return pd.DataFrame(rows)


def distances(*records: RunRecord, note: str = "") -> go.Figure:
    """Draw the distance of the pipeline replicas from each of their averages, over time, for each run."""
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
            "run.no_averages",
            f"{record.folder}: it averaged no gradients or weights ({record.status['state']}); omit this run",
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
