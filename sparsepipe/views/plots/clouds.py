"""Point clouds and their voxels, seen from above one corner: small pictures side by side, drawn as vectors."""

from collections.abc import Mapping
from math import ceil, cos, radians, sin

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ..markup import Html, figure_text
from .theme import POINT_SHADES, RUN_COLORS, SMALL, finished

_AZIMUTH, _ELEVATION = radians(35), radians(25)
_PANEL = 210  # pixels


def clouds_table(panels: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """One row for each point of each panel: x, y, z as given, and where it stands in the picture (right, up, depth)."""
    if not panels:
        raise InputError("plot.nothing", "no cloud to draw: expected at least one")
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
    """Draw clouds [N, 3] by panel name. `sizes` gives the side of a panel's voxels in the units of its points, so that
    a voxel is drawn as large as it is; without, points are dots.
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
    """One row for each sample at each voxel size."""
    if not counts:
        raise InputError("plot.nothing", "no voxel counts to draw: expected at least one voxel size")
    parts = [pd.DataFrame({"voxel_size": name, "voxels": np.asarray(values)}) for name, values in counts.items()]
    return pd.concat(parts, ignore_index=True)


def voxel_counts(counts: Mapping[str, np.ndarray], *, note: str = "") -> go.Figure:
    """Draw how many voxels a sample has at each voxel size: a box (quartiles) and its outliers."""
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
