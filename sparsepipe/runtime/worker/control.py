"""When a command to a running job is carried out: before the same minibatch on every rank, with an empty pipeline.

    run's folder ──► rank 0 takes it up as it begins a forward, and announces: "stop before minibatch 12"
                                                         │ every rank looks as it begins a forward
    rank 0   F8 F9 F10 F11  B8 B9 B10 B11  (no F12 …)    ▐ 12 ▌
    rank 1         F8 B8 F9 B9 F10 B10 F11 B11           ▐    ▌

No one waits for an answer and nothing is sent: rank 0 names a minibatch so far ahead that no rank can have begun it.
If the plan leaves rank 0 out the lowest of its ranks does what is said of rank 0 here.
If the epoch ends before, all ranks take the command up at its end, where they meet anyway. A change of the plan is
announced once every rank has prepared it (replanning.py). Of several pipelines the one whose plan changes has no more
of its task: it ends after what it has taken, on all of its ranks, and the next task is the new plan's.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from ...records.run_progress import followed_plans
from ...values.plan import Plan
from ...values.schedule import Action, Op, Program, round_length, unit_length
from .. import commands
from ..processes.ballot import Announcement, SpreadAnnouncement
from ..processes.process import Process
from ..rendezvous.store import KeyedStore
from ..reporting.memory import PeakMemory
from ..reporting.recorder import Recorder
from ..workloads.base import Workload
from .feed import Feed
from .packet_exchange import PacketExchange
from .replanning import Replanning, State
from .straggler import Straggler

_SECONDS = 0.1  # between two looks into the run's folder, which take some microseconds each
_SOON = 0.01  # while it is asked for something: when all are ready, the old plan trains no longer than it must


@dataclass(frozen=True)
class Horizon:
    """Largest lead of a plan's ranks over rank 0, and positions at which a program may end early."""

    ahead: int  # minibatches that another rank can have begun beyond those that rank 0 has
    whole: int  # minibatches after a multiple of which every update is complete, and the replicas' turns begin anew
    leader: int = 0  # the rank that takes up commands: the lowest of the plan's

    @classmethod
    def of(cls, program: Program) -> "Horizon":
        """`program`: compiled until steady.

        A rank begins a minibatch once its stage has finished the one that was begun as many before it as are in flight,
        and replicas of a stage wait for each other once a round. A round more is to be safe: tests ask the lists.
        """
        plan = program.plan
        flights = (sum(program.in_flight(k, rank) for rank in stage.ranks) for k, stage in enumerate(plan.stages))
        rounds = [round_length(plan, k) for k in range(len(plan.stages))]
        return cls(max(flights) + 2 * max(rounds), unit_length(plan), min(plan.ranks))

    def end(self, begun: int, count: int) -> int:
        """Return where a part of an epoch of `count` minibatches can end, when rank 0 has begun `begun`, its latest."""
        due = -(-(begun + 1 + self.ahead) // self.whole) * self.whole
        return min(due, count)


class Control:
    """One rank's eye on what is announced. The plan's lowest rank makes the announcements."""

    _feed: Feed | None = None  # of a part whose end is not known when it begins
    replanning: Replanning | None = None  # where the plan may change

    def __init__(self, run_dir: Path, process: Process, horizon: Horizon) -> None:
        self._run_dir, self._horizon, self._rank = run_dir, horizon, process.rank
        self._announcement = _open(run_dir, process)  # looked at when all ranks have met again
        self._next_look = 0.0
        self._first = self._count = self.end = 0
        self._begun = -1

    def begin(self, first: int, count: int, feed: Feed | None = None) -> None:
        """Begin a part of an epoch: `count` minibatches from the run's minibatch `first` on.

        Given a `feed`, the part ends where that does.
        """
        self._first, self._count, self.end, self._begun = first, count, count, -1
        self._feed = feed

    def trains(self, action: Action, program: Program) -> bool:
        """Return whether an action of this part, about to begin, is to be done: nothing beyond an announced end is, nor
        beyond the last minibatch of the feed, which ends with a whole update.

        Raises RuntimeError if the announcement came too late for this rank, which would be a mistake of ours.
        """
        stage, op, minibatch = action
        if op is Op.FORWARD and self.end == self._count:
            self._look(minibatch)
        if self._feed and op is Op.FORWARD and minibatch < self.end and not self._feed.has(minibatch):
            self.end = minibatch - minibatch % self._horizon.whole
        if self.end == self._count:
            return True
        return (program.members(stage, minibatch)[0] if op is Op.UPDATE else minibatch) < self.end

    def wait(self) -> None:
        """Look at what is proposed, on a rank that the plan leaves out: it begins no minibatch."""
        if self.replanning:
            self.replanning.look(self._announcement)

    def catch_up(self) -> None:
        """Know where a part ended, on a rank that the plan leaves out, once all ranks have met there."""
        if found := self._announcement.read():
            self.end = min(found.minibatch - self._first, self._count)

    def close_part(self) -> None:
        """Take up what was asked for since the last look. Rank 0 comes here before the ranks meet at a part's end."""
        if self._leads and self._announcement.read() is None:
            self._next_look = 0.0
            self._take_up(self._count)

    @property
    def first(self) -> int:
        """The run's minibatch that this part of an epoch begins with."""
        return self._first

    @property
    def _leads(self) -> bool:
        return self._rank == self._horizon.leader

    @property
    def due(self) -> str | None:
        """The command to be carried out now, at a part's end, where all ranks have met; None if there is none."""
        found = self._announcement.read()
        within = found is not None and self._first + self.end <= found.minibatch <= self._first + self._count
        return commands.COMMANDS[found.command] if found and within else None

    def carried_out(self, command: str, minibatches: int) -> None:
        """Note that a command was carried out. One rank comes here."""
        commands.take(self._run_dir, command, minibatches)

    def go_on(self, horizon: Horizon) -> None:
        """Be ready for the next command, maybe under another plan. All ranks have met where the last one was due, and
        meet again before any looks.
        """
        self._horizon = horizon
        self._announcement.clear()

    def close(self) -> None:
        """Look no more. All ranks have met since they began to."""
        if self.replanning:
            self.replanning.close()
        self._announcement.close()

    def _look(self, minibatch: int) -> None:
        """See what is announced, before the forward of `minibatch` begins."""
        found = self._announcement.read()
        if not self._leads and self.replanning:
            self.replanning.look(self._announcement)
        if self._leads and found is None:
            known = self._horizon.end(max(self._begun, minibatch), self._count)
            self._take_up(self._count if self._feed else known)
            found = self._announcement.read()
        if found:
            end = found.minibatch - self._first
            if self._begun >= end:
                raise RuntimeError(f"a command is due before minibatch {end}, but {self._begun} has begun")
            self.end = end
        self._begun = max(self._begun, minibatch)

    def _take_up(self, end: int) -> None:
        """Announce what the run is asked for, due at `end` of this part."""
        now = time.monotonic()
        if now < self._next_look:
            return
        request = commands.request(self._run_dir)
        self._next_look = now + (_SECONDS if request is None else _SOON)
        if request is None:
            if self.replanning:
                self.replanning.forget()  # what was asked for is not any more
        elif self._feed and request.command != commands.REPLAN:
            return  # several pipelines end together: their coordinator is asked
        elif request.command != commands.REPLAN or self._prepared(request):
            self._announcement.make(commands.COMMANDS.index(request.command), self._first + end)
            if self._feed:
                self._feed.end()  # where that is, the coordinator tells all ranks

    def _prepared(self, request: commands.Request) -> bool:
        """Return whether every rank is ready for a change of the plan; one that cannot be made is refused."""
        assert self.replanning is not None, "every worker that trains has it"
        state, reason = self.replanning.advance(request, self._announcement)
        if state is State.REFUSED:
            commands.refuse(self._run_dir, reason, plan=request.plan)
        if state is State.DONE:  # this job was started again after it had come under the plan, before it could say so
            first = followed_plans(self._run_dir)[-1].first_minibatch or 0
            commands.take(self._run_dir, request.command, first, plan=request.plan)
        return state is State.READY


def _open(run_dir: Path, process: Process) -> Announcement:
    path = run_dir / "logs" / ".announcement" if process.world_size > 1 else None
    if path is not None and isinstance(process.store, KeyedStore):
        aside = process.store.again()  # commands wait for nobody who waits at the store to be connected
        return SpreadAnnouncement(path, process, aside, name="announcement")
    return Announcement(path, blank=process.rank == 0)


@dataclass(frozen=True, eq=False)
class WorkerContext:
    """One rank's view of a run: its plan, what it trains on, and what carries, records and times its work."""

    plan: Plan
    process: Process
    workload: Workload
    exchange: PacketExchange
    recorder: Recorder
    memory: PeakMemory
    timeout: float  # seconds, the longest wait for another rank
    straggler: Straggler | None = None  # what makes this rank slow, where it is asked to be

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def writes_metrics(self) -> bool:
        """Return whether this rank writes the run's metrics: the first of the last stage, which knows the losses."""
        return self.rank == self.plan.stages[-1].ranks[0]

    @property
    def leaves_out(self) -> bool:
        """Return whether the plan leaves out ranks of the job: see targets.py."""
        return len(self.plan.ranks) < self.process.world_size

    @property
    def is_left_out(self) -> bool:
        """Return whether this rank is one of them."""
        return self.rank not in self.plan.ranks
