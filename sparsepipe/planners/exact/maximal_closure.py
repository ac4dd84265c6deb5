"""The most that layers are worth together where each brings along what it needs: a minimum cut.

Picard, "Maximal closure of a graph and applications to combinatorial problems", 1976: what is worth more than nothing
is fed by the source, what costs feeds the sink, and no flow limits what a layer needs.
"""

import numpy as np
from numpy.typing import NDArray

from ...costs import Array

_ENOUGH = 1 << 30  # more than all that can flow: sums of it and of what flows are below 2³¹


def maximal_closure(worth: Array, needs: NDArray[np.intp]) -> tuple[float, NDArray[np.bool_]]:
    """Return (the most that any closure is worth, the members of one that is worth about that, [N]).

    `needs` has a row (needed, by whom) for each pair, [E, 2]. Each worth is rounded up, to a share of all that is
    smaller than any that matters, so that the first answer is never too small.
    """
    from scipy.sparse import coo_array  # here, as few plans ask for it
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(worth)
    unit = max(float(np.abs(worth).sum()), 1e-300) / (_ENOUGH // 4)
    units = np.ceil(worth / unit).astype(np.int64)
    source, sink = count, count + 1
    gives, costs = np.flatnonzero(units > 0), np.flatnonzero(units < 0)
    tails = np.concatenate([np.full(len(gives), source), costs, needs[:, 1]])
    heads = np.concatenate([gives, np.full(len(costs), sink), needs[:, 0]])
    capacity = np.concatenate([units[gives], -units[costs], np.full(len(needs), _ENOUGH)])
    graph = coo_array((capacity, (tails, heads)), shape=(count + 2, count + 2)).tocsr()
    graph.data = np.minimum(graph.data, _ENOUGH)
    graph = graph.astype(np.int32)
    flow = maximum_flow(graph, source, sink)
    left = graph - flow.flow
    left.eliminate_zeros()
    chosen = np.zeros(count + 2, dtype=bool)
    chosen[breadth_first_order(left, source, return_predecessors=False)] = True
    return float(units[gives].sum() - flow.flow_value) * unit, chosen[:count]
