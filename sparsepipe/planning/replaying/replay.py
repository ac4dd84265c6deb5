"""Replay a trace: its own durations in its own orders, and see whether the times come out that were measured."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...util.text.numbers import Printed
from ...values.trace import WORK, Span, Trace
from .copies import Copies
from .dependencies import Dependencies
from .timing import COMPUTE, Floats


@dataclass(frozen=True)
class ReplayedStep:
    """A step's seconds as measured and as replayed.

    The whole step has the delays between what an operation waits for and its launch; `pipeline` does without: forwards
    and backwards alone in each rank's order, transfers free, of the replica or pipeline that takes longest.
    """

    step: int
    measured_seconds: float
    replayed_seconds: float
    pipeline_measured_seconds: float
    pipeline_replayed_seconds: float

    @property
    def error(self) -> float:
        """Of the whole step, relative to what was measured."""
        return _off(self.replayed_seconds, self.measured_seconds)

    @property
    def pipeline_error(self) -> float:
        """Of forwards and backwards alone, relative to what was measured."""
        return _off(self.pipeline_replayed_seconds, self.pipeline_measured_seconds)

    def to_json(self) -> dict[str, object]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Replay(Printed):
    """The steps, and the whole as a trace to look at."""

    steps: tuple[ReplayedStep, ...]
    trace: Trace

    @property
    def largest_error(self) -> float:
        """Of the whole steps, relative to what was measured."""
        return max(abs(step.error) for step in self.steps)

    @property
    def largest_pipeline_error(self) -> float:
        """Of forwards and backwards alone, relative to what was measured."""
        return max(abs(step.pipeline_error) for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """{"steps": […]}, seconds of each."""
        return {"steps": [step.to_json() for step in self.steps]}


def _off(replayed: float, measured: float) -> float:
    """The relative error; none for a step in which nothing was computed, or that took no time."""
    return replayed / measured - 1 if measured else 0.0


def replay(trace: Trace) -> Replay:
    """Simulate each step of a trace from its measured durations and order (trace-driven simulation).

    Args:
        trace: A measured or simulated trace.

    Returns:
        Measured and simulated time of each step in seconds, and the simulated trace.

    Raises:
        InputError: A trace that contains no training.

    Example:
        >>> replayed = sp.replay(trace)
        >>> len(replayed.steps), replayed.trace.source
        (1, 'simulated')

    See also:
        guides/traces_and_what_if, `what_if`, `load_trace`
    """
    known = Dependencies.of(trace)
    whole = known.step_seconds(known.seconds + known.launch)[:, 0]
    work = np.array([node.kind in WORK for node in known.nodes])
    alone = known.timing.ends(np.where(work, known.seconds, 0.0))
    copies = Copies.of(trace, known.nodes)
    replayed, measured = _pipelines(known, copies, alone), _pipelines(known, copies)
    steps = tuple(
        ReplayedStep(step.number, step.seconds, *map(float, values))
        for step, *values in zip(known.steps, whole, measured, replayed, strict=True)
    )
    return Replay(steps, _as_trace(known, trace))


def _pipelines(known: Dependencies, copies: Copies, ends: Floats | None = None) -> Floats:
    """Seconds from the first forward to the last backward of each step's slowest copy: measured, or until `ends`."""
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for node_index, node in enumerate(known.nodes):
        if node.kind in COMPUTE:
            begin, end = (node.begin, node.end) if ends is None else (0.0, float(ends[node_index]))
            of = node.step, copies.copy(node.rank)
            low, high = spans.get(of, (begin, end))
            spans[of] = min(low, begin), max(high, end)
    step_values = np.zeros(len(known.steps))
    for (step, _), (low, high) in spans.items():
        step_values[step] = max(step_values[step], high - low)
    return step_values


def _as_trace(known: Dependencies, trace: Trace) -> Trace:
    """The replayed times as spans, each step where it began; a transfer is what its receiver waits for."""
    ends = known.timing.ends(known.seconds + known.launch)
    spans = []
    for node, end, seconds in zip(known.nodes, ends.tolist(), known.seconds.tolist(), strict=True):
        if node.operation:
            begin = known.steps[node.step].begin
            kind = "wait" if node.kind == "transfer" else node.kind
            start, stop = begin + end - seconds, begin + end
            spans.append(Span(node.rank, node.name, start, stop, kind, node.stage, node.minibatch, node.peer))
    spans.sort(key=lambda span: (span.start, span.rank))
    return Trace(tuple(spans), "simulated", trace.facts)
