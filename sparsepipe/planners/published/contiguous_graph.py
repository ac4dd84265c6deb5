"""The nodes of a contiguous split: layers that must be together as one, and what each tensor costs to send."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from ...costs import Array
from ...errors import InputError
from ...formats.dnn_partitioning import CPU
from ..base import Problem

FAR = 1e12  # more than any load: the load of what is no stage


@dataclass(frozen=True, eq=False)
class Graph:
    """Layers that must be together as one node each, and what each tensor costs to send.

    A tensor is (cost, its node, the other nodes that need it).
    """

    members: tuple[tuple[int, ...], ...]  # layers of the problem, of each node
    needs: tuple[int, ...]  # masks of nodes
    accelerator: Array
    cpu: Array
    size: Array
    tensors: tuple[tuple[float, int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, problem: Problem) -> "Graph":
        """Join what is colocated, and layers without work into the only neighbour they have."""
        table, graph = problem.table, problem.graph
        kinds = [kind.name for kind in problem.cluster.device_types]
        fast = [name for name in kinds if name != CPU]
        seconds = {name: table.forward[name][:, 0] for name in kinds}
        work = np.sum([seconds[name] for name in kinds], axis=0)
        together = _colocated(problem)
        _join_idle(together, graph.edges, work)
        groups = _ordered(together, graph.edges)
        place = {layer: k for k, own in enumerate(groups) for layer in own}
        bandwidth = problem.cluster.nodes[0].link.bandwidth
        tensors = []
        needs = [0] * len(groups)
        for layer, consumers in enumerate(graph.consumers):
            others = sorted({place[c] for c in consumers} - {place[layer]})
            if others:
                tensors.append((float(table.output_bytes[layer, 0]) / bandwidth, place[layer], tuple(others)))
            for other in others:
                needs[other] |= 1 << place[layer]

        def total(of_layers: Array) -> Array:
            return np.array([fsum(of_layers[list(own)].tolist()) for own in groups])

        never = np.full(len(groups), FAR)
        return cls(
            tuple(map(tuple, groups)),
            tuple(needs),
            total(seconds[fast[0]]) if fast else never,
            total(seconds[CPU]) if CPU in kinds else never,
            total(table.parameter_bytes),
            tuple(tensors),
        )


def _colocated(problem: Problem) -> list[set[int]]:
    index = problem.graph.index
    groups: list[set[int]] = []
    for own in problem.profile.origin.get("colocated", ()):
        if not all(id in index for id in own):
            raise InputError("the profile's colocated layers are not all in its graph")
        groups.append({index[id] for id in own})
    inside = set().union(*groups) if groups else set()
    return [*groups, *({k} for k in range(len(problem.graph.layers)) if k not in inside)]


def _join_idle(groups: list[set[int]], edges: Iterable[tuple[int, int]], work: Array) -> None:
    """Join groups without work that touch one other group alone: apart they would only cost a transfer."""
    at = {layer: k for k, own in enumerate(groups) for layer in own}
    beside: list[set[int]] = [set() for _ in groups]
    for a, b in edges:
        if at[a] != at[b]:
            beside[at[a]].add(at[b])
            beside[at[b]].add(at[a])
    todo = [k for k, own in enumerate(groups) if not work[list(own)].any()]
    while todo:
        idle = todo.pop()
        if len(beside[idle]) != 1 or work[list(groups[idle])].any():
            continue
        other = beside[idle].pop()
        beside[other].discard(idle)
        groups[other] |= groups[idle]
        groups[idle] = set()
        todo.append(other)
    groups[:] = [own for own in groups if own]


def _ordered(groups: Sequence[set[int]], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The groups in topological order; those that need each other are joined."""
    groups = [set(own) for own in groups]
    while True:
        at = {layer: k for k, own in enumerate(groups) for layer in own}
        inputs: list[set[int]] = [set() for _ in groups]
        for a, b in edges:
            if at[a] != at[b]:
                inputs[at[b]].add(at[a])
        order: list[int] = []
        done: set[int] = set()
        left = sorted(range(len(groups)), key=lambda k: min(groups[k]))
        while ready := [k for k in left if inputs[k] <= done]:
            order += ready
            done.update(ready)
            left = [k for k in left if k not in done]
        if not left:
            return [sorted(groups[k]) for k in order]
        circle = _circle(left, inputs)
        joined = set().union(*(groups[k] for k in circle))
        groups = [*(own for k, own in enumerate(groups) if k not in circle), joined]


def _circle(nodes: Sequence[int], inputs: Sequence[set[int]]) -> set[int]:
    """Nodes that need each other in a circle, where each of `nodes` needs another of them."""
    among, path = set(nodes), [nodes[0]]
    while True:
        following = next(k for k in sorted(inputs[path[-1]]) if k in among)
        if following in path:
            return set(path[path.index(following) :])
        path.append(following)
