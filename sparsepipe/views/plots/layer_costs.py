"""Layers: what each costs, what it costs at other sizes, and the bytes that a cut behind it sends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.numbers import size_words, voxel_size_text
from ...values.profile import Profile
from ..colors import STAGE_COLORS
from ..markup import Html
from .layer_graph import layer_graph_table
from .table import noted
from .theme import (
    BACKWARD_COLOR,
    BESIDE_TITLE,
    FORWARD_COLOR,
    GREY,
    LIGHT_GREY,
    RUN_COLORS,
    RUN_DASHES,
    RUN_MARKERS,
    SMALL,
    finished,
    log_ticks,
)

_NAMED = 80  # layers that can be named along the axis; of more, plotly names some


def layer_costs_table(profile: Profile, *, size: float | None = None) -> pd.DataFrame:
    """Return one row for each layer and device type, for a minibatch of this size. Default: the mean size."""
    at = profile.size() if size is None else size
    rows = []
    for kind in profile.device_types:
        for k, layer in enumerate(profile.graph.layers):
            cost = profile.cost(k, kind, at)
            rows.append(
                {
                    "layer": layer.id,
                    "device_type": kind,
                    profile.size_unit: at,
                    "forward_seconds": cost.forward,
                    "backward_seconds": cost.backward,
                    "forward_spread_seconds": cost.forward_spread,
                    "backward_spread_seconds": cost.backward_spread,
                    "output_bytes": cost.output_bytes,
                    "parameter_bytes": layer.parameter_bytes,
                }
            )
    return pd.DataFrame(rows)


def layer_costs(profile: Profile, *, size: float | None = None, note: str = "") -> go.Figure:
    """Draw forward and backward time (a panel for each device type), output and parameters of each layer.

    The thin line on a bar is the interquartile range of its time.
    """
    table = layer_costs_table(profile, size=size)
    kinds = profile.device_types
    figure = make_subplots(rows=len(kinds) + 2, cols=1, shared_xaxes=True, vertical_spacing=0.045)
    for row, kind in enumerate(kinds, start=1):
        part = table[table.device_type == kind]
        whole = part.forward_seconds + part.backward_seconds
        half = (part.forward_spread_seconds + part.backward_spread_seconds) / 2
        below = half.clip(upper=whole) * 1e3
        spread = {"array": half * 1e3, "arrayminus": below, "thickness": 1, "width": 2, "color": GREY}
        for name, color in (("forward", FORWARD_COLOR), ("backward", BACKWARD_COLOR)):
            bar = go.Bar(
                x=part.layer,
                y=part[f"{name}_seconds"] * 1e3,
                name=name,
                marker_color=color,
                error_y=spread if name == "backward" and half.any() else None,
                showlegend=row == 1,
                hovertemplate=Html("%{{x}}<br>{} %{{y:.3f}} ms<extra>{}</extra>").format(name, kind),
            )
            figure.add_trace(bar, row=row, col=1)
        figure.update_yaxes(rangemode="tozero", row=row, col=1)
        figure.update_yaxes(title_text=f"{kind} (ms)" if len(kinds) > 1 else "time (ms)", row=row, col=1)
        if row > 1:  # one scale for all device types: which one is faster shows
            figure.update_yaxes(matches="y", row=row, col=1)
    part = table[table.device_type == kinds[0]]
    for row, column, what in (
        (len(kinds) + 1, "output_bytes", "output"),
        (len(kinds) + 2, "parameter_bytes", "parameters"),
    ):
        bar = go.Bar(
            x=part.layer,
            y=part[column] / 1e6,
            marker_color=GREY,
            showlegend=False,
            hovertemplate=Html("%{{x}}<br>{} %{{y:.3f}} MB<extra></extra>").format(what),
        )
        figure.add_trace(bar, row=row, col=1)
        figure.update_yaxes(title_text=f"{what} (MB)", row=row, col=1)
    figure.update_layout(barmode="stack", bargap=0.15, legend={**BESIDE_TITLE, "traceorder": "normal"})
    few = len(profile.graph.layers) <= _NAMED
    figure.update_xaxes(tickangle=-90, tickfont_size=SMALL - 2, dtick=1 if few else None, row=len(kinds) + 2, col=1)
    figure.update_xaxes(ticks="", row=1, col=1)
    text = noted(note, profile.origin)
    at = table[profile.size_unit].iloc[0]
    count = f"{at:,.0f} {size_words(profile.size_unit)} per minibatch" if at else ""
    lines = "thin lines: interquartile range over passes" if table.backward_spread_seconds.any() else ""
    second = " · ".join(part for part in (text, count, lines) if part)
    return finished(figure, "Cost of each layer", note=second, width=900, height=260 + 150 * (len(kinds) + 1))


_BEYOND = 4.0  # times the measured range, to both sides
_STEPS = 25  # sizes of a law, over all it is drawn for
_LAYERS = 3  # the costliest, where none are named


def time_by_size_table(profile: Profile, *, layers: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each layer, device type and size, measured or by the law.

    By the law, `spread_seconds` is the uncertainty. `layers` are ids of layers. Default: the three slowest. Raises
    InputError for an unknown layer.
    """
    index = profile.graph.index
    if unknown := [id for id in layers if id not in index]:
        raise InputError(
            "profile.layer_unknown",
            f"unknown layer {unknown[0]!r}, expected a layer of the profile, such as {min(index)!r}",
        )
    profile = replace(profile, voxels_by_stride=())  # the law of the points drawn, not of typical minibatches
    costliest = sorted(index, key=lambda id: -sum(profile.time([index[id]], profile.device_types[0])))
    rows = []
    for kind in profile.device_types:
        low, high = profile.measured_sizes(kind)
        drawn = np.geomspace(max(low, 1.0) / _BEYOND, max(high, 1.0) * _BEYOND, _STEPS)
        sizes = np.unique([*drawn, max(low, 1.0), max(high, 1.0)])
        for id in layers or costliest[:_LAYERS]:
            points = [("measured", sample) for sample in profile.costs[kind][index[id]].stretched]
            points += [("law", profile.cost(index[id], kind, size)) for size in sizes]
            rows += [
                {
                    "layer": id,
                    "device_type": kind,
                    "what": what,
                    profile.size_unit: cost.size,
                    "seconds": cost.forward + cost.backward,
                    "spread_seconds": cost.forward_spread + cost.backward_spread,
                    "extrapolated": not low <= cost.size <= high,
                }
                for what, cost in points
            ]
    return pd.DataFrame(rows)


def time_by_size(profile: Profile, *, layers: Sequence[str] = (), note: str = "") -> go.Figure:
    """Draw the time of three layers against size, on logarithmic axes: a panel for each device type.

    Points are measurements with their interquartile range, lines are fitted laws. The grey range was measured. Beyond
    it, lines are dashed, and times are proportional to the size.
    """
    table, unit = time_by_size_table(profile, layers=layers), profile.size_unit
    kinds = profile.device_types
    figure = make_subplots(rows=1, cols=len(kinds), subplot_titles=kinds, shared_yaxes=True)
    colors = dict(zip(dict.fromkeys(table.layer), STAGE_COLORS, strict=False))
    for column, kind in enumerate(kinds, start=1):
        low, high = profile.measured_sizes(kind)
        for id, color in colors.items():
            own = table[(table.device_type == kind) & (table.layer == id)]
            law, measured = own[own.what == "law"], own[own.what == "measured"]
            hover = Html("{}<br>%{{x:,.0f}} {}: %{{y:.3f}} ms<extra></extra>").format(id, unit)
            parts = (law[law[unit] <= low], "dot"), (law[~law.extrapolated], "solid"), (law[law[unit] >= high], "dot")
            for part, dash in parts:
                figure.add_scatter(
                    x=part[unit],
                    y=part.seconds * 1e3,
                    mode="lines",
                    line={"color": color, "dash": dash},
                    name=id,
                    legendgroup=id,
                    showlegend=column == 1 and dash == "solid",
                    hovertemplate=hover,
                    row=1,
                    col=column,
                )
            figure.add_scatter(
                x=measured[unit],
                y=measured.seconds * 1e3,
                error_y={"array": measured.spread_seconds * 1e3 / 2, "thickness": 1, "width": 2},
                mode="markers",
                marker_color=color,
                name=f"{id}, measured",
                legendgroup=id,
                showlegend=False,
                hovertemplate=hover,
                row=1,
                col=column,
            )
        # After the traces: plotly leaves panels without any out.
        figure.add_vrect(
            x0=low, x1=high, fillcolor=LIGHT_GREY, opacity=0.5, line_width=0, layer="below", row=1, col=column
        )
    figure.update_layout(margin={"t": 88})  # the types' names stand below the title
    is_narrow = len(kinds) > 2  # a title under one panel is then as wide as two
    figure.update_xaxes(type="log", dtick=1 if is_narrow else None)
    figure.update_xaxes(
        title_text=f"{size_words(unit)} per minibatch", col=(len(kinds) + 1) // 2 if is_narrow else None
    )
    figure.update_yaxes(type="log")
    figure.update_yaxes(title_text="forward and backward (ms)", col=1)
    words = "points: measured · lines: fitted curves, dotted outside the measured range (grey)"
    return finished(figure, "Time by size", note=" · ".join(filter(None, [noted(note, profile.origin), words])))


def cut_bytes_table(profile: Profile, *, device_type: str | None = None) -> pd.DataFrame:
    """Return one row for each possible cut, in the order of the layers: bytes that cross it in the forward pass."""
    table = layer_graph_table(profile, device_type=device_type)
    return table[["layer", "crossing_feature_bytes", "crossing_coordinate_bytes"]].iloc[:-1]


def cut_bytes(profile: Profile, *, device_type: str | None = None, note: str = "") -> go.Figure:
    """Draw the bytes that cross a cut after each layer. Low bars are cheap stage boundaries."""
    table = cut_bytes_table(profile, device_type=device_type)
    figure = go.Figure()
    for column, name, color in (
        ("crossing_feature_bytes", "features", BACKWARD_COLOR),
        ("crossing_coordinate_bytes", "coordinates", FORWARD_COLOR),
    ):
        hover = Html("cut after %{{x}}<br>{} %{{y:.3f}} MB<extra></extra>").format(name)
        figure.add_trace(
            go.Bar(x=table.layer, y=table[column] / 1e6, name=name, marker_color=color, hovertemplate=hover)
        )
    figure.update_layout(barmode="stack", bargap=0.15, legend={"x": 0.99, "xanchor": "right", "y": 0.99})
    few = len(table) <= 80
    figure.update_xaxes(title_text="cut after layer", tickangle=-90, tickfont_size=SMALL - 2, dtick=1 if few else None)
    figure.update_yaxes(title_text="sent forward per minibatch (MB)", rangemode="tozero")
    return finished(figure, "Bytes sent by a cut after each layer", note=noted(note, profile.origin), width=900)


Measured = Sequence[tuple[float, Profile]]  # (voxel size, profile measured at it)


def sparse_dense_table(found: Mapping[str, Measured]) -> pd.DataFrame:
    """Return one row for each network and voxel size, per sample.

    Raises InputError for a profile without a batch size.
    """
    rows = []
    for network, measured in found.items():
        for voxel_size, profile in measured:
            if not profile.batch_size:
                raise InputError(
                    "profile.no_batch_size",
                    f"the profile of {network} at voxel size {voxel_size} has no batch size; profile the network again",
                )
            kind, batch_size = profile.device_types[0], profile.batch_size
            layers = range(len(profile.graph.layers))
            kept = sum(profile.cost(k, kind).saved_bytes + profile.cost(k, kind).coordinate_bytes for k in layers)
            rows.append(
                {
                    "network": network,
                    "voxel_size": voxel_size,
                    "voxels": profile.size() / batch_size,
                    "cells": round(1 / voxel_size) ** 3,
                    "seconds": sum(profile.time(layers, kind)) / batch_size,
                    "memory_bytes": kept / batch_size,
                }
            )
    return pd.DataFrame(rows)


def sparse_dense(found: Mapping[str, Measured], *, note: str = "") -> go.Figure:
    """Draw seconds and bytes per sample by voxel size, a line for each network, on logarithmic axes."""
    table = sparse_dense_table(found)
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    for k, (name, part) in enumerate(table.groupby("network", sort=False)):
        for col, y, unit in ((1, part.seconds * 1e3, "ms"), (2, part.memory_bytes / 1e6, "MB")):
            line = go.Scatter(
                x=part.voxel_size,
                y=y,
                mode="lines+markers",
                name=name,
                legendgroup=name,
                showlegend=col == 1,
                line={"color": RUN_COLORS[k], "dash": RUN_DASHES[k], "width": 2},
                marker={"symbol": RUN_MARKERS[k], "size": 8},
                customdata=list(zip(map(voxel_size_text, part.voxel_size), part.voxels, strict=True)),
                hovertemplate=Html(
                    "{}<br>%{{customdata[0]}}, %{{customdata[1]:.0f}} voxels: %{{y:,.3r}} {}<extra></extra>"
                ).format(name, unit),
            )
            figure.add_trace(line, row=1, col=col)
    sizes = sorted(table.voxel_size.unique())
    told = Html("voxel size, fraction of the longest side<br>(log scale, finer to the right)")
    figure.update_xaxes(
        type="log", autorange="reversed", title_text=told, tickvals=sizes, ticktext=[*map(voxel_size_text, sizes)]
    )
    for col, y in ((1, table.seconds * 1e3), (2, table.memory_bytes / 1e6)):
        figure.update_yaxes(type="log", **log_ticks(y[y > 0]), row=1, col=col)
    figure.update_yaxes(title_text=Html("forward and backward<br>(ms per sample, log scale)"), row=1, col=1)
    figure.update_yaxes(title_text=Html("activation memory<br>(MB per sample, log scale)"), row=1, col=2)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.26, "yanchor": "top"}, margin={"b": 116})
    return finished(figure, "Sparse and dense convolutions", note=note, width=900, height=446)
