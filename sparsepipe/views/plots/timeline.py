"""Timelines: what each rank does over time, simulated and emulated above measured. Rows name their source."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...values.trace import Trace
from ..markup import Html
from .bar_numbers import numbered
from .epochs import pace_told
from .theme import SMALL, finished, stage_color, with_held_up

_DRAWN = ("forward", "backward", "weights", "update", "average", "send", "wait", "load", "evaluate", "checkpoint")
_WORDED = 0.018  # share of the width below which a bar cannot hold its minibatch's number
_WIDE = 900  # pixels of the figure
_LEAST = SMALL - 3  # the size of a number in pixels below which it is left out
_AROUND, _KEY = 132, 20  # pixels above and below a legend, and of an entry of it: a longer one would be cut off
_OUTLINED = 0.005  # share of the width below which a bar has no outline: it would hide the bar's colour
_HEIGHTS = {"wait": 0.3, "send": 0.12}  # of a row: transfers run beside the work, below it
_BELOW = -0.49  # of a row, from its middle
_KEYS = {"load": "load data"}  # kinds that say too little by themselves
# What belongs to one minibatch: an update belongs to its whole round, and would stretch a window to that round's end.
_OF_A_MINIBATCH = ("forward", "backward", "weights")


def timeline_table(
    *traces: Trace, minibatches: tuple[int, int] | None = None, names: Sequence[str] = ()
) -> pd.DataFrame:
    """One row for each span, cut to the time that is drawn, in seconds since its beginning.

    `minibatches` keeps the time of all forwards and backwards of first ≤ minibatch < last, to look at the steady state:
    what other minibatches do meanwhile is there too. Raises InputError if nothing is left.
    """
    rows = []
    for position, trace in enumerate(traces):
        name = names[position] if names else _name(trace, traces, position)
        begin, end = window(trace, minibatches, name=name)
        spans = [span for span in trace.spans if span.end >= begin and span.start <= end]
        rows += [
            {
                "trace": name,
                "source": trace.source,
                "rank": span.rank,
                "stage": span.stage,
                "kind": span.kind,
                "name": span.name,
                "minibatch": span.minibatch,
                "peer": span.peer,
                "start_seconds": max(span.start, begin) - begin,
                "end_seconds": min(span.end, end) - begin,
            }
            for span in spans
        ]
    return pd.DataFrame(rows)


def timeline(
    *traces: Trace, minibatches: tuple[int, int] | None = None, names: Sequence[str] = (), note: str = ""
) -> go.Figure:
    """Draw the timeline of each rank.

    Each stage has a colour: light forwards, full backwards, dark updates. Waits are grey, transfers thin lines below.

    Args:
        traces: One or more traces. The rows of a simulated and a measured trace of the same plan are drawn in pairs.
        minibatches: Range [first, last) of minibatches to show. Default: all.
        names: Name of each trace. Default: its source.
        note: Sentence below the title.

    Returns:
        A plotly figure.

    Raises:
        InputError: A trace without these minibatches.

    Example:
        >>> figure = sp.plots.timeline(trace, minibatches=(2, 6), names=["predicted"])
        >>> len(figure.data) > 0
        True

    See also:
        guides/explorer_and_board, guides/figures_for_a_paper, `plots.epoch_trace`, `simulate`
    """
    table = timeline_table(*traces, minibatches=minibatches, names=names)
    table["row"] = [f"rank {rank} · {trace}" for trace, rank in zip(table.trace, table["rank"], strict=True)]
    pairs = [(rank, name) for rank in sorted(table["rank"].unique()) for name in table.trace.unique()]
    if table.source.nunique() == 1:  # different plans: one below the other, each as a whole
        pairs.sort(key=lambda pair: list(table.trace.unique()).index(pair[1]))
    order = [f"rank {rank} · {name}" for rank, name in pairs]
    order = [row for row in order if (table.row == row).any()]
    scale, unit = _unit(table.end_seconds.max())
    figure, shown = go.Figure(), set()
    groups = table[table.end_seconds > table.start_seconds].groupby(["source", "stage", "kind"])
    # Measured first, by stage, kinds in the order of their work: the legend reads so.
    for source, stage, kind in sorted(groups.groups, key=lambda key: (key[0], key[1], _DRAWN.index(key[2]))):
        part = groups.get_group((source, stage, kind))
        label = _label(stage, kind)
        seconds = part.end_seconds - part.start_seconds
        shares = seconds / table.end_seconds.max()
        wide = shares > _WORDED
        bar = go.Bar(
            y=part.row,
            x=seconds * scale,
            base=part.start_seconds * scale,
            orientation="h",
            width=_HEIGHTS.get(kind, 0.78),
            offset=_BELOW if kind == "send" else None,
            name=label,
            legendgroup=label,
            showlegend=label not in shown,
            marker={
                "color": stage_color(stage, kind),
                "line": {"width": [0.5 if share > _OUTLINED else 0 for share in shares], "color": "white"},
            },
            customdata=part[["name", "kind", "trace"]],
            hovertemplate=Html(
                "%{{customdata[0]}} %{{customdata[1]}}<br>at %{{base:.3f}} {0}, takes %{{x:.3f}} {0}"
                "<extra>%{{customdata[2]}}</extra>"
            ).format(unit),
        )
        shown.add(label)
        numbers = [str(m) if w and kind in _OF_A_MINIBATCH else "" for m, w in zip(part.minibatch, wide, strict=True)]
        figure.add_trace(numbered(bar, numbers, size=SMALL - 1))
    smallest = {"minsize": _LEAST, "mode": "hide"}  # a number that fits only if it is smaller is left out
    figure.update_layout(barmode="overlay", bargap=0.1, legend={"traceorder": "normal"}, uniformtext=smallest)
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], showgrid=False, ticks="")
    figure.update_xaxes(title_text=f"time ({unit})", rangemode="tozero")
    sources = list(dict.fromkeys(trace.source for trace in traces))
    paces = dict.fromkeys(map(pace_told, traces))
    note = " · ".join(filter(None, [note, *paces, _window_told(table, minibatches)]))
    title = f"Timeline, {' above '.join(sources)}"
    height = max(150 + 44 * max(len(order), 3), _AROUND + _KEY * len(shown))
    whole = finished(figure, title, note=note, width=_WIDE, height=height)
    return with_held_up(whole, dict.fromkeys(filter(None, (trace.held_up for trace in traces))))


def window(trace: Trace, minibatches: tuple[int, int] | None, *, name: str = "") -> tuple[float, float]:
    """Return when the first forward of the minibatches (default: all) begins and their last backward ends.

    Updates and averaging do not widen the window: they belong to a round of minibatches, not to one. Raises InputError
    for a trace, called `name`, without work on them.
    """
    low, high = minibatches or (float("-inf"), float("inf"))
    work = [span for span in trace.spans if span.kind in _OF_A_MINIBATCH and low <= span.minibatch < high]
    if not work:
        raise InputError(
            "trace.minibatches_unknown",
            f"trace {name or trace.source!r} has no work on minibatches {minibatches}; choose minibatches of the run",
        )
    begin, end = min(span.start for span in work), max(span.end for span in work)
    if minibatches is None:
        end = max(span.end for span in trace.spans)
    return begin, end


def _window_told(table: pd.DataFrame, minibatches: tuple[int, int] | None) -> str:
    """Note on the minibatches of a window; empty if all are drawn."""
    if minibatches is None:
        return ""
    work = table[table.kind.isin(_OF_A_MINIBATCH) & (table.end_seconds > table.start_seconds)].minibatch
    own = work[(work >= minibatches[0]) & (work < minibatches[1])]
    others = sorted({*work} - {*own})
    sides = [[m for m in others if m < own.min()], [m for m in others if m > own.max()]]
    beside = f"also parts of {_numbered(*filter(None, sides))} at the same time" if others else ""
    return "; ".join(filter(None, [f"from the first forward to the last backward of {_numbered([*own])}", beside]))


def _numbered(*runs: Sequence[int]) -> str:
    """Minibatches by the ends of their runs: "minibatch 3", "minibatches 3 to 5 and 9"."""
    ends = [(min(run), max(run)) for run in runs]
    told = " and ".join(str(low) if low == high else f"{low} to {high}" for low, high in ends)
    return f"minibatch {told}" if told.isdigit() else f"minibatches {told}"


def _label(stage: int, kind: str) -> str:
    """The legend's words for what a stage does."""
    return f"stage {stage} {kind}" if kind in _DRAWN[:5] else _KEYS.get(kind, kind)


def _name(trace: Trace, traces: Sequence[Trace], position: int) -> str:
    same = [k for k, other in enumerate(traces) if other.source == trace.source]
    return trace.source if len(same) == 1 else f"{trace.source} {same.index(position) + 1}"


def _unit(seconds: float) -> tuple[float, str]:
    """Milliseconds below two seconds, else seconds."""
    return (1.0, "s") if seconds >= 2 else (1e3, "ms")
