"""Sparse against dense convolutions: time and memory of a training step, a sample, over the voxel size."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.numbers import voxel_size_text
from ...values.profile import Profile
from ..markup import Html
from .theme import RUN_COLORS, RUN_DASHES, RUN_MARKERS, finished, log_ticks

Measured = Sequence[tuple[float, Profile]]  # (voxel size, profile measured at it)


def sparse_dense_table(found: Mapping[str, Measured]) -> pd.DataFrame:
    """One row for each network and voxel size, of one sample. Raises InputError for a profile without a batch size."""
    rows = []
    for network, measured in found.items():
        for voxel_size, profile in measured:
            if not profile.batch_size:
                raise InputError(
                    "profile.no_batch_size",
                    f"{network} at voxel size {voxel_size}: its profile lacks the batch size",
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
    """Draw seconds and bytes a sample over the voxel size, a line for each network, on logarithmic axes."""
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
