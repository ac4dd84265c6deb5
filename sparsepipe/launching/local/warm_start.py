"""How a supervisor is started: by this process's template (template.py), at once, if there is one that fits.

It fits while this process stands as it did when the template began: a fork cannot take over the environment that
libraries read when they are loaded, nor limits, nor the cores that may be used. Else, and for the first job, the
supervisor starts a launcher that imports torch, and leaves a template.
"""

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import IO, Any

from ...util.host.imports import python_command
from .. import supervisor
from .template import MOST_BYTES, READY, REFUSED, STARTED, Request, answer

_ANSWER_SECONDS = 30.0  # that a template may take to fork, on a busy machine
_OF_A_JOB = "SPARSEPIPE_"  # begins the names of variables that are read anew by each job
_OF_NO_MATTER = frozenset({"PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "_"})
_SUPPORTED = sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))


class SentProcess:
    """A process that is no child of ours, by the descriptor that was sent for it; used like a `subprocess.Popen`."""

    def __init__(self, descriptor: int, stdout: IO[bytes] | None = None) -> None:
        self._descriptor = descriptor
        self.stdout = stdout

    def __del__(self) -> None:
        os.close(self._descriptor)

    def poll(self) -> int | None:
        """Return None while it is alive, then 0: its exit code is known to its parent alone."""
        return 0 if select.select([self._descriptor], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        if select.select([self._descriptor], [], [], timeout)[0]:
            return 0
        raise subprocess.TimeoutExpired("supervisor", timeout or 0.0)

    def send_signal(self, sig: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, sig)


class _Template:
    """The way to a template that stands as this process did when it was asked for; it may be about to start."""

    def __init__(self, standing: Any) -> None:
        self.standing, self._pid = standing, os.getpid()
        self._end, self.given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: SentProcess | None = None  # once it is ready
        self._numbers = count(1)

    def fits(self, standing: Any) -> bool:
        return self.standing == standing and self._pid == os.getpid()  # not after a fork of this process

    def start(self, request: Request, *, lock: int, lifeline: int, log: IO[bytes]) -> SentProcess | None:
        """Have it start a supervisor; None if it cannot, or cannot yet.

        Raises ConnectionError if it is gone, and OSError if it took the request and did not answer in time. Then, and
        after an interrupt, it is killed, so that it keeps no lock; a supervisor that it began ends with its lifeline.
        """
        if self._process is None and (ready := self._ready()) is not None:
            self._process = ready
            self._end.settimeout(_ANSWER_SECONDS)
        if self._process is None:
            return None
        request = replace(request, number=next(self._numbers))
        try:
            return self._asked(request, lock=lock, lifeline=lifeline, log=log)
        except BaseException:
            self._process.send_signal(signal.SIGKILL)
            self._end.close()
            raise

    def _ready(self) -> SentProcess | None:
        try:
            word, found, _, _ = socket.recv_fds(self._end, len(READY), 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if word != READY or not found:
            raise ConnectionResetError
        return SentProcess(found[0])

    def _asked(self, request: Request, *, lock: int, lifeline: int, log: IO[bytes]) -> SentProcess | None:
        """Send a request, and return the process of its answer; None if the machine refuses one."""
        reading, writing = os.pipe()
        with ExitStack() as opened:
            stdout = opened.enter_context(os.fdopen(reading, "rb", buffering=0))
            word, found = b"", list[int]()
            with suppress(TimeoutError):
                try:
                    socket.send_fds(self._end, [request.to_bytes()], [lock, lifeline, writing, log.fileno()])
                finally:
                    os.close(writing)
                with suppress(OSError):
                    word, found, _, _ = socket.recv_fds(self._end, MOST_BYTES, 1)
            if word == answer(REFUSED, request):
                return None
            if word != answer(STARTED, request) or not found:
                raise OSError(errno.ETIMEDOUT, "the process did not start; launch the run again", "its supervisor")
            opened.pop_all()  # the process's, as a Popen has it
            return SentProcess(found[0], stdout)

    def __del__(self) -> None:
        """Let it go: it ends, and its jobs continue."""
        self._end.close()
        self.given.close()


class Starter:
    """Starts supervisors for this process, and keeps its template."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._template: _Template | None = None

    def start(
        self, run_dir: Path, options: list[str], *, environment: dict[str, str], lock: int, lifeline: int
    ) -> subprocess.Popen[bytes] | SentProcess:
        """Start the supervisor of a run, whose launcher has these options; without a lifeline (-1) it is detached.

        Raises OSError if the machine refuses another process.
        """
        words = supervisor.command(lifeline, str(run_dir), python_command("sparsepipe.launching.local", *options))
        with self._lock, (run_dir / "logs" / "launcher.log").open("ab") as log:
            if lifeline < 0:
                return _begin(words, environment, given=(lock,), out=log, log=log)
            standing = _standing(environment)
            request = Request(str(run_dir), options, str(Path.cwd()), environment)
            if asked := self._ask(request, standing, lock=lock, lifeline=lifeline, log=log):
                return asked
            given = [lock, lifeline]
            if self._template is None and _SUPPORTED:
                self._template = _Template(standing)
                given.append(self._template.given.fileno())
                environment = {**environment, supervisor.TEMPLATE: str(given[-1])}
            try:
                return _begin(words, environment, given=given, out=subprocess.PIPE, log=log)
            finally:
                if self._template is not None:
                    self._template.given.close()  # the template's own

    def _ask(self, request: Request, standing: Any, *, lock: int, lifeline: int, log: IO[bytes]) -> SentProcess | None:
        """Ask the template if there is one that fits and is ready.

        It is kept only if it answered: another, one that is gone, late or was interrupted is forgotten.
        """
        template, self._template = self._template, None
        if template is None or not template.fits(standing) or len(request.to_bytes()) > MOST_BYTES:
            return None
        try:
            process = template.start(request, lock=lock, lifeline=lifeline, log=log)
        except ConnectionError:
            return None
        self._template = template
        return process


def _begin(
    words: Sequence[str], environment: Mapping[str, str], *, given: Sequence[int], out: Any, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        pass_fds=given,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=out,  # its last words, where the disk takes none
        stderr=log,
        env=environment,
    )


def _standing(environment: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the properties that a process inherits from its parent permanently, and forks from their template."""
    variables = {name: value for name, value in environment.items() if name not in _OF_NO_MATTER}
    lasting = {name: value for name, value in variables.items() if not name.startswith(_OF_A_JOB)}
    limits = [resource.getrlimit(getattr(resource, name)) for name in _LIMITS]
    return lasting, limits, os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), _umask()


def _umask() -> str:
    """The permissions that new files do not get, read without setting them for a moment."""
    status = Path("/proc/self/status").read_text()
    return next((line for line in status.splitlines() if line.startswith("Umask:")), "")
