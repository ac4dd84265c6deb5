"""The steps of a trace: what lies between two moments at which every minibatch that was begun has been finished."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ..errors import InputError
from ..trace import Span, Trace
from .lives import COMPUTE, last_lives

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
    leaves minibatches out. What belongs to no minibatch (evaluation, checkpoints, the wait for an epoch to begin) lies
    between the steps. Of minibatches that were trained again after a restart, the last time counts (lives.py). Raises
    InputError for a trace without forwards and backwards.
    """
    trace = last_lives(trace)
    ranges = [(number, first, past) for number, first, past in trace.facts.get("steps", ())] or [*_flushed(trace)]
    if not ranges:
        raise InputError("the trace has no forwards and backwards to replay; choose one of a training run")
    ranges.sort(key=lambda step: step[1])
    begins = [first for _, first, _ in ranges]
    spans: list[list[Span]] = [[] for _ in ranges]
    for span in _of_training(trace.spans):
        place = bisect_right(begins, span.minibatch) - 1
        if span.kind in _REPLAYED and place >= 0 and span.minibatch < ranges[place][2]:
            spans[place].append(span)
    return [
        Step(number, tuple(sorted(own, key=lambda span: (span.start, span.end))))
        for (number, *_), own in zip(ranges, spans, strict=True)
        if own
    ]


def _of_training(spans: Sequence[Span]) -> Iterator[Span]:
    """Leave out what an evaluation loads, waits for and sends: its minibatches have the numbers of those of training.

    A rank loads and waits before it computes, and sends behind it.
    """
    ranks: defaultdict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        ranks[span.rank].append(span)
    for own in ranks.values():
        behind = [False]  # for each span, the last first, whether a rank evaluates next
        for span in reversed(own):
            behind.append(span.kind == "evaluate" if span.kind in _WORK else behind[-1])
        evaluates = False
        for span, next_evaluates in zip(own, behind[-2::-1], strict=True):
            if span.kind in _WORK:
                evaluates = span.kind == "evaluate"
            if not (evaluates if span.kind == "send" else next_evaluates and span.kind in ("load", "wait")):
                yield span


def operation_of(span: Span) -> str:
    """What kind of work it is: the first word of a job's own name for it, else the span's kind."""
    return span.kind if _ACTION.fullmatch(span.name) or not span.name else span.name.split()[0]


def _flushed(trace: Trace) -> Iterator[tuple[int, int, int]]:
    """(number of the step, first minibatch, that of the next), cut where no minibatch is under way."""
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
