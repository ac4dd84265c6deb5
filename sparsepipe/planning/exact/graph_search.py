"""Find a plan whose stages and boundaries all take less than a given time, or prove that none exists: for any graph.

Keeps every cut that the later stages can begin at, not only the nearest: slower than chain_search.py, and exact for
graphs with branches, within memory, and where all devices must be used.
"""

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...util.io.quantities import SIZE
from ...util.text.numbers import number_of
from ..cuts import Index
from .chain_search import Limit, Moves, Path, last_true
from .memory_limits import MemoryRule
from .stage_cost_tables import StageModel


@dataclass(frozen=True, eq=False)
class StageEnds:
    """Furthest end of a stage within a limit, along each chain of cuts. Earlier answers narrow later questions."""

    model: StageModel
    known: dict[float, list[Index]] = field(default_factory=dict)

    @cached_property
    def _distinct(self) -> tuple[Index, Index]:
        """(one of each set of groups on which stages take the same, the set of each group)."""
        model = self.model
        rows = np.column_stack([model.rates, model.weight_rates, model.fixed])
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, which.ravel()

    @property
    def row(self) -> Index:
        """The row of each group in what `within` tells, [G]: groups that differ by like nodes have the same."""
        return self._distinct[1]

    def within(self, seconds: float) -> list[Index]:
        """For each chain, the last place where a stage from each cut is below the limit, [rows, S]; −1: none."""
        if seconds not in self.known:
            below = max((limit for limit in self.known if limit < seconds), default=None)
            above = min((limit for limit in self.known if limit > seconds), default=None)
            chains = self.model.cuts.chains
            shape = (len(self._distinct[0]), len(self.model.cuts))
            low = [np.full(shape, -1) for _ in chains] if below is None else self.known[below]
            high = [np.full(shape, len(chain) - 1) for chain in chains] if above is None else self.known[above]
            self.known[seconds] = [self._along(seconds, *ends) for ends in zip(chains, low, high, strict=True)]
        return self.known[seconds]

    def _along(self, seconds: float, chain: Index, low: Index, high: Index) -> Index:
        def fits(row: Index, cut: Index, place: Index) -> NDArray[np.bool_]:
            return self.model.seconds(self._distinct[0][row], cut, chain[place]) < seconds

        return last_true(fits, low, high)


def over_sets(
    ends: StageEnds,
    moves: Moves,
    seconds: float,
    *,
    memory: MemoryRule | None = None,
    all_devices: bool = False,
    until: float = inf,
) -> Path | None:
    """Search any cuts. A path, or None as proof that there is none.

    Raises TimeoutError if neither is known at `until` of `time.process_time()`.
    """
    model = ends.model
    limit, cuts = Limit(model, seconds), model.cuts
    kind, rows = limit.kinds
    sets, number = limit.sets
    reached = np.zeros((len(moves.used), len(rows), len(cuts)), dtype=bool)
    reached[0, :, -1] = True
    whole = len(moves.used) - 1
    time_places = ends.within(seconds)
    memory_places = memory.places(cuts) if memory else []
    for state in range(whole):
        if until < inf and time.process_time() > until:
            raise TimeoutError
        spare = moves.spare[state]
        reached[state] &= model.work < (seconds * spare if spare else 0.0)  # seconds may be infinite
        own = moves.of_source(state)
        own = own[reached[state].any(axis=1)[kind[moves.group[own]]]]
        if not len(own):
            continue
        own = own[np.argsort(moves.target[own], kind="stable")]
        groups, targets, receivers = moves.group[own], moves.target[own], kind[moves.receiver[own]]
        from_cuts = reached[state][kind[groups]]  # [moves, S]
        reached_sets = np.zeros_like(from_cuts)
        for c, chain in enumerate(cuts.chains):
            ahead = np.zeros((len(own), len(chain) + 1), dtype=np.int32)
            np.cumsum(from_cuts[:, chain], axis=1, out=ahead[:, 1:])
            last, first = time_places[c][ends.row[groups]], cuts.first_after[c]
            if memory is None:
                reached_sets |= np.take_along_axis(ahead, np.maximum(last + 1, first), axis=1) > ahead[:, first]
                continue
            case = memory.cases[1][own]
            for begin, end in memory_places[c]:
                low = ahead[:, first] if begin is first else np.take_along_axis(ahead, begin[case], axis=1)
                high = np.maximum(np.minimum(last, end[case]) + 1, first if begin is first else begin[case])
                reached_sets |= np.take_along_axis(ahead, high, axis=1) > low
        finished = reached_sets[:, 0] & ((moves.used[targets] == moves.used[-1]) if all_devices else True)
        if finished.any():
            return _walk_sets(limit, moves, reached, memory, int(own[finished.argmax()]))
        starts = np.flatnonzero(np.diff(targets, prepend=-1))  # groups of like nodes may lead to one state
        for k in range(len(rows)):
            begun = reached_sets & sets[number[k, receivers]]
            reached[targets[starts], k] |= np.logical_or.reduceat(begun, starts, axis=0)
    return None


def _walk_sets(limit: Limit, moves: Moves, reached: NDArray[np.bool_], memory: MemoryRule | None, move: int) -> Path:
    """The stages behind the move that reached the start of the network, in pipeline order."""
    model = limit.model
    kind, _ = limit.kinds
    sets, number = limit.sets

    def ends(move: int, first: int) -> Index:
        """Reached cuts where the stage of `move` from `first` may end."""
        group = int(moves.group[move])
        after = model.cuts.after(first)
        good = reached[moves.source[move], kind[group], after] & (model.seconds(group, first, after) < limit.seconds)
        if memory is not None:
            good &= memory.need(move, first, after) <= memory.limit[move]
        return after[good]

    chosen, cuts = list[int](), [0]
    while True:
        cuts.append(int(ends(move, cuts[-1])[-1]))
        chosen.append(move)
        if moves.source[move] == 0:
            return list(zip(moves.groups(chosen), cuts, cuts[1:], strict=False))
        into = np.flatnonzero(moves.target == moves.source[move])
        attachable = sets[number[kind[moves.group[move]], kind[moves.receiver[into]]], cuts[-1]]
        move = next(int(m) for m in into[attachable] if len(ends(int(m), cuts[-1])))


def nothing_fits(ends: StageEnds, moves: Moves, memory: MemoryRule, all_devices: bool) -> str:
    """Return a sentence with the least memory per device for which there is a plan."""
    low, high = 0.0, memory.path_need(moves, [(int(moves.group[0]), 0, len(ends.model.cuts) - 1)])
    while high - low > max(1.0, 1e-9 * high):
        middle = (low + high) / 2
        rule = replace(memory, limit=np.full_like(memory.limit, middle))
        path = over_sets(ends, moves, float("inf"), memory=rule, all_devices=all_devices)
        low, high = (middle, high) if path is None else (low, memory.path_need(moves, path))
    largest = max(c.type.memory_bytes for c in ends.model.groups.classes)
    return (
        f"no plan fits into the memory of {number_of(moves.used[-1], 'device')} (at most {SIZE.shown(largest)}): "
        f"{SIZE.enough(high)} on each would suffice; use devices with more memory, more of them, recomputation, or "
        "planner 'space', which divides each scene"
    )
