"""Strategies on several networks, each compared with one device: their speeds differ too much for one axis."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ..markup import Html
from .levels import level_line
from .outlines import outlined
from .points import Point, looks, points_table
from .theme import INK, finished, hatch

ONE, OPTIMAL = "one device", "optimal"
_FASTER = 1.005  # times as fast: less would be written as the same


def speedups_table(points: Sequence[Point]) -> pd.DataFrame:
    """One row for each point; `cluster` names the network, `speedup` is over its point of one device.

    Raises InputError for a network without such a point.
    """
    table = points_table(points)
    paces = pd.Series([_pace(point) for point in points])
    alone = (table.strategy == ONE) & (table.source == "simulated")
    one = dict(zip(table.cluster[alone], paces[alone], strict=True))
    if missing := sorted(set(table.cluster) - set(one)):
        raise InputError("plot.no_single_device", f"{missing[0]}: no point for one device as the baseline; add one")
    table["speedup"] = [pace / one[cluster] for pace, cluster in zip(paces, table.cluster, strict=True)]
    return table


def _pace(point: Point) -> float | None:
    """In samples where they are known: all points of a network are in one unit."""
    return point.minibatches_per_second if point.samples_per_second is None else point.samples_per_second


def speedups(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each network, simulated, and open circles where real processes replayed the plan."""
    table = speedups_table(points)
    drawn = table[table.strategy != ONE]
    networks, strategies = (list(dict.fromkeys(drawn[column])) for column in ("cluster", "strategy"))
    step = 0.84 / max(len(strategies), 1)
    places = {name: (k - (len(strategies) - 1) / 2) * step for k, name in enumerate(strategies)}
    figure = go.Figure()
    for name, part in drawn.groupby("strategy", sort=False):
        for source, of_source in part.groupby("source", sort=False):
            x = [networks.index(network) + places[name] for network in of_source.cluster]
            hover = Html("{}<br>%{{customdata}}: %{{y:.2f}} ×<extra>{}</extra>").format(name, source)
            color = looks(name)["color"]
            if source == "simulated":
                bar = {"color": color, "pattern": hatch("simulated", color)}
                trace = go.Bar(width=0.9 * step, name=name, marker=bar)
            else:
                circle = outlined("circle", INK, size=13)
                label = f"{name}, {source} by real processes"
                trace = go.Scatter(mode="markers", name=label, marker=circle)
            trace.update(x=x, y=of_source.speedup, customdata=of_source.cluster, hovertemplate=hover)
            figure.add_trace(trace)
    level_line(figure, 1.0, drawn.speedup, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(title_text="throughput, one device = 1", rangemode="tozero")
    ticks = list(range(len(networks)))
    figure.update_xaxes(tickvals=ticks, ticktext=networks, range=[-0.5, len(networks) - 0.5], ticks="", showgrid=False)
    legend = {"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"}
    figure.update_layout(barmode="overlay", legend=legend, margin={"b": 120})
    note = " · ".join(filter(None, [note, _faster_than_optimal(table)]))
    return finished(figure, "Throughput over one device, simulated", note=note, width=900, height=440)


def _faster_than_optimal(table: pd.DataFrame) -> str:
    """Say of which networks a strategy is simulated as faster than the plan of the optimal planner; empty of none.

    Its search need not see every plan, and it ranks plans by their estimates, not by a simulation.
    """
    told = []
    for network, part in table[table.source == "simulated"].groupby("cluster", sort=False):
        speeds = part.set_index("strategy").speedup
        if OPTIMAL not in speeds or speeds.max() < _FASTER * speeds[OPTIMAL]:
            continue
        told.append(f"{speeds.idxmax()} is {speeds.max() / speeds[OPTIMAL]:.2f} × as fast as {OPTIMAL} for {network}")
    return f"{OPTIMAL} is the best plan that its search found: {', '.join(told)}" if told else ""
