"""Traces: spans of what each rank did when, in simulated, emulated and measured runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import InputError
from ..util.io.fields import MOST, complaint, each, fields, flag, integer, real, shown, shown_key, text
from ..util.io.files import expanded, open_regular, read_json
from ..util.io.job_operations import read_operations
from ..util.text.numbers import Printed

Source = Literal["simulated", "emulated", "measured"]
WORK = ("forward", "backward", "weights", "update")  # what keeps a device busy for the training's own sake
SPAN_KINDS = (*WORK, "average", "send", "wait", "load", "evaluate", "checkpoint")


class Span(NamedTuple):
    """Record one operation of one rank, with its start and end.

    Attributes:
        rank: Rank of the process.
        name: Name of the operation: an action such as "1F3", with minibatches counted from the start of the epoch.
        start: Start in seconds from the beginning of the trace.
        end: End in seconds from the beginning of the trace.
        kind: "forward", "backward", "weights", "update", "average", "send", "wait", "load", "evaluate" or "checkpoint".
        stage: Number of the stage.
        minibatch: Number of the minibatch in the whole run. -1: none.
        peer: Receiving rank of a transfer, or the rank that was waited for. -1: none.

    Example:
        >>> sp.Span(0, "0F0", start=0.0, end=0.25).seconds
        0.25

    See also:
        `Trace`
    """

    rank: int
    name: str
    start: float
    end: float
    kind: str = "forward"
    stage: int = 0
    minibatch: int = -1
    peer: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Trace(Printed):
    """Store the operations of all ranks of a simulated, emulated or measured run.

    A rank is idle while it waits for another rank (`waited`, in measured traces), synchronizes gradients, or while the
    pipeline fills and drains.

    Attributes:
        spans: The operations.
        source: "simulated", "emulated" or "measured".
        facts: Further data about the run, such as peak memory of each rank or injected stragglers.

    Raises:
        InputError: A span of an unknown kind.

    Example:
        >>> trace = sp.simulate(plan, profile, cluster, sizes)
        >>> trace.ranks, round(trace.bubble_fraction, 2)
        ((0, 1), 0.13)

    See also:
        guides/traces_and_what_if, `load_trace`, `simulate`
    """

    spans: tuple[Span, ...]
    source: Source
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := {span.kind for span in self.spans} - set(SPAN_KINDS):
            span = next(span for span in self.spans if span.kind in unknown)
            raise InputError(
                "trace.kind_unknown",
                f"span {span.name!r} of rank {span.rank} has the unknown kind {span.kind!r}, expected one of "
                f"{', '.join(SPAN_KINDS)}",
                kind=span.kind,
            )

    @property
    def left_out(self) -> dict[str, Any]:
        """Return the omitted parts of a long trace: "minibatches" (pairs [first, last]), "spans", "seconds"; or {}."""
        return dict(self.facts.get("left_out", {}))

    @property
    def held_up(self) -> str:
        """Return a short text on injected stragglers and kills, for a figure's note. Empty if there were none."""
        reason: str = self.facts.get("held_up", "")
        return reason

    @property
    def pipeline_of_rank(self) -> dict[int, int]:
        """Pipeline number of each rank. Empty for a single pipeline."""
        return {rank: k for k, ranks in enumerate(self.facts.get("pipelines", ())) for rank in ranks}

    @property
    def shown_seconds(self) -> float:
        """Makespan without the gaps of omitted minibatches."""
        return float(max(self.makespan - self.left_out.get("seconds", 0.0), 0.0))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({span.rank for span in self.spans}))

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end; 0 for an empty trace."""
        if not self.spans:
            return 0.0
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    def seconds(self, rank: int, kinds: Iterable[str] = WORK) -> float:
        """Seconds that `rank` spent in spans of `kinds`."""
        kinds = set(kinds)
        return sum(span.seconds for span in self.spans if span.rank == rank and span.kind in kinds)

    @property
    def work(self) -> tuple[str, ...]:
        """Kinds of spans in which a device computes: "evaluate" for inference, otherwise those of WORK."""
        kinds = {span.kind for span in self.spans}
        return ("evaluate",) if "evaluate" in kinds and not kinds & set(WORK) else WORK

    def busy(self, rank: int) -> float:
        """Seconds that `rank` computed."""
        return self.seconds(rank, self.work)

    @property
    def bubble_fraction(self) -> float:
        """Fraction of device time without computation: 1 − busy / (ranks × makespan), without gaps."""
        if not self.shown_seconds:
            return 0.0
        kinds = self.work
        busy = sum(self.seconds(rank, kinds) for rank in self.ranks)
        return 1 - busy / (len(self.ranks) * self.shown_seconds)

    def waited(self) -> dict[tuple[int, int], float]:
        """Return the waiting seconds by (rank, awaited rank), the longest first. Simulated traces have none."""
        waited_seconds: dict[tuple[int, int], float] = {}
        for span in self.spans:
            if span.kind == "wait" and span.peer >= 0:
                waited_seconds[span.rank, span.peer] = waited_seconds.get((span.rank, span.peer), 0.0) + span.seconds
        return dict(sorted(waited_seconds.items(), key=lambda item: -item[1]))

    def between(self, start: float, end: float) -> "Trace":
        """Return the part of the trace whose spans lie entirely within [start, end] seconds."""
        return Trace(tuple(s for s in self.spans if start <= s.start and s.end <= end), self.source, self.facts)

    def to_rows(self) -> list[dict[str, Any]]:
        return [span._asdict() for span in self.spans]

    @classmethod
    def load(cls, path: Path | str) -> "Trace":
        """Read a trace file: a Chrome trace written by sparsepipe, or the operations of a job (.parquet).

        Module job_operations describes the columns. `load_trace` also reads run directories. Raises InputError
        for other files.
        """
        path = expanded(path)
        try:
            with open_regular(path) as file:
                is_table = file.read(4) == b"PAR1"
        except OSError as error:
            reason = "is a folder; load_trace reads that of a run" if path.is_dir() else error.strerror
            raise InputError(
                "trace.unreadable", f"{path}: {reason}; expected a Chrome trace or a .parquet of operations"
            ) from None
        if is_table:
            rows, facts = read_operations(path)
            return cls(tuple(Span(*row) for row in rows), "measured", facts)
        try:
            return cls.from_chrome(read_json(path, what="Chrome trace, or a .parquet of operations"))
        except InputError as error:
            raise error.within("" if str(error).startswith(str(path)) else f"{path}: ") from None

    @classmethod
    def from_rows(cls, rows: Iterable[dict[str, Any]], source: Source) -> "Trace":
        """Read the output of `to_rows`. Raises InputError for a row that is not a span."""
        return cls(with_input_halves(map(span_of, rows)), source)

    def to_chrome(self) -> dict[str, Any]:
        """Return Chrome/Perfetto trace events: one thread per rank, in microseconds."""
        names = [
            {"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}}
            for rank in self.ranks
        ]
        events = [
            {
                "ph": "X",
                "pid": 0,
                "tid": span.rank,
                "name": span.name,
                "cat": span.kind,
                "ts": span.start * 1e6,
                "dur": span.seconds * 1e6,
                "args": {"stage": span.stage, "minibatch": span.minibatch, "peer": span.peer},
            }
            for span in self.spans
        ]
        facts = {"source": self.source, **{key: self.facts[key] for key in _TOLD if self.facts.get(key)}}
        return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": facts}

    @classmethod
    def from_chrome(cls, document: dict[str, Any]) -> "Trace":
        """Read the output of `to_chrome`. Raises InputError if an event lacks a field."""
        try:
            spans = with_input_halves(
                span_of(
                    {
                        "rank": event["tid"],
                        "name": event["name"],
                        "start": event["ts"] / 1e6,
                        "end": (event["ts"] + event["dur"]) / 1e6,
                        "kind": event["cat"],
                        **event["args"],
                    }
                )
                for event in document["traceEvents"]
                if event["ph"] == "X"
            )
            source = _OLD_SOURCES.get(document["otherData"]["source"], document["otherData"]["source"])
            if source not in _SOURCES:
                raise InputError(
                    "trace.source_unknown",
                    f"unknown trace source {shown(source)}, expected one of {', '.join(_SOURCES)}",
                )
            others = document["otherData"]
            facts = {key: check(others[key], key) for key, check in _TOLD.items() if others.get(key)}
            return cls(spans, source, facts)
        except (KeyError, TypeError, AttributeError) as error:
            wrong = f"it has no {error}" if isinstance(error, KeyError) else complaint(error)
            if not isinstance(document, dict):
                wrong = f"it is {shown(document)}, no object with 'traceEvents'"
            raise InputError(
                "trace.foreign", f"not a trace of sparsepipe: {wrong}; expected Chrome trace events"
            ) from None


def _pair(value: Any, what: str) -> list[int]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(
            "trace.minibatches_malformed", f"{what} is {shown(value)}, expected the first and the last minibatch"
        )
    return [integer(number, what, most=_MOST_ID) for number in value]


def _step(value: Any, what: str) -> list[int]:
    if not isinstance(value, list) or len(value) != 3:
        raise InputError(
            "trace.step_malformed",
            f"{what} is {shown(value)}, expected a step number, its first minibatch, and the first minibatch of the "
            "next step",
        )
    return [integer(number, what, most=_MOST_ID) for number in value]


# Facts that a Chrome trace has, too: what is missing, and what held ranks up on purpose. Of a job that others traced:
# its `steps`, its own names of `operations`, and whether a transfer needs both ranks at once, `rendezvous`. Of several
# pipelines: the ranks of each, `pipelines`, and of each stage, counted over all of them, the first that has the same
# layers, `like_stages`. Of a torch job: `joined`, its steps overlap and are looked at as a whole; what was `assumed` to
# read it, what such a trace leaves `unknown`, and by how many seconds the clocks of ranks may differ, `clock_error`.
_TOLD = {
    "left_out": fields({"minibatches": each(_pair), "spans": integer, "seconds": real}),
    "held_up": text,
    "steps": each(_step),
    "operations": fields({}, others=text),
    "rendezvous": flag,
    "pipelines": each(each(integer)),
    "like_stages": each(integer),
    "joined": flag,
    "assumed": each(text),
    "unknown": each(text),
    "clock_error": real,
}
_SOURCES = ("simulated", "emulated", "measured")
_OLD_SOURCES = {"replayed": "emulated"}  # what version 0.1 wrote
_MOST_ID = 2**53  # ranks, stages and minibatches: what a page's numbers can tell apart


def with_input_halves(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans, those of a backward's input half named I where an older file calls them B: where W follows, B is I."""
    spans = tuple(spans)
    late = {(span.stage, span.minibatch) for span in spans if span.kind == "weights"}
    if not late:
        return spans
    return tuple(
        span._replace(name=span.name.replace("B", "I", 1))
        if "B" in span.name and (span.stage, span.minibatch) in late
        else span
        for span in spans
    )


def span_of(row: dict[str, Any]) -> Span:
    """Return the span of a row of a file. Raises InputError if a field is missing, unknown or of a wrong type."""
    if not isinstance(row, dict):
        raise InputError(
            "trace.span_malformed", f"{shown(row)}: not a span, expected an object with rank, name, start and end"
        )
    try:
        span = Span(**row)
    except TypeError:
        if unknown := [key for key in row if key not in Span._fields]:
            raise InputError(
                "trace.field_unknown",
                f"unknown span field {shown_key(unknown[0])}, expected {', '.join(Span._fields)}",
            ) from None
        missing = next(key for key in Span._fields if key not in row)
        raise InputError(
            "trace.field_missing", f"a span lacks {missing!r}, expected rank, name, start and end"
        ) from None
    if not (
        type(span.rank) is int
        and type(span.stage) is int
        and type(span.minibatch) is int
        and type(span.peer) is int
        and type(span.name) is str
        and type(span.start) in (int, float)
        and type(span.end) in (int, float)
        and 0 <= span.rank <= _MOST_ID
        and 0 <= span.stage <= _MOST_ID
        and -1 <= span.minibatch <= _MOST_ID
        and -1 <= span.peer <= _MOST_ID
        and -MOST <= span.start <= span.end <= MOST
        and type(span.kind) is str
        and span.kind in SPAN_KINDS
    ):
        raise InputError("trace.span_malformed", _wrong(span))
    return span


def _wrong(span: Span) -> str:
    """The first thing that is wrong with the fields of a span."""
    for name in ("rank", "stage", "minibatch", "peer"):
        value, least = getattr(span, name), -1 if name in ("minibatch", "peer") else 0
        if type(value) is not int or not least <= value <= _MOST_ID:
            return f"{name} = {shown(value)}: expected a whole number, at least {least}"
    if type(span.name) is not str:
        return f"name = {shown(span.name)}: expected a string"
    if type(span.kind) is not str or span.kind not in SPAN_KINDS:
        return f"kind {shown(span.kind)}: expected one of {', '.join(SPAN_KINDS)}"
    return (
        f"start = {shown(span.start)}, end = {shown(span.end)}: expected finite seconds, the end not before the start"
    )
