"""Plans side by side: what each stage takes in time and memory, and the period the slowest stage sets."""

from collections.abc import Iterator
from itertools import count

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.numbers import duration
from ...values.plan import Plan
from ..markup import Html, figure_text
from .table import plan_names
from .theme import GREY, INK, LIGHT_GREY, SMALL, finished, hatch, stage_color

_OVER_LINE = 6  # pixels: half a mark of a transfer, and the line


def stages_table(*plans: Plan) -> pd.DataFrame:
    """One row for each stage of each plan, as its planner expects it. Raises InputError if one has no estimate."""
    rows = []
    for name, plan in zip(plan_names(plans), plans, strict=True):
        if plan.estimate is None:
            raise InputError(
                "plan.no_estimate",
                f"plan {name!r} carries no estimate: make it with a planner, or draw its simulated trace",
            )
        for k, stage, estimate in zip(count(), plan.stages, plan.estimate.stages, strict=False):
            rows.append(
                {
                    "plan": name,
                    "stage": k,
                    "ranks": len(stage.ranks),
                    "devices": ", ".join(stage.device_types) or ", ".join(map(str, stage.ranks)),
                    "first_layer": stage.layers[0],
                    "last_layer": stage.layers[-1],
                    "compute_seconds": estimate.compute_seconds,
                    "transfer_seconds": estimate.transfer_seconds,
                    "averaging_seconds": estimate.averaging_seconds,
                    "memory_bytes": estimate.memory_bytes,
                    "period_seconds": plan.estimate.period_seconds,
                    "gap": plan.estimate.gap,
                }
            )
    return pd.DataFrame(rows)


def stages(*plans: Plan, note: str = "") -> go.Figure:
    """Draw predicted compute, transfer and averaging time and memory of each stage, and each plan's period."""
    table = stages_table(*plans)
    table["place"] = _places(table)
    periods = table.groupby("plan", sort=False).agg(
        low=("place", "min"), high=("place", "max"), period=("period_seconds", "first")
    )
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.62, 0.38])
    for k, part in table.groupby("stage"):
        figure.add_trace(_bars(k, part, part.compute_seconds * 1e3, "compute", "ms", legend=True), row=1, col=1)
        figure.add_trace(_bars(k, part, part.memory_bytes / 1e6, "memory", "MB", legend=False), row=2, col=1)
    for trace in (*_averaging_and_transfers(table), _period_lines(periods)):
        figure.add_trace(trace, row=1, col=1)
    _name_periods(figure, periods)
    figure.update_xaxes(
        tickvals=(periods.low + periods.high) / 2,
        ticktext=[figure_text(name).replace(" (", Html("<br>(")) for name in periods.index],
        ticks="",
        showgrid=False,
        range=[-0.9, table.place.max() + 0.9],
    )
    busy = table.compute_seconds + table.averaging_seconds
    top = max(table.period_seconds.max(), busy.max(), table.transfer_seconds.max())
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title_text="ms per minibatch", range=[0, top * 1.15e3], row=1, col=1)
    figure.update_yaxes(title_text="memory (MB)", rangemode="tozero", row=2, col=1)
    width = max(760, 140 + 46 * (len(table) + len(plans)))
    return finished(figure, "Stages of each plan, as predicted", note=note, width=width, height=500)


def _bars(stage: int, part: pd.DataFrame, values: pd.Series, what: str, unit: str, *, legend: bool) -> go.Bar:
    """The bars of one stage of every plan: its computation or its memory."""
    template = Html(
        "%{{customdata[0]}}, stage {} on %{{customdata[1]}}<br>%{{customdata[2]}} … %{{customdata[3]}}"
        "<br>{} %{{y:.3f}} {}<extra></extra>"
    )
    return go.Bar(
        x=part.place,
        y=values,
        width=0.8,
        name=f"stage {stage}",
        legendgroup=f"stage {stage}",
        marker={"color": stage_color(stage), "pattern": hatch("simulated", stage_color(stage))},
        showlegend=legend,
        customdata=part[["plan", "devices", "first_layer", "last_layer"]],
        hovertemplate=template.format(stage, what, unit),
    )


def _averaging_and_transfers(table: pd.DataFrame) -> Iterator[go.Bar | go.Scatter]:
    """What a stage does in addition to computing: it averages afterwards, and sends meanwhile."""
    averaging, sending = table[table.averaging_seconds > 0], table[table.transfer_seconds > 0]
    if len(averaging):  # on top of the computation: a bar is as high as the time that its stage takes
        yield go.Bar(
            x=averaging.place,
            y=averaging.averaging_seconds * 1e3,
            width=0.8,
            name="gradient all-reduce over replicas",
            marker={
                "color": LIGHT_GREY,
                "line": {"color": GREY, "width": 1},
                "pattern": hatch("simulated", LIGHT_GREY),
            },
            hovertemplate="averaging %{y:.3f} ms<extra></extra>",
        )
    if len(sending):
        yield go.Scatter(
            x=sending.place,
            y=sending.transfer_seconds * 1e3,
            mode="markers",
            name="transfer, meanwhile",
            marker={"symbol": "diamond", "size": 8, "color": INK, "line": {"width": 1, "color": "white"}},
            cliponaxis=False,
            hovertemplate="transfer %{y:.3f} ms<extra></extra>",
        )


def _period_lines(periods: pd.DataFrame) -> go.Scatter:
    """A line over the bars of each plan at its period."""
    line_x, line_y = [], []
    for low, high, period in periods.itertuples(index=False):
        line_x += [low - 0.5, high + 0.5, None]
        line_y += [period * 1e3, period * 1e3, None]
    line = {"color": INK, "width": 2, "dash": "dot"}
    return go.Scatter(x=line_x, y=line_y, mode="lines", name="time per minibatch", line=line, hoverinfo="skip")


def _name_periods(figure: go.Figure, periods: pd.DataFrame) -> None:
    """Each period in words above its line, and above a mark that stands on the line."""
    for low, high, period in periods.itertuples(index=False):
        figure.add_annotation(
            x=(low + high) / 2,
            y=period * 1e3,
            yanchor="bottom",
            yshift=_OVER_LINE,
            borderpad=0,
            text=duration(period, "ms"),
            showarrow=False,
            font={"size": SMALL, "color": INK},
            row=1,
            col=1,
        )


def _places(table: pd.DataFrame) -> list[float]:
    """Where each bar stands: stages of a plan side by side, a free place between plans."""
    places, at, last = [], -1.0, None
    for name in table.plan:
        at += 1 if name == last or last is None else 2
        last = name
        places.append(at)
    return places
