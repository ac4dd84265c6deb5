"""A trace of a job that was killed and began again has minibatches twice, those since its last checkpoint.

minibatch   0  1  2  3  4 ╳              killed in 4, whose first forward is there
                    2  3  4  5  6 …      from the checkpoint after 1: 2, 3 and 4 count here, once
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ...values.trace import Span, Trace

COMPUTE = ("forward", "backward", "weights")


def last_lives(trace: Trace) -> Trace:
    """Return the trace without what was trained again later: of each such minibatch the last time is kept.

    A job begins again where a rank computes a forward that it had computed before. Of several pipelines (fact
    "pipelines") each does so by itself. A trace in which no one began again is returned as it is.
    """
    of_rank = trace.pipeline_of_rank
    together: defaultdict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        if span.kind in COMPUTE:
            together[of_rank.get(span.rank, -1)].append(span)
    begins = {
        (pipeline, minibatch): begin
        for pipeline, spans in together.items()
        for minibatch, begin in _trained_again(sorted(spans, key=lambda span: span.start)).items()
    }
    if not begins:
        return trace
    never = float("-inf")
    surviving_spans = (s for s in trace.spans if s.start >= begins.get((of_rank.get(s.rank, -1), s.minibatch), never))
    return replace(trace, spans=tuple(surviving_spans))


def _trained_again(spans: Sequence[Span]) -> dict[int, float]:
    """Minibatch → when the life began in which it was trained for the last time; those trained once are left out.

    What a rank loads for its first minibatch it loads before it computes: a life begins where the one before ends.
    """
    begins, lives = [float("-inf")], defaultdict[int, set[int]](set)
    computed, latest = set[tuple[int, int, int]](), float("-inf")
    for span in spans:
        if span.kind == "forward":
            forward = span.rank, span.stage, span.minibatch
            if forward in computed:
                computed.clear()
                begins.append(latest)
            computed.add(forward)
            lives[span.minibatch].add(len(begins) - 1)
        latest = max(latest, span.end)
    return {minibatch: begins[max(life)] for minibatch, life in lives.items() if len(life) > 1}
