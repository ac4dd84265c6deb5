"""Predict what every rank does and when, from the same action lists that the runtime obeys.

A rank starts its next action once it is free and the action's inputs have arrived. Transfers run beside computation, as
the runtime posts them: a tensor leaves when it is made, and waits while its port is busy. A device has one port for
each neighbouring stage and direction; between nodes, all devices of a node share that node's port to the network. An
update is a collective: it starts when the last replica arrives, and all of them leave it together.
"""

import heapq
from collections.abc import Sequence
from itertools import count

import numpy as np

from .cluster import Cluster
from .costs import LayerTable, averaging_time
from .errors import InputError
from .plan import Plan
from .profile import Profile
from .schedule import Op, actions
from .trace import Span, Trace

FORWARD, BACKWARD, UPDATE = range(3)  # operations as numbers: they index what is kept for each
CODES = {Op.FORWARD: FORWARD, Op.BACKWARD: BACKWARD, Op.UPDATE: UPDATE}
KINDS = ("forward", "backward", "update")
LETTERS = "FBU"


def simulate(plan: Plan, profile: Profile, cluster: Cluster, voxels: Sequence[float]) -> Trace:
    """Run `plan` on minibatches with `voxels` active voxels at the network's input, one entry each.

    The optimizer's own step takes no time: profiles do not hold it. Raises InputError for a plan that cannot run.
    """
    plan.check(profile.graph, cluster)
    return Trace(tuple(_Simulation(plan, profile, cluster, voxels).run()), "simulated")


class _Simulation:
    """The state of one simulation: what each rank does next, and what has arrived.

    What an action waits for is `schedule.inputs`, in the form of arrival times: of a forward, the tensors of the stage
    before; of a backward, the gradients of the stage after (its own forward came earlier in its rank's list).
    """

    def __init__(self, plan: Plan, profile: Profile, cluster: Cluster, voxels: Sequence[float]) -> None:
        todo = actions(plan, len(voxels))
        self.plan, self.cluster, self.last = plan, cluster, len(plan.stages) - 1
        self.stage = {rank: s for s, stage in enumerate(plan.stages) for rank in stage.ranks}
        alone = {
            stage.ranks[0] for stage in plan.stages if len(stage.ranks) == 1
        }  # their updates take no time: left out
        self.todo = {
            rank: [(CODES[a.op], a.minibatch) for a in own if a.op is not Op.UPDATE or rank not in alone]
            for rank, own in todo.items()
        }
        self.place = dict.fromkeys(todo, 0)
        self.free: dict[int, float | None] = dict.fromkeys(todo, 0.0)  # when its last action ended; None while one runs
        self.replicas = [[s.ranks[s.turns[m % s.round]] for m in range(len(voxels))] for s in plan.stages]
        unknown: list[float | None] = [None] * len(voxels)
        there: list[float | None] = [0.0] * len(voxels)  # what needs no transfer
        self.arrivals = (
            [there if s == 0 else unknown.copy() for s in range(len(plan.stages))],
            [there if s == self.last else unknown.copy() for s in range(len(plan.stages))],
        )
        self.seconds, self.averaging, self.transfers = _durations(plan, profile, cluster, voxels)
        self.node = {rank: cluster.devices[rank].node.name for rank in todo}
        self.ports: dict[tuple, float] = {}  # when each port is free again
        self.at_update: dict[tuple[int, int], float] = {}  # (stage, round) → latest arrival so far
        self.waiting: dict[tuple[int, int], list[int]] = {}
        self.running: list[tuple[float, int, int]] = []  # heap of (end, order, rank)
        self.order = count()
        self.spans: list[Span] = []

    def run(self) -> list[Span]:
        """Let actions end in the order of time; each may start its rank's next one and that of the rank it sends to."""
        for rank in self.todo:
            self.start(rank, 0.0)
        while self.running:
            now, _, rank = heapq.heappop(self.running)
            operation, minibatch = self.todo[rank][self.place[rank]]
            self.place[rank] += 1
            self.free[rank] = now
            if operation != UPDATE:
                self.send(rank, operation, minibatch, now)
            self.start(rank, now)
        if stuck := [rank for rank, own in self.todo.items() if self.place[rank] < len(own)]:
            names = {rank: self.name(rank, *self.todo[rank][self.place[rank]]) for rank in stuck}
            raise InputError(
                f"schedule {self.plan.schedule!r} of this plan deadlocks: rank → action it waits at: {names}"
            )
        return self.spans

    def name(self, rank: int, operation: int, minibatch: int) -> str:
        return f"{self.stage[rank]}{LETTERS[operation]}{minibatch}"

    def start(self, rank: int, free: float) -> None:
        """Start the next action of a rank that is idle since `free`, where its inputs are there or on their way."""
        place, todo = self.place[rank], self.todo[rank]
        if place == len(todo):
            return
        operation, minibatch = todo[place]
        if operation == UPDATE:
            self.join(rank, minibatch, free)
            return
        stage = self.stage[rank]
        arrival = self.arrivals[operation][stage][minibatch]
        if arrival is None:
            return
        begin = arrival if arrival > free else free
        end = begin + self.seconds[rank][operation][minibatch]
        self.free[rank] = None
        heapq.heappush(self.running, (end, next(self.order), rank))
        name = f"{stage}{LETTERS[operation]}{minibatch}"
        self.spans.append(Span(rank, name, begin, end, KINDS[operation], stage, minibatch))

    def join(self, rank: int, index: int, now: float) -> None:
        """Wait for the other replicas; the last to come starts the averaging."""
        stage = self.stage[rank]
        ranks = self.plan.stages[stage].ranks
        waiting = self.waiting.setdefault((stage, index), [])
        waiting.append(rank)
        self.free[rank] = None
        begin = self.at_update[stage, index] = max(now, self.at_update.get((stage, index), 0.0))
        if len(waiting) < len(ranks):
            return
        end = begin + self.averaging[stage]
        for other in self.waiting.pop((stage, index)):
            if end > begin:
                self.spans.append(Span(other, f"{stage}U{index}", begin, end, "average", stage, index))
            heapq.heappush(self.running, (end, next(self.order), other))

    def send(self, rank: int, operation: int, minibatch: int, now: float) -> None:
        """Send the result on as soon as both ports are free, and wake the rank that waits for it."""
        stage = self.stage[rank]
        target = stage + 1 if operation == FORWARD else stage - 1
        if not 0 <= target <= self.last:
            return
        peer = self.replicas[target][minibatch]
        seconds = self.transfers[operation, stage, rank, peer][minibatch]
        end = now
        if seconds:
            node, peer_node = self.node[rank], self.node[peer]
            inside = node == peer_node
            leaving = (rank, target, "out") if inside else (node, "out")
            entering = (peer, stage, "in") if inside else (peer_node, "in")
            begin = max(now, self.ports.get(leaving, 0.0), self.ports.get(entering, 0.0))
            self.ports[leaving] = self.ports[entering] = end = begin + seconds
            name = f"{stage}{LETTERS[operation]}{minibatch}"
            self.spans.append(Span(rank, name, begin, end, "send", stage, minibatch, peer))
        self.arrivals[operation][target][minibatch] = end
        free, place = self.free[peer], self.place[peer]
        if free is not None and place < len(self.todo[peer]) and self.todo[peer][place] == (operation, minibatch):
            self.start(peer, free)


class _Transfers(dict):
    """(operation, stage, from, to) → seconds of each minibatch, worked out when first asked for."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.bytes: dict[tuple[int, int], np.ndarray] = {}  # (operation, sending stage) → bytes of each minibatch

    def __missing__(self, key: tuple[int, int, int, int]) -> list[float]:
        operation, stage, rank, peer = key
        link = self.cluster.link(rank, peer)
        self[key] = (link.latency + self.bytes[operation, stage] / link.bandwidth).tolist()
        return self[key]


def _durations(
    plan: Plan, profile: Profile, cluster: Cluster, voxels: Sequence[float]
) -> tuple[dict[int, tuple[list[float], list[float]]], list[float], _Transfers]:
    """(rank → seconds of each minibatch forwards and backwards, seconds of averaging of each stage, transfers)."""
    index = profile.graph.index
    distinct, which = np.unique(np.asarray(voxels, dtype=float), return_inverse=True)
    table = LayerTable.of(profile, distinct, {cluster.devices[rank].type.name for rank in plan.ranks})
    seconds, averaging, transfers = {}, [], _Transfers(cluster)
    before = set(profile.graph.input_layers)
    for s, stage in enumerate(plan.stages):
        own = [index[id] for id in stage.layers]
        before |= set(own)
        forward_bytes, backward_bytes = table.payload(before)
        transfers.bytes[FORWARD, s] = forward_bytes[which]
        transfers.bytes[BACKWARD, s + 1] = backward_bytes[which]
        averaging.append(averaging_time(cluster, stage.ranks, float(table.parameter_bytes[own].sum())))
        of_kind = {}
        for kind in {cluster.devices[rank].type.name for rank in stage.ranks}:
            forward, backward = table.forward[kind][own].sum(axis=0), table.backward[kind][own].sum(axis=0)
            again = forward if stage.recompute else 0.0
            of_kind[kind] = (forward[which].tolist(), (backward + again)[which].tolist())
        seconds.update({rank: of_kind[cluster.devices[rank].type.name] for rank in stage.ranks})
    return seconds, averaging, transfers
