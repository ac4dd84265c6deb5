"""One set of hosts at work on a run: an agent on each, from their greeting to the end of their connections."""

import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import went_back
from ...runtime.processes import rank_readings
from ...runtime.wire.encryption import CERTIFICATE, new_certificate
from ...runtime.wire.handshake import new_secret
from ...values.plan import Plan
from ..failure_cause import KILLED, FailureCause
from .connection import Connection, Event, Reach
from .facts import check_alike, facts_here
from .launch_ssh import HostedPipeline, HostedRanks, own_prefix
from .rows import HostRequests, RowsOfHosts
from .run_files import RunFiles

TO_CONNECT = 60.0  # seconds for an agent to say who it is: Python's start on a busy host
_TO_AGREE = 3.0  # seconds after a failure for the other hosts to say what they met
TO_STOP = 30.0
_SILENCE = 5.0, 60.0  # within which the run's own timeout is how long an agent waits for a word
_MOST_EVENTS = 256  # not taken up yet: a host that says more waits
_LOOK_SECONDS = 0.1


class HostUnreached(InputError):
    """A host that `ssh` does not get to, or that has no Python of ours: the cluster's file or ssh's own is at fault."""


class HostLost(Exception):
    """A host that cannot be worked with any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.cause = FailureCause(reason, None, None, precedence=KILLED)


class Session:
    """The hosts of a plan, each with its agent. Within `with`; at its end, so is all that was started on them."""

    def __init__(
        self,
        record: RunRecord,
        plan: Plan,
        hosts: Sequence[HostedRanks],
        *,
        resume: bool,
        reach: Reach,
        pipeline: HostedPipeline | None = None,
    ) -> None:
        """`pipeline`: which of several the plan is, if it is one."""
        self.record, self.hosts, self.resume, self._reach = record, hosts, resume, reach
        self.plan = plan  # the one that the run is under: another one, once the run was asked for that
        self.lost: set[int] = set()  # hosts that cannot be worked with any more
        self.limited: set[int] = set()  # hosts whose workers met a limit, such as a full disk
        self._events: queue.Queue[Event] = queue.Queue(_MOST_EVENTS)
        self._secret = new_secret()
        self._pipeline = pipeline
        self._certificate = _certificate(record, pipeline) if record.config.get("encrypt") else ""
        self._store: dict[str, Any] = {}
        self._addresses: dict[str, str] = {}  # in numbers, by the hosts' names
        self._ended: dict[int, Mapping[str, Any]] = {}
        number = pipeline.number if pipeline else None
        self._requests = HostRequests(record, sum(len(hosted.ranks) for hosted in hosts), own_prefix(number))
        self._silence, self._reads = silence(record.config), False
        self.connections: list[Connection] = []
        rows = RowsOfHosts(record.folder, several=len(hosts) > 1 and pipeline is None)
        self.files = RunFiles(record, self.connections, rows, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.end()

    # --- the beginning -----------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Have every host say who it is, and refuse hosts that cannot work together.

        Raises HostUnreached, InputError for hosts that are unlike, and HostLost.
        """
        for number, hosted in enumerate(self.hosts):
            self.connections.append(Connection(number, hosted, self._events, self._reach))
        for connection in self.connections:
            connection.send(
                "open",
                address=connection.hosted.node.address,
                silence=self._silence,
                alone=self._alone,
                certificate=self._certificate,
                pipeline=self.files.pipeline,
                data=self.record.config["data"] if self.files.needs_data else None,
            )
        here, hellos = facts_here(), self._await("hello", range(len(self.connections)), seconds=TO_CONNECT)
        names: dict[str, str] = {}
        for number, hello in sorted(hellos.items()):
            connection = self.connections[number]
            connection.folder = str(hello["folder"])
            connection.has_data = bool(hello["has_data"])
            check_alike(connection.hosted.named, hello["facts"], here)
            own = str(hello["facts"].get("hostname"))
            if own in names:
                raise InputError(
                    "host.name_twice",
                    f"{names[own]} and {connection.hosted.named} have the same host name {own!r}; list one host "
                    "once, or give hosts different names",
                )
            names[own] = connection.hosted.named
        self._addresses = {self.hosts[number].node.name: str(hello["address"]) for number, hello in hellos.items()}
        self.connections[0].send("store", secret=self._secret.hex())
        told = self._await("store", [0], seconds=TO_CONNECT)[0]
        self._store = {"host": told["host"], "port": told["port"], "secret": self._secret.hex()}

    @property
    def _alone(self) -> bool:
        """Return whether no other host has ranks of the run."""
        of_all = self._pipeline.of_all if self._pipeline else self.connections
        return len(of_all) == 1

    def _await(self, kind: str, hosts: Sequence[int], *, seconds: float) -> dict[int, dict[str, Any]]:
        """Return what each of the hosts says of one kind. Raises HostLost for one that does not."""
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + seconds
        while missing := set(hosts) - found.keys():
            event = self._next()
            if event is not None:
                if event.frame is not None and event.frame.kind == kind:
                    found[event.host] = event.frame.head
                else:
                    self._take(event)
            if time.monotonic() > deadline:
                raise self._losing(min(missing), f"no message for {seconds:g} s; check its load")
        return found

    # --- an attempt --------------------------------------------------------------------------------------------------

    def attempt(self, attempt: int, *, first: bool) -> FailureCause | None:
        """Start the workers of all hosts and wait for their end. Returns why they failed; see `lost` then.

        `attempt` counts all starts of the run's workers; `first`: it is that of this session.
        """
        resume = self.resume or attempt > 0
        self._ended.clear()
        self.files.begin()
        self._requests.forget()
        if resume and not self._pipeline:  # of which nothing is done again while others are at work
            self._go_back()
        for connection in self.connections:
            with suppress(OSError):
                self.files.bring(connection, self.plan, resume=resume, first=first)
        for number, connection in enumerate(self.connections):
            connection.send("start", job=self._job(number, attempt, resume=resume))
        failed_at: float | None = None
        try:
            while len(self._ended) < len(self.connections):
                self._take(self._next())
                self._forward_request()
                if failed_at is None and any(status["state"] == "failed" for status in self._ended.values()):
                    failed_at = time.monotonic()
                if failed_at is not None and time.monotonic() > failed_at + _TO_AGREE:
                    break
        except HostLost as lost:
            self._drain(_TO_AGREE)
            return min([lost.cause, *self._causes()], key=_precedence)
        return min(self._causes(), key=_precedence, default=None)

    def stop_all(self) -> None:
        """Have every host end its workers, before they are started again. Raises HostLost for one that does not."""
        for connection in self.connections:
            connection.send("stop")
        self._await("stopped", range(len(self.connections)), seconds=TO_STOP)

    def _go_back(self) -> None:
        """Note where the run continues, which may be before the newest plan began."""
        from ...runtime.training_state import checkpoint  # it brings torch, for which no new run waits

        found = checkpoint.latest(self.record.folder)
        went_back(self.record.folder, found.minibatches if found else 0)

    def _forward_request(self) -> None:
        """Hand on what the run is asked for, and to one of several pipelines how all are cut now."""
        if not self._reads and rank_readings.are_asked_for(self.record.folder):
            self._reads = True
            for connection in self.connections:
                connection.send("read")
        with suppress(OSError):  # the end of a connection is an event of its own
            self._requests.forward(self.connections[self._host_of(min(self.plan.ranks))])
            self.files.bring_plan_of_all()

    def _host_of(self, rank: int) -> int:
        return next(number for number, hosted in enumerate(self.hosts) if rank in hosted.ranks)

    def _job(self, number: int, attempt: int, *, resume: bool) -> dict[str, Any]:
        return {
            "host": number,
            "hosts": [hosted.ranks for hosted in self.hosts],
            "store": self._store,
            "addresses": self._addresses,
            "writer": self.plan.stages[-1].ranks[0],
            "attempt": attempt,
            "record": str(self.record.folder),
            "resume": resume,
            "pipeline": self._among_pipelines(self.hosts[number].node.name) if self._pipeline else None,
        }

    def _among_pipelines(self, host: str) -> dict[str, Any]:
        own = self._pipeline
        assert own is not None
        told = {"before": own.before.get(host, 0), "of_all": own.of_all[host]}
        return {"number": own.number, "ranks": own.ranks, **told}

    def _causes(self) -> list[FailureCause]:
        """Return the failure causes of the hosts whose workers failed."""
        found = []
        for number, status in self._ended.items():
            if status["state"] not in ("finished", "stopped"):
                names = ("rank", "stage", "exit_code", "lasting", "precedence", "limit", "code")
                facts = {name: status[name] for name in names if name in status}
                reason = f"{self.hosts[number].node.name}: {status.get('reason', status['state'])}"
                if status.get("limit"):
                    self.limited.add(number)
                found.append(FailureCause(reason, **{"rank": None, "stage": None, **facts}))
        return found

    def _drain(self, seconds: float) -> None:
        """Hear what the hosts that are left say of a failure."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self._ended) < sum(c.alive for c in self.connections):
            with suppress(HostLost):
                self._take(self._next())

    # --- events ------------------------------------------------------------------------------------------------------

    def _next(self) -> Event | None:
        """Return what comes next, None after a moment."""
        with suppress(queue.Empty):
            return self._events.get(timeout=_LOOK_SECONDS)
        return None

    def _take(self, event: Event | None) -> None:
        """Take up what a host says. Raises HostLost or HostUnreached if its connection has ended, and InputError for
        what it refuses.
        """
        if event is None:
            return
        connection, frame = self.connections[event.host], event.frame
        if frame is None:
            if connection.alive:
                connection.alive = False
                self._ended_early(event.host, connection)
        elif frame.kind == "grown" and self._requests.is_answer(str(frame.head.get("name"))):
            self.plan = self._requests.take(str(frame.head["name"]), frame.payload) or self.plan
        elif frame.kind in ("grown", "rows", "shard", "gone"):
            self.files.take(event.host, frame)
        elif frame.kind == "status":
            self._ended[event.host] = dict(frame.head["status"])
        elif frame.kind == "refused":
            if frame.head.get("input_error"):
                raise InputError(
                    str(frame.head.get("code", "host.refused")), f"{connection.hosted.named}: {frame.head['reason']}"
                )
            raise self._losing(event.host, str(frame.head["reason"]))

    def _ended_early(self, host: int, connection: Connection) -> None:
        """Raise HostLost for a connection that has ended, HostUnreached where it had not begun."""
        self.lost.add(host)
        if not connection.folder:
            raise HostUnreached("host.did_not_begin", connection.why_it_did_not_begin())
        own, of_all = connection.hosted.ranks, self._pipeline.ranks if self._pipeline else None
        ranks = ", ".join(str(of_all[rank] if of_all else rank) for rank in own)
        raise HostLost(f"{connection.why_it_ended()} (it has rank {ranks})")

    def _losing(self, host: int, reason: str) -> HostLost:
        self.lost.add(host)
        return HostLost(f"{self.connections[host].hosted.named}: {reason}")


def silence(config: Mapping[str, Any]) -> float:
    """Return the seconds without a word after which an agent takes its controller for lost."""
    return min(max(float(config["timeout_seconds"]), _SILENCE[0]), _SILENCE[1])


def _certificate(record: RunRecord, pipeline: HostedPipeline | None) -> str:
    """Return a new certificate, or that of all pipelines, which their parent has made."""
    return (record.folder.parents[1] / CERTIFICATE).read_text() if pipeline else new_certificate()


def _precedence(cause: FailureCause) -> int:
    return cause.precedence
