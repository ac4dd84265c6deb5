"""Throughput against memory: every candidate of a sweep as a mark, and the edge that nothing beats."""

from collections.abc import Sequence
from typing import Protocol

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ..markup import Html
from .outlines import THICK, outline_of
from .theme import INK, RUN_COLORS, RUN_MARKERS, finished


class Candidate(Protocol):
    """The part of a candidate that is drawn; `sweeps.Candidate` is one."""

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


def trade_off_table(candidates: Sequence[Candidate], best: Sequence[Candidate] = ()) -> pd.DataFrame:
    """One row for each candidate, the fastest first; `best`: none is faster with as little memory.

    The column is `minibatches_per_second` if no one knows how many samples a minibatch has.
    Raises InputError without any.
    """
    if not candidates:
        raise InputError("plot.nothing", "no candidates to draw: give those of a sweep")
    columns = ("variant", "planner", "schedule", "compression", "samples_per_second", "memory_bytes", "fits")
    rows = [{name: getattr(one, name) for name in columns} | {"best": one in best} for one in candidates]
    table = pd.DataFrame(rows).sort_values("samples_per_second", ascending=False, ignore_index=True)
    return table.rename(columns={"samples_per_second": f"{candidates[0].counted}_per_second"})


def trade_off(candidates: Sequence[Candidate], best: Sequence[Candidate] = (), *, note: str = "") -> go.Figure:
    """Draw simulated samples (or minibatches) per second over the memory of the fullest device, both growing.

    A planner has its colour, a schedule its mark; what does not fit is an outline. The line joins the `best`.
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
            figure.add_trace(_marks(part, f"{planner}, {schedule}", color, symbol, counted))
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


def _in_order(candidates: Sequence[Candidate]) -> tuple[list[str], list[str]]:
    return [one.planner for one in candidates], [one.schedule for one in candidates]
