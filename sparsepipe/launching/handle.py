"""A handle on a job's supervisor process: whether it is alive, how to stop it, and its last status."""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from ..errors import InputError
from ..records import RunRecord
from .lock import guard_of, held_by, is_held
from .supervisor import read_status

_TO_START = 3.0  # seconds for a supervisor to be there
_TO_LISTEN = 30.0  # seconds for one that is there to listen: more than a busy machine takes to start it
_ENDS = ("finished", "stopped", "failed", "refused", "cancelled")
_MOST_LAST_WORDS = 65536  # bytes: what a pipe holds


class Handle(Protocol):
    """The supervisor process of a job, seen from outside."""

    def alive(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Return when the supervisor has ended, at the latest after `seconds`."""
        ...

    def stop(self) -> None:
        """Ask the supervisor to end the job; harmless when it has ended.

        Raises InputError if the supervisor is another user's.
        """
        ...

    def last_words(self) -> dict[str, Any] | None:
        """Return the status that could not be written to the run's folder, if it was reported in another way."""
        ...

    def let_go(self) -> None:
        """Close what is open. The supervisor must have ended, or be meant to continue alone."""
        ...


class Process(Protocol):
    """Interface of a process: the used part of `subprocess.Popen`."""

    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class ChildProcess:
    """A supervisor that this process started; it ends when the lifeline closes. Detached, it has no lifeline (-1)."""

    def __init__(self, process: Process, lifeline: int) -> None:
        self._process, self._lifeline = process, lifeline
        self._closing = threading.Lock()  # whoever follows the job lets it go while another may end it

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGCONT)  # one that is stopped would not hear
        with self._closing:
            if self._lifeline < 0:
                self._process.send_signal(signal.SIGTERM)
                return
            with suppress(BrokenPipeError):  # it ended meanwhile
                os.write(self._lifeline, b"c")
            self._close_lifeline()

    def last_words(self) -> dict[str, Any] | None:
        if self._process.stdout is None:
            return None
        os.set_blocking(self._process.stdout.fileno(), False)  # a process that outlives the supervisor may have it open
        try:
            lines = os.read(self._process.stdout.fileno(), _MOST_LAST_WORDS).splitlines()
        except OSError:
            return None
        for line in lines:  # the launcher's, which knows the cause, come before the supervisor's
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("state") in _ENDS:
                    return found
        return None

    def let_go(self) -> None:
        with self._closing:
            self._close_lifeline()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class AttachedProcess:
    """A supervisor that some other process started, known by the lock that it holds and its command line."""

    def __init__(self, record: RunRecord) -> None:
        self._folder = record.folder.resolve()

    def alive(self) -> bool:
        try:
            return is_held(self._folder)
        except OSError:
            return True  # not known at this moment: whoever waits looks again

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop(self) -> None:
        begun = time.monotonic()
        while self.alive():
            waited, pid = time.monotonic() - begun, self._guard()
            # One that is about to start would end without a word of why.
            if pid is not None and (self._listens(pid) or waited > _TO_LISTEN):
                self._end(pid)
                return
            if pid is None and waited > _TO_START:
                who = held_by(self._folder) or "its lock is held by an unknown process"
                raise InputError("run.not_cancellable", f"{self._folder}: cannot be cancelled: {who}; end that process")
            time.sleep(0.05)  # it is about to start

    def last_words(self) -> dict[str, Any] | None:
        return None

    def let_go(self) -> None:
        pass

    def _listens(self, pid: int) -> bool:
        """Return whether the guard, process `pid`, has a handler for the signal that ends the job; or has written a
        status, on systems that do not tell.
        """
        try:
            told = Path(f"/proc/{pid}/status").read_text()
            return bool(int(told.partition("SigCgt:")[2].split()[0], 16) & 1 << signal.SIGTERM - 1)
        except (OSError, IndexError):
            pass
        try:
            return bool(read_status(self._folder)["state"] != "started")
        except (OSError, ValueError):
            return True

    def _guard(self) -> int | None:
        try:
            pid = read_status(self._folder).get("guard")
        except (OSError, ValueError):
            pid = None
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
            return guard_of(self._folder)
        return pid if _is_guard(pid, self._folder) else guard_of(self._folder)

    def _end(self, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise InputError(
                "run.guard_of_other_user",
                f"{self._folder}: its supervisor (process {pid}) belongs to another user; ask that user to "
                "cancel the run",
            ) from None


def _is_guard(pid: int, folder: Path) -> bool:
    """Return whether process `pid` is the supervisor of the run in `folder`, and not another process with the same
    id.
    """
    if Path("/proc/self").exists():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(word.endswith(b"supervisor.py") for word in words) and os.fsencode(folder) in words
    try:  # a system that does not tell
        os.kill(pid, 0)
    except OSError:
        return False
    return True
