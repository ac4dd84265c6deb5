"""What the pipelines of a run measured, put together: their ranks and stages by their numbers among those of all."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..pipelines import Pipelines
from ..trace import Span, Trace
from .trace_file import merged


def trace_of_all(plan: Pipelines, traces: Sequence[Trace], source: Any) -> Trace:
    """Return the traces of all pipelines as one, in time order: all have the same clock.

    Stages are numbered over all pipelines, pipeline 0's first, as they stand in the plan's file.
    """
    spans = [span for k, trace in enumerate(traces) for span in _renumbered(plan, k, trace)]
    spans.sort(key=lambda span: (span.start, span.rank))
    missing = [trace.left_out for trace in traces if trace.left_out]
    facts = plan.trace_facts
    if missing:
        ranges = merged((first, last) for one in missing for first, last in one["minibatches"])
        facts["left_out"] = {
            "minibatches": [list(one) for one in ranges],
            "spans": sum(one["spans"] for one in missing),
            "seconds": max(one["seconds"] for one in missing),
        }
    return Trace(tuple(spans), source, facts)


def _renumbered(plan: Pipelines, k: int, trace: Trace) -> Iterator[Span]:
    ranks, before = plan.ranks_of(k), plan.first_stage(k)
    for span in trace.spans:
        own = str(span.stage)
        stage = span.stage + before
        name = f"{stage}{span.name.removeprefix(own)}" if span.name.startswith(own) else span.name
        peer = ranks[span.peer] if 0 <= span.peer < len(ranks) else span.peer
        yield span._replace(rank=ranks[span.rank], name=name, stage=stage, peer=peer)
