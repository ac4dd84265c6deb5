"""The parent of several pipelines on hosts, however these are reached: a controller each, and their coordinator.

    supervisor ── parent ─┬─ host1 ── agent ── coordinator
                          ├─ controller of pipeline 0 ─── host1 ── agent ── workers
                          └─ controller of pipeline 1 ─┬─ host2 ── agent ── workers
                                                       └─ host3 ── agent ── workers

A controller is that of a plan of one pipeline (controller.py), in the pipeline's own folder of the record. If the
coordinator's host is lost and restarts are left, all begin again from the last checkpoint: with a coordinator on
another of their hosts or, as asked and if there is no other, on that one once it is back.

The coordinator of several pipelines on one of their hosts, as their parent has it, on the launching host.

parent ──ssh── agent ── coordinator      what it writes of the record comes here as it grows
"""

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol

from ...records import RunRecord
from ...runtime import commands
from ...runtime.pipelines.journal import RESUME
from ...runtime.processes.signs_of_life import watch
from ...runtime.training_state.checkpoint_folders import remove_partial
from ...runtime.wire.encryption import CERTIFICATE, new_certificate
from ...runtime.wire.messages import COORDINATOR, ListenerAddress
from ...util.host.imports import python_command, python_environment
from ...util.io.files import cut_torn_row, write_atomic
from ...values.plan import Plan
from ..local.coordination import LOG_FILES, Coordination, GoneAttempts, address_of, start
from ..pipelines_parent import Parent, awaiting
from ..resuming import go_on_from_checkpoint
from ..run_folders import tell_going_on
from ..supervisor import read_status
from .connection import Connection, Event, Reach
from .facts import check_alike, facts_here
from .hosted_run import HostedRun
from .launch_ssh import HostedRanks
from .pieces import send_content, send_file
from .rows import RowsOfHosts
from .run_files import RunFiles
from .session import TO_CONNECT, TO_STOP, HostLost, HostUnreached, silence

RECORD_FILES = (  # what is written here of the record
    *("metrics.jsonl", "minibatches.jsonl", "merges.jsonl", *LOG_FILES),
    *("logs/launcher.log", "control/taken.json", "control/refused.json"),
)
_MODULE = "sparsepipe.launching.ssh.hosted_parent"
_COORDINATOR_LOOK_SECONDS = 0.1
_TO_END = 25.0  # seconds for the coordinator to write its last rows


# The coordination of several pipelines on one of their hosts, as the agent there has it: a process under a supervisor
class HostedCoordinator:
    """The process, in the folder of a `HostedRun` that has the plan of all pipelines."""

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._gone = GoneAttempts(run.folder, encrypts=False)
        self._told = False

    def start(self, job: Mapping[str, Any], *, interface: str, address: str) -> None:
        """Start it, as the controller describes it, at `address`, which the network's `interface` has."""
        self._gone = GoneAttempts(self._run.folder, encrypts=bool(job["encrypts"]))
        options = ["--run-dir", str(self._run.folder), "--launch", str(job["launch"]), "--host", address]
        options += ["--seed", str(int(job["seed"])), "--timeout", str(float(job["timeout"]))]
        options += ["--encrypt"] if job["encrypts"] else []
        environment = python_environment(GLOO_SOCKET_IFNAME=interface, OMP_NUM_THREADS="1")
        self._run.begin(python_command(_MODULE, *options), environment, RECORD_FILES)

    def listens(self) -> dict[str, Any] | None:
        """Return where the coordinator listens and its secret, once: as soon as it does."""
        if self._told or (found := address_of(self._run.folder)) is None:
            return None
        self._told = True
        return {"host": found.host, "port": found.port, "secret": found.secret.hex()}

    def tell_gone(self, pipeline: int, attempt: int | None) -> None:
        """Tell the coordinator that an attempt of a pipeline, or it for good, has ended."""
        self._gone.add(pipeline, attempt)

    def look(self) -> None:
        """Tell it of what it has not heard of yet."""
        self._gone.tell()

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        with suppress(OSError, ValueError, KeyError):
            os.kill(int(read_status(self._run.folder)["launcher"]), signal.SIGTERM)
            self._run.wait(_TO_END)


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--launch", required=True, help="names this launch of the run")
    parser.add_argument("--host", required=True, help="the address to listen at")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--encrypt", action="store_true")
    arguments = parser.parse_args()
    watch()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    coordination = Coordination(
        arguments.run_dir,
        Plan.load(arguments.run_dir / "plan.json"),
        seed=arguments.seed,
        timeout=arguments.timeout,
        launch=arguments.launch,
        host=arguments.host,
        encrypts=arguments.encrypt,
    )
    while not ended.wait(_COORDINATOR_LOOK_SECONDS):
        coordination.look()
    coordination.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())


_CLOCK = Path("logs", "clock.json")
_LOOK_SECONDS = 0.05

_LOOK_AGAIN_SECONDS = 2.0  # for a host that is waited for


class PlaceOfAll(Protocol):
    """Placement of the ranks of all pipelines."""

    @property
    def controller(self) -> Sequence[str]:
        """The module that is a pipeline's controller, and the options of its own that it is started with."""
        ...

    @property
    def reach(self) -> Reach:
        """The way to the host of the coordinator."""
        ...

    def hosts(self) -> tuple[HostedRanks, ...]:
        """Return the hosts of all ranks as they are now; the coordinator is begun on the first."""
        ...

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """Return in a few words that hosts which were lost can be worked with again; None while they cannot."""
        ...


class Controllers:
    """Starts the controller of each pipeline."""

    def __init__(self, folder: Path, words: Sequence[str], *, resume: bool, begun: bool) -> None:
        """`words`: see `PlaceOfAll.controller`. `begun`: the run had begun before, on hosts that are waited for now."""
        self._folder, self._words = folder, words
        self._more = [*(["--resume"] if resume else []), *(["--begun"] if begun else [])]

    def start(self, k: int, *, first_attempt: int) -> Popen[bytes]:
        """Start that of pipeline `k`, whose workers count their attempts from `first_attempt`."""
        folder, (module, *own) = self._folder / "pipelines" / str(k), self._words
        options = [*own, "--run-dir", str(folder), "--pipeline", str(k), "--first-attempt", str(first_attempt)]
        options += self._more or (["--resume"] if first_attempt else [])
        return start(module, options, folder / "logs" / "launcher.log")


class HostedParent:
    """Runs all pipelines of a record, again where the host of their coordinator was lost and that is allowed."""

    def __init__(self, record: RunRecord, plan: Plan, place: PlaceOfAll, *, resume: bool) -> None:
        self.record, self.plan, self.place, self.resume = record, plan, place, resume
        self._waits = record.config.get("on_lost_host") == "wait"
        self._begun = False
        self._lost: set[str] = set()  # names of hosts that the coordinator is not begun on again

    def run(self) -> int:
        """Run all to the end, and write how they ended; return the exit code.

        Raises HostLost if the coordinator's host is lost, and InputError for hosts that cannot be worked with.
        """
        left = int(self.record.config["max_restarts"])
        hosted = self.place.hosts()[0]
        while True:
            try:
                return self._with_coordinator_on(hosted)
            except (HostLost, HostUnreached) as error:
                if not self._begun:
                    raise
                if not left or self._asked_to_stop:
                    raise HostLost(str(error)) from error
                left -= 1
                hosted = self._after(hosted, str(error))

    def _with_coordinator_on(self, hosted: HostedRanks) -> int:
        folder, alone = self.record.folder, len(self.place.hosts()) == 1
        controllers = Controllers(folder, self.place.controller, resume=self.resume, begun=self._begun)
        with HostedCoordination(self.record, hosted, reach=self.place.reach, alone=alone) as coordination:
            coordination.begin(f"{os.getpid()}-{time.time_ns()}", resume=self.resume)
            self._begun = True
            parent = Parent(self.record, self.plan, coordination, controllers)
            try:
                return parent.wait()
            finally:
                parent.kill()
                remove_partial(folder)

    @property
    def _asked_to_stop(self) -> bool:
        folder = self.record.folder
        return commands.requested(folder) == commands.STOP or commands.taken(folder) is not None

    def _after(self, lost: HostedRanks, reason: str) -> HostedRanks:
        """Make all ready to begin again after a host was lost; return the one for the coordinator.

        Raises HostLost if that host is waited for and the run is asked to stop meanwhile.
        """
        name, folder = lost.node.name, self.record.folder
        self._lost.add(name)
        others = [hosted for hosted in self.place.hosts() if hosted.node.name not in self._lost]
        if others and not self._waits:
            chosen = others[0]
        else:
            _say(f"{reason}; waiting for {name}, then continuing from the last checkpoint")
            with awaiting(folder, name, attempt=0):
                self._await_back(lost, reason)
            self._lost.discard(name)
            there = {hosted.node.name: hosted for hosted in self.place.hosts()}
            chosen = there.get(name) or next(iter(there.values()))
        told = (
            f"{reason}; all pipelines continue from the last checkpoint, with their coordinator on {chosen.node.name}"
        )
        _say(told)
        tell_going_on(folder, told)
        self.resume = True
        go_on_from_checkpoint(folder)
        for k in range(len(self.plan.pipelines)):
            own = folder / "pipelines" / str(k)
            if commands.requested(own) == commands.STOP:  # its parent's, as none was at work
                commands.drop_request(own)
        return chosen

    def _await_back(self, lost: HostedRanks, reason: str) -> None:
        while (told := self.place.back([lost])) is None:
            if self._asked_to_stop:
                raise HostLost(f"{reason}; it was waited for until the run was asked to stop")
            time.sleep(_LOOK_AGAIN_SECONDS)
        _say(told)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class HostedCoordination:
    """See `Coordinating`: within `with`, at whose end nothing is left of it.

    The coordinator's address is in the record's folder, for its owner alone to read, while it exists; of a run that
    encrypts, the certificate that all hosts have.
    """

    def __init__(self, record: RunRecord, hosted: HostedRanks, *, reach: Reach, alone: bool) -> None:
        """Raises InputError for a host that cannot be worked with. `alone`: no other host has ranks of the run."""
        self.record, self.hosted = record, hosted
        self._events: queue.Queue[Event] = queue.Queue()
        self._connection = Connection(0, hosted, self._events, reach)
        rows = RowsOfHosts(record.folder, several=False)  # none: it writes all of the metrics, which are sent as a file
        self._files = RunFiles(record, [self._connection], rows, allowed=RECORD_FILES)
        self._alone = alone
        self._asked = False

    def __enter__(self) -> "HostedCoordination":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.end()
        for name in (COORDINATOR, CERTIFICATE):
            (self.record.folder / name).unlink(missing_ok=True)

    def begin(self, launch: str, *, resume: bool) -> None:
        """Start the coordinator of a launch, and wait until it listens.

        Raises HostUnreached, InputError for a host that is unlike this one, and HostLost.
        """
        connection, config, folder = self._connection, self.record.config, self.record.folder
        certificate = new_certificate() if config.get("encrypt") else ""
        connection.send(
            "open",
            address=self.hosted.node.address,
            silence=silence(config),
            alone=self._alone,
            certificate=certificate,
        )
        hello = self._await("hello", TO_CONNECT)
        connection.folder = str(hello["folder"])
        check_alike(self.hosted.named, hello["facts"], facts_here())
        (folder / commands.FOLDER).mkdir(mode=0o700, exist_ok=True)
        if certificate:
            write_atomic(folder / CERTIFICATE, certificate, private=True)
        with suppress(OSError):  # it is gone: its end is an event of its own
            self._bring(resume=resume)
        job = {"launch": launch, "seed": config["seed"], "timeout": config["timeout_seconds"]}
        connection.send("coordinate", job={**job, "encrypts": bool(certificate)})
        found = self._await("coordinator", TO_CONNECT)
        host, port, secret = str(found["host"]), int(found["port"]), bytes.fromhex(found["secret"])
        ListenerAddress(host, port, secret, len(self.record.pipelines)).write(folder / COORDINATOR)

    def look(self) -> None:
        """Take up what it has written, and hand on what the run is asked for. Raises HostLost if it is gone."""
        while (event := self._next(0.0)) is not None:
            self._take(event)
        self._forward_request()

    def tell_gone(self, pipeline: int, attempt: int | None = None) -> None:
        self._connection.send("leave", pipeline=pipeline, attempt=attempt)

    def end(self) -> None:
        """End it, once its record is whole here. Raises HostLost if it is gone before."""
        self._connection.send("stop")
        self._await("stopped", TO_STOP)

    def _bring(self, *, resume: bool) -> None:
        connection, folder = self._connection, self.record.folder
        names = ["plan.json", str(RESUME)]
        for name in ("metrics.jsonl", "minibatches.jsonl", "merges.jsonl") if resume else ():
            cut_torn_row(folder / name)  # which may have come in part, of a host that was lost
            names.append(name)
        for name in names:
            if (folder / name).exists():
                send_file(connection.writer, folder / name, name)
        send_content(connection.writer, connection.clock_there(folder / _CLOCK), str(_CLOCK))

    def _await(self, kind: str, seconds: float) -> dict[str, Any]:
        """Return what the host says of one kind. Raises HostLost if it does not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            event = self._next(_LOOK_SECONDS)
            if event is not None and event.frame is not None and event.frame.kind == kind:
                return event.frame.head
            if event is not None:
                self._take(event)
        raise HostLost(f"{self.hosted.named}: no message for {seconds:g} s; check its load")

    def _next(self, seconds: float) -> Event | None:
        with suppress(queue.Empty):
            return self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        return None

    def _take(self, event: Event) -> None:
        frame, connection = event.frame, self._connection
        if frame is None:
            if not connection.folder:
                raise HostUnreached("host.did_not_begin", connection.why_it_did_not_begin())
            raise HostLost(f"{connection.why_it_ended()} (the coordinator of all pipelines is there)")
        if frame.kind == "grown":
            self._files.take(0, frame)
        elif frame.kind == "status":
            raise HostLost(f"{self.hosted.named}: the coordinator: {frame.head['status'].get('reason', 'it ended')}")
        elif frame.kind == "refused":
            if frame.head.get("input_error"):
                raise HostUnreached(
                    str(frame.head.get("code", "host.refused")), f"{self.hosted.named}: {frame.head['reason']}"
                )
            raise HostLost(f"{self.hosted.named}: {frame.head['reason']}")

    def _forward_request(self) -> None:
        """Hand on what the run is asked for. A plan is asked of each pipeline (session.py), not of the run."""
        request = None if self._asked else commands.request(self.record.folder)
        if request is None:
            return
        if request.command == commands.STOP:
            self._asked = True
            self._connection.send("ask", command=request.command)
        else:
            told = "the request must be written for each pipeline; use `sparsepipe runs replan`"
            commands.refuse(self.record.folder, told, plan=request.plan)
