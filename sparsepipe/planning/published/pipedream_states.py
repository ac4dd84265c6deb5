"""PipeDream's states: the places where it may cut a network, and the sums that its cost model takes at each.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1, in the
form that its published optimizer has for graphs with branches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...values.costs import Array
from ..base import Problem

MAX_STATES = 2000  # beyond, the published recurrence takes minutes and gigabytes: its cost grows with the square


@dataclass(frozen=True, eq=False)
class States:
    """Down-sets of the layers as bit masks, in the published order, with the sums that the cost model needs of each."""

    problem: Problem
    down_sets: tuple[int, ...]
    layers: tuple[int, ...]  # those that states are made of
    out: Array  # bytes that leave each state, [S]

    def __len__(self) -> int:
        return len(self.down_sets)

    @classmethod
    def of(cls, problem: Problem, sizes_from: str) -> "States":
        """Enumerate the states of the problem's graph. Raises InputError if there are more than `MAX_STATES`."""
        graph = problem.graph
        dropped = {
            k
            for k in problem.layers
            if not graph.consumers[k] and graph.layers[k].description.startswith("__getitem__")
        }
        layers = tuple(k for k in problem.layers if k not in dropped)
        kept_layers = set(layers)
        inputs = [
            [p for p in graph.inputs[k] if p in kept_layers] if k in kept_layers else []
            for k in range(len(graph.layers))
        ]
        consumers = [
            [c for c in graph.consumers[k] if c in kept_layers] if k in kept_layers else []
            for k in range(len(graph.layers))
        ]
        ancestors = [0] * len(graph.layers)
        for k in layers:
            for p in inputs[k]:
                ancestors[k] |= ancestors[p] | 1 << p
        source = next(k for k in layers if not inputs[k])
        down_sets = _enumerate(source, inputs, consumers, ancestors)
        output = [problem.profile.cost(k, sizes_from, problem.size).output_bytes for k in range(len(graph.layers))]
        out = [_bytes_out(d, consumers, ancestors, output) for d in down_sets]
        return cls(problem, tuple(down_sets), layers, np.array(out))

    @cached_property
    def _members(self) -> Array:
        """1 where a layer belongs to a state, [S, L]."""
        width = max(self.layers) + 1
        rows = [[d >> k & 1 for k in range(width)] for d in self.down_sets]
        return np.array(rows, dtype=float)[:, list(self.layers)]

    def total(self, of_layer: Callable[[int], float]) -> Array:
        """Sum of a quantity over the layers of each state, [S]."""
        return self._members @ np.array([of_layer(k) for k in self.layers])

    def between(self, total: Array, *, absent: float = 0.0) -> Array:
        """[S + 1, S]: the quantity of states i..j, at [i, j] (without i − 1); `absent` where j comes before i."""
        before = np.concatenate([[0.0], total])
        table: Array = total[None, :] - before[:, None]
        table[np.tri(len(total) + 1, len(total), -1, dtype=bool)] = absent
        return table

    @cached_property
    def precedes(self) -> NDArray[np.bool_]:
        """[S, S]: whether state k is a strict subset of state j."""
        missing = self._members @ (1 - self._members).T  # layers of k that j lacks
        strict: NDArray[np.bool_] = missing == 0
        np.fill_diagonal(strict, False)
        return strict

    def stages(self, cuts: list[int]) -> list[list[int]]:
        """The layers of each stage that ends at one of `cuts` (growing states, the last is the whole network).

        A layer belongs to the first stage whose state covers it; what the states leave out, to the stage of its input.
        """
        stage_of: dict[int, int] = {}
        for k in self.problem.layers:
            bit = 1 << k
            covering = (s for s, cut in enumerate(cuts) if self.down_sets[cut] & bit)
            above = max((stage_of.get(p, 0) for p in self.problem.graph.inputs[k]), default=0)
            stage_of[k] = max(next(covering, len(cuts) - 1 if k in self.layers else above), above)
        return [[k for k in self.problem.layers if stage_of[k] == s] for s in range(len(cuts))]


def _enumerate(source: int, inputs: list[list[int]], consumers: list[list[int]], ancestors: list[int]) -> list[int]:
    """All states that grow from the first source, in a topological order of "adds a layer and what it needs"."""
    start = 1 << source | ancestors[source]
    following: dict[int, list[int]] = {}
    queue = [start]
    while queue:
        state = queue.pop()
        if state in following:
            continue
        grown: dict[int, None] = {}
        for k in _frontier(state, consumers):
            grown[state | ancestors[k] | 1 << k] = None
        following[state] = list(grown)
        queue += following[state]
        if len(following) > MAX_STATES:
            raise InputError(
                "planner.too_large",
                f"this network has more than {MAX_STATES} possible splits, which would take a published planner "
                f"minutes to hours; use {{planner}}",
                setting={"planner": "optimal"},
            )
    order: list[int] = []
    seen: set[int] = set()
    stack = [(start, iter(following[start]))]
    seen.add(start)
    while stack:
        state, rest = stack[-1]
        for child in rest:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(following[child])))
                break
        else:
            order.append(state)
            stack.pop()
    return order[::-1]


def _frontier(state: int, consumers: list[list[int]]) -> list[int]:
    """Layers outside `state` that one of its layers feeds."""
    frontier_order: dict[int, None] = {}
    for k in _bits(state):
        for c in consumers[k]:
            if not state >> c & 1:
                frontier_order[c] = None
    return list(frontier_order)


def _bits(mask: int) -> list[int]:
    return [k for k, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]


def _bytes_out(state: int, consumers: list[list[int]], ancestors: list[int], output: list[float]) -> float:
    """Sum over the augmented antichain of a state.

    Its maximal layers, and each ancestor of such a layer with a consumer that is neither that layer nor its ancestor.
    """
    members = _bits(state)
    below = 0
    for k in members:
        below |= ancestors[k]
    counted: set[int] = set()
    for top in (k for k in members if not below >> k & 1):
        inside = ancestors[top] | 1 << top
        counted.add(top)
        counted.update(p for p in _bits(ancestors[top]) if any(not inside >> c & 1 for c in consumers[p]))
    return sum(output[k] for k in counted)
