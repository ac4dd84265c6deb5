"""Training: learning curves, progress, tasks, and the trade-off of time and accuracy."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Protocol

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...records.run_progress import MINIBATCHES, SAMPLES
from ..markup import Html, figure_text
from .accuracy import accuracy_table
from .marks import SHORTER, THICK, Numbers, fitted, level_line, nothing_to_draw, outline_of
from .system_bars import system_places
from .table import noted_of, planner_label, strategy
from .theme import (
    INK,
    RUN_COLORS,
    RUN_DASHES,
    RUN_MARKERS,
    SMALL,
    bar_marker,
    finished,
    resting_on,
    source_key,
    whisker_on,
    whole_ticks,
)
from .throughput import throughput_table

Curve = Sequence[tuple[float, float]]  # (hours, seconds or minibatches, value)
Panels = Mapping[str, Mapping[str, Curve]]  # task → system → curve
_MOST_POINTS = 2000  # of a line on screen; the table has all
_MOST_MARKERS = 30  # of a line: more would hide it
_PANEL, _COLUMNS = 230, 3
# What an axis is called, and the unit of a point on it.
_CLOCKS = {"hours": ("time (h)", "h"), "seconds": ("time (s)", "s"), "minibatches": ("minibatch", "minibatches")}


def learning_curves_table(panels: Panels, *, clock: str = "hours") -> pd.DataFrame:
    """Return one row for each point of the curve of each system and task. `clock` is the column of the time."""
    rows = [
        {"task": task, "system": system, clock: when, "value": value}
        for task, curves in panels.items()
        for system, curve in curves.items()
        for when, value in curve
    ]
    return pd.DataFrame(rows, columns=["task", "system", clock, "value"])


def learning_curves(
    panels: Panels,
    *,
    unit: str = "top-1 accuracy (%)",
    clock: str = "hours",
    title: str = "",
    note: str = "",
    among: Sequence[str] = (),
) -> go.Figure:
    """Draw curves by hours, or by the `clock` of their points: "seconds" or "minibatches".

    A unit in brackets at the end of a task's name is that of its axis: "BERT (loss)", "light (accuracy, %)".

    Args:
        among: Systems of related figures. A system has the same colour in all of them.

    Raises:
        ValueError: Another clock.
    """
    if clock not in _CLOCKS:
        raise ValueError(f"clock {clock!r}, expected one of {', '.join(_CLOCKS)}")
    axis, unit_of_x = _CLOCKS[clock]
    title = title or f"Accuracy by {clock}"
    if not panels:
        return nothing_to_draw(title, note=note)
    tasks = list(panels)
    systems = system_places([system for curves in panels.values() for system in curves], among)
    columns = min(_COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    names = [task.rpartition(" (")[0] or task for task in tasks]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=names if len(tasks) > 1 else None,
        horizontal_spacing=0.09,
        vertical_spacing=0.2 / max(1, rows - 1),
    )
    for place, task in enumerate(tasks):
        row, column = place // columns + 1, place % columns + 1
        for system, curve in panels[task].items():
            k = systems[system]
            shown = curve[:: max(1, len(curve) // _MOST_POINTS)]
            line = go.Scatter(
                x=[when for when, _ in shown],
                y=[value for _, value in shown],
                mode="lines+markers" if len(shown) <= _MOST_MARKERS else "lines",
                name=system,
                legendgroup=system,
                showlegend=not any(system in panels[before] for before in tasks[:place]),
                line={"color": RUN_COLORS[k % len(RUN_COLORS)], "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2},
                marker={"symbol": RUN_MARKERS[k % len(RUN_MARKERS)], "size": 6},
                hovertemplate=Html("{}<br>%{{x:,.3r}} {}: %{{y:,.4r}}<extra></extra>").format(system, unit_of_x),
            )
            figure.add_trace(line, row=row, col=column)
        own = task.rpartition(" (")[2].rstrip(")").replace(", %", " (%)") if " (" in task else unit
        figure.update_yaxes(title_text=own, rangemode="tozero", row=row, col=column)
        figure.update_xaxes(title_text=axis, rangemode="tozero", row=row, col=column)
    figure.update_annotations(font_size=SMALL + 1)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"},
        margin={"t": 98 if len(tasks) > 1 else 64, "b": 90},
    )
    return finished(figure, title, note=note, height=180 + _PANEL * rows)


_PACES = (SAMPLES, MINIBATCHES)  # whichever the rows have
_COLUMNS_PROGRESS = ["run", "event", "seconds", "minibatch", "loss", "epoch", "validation_accuracy", *_PACES]


def progress_table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Return one row for each step and epoch of each run, from its metrics so far."""
    found = []
    for name, events in rows.items():
        for row in events:
            if row["event"] == "step":
                found.append({"run": name, **{key: row[key] for key in ("event", "seconds", "minibatch", "loss")}})
            elif row["event"] == "epoch":
                accuracy = (row.get("validation") or {}).get("accuracy")
                facts = {"epoch": row["epoch"] + 1, **{name: row[name] for name in _PACES if name in row}}
                found.append(
                    {"run": name, "event": "epoch", "seconds": row["seconds"], "validation_accuracy": accuracy, **facts}
                )
    return pd.DataFrame(found, columns=_COLUMNS_PROGRESS).astype({"loss": float, "validation_accuracy": float})


def progress(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], *, note: str = "", colors: Mapping[str, int] | None = None
) -> go.Figure:
    """Draw the metrics of runs so far: name → rows of metrics.

    `colors`: number of the colour of each run. Default: in order.
    """
    table = progress_table(rows)
    pace = next((name for name in _PACES if table[name].notna().any()), _PACES[0])
    figure = make_subplots(rows=1, cols=3, horizontal_spacing=0.09)
    for k, name in enumerate(rows):
        color = RUN_COLORS[(colors[name] if colors else k) % len(RUN_COLORS)]
        steps, epochs = (table[(table.run == name) & (table.event == event)] for event in ("step", "epoch"))
        steps = steps.sort_values("minibatch")  # replicas tell theirs in turn
        for col, x, y, mode in (
            (1, steps.minibatch, steps.loss, "lines"),
            (2, epochs.epoch, epochs.validation_accuracy * 100, "lines+markers"),
            (3, epochs.epoch, epochs[pace], "lines+markers"),
        ):
            line = go.Scatter(x=x, y=y, mode=mode, name=name, legendgroup=name, showlegend=col == 1, line_color=color)
            figure.add_trace(line, row=1, col=col)
    for col, title, unit in (
        (1, "minibatch", "loss"),
        (2, "epochs", "validation accuracy (%)"),
        (3, "epochs", pace.replace("_per_second", "/s")),
    ):
        figure.update_xaxes(title_text=title, row=1, col=col)
        figure.update_yaxes(title_text=unit, rangemode="tozero", row=1, col=col)
    most = max((row["epoch"] + 1 for events in rows.values() for row in events if row["event"] == "epoch"), default=1)
    for col in (2, 3):
        figure.update_xaxes(dtick=whole_ticks(most), row=1, col=col)
    figure.update_layout(legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"})
    return finished(figure, "Training", note=note, width=960, height=330)


class DrawnCandidate(Protocol):
    """Values of a candidate that are drawn; `sweeps.Candidate` has them."""

    @property
    def variant(self) -> str: ...

    @property
    def planner(self) -> str: ...

    @property
    def schedule(self) -> str: ...

    @property
    def compression(self) -> str: ...

    @property
    def samples_per_second(self) -> float: ...

    @property
    def counted(self) -> str: ...

    @property
    def memory_bytes(self) -> float: ...

    @property
    def fits(self) -> bool: ...


def trade_off_table(candidates: Sequence[DrawnCandidate], best: Sequence[DrawnCandidate] = ()) -> pd.DataFrame:
    """Return one row for each candidate, the fastest first. `best`: no other candidate is faster with as little memory.

    If the samples per minibatch are unknown, the column is `minibatches_per_second`. Raises InputError without
    candidates.
    """
    if not candidates:
        raise InputError("plot.nothing", "no candidates to draw; give the candidates of a sweep")
    columns = ("variant", "planner", "schedule", "compression", "samples_per_second", "memory_bytes", "fits")
    rows = [{name: getattr(one, name) for name in columns} | {"best": one in best} for one in candidates]
    table = pd.DataFrame(rows).sort_values("samples_per_second", ascending=False, ignore_index=True)
    return table.rename(columns={"samples_per_second": f"{candidates[0].counted}_per_second"})


def trade_off(
    candidates: Sequence[DrawnCandidate], best: Sequence[DrawnCandidate] = (), *, note: str = ""
) -> go.Figure:
    """Draw throughput against peak memory of simulated plans, with their Pareto front.

    The colour shows the planner, the marker shows the schedule. Plans that exceed the memory are outlines.

    Args:
        candidates: Candidates of a sweep.
        best: Pareto front of the candidates, drawn as a line.
        note: A sentence below the title.

    Returns:
        A plotly figure.

    Raises:
        InputError: No candidates.

    Example:
        >>> from sparsepipe.planning.sweeps import sweep
        >>> found = sweep({"5 cm": profile}, cluster, schedules=["1f1b"], minibatches=8)
        >>> len(sp.plots.trade_off(found.candidates, found.best).data) > 0
        True

    See also:
        guides/sweeps
    """
    table = trade_off_table(candidates, best)
    counted = candidates[0].counted
    pace = f"{counted}_per_second"
    planners, schedules = (list(dict.fromkeys(one_by_one)) for one_by_one in _in_order(candidates))
    figure = go.Figure()
    edge = table[table.best].sort_values("memory_bytes")
    if len(edge):
        line = {"color": INK, "width": 1.5, "dash": "dot", "shape": "hv"}
        figure.add_trace(
            go.Scatter(
                x=edge.memory_bytes / 1e6, y=edge[pace], mode="lines", name="Pareto front", line=line, hoverinfo="skip"
            )
        )
    for planner, schedule in [(planner, schedule) for planner in planners for schedule in schedules]:
        part = table[(table.planner == planner) & (table.schedule == schedule)]
        if len(part):
            color = RUN_COLORS[planners.index(planner) % len(RUN_COLORS)]
            symbol = RUN_MARKERS[schedules.index(schedule) % len(RUN_MARKERS)]
            figure.add_trace(_marks(part, f"{planner_label(planner)}, {schedule}", color, symbol, counted))
    figure.update_xaxes(title_text="peak memory, worst device (MB)", rangemode="tozero")
    figure.update_yaxes(title_text=f"{counted}/s, simulated", rangemode="tozero")
    return finished(figure, "Throughput against memory", note=note, width=900, height=480)


def _marks(part: pd.DataFrame, name: str, color: str, symbol: str, counted: str) -> go.Scatter:
    """The candidates of a planner and a schedule; those on the edge larger, with an outline."""
    told = [
        " · ".join(filter(None, (row.variant, row.compression, "" if row.fits else "does not fit")))
        for row in part.itertuples()
    ]
    either = [*zip(part.fits, part.best, strict=True)]
    marker = {
        "color": [color if fits else outline_of(color) for fits in part.fits],
        "symbol": [symbol if fits else f"{symbol}-open" for fits in part.fits],
        "size": [13 if best else 9 for best in part.best],
        "line": {"color": INK, "width": [0.5 if fits and not best else THICK for fits, best in either]},
    }
    hover = Html("{}<br>%{{customdata}}<br>%{{y:,.1f}} {}/s, %{{x:,.1f}} MB<extra></extra>").format(name, counted)
    return go.Scatter(
        x=part.memory_bytes / 1e6,
        y=part[f"{counted}_per_second"],
        mode="markers",
        name=name,
        marker=marker,
        customdata=told,
        hovertemplate=hover,
    )


def _in_order(candidates: Sequence[DrawnCandidate]) -> tuple[list[str], list[str]]:
    return [one.planner for one in candidates], [one.schedule for one in candidates]


Runs = Mapping[str, Sequence[RunRecord]]
_WIDTH, _BETWEEN = 960, 0.05  # pixels; of it between two columns
_PAIR = 0.86  # of the distance between two strategies is taken by their bars


def tasks_table(runs: Runs) -> pd.DataFrame:
    """Return one row for each epoch of each run, with its task, strategy and seed.

    `samples_per_second`, measured and predicted, are those of the whole run. Raises InputError without runs, and for an
    unfinished run.
    """
    if not any(runs.values()):
        raise InputError("plot.nothing", "no runs to draw; give runs of at least one task")
    parts = []
    for task, records in runs.items():
        names = [record.name for record in records]
        by_name = dict(zip(names, records, strict=True))
        speeds = throughput_table(*records).set_index("run")
        learned = accuracy_table(*records, names=names).drop(columns="strategy")
        learned.insert(0, "task", task)
        learned.insert(1, "strategy", [strategy(by_name[name].plan) for name in learned.run])
        learned.insert(2, "seed", [by_name[name].config.get("seed", 0) for name in learned.run])
        speeds = speeds[["samples_per_second", "predicted_samples_per_second", "processes"]]
        parts.append(learned.join(speeds, on="run"))
    return pd.concat(parts, ignore_index=True)


def tasks(runs: Runs, *, levels: Mapping[str, float] | None = None, note: str = "") -> go.Figure:
    """Draw a column for each task: samples/s of each strategy above, validation accuracy by time below.

    Bars are means over seeds, with minimum and maximum; each seed has a line of its own. `levels`: task → accuracy of
    the most frequent answer, drawn as a horizontal line. At or below it, nothing is learned yet.
    """
    table = tasks_table(runs)
    names = list(dict.fromkeys(table.task))
    strategies = list(dict.fromkeys(table.strategy))
    figure = make_subplots(
        rows=2,
        cols=len(names),
        subplot_titles=[figure_text(name) for name in names],
        vertical_spacing=0.14,
        horizontal_spacing=_BETWEEN,
    )
    numbers = _numbers(table, len(names), len(strategies))
    for col, task in enumerate(names, 1):
        of_task = table[table.task == task]
        for k, name in enumerate(strategies):
            part = of_task[of_task.strategy == name]
            if len(part):
                _bars(figure, part, name, RUN_COLORS[k % len(RUN_COLORS)], col, numbers)
                _lines(figure, part, name, k, col, first=task == table[table.strategy == name].task.iloc[0])
        if levels and task in levels:
            learned = of_task.validation_accuracy * 100
            _level(figure, levels[task], learned, col, named=task == next(name for name in names if name in levels))
        figure.update_xaxes(showticklabels=False, ticks="", showgrid=False, row=1, col=col)
        figure.update_xaxes(title_text="time since launch (s)", rangemode="tozero", row=2, col=col)
    for source, label in (("simulated", "predicted"), ("measured", "measured")):
        figure.add_trace(go.Bar(x=[None], y=[None], name=label, marker=source_key(source)), row=1, col=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text="samples/s", row=1, col=1)
    figure.update_yaxes(title_text="validation accuracy (%)", row=2, col=1)
    figure.update_annotations(font_size=SMALL + 1)
    legend = {"orientation": "h", "x": 0, "y": -0.13, "yanchor": "top"}
    figure.update_layout(barmode="group", bargap=1 - _PAIR, bargroupgap=0.08, legend=legend, margin={"b": 120, "t": 84})
    records = [record for one in runs.values() for record in one]
    note = " · ".join(filter(None, [noted_of(note, records), when(records)]))
    figure = finished(figure, "Dense networks by strategy", note=note, width=_WIDTH, height=640)
    each = (Provenance.of(runs=own) for own in runs.values())  # speeds of two tasks are not compared
    return resting_on(figure, reduce(or_, each, Provenance()))


def _level(figure: go.Figure, level: float, learned: pd.Series, col: int, *, named: bool) -> None:
    """A line across a task's accuracies; of all of them there is one entry of the legend."""
    name, line = "majority class", {"color": INK, "width": 1, "dash": "dot"}
    level_line(figure, level * 100, learned, line=line, row=2, col=col)
    if named:
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=name, line=line), row=2, col=col)


def _numbers(table: pd.DataFrame, num_tasks: int, num_strategies: int) -> Numbers:
    """Format of all throughputs: two bars of a strategy stand side by side."""
    axis = (_WIDTH - 110) * (1 - (num_tasks - 1) * _BETWEEN) / num_tasks
    paces = table.groupby(["task", "strategy"])[["samples_per_second", "predicted_samples_per_second"]].mean()
    return fitted(paces.to_numpy().ravel(), _PAIR / 2 * axis / num_strategies, SHORTER)


def _bars(figure: go.Figure, part: pd.DataFrame, name: str, color: str, col: int, numbers: Numbers) -> None:
    speeds = part.groupby("run").first()
    for column, source in (("predicted_samples_per_second", "simulated"), ("samples_per_second", "measured")):
        values = speeds[column].dropna()
        if len(values):
            mean = values.mean()
            spread: dict[str, object] = {"array": [values.max() - mean], "arrayminus": [mean - values.min()]}
            spread |= {"visible": len(values) > 1, "color": whisker_on(color)}
            x = [figure_text(name)]
            bar = go.Bar(
                x=x,
                y=[mean],
                offsetgroup=source,
                showlegend=False,
                error_y=spread,
                marker=bar_marker(source, color),
                hovertemplate=Html("{}<br>{}: %{{y:.1f}} samples/s<extra></extra>").format(name, source),
            )
            figure.add_trace(bar, row=1, col=col)
            figure.add_trace(numbers.over(x, [values.max()], [mean], offsetgroup=source), row=1, col=col)


def _lines(figure: go.Figure, part: pd.DataFrame, name: str, k: int, col: int, *, first: bool) -> None:
    for position, (_, seed) in enumerate(part.groupby("seed", sort=False)):
        line = go.Scatter(
            x=seed.seconds,
            y=seed.validation_accuracy * 100,
            mode="lines+markers",
            name=name,
            legendgroup=name,
            showlegend=first and position == 0,
            line={"color": RUN_COLORS[k % len(RUN_COLORS)], "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2},
            marker={"symbol": RUN_MARKERS[k % len(RUN_MARKERS)], "size": 7},
            hovertemplate=Html("{}<br>%{{x:.1f}} s: %{{y:.1f}}%<extra></extra>").format(name),
        )
        figure.add_trace(line, row=2, col=col)
