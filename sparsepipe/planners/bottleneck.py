"""The best plan of asynchronous schedules: the slowest stage or boundary as fast as can be."""

from collections.abc import Callable

import numpy as np

from ..errors import InputError
from .memory import MemoryRule
from .model import StageModel
from .search import Moves, Path, along_chain, useful_moves
from .sets import StageEnds, over_sets

CLOSE = 0.005  # bounds as close as this may hold so few plans that the next better one found is the best
MAX_ASKED = 4  # after as many better ones, halve again
WORTH_PRUNING = 500  # moves, and bounds that are close enough to rule most of them out
PRUNABLE = 0.03

Search = Callable[[Moves, float], Path | None]


def minimise_period(
    ends: StageEnds, moves: Moves, *, memory: MemoryRule | None = None, all_devices: bool = False
) -> tuple[Path, float]:
    """The best path and its period, which is proven: no path of these moves has a smaller one."""
    model = ends.model

    def exact(moves: Moves, seconds: float) -> Path | None:
        return over_sets(ends, moves, seconds, memory=memory, all_devices=all_devices)

    if memory is not None or all_devices:
        return _bisect(model, moves, exact, None)
    if not model.cuts.is_chain:
        return _bisect(model, moves, exact, _alone(model))

    def quick(moves: Moves, seconds: float) -> Path | None:
        found = along_chain(model, moves, seconds)
        return found if isinstance(found, list) else None

    def certain(moves: Moves, seconds: float) -> Path | None:
        return exact(moves, seconds) if along_chain(model, moves, seconds, relaxed=True) else None

    return _bisect(model, moves, quick, _alone(model), certain, useful_moves)


def _alone(model: StageModel) -> Path:
    """The best plan of one stage."""
    end = len(model.cuts) - 1
    return [(int(model.seconds(np.arange(len(model.teams)), 0, end).argmin()), 0, end)]


def _bisect(
    model: StageModel,
    moves: Moves,
    quick: Search,
    first: Path | None,
    certain: Search | None = None,
    prune: Callable[[StageModel, Moves, float], Moves] | None = None,
) -> tuple[Path, float]:
    """The best path and its period, from searches for a path below a limit; where `certain` finds none, there is none.

    `first`: any path to begin with; it is searched for when not given.
    """
    lower = float(model.work[-1] / moves.spare[0])
    best = first or quick(moves, float("inf"))
    if best is None:
        raise InputError("no plan uses all devices: there are more than the network has places for; allow unused ones")
    value, step, asked = model.period(best), 0.01, 0
    while True:
        limit = lower * (1 + step) if step else (lower + value) / 2
        ask = asked < MAX_ASKED and value - lower <= CLOSE * value or not lower < limit < value
        # Where few plans are left below the best, ask at once for any better one; else halve what is between the bounds.
        found = quick(moves, value if ask else limit)
        if found is None and ask:
            found = certain(moves, value) if certain else None
            if found is None:
                return best, value
        if found is None:
            lower, step, asked = limit, step * 2, 0
            continue
        best, value, step, asked = found, model.period(found), 0, asked + 1 if ask else 0
        if prune and len(moves.source) > WORTH_PRUNING and value - lower < PRUNABLE * value:
            moves = prune(model, moves, value)
