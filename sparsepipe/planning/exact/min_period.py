"""The best plan for asynchronous schedules: minimise the time of the slowest stage or boundary."""

from collections.abc import Callable

import numpy as np

from ...errors import InputError
from .chain_search import Moves, Path, along_chain, useful_moves
from .fewest_devices import CutPaths, StageNeeds
from .graph_search import StageEnds, over_sets
from .memory_limits import MemoryRule
from .stage_cost_tables import StageModel

CLOSE = 0.005  # bounds as close as this may hold so few plans that the next better one found is the best
STEP = 0.01
MAX_ASKED = 4  # after as many better ones, halve again
WORTH_PRUNING = 500  # moves, and bounds that are close enough to rule most of them out
PRUNABLE = 0.03
MANY_MOVES = 400_000  # with more, identical devices are counted also along a chain

Search = Callable[[Moves, float], Path | None]
Watch = Callable[[Path, float], None]  # gets each better path, and what no path of the moves is proven to be below


def unwatched(path: Path, low: float) -> None:
    """Ignore a path."""


def minimise_period(
    ends: StageEnds,
    moves: Moves,
    *,
    memory: MemoryRule | None = None,
    all_devices: bool = False,
    known: Path | None = None,
    least: float = 0.0,
    watch: Watch = unwatched,
) -> list[Path]:
    """Paths of falling period. The last one is proven the best: no path of these moves has a smaller period.

    `least`: no path of a chain has a smaller one, as is known.
    `known`: a path to begin with, where cuts are no chain; without it the layers' own order must be among them.
    """
    model = ends.model

    def exact(moves: Moves, seconds: float) -> Path | None:
        return over_sets(ends, moves, seconds, memory=memory, all_devices=all_devices)

    if memory is not None and not all_devices:
        free = minimise_period(
            ends, moves, known=known
        )  # searched much faster; where the best of them fits, nothing is better
        if memory.fits(moves, free[-1]):
            paths = [path for path in free if memory.fits(moves, path)]
            for path in paths:
                watch(path, 0.0)
            return paths
        return bisect(model, moves, exact, None, least=model.period(free[-1]), watch=watch)
    if all_devices:
        return bisect(model, moves, exact, None, watch=watch)
    many = len(moves.source) > MANY_MOVES
    if (many or not model.cuts.is_chain) and (needs := StageNeeds.of(model, moves)):
        cuts = CutPaths.of_model(model)

        def exact(moves: Moves, seconds: float) -> Path | None:
            return cuts.path(needs, seconds)

        if many and not known:
            return bisect(model, moves, exact, _alone(model), watch=watch)
    if not model.cuts.is_chain and known:
        return bisect(model, moves, exact, known, near=True, watch=watch)
    if not model.cuts.is_chain:
        # One order of the layers is searched much faster, and often nothing is better.
        order = model.cuts.in_order
        quick = _along(model.along(order), moves, until=STEP)[-1]
        first = [(group, int(order[a]), int(order[b])) for group, a, b in quick]
        return bisect(model, moves, exact, first, near=True, watch=watch)
    return _along(model, moves, least=least, watch=watch)


def _along(
    model: StageModel, moves: Moves, *, until: float = 0.0, least: float = 0.0, watch: Watch = unwatched
) -> list[Path]:
    """The best paths along a chain of cuts; the search may stop where `until` is the gap."""

    def quick(moves: Moves, seconds: float) -> Path | None:
        along_path = along_chain(model, moves, seconds)
        return along_path if isinstance(along_path, list) else None

    def certain(moves: Moves, seconds: float) -> Path | None:
        doubtful = along_chain(model, moves, seconds, relaxed=True)
        return over_sets(StageEnds(model), moves, seconds) if doubtful else None

    prune = None if moves.counts_stages else useful_moves  # which knows devices alone
    return bisect(model, moves, quick, _alone(model), certain, prune, until=until, least=least, watch=watch)


def _alone(model: StageModel) -> Path:
    """The best plan of one stage."""
    end = len(model.cuts) - 1
    return [(int(model.seconds(np.arange(len(model.groups)), 0, end).argmin()), 0, end)]


def bisect(
    model: StageModel,
    moves: Moves,
    quick: Search,
    first: Path | None,
    certain: Search | None = None,
    prune: Callable[[StageModel, Moves, float], Moves] | None = None,
    *,
    near: bool = False,
    until: float = 0.0,
    least: float = 0.0,
    watch: Watch = unwatched,
) -> list[Path]:
    """Search for paths of falling period, each below a limit; if `certain` finds none, there is none.

    `first`: any path to begin with; it is searched for when not given. `near`: it is thought to be near the best.
    `until`: the gap at which to stop. `least`: no path is known to have a smaller period.
    """
    lower = proven = max(least, float(model.work[-1] / moves.spare[0]))
    best = first or quick(moves, float("inf"))
    if best is None:
        raise InputError(
            "planner.too_many_devices",
            "the cluster has more devices than the network can use; allow unused devices",
        )
    watch(best, proven)
    paths, value, asked = [best], model.period(best), 0
    up, down = (
        (0.0, STEP) if near else (STEP, 0.0)
    )  # steps from one of the bounds, doubled, before halving between them
    while value - lower > until * value or not until:
        limit = lower * (1 + up) if up else value * (1 - down) if down else (lower + value) / 2
        close = value - lower <= CLOSE * value or near and len(paths) == 1
        ask = asked < MAX_ASKED and close or not lower < limit < value
        # Where few plans are left below the best, ask at once for any better one; else halve what is between the
        # bounds.
        shorter_path = quick(moves, value if ask else limit)
        if shorter_path is None and ask:
            shorter_path = certain(moves, value) if certain else None
            if shorter_path is None:
                return paths
        if shorter_path is None:
            lower, up, down, asked = limit, up * 2, 0.0, 0
            if certain is None:  # otherwise that nothing was found is no proof yet
                proven = lower
                watch(paths[-1], proven)
            continue
        paths.append(shorter_path)
        watch(shorter_path, proven)
        value, up, down, asked = model.period(shorter_path), 0.0, down if ask else down * 2, asked + 1 if ask else 0
        if prune and len(moves.source) > WORTH_PRUNING and value - lower < PRUNABLE * value:
            moves = prune(model, moves, value)
    return paths
