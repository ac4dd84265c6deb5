"""Runs and systems compared: speedups, and how they scale."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.numbers import counted, duration, number_of
from ...values.plan import Plan
from ..markup import Html, figure_text
from .marks import SHORTER, fitted, level_line, outlined, width_of
from .table import Point, looks, plan_names, points_table
from .theme import FONT_SIZE, INK, SMALL, bar_marker, finished, ink_on, stage_color

_WIDTH, _RIGHT = 900, 90  # pixels: of the figure, and beside its axis, where periods are told
_WIDE, _NARROW = 8, 3  # pixels of a stage that a line of 2 pixels around it, or of a half, does not hide
_ROW, _GAP = 46, 0.35  # pixels of a plan, about, and what of it is free
_BESIDE = 5  # pixels between words and what is beside them
_READ = 9  # pixels of the smallest letters


def compare_table(*plans: Plan) -> pd.DataFrame:
    """Return one row for each layer: its stage in each plan. Raises InputError for plans of different layers."""
    if not plans:
        raise InputError("plot.nothing", "no plans to compare; give at least one")
    layers = plans[0].layers
    table = pd.DataFrame({"layer": layers})
    for name, plan in zip(plan_names(plans), plans, strict=True):
        stage_of = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
        if set(stage_of) != set(layers):
            raise InputError(
                "plot.layers_differ",
                f"plans {name!r} and {plan_names(plans)[0]!r} have different layers; compare plans of the same network",
            )
        table[name] = [stage_of[id] for id in layers]
    return table


def compare(*plans: Plan, note: str = "") -> go.Figure:
    """Draw each plan as a strip of layers, coloured by stage, with devices and the time per minibatch.

    If a stage is too narrow, its devices are written above or below the strip, else shown on hover.
    """
    table = compare_table(*plans)
    names = plan_names(plans)
    left = max(70, FONT_SIZE * max(map(width_of, names)) + 16)
    pixels = (_WIDTH - left - _RIGHT) / len(table)  # of a layer
    figure, shown = go.Figure(), set()
    for row, name, plan in zip(reversed(range(len(plans))), names, plans, strict=True):
        start = 0
        outside = _Outside()
        for k, stage in enumerate(plan.stages):
            kinds = stage.device_types or tuple(f"rank {rank}" for rank in stage.ranks)
            devices = counted(kinds)
            room, wide = pixels * len(stage.layers), width_of(devices)
            size = min(SMALL, (room - _BESIDE) / wide)
            fits = size >= _READ
            bar = go.Bar(
                x=[len(stage.layers)],
                base=[start],
                y=[name],
                orientation="h",
                name=f"stage {k}",
                legendgroup=f"stage {k}",
                showlegend=k not in shown,
                marker={"color": stage_color(k), "line": {"width": _outline(room), "color": "white"}},
                text=devices if fits else "",
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="none",
                textfont={"size": size if fits else SMALL, "color": ink_on(stage_color(k))},
                hovertemplate=Html("stage {}: {} … {}<br>{}<extra>{}</extra>").format(
                    k, stage.layers[0], stage.layers[-1], devices, name
                ),
            )
            figure.add_trace(bar)
            shown.add(k)
            middle = start + len(stage.layers) / 2
            if not fits and (side := outside.free(middle * pixels, SMALL * wide, pixels * len(table))):
                place = row + side * (1 - _GAP) / 2
                anchor = "bottom" if side > 0 else "top"
                figure.add_annotation(
                    x=middle,
                    y=place,
                    yanchor=anchor,
                    borderpad=1,
                    text=figure_text(devices),
                    font={"size": SMALL, "color": INK},
                    showarrow=False,
                )
            start += len(stage.layers)
        if plan.estimate:
            text = Html("{}<br>predicted").format(duration(plan.estimate.period_seconds))
            figure.add_annotation(
                x=1.01,
                xref="paper",
                xanchor="left",
                y=name,
                text=text,
                showarrow=False,
                font={"size": SMALL, "color": INK},
            )
    layers = table.layer.tolist()
    every = max(1, len(layers) // 26)
    ticks = list(range(0, len(layers), every))
    figure.update_xaxes(
        tickvals=[k + 0.5 for k in ticks],
        ticktext=[layers[k] for k in ticks],
        title_text="layers, in the order of the network",
        tickangle=-90,
        tickfont_size=SMALL - 2,
        showgrid=False,
        range=[0, len(layers)],
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], ticks="", showgrid=False)
    below = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(barmode="overlay", bargap=_GAP, legend=below, margin={"r": _RIGHT, "b": 140})
    return finished(
        figure,
        "Layers of each stage, and predicted time per minibatch, by plan",
        note=note,
        width=_WIDTH,
        height=260 + _ROW * max(2, len(plans)),
    )


def _outline(room: float) -> float:
    """Pixels of the line around a stage that is so wide: it parts it from others, and would hide a narrow one."""
    return 2 if room > _WIDE else 0.5 if room > _NARROW else 0


class _Outside:
    """The words above the stages of one plan and below them: pixels from left to right that are taken."""

    def __init__(self) -> None:
        self.taken: dict[int, list[tuple[float, float]]] = {1: [], -1: []}

    def free(self, middle: float, wide: float, whole: float) -> int:
        """Take a place for words around `middle`: 1 above, -1 below, 0 if there is none within 0 to `whole`."""
        low, high = middle - wide / 2, middle + wide / 2
        for side, taken in self.taken.items():
            if low >= 0 and high <= whole and all(high + _BESIDE <= a or b + _BESIDE <= low for a, b in taken):
                taken.append((low, high))
                return side
        return 0


ONE, OPTIMAL = "one device", "optimal"
_FASTER = 1.005  # times as fast: less would be written as the same


def speedups_table(points: Sequence[Point]) -> pd.DataFrame:
    """Return one row for each point. `cluster` names the network; `speedup` is relative to one device.

    Raises InputError for a network without a point of one device.
    """
    table = points_table(points)
    paces = pd.Series([_pace(point) for point in points])
    alone = (table.strategy == ONE) & (table.source == "simulated")
    one = dict(zip(table.cluster[alone], paces[alone], strict=True))
    if missing := sorted(set(table.cluster) - set(one)):
        raise InputError(
            "plot.no_single_device", f"{missing[0]}: has no point for a single device, the baseline; add one"
        )
    table["speedup"] = [pace / one[cluster] for pace, cluster in zip(paces, table.cluster, strict=True)]
    return table


def _pace(point: Point) -> float | None:
    """In samples where they are known: all points of a network are in one unit."""
    return point.minibatches_per_second if point.samples_per_second is None else point.samples_per_second


def speedups(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw a group of simulated bars for each network. Open circles are emulations by real processes."""
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
                bar = bar_marker("simulated", color)
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
    return f"{OPTIMAL} is the best plan of its search, not proven optimal: {', '.join(told)}" if told else ""


_WIDTH_SCALING, _AXES = 900, 640  # pixels: of the figure, and of both axes together, about
_HERE = 0.4  # of these: the bars of this machine
_TOP = 98  # pixels above the axes: a panel's title has two lines
_PAIR = 0.75  # of the distance between two strategies is taken by their bars


def scaling_table(points: Sequence[Point], here: Sequence[Point] = ()) -> pd.DataFrame:
    """Return one row for each point. `panel` is "devices" or "this machine"."""
    parts = [points_table(points).assign(panel="devices")]
    if here:
        parts.append(points_table(here).assign(panel="this machine"))
    return pd.concat(parts, ignore_index=True)


def scaling(points: Sequence[Point], here: Sequence[Point] = (), *, note: str = "") -> go.Figure:
    """Draw throughput by number of devices: `points` as lines, emulated ones as open marks of the same colour.

    A second panel shows `here`: bars predicted and measured on this machine.
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
    for name, emulated in lines[lines.source == "emulated"].groupby("strategy", sort=False):
        marks = go.Scatter(
            x=emulated.devices,
            y=emulated.samples_per_second,
            mode="markers",
            name=f"{name}, emulated by real processes",
            marker=outlined("circle", looks(name)["color"], size=14),
            hovertemplate=Html("{}, %{{x}} devices: %{{y:.0f}} samples/s<extra>emulated</extra>").format(name),
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
            hovertemplate="provable bound, %{x} devices: %{y:.0f} samples/s<extra></extra>",
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
                marker=bar_marker(source, colors),
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
    return finished(figure, "Throughput by number of devices", note=note, width=_WIDTH_SCALING, height=480 + _TOP - 84)


def _of_here(points: Sequence[Point]) -> Html:
    """Return the bars, and those of several processes; here a device is a process."""
    by_count: dict[int, dict[str, None]] = {}
    for point in points:
        by_count.setdefault(point.devices, {})[point.strategy] = None
    told = [
        f"{' and '.join(names)} in {number_of(count, 'process')}"
        for count, names in sorted(by_count.items())
        if count > 1
    ]
    return Html("<br>").join(["this machine: predicted (light), measured (full)", *filter(None, ["; ".join(told)])])
