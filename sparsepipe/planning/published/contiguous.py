"""The published optimum of contiguous splits on branching graphs, found over windows of down-sets.

Cost model of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020, msr-fiddle/
dnn-partitioning): a stage is the difference of two down-sets on one device. On an accelerator it takes its layers'
seconds and the transfer of every tensor that crosses its border, into it or out of it, once each; on a CPU its layers'
seconds alone. The best plan has the smallest largest load, and devices may stay unused.

Their program looks at all pairs of down-sets. Here a limit T on the load is raised until a plan is found:

    work before a cut      0 ──────[══window══]─────────[══window══]──────── all
    of a plan below T            after 1 device        after 2 devices …

With k of K accelerators used, a cut below T has at most k T of the work before it, and at most (K − k) T behind it:
near the best T few cuts are left, and only pairs of these are looked at, many at once as one product of matrices. A
limit without a plan is a bound; the first with one gives the optimum, since all plans below it were looked at.

The nodes of a contiguous split: layers that must be together as one, and what each tensor costs to send.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...records.formats.dnn_partitioning import CPU
from ...util.io.quantities import SIZE
from ...values.costs import Array
from ...values.plan import Plan, StageEstimate
from ..base import Problem
from ..cuts import Index, down_sets
from ..estimate import estimate

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
        group_of_layer = {layer: k for k, group_nodes in enumerate(groups) for layer in group_nodes}
        bandwidth = problem.cluster.nodes[0].link.bandwidth
        tensors = []
        needs = [0] * len(groups)
        for layer, consumers in enumerate(graph.consumers):
            others = sorted({group_of_layer[c] for c in consumers} - {group_of_layer[layer]})
            if others:
                tensors.append((float(table.output_bytes[layer, 0]) / bandwidth, group_of_layer[layer], tuple(others)))
            for other in others:
                needs[other] |= 1 << group_of_layer[layer]

        def total(of_layers: Array) -> Array:
            return np.array([fsum(of_layers[list(group_nodes)].tolist()) for group_nodes in groups])

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
    for colocated_ids in problem.profile.origin.get("colocated", ()):
        if not all(id in index for id in colocated_ids):
            raise InputError(
                "planner.colocated_unknown", "some colocated layers of the profile are missing in its graph"
            )
        groups.append({index[id] for id in colocated_ids})
    inside = set().union(*groups) if groups else set()
    return [*groups, *({k} for k in range(len(problem.graph.layers)) if k not in inside)]


def _join_idle(groups: list[set[int]], edges: Iterable[tuple[int, int]], work: Array) -> None:
    """Join groups without work that touch one other group alone: apart they would only cost a transfer."""
    at = {layer: k for k, group_nodes in enumerate(groups) for layer in group_nodes}
    beside: list[set[int]] = [set() for _ in groups]
    for a, b in edges:
        if at[a] != at[b]:
            beside[at[a]].add(at[b])
            beside[at[b]].add(at[a])
    todo = [k for k, group_nodes in enumerate(groups) if not work[list(group_nodes)].any()]
    while todo:
        idle = todo.pop()
        if len(beside[idle]) != 1 or work[list(groups[idle])].any():
            continue
        other = beside[idle].pop()
        beside[other].discard(idle)
        groups[other] |= groups[idle]
        groups[idle] = set()
        todo.append(other)
    groups[:] = [group_nodes for group_nodes in groups if group_nodes]


def _ordered(groups: Sequence[set[int]], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The groups in topological order; those that need each other are joined."""
    groups = [set(group_nodes) for group_nodes in groups]
    while True:
        at = {layer: k for k, group_nodes in enumerate(groups) for layer in group_nodes}
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
        groups = [*(group_nodes for k, group_nodes in enumerate(groups) if k not in circle), joined]


def _circle(nodes: Sequence[int], inputs: Sequence[set[int]]) -> set[int]:
    """Nodes that need each other in a circle, where each of `nodes` needs another of them."""
    among, path = set(nodes), [nodes[0]]
    while True:
        following = next(k for k in sorted(inputs[path[-1]]) if k in among)
        if following in path:
            return set(path[path.index(following) :])
        path.append(following)


Flags = NDArray[np.bool_]
MOST_CUTS = 400_000
_PAIRS = 2_000_000  # looked at in one product
_LEAST = 1e-9  # a limit: below it nothing takes time
_GROWTH = 0.005  # of the first limit over the bound by the whole work; doubled each time


@dataclass(frozen=True, eq=False)
class _Cuts:
    """All down-sets, as rows over the nodes."""

    graph: Graph
    members: Flags  # [S, N]: whether a node lies before a cut

    @classmethod
    def of(cls, graph: Graph) -> "_Cuts":
        masks = down_sets(graph.needs, MOST_CUTS)
        if masks is None:
            raise InputError(
                "planner.too_many_cuts",
                f"the graph has more than {MOST_CUTS} cuts, too many branches for this cost model; use another planner",
            )
        width = (len(graph.needs) + 7) // 8
        raw = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
        bits = np.unpackbits(raw.reshape(len(masks), width), axis=1, bitorder="little")
        return cls(graph, bits[:, : len(graph.needs)].astype(bool))

    @cached_property
    def accelerator(self) -> Array:
        return self.members @ self.graph.accelerator

    @cached_property
    def cpu(self) -> Array:
        return self.members @ self.graph.cpu

    @cached_property
    def size(self) -> Array:
        return self.members @ self.graph.size

    @cached_property
    def alive(self) -> Flags:
        """Return the tensors that are computed before a cut and needed after it, [S, tensors]."""
        alive = np.zeros((len(self.members), len(self.graph.tensors)), dtype=bool)
        for tensor, (_, node, others) in enumerate(self.graph.tensors):
            alive[:, tensor] = self.members[:, node] & ~self.members[:, [*others]].all(axis=1)
        return alive

    @cached_property
    def costs(self) -> Array:
        return np.array([cost for cost, _, _ in self.graph.tensors])

    def crossing(self, first: Index, last: Index) -> Array:
        """Return the bytes that every stage from a cut of `first` to one of `last` sends and receives, [first, last].

        FAR and more where the last does not hold all of the first. All of it is a sum of products, one factor of
        which each cut has: what a stage sends, all that is alive behind it but for what came from before it; what it
        receives, each tensor that is alive before it and is needed by a node in it, told by which nodes still need it.
        """
        before, behind = self.members[first].astype(float), self.members[last].astype(float)
        left, right = [-FAR * before, before * FAR], [behind, np.ones_like(behind)]
        made = before[:, [node for _, node, _ in self.graph.tensors]] * self.costs
        left.append(-made)
        right.append(self.alive[last].astype(float))
        needed, needing = self._needed(first, last)
        left.append(needed)
        right.append(needing)
        factors, others = np.concatenate(left, axis=1), np.concatenate(right, axis=1)
        useful = factors.any(axis=0) & others.any(axis=0)
        return factors[:, useful] @ others[:, useful].T + self.alive[last] @ self.costs

    def _needed(self, first: Index, last: Index) -> tuple[Array, Array]:
        """(cost where a tensor is alive before, a column for each set of nodes that need it still; if one is in)."""
        columns, rows = [], []
        for tensor, (cost, _, others) in enumerate(self.graph.tensors):
            here = self.alive[first, tensor]
            if not cost or not here.any():
                continue
            nodes = np.array(others)
            still = ~self.members[np.ix_(first, nodes)]
            for pattern in np.unique(still[here], axis=0):
                columns.append(np.where(here & (still == pattern).all(axis=1), cost, 0.0))
                rows.append(self.members[np.ix_(last, nodes[pattern])].any(axis=1).astype(float))
        if not columns:
            return np.zeros((len(first), 0)), np.zeros((len(last), 0))
        return np.stack(columns, axis=1), np.stack(rows, axis=1)


@dataclass(frozen=True)
class Split:
    """The best stages in the order of the pipeline, (on a CPU, its layers) each, their loads, and the largest load."""

    stages: tuple[tuple[bool, tuple[int, ...]], ...]
    loads: tuple[float, ...]

    @property
    def load(self) -> float:
        return max(self.loads)


def contiguous_plan(problem: Problem, planner: str) -> Plan:
    """The best plan, with its loads as its estimate and its largest load as the proven bound; see `best_split`."""
    split = best_split(problem)
    free = {host: [d.rank for d in problem.cluster.devices if (d.type.name == CPU) == host] for host in (False, True)}
    stages = [problem.stage(layers, [free[host].pop(0)]) for host, layers in split.stages]
    unused = len(free[False]) + len(free[True])
    idle = f"{unused} of {len(problem.cluster.devices)} devices stay unused: the plan is no faster with them"
    plan = problem.plan(stages, planner, [idle] if unused else [])
    expected = estimate(plan, problem)
    loads = [
        StageEstimate(load, stage.memory_bytes, sent_bytes=stage.sent_bytes)
        for load, stage in zip(split.loads, expected.stages, strict=True)
    ]
    with_loads = replace(expected, stages=tuple(loads), period_seconds=split.load, lower_bound_seconds=split.load)
    return replace(plan, estimate=with_loads)


def best_split(problem: Problem) -> Split:
    """Find the plan with the smallest largest load.

    Raises InputError if nothing fits into memory, for more than one type of accelerator, and for too many cuts.
    """
    kinds = [kind for kind in problem.cluster.device_types if kind.name != CPU]
    if len(kinds) > 1 or len(problem.cluster.nodes) > 1:
        raise InputError(
            "planner.devices_unsupported",
            f"cost model 'dnn-partitioning' supports one accelerator type and {CPU!r} on one node, but the cluster "
            f"has {', '.join(kind.name for kind in problem.cluster.device_types)} on {len(problem.cluster.nodes)}",
        )
    counts = [sum((device.type.name == CPU) == host for device in problem.cluster.devices) for host in (False, True)]
    graph = Graph.of(problem)
    search = _Search(_Cuts.of(graph), counts[0], counts[1], kinds[0].memory_bytes if kinds else float("inf"))
    most, growth = search.along_the_order(), _GROWTH
    while True:
        limit = min(search.bound * (1 + growth), most) if growth < 1e3 else most
        if stages := search.below(limit):
            loads = tuple(_load(graph, host, nodes) for host, nodes in stages)
            host_layers = (
                (host, tuple(layer for node in nodes for layer in graph.members[node])) for host, nodes in stages
            )
            return Split(tuple(host_layers), loads)
        if limit == most:
            size = max(kind.memory_bytes for kind in kinds) if kinds else 0
            raise InputError(
                "planner.no_plan", f"no plan fits into {SIZE.shown(size)} on each accelerator; use more accelerators"
            )
        growth *= 2


def _load(graph: Graph, host: bool, nodes: Sequence[int]) -> float:
    """A stage's load, added up term by term."""
    if host:
        return fsum(graph.cpu[list(nodes)].tolist())
    node_set = set(nodes)
    sent = [
        cost
        for cost, node, others in graph.tensors
        if (
            any(other not in node_set for other in others)
            if node in node_set
            else any(other in node_set for other in others)
        )
    ]
    return fsum([*graph.accelerator[list(nodes)].tolist(), *sent])


class _Search:
    """The least largest load of reaching each cut with so many CPUs and accelerators, below a limit."""

    def __init__(self, cuts: _Cuts, accelerators: int, cpus: int, memory: float) -> None:
        self.cuts, self.memory = cuts, memory
        self.devices = accelerators, cpus, memory
        self.accelerators, self.cpus = accelerators, cpus
        order = np.argsort(cuts.accelerator, kind="stable")
        self.order, self.work = order, cuts.accelerator[order]
        graph = cuts.graph
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(graph.accelerator > 0, graph.accelerator / graph.cpu, 0.0)
        self.ratio = float(ratio.max(initial=0.0)) if cpus else 0.0  # work that a CPU does in a unit of time, at most

    @property
    def bound(self) -> float:
        """No plan has a smaller load: all devices together must do the whole work."""
        together = self._does(self.accelerators, self.cpus)
        whole = float(self.work[-1]) / together if together < float("inf") else 0.0
        return max(whole, float(np.minimum(self.cuts.graph.accelerator, self.cuts.graph.cpu).max()), _LEAST)

    def along_the_order(self) -> float:
        """The largest load of a plan found at once: the best whose cuts follow the nodes' order; or infinity."""
        rows = self.cuts.members
        prefix = rows.sum(axis=1)
        in_order = (rows == (np.arange(rows.shape[1]) < prefix[:, None])).all(axis=1)
        few = _Search(_Cuts(self.cuts.graph, self.cuts.members[in_order]), *self.devices)
        stages = few.below(float("inf"))
        loads = [_load(self.cuts.graph, host, nodes) for host, nodes in stages or ()]
        return max(max(loads, default=float("inf")) * (1 + 1e-12), _LEAST)

    def below(self, limit: float) -> list[tuple[bool, list[int]]] | None:
        """The best stages, in the order of the pipeline, if their largest load is at most `limit`."""
        best: dict[tuple[int, int], Array] = {}
        came: dict[tuple[int, int], tuple[Index, Flags]] = {}
        for cpus in range(self.cpus + 1):
            for fast in range(self.accelerators + 1):
                values = np.full(len(self.order), np.inf)
                back = np.full(len(self.order), -1), np.zeros(len(self.order), bool)
                if not cpus and not fast:
                    values[0] = 0.0
                window = self._window(cpus, fast, limit)
                if fast:
                    self._extend(best[cpus, fast - 1], values, back, window, limit, self._on_accelerator)
                if cpus:
                    self._extend(best[cpus - 1, fast], values, back, window, limit, self._on_cpu, host=True)
                best[cpus, fast], came[cpus, fast] = values, back
        values = best[self.cpus, self.accelerators]
        if values[self._whole] == np.inf:
            return None
        return self._walk(best, came)

    @cached_property
    def _whole(self) -> int:
        return int(np.flatnonzero(self.cuts.members[self.order].all(axis=1))[0])

    def _does(self, fast: int, cpus: int) -> float:
        """Work of accelerators that so many devices do in a unit of time, at most."""
        return fast + (cpus * self.ratio if cpus else 0.0)

    def _window(self, cpus: int, fast: int, limit: float) -> slice:
        """The cuts that a plan below the limit may have behind so many devices."""
        if limit == float("inf"):
            return slice(0, len(self.work))
        most = self._does(fast, cpus) * limit
        left = self._does(self.accelerators - fast, self.cpus - cpus) * limit
        ease = 1e-9 * max(limit, float(self.work[-1]))
        low = np.searchsorted(self.work, self.work[-1] - left - ease, side="left")
        return slice(int(low), int(np.searchsorted(self.work, most + ease, side="right")))

    def _extend(
        self,
        source: Array,
        values: Array,
        back: tuple[Index, Flags],
        window: slice,
        limit: float,
        load: Callable[[Index, Index], Array],
        *,
        host: bool = False,
    ) -> None:
        """Let one more device, which may stay unused, lead from the cuts reached to those of the window."""
        better = source < values
        values[better] = source[better]
        back[0][better], back[1][better] = np.flatnonzero(better), host
        reached = np.flatnonzero(source <= limit)
        targets = np.arange(window.start, window.stop)
        if not len(reached) or not len(targets):
            return
        step = max(1, _PAIRS // len(targets))
        for start in range(0, len(reached), step):
            reached_part = reached[start : start + step]
            high = self.work[reached_part[-1]] + limit * (self.ratio if host else 1.0)
            near = targets[(targets > reached_part[0]) & (self.work[targets] <= high * (1 + 1e-12))]
            if not len(near):
                continue
            loads = np.maximum(load(self.order[reached_part], self.order[near]), source[reached_part][:, None])
            chosen = loads.argmin(axis=0)
            value = loads[chosen, np.arange(len(near))]
            better = (value < values[near]) & (value <= limit) & (value < FAR / 2)
            values[near[better]] = value[better]
            back[0][near[better]], back[1][near[better]] = reached_part[chosen[better]], host

    def _on_accelerator(self, first: Index, last: Index) -> Array:
        cuts = self.cuts
        loads = cuts.crossing(first, last) + cuts.accelerator[last] - cuts.accelerator[first][:, None]
        if self.memory < float("inf"):
            loads[cuts.size[last] - cuts.size[first][:, None] > self.memory * (1 + 1e-12)] = np.inf
        return loads

    def _on_cpu(self, first: Index, last: Index) -> Array:
        cuts = self.cuts
        before, behind = cuts.members[first].astype(float), cuts.members[last].astype(float)
        useful = before.any(axis=0) & ~behind.all(axis=0)
        loads = before[:, useful] @ ((1 - behind[:, useful]) * FAR).T
        loads += cuts.cpu[last]
        loads -= cuts.cpu[first][:, None]
        return loads

    def _walk(
        self, best: dict[tuple[int, int], Array], came: dict[tuple[int, int], tuple[Index, Flags]]
    ) -> list[tuple[bool, list[int]]]:
        place, state, stages = self._whole, (self.cpus, self.accelerators), []
        while state != (0, 0):
            before, host = int(came[state][0][place]), bool(came[state][1][place])
            if before != place:
                inside = self.cuts.members[self.order[place]] & ~self.cuts.members[self.order[before]]
                stages.append((host, np.flatnonzero(inside).tolist()))
            place, state = before, (state[0] - host, state[1] - (not host))
        return stages[::-1]
