"""Timelines: what each rank does over time, simulated and emulated above measured. Rows name their source.

A trace, as that of one epoch of a run, is also written as one self-contained HTML page: a timeline to zoom and drag.

The anatomy of a trace is the devices' time: work, and time lost to imbalance, dependency, communication and the rest.
With b the seconds a rank works, M the trace's length, averages over ranks:
  imbalance      max b − mean b     the fullest rank would work on while the others had finished, if nothing waited
  communication  mean of the spans that send, average, or wait for a transfer that is under way
  other          loading, checkpoints, and what no span accounts for: the runtime's own overhead
  dependency     what is left of M − mean b: filling, draining, the order of actions
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...records import RunRecord
from ...records.trace_file import MEGABYTES
from ...util.io.files import write_atomic, write_json
from ...util.text.numbers import alike
from ...values.trace import SPAN_KINDS, WORK, Trace
from ..colors import STAGE_COLORS, edge_of
from ..markup import Html
from ..tables import TIE
from ..values import left_out
from .marks import numbered
from .theme import GREY, LIGHT_GREY, SMALL, finished, ink_on, stage_color, with_held_up

_BETWEEN_EPOCHS = ("evaluate", "checkpoint")


def epoch_trace(record: RunRecord, epoch: int) -> Trace:
    """Extract the trace of one epoch of a run, with minibatches numbered from 0.

    Args:
        record: The run.
        epoch: Number of the epoch, from 0.

    Returns:
        The trace. Its fact "paces" contains the throughput of the epoch and of the run in samples/s, if known.

    Raises:
        InputError: No complete trace of this epoch. Long runs store only part of their trace.

    Example:
        >>> sp.plots.epoch_trace(sp.RunRecord.load(run_dir), 1).ranks
        (0, 1)

    See also:
        `plots.timeline`, `load_trace`
    """
    steps = {row["minibatch"] for row in record.metrics("step") if row["epoch"] == epoch}
    whole = record.trace()
    if missing := [one for one in whole.left_out.get("minibatches", ()) if any(one[0] <= m <= one[1] for m in steps)]:
        first, last = missing[0]
        raise InputError(
            "run.trace_left_out",
            f"{record.folder}: the trace lacks minibatches {first} to {last} and so at least part of epoch {epoch}; "
            f"choose another epoch, or raise the trace size limit ({MEGABYTES})",
        )
    spans = [s for s in whole.spans if s.minibatch in steps and s.kind not in _BETWEEN_EPOCHS]
    if not spans:
        raise InputError("run.epoch_unknown", f"{record.folder}: has no trace of epoch {epoch}; choose another epoch")
    facts = {key: value for key, value in whole.facts.items() if key != "left_out"}  # of this epoch nothing is
    facts |= {"paces": paces} if (paces := _paces(record, epoch)) else {}
    return Trace(tuple(s._replace(minibatch=s.minibatch - min(steps)) for s in spans), whole.source, facts)


def pace_told(trace: Trace) -> str:
    """Say how fast a run was in the epoch of a trace, compared with the median one; nothing if that is a tie."""
    own, whole = trace.facts.get("paces", (0.0, 0.0))
    if abs(own - whole) <= TIE * whole:
        return ""
    form = alike((own, whole), 3)
    return f"this epoch: {form(own)} samples/s, {own / whole:.2f} × as fast as the median one ({form(whole)} samples/s)"


def _paces(record: RunRecord, epoch: int) -> tuple[float, float] | None:
    rows, summaries = record.metrics("epoch"), record.metrics("summary")
    own = next((row.get("samples_per_second") for row in rows if row.get("epoch") == epoch), None)
    whole = summaries[-1].get("samples_per_second") if summaries else None
    one = len(record.pipelines) == 1
    return (float(own), float(whole)) if own and whole and len(rows) > 1 and one else None


def working_epoch(record: RunRecord, epoch: int) -> Trace:
    """Extract one epoch of a run, from the start of its first work to the end of its last."""
    whole = epoch_trace(record, epoch)
    work = [span for span in whole.spans if span.kind in (*WORK, "average")]
    if not work:
        raise InputError(
            "run.epoch_empty", f"{record.folder}: the trace of epoch {epoch} contains no work; choose another epoch"
        )
    return whole.between(min(span.start for span in work), max(span.end for span in work))


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
    """Return one row for each span, cut to the time that is drawn, in seconds since its start.

    `minibatches` selects the time from the first forward to the last backward of first ≤ minibatch < last, which shows
    the steady state. Spans of other minibatches in this time are included. Raises InputError if nothing is left.
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


_PAGE = Path(__file__).with_name("trace_page.html")


def trace_page(trace: Trace, *, title: str) -> str:
    """Return an HTML page with the timeline of a trace."""
    rows = {rank: k for k, rank in enumerate(trace.ranks)}
    start = min((span.start for span in trace.spans), default=0.0)
    spans = [
        [
            rows[s.rank],
            round(s.start - start, 7),
            round(s.end - start, 7),
            SPAN_KINDS.index(s.kind),
            s.stage,
            s.minibatch,
            s.peer,
        ]
        for s in trace.spans
    ]
    colors = [[stage_color(k, kind) for kind in SPAN_KINDS] for k in range(len(STAGE_COLORS))]
    document = {
        "ranks": list(rows),
        "kinds": SPAN_KINDS,
        "work": WORK,
        "spans": spans,
        "colors": colors,
        "edges": [[edge_of(color) for color in own] for own in colors],
        "inks": [[ink_on(color) for color in own] for own in colors],
    }
    # No name in it ends the script it stands in, or begins a comment: in JSON "<" may be written otherwise.
    text = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    told = title + (f" ({left_out(trace)})" if trace.left_out else "")
    parts = {"@TITLE@": Html.escape(told), "@TRACE@": text}  # put in at once: a title may have a mark in it
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], _PAGE.read_text(encoding="utf-8"))


def write_trace(trace: Trace, stem: Path, *, title: str) -> tuple[Path, Path]:
    """Write a trace as the page `<stem>.html` and, for Perfetto, `<stem>.json`. Returns both paths."""
    page = stem.with_name(f"{stem.name}.html")
    write_atomic(page, trace_page(trace, title=title))
    return page, write_json(stem.with_name(f"{stem.name}.json"), trace.to_chrome())


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
    """Return one row for each trace: shares of the time of all devices, which sum to 1.

    Raises InputError for an empty trace.
    """
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
    """Draw a bar for each trace: the shares of work and of lost time by cause.

    The note names injected stragglers.
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
