"""Throughput by number of devices: simulated lines, emulated marks, and measurements on this machine."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...util.text.counting import number_of
from ..markup import Html
from .bar_numbers import SHORTER, fitted
from .outlines import outlined
from .points import Point, looks, points_table
from .theme import INK, SMALL, finished, hatch

_WIDTH, _AXES = 900, 640  # pixels: of the figure, and of both axes together, about
_HERE = 0.4  # of these: the bars of this machine
_TOP = 98  # pixels above the axes: a panel's title has two lines
_PAIR = 0.75  # of the distance between two strategies is taken by their bars


def scaling_table(points: Sequence[Point], here: Sequence[Point] = ()) -> pd.DataFrame:
    """One row for each point; `panel` is "devices" or "this machine"."""
    parts = [points_table(points).assign(panel="devices")]
    if here:
        parts.append(points_table(here).assign(panel="this machine"))
    return pd.concat(parts, ignore_index=True)


def scaling(points: Sequence[Point], here: Sequence[Point] = (), *, note: str = "") -> go.Figure:
    """Draw `points` as lines over devices, replayed ones as open marks in their strategy's colour, and `here`, bars
    predicted and measured.
    """
    table = scaling_table(points, here)
    lines = table[table.panel == "devices"]
    titles = ["simulated (lines) and emulated (circles)", _of_here(here)]
    figure = make_subplots(
        rows=1,
        cols=2 if here else 1,
        column_widths=[1 - _HERE, _HERE] if here else None,
        subplot_titles=titles[: 2 if here else 1],
    )
    for name, part in lines[lines.source == "simulated"].groupby("strategy", sort=False):
        own = looks(name)
        line = go.Scatter(
            x=part.devices,
            y=part.samples_per_second,
            mode="lines+markers",
            name=name,
            legendgroup=name,
            line={"color": own["color"], "dash": own["dash"], "width": 2},
            marker={"symbol": own["symbol"], "size": 7},
            hovertemplate=Html("{}, %{{x}} devices: %{{y:.0f}} samples/s<extra>simulated</extra>").format(name),
        )
        figure.add_trace(line, row=1, col=1)
    for name, replayed in lines[lines.source == "replayed"].groupby("strategy", sort=False):
        marks = go.Scatter(
            x=replayed.devices,
            y=replayed.samples_per_second,
            mode="markers",
            name=f"{name}, emulated by real processes",
            marker=outlined("circle", looks(name)["color"], size=14),
            hovertemplate=Html("{}, %{{x}} devices: %{{y:.0f}} samples/s<extra>replayed</extra>").format(name),
        )
        figure.add_trace(marks, row=1, col=1)
    bound = lines.dropna(subset="bound_samples_per_second").drop_duplicates("devices")
    if len(bound):
        most = go.Scatter(
            x=bound.devices,
            y=bound.bound_samples_per_second,
            mode="lines+markers",  # a tick is wider than the mark of a plan that reaches it
            name="provable upper bound for this profile",
            line={"color": INK, "width": 1.5, "dash": "dot"},
            marker={"symbol": "line-ew", "size": 18, "line": {"color": INK, "width": 2}},
            hovertemplate="proven bound, %{x} devices: %{y:.0f} samples/s<extra></extra>",
        )
        figure.add_trace(most, row=1, col=1)
    own = table[table.panel == "this machine"]
    bars = max(own.strategy.nunique() * own.source.nunique(), 1)
    numbers = fitted(own.samples_per_second, _PAIR * _HERE * _AXES / bars, SHORTER, size=SMALL - 1)
    for source in ("simulated", "measured"):
        part = own[own.source == source]
        if len(part):
            colors = [looks(name)["color"] for name in part.strategy]
            bar = go.Bar(
                x=part.strategy,
                y=part.samples_per_second,
                name=f"{'predicted' if source == 'simulated' else source} here",
                marker={"color": colors, "pattern": hatch(source, colors[0])},  # lines of each: plotly's choice
                **numbers.of_bars(part.samples_per_second),
                showlegend=False,
            )
            figure.add_trace(bar, row=1, col=2)
    ticks = sorted(lines.devices.unique())
    figure.update_xaxes(title_text="devices", tickvals=ticks, range=[min(ticks) - 0.4, max(ticks) + 0.4], row=1, col=1)
    figure.update_yaxes(title_text="samples/s", rangemode="tozero")
    if here:
        figure.update_xaxes(title_text="strategy", ticks="", tickfont_size=SMALL, row=1, col=2)
    figure.update_annotations(font_size=SMALL)
    # A key is as wide as shows the dots of the bound at both sides of its tick.
    legend = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "itemwidth": 46}
    figure.update_layout(barmode="group", bargap=1 - _PAIR, legend=legend, margin={"b": 130, "t": _TOP})
    return finished(figure, "Throughput by number of devices", note=note, width=_WIDTH, height=480 + _TOP - 84)


def _of_here(points: Sequence[Point]) -> Html:
    """What the bars are, and which of them are of several processes: a device here is a process."""
    by_count: dict[int, dict[str, None]] = {}
    for point in points:
        by_count.setdefault(point.devices, {})[point.strategy] = None
    told = [
        f"{' and '.join(names)} in {number_of(count, 'process')}"
        for count, names in sorted(by_count.items())
        if count > 1
    ]
    return Html("<br>").join(["this machine: predicted (hatched), measured (solid)", *filter(None, ["; ".join(told)])])
