"""Breakdown of the devices' time: work, and time lost to imbalance, dependency, communication and the rest.

With b the seconds a rank works, M the trace's length, averages over ranks:
  imbalance      max b − mean b     the fullest rank would work on while the others had finished, if nothing waited
  communication  mean of the spans that send, average, or wait for a transfer that is under way
  other          loading, checkpoints, and what no span accounts for: the runtime's own overhead
  dependency     what is left of M − mean b: filling, draining, the order of actions
"""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...values.trace import Trace
from ..markup import Html
from .marks import numbered
from .theme import GREY, LIGHT_GREY, SMALL, finished, with_held_up

PARTS = ("work", "imbalance", "dependency", "communication", "other")
# Parts of the time are no stages: Tol's "light" colours ("Colour schemes", 2021), of which no stage has one.
_COLORS = {
    "work": "#5E6E7E",
    "imbalance": "#EE8866",
    "dependency": "#EEDD88",
    "communication": "#44BB99",
    "other": LIGHT_GREY,
}
_SENDING = ("send", "average")
_ACCOUNTED = ("wait", *_SENDING)


def anatomy_table(traces: Mapping[str, Trace]) -> pd.DataFrame:
    """One row for each trace: shares of all device time, which sum to 1. Raises InputError for an empty trace."""
    rows = []
    for name, trace in traces.items():
        length, ranks, kinds = trace.makespan, trace.ranks, trace.work
        if not length:
            raise InputError("trace.empty", f"trace {name!r} is empty; run or simulate some minibatches", name=name)
        work = [_covered(trace, rank, kinds) for rank in ranks]
        mean = sum(work) / len(ranks)
        sending = sum(_covered(trace, rank, (*kinds, *_SENDING)) for rank in ranks) / len(ranks) - mean
        known = sum(_covered(trace, rank, (*kinds, *_ACCOUNTED)) for rank in ranks) / len(ranks)
        imbalance = max(work) - mean
        other = length - known if trace.source != "simulated" else 0.0  # nobody simulates waiting: it is what is left
        dependency = length - mean - imbalance - sending - other
        if dependency < 0:  # ranks wait less than they differ: imbalance is what waits
            imbalance, dependency = imbalance + dependency, 0.0
        values = (mean, imbalance, dependency, sending, other)
        shares = {part: max(0.0, value) / length for part, value in zip(PARTS, values, strict=True)}
        rows.append({"trace": name, "source": trace.source, "seconds": length, "ranks": len(ranks), **shares})
    return pd.DataFrame(rows)


def anatomy(traces: Mapping[str, Trace], *, note: str = "") -> go.Figure:
    """Draw one bar for each trace, split into work and what is lost, with the source of its numbers.

    The note says what held ranks up on purpose.
    """
    table = anatomy_table(traces)
    names = [
        name if source in name or "predicted" in name else f"{name}, {source}"
        for name, source in zip(table.trace, table.source, strict=True)
    ]
    figure = go.Figure()
    for part in PARTS:
        bar = go.Bar(
            y=names,
            x=table[part] * 100,
            name=part,
            orientation="h",
            marker={
                "color": _COLORS[part],
                "line": {"color": GREY, "width": 0.5},
            },
            hovertemplate=Html("%{{y}}<br>{}: %{{x:.1f}}%<extra></extra>").format(part),
        )
        numbers = [f"{share:.0%}" if share > 0.04 else "" for share in table[part]]
        figure.add_trace(numbered(bar, numbers, size=SMALL))
    figure.update_layout(
        barmode="stack",
        legend={
            "orientation": "h",
            "x": 0,
            "y": 0.01,
            "yref": "container",
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        margin={"b": 96},
    )
    figure.update_xaxes(title_text="share of all devices' time (%)", range=[0, 100])
    figure.update_yaxes(autorange="reversed", ticks="", showgrid=False)
    whole = finished(figure, "Breakdown of device time", note=note, width=900, height=190 + 42 * len(table))
    return with_held_up(whole, dict.fromkeys(filter(None, (trace.held_up for trace in traces.values()))))


def _covered(trace: Trace, rank: int, kinds: tuple[str, ...]) -> float:
    """Seconds that at least one span of `kinds` covers: spans that overlap, as sending during work does, count once."""
    spans = sorted((s.start, s.end) for s in trace.spans if s.rank == rank and s.kind in kinds)
    covered, until = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
