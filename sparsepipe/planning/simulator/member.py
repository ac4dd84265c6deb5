"""One pipeline of several that are simulated together: it takes minibatches by pace, and averages with the others."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.replication.base import READ_AHEAD
from ...values.schedule import Action, Op, compile, refuse_stuck, unit_length
from ...values.stragglers import Stragglers
from ...values.trace import Span
from .simulation import BACKWARD, CODES, FORWARD, UPDATE, WEIGHT, Port, RankState, Simulation


@dataclass(eq=False)
class Loader:
    """Reads ahead for a rank of the first stage, as the loaders of a run do (runtime/worker/inputs.py).

    It asks for the rank's minibatches one after the other, some beyond those that it has begun.
    """

    rank: RankState
    places: Sequence[int]  # of the rank's minibatches among its pipeline's, in its order
    read: int = 0  # so many of them it has got
    begun: int = 0  # so many of them the rank has begun

    @property
    def wanted(self) -> int | None:
        """The place of the minibatch that it asks for now; None: it has read far enough, or all."""
        return self.places[self.read] if self.read < min(self.begun + READ_AHEAD, len(self.places)) else None

    def is_awaited(self, stage: int, place: int) -> bool:
        """Return whether the rank is idle until the first stage, `stage`, has its minibatch at a place."""
        rank = self.rank
        due = rank.todo[rank.place] if rank.place < len(rank.todo) else None
        return rank.free is not None and due == (FORWARD, stage, place)


class Update(NamedTuple):
    """The last update of a unit, by all replicas of a stage."""

    stage: int
    number: int  # among the stage's updates
    unit: int
    ranks: Sequence[RankState]


class Others(Protocol):
    """Interface of a joint simulation for one of its pipelines."""

    now: float  # seconds

    def at(self, time: float, turn: int, happen: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at a time; `turn` is among all that does then."""
        ...

    def read_on(self, member: "Member", loader: Loader) -> None:
        """Have a loader ask for the minibatch that it wants, if any, after all else that happens now."""
        ...

    def takes_step(self, member: "Member", update: Update, averaged: float) -> bool:
        """Gradients of the replicas are averaged at `averaged`. True: the caller calls `step` later on."""
        ...

    def waits_after(self, unit: int) -> bool:
        """Return whether ranks that have made the last update of a unit continue only by `release`."""
        ...

    def updated(self, member: "Member", update: Update) -> None:
        """All replicas of a stage have made the last update of a unit."""
        ...

    def trained(self, member: "Member") -> None:
        """All that the pipeline took is done."""
        ...

    def die(self, member: "Member") -> None:
        """A rank of the pipeline is killed, and the pipeline with it."""
        ...


class Member(Simulation):
    """The state of one pipeline. Minibatches have a place among the pipeline's own, and a number in the epoch.

    A unit is as many minibatches as make whole updates of every stage: they are taken together, and contributions to
    averages are numbered by them. A pipeline that continues from an empty one, since it was killed or since less than a
    unit was left of all, is another object: another life, whose units are numbered on.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        profile: Profile,
        cluster: Cluster,
        sizes: Sequence[float],
        *,
        others: Others,
        ports: defaultdict[Hashable, Port],
        stragglers: Stragglers | None,
        averages: bool,
        units_before: int = 0,
    ) -> None:
        """`units_before`: that the pipeline took in its lives before."""
        super().__init__(compile(plan, len(sizes)), profile, cluster, sizes)
        self.number, self.others, self.stragglers, self.averages = number, others, stragglers, averages
        self.transfers.ports = ports  # several pipelines share those of a node
        stages = range(len(plan.stages))
        self.whole = unit_length(plan)
        self.first = next(s for s in stages if self.program.source(s, Op.FORWARD) is None)
        self.leader = len(plan.stages) - 1  # the stage whose first replica contributes: the first to finish an update
        self.arrivals[FORWARD][self.first] = [None] * len(sizes)
        self.numbers: list[int] = []  # of each place: the number in the epoch
        self.lost: list[int] = []  # of those at the last places, when it was ended with them
        self.ended: dict[tuple[int, int], list[RankState]] = {}  # (stage, update) → replicas that have made it
        self.extra = dict.fromkeys(self.ranks, 0.0)  # seconds by which stragglers held each rank up
        if averages:  # updates that take no time count too
            for rank, actions in self.program.actions.items():
                self.ranks[rank].todo = [(CODES[op], s, m) for s, op, m in actions]
        self.units_before = units_before
        self.before = units_before * self.whole  # minibatches that it took before, as stragglers count them
        self.killable, self.dead = averages and stragglers is not None, False  # by stragglers
        self.trained, self.trained_until = 0, 0.0  # places that its last stage is through with, and since when
        self.left = sum(len(rank.todo) for rank in self.ranks.values())
        self.held = 0  # ranks that wait for other pipelines after an update
        self.closed = False
        self.loaders = {rank: Loader(self.ranks[rank], self._places_of(rank)) for rank in plan.stages[self.first].ranks}
        self._table = {rank: dict(state.seconds) for rank, state in self.ranks.items()}  # by number in the epoch
        self._bytes = dict(self.transfers.bytes)
        self._by_place = stragglers is not None or len(set(sizes)) > 1
        if self._by_place:
            for state in self.ranks.values():
                state.seconds = {s: tuple(map(list.copy, passes)) for s, passes in state.seconds.items()}
            self.transfers.bytes = {key: sizes.copy() for key, sizes in self._bytes.items()}

    # --- minibatches --------------------------------------------------------------------------------------------------

    def _places_of(self, rank: int) -> list[int]:
        """The places whose minibatches a rank of the first stage reads."""
        todo = self.ranks[rank].todo
        return [position for operation, stage, position in todo if (operation, stage) == (FORWARD, self.first)]

    @property
    def units_taken(self) -> int:
        """Over all its lives until now, those that were lost too."""
        return self.units_before + -(-(len(self.numbers) + len(self.lost)) // self.whole)

    def hand(self, numbers: Sequence[int]) -> None:
        """Take minibatches, in this order."""
        for number in numbers:
            message_count = len(self.numbers)
            self.numbers.append(number)
            if self._by_place:
                self._place(message_count, number)
            self.arrivals[FORWARD][self.first][message_count] = self.others.now

    def _place(self, place: int, number: int) -> None:
        """Set what a minibatch takes at the place that it has got."""
        for s, state in self._running(place):
            for stage_seconds, table in zip(state.seconds[s], self._table[state.rank][s], strict=True):
                stage_seconds[place] = table[number]
        for key, by_number in self._bytes.items():
            self.transfers.bytes[key][place] = by_number[number]
        for (operation, stage, rank, peer), (seconds, _, _) in self.transfers.items():
            if rank != peer:
                link = self.transfers.cluster.link(rank, peer)
                size = self.transfers.sizes(operation, stage, rank, peer)[place]
                seconds[place] = float(link.latency + size / link.bandwidth)
        if self.stragglers is not None:
            self._hold_up(self.stragglers, place, number)

    def _running(self, place: int) -> list[tuple[int, RankState]]:
        """Return the (stage, rank) that run the minibatch at a place."""
        return [(s, state) for s in range(len(self.plan.stages)) for state in self.at_work(s, place)]

    def _hold_up(self, stragglers: Stragglers, place: int, number: int) -> None:
        self.delay(stragglers, place, number=self.before + place)
        for s, state in self._running(place):
            passes = zip(state.seconds[s][:WEIGHT], self._table[state.rank][s][:WEIGHT], strict=True)
            more = [own_passes[place] - table[number] for own_passes, table in passes]
            self.extra[state.rank] += more[FORWARD] + more[BACKWARD]

    def close(self) -> None:
        """Nothing more is to come: end where the minibatches end that were taken."""
        self.closed = True
        if len(self.numbers) < self.program.num_minibatches:
            self.program = compile(self.plan, len(self.numbers))
            updates = (range(self.program.num_updates(s)) for s in range(len(self.plan.stages)))
            self.last_of_round = [
                [self.program.members(s, k)[-1] for k in unit_update] for s, unit_update in enumerate(updates)
            ]
            for rank, actions in self.program.actions.items():
                self._shorten(self.ranks[rank], actions)
        self.left = sum(len(state.todo) - state.place for state in self.ranks.values())

    def _shorten(self, state: RankState, actions: Sequence[Action]) -> None:
        known = {(operation, s) for operation, s, _ in state.todo}  # not the updates that need not be simulated
        done = state.todo[: state.place]
        state.todo = [(CODES[op], s, m) for s, op, m in actions if (CODES[op], s) in known]
        assert state.todo[: state.place] == done, "a shorter program begins as a longer one does"

    def wake(self) -> None:
        """Let ranks begin, and let those continue that wait for what does not come any more."""
        if self.dead:
            return
        for loader in self.loaders.values():
            self.others.read_on(self, loader)
        for state in self.ranks.values():
            if state.free is not None and state.place < len(state.todo):
                operation, stage, index = state.todo[state.place]
                if operation != UPDATE or state not in self.waiting.get((stage, index), ()):
                    self.start(state, max(state.free, self.others.now))
        self.check_trained()

    def check_trained(self) -> None:
        """Tell, once, that all is done and nothing is waited for."""
        if self.closed and not self.left and not self.held:
            self.left = -1
            self.others.trained(self)

    # --- actions ------------------------------------------------------------------------------------------------------

    def start(self, rank: RankState, free: float) -> None:
        """Start the next action of a rank; a forward of the first stage once its minibatch has been taken, and its
        loader reads on then.
        """
        if rank.place == len(rank.todo):
            return
        operation, stage, minibatch = rank.todo[rank.place]
        if operation == FORWARD and self.killable and self._dies(rank, stage, minibatch, free):
            return
        super().start(rank, free)
        if operation == FORWARD and stage == self.first and rank.free is None:
            loader = self.loaders[rank.rank]
            loader.begun += 1
            self.others.read_on(self, loader)

    def _dies(self, rank: RankState, stage: int, minibatch: int, free: float) -> bool:
        """Return whether a rank is killed instead of a forward that would begin."""
        begin = self.arrivals[FORWARD][stage][minibatch]
        if begin is None or self.stragglers is None:
            return False
        if not self.stragglers.kills(rank.rank, self.before + minibatch):
            return False
        rank.free = None
        self.others.at(max(begin, free), 0, self.others.die, self)
        return True

    def finish(self, rank: RankState, now: float) -> None:
        """End the action of a rank that runs until `now`, and continue."""
        operation, stage, minibatch = rank.todo[rank.place]
        rank.place += 1
        rank.free = now
        self.left -= 1
        if operation < WEIGHT:
            self.send(rank, operation, stage, minibatch, now)
        elif operation == UPDATE and self.averages:
            self._end_update(rank, stage, minibatch)
        if rank.free is not None and rank.place < len(rank.todo):
            self.start(rank, now)
        if not self.left:
            self.check_trained()

    def unit(self, stage: int, index: int) -> int | None:
        """The unit that an update of a stage is the last of; None: it is the last of none.

        One that is shorter than others is all that was left, and the only one of its life.
        """
        end, count = self.last_of_round[stage][index] + 1, len(self.numbers)
        if end > count or (end % self.whole and not (self.closed and end == count < self.whole)):
            return None
        return self.units_before + (end - 1) // self.whole

    def samples(self, unit: int) -> int:
        """Return the number of minibatches of a unit."""
        return min(self.whole, len(self.numbers) - (unit - self.units_before) * self.whole)

    def _end_update(self, rank: RankState, stage: int, index: int) -> None:
        unit = self.unit(stage, index)
        waits = unit is not None and self.others.waits_after(unit)
        if not waits:
            self._count_trained(stage, index)
        if unit is None:
            return
        ended = self.ended.setdefault((stage, index), [])
        ended.append(rank)
        if waits:
            rank.free = None
            self.held += 1
        if len(ended) == len(self.plan.stages[stage].ranks):
            del self.ended[stage, index]
            self.others.updated(self, Update(stage, index, unit, ended))

    def _count_trained(self, stage: int, index: int) -> None:
        """The last stage is through with an update, and with what waits after it: a run counts minibatches then."""
        if stage == self.leader:
            self.trained = max(self.trained, self.last_of_round[stage][index] + 1)
            self.trained_until = self.others.now

    @property
    def idle_since(self) -> float | None:
        """Since when its last stage has trained all that the pipeline took, in seconds; None: it has not."""
        return self.trained_until if self.trained == len(self.numbers) else None

    def release(self, update: Update, now: float) -> None:
        """Let the ranks of an update continue that waited after it."""
        self._count_trained(update.stage, update.number)
        for rank in update.ranks:
            self.held -= 1
            rank.free = now
            self.start(rank, now)
        self.check_trained()

    def join(self, rank: RankState, stage: int, index: int) -> None:
        """Wait for the other replicas, if any; then the other pipelines may have to be waited for too."""
        if not self.averages:
            super().join(rank, stage, index)
            return
        waiting = self.waiting.setdefault((stage, index), [])
        waiting.append(rank)
        if len(waiting) < len(self.plan.stages[stage].ranks):
            return
        del self.waiting[stage, index]
        begin = max(other.free for other in waiting if other.free is not None)
        averaged = begin + self.averaging[stage]
        for other in waiting:
            other.free = None
        unit = self.unit(stage, index)
        update = Update(stage, index, -1 if unit is None else unit, waiting)
        self.add_rows("average", update, begin, averaged)
        if unit is None or not self.others.takes_step(self, update, averaged):
            self.step(update, averaged)

    def step(self, update: Update, now: float) -> None:
        """Let each replica make its step of the optimizer."""
        for rank in update.ranks:
            end = now + self.updates[update.stage, rank.rank]
            self.add_rows("update", update._replace(ranks=[rank]), now, end)
            self.order += 1
            heapq.heappush(self.running, (end, self.order, rank))

    def add_rows(self, kind: str, update: Update, begin: float, end: float, peer: int = -1) -> None:
        """Draw what the ranks of an update do around it, if it takes any time."""
        if end > begin:
            stage, number = update.stage, update.number
            name, minibatch = f"{stage}U{number}", self.last_of_round[stage][number]
            self.rows += [(rank.rank, name, begin, end, kind, stage, minibatch, peer) for rank in update.ranks]

    def end(self, now: float) -> list[int]:
        """End the pipeline as it is. Return the minibatches that it took and its last stage is not through with."""
        self.dead, self.closed, self.held = True, True, 0
        self.running.clear()
        rows = (row for row in self.rows if row[2] < now)
        self.rows = [(*row[:3], min(row[3], now), *row[4:]) for row in rows]
        self.lost, self.numbers = self.numbers[self.trained :], self.numbers[: self.trained]
        return self.lost

    def spans(self) -> list[Span]:
        """Spans of the ranks, with minibatches by position."""
        if self.dead:
            return list(map(Span._make, self.rows))
        letters = {code: op for op, code in CODES.items()}
        stuck = {s.rank: s.todo[s.place] for s in self.ranks.values() if s.place < len(s.todo)}
        refuse_stuck(self.program, {k: Action(stage, letters[op], m) for k, (op, stage, m) in stuck.items()})
        return list(map(Span._make, self.rows))
