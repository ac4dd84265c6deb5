"""Pipelines simulated together: minibatches go to whoever has room, and the rule's own decisions say who averages."""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from ...errors import InputError
from ...values.cluster import Cluster
from ...values.costs import MergeCosts, Place
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.replication import sent_share
from ...values.replication.base import SERVER, Arithmetic, Groups, Merge, Rule
from ...values.stragglers import Stragglers
from .exchange import Exchange, Push, Routes, ServerPorts, members_of
from .member import Loader, Member, Update
from .simulation import Port

FIRST, LAST = 0, 2  # of what happens at one time: results come before updates, and time runs out after them
TIME, HANDED_OUT = -1, -2  # what a pipeline waits for that is no pipeline: time to be up, no minibatch to be left


@dataclass
class Contribution:
    """Contribution of a pipeline after one of its units, and the progress of its stages."""

    number: int
    unit: int
    time: float
    exchange: Exchange | Push | None = None  # once the rule has decided
    come: dict[int, float] = field(default_factory=dict)  # stage → when its part was there
    results: set[int] = field(default_factory=set)  # stages whose result has arrived
    waiting: dict[int, Update] = field(default_factory=dict)  # stage → the update whose ranks wait for the result


@dataclass
class Tally:
    """Counters of one pipeline."""

    lost: dict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # cause → seconds of its last stage's first replica
    waited_for: dict[int, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # pipeline, TIME or HANDED_OUT → seconds
    blocked_since: float | None = None
    blocked_until: float = 0.0  # the latest end of such a wait

    def unblock(self, now: float, *, by: int, idle_since: float | None) -> None:
        """Count what a bound held the pipeline up, which pipeline `by` ended, TIME or HANDED_OUT.

        `idle_since`: since when it has trained all that it took; None: it has not, and lost nothing. A run counts so
        too (runtime/pipelines/member.py).
        """
        assert self.blocked_since is not None
        seconds = 0.0 if idle_since is None else now - max(self.blocked_since, idle_since)
        self.lost["bound"] += seconds
        self.waited_for[by] += seconds
        self.blocked_since, self.blocked_until = None, now


@dataclass(eq=False)
class PipelineState:
    """Averaging state of a pipeline over all its restarts."""

    tally: Tally = field(default_factory=Tally)
    contributions: list[Contribution] = field(default_factory=list)
    under_way: Contribution | None = None
    announced: dict[int, Contribution | None] = field(default_factory=dict)  # unit → what its leader contributed
    early: list[tuple[Update, bool]] = field(default_factory=list)  # of stages that are before their leader
    blocked: list[Loader] = field(default_factory=list)
    past: list[Member] = field(default_factory=list)  # lives that are over
    has_left: bool = False  # since there was nothing more for it


@dataclass(eq=False)
class Averages:
    """Counters of the averages of all pipelines."""

    group_sizes: Counter[int] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    forced: int = 0
    bytes: float = 0.0


class Exchanges:
    """Begins what merges send, over the links of all pipelines."""

    def __init__(self, sizes: MergeCosts) -> None:
        self.open: list[Exchange] = []  # of which results are still missing, and some that are complete by now
        self._sizes, self._server = sizes, ServerPorts()
        self._routes = lru_cache(maxsize=256)(partial(Routes, sizes))

    def begin(self, merge: Merge, now: float, by: int | None) -> Exchange | Push:
        """Begin to send what a merge needs; `by`: the pipeline that decided it, None for time that ran out."""
        if merge.partner == SERVER:
            return Push(merge, now, by, self._sizes, self._server)
        exchange = Exchange(merge, now, by, self._routes(members_of(merge)))
        self.open = [*(other for other in self.open if not other.complete), exchange]
        return exchange


class Together:
    """The state of one simulation of several pipelines. Without a rule they share minibatches, and nothing else."""

    def __init__(
        self,
        plans: Sequence[Plan],
        profile: Profile,
        cluster: Cluster,
        sizes: Sequence[float],
        *,
        rule: Rule | None,
        stragglers: Stragglers | None,
        seed: int = 0,
        restart_seconds: float = 0.0,
    ) -> None:
        """Without a rule stragglers end no one. `restart_seconds`: from a death until the pipeline trains again."""
        self.now, self.restart_seconds = 0.0, restart_seconds
        self.rule = rule
        self.groups: Groups | None = rule.groups(len(plans), seed=seed) if rule else None
        self.queue = deque(range(len(sizes)))
        self.events: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        ports = defaultdict[Hashable, Port](Port)

        def begin(k: int, *, units_before: int = 0) -> Member:
            return Member(
                k,
                plans[k],
                profile,
                cluster,
                sizes,
                others=self,
                ports=ports,
                stragglers=stragglers,
                averages=bool(rule),
                units_before=units_before,
            )

        self._begin = begin
        self.members = [begin(k) for k in range(len(plans))]
        self.exchanges = Exchanges(MergeCosts(plans, cluster, profile.graph, share=sent_share(rule) if rule else 1.0))
        self.pipelines = [PipelineState() for _ in plans]
        self.averages = Averages()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, starts: Sequence[float]) -> None:
        """Let what happens happen in the order of time. `starts`: when each pipeline begins."""
        for member, start in zip(self.members, starts, strict=True):  # each has a unit before anybody reads ahead
            self.at(start, FIRST, self._start, member)
        for member, start in zip(self.members, starts, strict=True):
            self.at(start, FIRST, member.wake)
        while True:
            next_event = (self.events[0][0], self.events[0][1]) if self.events else (float("inf"), LAST)
            chosen, soonest = None, next_event
            for member in self.members:
                if member.running and (member.running[0][0], 1) < soonest:
                    chosen, soonest = member, (member.running[0][0], 1)
            if chosen is not None:
                self.now, _, rank = heapq.heappop(chosen.running)
                chosen.finish(rank, self.now)
            elif self.events:
                self.now, _, _, happen, arguments = heapq.heappop(self.events)
                happen(*arguments)
            else:
                return

    def at(self, time: float, turn: int, happen: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self.events, (time, turn, self._order, happen, arguments))

    # --- minibatches --------------------------------------------------------------------------------------------------

    def _start(self, member: Member) -> None:
        """Let a pipeline begin, from an empty one, with its first unit or with all that is left; none without any."""
        for rank in member.ranks.values():
            rank.free = self.now
        if self.queue and self._may_begin(member):
            self._hand(member)
        elif not self.queue:
            member.close()

    def read_on(self, member: Member, loader: Loader) -> None:
        """Have a loader ask, after all else that happens now: those of all pipelines take turns."""
        if loader.wanted is not None:
            self.at(self.now, LAST, self._read, member, loader)

    def _read(self, member: Member, loader: Loader) -> None:
        """Give a loader the minibatch that it asks for, or keep it waiting."""
        wanted = loader.wanted
        if wanted is None or member.dead or loader in self.pipelines[member.number].blocked:
            return
        if self._has(member, wanted):
            loader.read += 1
            if loader.is_awaited(member.first, wanted):
                member.start(loader.rank, self.now)
            self.read_on(member, loader)
        elif not member.closed:
            self.pipelines[member.number].blocked.append(loader)

    def _has(self, member: Member, place: int) -> bool:
        """Hand out units until a pipeline has a minibatch at a place. False: it gets none in this life, or not yet."""
        while len(member.numbers) <= place:
            if not member.closed and not self._has_enough_for(member):
                self._end_life(member)
            if member.closed or not self._may_begin(member):
                return False
            self._hand(member)
        return True

    def _may_begin(self, member: Member) -> bool:
        """Return whether the rule lets a pipeline take more; how long it does not is counted."""
        if self.groups is None or self.groups.may_begin(member.number):
            return True
        tally = self.pipelines[member.number].tally
        if tally.blocked_since is None:
            tally.blocked_since = self.now
        return False

    def _hand(self, member: Member) -> None:
        member.hand([self.queue.popleft() for _ in range(min(member.whole, len(self.queue)))])
        for other in self.members:  # who waits for a whole unit, and those who would ask for what is not there
            asks = not self.queue or self.pipelines[other.number].blocked
            if not other.closed and asks and not self._has_enough_for(other):
                self._end_life(other)

    def _has_enough_for(self, member: Member) -> bool:
        """Return whether as many minibatches are left as a pipeline may take: a unit, or any where it is empty."""
        return len(self.queue) >= (member.whole if member.numbers else 1)

    def _end_life(self, member: Member) -> None:
        """There is nothing more for a pipeline until it is empty."""
        tally = self.pipelines[member.number].tally
        if tally.blocked_since is not None:
            tally.unblock(self.now, by=HANDED_OUT, idle_since=member.idle_since)
        self.pipelines[member.number].blocked.clear()
        member.close()
        self.at(self.now, FIRST, member.wake)

    def _unblock(self, by: int | None) -> None:
        for member, pipeline in zip(self.members, self.pipelines, strict=True):
            waiting, tally = pipeline.blocked, pipeline.tally
            if waiting and self.groups is not None and self.groups.may_begin(member.number):
                tally.unblock(self.now, by=TIME if by is None else by, idle_since=member.idle_since)
                loaders, waiting[:] = tuple(waiting), ()
                for loader in loaders:
                    self._read(member, loader)

    # --- deaths -------------------------------------------------------------------------------------------------------

    def die(self, member: Member) -> None:
        """A pipeline's minibatches go back to the queue; merges that lack its part are called off."""
        if member.dead:
            return
        assert self.rule is not None and self.groups is not None
        k = member.number
        if self._of_gradients():
            raise InputError(
                "straggler.kill_not_simulated",
                f"straggler kill: pipeline {k} ends while it averages gradients by {self.rule.name}, which cannot be "
                "simulated; run it, or use another synchronization scheme",
                name=self.rule.name,
            )
        self.queue.extendleft(reversed(member.end(self.now)))
        pipeline = self.pipelines[k]
        pipeline.tally.blocked_since = None
        for known in (pipeline.blocked, pipeline.early, pipeline.announced):
            known.clear()
        for contribution in pipeline.contributions:
            contribution.waiting.clear()
        for exchange in self.exchanges.open:
            if k in exchange.members:
                for place in exchange.call_off(self.now):
                    if place[0] != k and place[0] in exchange.merge.members:
                        self.at(self.now, FIRST, self._arrive, exchange, place)
        self._leave(member)
        self.at(self.now + self.restart_seconds, FIRST, self._live_on, member)
        for other, pipeline in zip(self.members, self.pipelines, strict=True):
            if pipeline.has_left:  # it had nothing more to take, and has now
                self.at(self.now, LAST, self._live_on, other)

    def _live_on(self, before: Member) -> None:
        """A pipeline begins again from an empty one; if it died, with a live pipeline's weights: it is not killed
        another time.
        """
        k = before.number
        if before is not self.members[k] or (not before.dead and not self.queue):
            return
        pipeline = self.pipelines[k]
        pipeline.past.append(before)
        member = self.members[k] = self._begin(k, units_before=before.units_taken)
        member.killable = before.killable and not before.dead
        if self.groups is not None and (before.dead or pipeline.has_left):
            self._decide(self.groups.join(k, now=self.now), by=k)
        pipeline.has_left = False
        self._start(member)
        member.wake()

    # --- contributions ------------------------------------------------------------------------------------------------

    def trained(self, member: Member) -> None:
        """No one waits for a pipeline that has nothing more to train on; who is ready at this moment meets it still."""
        self.at(self.now, LAST, self._go_on, member)

    def _go_on(self, member: Member) -> None:
        """An empty pipeline takes what is left, which was less than a unit or a dead one's; else it leaves."""
        if self.queue:
            self._live_on(member)
        elif self.groups is not None and member is self.members[member.number] and not member.dead:
            self.pipelines[member.number].has_left = True
            self._leave(member)

    def _leave(self, member: Member) -> None:
        """Let a pipeline's unmerged contribution continue alone, which does not count as an average."""
        assert self.groups is not None
        k = member.number
        self._decide(self.groups.leave(k, now=self.now), by=k)
        self.pipelines[k].under_way = None

    def _due(self, unit: int) -> bool:
        return self.rule is not None and (unit + 1) % self.rule.every == 0

    def _of_gradients(self) -> bool:
        return self.rule is not None and self.rule.arithmetic is Arithmetic.MEAN_GRADIENTS

    def takes_step(self, member: Member, update: Update, averaged: float) -> bool:
        if not self._of_gradients() or not self._due(update.unit):
            return False
        self.at(averaged, FIRST, self._contribute_stage, member, update, True)
        return True

    def waits_after(self, unit: int) -> bool:
        return self.rule is not None and not self.rule.overlap and not self._of_gradients() and self._due(unit)

    def updated(self, member: Member, update: Update) -> None:
        if self._of_gradients():
            return
        self._take_results(member, update)
        if self._due(update.unit):
            self._contribute_stage(member, update, self.waits_after(update.unit))

    def _take_results(self, member: Member, update: Update) -> None:
        """A stage takes what has arrived; the leader's pipeline may contribute again then."""
        pipeline = self.pipelines[member.number]
        under_way = pipeline.under_way
        if under_way is not None and update.stage == member.leader and update.stage in under_way.results:
            self.averages.staleness[update.unit - under_way.unit] += 1
            pipeline.under_way = None

    def _contribute_stage(self, member: Member, update: Update, waits: bool) -> None:
        pipeline = self.pipelines[member.number]
        if update.stage == member.leader:
            self._contribute(member, update.unit)
        if update.unit not in pipeline.announced:  # the stage hears from its leader whether there is a contribution
            pipeline.early.append((update, waits))
        elif (contribution := pipeline.announced[update.unit]) is not None:
            self._come(member, contribution, update, waits)

    def _contribute(self, member: Member, unit: int) -> None:
        k, pipeline = member.number, self.pipelines[member.number]
        assert self.groups is not None
        if pipeline.under_way is not None:
            pipeline.announced[unit] = None
        else:
            contribution = Contribution(len(pipeline.contributions), unit, self.now)
            pipeline.contributions.append(contribution)
            pipeline.under_way = pipeline.announced[unit] = contribution
            merges = self.groups.contribute(k, now=self.now, samples=member.samples(unit))
            self._decide(merges, by=k)
        early, pipeline.early = pipeline.early, []
        for update, waits in early:
            self._contribute_stage(member, update, waits)

    def _come(self, member: Member, contribution: Contribution, update: Update, waits: bool) -> None:
        """A stage's part of a contribution exists."""
        contribution.come[update.stage] = self.now
        if waits:
            contribution.waiting[update.stage] = update
        exchange, unit = contribution.exchange, (member.number, update.stage)
        if exchange is not None and unit in exchange.results:  # it was called off
            self.at(self.now, FIRST, self._arrive, exchange, unit)
        elif exchange is not None:
            self._exchange(exchange, unit)

    def _decide(self, merges: Sequence[Merge], *, by: int | None) -> None:
        for merge in merges:
            server = merge.partner == SERVER
            exchange = self.exchanges.begin(merge, self.now, by)
            self.averages.group_sizes[len(merge.members) + (merge.partner is not None and not server)] += 1
            self.averages.forced += merge.forced
            self.averages.bytes += exchange.bytes
            for k, number in zip(merge.members, merge.contributions, strict=True):
                contribution = self.pipelines[k].contributions[number]
                contribution.exchange = exchange
                for stage in contribution.come:
                    self._exchange(exchange, (k, stage))
        self._unblock(by)
        if self.groups is not None and (deadline := self.groups.next_deadline()) is not None:
            self.at(max(deadline, self.now), LAST, self._expire)

    def _expire(self) -> None:
        assert self.groups is not None
        deadline = self.groups.next_deadline()
        if deadline is not None and deadline <= self.now:
            self._decide(self.groups.expire(now=self.now), by=None)

    def _exchange(self, exchange: Exchange | Push, place: Place) -> None:
        for known in exchange.come(place, self.now):
            if known[0] in exchange.merge.members:
                self.at(exchange.results[known], FIRST, self._arrive, exchange, known)

    def _arrive(self, exchange: Exchange | Push, place: Place) -> None:
        """The result of a merge is at a stage: whoever waits for it takes it now, others after an update."""
        k, stage = place
        number = exchange.merge.contributions[exchange.merge.members.index(k)]
        pipeline, member = self.pipelines[k], self.members[k]
        contribution = pipeline.contributions[number]
        contribution.results.add(stage)
        if stage not in contribution.waiting:
            return
        update = contribution.waiting.pop(stage)
        self._count_wait(exchange, contribution, member, update)
        if stage == member.leader:
            self.averages.staleness[0] += 1
            pipeline.under_way = None
        if self._of_gradients():
            member.step(update, self.now)
        else:
            member.release(update, self.now)

    def _count_wait(
        self, exchange: Exchange | Push, contribution: Contribution, member: Member, update: Update
    ) -> None:
        """Draw and count what a stage waited: until the merge was decided, for other stages, and for the exchange."""
        unit, since = (member.number, update.stage), contribution.come[update.stage]
        decided = max(since, exchange.decided)
        other = exchange.last_ready(unit)
        begun = max(decided, exchange.ready[other]) if isinstance(exchange, Exchange) else decided
        whom = exchange.decided_by
        peer = -1 if whom is None else self.members[whom].plan.stages[-1].ranks[0]
        late = self.members[other[0]].plan.stages[other[1]].ranks[0]
        member.add_rows("wait", update, since, decided, peer)
        member.add_rows("wait", update, decided, begun, late)
        member.add_rows("average", update, begun, self.now)
        if update.stage == member.leader:
            tally = self.pipelines[member.number].tally
            tally.lost["group"] += begun - since
            tally.lost["exchange"] += self.now - begun
            tally.waited_for[TIME if whom is None or whom == member.number else whom] += decided - since
            tally.waited_for[other[0]] += begun - decided
