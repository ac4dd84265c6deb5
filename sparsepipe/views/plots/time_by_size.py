"""Time of a few layers against the size of a minibatch: what was measured, the law through it, and its range."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.sizes import size_words
from ...values.profile import Profile
from ..colors import STAGE_COLORS
from ..markup import Html
from .table import noted
from .theme import LIGHT_GREY, finished

_BEYOND = 4.0  # times the measured range, to both sides
_STEPS = 25  # sizes of a law, over all it is drawn for
_LAYERS = 3  # the costliest, where none are named


def time_by_size_table(profile: Profile, *, layers: Sequence[str] = ()) -> pd.DataFrame:
    """One row for each layer, device type and size: measured, and by the law (then `spread_seconds` is its doubt).

    `layers`: ids, the three that take longest when not given. Raises InputError for a layer that does not exist.
    """
    index = profile.graph.index
    if unknown := [id for id in layers if id not in index]:
        raise InputError(
            "profile.layer_unknown",
            f"layer {unknown[0]!r} is unknown: expected one of the profile's, such as {min(index)!r}",
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

    Points are measured, with their interquartile range. Lines are the fitted laws; grey is the range that was measured,
    and beyond it lines are dashed: times are in proportion to the size there.
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
