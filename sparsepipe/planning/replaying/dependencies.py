"""What the operations of a trace wait for, and how long each of them takes by itself.

    rank 0   F0 ─► F1 ─► F2 ─► B0 …          each rank does one thing after the other, in the order it did them
              ╲                ▲
               ▼ transfer     ╱ transfer     a forward waits for the stage before, a backward for the stage after
    rank 1     F0 ─► B0 ─────► F1 …
                          arrival ─► meeting ─► averaging      a collective begins when its last rank arrives

The seconds of a node are what it took once everything it waits for was there; `launch` is how much later than that it
began: time of the host, which no operation accounts for. A transfer begins when the sender is done; in a trace of
`rendezvous` transfers the receiver must be free, too. What came before its receiver asked for it lay there meanwhile:
that is no time of the transfer, of which only the receiver's wait is known then.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...errors import InputError
from ...util.io.fields import shown
from ...values.trace import Span, Trace
from .timing import COMPUTE, Floats, Timing, last_lives

_REPLAYED = (*COMPUTE, "update", "average", "send", "load", "wait")
_WORK = (*COMPUTE, "update", "average", "evaluate")
_ACTION = re.compile(r"\d+([A-Z])\d+")


@dataclass(frozen=True)
class Step:
    """A step by its number and the spans of its minibatches, in the order of time."""

    number: int
    spans: tuple[Span, ...]

    @cached_property
    def begin(self) -> float:
        return min(span.start for span in self.spans)

    @cached_property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max(span.end for span in self.spans) - self.begin


def steps_of(trace: Trace) -> list[Step]:
    """Cut a trace into its steps: those that it names, else wherever the pipeline was empty.

    A schedule that flushes is empty after every step; an asynchronous one after every epoch, and where a long trace
    leaves minibatches out. The steps of a torch job overlap and are one. What belongs to no minibatch (evaluation,
    checkpoints, the wait for an epoch to begin) lies between the steps. Of minibatches that were trained again after a
    restart, the last time counts (timing.py). Raises InputError for a trace without forwards and backwards.
    """
    joined = bool(trace.facts.get("joined"))
    trace = trace if joined else last_lives(trace)
    ranges = [(number, first, past) for number, first, past in trace.facts.get("steps", ())] or [*_flushed(trace)]
    if not ranges:
        raise InputError(
            "trace.nothing_to_replay", "the trace has no forwards and backwards; choose a trace of a training run"
        )
    ranges.sort(key=lambda step: step[1])
    if joined:
        ranges = [(ranges[0][0], ranges[0][1], ranges[-1][2])]
    begins = [first for _, first, _ in ranges]
    spans: list[list[Span]] = [[] for _ in ranges]
    for span in _of_training(trace.spans):
        range_index = bisect_right(begins, span.minibatch) - 1
        if span.kind in _REPLAYED and range_index >= 0 and span.minibatch < ranges[range_index][2]:
            spans[range_index].append(span)
    return [
        Step(number, tuple(sorted(rank_span, key=lambda span: (span.start, span.end))))
        for (number, *_), rank_span in zip(ranges, spans, strict=True)
        if rank_span
    ]


def _of_training(spans: Sequence[Span]) -> Iterator[Span]:
    """Leave out what an evaluation loads, waits for and sends: its minibatches have the numbers of those of training.

    A rank loads and waits before it computes, and sends behind it.
    """
    ranks: defaultdict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        ranks[span.rank].append(span)
    for rank_ranges in ranks.values():
        behind = [False]  # for each span, the last first, whether a rank evaluates next
        for span in reversed(rank_ranges):
            behind.append(span.kind == "evaluate" if span.kind in _WORK else behind[-1])
        evaluates = False
        for span, next_evaluates in zip(rank_ranges, behind[-2::-1], strict=True):
            if span.kind in _WORK:
                evaluates = span.kind == "evaluate"
            if not (evaluates if span.kind == "send" else next_evaluates and span.kind in ("load", "wait")):
                yield span


def operation_of(span: Span) -> str:
    """Return the kind of work of a span: the first word of a job's own name for it, else the span's kind."""
    return span.kind if _ACTION.fullmatch(span.name) or not span.name else span.name.split()[0]


def _flushed(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """(number of the step, first minibatch, that of the next), cut if no minibatch is under way."""
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for span in trace.spans:
        if span.kind in COMPUTE and span.minibatch >= 0:
            begins[span.minibatch] = min(span.start, begins.get(span.minibatch, span.start))
            ends[span.minibatch] = max(span.end, ends.get(span.minibatch, span.end))
    order = sorted(begins)
    latest = [0.0] * (len(order) + 1)  # beginnings from here on: the earliest
    latest[-1] = float("inf")
    for k in range(len(order) - 1, -1, -1):
        latest[k] = min(latest[k + 1], begins[order[k]])
    left_out = {first for first, _ in trace.left_out.get("minibatches", ())}
    cuts, done = [0], float("-inf")
    for k, (before, after) in enumerate(pairwise(order)):
        done = max(done, ends[before])
        if done <= latest[k + 1] or (after > before + 1 and before + 1 in left_out):
            cuts.append(k + 1)
    for number, (start, stop) in enumerate(pairwise([*cuts, len(order)])):
        if stop > start:
            yield number, order[start], order[stop - 1] + 1


TRANSFERS = {"forward": "forward transfer", "backward": "backward transfer"}
_BESIDE = ("wait", "send")  # what happens beside a rank's work, where transfers have an operation of their own


class Node(NamedTuple):
    """An operation, or a point in time at which several meet. `operation` is empty for such a point."""

    step: int  # its place in `Dependencies.steps`
    rank: int
    stage: int
    minibatch: int
    operation: str
    kind: str  # of a span, or "transfer"
    name: str  # of the span
    peer: int  # of a transfer: the rank that sent it
    begin: float  # measured, since the step began
    end: float


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The nodes of all steps, who waits for whom, and the measured seconds of each node."""

    steps: tuple[Step, ...]
    nodes: tuple[Node, ...]
    timing: Timing
    seconds: Floats  # of each node, once its inputs are there
    launch: Floats  # by how much it began later than its inputs were there
    step_ranges: tuple[tuple[int, int], ...] = ()  # of a torch job: the first minibatch of each step, that of the next

    @property
    def num_joined(self) -> int:
        """The training steps that one of `steps` holds."""
        return max(len(self.step_ranges), 1)

    @classmethod
    def of(cls, trace: Trace) -> "Dependencies":
        """Find what waits for what. Raises InputError for a trace without training in it, or a damaged one."""
        if not isinstance(trace, Trace):
            raise InputError(
                "trace.not_a_trace",
                f"{shown(trace)} given, expected a Trace (load_trace reads one from a run or a file)",
            )
        steps = tuple(steps_of(trace))
        builder = _Builder(trace)
        for step_index, step in enumerate(steps):
            builder.add(step_index, step)
        timing = Timing(len(builder.nodes), builder.edges)
        begins, ends = (np.array([node[k] for node in builder.nodes]) for k in (-2, -1))
        launch = np.maximum(begins - timing.latest_inputs(ends), 0.0)
        meeting = np.array([node.kind == "meeting" for node in builder.nodes])
        launch[meeting] = 0.0
        ranges = [(first, past) for _, first, past in trace.facts.get("steps", ())] if builder.joined else []
        seconds = np.maximum(ends - begins, 0.0)
        return cls(steps, tuple(builder.nodes), timing, seconds, launch, tuple(sorted(ranges)))

    def step_seconds(self, seconds: Floats) -> Floats:
        """Seconds of each step [steps, variants], where its nodes take `seconds` [nodes, variants]."""
        ends = self.timing.ends(seconds)
        if ends.ndim == 1:
            ends = ends[:, None]
        seconds_of_steps = np.zeros((len(self.steps), ends.shape[1]))
        np.maximum.at(seconds_of_steps, np.array([node.step for node in self.nodes]), ends)
        return seconds_of_steps


@dataclass(frozen=True)
class _Made:
    """The nodes of one step by what they are needed for.

    What collectives cut into several pieces (`joined`) waits with the first of them that comes after the wait.
    """

    last: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (kind, stage, minibatch) → its last node
    sent: dict[tuple[str, int], int] = field(default_factory=dict)  # (name, rank) → a send in a rank's own order
    meetings: defaultdict[str, list[tuple[int, Node]]] = field(default_factory=lambda: defaultdict(list))
    issued: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # collective → its issues
    waiting: defaultdict[object, list[tuple[int, Span]]] = field(default_factory=lambda: defaultdict(list))
    before: dict[int, int] = field(default_factory=dict)  # node → the one before it on its rank


class _Builder:
    """Nodes and edges of one step after the other."""

    def __init__(self, trace: Trace) -> None:
        self.nodes: list[Node] = []
        self.edges: list[tuple[int, int]] = []
        self.rendezvous = bool(trace.facts.get("rendezvous"))
        self.joined = bool(trace.facts.get("joined"))
        self.own_names: dict[str, str] = trace.facts.get("operations", {})
        # A simulated transfer, and one that needs both ranks, takes no time of the rank's own.
        beside = _BESIDE if self.rendezvous or trace.source == "simulated" else ("wait",)
        beside = ("wait",) if self.joined else beside
        self.in_order: Callable[[Span], bool] = lambda span: span.kind not in beside

    def add(self, place: int, step: Step) -> None:
        chains: defaultdict[int, list[Span]] = defaultdict(list)
        beside: dict[tuple[str, str, int], Span] = {}  # (kind, name, rank) → a send, or a wait for another rank
        for span in step.spans:
            if self.in_order(span):
                chains[span.rank].append(span)
            if span.kind == "send" or (span.kind == "wait" and span.peer >= 0):
                beside[span.kind, span.name, span.rank] = span
        made = _Made()
        for rank, spans in chains.items():
            last = -1
            if self.joined:  # where a rank stands as the trace begins is no delay
                late = spans[0].start - step.begin
                last = self._add(Node(place, rank, 0, -1, "", "arrival", "", -1, 0.0, late))
            for span in spans:
                node = self._node(place, step, span)
                if last >= 0:
                    self.edges.append((last, node))
                    made.before[node] = last
                if span.kind == "average" and not self.joined:
                    node = self._arrival(node, made.meetings[span.name])
                else:
                    self._remember(node, span, made)
                last = node
        for name, members in made.meetings.items():
            if self.joined:
                self._meet_issued(members, made.issued[name])
            else:
                self._meet(members)
        for pieces in made.waiting.values():
            wait = beside.get(("wait", pieces[0][1].name, pieces[0][1].rank)) if len(pieces) > 1 else None
            node, span = next((piece for piece in pieces if wait and piece[1].start >= wait.end), pieces[0])
            self._transfer(node, span, made, beside, step)

    def _remember(self, node: int, span: Span, made: "_Made") -> None:
        """Note what others may wait for, or need."""
        if span.kind in COMPUTE:
            work = span.kind, span.stage, span.minibatch
            made.waiting[work if self.joined else node].append((node, span))
            made.last[work] = node
        elif span.kind == "average":
            made.meetings[span.name].append((node, self.nodes[node]))
        elif span.kind == "send" and self.joined:
            made.issued[span.name].append(node)
        elif span.kind == "send":
            made.sent[span.name, span.rank] = node

    def _node(self, place: int, step: Step, span: Span) -> int:
        operation = operation_of(span)
        operation = self.own_names.get(operation, operation)
        stage, minibatch, begin, end = span.stage, span.minibatch, span.start - step.begin, span.end - step.begin
        node = Node(place, span.rank, stage, minibatch, operation, span.kind, span.name, span.peer, begin, end)
        return self._add(node)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _arrival(self, node: int, members: list[tuple[int, Node]]) -> int:
        """Split a collective operation into its rank's arrival, `node`, and what follows the meeting, returned."""
        span = self.nodes[node]
        self.nodes[node] = span._replace(operation="", kind="arrival", end=span.begin)
        after = self._add(span)
        members.append((node, span))
        self.edges.append((node, after))
        return after

    def _meet(self, members: Sequence[tuple[int, Node]]) -> None:
        """Let all members of a collective continue from the moment at which the last has arrived."""
        moment = max(span.begin for _, span in members)
        first = members[0][1]
        meeting = self._add(first._replace(operation="", kind="meeting", begin=moment, end=moment))
        for arrival, span in members:
            after = arrival + 1  # made right behind it
            self.edges += [(arrival, meeting), (meeting, after)]
            self.nodes[after] = span._replace(begin=moment, end=max(moment, span.end))

    def _meet_issued(self, members: Sequence[tuple[int, Node]], issued: Sequence[int]) -> None:
        """Let a collective run beside its ranks from the moment at which the last has issued it.

        rank 0   forward ─► issued ─► backward ─► waits ─► update
                               ╲                    ▲
                                meeting ─► average ─╯       one average for each rank that waits
        """
        moment = max((self.nodes[node].begin for node in issued), default=members[0][1].begin)
        first = members[0][1]
        meeting = self._add(first._replace(operation="", kind="meeting", begin=moment, end=moment))
        self.edges += [(node, meeting) for node in issued]
        for node, span in members:
            average = self._add(span._replace(begin=moment, end=max(moment, span.end)))
            self.nodes[node] = span._replace(operation="", kind="arrival", begin=span.end)
            self.edges += [(meeting, average), (average, node)]

    def _transfer(
        self,
        node: int,
        span: Span,
        made: "_Made",
        beside: dict[tuple[str, str, int], Span],
        step: Step,
    ) -> None:
        """Let `node` wait for the stage next to it, with the transfer between them as a node of its own."""
        if span.kind == "weights":
            return
        away = -1 if span.kind == "forward" else 1
        source = made.last.get((span.kind, span.stage + away, span.minibatch))
        if source is None:
            return
        maker = self.nodes[source]
        if maker.rank == span.rank:  # what stays on a rank comes earlier in its order
            return
        letters = ("F",) if span.kind == "forward" else ("B", "I")
        names = [f"{maker.stage}{letter}{span.minibatch}" for letter in letters]
        send = next((beside["send", name, maker.rank] for name in names if ("send", name, maker.rank) in beside), None)
        wait = beside.get(("wait", span.name, span.rank))
        done = next((made.sent[name, maker.rank] for name in names if (name, maker.rank) in made.sent), source)
        inputs, begin, end = self._carried(span, source, done, send, wait, step, made.before.get(node))
        own_name = TRANSFERS[span.kind]
        own_name, end = self.own_names.get(own_name, own_name), max(begin, end)
        stage, minibatch = span.stage, span.minibatch
        waiting = Node(maker.step, span.rank, stage, minibatch, own_name, "transfer", span.name, maker.rank, begin, end)
        transfer = self._add(waiting)
        self.edges += [*((input_node, transfer) for input_node in inputs), (transfer, node)]

    def _carried(
        self, span: Span, source: int, done: int, send: Span | None, wait: Span | None, step: Step, last: int | None
    ) -> tuple[list[int], float, float]:
        """(what a transfer waits for, when it began, when it ended).

        What came before the receiver asked for it lay there meanwhile, which is no time of the transfer: of that one
        the receiver's own wait alone is known, which begins once the rank is free.
        """
        made = self.nodes[source].end
        if self.rendezvous:
            if send is None or wait is None:
                return [source], made, made
            inputs = [source] if last is None else [source, last]
            return inputs, max(send.start, wait.start) - step.begin, wait.end - step.begin
        if done == source:  # what carries it does so beside the rank's work
            if send is None:
                return _taken(source, made, wait, step, last)
            return [source], made, send.end - step.begin
        if wait is not None and wait.end - step.begin < self.nodes[done].end:
            return _taken(source, made, wait, step, last)  # the receiver has it before the sender's call returns
        return _taken(done, self.nodes[done].end, wait, step, last) if wait is not None else ([source], made, made)


def _taken(sent: int, ready: float, wait: Span | None, step: Step, last: int | None) -> tuple[list[int], float, float]:
    """(what a transfer waits for, when it began, when it ended), if it is `ready` once the node `sent` is done."""
    if wait is None:
        return [sent], ready, ready
    asked, arrived = wait.start - step.begin, wait.end - step.begin
    if asked <= ready or last is None:
        return [sent], ready, arrived
    return [sent, last], asked, arrived
