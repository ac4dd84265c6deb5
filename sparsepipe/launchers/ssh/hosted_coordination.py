"""The coordinator of several pipelines on one of their hosts, as their parent has it, on the launching host.

parent ──ssh── agent ── coordinator      what it writes of the record comes here as it grows
"""

import queue
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...io.files import cut_torn_row, write_atomic
from ...record import RunRecord
from ...runtime import commands
from ...runtime.encryption import CERTIFICATE
from ...runtime.pipelines.address import ADDRESS, CoordinatorAddress
from ..prepare_pipelines import RESUME
from .certificate import new_certificate
from .connection import Connection, Event, Reach
from .facts import check_alike, facts_here
from .hosted_coordinator import RECORD_FILES
from .pieces import send_content, send_file
from .placement import HostedRanks
from .rows import RowsOfHosts
from .run_files import RunFiles
from .session import TO_CONNECT, TO_STOP, HostLost, HostUnreached, silence

_CLOCK = Path("logs", "clock.json")
_LOOK_SECONDS = 0.05


class HostedCoordination:
    """See `Coordinating`: within `with`, at whose end nothing is left of it.

    The coordinator's address is in the record's folder, for its owner alone to read, while it is there; of a run that
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
        for name in (ADDRESS, CERTIFICATE):
            (self.record.folder / name).unlink(missing_ok=True)

    def begin(self, launch: str, *, resume: bool) -> None:
        """Start the coordinator of a launch, and wait until it listens.

        Raises HostUnreached, InputError for a host that is unlike this one, and HostLost.
        """
        connection, config, folder = self._connection, self.record.config, self.record.folder
        certificate = new_certificate() if config.get("encrypt") else ""
        told = {"silence": silence(config), "alone": self._alone, "certificate": certificate}
        connection.send("open", address=self.hosted.node.address, **told)
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
        where = (str(found["host"]), int(found["port"]), bytes.fromhex(found["secret"]))
        CoordinatorAddress(*where, len(self.record.pipelines)).write(folder)

    def look(self) -> None:
        """Take up what it has written, and hand on what the run is asked for. Raises HostLost where it is gone."""
        while (event := self._next(0.0)) is not None:
            self._take(event)
        self._forward_request()

    def tell_gone(self, pipeline: int, attempt: int | None = None) -> None:
        self._connection.send("leave", pipeline=pipeline, attempt=attempt)

    def end(self) -> None:
        """End it, once its record is whole here. Raises HostLost where it is gone before."""
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
        """Return what the host says of one kind. Raises HostLost where it does not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            event = self._next(_LOOK_SECONDS)
            if event is not None and event.frame is not None and event.frame.kind == kind:
                return event.frame.head
            if event is not None:
                self._take(event)
        raise HostLost(f"{self.hosted.named}: said nothing for {seconds:g} s; is it overloaded?")

    def _next(self, seconds: float) -> Event | None:
        with suppress(queue.Empty):
            return self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        return None

    def _take(self, event: Event) -> None:
        frame, connection = event.frame, self._connection
        if frame is None:
            if not connection.folder:
                raise HostUnreached(connection.why_it_did_not_begin())
            raise HostLost(f"{connection.why_it_ended()} (the coordinator of all pipelines is there)")
        if frame.kind == "grown":
            self._files.take(0, frame)
        elif frame.kind == "status":
            raise HostLost(f"{self.hosted.named}: the coordinator: {frame.head['status'].get('reason', 'it ended')}")
        elif frame.kind == "refused":
            if frame.head.get("input_error"):
                raise HostUnreached(f"{self.hosted.named}: {frame.head['reason']}")
            raise HostLost(f"{self.hosted.named}: {frame.head['reason']}")

    def _forward_request(self) -> None:
        """Hand on what the run is asked for; what pipelines cannot do is refused."""
        request = None if self._asked else commands.request(self.record.folder)
        if request is None:
            return
        if request.command == commands.STOP:
            self._asked = True
            self._connection.send("ask", command=request.command)
        else:
            told = "several pipelines keep their plans; stop the run, and resume it under others"
            commands.refuse(self.record.folder, told, plan=request.plan)
