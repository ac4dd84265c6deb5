"""Times of ranks and links from spans: seconds of work on a minibatch, and seconds of a transfer."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ..values.cluster import Cluster
from ..values.costs import ports
from ..values.plan import Plan
from ..values.trace import Span

_PENDING = 4096  # minibatches or transfers that wait for their other half, at the most: more than any plan has
_SHORTEST = 1e-6  # seconds: what was timed as less took no time that a clock tells
_WAITED = 0.5  # of a transfer's time, at the least, somebody waited for it: else it may have been there long before


class MinibatchWork(NamedTuple):
    """A rank's forward and backward of one minibatch, of all its stages, are done."""

    rank: int
    minibatch: int
    seconds: float


class Transfer(NamedTuple):
    """A payload went from a rank to another, and was there at `end`, or before where it was not `waited` for.

    Whether it crossed `cut` (between stages cut − 1 and cut) forwards says how many bytes it had.
    """

    rank: int
    peer: int
    minibatch: int
    forwards: bool
    cut: int
    start: float
    end: float
    waited: bool = True


class LeftOutWork(NamedTuple):
    """A rank that the plan leaves out took so many seconds over the work that it is timed on (worker/left_out.py)."""

    rank: int
    minibatch: int  # that the others were at
    seconds: float
    end: float  # when it was done, in the run's seconds


def left_out_of(rows: Iterable[Mapping[str, Any]]) -> list[LeftOutWork]:
    """Times of ranks that are left out, from rows of a run's metrics."""
    names = ("rank", "minibatch", "probe_seconds", "seconds")
    whole = (row for row in rows if row["event"] == "left_out" and all(name in row for name in names))
    return [LeftOutWork(*(row[name] for name in names)) for row in whole if row["probe_seconds"] >= _SHORTEST]


class WorkOfRanks:
    """Adds up the forward and backward spans of a rank's stages, minibatch by minibatch.

    A minibatch that is done again, as after a crash, counts for what it took the second time.
    """

    def __init__(self, plan: Plan) -> None:
        self._stages = {rank: plan.stages_of(rank) for rank in plan.ranks}
        self._open: dict[tuple[int, int], dict[int, tuple[float, bool]]] = {}  # → stage → (seconds, whether done)

    def take(self, span: Span) -> MinibatchWork | None:
        """Take a span, those of a rank in the order of time; return the work that it ends, if it ends one."""
        stages = self._stages.get(span.rank, ())
        if span.kind not in ("forward", "backward", "weights") or span.stage not in stages:
            return None
        key = span.rank, span.minibatch
        if span.kind == "forward":
            self._begin(key, span)
            return None
        if span.stage not in self._open.get(key, ()):
            return None  # its forward was left out
        seconds, _ = self._open[key][span.stage]
        # Of a backward in two halves, weights end it: the first is named I.
        self._open[key][span.stage] = seconds + span.seconds, span.kind == "weights" or "I" not in span.name
        parts = self._open[key]
        if len(parts) < len(stages) or not all(done for _, done in parts.values()):
            return None
        del self._open[key]
        return MinibatchWork(span.rank, span.minibatch, sum(seconds for seconds, _ in parts.values()))

    def _begin(self, key: tuple[int, int], span: Span) -> None:
        self._open.setdefault(key, {})[span.stage] = span.seconds, False
        if len(self._open) > _PENDING:
            del self._open[next(iter(self._open))]


class TransfersOfLinks:
    """Finds transfers: in a simulation they are spans; in a run, from where a sender sends to where a receiver waits.

    Clocks of several hosts that differ by more than a transfer lasts tell of none: its end would be before its start.
    """

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated
        self._working: dict[int, tuple[str, int]] = {}  # rank → (name, minibatch) of its newest forward or backward
        self._halves: dict[tuple[int, int, int, bool, int], Span] = {}  # a send or a wait whose other half is to come

    def take(self, span: Span) -> Transfer | None:
        """Take a span, those of a rank in the order of time; return the transfer that is known now, if one is."""
        if span.kind in ("forward", "backward"):
            self._working[span.rank] = span.name, span.minibatch
        if span.kind not in ("send", "wait") or span.peer < 0 or span.minibatch < 0:
            return None
        forwards, sends = "F" in span.name, span.kind == "send"
        cut = span.stage + 1 if forwards is sends else span.stage
        ends = (span.rank, span.peer) if sends else (span.peer, span.rank)
        if self._simulated:
            return Transfer(*ends, span.minibatch, forwards, cut, span.start, span.end)
        if sends and self._working.get(span.rank) != (span.name, span.minibatch):
            return None  # of a validation, whose minibatches are others
        return self._joined((*ends, span.minibatch, forwards, cut), span)

    def _joined(self, key: tuple[int, int, int, bool, int], span: Span) -> Transfer | None:
        other = self._halves.pop(key, None)
        if other is None or other.kind == span.kind:
            self._halves[key] = span
            if len(self._halves) > _PENDING:
                del self._halves[next(iter(self._halves))]
            return None
        sent, waited = (span, other) if span.kind == "send" else (other, span)
        under_way = waited.end - sent.start
        if under_way <= 0:
            return None
        return Transfer(*key, sent.start, waited.end, waited.seconds >= _WAITED * under_way)


class Ports:
    """Says how long a transfer was under way, without what it waited for others at the ports of its devices."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._free: dict[Hashable, float] = {}  # port → when its last transfer ended

    def seconds(self, one: Transfer, expected: float) -> float:
        """Return the seconds; at the most so many, and as expected for its ports, of one that no one waited for."""
        both = ports(self._cluster, one.rank, one.peer, forward=one.forwards)
        begin = max([one.start, *(self._free.get(port, one.start) for port in both)])
        end = one.end if one.waited else min(one.end, begin + expected)
        for port in both:
            self._free[port] = max(end, self._free.get(port, end))
        return max(one.end - begin, 0.0)
