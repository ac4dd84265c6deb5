"""Which stages fit into the memory of their devices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...values.costs import OPTIMIZER_SLOTS, Array, depth
from ..base import Problem
from ..cuts import Cuts, Index, StageBytes
from .chain_search import Moves, Path, last_true
from .stage_cost_tables import StageModel

Span = tuple[Index, Index]  # from a place to a place, this one too; none where it ends before it begins


@dataclass(frozen=True, eq=False)
class MemoryRule:
    """Selects stages that fit into memory, per move: a group holds more minibatches the more devices later stages have.

    A stage from cut a to cut b needs weights × `copies` + what it saves and what it takes for a while + what it
    receives at a. All of it grows with b, except the gradients that come back for what is sent at b.
    """

    copies: Array  # [moves]: weight versions, optimizer state
    minibatches: Array  # [moves]: in flight
    waiting: Array  # [moves]: how many of them wait and are saved whole: all but one, or none with recomputation
    limit: Array  # [moves]: bytes of the smallest device of the group
    weights: Array  # [S] bytes before each cut
    incoming: Array  # [S] bytes that a stage receives at each cut
    returned: Array  # [S] bytes of the gradients that come back for what is sent at each cut, where they count
    stage_bytes: StageBytes  # between cuts, of one minibatch

    def need(self, move: int | Index, first: int | Index, last: int | Index) -> Array:
        """Bytes on the fullest replica."""
        saved, working, _ = self.stage_bytes(first, last)
        return self._fixed(move, first, last) + self.waiting[move] * saved + working

    def _least(self, move: int | Index, first: int | Index, last: int | Index) -> Array:
        """As `need`, less the gradients for what is sent: never falls as a stage grows."""
        saved, _, least = self.stage_bytes(first, last)
        return self._fixed(move, first, last) + self.waiting[move] * saved + least

    def _fixed(self, move: int | Index, first: int | Index, last: int | Index) -> Array:
        values: Array = self.copies[move] * (self.weights[last] - self.weights[first])
        return values + self.minibatches[move] * self.incoming[first]

    def path_need(self, moves: Moves, path: Path) -> float:
        """Bytes of the fullest replica of a path's stages."""
        behind, most = 0, 0.0
        for group, first, last in reversed(path):
            move = int(np.flatnonzero((moves.group == group) & (moves.used[moves.source] == behind))[0])
            most = max(most, float(self.need(move, first, last)))
            behind = int(moves.used[moves.target[move]])
        return most

    @cached_property
    def cases(self) -> tuple[Index, Index]:
        """(a move of each distinct case, case of each move)."""
        rows = np.stack([self.copies, self.minibatches, self.limit], axis=1)
        _, example, case = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return example, case.ravel()

    @property
    def binds(self) -> bool:
        """Return whether any stage at all could be too large."""
        saved, _, least = self.stage_bytes(0, len(self.weights) - 1)
        largest = self.copies * self.weights[-1] + self.waiting * saved + least + self.returned.max()
        return bool((largest + self.minibatches * self.incoming.max() > self.limit).any())

    def places(self, cuts: Cuts) -> list[list[Span]]:
        """For each chain, the places where stages that begin at each cut fit: those of all spans, each [cases, S].

        Whatever a search's limit of time is, they are the same: they are kept for the cuts that were asked for last.
        """
        for last, found in self._places:
            if last is cuts:
                return found
        found = [self._along(chain, first) for chain, first in zip(cuts.chains, cuts.first_after, strict=True)]
        self._places[:] = [(cuts, found)]
        return found

    @cached_property
    def _places(self) -> list[tuple[Cuts, list[list[Span]]]]:
        return []

    def fits(self, moves: Moves, path: Path) -> bool:
        """Return whether every stage of a path fits."""
        behind = 0
        for group, first, last in reversed(path):
            move = int(np.flatnonzero((moves.group == group) & (moves.used[moves.source] == behind))[0])
            if self.need(move, first, last) > self.limit[move]:
                return False
            behind = int(moves.used[moves.target[move]])
        return True

    def _along(self, chain: Index, first_after: Index) -> list[Span]:
        """The places of one chain, which has the first cut after each at `first_after`.

        Up to one place every stage fits, whatever it sends, and beyond another none: between these each is looked at.
        """
        example = self.cases[0]
        limit, shape = self.limit[example], (len(example), len(first_after))
        most_returned = np.maximum.accumulate(self.returned[chain])

        low, high = np.full(shape, -1), np.full(shape, len(chain) - 1)  # where `perhaps` ends, as far as it is known

        def perhaps(case: Index, cut: Index, place: Index) -> NDArray[np.bool_]:
            return self._least(example[case], cut, chain[place]) <= limit[case]

        def surely(case: Index, cut: Index, place: Index) -> NDArray[np.bool_]:
            least = self._least(example[case], cut, chain[place])
            may, known = least <= limit[case], (case, cut)
            low[known] = np.where(may, np.maximum(low[known], place), low[known])
            high[known] = np.where(may, high[known], np.minimum(high[known], place - 1))
            return least + most_returned[place] <= limit[case]

        sure = last_true(surely, low.copy(), high.copy())
        if not most_returned.any():
            return [(first_after, sure)]
        last = last_true(perhaps, low, high)
        begins = np.maximum(sure + 1, first_after)
        spans, counts = [(first_after, sure)], np.maximum(last + 1 - begins, 0).ravel()
        row = np.repeat(np.arange(counts.size), counts)
        place = begins.ravel()[row] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        case, cut = np.divmod(row, shape[1])
        fit = self.need(example[case], cut, chain[place]) <= limit[case]
        row, place = row[fit], place[fit]
        starts = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (np.diff(place, prepend=-1) != 1))
        ends = np.append(starts[1:], len(row)) - 1  # of runs of places
        turn = np.arange(len(starts)) - np.searchsorted(row[starts], row[starts])  # of a run among those of its row
        for k in range(int(turn.max(initial=-1)) + 1):
            span, own = (np.zeros(shape, dtype=np.intp), np.full(shape, -1)), turn == k
            for found, ends_of in zip(span, (starts, ends), strict=True):
                found.ravel()[row[starts[own]]] = place[ends_of[own]]
            spans.append(span)
        return spans


def memory_rule(problem: Problem, model: StageModel, moves: Moves) -> MemoryRule:
    """The memory need of each move's group with the devices used behind it."""
    groups, table = model.groups, problem.table
    behind = moves.used[moves.source]
    pairs, which = np.unique(np.stack([moves.group, behind], axis=1), axis=0, return_inverse=True)
    depths = np.ones((len(pairs), 2))  # of inference: one version of the weights, one minibatch
    for row, (group, later) in enumerate([] if problem.forward_only else pairs.tolist()):
        shares = tuple(np.repeat(groups.class_shares[group], groups.counts[group]).tolist())
        depths[row] = depth(problem.schedule, problem.num_microbatches, shares, later)
    versions, minibatches = depths[which.ravel()].T
    limits = np.array([c.type.memory_bytes for c in groups.classes])
    limit = np.where(groups.counts > 0, limits, np.inf).min(axis=1)
    forward, returned = model.cuts.payloads(table, held=True)
    return MemoryRule(
        versions + (-1 if problem.forward_only else OPTIMIZER_SLOTS),  # inference has no gradients either
        minibatches,
        minibatches * 0 if problem.recompute else minibatches - 1,
        limit[moves.group],
        model.cuts.total(table.parameter_bytes),
        forward[:, 1],
        returned[:, 1] * table.tells_temporaries,
        model.cuts.stage_bytes(table),
    )
