"""The coordinator of several pipelines, and the parameter server of a rule that has one: kept going by their parent.

parent ─┬─ coordinator          started again when it dies: it continues from its journal, at the same address
        └─ parameter server     started again when it dies: it begins again from what it is given first
"""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...runtime.failures import DeadlinePassed
from ...runtime.pipelines.client import connect
from ...runtime.pipelines.journal import RESUME, complete_record
from ...runtime.wire.encryption import Encryption
from ...runtime.wire.messages import COORDINATOR, ListenerAddress
from ...util.host.imports import python_command
from ...values.plan import Plan
from ...values.replication import Arithmetic, rule_to_json

LOG_FILES = ("logs/coordinator.log", "logs/server.log")
_BEYOND_ALL = 10**6  # an attempt that is none: after all there can be
_TO_HEAR = 2.0  # seconds for a coordinator that is there to hear something
_TO_END = 12.0  # seconds that the coordinator has to write its last rows, on a busy machine
_MOST_STARTS = 100  # more restarts than any run needs: one that dies at once is at fault itself
_BETWEEN_COORDINATORS = 0.2  # seconds, so that one that cannot start takes no processor


class Coordination:
    """Both processes of the run in `folder`, which has the plan of all pipelines, at one address of this host."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        seed: int,
        timeout: float,
        launch: str,
        host: str | None = None,
        encrypts: bool = False,
    ) -> None:
        """`launch` names this launch of the run. `host`: the address to listen at, where other hosts know it, so that
        a coordinator that takes another's place has its port; the loopback's unless given. `encrypts`: both take and
        say nothing but through TLS, by the certificate in the folder.
        """
        self.folder, self.plan, self.launch, self.encrypts = folder, plan, launch, encrypts
        self._seed, self._timeout, self._host = seed, timeout, host
        self._coordinators, self._next_coordinator = 0, 0.0
        self.coordinator = self._start_coordinator()
        self._servers = 0
        self._server = self._start_server()
        self._gone = GoneAttempts(folder, encrypts=encrypts)

    def look(self) -> None:
        """Start again what has died. Raises RuntimeError if it does so again and again."""
        if self.coordinator.poll() is not None and time.monotonic() > self._next_coordinator:
            self.coordinator = self._start_coordinator()
        if self._server is not None and self._server.poll() is not None:
            self._server = self._start_server()
        self._gone.tell()

    def end(self) -> None:
        """End both, with the last rows of the record written."""
        for process in filter(None, (self._server, self.coordinator)):
            _end(process)
        if self.coordinator.returncode:  # it was killed, or had not yet taken the place of one that was
            complete_record(self.folder, self.launch)

    def tell_gone(self, pipeline: int, attempt: int | None = None) -> None:
        """Tell the coordinator that an attempt of a pipeline has ended; without one, that it does not come back.

        A coordinator that took another's place has no connection whose end would show it.
        """
        self._gone.add(pipeline, attempt)

    def _start_coordinator(self) -> subprocess.Popen[bytes]:
        self._coordinators += 1
        if self._coordinators > _MOST_STARTS:
            raise RuntimeError(f"the coordinator ended {_MOST_STARTS} times; its log is logs/coordinator.log")
        options = ["--run-dir", str(self.folder), "--pipelines", str(len(self.plan.pipelines))]
        options += ["--replication", json.dumps(rule_to_json(self.plan.rule))]
        options += ["--seed", str(self._seed), "--launch", self.launch]
        options += ["--host", self._host] if self._host else []
        options += ["--encrypt"] if self.encrypts else []
        if (self.folder / RESUME).exists():
            options += ["--resume", str(self.folder / RESUME)]
        if self._host and self._coordinators > 1 and (before := address_of(self.folder)):
            options += ["--port", str(before.port)]
        self._next_coordinator = time.monotonic() + _BETWEEN_COORDINATORS
        return start("sparsepipe.runtime.pipelines.service", options, self.folder / "logs" / "coordinator.log")

    def _start_server(self) -> subprocess.Popen[bytes] | None:
        """Start the parameter server, where the rule has one."""
        if self.plan.rule.arithmetic is not Arithmetic.SERVER:
            return None
        options = ["--run-dir", str(self.folder), "--attempt", str(self._servers), "--timeout", str(self._timeout)]
        options += ["--encrypt"] if self.encrypts else []
        self._servers += 1
        if self._servers > _MOST_STARTS:
            raise RuntimeError(f"the parameter server ended {_MOST_STARTS} times; its log is logs/server.log")
        return start("sparsepipe.runtime.replication.between_pipelines", options, self.folder / "logs" / "server.log")


def address_of(folder: Path) -> ListenerAddress | None:
    """Return where the coordinator of the run in `folder` listens, None before it does."""
    with suppress(InputError):
        return ListenerAddress.read(folder / COORDINATOR)
    return None


class GoneAttempts:
    """Attempts of pipelines that have ended, for the coordinator of the run in `folder`.

    One that has just died hears nothing: the next is reported as soon as it exists. No one waits for it: who says so
    keeps live pipelines going, too.
    """

    def __init__(self, folder: Path, *, encrypts: bool) -> None:
        self._folder, self._encrypts = folder, encrypts
        self._untold: list[tuple[int, int]] = []  # pipeline, attempt

    def add(self, pipeline: int, attempt: int | None) -> None:
        """Tell that an attempt of a pipeline has ended; without one, that the pipeline does not come back."""
        self._untold.append((pipeline, _BEYOND_ALL if attempt is None else attempt))
        self.tell()

    def tell(self) -> None:
        """Tell of those that the coordinator has not heard of yet."""
        self._untold = [told for told in self._untold if not self._heard(*told)]

    def _heard(self, pipeline: int, attempt: int) -> bool:
        if not self._listens():
            return False
        encryption = Encryption.of_run(self._folder) if self._encrypts else None
        given: dict[str, Any] = {"pipeline": pipeline, "rank": -1, "attempt": attempt, "encryption": encryption}
        try:
            with closing(connect(self._folder, **given, timeout=_TO_HEAR)) as coordinator:
                coordinator.leave()
        except DeadlinePassed:
            return False
        except RuntimeError:
            pass  # it knows no such pipeline, or has given it up
        return True

    def _listens(self) -> bool:
        """Return whether anybody is there to hear, which is known at once: it is on this host."""
        address = address_of(self._folder)
        try:
            if address is not None:
                socket.create_connection((address.host, address.port), timeout=_TO_HEAR).close()
        except OSError:
            return False
        return address is not None


def start(module: str, options: list[str], log: Path, more: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a module of ours, which says what it says in a log; `more` is in its environment."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            python_command(module, *options),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **(more or {})},
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and see that it does."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
