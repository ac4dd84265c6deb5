"""Predict what every rank does and when, from the same action lists that the runtime obeys.

A rank starts its next action once it is free and the action's inputs have arrived. Transfers run beside computation, as the
runtime posts them: a tensor leaves when it is made, and waits while its port is busy. A device has one port for each
neighbouring stage and direction; between nodes, all devices of a node share that node's port to the network.
An update is a collective: it starts when the last replica arrives, and all of them leave it together.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from .cluster import Cluster
from .costs import LayerTable, averaging_time
from .errors import InputError
from .plan import Plan
from .profile import Profile
from .schedule import Action, Op, actions, inputs
from .trace import Span, Trace


def simulate(plan: Plan, profile: Profile, cluster: Cluster, voxels: Sequence[float]) -> Trace:
    """Run `plan` on minibatches with `voxels` active voxels at the network's input, one entry each.

    The optimizer's own step takes no time: profiles do not hold it. Raises InputError for a plan that cannot run.
    """
    plan.check(profile.graph, cluster)
    if not voxels:
        return Trace((), "simulated")
    return Trace(tuple(_Simulation(plan, profile, cluster, voxels).run()), "simulated")


class _Simulation:
    """The state of one simulation: what each rank does next, and what has arrived."""

    def __init__(self, plan: Plan, profile: Profile, cluster: Cluster, voxels: Sequence[float]) -> None:
        self.plan, self.cluster, self.num_minibatches = plan, cluster, len(voxels)
        self.seconds, self.transfer_seconds = _durations(plan, profile, cluster, voxels)
        self.todo = actions(plan, self.num_minibatches)
        self.place = dict.fromkeys(self.todo, 0)
        self.free = dict.fromkeys(self.todo, 0.0)  # when the rank's last action ended; inf while one runs
        self.arrived: dict[Action, float] = {}  # result of an action → when its consumer on another rank has it
        self.port_free: dict[tuple, float] = {}
        self.at_update: dict[Action, list[int]] = {}  # replicas waiting for the others
        self.running: list[tuple[float, int, int, Action]] = []  # heap of (end, order, rank, action)
        self.order = count()
        self.spans: list[Span] = []

    def run(self) -> list[Span]:
        for rank in self.todo:
            self.start_next(rank)
        while self.running:
            end, _, rank, action = heapq.heappop(self.running)
            self.free[rank] = end
            self.place[rank] += 1
            if action.op is not Op.UPDATE:
                self.send(action, rank, end)
            self.start_next(rank)
        if stuck := {r: str(todo[self.place[r]]) for r, todo in self.todo.items() if self.place[r] < len(todo)}:
            raise InputError(
                f"schedule {self.plan.schedule!r} of this plan deadlocks: rank → action it waits at: {stuck}"
            )
        return self.spans

    def start_next(self, rank: int) -> None:
        """Start the next action of an idle rank where all its inputs are on their way or there."""
        if self.place[rank] == len(self.todo[rank]):
            return
        action = self.todo[rank][self.place[rank]]
        if action.op is Op.UPDATE:
            self.join_update(action, rank)
            return
        start = self.free[rank]
        for source in inputs(action, self.plan, self.num_minibatches):
            if source.stage != action.stage:
                if source not in self.arrived:
                    return
                start = max(start, self.arrived[source])
        self.begin(rank, action, start, start + self.seconds[action.stage, rank, action.op][action.minibatch])

    def begin(self, rank: int, action: Action, start: float, end: float) -> None:
        self.free[rank] = float("inf")
        heapq.heappush(self.running, (end, next(self.order), rank, action))
        kind = KIND_OF[action.op]
        self.spans.append(Span(rank, str(action), start, end, kind, action.stage, action.minibatch))

    def join_update(self, action: Action, rank: int) -> None:
        """Wait for the other replicas; the last to come starts the averaging."""
        waiting = self.at_update.setdefault(action, [])
        waiting.append(rank)
        ranks = self.plan.stages[action.stage].ranks
        if len(waiting) < len(ranks):
            return
        start = max(self.free[other] for other in ranks)
        end = start + self.seconds[action.stage, rank, Op.UPDATE][0]
        for other in self.at_update.pop(action):
            if end > start:
                self.spans.append(Span(other, str(action), start, end, "average", action.stage, action.minibatch))
            self.begin(other, action, end, end)

    def send(self, action: Action, rank: int, now: float) -> None:
        """Send the result on as soon as both ports are free, and wake the rank that waits for it."""
        s, op, m = action
        target = s + 1 if op is Op.FORWARD else s - 1
        if not 0 <= target < len(self.plan.stages):
            return
        peer = self.plan.stages[target].replica(m)
        node, peer_node = self.cluster.devices[rank].node, self.cluster.devices[peer].node
        inside = node.name == peer_node.name
        ports = ((rank, target, "out"), (peer, s, "in")) if inside else ((node.name, "out"), (peer_node.name, "in"))
        seconds = self.transfer_seconds[min(s, target), op, rank, peer][m]
        start = max(now, *(self.port_free.get(port, 0.0) for port in ports))
        end = start + seconds
        if seconds:
            self.port_free.update(dict.fromkeys(ports, end))
            self.spans.append(Span(rank, str(action), start, end, "send", s, m, peer))
        self.arrived[action] = end
        if self.free[peer] < float("inf"):
            following = self.todo[peer][self.place[peer]] if self.place[peer] < len(self.todo[peer]) else None
            if following is not None and action in inputs(following, self.plan, self.num_minibatches):
                self.start_next(peer)


KIND_OF = {Op.FORWARD: "forward", Op.BACKWARD: "backward", Op.UPDATE: "update"}


def _durations(
    plan: Plan, profile: Profile, cluster: Cluster, voxels: Sequence[float]
) -> tuple[dict[tuple[int, int, Op], list[float]], Callable | dict]:
    """Seconds of (stage, rank, op) and of (boundary, op, from, to), each for every minibatch."""
    index = profile.graph.index
    distinct, which = np.unique(np.asarray(voxels, dtype=float), return_inverse=True)
    kinds = {cluster.devices[rank].type.name for rank in plan.ranks}
    table = LayerTable.of(profile, distinct, kinds)
    seconds, transfers = {}, _Transfers(cluster)
    before = set(profile.graph.input_layers)
    for s, stage in enumerate(plan.stages):
        own = [index[id] for id in stage.layers]
        before |= set(own)
        if s + 1 < len(plan.stages):
            forward_bytes, backward_bytes = table.payload(before)
            transfers.bytes[s, Op.FORWARD] = forward_bytes[which]
            transfers.bytes[s, Op.BACKWARD] = backward_bytes[which]
        averaging = averaging_time(cluster, stage.ranks, float(table.parameter_bytes[own].sum()))
        of_kind = {}
        for kind in {cluster.devices[rank].type.name for rank in stage.ranks}:
            forward, backward = table.forward[kind][own].sum(axis=0), table.backward[kind][own].sum(axis=0)
            again = forward if stage.recompute else 0.0
            of_kind[kind] = forward[which].tolist(), (backward + again)[which].tolist()
        for rank in stage.ranks:
            seconds[s, rank, Op.FORWARD], seconds[s, rank, Op.BACKWARD] = of_kind[cluster.devices[rank].type.name]
            seconds[s, rank, Op.UPDATE] = [averaging]
    return seconds, transfers


class _Transfers(dict):
    """(boundary, op, from, to) → seconds of each minibatch, worked out when first asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bytes: dict[tuple[int, Op], np.ndarray] = {}

    def __missing__(self, key: tuple[int, Op, int, int]) -> list[float]:
        boundary, op, rank, peer = key
        link = self.cluster.link(rank, peer)
        self[key] = (link.latency + self.bytes[boundary, op] / link.bandwidth).tolist()
        return self[key]
