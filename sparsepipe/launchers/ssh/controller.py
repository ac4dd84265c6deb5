"""The ssh launcher's own process, on the launching host: it has an agent on each host, and brings all together.

`python -m sparsepipe.launchers.ssh --run-dir DIR [--resume]`, under the supervisor, as the local launcher is:

    supervisor ── controller ─┬─ ssh host1 ── agent ── workers 0, 1        the run's record is here, and is written
                              └─ ssh host2 ── agent ── workers 2, 3        from what the agents say

It ends with the supervisor; with its `ssh` processes end the agents, and with them what they started.
"""

import argparse
import queue
import secrets
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...cluster import Cluster
from ...errors import InputError
from ...host.limits import limit_met
from ...plan import Plan
from ...record import RunRecord
from ...runtime import commands
from ...runtime.processes.lifeline import watch
from ...runtime.training_state.partial_checkpoints import remove_partial
from ..failure_cause import KILLED, FailureCause, clear
from ..supervisor import tell_status
from .connection import Connection, Event
from .facts import check_alike, facts_here
from .placement import HOSTS, HostedRanks, hosted_ranks
from .run_files import RunFiles

_TO_CONNECT = 60.0  # seconds for an agent to say who it is: Python's start on a busy host
_TO_AGREE = 3.0  # seconds after a failure for the other hosts to say what they met
_TO_STOP = 30.0
_SILENCE = 5.0, 60.0  # within which the run's own timeout is how long an agent waits for a word
_MOST_EVENTS = 256  # not taken up yet: a host that says more waits
_LOOK_SECONDS = 0.1
_SECRET_BYTES = 32
_FAILED = FailureCause("it ended without a word; see logs/", None, None, precedence=5)


class Controller:
    """Runs a plan on its hosts, to the end."""

    def __init__(self, record: RunRecord, plan: Plan, hosts: Sequence[HostedRanks], *, resume: bool) -> None:
        self.record, self.plan, self.hosts, self.resume = record, plan, hosts, resume
        self._events: queue.Queue[Event] = queue.Queue(_MOST_EVENTS)
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._store: dict[str, Any] = {}
        self._ended: dict[int, Mapping[str, Any]] = {}
        self._stopped: set[int] = set()
        self._asked = False
        self._silence = min(max(float(record.config["timeout_seconds"]), _SILENCE[0]), _SILENCE[1])
        self.connections: list[Connection] = []
        self.files = RunFiles(record, self.connections)

    def run(self) -> FailureCause | None:
        """Connect, start the workers, and wait for their end, again where that helps. Returns why it failed."""
        try:
            for number, hosted in enumerate(self.hosts):
                self.connections.append(Connection(number, hosted, self._events))
            self._greet()
            attempt, allowed = 0, int(self.record.config["max_restarts"])
            while True:
                cause = self._attempt(attempt)
                if cause is None or cause.lasting or attempt == allowed or not all(c.alive for c in self.connections):
                    return cause
                print(f"{cause.reason}; starting again from the last checkpoint", file=sys.stderr, flush=True)
                self._stop_all()
                attempt += 1
                clear(self.record.folder, attempt)
        except _Lost as lost:
            return lost.cause
        finally:
            for connection in self.connections:
                connection.end()

    # --- the beginning -----------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        """Have every host say who it is, and refuse hosts that cannot work together. Raises InputError or _Lost."""
        for connection in self.connections:
            connection.send("open", address=connection.hosted.node.address, silence=self._silence)
        here, hellos = facts_here(), self._await("hello", range(len(self.connections)), seconds=_TO_CONNECT)
        names: dict[str, str] = {}
        for number, hello in sorted(hellos.items()):
            connection = self.connections[number]
            connection.folder = str(hello["folder"])
            check_alike(connection.hosted.named, hello["facts"], here)
            own = str(hello["facts"].get("hostname"))
            if own in names:
                raise InputError(
                    f"{names[own]} and {connection.hosted.named} are both called {own!r} by themselves: are they one "
                    "host? Give hosts different names"
                )
            names[own] = connection.hosted.named
        self.connections[0].send("store", secret=self._secret.hex())
        told = self._await("store", [0], seconds=_TO_CONNECT)[0]
        self._store = {"host": told["host"], "port": told["port"], "secret": self._secret.hex()}

    def _await(self, kind: str, hosts: Sequence[int], *, seconds: float) -> dict[int, dict[str, Any]]:
        """Return what each of the hosts says of one kind. Raises _Lost for one that does not."""
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
                hosted = self.hosts[min(missing)]
                raise _Lost(f"{hosted.named}: said nothing for {seconds:g} s; is it overloaded?")
        return found

    # --- an attempt --------------------------------------------------------------------------------------------------

    def _attempt(self, attempt: int) -> FailureCause | None:
        """Start the workers of all hosts and wait for their end. Returns why they failed."""
        resume = self.resume or attempt > 0
        self._ended.clear()
        for connection in self.connections:
            with suppress(OSError):
                if attempt:
                    self.files.bring_checkpoint(connection, self.plan)
                else:
                    self.files.bring(connection, self.plan, resume=resume)
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
        except _Lost as lost:
            self._drain(_TO_AGREE)
            return min([lost.cause, *self._causes()], key=_precedence)
        return min(self._causes(), key=_precedence, default=None)

    def _job(self, number: int, attempt: int, *, resume: bool) -> dict[str, Any]:
        return {
            "host": number,
            "hosts": [hosted.ranks for hosted in self.hosts],
            "store": self._store,
            "writer": self.plan.stages[-1].ranks[0],
            "attempt": attempt,
            "record": str(self.record.folder),
            "resume": resume,
        }

    def _causes(self) -> list[FailureCause]:
        """Why the hosts' workers failed, of those that did."""
        found = []
        for number, status in self._ended.items():
            if status["state"] not in ("finished", "stopped"):
                names = ("rank", "stage", "exit_code", "lasting", "precedence")
                facts = {name: status[name] for name in names if name in status}
                reason = f"{self.hosts[number].node.name}: {status.get('reason', status['state'])}"
                found.append(FailureCause(reason, **{"rank": None, "stage": None, **facts}))
        return found

    def _stop_all(self) -> None:
        """Have every host end its workers, before they are started again."""
        for connection in self.connections:
            connection.send("stop")
        self._await("stopped", range(len(self.connections)), seconds=_TO_STOP)
        self._asked = False

    def _drain(self, seconds: float) -> None:
        """Hear what the hosts that are left say of a failure."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self._ended) < sum(c.alive for c in self.connections):
            with suppress(_Lost):
                self._take(self._next())

    # --- events ------------------------------------------------------------------------------------------------------

    def _next(self) -> Event | None:
        """Return what comes next, None after a moment."""
        with suppress(queue.Empty):
            return self._events.get(timeout=_LOOK_SECONDS)
        return None

    def _take(self, event: Event | None) -> None:
        """Take up what a host says. Raises _Lost where its connection has ended, and InputError for what it refuses."""
        if event is None:
            return
        connection, frame = self.connections[event.host], event.frame
        if frame is None:
            if connection.alive:
                connection.alive = False
                ranks = ", ".join(map(str, connection.hosted.ranks))
                raise _Lost(f"{connection.why_it_ended()} (it has rank {ranks})")
        elif frame.kind in ("grown", "shard", "gone"):
            self.files.take(event.host, frame)
        elif frame.kind == "status":
            self._ended[event.host] = dict(frame.head["status"])
        elif frame.kind == "refused":
            reason = f"{connection.hosted.named}: {frame.head['reason']}"
            if frame.head.get("input_error"):
                raise InputError(reason)
            raise _Lost(reason)

    def _forward_request(self) -> None:
        """Hand on what the run is asked for to the host of rank 0; what hosts cannot do is refused."""
        request = None if self._asked else commands.request(self.record.folder)
        if request is None:
            return
        if request.command == commands.STOP:
            self._asked = True
            self.connections[0].send("ask", command=request.command)
        else:
            told = "a job on several hosts keeps its plan; stop the run, and resume it under another"
            commands.refuse(self.record.folder, told, plan=request.plan)


class _Lost(Exception):
    """A host that cannot be worked with any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.cause = FailureCause(reason, None, None, precedence=KILLED)


def _precedence(cause: FailureCause) -> int:
    return cause.precedence


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.ssh", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args(options)
    watch()
    folder: Path = arguments.run_dir
    try:
        cause = _launch(folder, resume=arguments.resume)
    except InputError as error:
        cause = FailureCause(str(error), None, None, exit_code=2)
    except Exception as error:
        traceback.print_exc()
        what = limit_met(error, where=folder) or f"{type(error).__name__}: {error}"
        cause = FailureCause(f"the launcher: {what}; its log is logs/launcher.log", None, None)
    return _finish(folder, cause)


def _launch(folder: Path, *, resume: bool) -> FailureCause | None:
    record = RunRecord.load(folder)
    clear(folder, 0)
    plan = record.plan
    assert isinstance(plan, Plan), "looked at before it was launched"
    return Controller(record, plan, hosted_ranks(plan, Cluster.load(folder / HOSTS)), resume=resume).run()


def _finish(folder: Path, cause: FailureCause | None) -> int:
    """Write the final status; return the exit code."""
    remove_partial(folder)
    if cause is not None:
        print(cause.reason, file=sys.stderr, flush=True)
        tell_status(folder, state="failed", **cause.to_json())
        return cause.exit_code
    found = commands.taken(folder)
    commands.drop_request(folder)
    if found is None:
        tell_status(folder, state="finished")
    else:
        after = f"stopped after {found[1]} minibatches, as asked; resume it to go on"
        tell_status(folder, state="stopped", reason=after)
    return 0
