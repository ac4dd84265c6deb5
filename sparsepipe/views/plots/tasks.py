"""Several tasks under the same strategies: how fast each trains, and what it has learned by when."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ..markup import Html, figure_text
from .accuracy import accuracy_table
from .bar_numbers import SHORTER, Numbers, fitted
from .levels import level_line
from .table import noted_of, strategy
from .theme import INK, RUN_COLORS, RUN_DASHES, RUN_MARKERS, SMALL, finished, hatch, resting_on, source_key, whisker_on
from .throughput import throughput_table

Runs = Mapping[str, Sequence[RunRecord]]
_WIDTH, _BETWEEN = 960, 0.05  # pixels; of it between two columns
_PAIR = 0.86  # of the distance between two strategies is taken by their bars


def tasks_table(runs: Runs) -> pd.DataFrame:
    """One row for each epoch of each run, under the name of its task, its strategy and its seed.

    `samples_per_second`, measured and predicted, are those of the whole run. Raises InputError without runs, and for a
    run that did not finish.
    """
    if not any(runs.values()):
        raise InputError("plot.nothing", "no runs to draw: expected some of at least one task")
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

    Bars are means over seeds, with the lowest and the highest; each seed has a line of its own. `levels`: by task, the
    accuracy of who always gives the most frequent answer, as a line across: at or below it nothing is learned yet.
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
                marker={"color": color, "pattern": hatch(source, color)},
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
