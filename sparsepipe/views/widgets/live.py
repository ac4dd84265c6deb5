"""The present state of a job, from its record: phase, time left, pace, what each rank is doing and why it is slow."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ...errors import InputError
from ...planning.replaying import WhatIf, what_if
from ...records import RunRecord
from ...records.run_record import trace_of_all
from ...util.io.files import open_regular
from ...util.text.numbers import pace_text, validation_text
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.trace import WORK, Span, Trace, span_of
from ..markup import Html, joined
from ..plots.theme import DARK_GREY, LIGHT_GREY, stage_color
from . import looks
from .html_view import WHOLE_WORDS, scrolled
from .looks import page_code
from .settings import drawn_map
from .view_model import PALETTE, chips

MetricsRow = Mapping[str, Any]
WINDOW = 5.0  # seconds that count as now
_RECENT = 20.0  # seconds over which the present throughput is counted
_PIXELS = 800  # of a lane, about: gaps and spans that are narrower are not drawn by themselves
_TAIL = 65536  # bytes read from the end of a file that grows
_LOG_LINES = 40
_PART = Html("<span title='{} {:.0%}' style='display:inline-block;height:12px;width:{:.0f}px;background:{}'></span>")
_RANK = Html(
    "<tr><td style='padding-right:10px'>rank {}, stage {}</td><td style='width:210px;white-space:nowrap'>{}</td>"
    "<td style='padding-right:10px'>{}</td><td>{}</td></tr>"
)
_LEFT_OUT = Html("<tr><td style='padding-right:10px'>rank {}</td><td colspan='3'>unused by the plan</td></tr>")
_NO_LOG = Html("<i>rank {} has no warnings or errors</i>")
_RANKS = Html("<div style='opacity:.75'>The last {:.0f} seconds</div>{}")
_TABLE = Html("<table style='font-size:13px;line-height:1.6'>{}</table>")


@dataclass(frozen=True)
class Doing:
    """Activity of one rank in the last seconds, as shares; `waits_for`: rank → share."""

    rank: int
    stage: int
    work: float
    sending: float
    loading: float
    validating: float
    waits_for: Mapping[int, float]

    @property
    def waiting(self) -> float:
        return sum(self.waits_for.values())


def newest_spans(folder: Path) -> list[Span]:
    """The spans of all ranks of a pipeline, as far back as the ends of their files reach."""
    return [span for path in sorted(folder.glob("trace-rank*.jsonl")) for span in _last_spans(path)]


def recent_spans(record: RunRecord) -> list[list[Span]]:
    """The newest spans of each pipeline of a run, for `doings_of` and `recent_trace`: both look at one reading."""
    return [newest_spans(pipeline.folder) for pipeline in record.pipelines]


def doings(spans: Sequence[Span], *, window: float = WINDOW) -> list[Doing]:
    """Activity of each rank in the last `window` seconds; nothing before the first span is written."""
    if not spans:
        return []
    now = max(span.end for span in spans)
    begin = max(now - window, min(span.start for span in spans))
    length = max(now - begin, 1e-9)
    found = []
    for rank in sorted({span.rank for span in spans}):
        shares: dict[str, float] = {}
        waits: dict[int, float] = {}
        own = [span for span in spans if span.rank == rank and span.end > begin]
        for span in own:
            share = (span.end - max(span.start, begin)) / length
            if span.kind == "wait":
                waits[span.peer] = waits.get(span.peer, 0.0) + share
            else:
                shares[span.kind] = shares.get(span.kind, 0.0) + share
        work = sum(shares.get(kind, 0.0) for kind in WORK)
        sending = shares.get("send", 0.0) + shares.get("average", 0.0)
        stage = own[-1].stage if own else 0
        found.append(Doing(rank, stage, work, sending, shares.get("load", 0.0), shares.get("evaluate", 0.0), waits))
    return found


def doings_of(record: RunRecord, recent: Sequence[Sequence[Span]]) -> list[Doing]:
    """The same of all pipelines of a run, whose ranks are numbered as in its plan."""
    found = []
    for k, spans in enumerate(recent):
        for one in doings(spans):
            waits = {record.plan.among_all(k, peer): share for peer, share in one.waits_for.items()}
            found.append(replace(one, rank=record.plan.among_all(k, one.rank), waits_for=waits))
    return sorted(found, key=lambda one: one.rank)


def recent_trace(record: RunRecord, recent: Sequence[Sequence[Span]]) -> Trace:
    """The newest spans of all pipelines as one trace."""
    traces = [Trace(tuple(spans), record.workload.source) for spans in recent]
    return traces[0] if len(traces) == 1 else trace_of_all(record.plan, traces, record.workload.source)


def recent_cause(trace: Trace) -> WhatIf | None:
    """Find the cause that slows the newest minibatches; None while all ranks have done too few."""
    first, last = -1, None
    for _, group in groupby(sorted(trace.spans, key=lambda span: span.rank), key=lambda span: span.rank):
        done = [span.minibatch for span in group if span.kind in ("forward", "backward") and span.minibatch >= 0]
        if done and not trace.facts.get("pipelines"):  # replicas of one stage take minibatches in turn
            first, last = max(first, min(done)), max(done) if last is None else min(last, max(done))
    spans = tuple(span for span in trace.spans if last is None or first < span.minibatch < last)
    try:
        return what_if(Trace(spans, trace.source, trace.facts)) if spans else None
    except InputError:
        return None


def recent_pace(rows: Sequence[MetricsRow], *, samples: bool) -> float | None:
    """Samples/s of the newest minibatches, or minibatches/s; None before there are two."""
    steps: list[MetricsRow] = []
    for row in reversed(rows):
        if row["event"] in ("start", "resume"):
            break
        if row["event"] == "step":
            if steps and steps[0]["seconds"] - row["seconds"] > _RECENT:
                break
            steps.append(row)
    seconds = steps[0]["seconds"] - steps[-1]["seconds"] if steps else 0.0
    count = sum(row.get("samples", 0) if samples else 1 for row in steps[:-1])
    return count / seconds if seconds > 0 else None


class JobView(looks.Control, anywidget.AnyWidget):
    """Draws a job's devices, as the explorer's map does, and a lane of the last seconds for each of its ranks."""

    _esm = page_code("names", "svg_marks", "device_map", "job_view")
    _css = Path(__file__).with_name("explorer.css")
    devices = traitlets.Unicode("{}").tag(sync=True)  # JSON
    lanes = traitlets.Unicode("{}").tag(sync=True)  # JSON
    palette = traitlets.Dict(PALETTE).tag(sync=True)

    def show_devices(self, plan: Plan, cluster: Cluster | None) -> None:
        """Draw the map; without a cluster, or of fewer devices than the plan has, a process for each rank."""
        if cluster is None or len(cluster.devices) <= max(plan.ranks):
            cluster = Cluster.uniform(1 + max(plan.ranks), device_type="process")
            drawn = drawn_map(cluster, links=False)
        else:
            drawn = drawn_map(cluster)
        self.devices = _compact({"drawn": drawn, "chips": chips(plan.pipelines, cluster)})

    def show_lanes(self, trace: Trace, activities: Iterable[Doing]) -> None:
        """Draw the last seconds of a trace; `activities` say what each rank did then, in shares."""
        end = max((span.end for span in trace.spans), default=0.0)
        begin = max(end - WINDOW, min((span.start for span in trace.spans), default=0.0))
        length = max(end - begin, 1e-9)
        of: dict[int, list[Span]] = {}
        for span in trace.spans:
            if span.end > begin:
                of.setdefault(span.rank, []).append(span)
        rows = []
        for doing in activities:
            spans = sorted(of.get(doing.rank, ()), key=lambda span: span.start)
            boxes = _merged([((max(s.start, begin) - begin) / length, (s.end - begin) / length, s) for s in spans])
            label = f"rank {doing.rank} · stage {doing.stage}"
            activity = ", ".join([_at_work(doing), *(f"waits {wait}" for wait in _waits(doing))])
            rows.append({"label": label, "told": activity, "spans": boxes})
        self.lanes = _compact({"head": f"the last {WINDOW:.0f} seconds", "rows": rows})


def _merged(boxes: Iterable[tuple[float, float, Span]]) -> list[list[float | int | str]]:
    """[start, end, stage, kind] of what a rank did, as shares of the window; what is too narrow joins its neighbour."""
    merged: list[list[float | int | str]] = []
    for start, end, span in boxes:
        last = merged[-1] if merged else None
        if last and last[2:] == [span.stage, span.kind] and start - float(last[1]) < 1 / _PIXELS:
            last[1] = round(end, 4)
        elif end - start > 0.5 / _PIXELS:
            merged.append([round(start, 4), round(end, 4), span.stage, span.kind])
    return merged


def _at_work(doing: Doing) -> str:
    also = f", {doing.validating:.0%} validating" if doing.validating >= 0.01 else ""
    return f"{doing.work:.0%} at work{also}"


def _waits(doing: Doing) -> list[str]:
    """For whom a rank waits and in which share of the time, the longest first."""
    waits = sorted(doing.waits_for.items(), key=lambda item: -item[1])
    return [f"{share:.0%} for {_peer(peer)}" for peer, share in waits if share >= 0.01]


def _compact(document: Mapping[str, object]) -> str:
    return json.dumps(document, separators=(",", ":"))


def doings_table(found: Iterable[Doing], *, left_out: Iterable[int] = ()) -> Html:
    """A bar for each rank, and who waits for whom, as HTML; in the place of the bar, which ranks are `left_out`."""
    idle = set(left_out)
    rows = [_LEFT_OUT.format(rank) for rank in sorted(idle)]
    for one in found:
        if one.rank in idle:
            continue
        parts = (
            (one.work, stage_color(one.stage), "work"),
            (one.sending, stage_color(one.stage, "update"), "sending"),
            (one.loading, DARK_GREY, "loading"),
            (one.validating, stage_color(one.stage, "forward"), "validating"),
            (one.waiting, LIGHT_GREY, "waiting"),
        )
        bar = joined(_PART.format(name, share, min(share, 1) * 200, color) for share, color, name in parts)
        waits = _waits(one)
        waiting = f"waits {', '.join(waits)}" if waits else ""
        rows.append(_RANK.format(one.rank, one.stage, bar, _at_work(one), waiting))
    if not rows:
        return Html("")
    return _RANKS.format(WINDOW, scrolled(_TABLE.format(joined(rows)), "what each rank does"))


def phase(rows: Sequence[MetricsRow], plan: Plan, *, running: bool) -> tuple[str, int, int]:
    """Return (what the job is at and for how long still, minibatches done, minibatches in all; 0: not known yet)."""
    start = next((row for row in reversed(rows) if row["event"] == "start"), None)
    if start is None:
        return "setting up: processes start, connect and read their data", 0, 0
    total, per_epoch = start["minibatches"], start["epoch_minibatches"]
    done = max((row["minibatch"] + 1 for row in rows if row["event"] == "step"), default=0)
    if not done:
        return "warming up: computing the first minibatch", 0, total
    if not running:
        return f"{done} of {total} minibatches done", done, total
    warm = "warming up, " if done <= 2 * len(plan.ranks) else ""
    epoch, epochs = min(done // per_epoch, (total - 1) // per_epoch) + 1, -(-total // per_epoch)
    told = f"{warm}epoch {epoch} of {epochs}, minibatch {done} of {total}"
    return f"{told}{_left(rows, start['seconds'], total)}", done, total


def _left(rows: Sequence[MetricsRow], start: float, total: int) -> str:
    """Remaining time at the pace since the first epoch's end: until then data are read, kernels warm up."""
    marks = [
        (row["seconds"], row["minibatch"] + 1 if row["event"] == "step" else row["minibatches"], row["event"])
        for row in rows
        if row["event"] in ("step", "epoch") and row["seconds"] >= start
    ]
    since = next((k for k, mark in enumerate(marks) if mark[2] == "epoch"), 0)
    since = since if since < len(marks) - 1 else 0
    done = marks[-1][1] if marks else 0
    if not marks or done <= marks[since][1]:
        return ""
    pace = (marks[-1][0] - marks[since][0]) / (done - marks[since][1])
    seconds = pace * (total - done)
    return f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"


def learned(rows: Sequence[MetricsRow]) -> str:
    """The newest loss, accuracy and pace in words."""
    steps = [row for row in rows if row["event"] == "step"]
    epochs = [row for row in rows if row["event"] == "epoch"]
    told = []
    if steps and steps[-1].get("loss") is not None:
        recent = [row["loss"] for row in steps[-20:] if row.get("loss") is not None]  # a record may be damaged
        told.append(f"loss {sum(recent) / len(recent):.3f}")
    if epochs:
        told += [validation_text(epochs[-1]), pace_text(epochs[-1])]
    return ", ".join(filter(None, told))


def log_of(folder: Path, rank: int, plan: Plan | None = None) -> Html:
    """The end of a rank's log as HTML; a sentence if there is none yet. `plan`: of a run of several pipelines."""
    path = folder / "logs" / f"rank{rank}.log"
    if plan is not None:
        for k in (k for k in range(len(plan.members)) if rank in plan.ranks_of(k)):
            own = plan.ranks_of(k)
            path = folder / "pipelines" / str(k) / "logs" / f"rank{own.index(rank)}.log"
    if not path.exists():
        return Html("<i>rank {} has written no log yet</i>").format(rank)
    lines = _tail(path).decode(errors="replace").splitlines()[-_LOG_LINES:]
    if not any(lines):
        return _NO_LOG.format(rank)
    looks = f"max-height:220px;overflow:auto;font-size:12px;margin:2px 0;{WHOLE_WORDS}"
    return Html("<pre style='{}' tabindex='0' aria-label='the end of its log'>{}</pre>").format(looks, "\n".join(lines))


def _peer(rank: int) -> str:
    return f"rank {rank}" if rank >= 0 else "the others"


def _last_spans(path: Path) -> list[Span]:
    """The last spans of a file that another process writes; a torn line, and any that is no span, is left out."""
    spans = []
    for line in _tail(path).splitlines()[1:]:  # the first may be cut off
        try:
            spans.append(span_of(json.loads(line)))
        except (ValueError, RecursionError):
            continue
    return spans


def _tail(path: Path) -> bytes:
    try:
        handle = open_regular(path)
    except OSError:  # not there yet, or a pipe, which would be waited for
        return b""
    with handle:
        handle.seek(0, 2)
        size = handle.tell()
        handle.seek(max(0, size - _TAIL))
        data = handle.read()
    return data if size > _TAIL else b"\n" + data
