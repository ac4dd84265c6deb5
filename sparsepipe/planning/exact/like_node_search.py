"""Plans of branching networks on like nodes by every move: along orders of the layers first, then over all cuts.

Moves by which like nodes only swap places are one (like_nodes.py); four nodes of 2, 1 and 1 devices have 395,009 of
them. Along an order of the layers many periods are soon tried. All cuts taken for a chain (`StageModel.in_a_row`) bound
every plan as soon, and leave out moves. Over all cuts a search takes seconds, so that it is only asked whether any cut
allows a plan better than the best along an order.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..base import Problem
from ..cuts import Cuts, Index
from .chain_search import Moves, Path, along_chain, useful_moves
from .frontier_cuts import row_of_type
from .graph_search import StageEnds, over_sets
from .halving import largest_refused
from .narrow_cut_bound import CutProfile
from .search_space import CHAIN_BUDGET, Space, every_move, symmetric_space
from .stage_cost_tables import StageModel, default_model

SECONDS = 3.0  # of the processor, after which no other period is tried
ASKED_SECONDS = 12.0  # the same, where every cut is asked at once
ASKED_BUDGET = 1_000_000_000  # moves × cuts × chains
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

    low = _row_bound(row, moves, low=low, high=high)
    moves = useful_moves(row, moves, high)
    if high - low <= WORTH * high or len(moves.source) * len(model.cuts) * len(model.cuts.chains) > ASKED_BUDGET:
        return paths, low
    ends = StageEnds(model)
    until = time.process_time() + (ASKED_SECONDS if model.cuts.complete else SECONDS)  # of some cuts it is no proof
    try:
        while path := over_sets(ends, moves, high, until=until):
            paths.append(path)
            high = model.period(path)
    except TimeoutError:
        return paths, low
    return paths, high


def row_bound(problem: Problem, profile: CutProfile, *, low: float, high: float) -> float | None:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`.

    `profile` has for each amount of work what all cuts before it come to, in order. They are taken for a chain. None
    if there are too many ways to use the devices, or steps flush.
    """
    if problem.synchronous:
        return None
    ends = Cuts.along(problem.table, problem.layers)
    ends = Cuts.chosen(ends.layers, ends.inputs, (0, ends.masks[-1]))
    if space := symmetric_space(problem, ends):
        model, moves = space.model, space.moves
    elif known := every_move(problem, CHAIN_BUDGET):
        groups, moves = known
        model = default_model(problem, ends, groups)
    else:
        return None
    whole, groups = profile.whole, model.groups
    row_of = row_of_type(problem)
    rows = [*(row_of[name] for name in groups.types), 1]
    zero = np.zeros((len(rows), 1))
    least = np.concatenate([zero, profile.low.T[rows], whole[rows, None]], axis=1)
    most = np.concatenate([zero, profile.high.T[rows], whole[rows, None]], axis=1)
    crossing = np.concatenate([[0.0], profile.crossing, [0.0]])
    links = [*(node.link for node in groups.nodes), problem.cluster.network]
    ports = np.stack([link.latency + crossing / link.bandwidth for link in links])
    row = replace(model.with_ranges(least, most), ports=ports)
    return _row_bound(row, useful_moves(row, moves, high), low=low, high=high)


def _row_bound(row: StageModel, moves: Moves, *, low: float, high: float) -> float:
    def refused(seconds: float) -> bool:
        return along_chain(row, moves, seconds, relaxed=True) is None

    return largest_refused(refused, low, high, tolerance=WORTH, until=time.process_time() + SECONDS)
