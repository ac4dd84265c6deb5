"""How a running job comes under another plan: everything is made alongside the training, then done in a moment.

    rank 0   a request ─► propose ─┐                                  all ready ─► announce "replan before minibatch 40"
    rank k                         └► check ► connect, build (a thread of its own, while the old plan trains) ► compile
                                                                                        ▐ 40, an empty pipeline ▌
    all                                            layers change hands ► agreed? ► rank 0 writes plan.json ► continue

Over several hosts what they send each other goes through the job's store (ballot.py), and plan.json is of the
host of rank 0: whoever launched the job makes it the run's.

Until plan.json is written the old plan has all it needs, and continues where any rank cannot: the request is refused
with the reason. From then on the job is under the new plan: where a rank is lost the job starts again from its last
checkpoint, which is kept by layer, under whatever plan.json says. So no checkpoint is written for a move.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ...errors import InputError
from ...records.run_progress import begin_plan, keep_processes
from ...util.derived import SHARED_GENERATORS
from ...values.plan import Plan
from .. import commands
from ..failures import DeadlinePassed, PeerLost, described
from ..processes.ballot import Announcement, Answer, Ballot, SpreadBallot
from ..processes.process import Process
from ..rendezvous.store import KeyedStore
from .connections import Connections
from .join import HandOver
from .stage_replica import StageReplica

_LOOK_SECONDS = 0.005  # between two looks of the thread at how far the other ranks are
_TO_END = 2.0  # seconds for the thread to see that it is not wanted any more


class Follower(Protocol):
    """A worker, as it is seen here: what follows one plan."""

    @property
    def plan(self) -> Plan: ...

    replicas: dict[int, StageReplica]
    connections: Connections

    def check_next(self, plan: Plan, memory_bytes: Sequence[float] | None) -> None:
        """Raise InputError if this job cannot switch to a plan, whose places need so many bytes, if known."""
        ...

    def connect_next(self, plan: Plan, opening: int) -> Connections:
        """Open the connections of the plan after this one. All ranks come here."""
        ...

    def next_worker(self, plan: Plan, connections: Connections) -> Self:
        """Build the worker of the plan after this one."""
        ...

    def compile_from(self, done: int) -> None:
        """Compile what is left to train after so many minibatches. Raises InputError if it would deadlock."""
        ...

    def let_go(self) -> None:
        """Let its stages and connections go: another worker has taken its place, or will not be needed."""
        ...


class State(Enum):
    """State of a replan, as rank 0 sees it."""

    PREPARING = "preparing"
    READY = "ready"  # on all ranks
    DONE = "done"  # the job already follows this plan
    REFUSED = "refused"


class Moment(NamedTuple):
    """A move that was made."""

    request: commands.Request
    minibatch: int  # the first under the new plan
    moved_bytes: int
    seconds: tuple[float, float, float]  # time.monotonic: when it began, when all had their layers, when it was made


class Replanning:
    """One rank's part in changes of the plan, as long as its process is in the job."""

    def __init__(self, run_dir: Path, worker: Follower, process: Process, *, opening: int = 0) -> None:
        """`opening`: the number of the connections that are open; later ones get those after it."""
        self._run_dir, self._process, self._opening = run_dir, process, opening
        self._worker = worker
        store = process.store
        if isinstance(store, KeyedStore):  # of several hosts: what is said waits for nobody who is to be connected
            store = store.again()
        self._store = store
        self._ballot = _open(run_dir, process, store, name=f"ballot-{opening}")
        self._announcement: Announcement | None = None
        self._number = 0  # of the proposal that this rank knows of
        self._request: commands.Request | None = None  # what the proposal is for
        self._thread: threading.Thread | None = None
        self._next: Follower | None = None
        self._problem = ""
        self._reasons: dict[str, str] = {}  # where this is the only rank; else the job's store has them
        self._same = False
        self._moved: list[int] = []  # the first minibatch after each move that was made

    @property
    def _leads(self) -> bool:
        """Return whether this rank proposes: the lowest of the plan's, called rank 0 here as most plans use it."""
        return self._process.rank == min(self._worker.plan.ranks)

    # --- while the old plan trains -----------------------------------------------------------------------------------

    def look(self, announcement: Announcement) -> None:
        """See what rank 0 proposes, and begin with it. It takes less than a microsecond if there is nothing new."""
        number = self._ballot.proposed
        if number == self._number:
            if self._next is not None and not self._ballot.stands(number):
                self._drop()
            return
        if self._thread is not None and self._thread.is_alive():
            return  # it still lets go of the one before
        self._drop()
        self._number, self._announcement = number, announcement
        if self._ballot.stands(number):
            self._begin(None)
        else:
            self._ballot.answer(self._process.rank, number, Answer.FAILED)

    def advance(self, request: commands.Request, announcement: Announcement) -> tuple[State, str]:
        """Go on with what the run is asked for, on rank 0; return how it stands, and why where it is refused."""
        assert request.plan is not None
        if self._request is None or self._request.plan != request.plan:
            self._withdraw()
            if not self._settled():
                return State.PREPARING, ""
            self._drop()
            self._number, self._request, self._announcement = self._number + 1, request, announcement
            self._begin(request.plan)
        answers = self._ballot.answers(self._number)
        if Answer.FAILED in answers:
            reason = self._reason(answers.index(Answer.FAILED))
            state = State.DONE if self._same else State.REFUSED
            self.forget()
            return state, reason
        return (State.READY, "") if set(answers) == {Answer.READY} else (State.PREPARING, "")

    def forget(self) -> None:
        """Be done with the request, whatever became of it, or if there is none any more; on rank 0."""
        self._withdraw()
        if self._request and self._request.plan:
            commands.forget(self._run_dir, self._request.plan)
        self._request = None

    def tell_cost(self, row: Mapping[str, Any]) -> None:
        """Say what the last move cost to a rank of another host, which may be the one that sums up the run."""
        if self._process.hosts:
            self._say(f"cost-{row['minibatch']}", json.dumps(row))

    def told_costs(self) -> list[dict[str, Any]]:
        """Return known costs of moves, including those in metrics on other hosts."""
        if not self._process.hosts:
            return []
        assert self._store is not None
        keys = [f"cost-{minibatch}" for minibatch in self._moved]
        return [json.loads(self._heard(key)) for key in keys if self._store.check([f"{self._prefix}{key}"])]

    def close(self) -> None:
        """Let go of what was prepared, at the end of the run; a request that comes too late is refused."""
        if self._leads:
            found = commands.request(self._run_dir)
            if found and found.plan:
                commands.refuse(self._run_dir, "the run came to its end first", plan=found.plan)
                commands.forget(self._run_dir, found.plan)
        self._withdraw()
        self._number += 1  # the thread sees that it is not wanted
        if self._thread is not None:
            self._thread.join(_TO_END)
        if self._next is not None:
            self._next.let_go()
        self._ballot.close()

    def _settled(self) -> bool:
        """Return whether every rank has let go of what was proposed before."""
        number = self._number
        if self._thread is not None and self._thread.is_alive():
            return False
        return self._ballot.proposed < number or set(self._ballot.answers(number)) <= {Answer.FAILED} or number == 0

    def _withdraw(self) -> None:
        if self._leads and self._number and self._ballot.stands(self._number):
            self._ballot.withdraw(self._number)
        if self._leads and self._next is not None:
            self._drop()

    def _drop(self) -> None:
        """Let go of what was made, and say so."""
        found, self._next = self._next, None
        if found is not None:
            found.let_go()
        if self._number:
            self._ballot.answer(self._process.rank, self._number, Answer.FAILED)

    def _begin(self, token: str | None) -> None:
        self._problem, self._same = "", False
        arguments = (self._number, token)
        self._thread = threading.Thread(target=self._prepare, args=arguments, name="replanning", daemon=True)
        self._thread.start()

    def _prepare(self, number: int, token: str | None) -> None:
        """Make all that can be made before; what goes wrong is said, and changes nothing."""
        rank, made = self._process.rank, None
        try:
            plan = self._told(number) if token is None else self._propose(number, token)
            if token is None:
                self._check(plan)
            self._ballot.answer(rank, number, Answer.CHECKED)
            if not self._wait_for_all(number):
                raise InputError("replan.rank_refuses", "another rank cannot switch to this plan")
            if self._process.device.type == "cuda":
                torch.cuda.set_device(self._process.device)  # of this thread
            connections = self._worker.connect_next(plan, self._opening + number)
            try:
                with SHARED_GENERATORS:  # layers that draw from torch's own generator train meanwhile
                    made = self._worker.next_worker(plan, connections)
            except BaseException:
                connections.release()
                raise
            self._next = made
            self._ballot.answer(rank, number, Answer.READY)
            self._compile(number, made)
        except BaseException as error:
            self._problem = str(described(error, run_dir=self._run_dir, rank=rank, stage=None)["message"])
            self._say(f"reason-{number}-{rank}", self._problem)
            if made is None:
                self._ballot.answer(rank, number, Answer.FAILED)

    def _propose(self, number: int, token: str) -> Plan:
        """Read the plan that is asked for, and propose it to the other ranks: all have the same one, whatever becomes
        of the file.
        """
        plan = commands.read(self._run_dir, token)
        if plan == self._worker.plan:
            self._same = True
            raise InputError("replan.same_plan", "the run already follows this plan")
        self._check(plan)
        self._say(f"plan-{number}", json.dumps({"plan": plan.to_json(), "request": self._request}))
        self._ballot.propose(number)
        return plan

    def _check(self, plan: Plan) -> None:
        assert self._request is not None
        self._worker.check_next(plan, self._request.memory_bytes)

    def _told(self, number: int) -> Plan:
        """Return what rank 0 proposes."""
        found = json.loads(self._heard(f"plan-{number}"))
        self._request = commands.Request(*found["request"])
        return Plan.from_json(found["plan"])

    def _wait_for_all(self, number: int) -> bool:
        """Wait until every rank has checked the plan. Returns whether it can be done on all of them."""
        deadline = time.monotonic() + self._process.timeout
        while self._ballot.stands(number) and self._number == number and time.monotonic() < deadline:
            answers = self._ballot.answers(number)
            if Answer.FAILED in answers:
                return False
            if Answer.NONE not in answers:
                return True
            time.sleep(_LOOK_SECONDS)
        return False

    def _compile(self, number: int, made: Follower) -> None:
        """Once it is announced when it is done, compile what is left from there on."""
        assert self._announcement is not None
        while self._ballot.stands(number) and self._number == number:
            if found := self._announcement.read():
                if commands.COMMANDS[found.command] == commands.REPLAN:
                    made.compile_from(found.minibatch)
                return
            time.sleep(_LOOK_SECONDS)

    # --- between two minibatches, all ranks together -----------------------------------------------------------------

    def carry_out(self, done: int) -> tuple[Follower, Moment] | None:
        """Give the layers to the worker of the new plan, and make that the job's. Every rank comes here, drained.

        Returns the worker, who continues after `done` minibatches; None if the old plan continues, since a rank could
        not. Raises DeadlinePassed or PeerLost.
        """
        began = time.monotonic()
        before, after = self._worker, self._next
        if self._thread is not None:
            self._thread.join(self._process.timeout)
        if after is None:
            self._problem = self._problem or "it was not prepared"
        if self._agreed():
            assert after is not None
            give = HandOver(self._process, before=before.plan, after=after.plan, own=before.replicas)
            self._try(give.transfer.make_room)
            if self._agreed():
                self._try(lambda: give.finish(after.replicas))
                if self._agreed():
                    given = time.monotonic()
                    if self._leads:
                        self._try(lambda: self._write(after.plan, done))
                    if self._agreed():
                        request = self._committed(after, done)
                        times = (began, given, time.monotonic())
                        return after, Moment(request, done, give.transfer.moved_bytes, times)
        self._refuse()
        return None

    def _write(self, plan: Plan, done: int) -> None:
        """Make a plan the job's, which stays one of as many processes."""
        if len(plan.ranks) < self._process.world_size:
            keep_processes(self._run_dir, self._process.world_size)
        begin_plan(self._run_dir, plan, done)

    def _committed(self, after: Follower, done: int) -> commands.Request:
        """Be under the new plan. Returns what was asked for."""
        request = self._request
        assert request is not None, "a rank that has something prepared knows what for"
        self._worker.let_go()
        self._next = self._thread = None
        if self._leads:  # under the old plan
            commands.take(self._run_dir, commands.REPLAN, done, plan=request.plan)
            self.forget()
        self._worker, self._request = after, None
        self._moved.append(done)
        self._ballot.answer(self._process.rank, self._number, Answer.FAILED)  # nothing is kept of it
        return request

    def _refuse(self) -> None:
        """Let the old plan continue, and say why."""
        if self._leads and self._request is not None:
            commands.refuse(self._run_dir, self._problem, plan=self._request.plan)
            self.forget()
        self._drop()

    def _try(self, work: Callable[[], object]) -> None:
        """Do this rank's part. What goes wrong here ends nothing; a lost rank does."""
        try:
            work()
        except (DeadlinePassed, PeerLost):
            raise
        except Exception as error:  # whatever it is, the old plan goes on
            told = described(error, run_dir=self._run_dir, rank=self._process.rank, stage=None)
            self._problem = str(told["message"])

    def _agreed(self) -> bool:
        """Return whether no rank has met a problem. Every rank comes here, and learns of the first that has."""
        process = self._process
        failed = torch.zeros(process.world_size)
        if self._problem:
            self._say(f"reason-{self._number}-{process.rank}", self._problem)
            failed[process.rank] = 1.0
        found = process.sum(failed, what="a change of the plan")
        if not found.any():
            return True
        self._problem = self._reason(int(found.argmax()))
        return False

    # --- what ranks tell each other ----------------------------------------------------------------------------------

    def _reason(self, rank: int) -> str:
        told = self._heard(f"reason-{self._number}-{rank}")
        return told if rank == self._process.rank or self._process.world_size == 1 else f"rank {rank}: {told}"

    @property
    def _prefix(self) -> str:
        return f"replan-{self._opening}/"

    def _say(self, key: str, value: str) -> None:
        if self._store is None:
            self._reasons[key] = value
        else:
            self._store.set(f"{self._prefix}{key}", value)

    def _heard(self, key: str) -> str:
        if self._store is None:
            return self._reasons[key]
        return self._store.get(f"{self._prefix}{key}").decode()


def _open(run_dir: Path, process: Process, store: Any, *, name: str) -> Ballot:
    path = run_dir / "logs" / ".ballot" if process.world_size > 1 else None
    if path is not None and process.hosts:
        return SpreadBallot(path, process, store, name=name)
    return Ballot(path, process.world_size, blank=process.rank == 0)


@dataclass(frozen=True)
class Pause:
    """Cost of a plan change: the gap between two updates that it made, part by part.

    last minibatch under the old plan  ─ drain ─ transfer ─ reconnect ─ fill ─►  first update under the new one

    drain      until all ranks have met, each with an empty pipeline
    transfer   until every rank has its layers
    reconnect  until the plan is written down and the old connections are closed (the new ones were open before)
    fill       until the new pipeline has made its first update

    The pause is the time from that last minibatch to that first update, less the usual time from one update to the
    next: 0 if the update came no later than usual. What is usual is taken out of the fill and, if that was shorter, out
    of the part before it, and so on: no part is below 0, and they add up to the pause.
    """

    moment: Moment
    since: float  # when the last minibatch before it was done in the last stage, in the run's seconds
    usual: float  # seconds from one update of the last stage to the next, under the plan before
    ahead: float  # by how many seconds this process's clock is ahead of the run's

    def row(self, now: float) -> dict[str, Any]:
        """Return the row for the run's metrics when the first update is made: parts add up to the pause."""
        began, given, made = (told - self.ahead for told in self.moment.seconds)
        ends = (self.since, began, given, made, now)
        names = ("drain", "transfer", "reconnect", "fill")
        parts, usual = dict.fromkeys(names, 0.0), self.usual
        for name, start, end in reversed(list(zip(names, ends[:-1], ends[1:], strict=True))):
            lasted = max(0.0, end - start)  # clocks of two processes differ by some microseconds
            parts[name] = round(max(0.0, lasted - usual), 6)
            usual = max(0.0, usual - lasted)
        request = self.moment.request
        return {
            "minibatch": self.moment.minibatch,
            "pause_seconds": round(sum(parts.values()), 6),
            "moved_bytes": self.moment.moved_bytes,
            "reason": request.reason,
            "predicted_gain_seconds": request.predicted_gain_seconds,  # null where whoever asked did not say
            "usual_seconds": round(self.usual, 6),
            "parts": parts,
        }


def last_end(table: Tensor) -> float:
    """Return when the last minibatch of a part was done in the last stage: see EpochExecutor.table."""
    return float(table[:, 0].max())


def usual_gap(table: Tensor, round_minibatches: int) -> float:
    """Return the median time from one update of the last stage to the next; 0 if a part has one update."""
    ends = table[:, 0][round_minibatches - 1 :: round_minibatches].sort().values
    return float(median((ends[1:] - ends[:-1]).tolist())) if len(ends) > 1 else 0.0
