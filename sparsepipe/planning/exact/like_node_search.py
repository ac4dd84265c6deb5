"""Plans of branching networks on like nodes by every move: along orders of the layers first, then over all cuts.

Moves by which like nodes only swap places are one (like_nodes.py); four nodes of 2, 1 and 1 devices have 395,009 of
them. Along an order of the layers many periods are soon tried. All cuts taken for a chain (`StageModel.in_a_row`) bound
every plan as soon, and leave out moves. Over all cuts a search takes seconds, so that it is only asked whether any cut
allows a plan better than the best along an order.
"""

import time
from collections.abc import Sequence

from ..cuts import Index
from .chain_search import Path, along_chain, useful_moves
from .graph_search import StageEnds, over_sets
from .halving import largest_refused
from .search_space import Space

SECONDS = 3.0  # of the processor, after which no other period is tried
ASKED_SECONDS = 6.0  # the same, for all cuts
ASKED_BUDGET = 450_000_000  # moves × cuts × chains
WORTH = 0.001  # of a period, between one that was found and one that was not


def paths_on_like_nodes(space: Space, orders: Sequence[Index], *, low: float, high: float) -> tuple[list[Path], float]:
    """Return (paths below `high` of falling period, a bound of all periods: `low`, which is one, or more).

    `orders`: chains of the space's cuts. The bound is of these cuts alone, if the space does not have all.
    """
    model, paths, row = space.model, list[Path](), space.model.in_a_row(space.model.row_order)
    moves, until = useful_moves(row, space.moves, high), time.process_time() + SECONDS
    for order in orders:
        chain, failed = model.along(order), low
        useful = useful_moves(chain, moves, high)
        while high - failed > WORTH * high and time.process_time() < until:
            tried = (failed + high) / 2
            path = along_chain(chain, useful, tried)
            if not isinstance(path, list):
                failed = tried
                continue
            paths.append([(group, int(order[first]), int(order[last])) for group, first, last in path])
            high = model.period(paths[-1])

    def refused(seconds: float) -> bool:
        return along_chain(row, moves, seconds, relaxed=True) is None

    until = time.process_time() + SECONDS
    low = largest_refused(refused, low, high, tolerance=WORTH, until=until)
    moves = useful_moves(row, moves, high)
    if high - low <= WORTH * high or len(moves.source) * len(model.cuts) * len(model.cuts.chains) > ASKED_BUDGET:
        return paths, low
    ends, until = StageEnds(model), time.process_time() + ASKED_SECONDS
    try:
        while path := over_sets(ends, moves, high, until=until):
            paths.append(path)
            high = model.period(path)
    except TimeoutError:
        return paths, low
    return paths, high
