"""When operations end that wait for each other: the longest path to each, for many variants of their seconds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...values.trace import Span, Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Timing:
    """Nodes with what each waits for, sorted once so that all nodes of one depth are computed together."""

    def __init__(self, num_nodes: int, edges: Sequence[tuple[int, int]]) -> None:
        """`edges` are (node, another that waits for it). Raises InputError if they wait in a circle."""
        pairs: Ints = np.array(sorted(set(edges)), dtype=np.int64).reshape(-1, 2)
        order, depths = _by_depth(num_nodes, pairs)
        self._order, order_index = order, np.empty(num_nodes, np.int64)
        order_index[order] = np.arange(num_nodes)
        sources, targets = order_index[pairs[:, 0]], order_index[pairs[:, 1]]
        by_target = np.argsort(targets, kind="stable")
        self._sources, targets = sources[by_target], targets[by_target]
        bounds = np.concatenate([[0], np.cumsum(depths)])
        self._levels = [(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        first_edge = np.searchsorted(targets, np.arange(num_nodes + 1))
        self._first_edge = first_edge

    def ends(self, seconds: Floats) -> Floats:
        """Return when each node ends, of `seconds` [nodes] or [nodes, variants]; what waits for none begins at 0."""
        end_seconds = seconds[self._order].astype(float)
        for first, past in self._levels[1:]:
            low, high = self._first_edge[first], self._first_edge[past]
            begins = np.maximum.reduceat(
                end_seconds[self._sources[low:high]], self._first_edge[first:past] - low, axis=0
            )
            end_seconds[first:past] += begins
        ends = np.empty_like(end_seconds)
        ends[self._order] = end_seconds
        return ends

    def latest_inputs(self, ends: Floats) -> Floats:
        """Return when the last of what each node waits for ends, by `ends` [nodes]; 0 for those that wait for none."""
        latest, sorted_ends = np.zeros(len(ends)), ends[self._order]
        for first, past in self._levels[1:]:
            low, high = self._first_edge[first], self._first_edge[past]
            latest[first:past] = np.maximum.reduceat(
                sorted_ends[self._sources[low:high]], self._first_edge[first:past] - low
            )
        inputs = np.empty_like(latest)
        inputs[self._order] = latest
        return inputs


def _by_depth(num_nodes: int, pairs: Ints) -> tuple[Ints, list[int]]:
    """(nodes by the length of the longest way to them, how many of each length)."""
    following: list[list[int]] = [[] for _ in range(num_nodes)]
    waits = [0] * num_nodes
    for source, target in pairs.tolist():
        following[source].append(target)
        waits[target] += 1
    level = [node for node in range(num_nodes) if not waits[node]]
    order: list[int] = []
    depths = []
    while level:
        order += level
        depths.append(len(level))
        after = []
        for node in level:
            for target in following[node]:
                waits[target] -= 1
                if not waits[target]:
                    after.append(target)
        level = after
    if len(order) < num_nodes:
        raise InputError(
            "trace.circular", "the operations of the trace wait for each other in a cycle; record the trace again"
        )
    return np.array(order, dtype=np.int64), depths


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
