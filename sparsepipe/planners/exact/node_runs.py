"""Stages that follow one another on one node: what they use of it, and how far they get from each cut below a limit.

Neighbours on a node send to each other by its own link. A state is what such stages use of a node together; of each
state the farthest cut counts, as what reaches it reaches all before it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster, Node
from ...costs import Array
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import DeviceGroups, device_classes
from .chain_search import Moves, _reach, all_moves
from .stage_cost_tables import StageModel, default_model

MOST_ROWS = 20_000  # groups on a node × what is used of it before


@dataclass(frozen=True, eq=False)
class NodeRuns:
    """Groups on nodes of each kind, a row for all that stages before on the same node may use of it."""

    models: list[StageModel]  # of a node of each kind alone
    kind: Index  # [V]: of node
    group: Index  # [V]: of the kind's model
    source: Index  # [V]: the state before, as a number over all kinds
    target: Index  # [V]: the state then, growing
    share: Array  # [V]: of what comes from the same node that the busier of both sides' devices carries, at least
    used: Index  # [U, T]: devices of each state

    @classmethod
    def of(cls, problem: Problem, cuts: Cuts, order: Index, types: Sequence[str]) -> "NodeRuns | None":
        """`cuts`, in an `order` in which they are a chain or taken for one; None with more than MOST_ROWS rows."""
        kinds = {(node.link, *sorted(one.name for one in node.device_types)): node for node in problem.cluster.nodes}
        counted = [Counter(one.name for one in node.device_types).values() for node in kinds.values()]
        if sum(prod((n + 1) * (n + 2) // 2 for n in own) for own in counted) > MOST_ROWS:
            return None
        models, rows, states = list[StageModel](), list[tuple[NDArray[Any], ...]](), list[Index]()
        for number, node in enumerate(kinds.values()):
            model, counts, moves = _alone(problem, cuts, node)
            used = np.zeros((len(moves.used), len(types)), dtype=np.intp)
            used[1:, [types.index(name) for name in model.groups.types]] = counts
            first = sum(map(len, states))
            before, kind = moves.used[moves.source], np.full(len(moves.group), number)
            share = np.maximum(model.groups.device_port[moves.group], 1 / np.maximum(before, 1))
            rows.append((kind, moves.group, moves.source + first, moves.target + first, share))
            states.append(used)
            models.append(model if cuts.is_chain else model.in_a_row(order))
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
        by_target = np.argsort(columns[3], kind="stable")
        kind, group, source, target, share = (column[by_target] for column in columns)
        return cls(models, kind, group, source, target, share, np.concatenate(states))

    def reached(self, seconds: float) -> Index:
        """The last cut that each state gets to from each cut, [U, S], that cut itself where it does not get on."""
        size = len(self.models[0].cuts)
        cuts, last, allowed = np.arange(size), self._last(seconds), self._allowed_until(seconds)
        found = np.tile(cuts, (len(self.used), 1))
        fresh = self.used[self.source].sum(axis=1) == 0
        bounds = [*np.flatnonzero(np.diff(self.target, prepend=-1)).tolist(), len(self.target)]
        for start, stop in pairwise(bounds):
            rows = np.arange(start, stop)
            ends = np.take_along_axis(allowed[rows], found[self.source[rows]], axis=1)
            begins = np.where(fresh[rows, None], cuts, ends)
            reached = np.take_along_axis(last[rows], np.maximum(begins, 0), axis=1)
            able = fresh[rows, None] | (begins > cuts)
            own = self.target[start]
            found[own] = np.maximum(found[own], np.where(able, reached, cuts).max(axis=0))
        return found

    def _last(self, seconds: float) -> Index:
        """The last cut to which each row's group computes from each cut in time, [V, S]; that cut where it cannot."""
        size = len(self.models[0].cuts)
        found = np.zeros((len(self.kind), size), dtype=np.intp)
        for number, model in enumerate(self.models):
            group, last = np.indices((len(model.groups), size - 1)).reshape(2, -1)
            first = _reach(model, group, last + 1, seconds).reshape(len(model.groups), size - 1)
            begun = np.bincount((np.arange(len(first))[:, None] * size + first).ravel(), minlength=len(first) * size)
            own = self.kind == number
            found[own] = begun.reshape(-1, size).cumsum(axis=1)[self.group[own]]
        return found

    def _allowed_until(self, seconds: float) -> Index:
        """The last cut up to each whose boundary the node's own link carries in time, [V, S]; −1: none."""
        ports = np.stack([model.ports[0] for model in self.models])
        inside = ports[self.kind] * self.share[:, None] < seconds
        inside[:, 0] = False
        return np.maximum.accumulate(np.where(inside, np.arange(inside.shape[1]), -1), axis=1)


def _alone(problem: Problem, cuts: Cuts, node: Node) -> tuple[StageModel, Index, Moves]:
    """(the model of groups on one node, their devices of each of the model's types, moves by them)."""
    one = replace(problem, cluster=Cluster((node,), problem.cluster.network))
    classes = device_classes(one.cluster)
    counts, moves = all_moves([len(own.ranks) for own in classes], np.ones(len(classes)))
    return default_model(one, cuts, DeviceGroups.of(one, classes, counts)), counts, moves
