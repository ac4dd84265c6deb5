"""The state of a run of several pipelines: a value that changes by what ranks ask, without clock, files or sockets.

    ask(request, now) ──► answer, or WAIT: nothing to answer yet; ask again after the next change
                      └─► version + 1 or more where something changed, and rows for the run's record

The same requests at the same times make the same state: a coordinator that takes the place of one that was killed asks
them again, from the journal of those that changed something.

    members    each pipeline's attempt, ranks and list of tasks
    work       who trains what, who closes an epoch or the run
    merges     contributions, and what a rule makes of them
    changes what the record receives
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import InputError
from ...util.text.numbers import number_of
from ...values.replication.base import SERVER, Arithmetic, Merge, Rule
from .base import Holder, Kind, Task
from .member import METRICS, MINIBATCHES, REPLAN, Changes, Member, Phase, Sums
from .merges import Merges
from .minibatch_queue import MinibatchQueue
from .work import WAIT, Wait, Work

START_SECONDS = 30.0  # that pipelines which are ready wait for the others at most, before the first minibatch


class GivenUp(RuntimeError):
    """Raised for a request of a pipeline's attempt that has ended."""


class Request(NamedTuple):
    """Request of a rank: the name of a call of `Coordinator`, and its arguments. `pipeline` SERVER: its server."""

    call: str
    pipeline: int
    rank: int
    attempt: int
    given: Mapping[str, Any]


@dataclass(frozen=True)
class RunOfPipelines:
    """Settings that a coordinator receives as it starts. `rule` None: pipelines share minibatches and nothing else."""

    num_pipelines: int
    rule: Rule | None = None
    seed: int = 0
    progress: Mapping[str, Any] | None = None  # what an earlier run left to do
    closed: tuple[int, ...] = ()  # epochs that it closed
    sums: Mapping[int, Sums] = field(default_factory=dict)  # of what it did of others
    pace: float = 0.0  # samples per second that it was recorded with; 0 where no record says
    replans: tuple[Mapping[str, Any], ...] = ()  # rows of changes of pipelines' plans in it
    scored: tuple[Mapping[str, object], ...] = ()  # epochs in it that were validated, with their scores


class RunState:
    """State of a run: participating pipelines, their minibatches, averaging groups, and owners of single tasks."""

    def __init__(self, run: RunOfPipelines) -> None:
        self.run, self.changes = run, Changes()
        self.members = [Member(k) for k in range(run.num_pipelines)]
        groups = run.rule.groups(run.num_pipelines, seed=run.seed) if run.rule else None
        self.merges = Merges(self.changes, groups, run.num_pipelines)
        self.work: Work | None = None  # until the first rank says how long the run is
        self._server: list[Holder] = []
        self._server_attempt = 0
        self._data: str | None = None  # the digest that the first rank gave
        self._summed_up = False  # a pipeline has closed the run, and told of it
        self._replans: list[Mapping[str, Any]] = [*run.replans]  # rows of changes of pipelines' plans
        self._started = False  # minibatches are handed out
        self._ready_since: float | None = None  # when the first pipeline asked for some

    def ask(self, request: Request, *, now: float) -> Any:
        """Answer a request of a rank. Times before the latest count as that.

        Raises GivenUp, InputError for data unlike others', and RuntimeError for what must not be asked.
        """
        self.changes.now = max(self.changes.now, now)
        if request.call not in self._calls:
            raise RuntimeError(f"there is no call {request.call}")
        if request.pipeline == SERVER:
            return self._ask_of_server(request)
        member = self._member(request.pipeline)
        if request.attempt > member.attempt:
            self._give_up(member)
            member.restart(request.attempt)
        if request.attempt < member.attempt or member.phase is Phase.GONE:
            if request.call == "leave":
                return None
            raise GivenUp(f"attempt {request.attempt} of pipeline {member.number} was given up: one of its ranks ended")
        return self._calls[request.call](member, request)

    def next_deadline(self) -> float | None:
        """Time at which `expire` is due; None: nothing waits for a timeout."""
        if self._ready_since is not None and not self._started:
            return self._ready_since + START_SECONDS  # nothing is averaged before
        return self.merges.next_deadline()

    def expire(self, *, now: float) -> None:
        """Decide what time has run out for, at `next_deadline`."""
        self.changes.now = max(self.changes.now, now)
        if not self._started and (deadline := self.next_deadline()) is not None and self.changes.now >= deadline:
            self._start()
        self.merges.expire()

    def stop(self, *, now: float) -> None:
        """Hand out no more: the run is to end early, as soon as what is held is done."""
        self.changes.now = max(self.changes.now, now)
        if self.work:
            self.work.stop()

    def through(self, pipeline: int) -> bool:
        """Return whether a pipeline has come to its end; a parameter server has none."""
        task = self.members[pipeline].current if 0 <= pipeline < len(self.members) else None
        return pipeline == SERVER or (task is not None and task.kind is Kind.END)

    # --- beginning, and who is there ---------------------------------------------------------------------------------

    def _begin(self, member: Member, request: Request) -> None:
        given = request.given
        epoch, total = given["epoch_minibatches"], given["total_minibatches"]
        if self.work is None:
            queue = MinibatchQueue(epoch, total, progress=self.run.progress)
            arithmetic = self.run.rule.arithmetic if self.run.rule else None
            closed, sums = self.run.closed, self.run.sums
            self.work = Work(self.changes, queue, self.merges, arithmetic=arithmetic, closed=closed, sums=sums)
            self.work.scored += self.run.scored
            self.changes.note()
        known = (self.work.queue.epoch_minibatches, self.work.queue.total_minibatches)
        if known != (epoch, total):
            raise InputError(
                "pipelines.minibatches_differ",
                f"pipeline {member.number} has {number_of(epoch, 'minibatch')} per epoch and {total} in total, but "
                f"others have {known[0]} and {known[1]}; give all the same data, batch size and epochs",
                number=member.number,
            )
        data = given.get("data", "")
        self._data = data if self._data is None else self._data
        if data != self._data:
            raise InputError(
                "pipelines.data_differ",
                f"pipeline {member.number} has other training data than earlier pipelines; copy the same data to all "
                "hosts, or name a manifest, which verifies them",
                number=member.number,
            )
        if not member.whole:
            member.whole, member.num_holders = given["whole"], given["num_holders"]
            self.changes.note()

    def _register(self, member: Member, request: Request) -> None:
        holder: Holder = request.given["holder"]
        if holder not in member.holders:
            member.holders.append(holder)
            self.changes.note()

    def _ask_of_server(self, request: Request) -> Any:
        if request.call == "holders":
            return self._holders(self.members[0], request)
        if request.call not in ("register", "leave"):
            raise RuntimeError(f"a parameter server asks for {request.call}")
        if request.attempt > self._server_attempt:
            self._server.clear()
            self._server_attempt = request.attempt
        if request.call == "register" and request.given["holder"] not in self._server:
            self._server.append(request.given["holder"])
            self.changes.note()
        return None

    def _holders(self, member: Member, request: Request) -> list[Holder]:
        asked = request.given["pipeline"]
        if asked == SERVER:
            return list(self._server)
        other = self._member(asked)
        there = other.phase is not Phase.GONE and not self.through(asked)
        return list(other.holders) if there and 0 < other.num_holders <= len(other.holders) else []

    def _live(self, member: Member, request: Request) -> list[int]:
        others = [m for m in self.members if m is not member and m.phase is Phase.LIVE]
        return [m.number for m in others if not self.through(m.number)]

    def _leave(self, member: Member, request: Request) -> None:
        self._give_up(member)

    def _give_up(self, member: Member) -> None:
        """Take back what a pipeline's attempt has, and give others what it was to do."""
        if member.phase is Phase.GONE:
            return
        member.phase = Phase.GONE
        member.holders.clear()
        member.die(now=self.changes.now)
        self.changes.row(MINIBATCHES, "left", pipeline=member.number, attempt=member.attempt)
        if self.work:
            self.work.give_up(member)
        self.merges.forget(member.number)
        self._decide_last()

    def _member(self, number: int) -> Member:
        if not 0 <= number < len(self.members):
            raise RuntimeError(f"there is no pipeline {number}, but 0 to {len(self.members) - 1}")
        return self.members[number]

    # --- tasks and minibatches ---------------------------------------------------------------------------------------

    def _next_task(self, member: Member, request: Request) -> Task | Wait:
        number: int = request.given["number"]
        if number < len(member.tasks):
            return member.tasks[number]
        if number > len(member.tasks) or not member.whole:
            first = "" if member.whole else ", before it said what is to be trained"
            raise RuntimeError(
                f"pipeline {member.number} asks for entry {number} of its list, which has {len(member.tasks)}{first}"
            )
        if member.phase is Phase.STARTING:
            member.phase = Phase.LIVE
            self.changes.row(MINIBATCHES, "joined", pipeline=member.number, attempt=member.attempt)
        if not self._may_start() or self._is_waited_for_at_its_end(member):
            return WAIT
        found = self._work.next_task(member)
        self._decide_last()  # who is past it is not waited for
        return found

    def _is_waited_for_at_its_end(self, member: Member) -> bool:
        """Return whether other ranks may still need what this pipeline holds for the run's last average.

        A rank asks for the next entry as soon as its own stage is done: its pipeline would be at its end, and who waits
        for an answer of another of its ranks would take it for gone and keep weights that no other pipeline has.
        """
        at_last = member.current is not None and member.current.kind is Kind.FINISH
        return at_last and self.merges.waits_for_last([one.num_holders for one in self.members])

    def _may_start(self) -> bool:
        """Return whether minibatches are handed out: all pipelines are ready, or one has been for `START_SECONDS`.

        Else the first to be there would train on most of a short run before the others had read their data, or before
        there was a parameter server to push to.
        """
        if not self._started:
            if self._ready_since is None:
                self._ready_since = self.changes.now
            ready = all(member.phase is not Phase.STARTING for member in self.members)
            if self._work.stopped or (ready and (self._server or not self._has_server)):
                self._start()
        return self._started

    @property
    def _has_server(self) -> bool:
        return self.run.rule is not None and self.run.rule.arithmetic is Arithmetic.SERVER

    def _start(self) -> None:
        self._started = True
        self.changes.note()

    def _take_minibatch(self, member: Member, request: Request) -> list[int] | Wait:
        return self._work.take_minibatch(member, request.given["task"], request.given["place"])

    def _end_task(self, member: Member, request: Request) -> None:
        self._work.end_task(member, request.given["task"])

    def _move(self, member: Member, request: Request) -> None:
        """Forget who holds the layers of a pipeline, and how long its units are: its ranks say both again."""
        member.holders.clear()
        member.whole = member.num_holders = 0
        self.changes.note()

    def _done(self, member: Member, request: Request) -> None:
        self._work.done(member, request.given["task"], request.given["place"], request.given["row"])

    def _measured(self, member: Member, request: Request) -> None:
        self._work.measure(member, request.given["task"], request.given["row"])

    def _closed(self, member: Member, request: Request) -> None:
        self._work.close_epoch(member, request.given["epoch"], request.given["row"])

    def _progress(self, member: Member, request: Request) -> dict[str, Any]:
        return {**self._work.queue.progress(), "closed": self._summed_up, "scored": list(self._work.scored)}

    @property
    def _work(self) -> Work:
        if self.work is None:
            raise RuntimeError("no rank has said what is to be trained")
        return self.work

    # --- averages ----------------------------------------------------------------------------------------------------

    def _contribute(self, member: Member, request: Request) -> int:
        update, samples = request.given["update"], request.given["samples"]
        return self.merges.contribute(member.number, update, rank=request.rank, samples=samples)

    def _pass_over(self, member: Member, request: Request) -> None:
        self.merges.pass_over(member.number, request.given["update"])

    def _contribution(self, member: Member, request: Request) -> int | None | Wait:
        known, number = self.merges.contribution(member.number, request.given["update"])
        return number if known else WAIT

    def _merge_of(self, member: Member, request: Request) -> Merge | Wait:
        return self.merges.merge_of(member.number, request.given["contribution"]) or WAIT

    def _merged(self, member: Member, request: Request) -> None:
        merge, facts = request.given["merge"], request.given["facts"]
        self.merges.merged(member.number, merge, rank=request.rank, facts=facts)

    def _last_merge(self, member: Member, request: Request) -> Merge | Wait:
        self.merges.come_to_last(member.number, request.given["update"])
        self._decide_last()
        return self.merges.last_of(member.number) if self.merges.last else WAIT

    def _decide_last(self) -> None:
        """Make the last merge where all have come to it, and everything of them can be asked for.

        With nothing left to train, as in a run that is resumed at its end, a rank is there before others of its
        pipeline hold their layers: who asked for those would take the pipeline for gone, others would wait for it.
        """
        live = [member for member in self.members if member.phase is Phase.LIVE and not member.finished]
        if all(len(member.holders) >= member.num_holders for member in live):
            self.merges.decide_last([member.number for member in live])

    # --- the summary -------------------------------------------------------------------------------------------------

    def _tell(self, member: Member, request: Request) -> None:
        event, row = request.given["event"], dict(request.given["row"])
        once = f"{event} {row.get('minibatch')}" if event == REPLAN else event
        if once in member.told:
            return
        member.told.add(once)
        if event == REPLAN:
            row |= {"pipeline": member.number}
            self._replans.append(row)
        if event == "summary":
            self._summed_up = True
            row |= {
                "minibatches": self._work.queue.num_done,
                "samples_per_second": self._work.tallies.pace or self.run.pace,
            }
            row |= self._work.measured.of_run()
            row |= {"replans": self._replans} if self._replans else {}
            row |= {"train": train} if (train := self._work.tallies.latest.get("train")) else {}
            if self.run.rule:
                found = self.replication
                row |= {"sum_of_paces": sum(one["samples_per_second"] for one in found["pipelines"])}
                row |= {"replication": found}
        self.changes.row(METRICS, event, **row)

    @property
    def replication(self) -> dict[str, Any]:
        """Summary of the averages so far, as in `sparsepipe train --json`."""
        return {
            "rule": self.run.rule.name if self.run.rule else None,
            "group_sizes": {str(size): count for size, count in sorted(self.merges.sizes.items())},
            "staleness": {str(updates): count for updates, count in sorted(self.merges.staleness.items())},
            "pipelines": [
                member.facts(waited=waited, for_others=for_others)
                for member, waited, for_others in zip(
                    self.members, self.merges.waited, self.merges.waited_for_others, strict=True
                )
            ],
        }

    @property  # the journal writes attributes down
    def _calls(self) -> Mapping[str, Callable[[Member, Request], Any]]:
        return {
            "begin": self._begin,
            "register": self._register,
            "holders": self._holders,
            "live": self._live,
            "leave": self._leave,
            "next_task": self._next_task,
            "take_minibatch": self._take_minibatch,
            "end_task": self._end_task,
            "move": self._move,
            "done": self._done,
            "measured": self._measured,
            "closed": self._closed,
            "tell": self._tell,
            "progress": self._progress,
            "contribute": self._contribute,
            "pass_over": self._pass_over,
            "contribution": self._contribution,
            "merge_of": self._merge_of,
            "merged": self._merged,
            "last_merge": self._last_merge,
        }
