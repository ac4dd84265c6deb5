"""Predict what every rank does and when, from the same action lists that the runtime obeys.

A rank starts its next action once it is free and the action's inputs have arrived. Transfers run alongside computation,
as the runtime posts them: a tensor leaves when it is made, and waits while its port is busy. A device has one port for
each neighbouring stage and direction; between nodes, all devices of a node share that node's port to the network.
Averaging is a collective: it starts when the last replica arrives, and all of them leave it together, each to its own
step of the optimizer.
"""

import gc
import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ...values.cluster import Cluster
from ...values.costs import LayerTable, averaging_time, network_time, ports
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.schedule import Action, Op, Program, compile_until_steady, refuse_stuck, weights_share
from ...values.stragglers import Stragglers
from ...values.trace import Span

FORWARD, BACKWARD, INPUT, WEIGHT, UPDATE = range(5)  # operations as numbers: they index what is kept for each
CODES = {
    Op.FORWARD: FORWARD,
    Op.BACKWARD: BACKWARD,
    Op.BACKWARD_INPUT: INPUT,
    Op.BACKWARD_WEIGHT: WEIGHT,
    Op.UPDATE: UPDATE,
}
Passes = tuple[list[float], ...]  # of each operation, seconds of each minibatch
SPAN_KIND_OF = ("forward", "backward", "backward", "weights", "update")
LETTERS = "".join(CODES)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector: of many thousand rows none is garbage, and it takes a quarter of the time."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


class RankState:
    """The state of one rank: its actions and the next of them."""

    __slots__ = ("free", "place", "rank", "seconds", "todo")

    def __init__(self, rank: int, seconds: dict[int, Passes], todo: list[tuple[int, int, int]]) -> None:
        self.rank, self.seconds, self.todo = rank, seconds, todo  # (operation, stage, minibatch) each
        self.place = 0
        self.free: float | None = 0.0  # when its last action ended; None while one runs


class Simulation:
    """The state of one simulation: what each rank does next, and what has arrived.

    What an action waits for is `Program.inputs`, in the form of arrival times: of a forward, the tensors of the stage
    before; of a backward, the gradients of the stage after (its own forward came earlier in its rank's list).
    """

    def __init__(self, program: Program, profile: Profile, cluster: Cluster, sizes: Sequence[float]) -> None:
        plan = self.plan = program.plan
        self.program = program
        stages = range(len(plan.stages))
        # As tables, since they are asked for every action: whom an operation of a stage feeds, and by whom it is fed.
        sending = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT)
        self.target = {CODES[op]: [program.target(s, op) for s in stages] for op in sending}
        seconds, self.averaging, self.updates, self.transfers = durations(plan, profile, cluster, sizes)
        # Updates that take no time need not be simulated, but where replicas wait for each other.
        alone = {s for s, stage in enumerate(plan.stages) if len(stage.ranks) == 1}
        idle = {s for s in alone if not self.updates[s, plan.stages[s].ranks[0]]}
        self.ranks = {}
        for rank, rank_actions in program.actions.items():
            todo = [(CODES[op], s, m) for s, op, m in rank_actions if op is not Op.UPDATE or s not in idle]
            self.ranks[rank] = RankState(rank, seconds[rank], todo)
        self.replicas = [[self.ranks[s.replica(m)] for m in range(len(sizes))] for s in plan.stages]
        self.sharing = {s: [self.ranks[r] for r in own.ranks] for s, own in enumerate(plan.stages) if own.shares_scenes}
        self.finished: dict[tuple[int, int, int], int] = {}  # (operation, stage, minibatch) → parts that are done
        # An update's span names the last minibatch of its round, as a run's does: rounds of stages differ in length.
        self.last_of_round = [[program.members(s, k)[-1] for k in range(program.num_updates(s))] for s in stages]
        unknown: list[float | None] = [None] * len(sizes)
        there: list[float | None] = [0.0] * len(sizes)  # what needs no transfer
        forward, backward = (
            [there if program.source(s, op) is None else unknown.copy() for s in stages]
            for op in (Op.FORWARD, Op.BACKWARD)
        )
        self.arrivals = (forward, backward, backward, [there] * len(plan.stages))  # of each operation
        self.waiting: dict[tuple[int, int], list[RankState]] = {}  # (stage, round) → replicas that wait for the others
        self.running: list[tuple[float, int, RankState]] = []  # heap of (end, order, rank)
        self.order = 0
        self.rows: list[tuple[int, str, float, float, str, int, int, int]] = []  # of spans

    def hold_up(self, stragglers: Stragglers) -> None:
        """Make the passes of ranks longer that are delayed. What is done where one is killed, restarts.py says."""
        for rank in self.ranks.values():  # like ranks share their lists
            rank.seconds = {s: tuple(map(list.copy, passes)) for s, passes in rank.seconds.items()}
        for minibatch in range(self.program.num_minibatches):
            self.delay(stragglers, minibatch, number=minibatch)

    def delay(self, stragglers: Stragglers, minibatch: int, *, number: int) -> None:
        """Make all passes of one minibatch longer, on those ranks that run it. `number`: as stragglers count it.

        A rank's delay is of all its passes together: the first of them has what does not depend on how long they are.
        """
        stages_of: dict[int, list[int]] = {}
        for s in range(len(self.replicas)):
            for running in self.at_work(s, minibatch):
                stages_of.setdefault(running.rank, []).append(s)
        for rank, stages in stages_of.items():
            seconds = self.ranks[rank].seconds
            forwards, last_first = [(s, FORWARD) for s in stages], stages[::-1]
            whole = [(s, BACKWARD) for s in last_first]
            split = [(s, operation) for operation in (INPUT, WEIGHT) for s in last_first]
            before = {
                delay_start: seconds[delay_start[0]][delay_start[1]][minibatch]
                for delay_start in (*forwards, *whole, *split)
            }
            for backwards in (whole, split):
                own_seconds = delayed = 0.0
                for s, operation in (*forwards, *backwards):
                    own_seconds += before[s, operation]
                    delay = stragglers.extra_seconds(rank, number, own_seconds)
                    seconds[s][operation][minibatch] = before[s, operation] + delay - delayed
                    delayed = delay

    def run(self) -> list[Span]:
        """Let actions end in the order of time; each may start its rank's next and that of the rank it sends to."""
        for rank in self.ranks.values():
            self.start(rank, 0.0)
        running = self.running
        while running:
            now, _, rank = heapq.heappop(running)
            operation, stage, minibatch = rank.todo[rank.place]
            rank.place += 1
            rank.free = now
            if operation <= INPUT:  # it has a result that another stage may wait for
                self.send(rank, operation, stage, minibatch, now)
            if rank.free is not None and rank.place < len(rank.todo):
                self.start(rank, now)
        letters = {code: op for op, code in CODES.items()}
        stuck = {rank.rank: rank.todo[rank.place] for rank in self.ranks.values() if rank.place < len(rank.todo)}
        refuse_stuck(self.program, {k: Action(stage, letters[op], m) for k, (op, stage, m) in stuck.items()})
        return list(map(Span._make, self.rows))

    def start(self, rank: RankState, free: float) -> None:
        """Start the next action of a rank that is idle since `free`, where its inputs are there or on their way."""
        if rank.place == len(rank.todo):
            return
        operation, stage, minibatch = rank.todo[rank.place]
        if operation == UPDATE:
            self.join(rank, stage, minibatch)
            return
        begin = self.arrivals[operation][stage][minibatch]
        if begin is None:
            return
        begin = begin if begin > free else free
        end = begin + rank.seconds[stage][operation][minibatch]
        rank.free = None
        self.order += 1
        heapq.heappush(self.running, (end, self.order, rank))
        name = f"{stage}{LETTERS[operation]}{minibatch}"
        self.rows.append((rank.rank, name, begin, end, SPAN_KIND_OF[operation], stage, minibatch, -1))

    def join(self, rank: RankState, stage: int, index: int) -> None:
        """Wait for the other replicas, if any; the last to come starts the averaging. Then each makes its step."""
        waiting = self.waiting.setdefault((stage, index), [])
        waiting.append(rank)
        if len(waiting) < len(self.plan.stages[stage].ranks):
            return
        begin = max(other.free for other in waiting if other.free is not None)
        minibatch = self.last_of_round[stage][index]
        averaged = begin + self.averaging[stage]
        for other in self.waiting.pop((stage, index)):
            other.free, name = None, f"{stage}U{index}"
            if averaged > begin:
                self.rows.append((other.rank, name, begin, averaged, "average", stage, minibatch, -1))
            end = averaged + self.updates[stage, other.rank]
            if end > averaged:
                self.rows.append((other.rank, name, averaged, end, "update", stage, minibatch, -1))
            self.order += 1
            heapq.heappush(self.running, (end, self.order, other))

    def at_work(self, stage: int, minibatch: int) -> list[RankState]:
        """Return the ranks that run a minibatch in a stage: one, or all that share its scenes."""
        return self.sharing.get(stage) or [self.replicas[stage][minibatch]]

    def send(self, rank: RankState, operation: int, stage: int, minibatch: int, now: float) -> None:
        """Send the result on as soon as both ports are free, and wake the ranks that wait for it.

        The first of the ranks that share scenes sends what all made, once the last is done.
        """
        target = self.target[operation][stage]
        if target is None:
            return
        if sharing := self.sharing.get(stage):
            done = self.finished.get((operation, stage, minibatch), 0) + 1
            self.finished[operation, stage, minibatch] = done
            if done < len(sharing):
                return
            rank = sharing[0]
        peers, last = self.at_work(target, minibatch), now
        for peer in peers:
            seconds, leaving, entering = self.transfers[operation, stage, rank.rank, peer.rank]
            if lasts := seconds[minibatch]:
                begin = max(now, leaving.free, entering.free)
                leaving.free = entering.free = end = begin + lasts
                name = f"{stage}{LETTERS[operation]}{minibatch}"
                self.rows.append((rank.rank, name, begin, end, "send", stage, minibatch, peer.rank))
                last = max(last, end)
        self.arrivals[operation][target][minibatch] = last
        for peer in peers:
            free = peer.free
            if free is not None and peer.place < len(peer.todo):
                waits, peer_action, due = peer.todo[peer.place]
                if peer_action == target and due == minibatch and waits != UPDATE:
                    self.start(peer, free)


class Port:
    """One end of a link: it carries one transfer at a time."""

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free = 0.0  # when the last transfer given to it ends


class Transfers(dict[tuple[int, int, int, int], tuple[list[float], Port, Port]]):
    """(operation, stage, from, to) → (seconds of each minibatch, port to leave by, port to enter by), when asked."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.ports: defaultdict[Hashable, Port] = defaultdict(Port)
        # (operation, sending stage, whether to another node) → bytes of each minibatch
        self.bytes: dict[tuple[int, int, bool], np.ndarray] = {}

    def __missing__(self, key: tuple[int, int, int, int]) -> tuple[list[float], Port, Port]:
        operation, stage, rank, peer = key
        num_bytes = self.sizes(operation, stage, rank, peer)
        if rank == peer:  # what stays on a device takes no time
            self[key] = [0.0] * len(num_bytes), Port(), Port()
            return self[key]
        seconds = self.seconds(rank, peer, num_bytes)
        leaving, entering = (self.ports[port] for port in ports(self.cluster, rank, peer, forward=operation == FORWARD))
        self[key] = seconds, leaving, entering
        return self[key]

    def sizes(self, operation: int, stage: int, rank: int, peer: int) -> np.ndarray:
        """Bytes of each minibatch in what an operation of a stage sends from one rank to another."""
        elsewhere = self.cluster.devices[rank].node.name != self.cluster.devices[peer].node.name
        return self.bytes[FORWARD if operation == FORWARD else BACKWARD, stage, elsewhere]

    def between_hosts(self, cut: int) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of each minibatch that cross the cut before a stage from host to host, forwards and backwards."""
        return self.bytes[FORWARD, cut - 1, True], self.bytes[BACKWARD, cut, True]

    def seconds(self, rank: int, peer: int, num_bytes: np.ndarray) -> list[float]:
        """Seconds of each minibatch from one rank to another."""
        link = self.cluster.link(rank, peer)
        return list((link.latency + num_bytes / link.bandwidth).tolist())


def durations(
    plan: Plan, profile: Profile, cluster: Cluster, sizes: Sequence[float]
) -> tuple[dict[int, dict[int, Passes]], list[float], dict[tuple[int, int], float], Transfers]:
    """(rank → stage → seconds of each minibatch in the operations F, B, I and W; stage → those of averaging;
    (stage, rank) → those of the optimizer's step; transfers).
    """
    index = profile.graph.index
    distinct, which = np.unique(np.asarray(sizes, dtype=float), return_inverse=True)
    table = LayerTable.of(profile, distinct, {cluster.devices[rank].type.name for rank in plan.ranks})
    seconds: dict[int, dict[int, Passes]] = {rank: {} for rank in plan.ranks}
    averaging, updates, transfers = [], {}, Transfers(cluster)
    steady = compile_until_steady(plan)
    for elsewhere in (False, True):
        for s, (forward_bytes, backward_bytes) in enumerate(table.payloads(plan, between_hosts=elsewhere)[1:]):
            transfers.bytes[FORWARD, s, elsewhere] = forward_bytes[which]
            transfers.bytes[BACKWARD, s + 1, elsewhere] = backward_bytes[which]
    maps_made = table.maps_made_again(plan)
    for s, stage in enumerate(plan.stages):
        layer_indices = [index[id] for id in stage.layers]
        averaging.append(averaging_time(cluster, stage.ranks, float(table.parameter_bytes[layer_indices].sum())))
        of_kind = {}
        for kind in {cluster.devices[rank].type.name for rank in stage.ranks}:
            forward, backward = (
                table.stage_forward(layer_indices, kind, maps_made[s]),
                table.backward[kind][layer_indices].sum(axis=0),
            )
            again = forward if stage.recompute else table.forward[kind][table.recomputed(stage)].sum(axis=0)
            forward = forward + table.reading_again(plan, s, kind)
            late = weights_share(plan, s) * backward
            parts = (forward, backward + again, backward - late + again, late)
            of_kind[kind] = tuple(part[which].tolist() for part in parts)
        between_parts = [own[which] for own in table.parts_seconds(cluster, plan, s, layer_indices)]
        for rank, part in zip(stage.ranks, stage.parts_of_work(), strict=True):
            kind = cluster.devices[rank].type.name
            seconds[rank][s] = of_kind[kind]
            if stage.shares_scenes:
                shared = (part * np.asarray(passes) for passes in of_kind[kind])
                of_parts = (*between_parts, between_parts[1], np.zeros(1))  # of each operation
                seconds[rank][s] = tuple((own + more).tolist() for own, more in zip(shared, of_parts, strict=True))
            if cluster.devices[rank].type.network_seconds_per_byte:
                forward, backward = network_time(cluster, plan, s, rank, transfers.between_hosts)
                more = (forward, backward, backward, np.zeros(1))  # weights' gradients are sent to nobody
                passes = zip(seconds[rank][s], more, strict=True)
                seconds[rank][s] = tuple((np.asarray(own) + sent).tolist() for own, sent in passes)
            updates[s, rank] = table.update_time(layer_indices, [kind], kept=steady.num_versions(s, rank) > 1)
    return seconds, averaging, updates, transfers
