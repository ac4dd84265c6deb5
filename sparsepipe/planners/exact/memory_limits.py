"""Which stages fit into the memory of their devices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...costs import OPTIMIZER_SLOTS, Array, depth
from ..base import Problem
from ..cuts import Cuts, Index, StageBytes
from .chain_search import Moves, Path, last_true
from .stage_cost_tables import StageModel


@dataclass(frozen=True, eq=False)
class MemoryRule:
    """Which stages fit into memory, move by move: a group holds more minibatches the more devices later stages have.

    A stage from cut a to cut b needs weights × `copies` + what it saves and what it takes for a while, both of which
    grow with b, + what it receives at a.
    """

    copies: Array  # [moves]: weight versions, optimizer state
    minibatches: Array  # [moves]: in flight
    waiting: Array  # [moves]: how many of them wait and are saved whole: all but one, or none with recomputation
    limit: Array  # [moves]: bytes of the smallest device of the group
    weights: Array  # [S] bytes before each cut
    incoming: Array  # [S] bytes that a stage receives at each cut
    stage_bytes: StageBytes  # between cuts, of one minibatch

    def need(self, move: int | Index, first: int | Index, last: int | Index) -> Array:
        """Bytes on the fullest replica."""
        saved, working = self.stage_bytes(first, last)
        kept = self.copies[move] * (self.weights[last] - self.weights[first])
        return kept + self.waiting[move] * saved + working + self.minibatches[move] * self.incoming[first]

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
        """Whether any stage at all could be too large."""
        saved, working = self.stage_bytes(0, len(self.weights) - 1)
        largest = self.copies * self.weights[-1] + self.waiting * saved + working
        return bool((largest + self.minibatches * self.incoming.max() > self.limit).any())

    def last_places(self, cuts: Cuts) -> list[Index]:
        """For each chain, the last place where a stage that begins at each cut fits, [cases, S]; −1: none.

        Whatever a search's limit of time is, they are the same: they are kept for the cuts that were asked for last.
        """
        for last, found in self._last_places:
            if last is cuts:
                return found
        found = self._places(cuts)
        self._last_places[:] = [(cuts, found)]
        return found

    @cached_property
    def _last_places(self) -> list[tuple[Cuts, list[Index]]]:
        return []

    def fits(self, moves: Moves, path: Path) -> bool:
        """Whether every stage of a path fits."""
        behind = 0
        for group, first, last in reversed(path):
            move = int(np.flatnonzero((moves.group == group) & (moves.used[moves.source] == behind))[0])
            if self.need(move, first, last) > self.limit[move]:
                return False
            behind = int(moves.used[moves.target[move]])
        return True

    def _places(self, cuts: Cuts) -> list[Index]:
        example = self.cases[0]
        limit = self.limit[example]
        shape = (len(example), len(cuts))

        def along(chain: Index) -> Index:
            def fits(case: Index, cut: Index, place: Index) -> NDArray[np.bool_]:
                return self.need(example[case], cut, chain[place]) <= limit[case]

            return last_true(fits, np.full(shape, -1), np.full(shape, len(chain) - 1))

        return [along(chain) for chain in cuts.chains]


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
    forward, _ = model.cuts.payloads(table)
    return MemoryRule(
        versions + (-1 if problem.forward_only else OPTIMIZER_SLOTS),  # inference has no gradients either
        minibatches,
        minibatches * 0 if problem.recompute else minibatches - 1,
        limit[moves.group],
        model.cuts.total(table.parameter_bytes),
        forward[:, 1],
        model.cuts.stage_bytes(table),
    )
