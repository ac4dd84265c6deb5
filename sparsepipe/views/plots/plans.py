"""Plans: times of their stages, their optimality gaps, device mixes, and groups of plans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Self

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...util.text.numbers import duration, number_of
from ...values.plan import Plan
from ..markup import Html, figure_text
from .marks import category_axis, fitted, nothing_to_draw
from .outcomes import Outcome, mean_of, rule_color, sourced
from .table import Point, looks, plan_names, planner_label, points_table
from .theme import (
    DARK_GREY,
    FONT_SIZE,
    GREY,
    INK,
    LIGHT_GREY,
    RUN_COLORS,
    RUN_MARKERS,
    SMALL,
    bar_marker,
    finished,
    log_ticks,
    stage_color,
)

_OVER_LINE = 6  # pixels: half a mark of a transfer, and the line


def stages_table(*plans: Plan) -> pd.DataFrame:
    """Return one row for each stage of each plan, by the plan's estimate.

    Raises InputError for a plan without an estimate.
    """
    rows = []
    for name, plan in zip(plan_names(plans), plans, strict=True):
        if plan.estimate is None:
            raise InputError(
                "plan.no_estimate",
                f"plan {name!r} has no estimate; use a planner, or draw the simulated trace instead",
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
                    "recomputed": stage.recomputed_text,
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
    """Draw the predicted times and memory of each stage, and the time per minibatch of each plan.

    Times are those of computation, transfer and averaging.
    """
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
        "%{{customdata[4]}}<br>{} %{{y:.3f}} {}<extra></extra>"
    )
    recomputed = part.recomputed.map(lambda layers: layers and f", recomputed: {layers}")
    return go.Bar(
        x=part.place,
        y=values,
        width=0.8,
        name=f"stage {stage}",
        legendgroup=f"stage {stage}",
        marker=bar_marker("simulated", stage_color(stage)),
        showlegend=legend,
        customdata=part[["plan", "devices", "first_layer", "last_layer"]].assign(recomputed=recomputed),
        hovertemplate=template.format(stage, what, unit),
    )


def _averaging_and_transfers(table: pd.DataFrame) -> Iterator[go.Bar | go.Scatter]:
    """Return the averaging time after a stage's computation and the transfers during it."""
    averaging, sending = table[table.averaging_seconds > 0], table[table.transfer_seconds > 0]
    if len(averaging):  # on top of the computation: a bar is as high as the time that its stage takes
        yield go.Bar(
            x=averaging.place,
            y=averaging.averaging_seconds * 1e3,
            width=0.8,
            name="gradient all-reduce over replicas",
            marker={"color": LIGHT_GREY, "line": {"color": GREY, "width": 1}},
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
    """Return the position of each bar: stages of a plan next to each other, a gap between plans."""
    places, at, last = [], -1.0, None
    for name in table.plan:
        at += 1 if name == last or last is None else 2
        last = name
        places.append(at)
    return places


_LEAST_SECONDS = 1e-4  # a logarithmic axis has no place for less
_ROW = 34  # pixels
_SPREAD = 0.6  # of the distance between two rows is taken by the marks of one: alike ones would hide each other


@dataclass(frozen=True)
class Gap:
    """Result of one planner for one network and one number of devices."""

    network: str
    layers: int
    devices: int
    planner: str
    gap: float | None  # share of the period that a better plan could save at most; None: nothing is proven
    seconds: float  # of planning
    reference_seconds: float | None = None  # of fixed work on the same processor at that time; None: not measured

    @classmethod
    def of(
        cls, plan: Plan, network: str, devices: int, *, planner: str = "", reference_seconds: float | None = None
    ) -> Self:
        """Read the result from a plan with an estimate. `planner` is its name. Default: that of the plan."""
        assert plan.estimate is not None
        expected = plan.estimate
        label = planner_label(planner or plan.planner)
        return cls(network, len(plan.layers), devices, label, expected.gap, expected.plan_seconds, reference_seconds)


def gaps_table(gaps: Sequence[Gap]) -> pd.DataFrame:
    """Return one row for each result."""
    columns = ["network", "layers", "devices", "planner", "gap", "seconds", "reference_seconds"]
    table = pd.DataFrame([asdict(one) for one in gaps], columns=columns)
    return table.astype({"gap": float, "reference_seconds": float})


def gaps(gaps: Sequence[Gap], *, note: str = "") -> go.Figure:
    """Draw optimality gap (left) and planning time (right) of each planner.

    There is a row for each network and number of devices.
    """
    title = "Optimality gap and planning time"
    table = gaps_table(gaps)
    if table.empty:
        return nothing_to_draw(title, note=note)
    table["row"] = [
        f"{one.network}, {number_of(one.layers, 'layer')}, {number_of(one.devices, 'device')}"
        for one in table.itertuples()
    ]
    table["percent"], table["seconds"] = 100 * table.gap, table.seconds.clip(lower=_LEAST_SECONDS)
    rows = list(dict.fromkeys(table.row))[::-1]  # the first on top
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.07)
    planners = table.planner.nunique()
    for k, (name, part) in enumerate(table.groupby("planner", sort=False)):
        below = ((planners - 1) / 2 - k) / planners * _SPREAD
        marker = {"color": RUN_COLORS[k % len(RUN_COLORS)], "symbol": RUN_MARKERS[k % len(RUN_MARKERS)], "size": 9}
        for column, field, unit in ((1, "percent", "%"), (2, "seconds", "s")):
            hover = Html("{}<br>%{{customdata}}: %{{x:,.3r}} {}<extra></extra>").format(name, unit)
            trace = go.Scatter(
                x=part[field],
                y=[rows.index(row) + below for row in part.row],
                mode="markers",
                name=name,
                legendgroup=str(k),
                showlegend=column == 1,
                marker=marker,
                customdata=part.row,
                hovertemplate=hover,
            )
            figure.add_trace(trace, row=1, col=column)
    most = max(1.0, float(table.percent.max(skipna=True) or 0.0))
    room = [-0.03 * most, 1.05 * most]  # a mark at 0 is whole
    figure.update_xaxes(title_text="optimality gap (% of the plan's time)", range=room, zeroline=True, row=1, col=1)
    figure.update_xaxes(
        title_text="planning time (s, log scale)", type="log", **log_ticks(table.seconds, most=6), row=1, col=2
    )
    figure.update_yaxes(range=[-0.6, len(rows) - 0.4], tickvals=list(range(len(rows))), ticks="", zeroline=False)
    figure.update_yaxes(ticktext=[figure_text(row) for row in rows], tickfont_size=FONT_SIZE, row=1, col=1)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"},
        margin={"l": 300, "t": 84, "b": 110},
    )
    return finished(figure, title, note=note, width=960, height=220 + _ROW * len(rows))


_ABOVE = 0.008  # of the axis is free between the bound and the labels above it
_AXIS = 780  # pixels, about
_GROUP = 0.86  # of the distance between two clusters is taken by the bars of one


def mixes_table(points: Sequence[Point]) -> pd.DataFrame:
    """Return one row for each point. `gap` is the relative distance from the bound."""
    table = points_table(points)
    table["gap"] = (1 - table.samples_per_second / table.bound_samples_per_second).clip(lower=0)
    return table


def mixes(points: Sequence[Point], *, note: str = "") -> go.Figure:
    """Draw a group of bars for each cluster, with its bound, and above each bar its gap to the bound in per cent.

    The bound is proven, the optimum is not known. A plan may therefore be better than its gap suggests.
    """
    table = mixes_table(points)
    clusters, strategies = (list(dict.fromkeys(table[column])) for column in ("cluster", "strategy"))
    step = _GROUP / len(strategies)
    table["place"] = [
        clusters.index(row.cluster) + (strategies.index(row.strategy) - (len(strategies) - 1) / 2) * step
        for row in table.itertuples()
    ]
    most = max(table.bound_samples_per_second.max(), table.samples_per_second.max())
    figure = go.Figure()
    for name, part in table.groupby("strategy", sort=False):
        color = looks(name)["color"]
        bar = go.Bar(
            x=part.place,
            y=part.samples_per_second,
            width=0.92 * step,
            name=name,
            marker=bar_marker("simulated", color),
            customdata=part.cluster,
            hovertemplate=Html("{}<br>%{{customdata}}: %{{y:.0f}} samples/s<extra></extra>").format(name),
        )
        figure.add_trace(bar)
    bounds = table.drop_duplicates("cluster")
    line = {"color": INK, "width": 1.5, "dash": "dot"}
    for k, bound in enumerate(bounds.bound_samples_per_second):
        figure.add_shape(type="line", x0=k - 0.46, x1=k + 0.46, y0=bound, y1=bound, line=line)
    key = "provable upper bound for this profile"
    figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=key, line=line))
    # In one row above the bound, where neither the line nor a bar crosses them.
    tops = table[["samples_per_second", "bound_samples_per_second"]].max(axis=1) + _ABOVE * most
    gaps = fitted(table.gap, step * _AXIS / len(clusters), ["{:.0%}".format], size=SMALL - 1)
    figure.add_trace(gaps.over(table.place, tops, table.gap, width=0.92 * step))
    drawn = set(zip(table.cluster, table.strategy, strict=True))
    for c, cluster in enumerate(clusters):
        for s, name in enumerate(strategies):
            if (cluster, name) not in drawn:
                figure.add_annotation(
                    x=c + (s - (len(strategies) - 1) / 2) * step,
                    y=0,
                    yanchor="bottom",
                    text=f"{name}: no plan",
                    textangle=-90,
                    showarrow=False,
                    font={"size": SMALL - 1, "color": DARK_GREY},
                )
    figure.update_layout(
        barmode="overlay",
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        margin={"b": 140},
    )
    figure.update_yaxes(title_text="samples/s, simulated", range=[0, most * 1.12])
    labels = [figure_text(name).replace(" + ", Html(" +<br>")) for name in clusters]
    category_axis(figure, labels)
    title = "Heterogeneous devices: simulated throughput and optimality gap"
    note = " · ".join(filter(None, [note, "above each bar: optimality gap"]))
    return finished(figure, title, note=note, width=900, height=500)


_MOST = 9  # of the values on an axis the last stands for all that are larger


def groups_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return one row for each counted value of an outcome. `what` is "group size" or "staleness".

    Raises InputError without outcomes.
    """
    rows = [
        {
            "rule": one.rule,
            "straggler": one.straggler,
            "source": one.source,
            "seed": one.seed,
            "what": what,
            "value": value,
            "count": count,
            "share": count / sum(counts.values()),
        }
        for one in outcomes
        for what, counts in (("group size", one.group_sizes), ("staleness", one.staleness))
        for value, count in counts.items()
    ]
    if not rows:
        raise InputError("plot.nothing", "no averages to draw; use a run whose synchronization scheme averages")
    return pd.DataFrame(rows)


def groups(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw for each outcome the distribution of group sizes, and of the staleness of averages in updates.

    Each pipeline replica that receives an average counts once.
    """
    groups_table(outcomes)  # refuses what has nothing to draw
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.13)
    for k, one in enumerate(outcomes):
        for col, counts, unit in ((1, one.group_sizes, "members"), (2, one.staleness, "updates late")):
            shares = _shares(counts)
            bar = go.Bar(
                x=list(shares),
                y=[100 * share for share in shares.values()],
                name=f"{one.rule}, {one.source}" if _mixed(outcomes) else one.rule,
                legendgroup=str(k),
                offsetgroup=str(k),
                showlegend=col == 1,
                marker=bar_marker(one.source, rule_color(one.rule)),
                hovertemplate=Html("{}<br>%{{x}} {}: %{{y:.1f}}% (mean {})<extra>{}</extra>").format(
                    one.rule, unit, f"{mean_of(counts):.2f}", one.source
                ),
            )
            figure.add_trace(bar, row=1, col=col)
    figure.update_xaxes(title_text="pipelines in an average", dtick=1, ticks="", row=1, col=1)
    late = [str(value) for value in range(_MOST)] + [f"{_MOST}+"]
    figure.update_xaxes(title_text="staleness (updates between contribution and average)", ticks="", row=1, col=2)
    if any(value >= _MOST for one in outcomes for value in one.staleness):
        figure.update_xaxes(tickvals=list(range(_MOST + 1)), ticktext=late, row=1, col=2)
    else:
        figure.update_xaxes(dtick=1, row=1, col=2)
    figure.update_yaxes(title_text="share of averages (%)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="share of contributions (%)", rangemode="tozero", row=1, col=2)
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(barmode="group", bargroupgap=0.06, legend=legend, margin={"b": 110})
    title = "Averaging groups and staleness"
    return finished(figure, title, note=sourced(outcomes, note), width=900, height=430)


def _shares(counts: Mapping[int, int]) -> dict[int, float]:
    total = sum(counts.values())
    found: dict[int, float] = {}
    for value, samples in counts.items():
        found[min(value, _MOST)] = found.get(min(value, _MOST), 0.0) + samples / total
    return found


def _mixed(outcomes: Sequence[Outcome]) -> bool:
    return len({one.source for one in outcomes}) > 1
