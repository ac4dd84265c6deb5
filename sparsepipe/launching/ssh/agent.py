"""The agent on a host: `python -m sparsepipe.launching.ssh.agent`, started through `ssh`, whose ends are its own.

    controller ──ssh──► agent ──pipe──► supervisor ──► launcher, worker 2, worker 3 …

It does what the controller says on standard input, and says on standard output what happens. When its input ends, or
nothing has come for a while, however the connection was lost, it ends what it started, removes it, and ends. If it
is killed itself, the supervisor sees its pipe close and does the same.
"""

import os
import queue
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...runtime.rendezvous.server import StoreServer
from ...runtime.wire.encryption import Encryption
from ...runtime.wire.frames import Frame, FrameReader, FrameWriter
from ...util.host.limits import limit_met
from .facts import check_ways, facts_here, interface_of, is_there
from .hosted_parent import HostedCoordinator
from .hosted_run import HostedRun
from .pieces import Arrivals

_SILENCE = 30.0  # seconds after which a controller that says nothing is taken for lost; it says something each second
_LOOK_SECONDS = 0.1


class Agent:
    """Serves one controller. The main thread does the work; another listens, and ends it all when there is no one."""

    def __init__(self, reader: FrameReader, writer: FrameWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames: queue.Queue[Frame] = queue.Queue()
        self._heard, self._silence = time.monotonic(), _SILENCE
        self._closing = threading.Lock()
        self._run: HostedRun | None = None
        self._store: StoreServer | None = None
        self._encryption: Encryption | None = None
        self._coordinator: HostedCoordinator | None = None
        self._interface, self._address = "", ""
        self._arrivals: Arrivals | None = None

    def serve(self) -> int:
        threading.Thread(target=self._listen, name="controller", daemon=True).start()
        threading.Thread(target=self._watch, name="silence", daemon=True).start()
        try:
            while self._step():
                pass
        finally:
            self._close()
        return 0

    def _step(self) -> bool:
        """Do what is next; return whether there is more to come. Raises OSError if the controller is gone."""
        frame = self._next()
        try:
            if frame is not None and not self._do(frame):
                return False
            self._look()
        except InputError as error:
            self._writer.send("refused", reason=str(error), input_error=True, code=error.code)
        except OSError as error:
            where = self._run.folder if self._run else Path.home()
            reason = limit_met(error, where=where) or f"{error.filename or where}: {error.strerror}"
            self._writer.send("refused", reason=reason, input_error=False)
        return True

    def _next(self) -> Frame | None:
        with suppress(queue.Empty):
            return self._frames.get(timeout=_LOOK_SECONDS)
        return None

    def _do(self, frame: Frame) -> bool:
        """Do what the controller says; return whether there is more to come."""
        match frame.kind:
            case "open":
                self._open(frame.head)
            case "file":
                self._take(frame)
            case "store":
                secret = bytes.fromhex(frame.head["secret"])
                self._store = self._store or StoreServer(self._address, secret, encryption=self._encryption)
                self._writer.send("store", host=self._address, port=self._store.port)
            case "start":
                check_ways(frame.head["job"]["addresses"])
                self._opened.start(frame.head["job"], interface=self._interface)
            case "coordinate":
                self._coordinator = HostedCoordinator(self._opened)
                self._coordinator.start(frame.head["job"], interface=self._interface, address=self._address)
            case "leave":
                if self._coordinator:
                    self._coordinator.tell_gone(int(frame.head["pipeline"]), frame.head["attempt"])
            case "ask":
                self._opened.ask(str(frame.head["command"]))
            case "read":
                self._opened.reads = True
            case "forget":
                self._opened.forget(str(frame.head["checkpoint"]))
            case "stop":
                if self._coordinator:
                    self._coordinator.end()
                self._opened.end()
                self._opened.tell(self._writer)
                self._writer.send("stopped")
            case "end":
                return False
        return True

    def _open(self, told: dict[str, Any]) -> None:
        self._silence = float(told["silence"])
        self._interface, self._address = interface_of(str(told["address"]), alone=bool(told.get("alone")))
        with self._closing:
            self._run = HostedRun(told.get("pipeline"))
        if certificate := str(told.get("certificate", "")):
            self._encryption = Encryption.write(self._run.run_dir, certificate)
        self._arrivals = Arrivals(self._run.folder)
        has_data = told.get("data") is None or is_there(str(told["data"]))
        self._writer.send(
            "hello",
            facts=facts_here(),
            folder=str(self._run.folder),
            address=self._address,
            has_data=has_data,
            now=time.time(),
        )

    @property
    def _opened(self) -> HostedRun:
        if self._run is None:
            raise InputError("agent.nothing_open", "a request arrived before a run was opened")
        return self._run

    def _take(self, frame: Frame) -> None:
        if self._arrivals is None:
            raise InputError("agent.nothing_open", "a request arrived before a run was opened")
        if self._arrivals.take(frame) is not None:
            self._opened.shards.arrived.add(str(frame.head["name"]))

    def _look(self) -> None:
        if self._run is not None and self._run.running:
            status = self._run.ended()
            self._run.tell(self._writer)
            if self._coordinator:
                self._coordinator.look()
                if where := self._coordinator.listens():
                    self._writer.send("coordinator", **where)
            if status is not None:
                self._writer.send("status", status=status)

    def _listen(self) -> None:
        with suppress(ValueError):
            while (frame := self._reader.read()) is not None:
                self._heard = time.monotonic()
                if frame.kind != "alive":
                    self._frames.put(frame)
        self._leave()

    def _watch(self) -> None:
        while time.monotonic() - self._heard < self._silence:
            time.sleep(0.5)
        self._leave()

    def _leave(self) -> None:
        """End from a thread, whatever the main thread is at."""
        self._close()
        os._exit(1)

    def _close(self) -> None:
        with self._closing:
            if self._run is not None:
                self._run.close()
                self._run = None


def main() -> int:
    out = os.dup(1)
    os.dup2(2, 1)  # what is printed goes where errors go
    return Agent(FrameReader(0), FrameWriter(out)).serve()


if __name__ == "__main__":
    sys.exit(main())
