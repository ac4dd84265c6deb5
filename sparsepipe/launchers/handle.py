"""A job's processes from outside: whether they are at work, and how to end them.

A guard holds the lock of its run's folder from before it starts to its end, however it ends: one run in a folder at a
time, and whoever looks knows at any moment whether it is at work.
"""

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from ..errors import InputError
from ..record import RunRecord

_LOCK = Path("logs", ".lock")


def hold(folder: Path) -> int:
    """Lock a run's folder, which is made where it is not there; return the file descriptor that holds it.

    Raises InputError where a run is at work in it, or it cannot be made.
    """
    try:
        (folder / _LOCK).parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(f"{folder}: cannot hold a run ({error.strerror}); choose another --run-dir") from None
    if not _locks(lock):
        os.close(lock)
        raise InputError(f"{folder}: this run is still running; cancel it first, or choose another --run-dir")
    return lock


def is_held(folder: Path) -> bool:
    """Whether a run is at work in the folder, or about to be."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locks(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _locks(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Try to lock; more than once, since whoever looks whether it is held has it for a moment."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.001)
    return False


class Handle(Protocol):
    """The guard of a job."""

    def alive(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Return when the guard has ended, at the latest after `seconds`."""
        ...

    def stop(self) -> None:
        """Ask the guard to end the job. Harmless when it has ended."""
        ...

    def let_go(self) -> None:
        """The job has ended: free what was held for it."""
        ...


class Child:
    """A guard that this process started. `lifeline` is the pipe's end that keeps it alive; -1 where it needs none."""

    def __init__(self, process: subprocess.Popen, lifeline: int) -> None:
        self._process, self._lifeline = process, lifeline

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def stop(self) -> None:
        if self._lifeline < 0:
            self._process.send_signal(signal.SIGTERM)
            return
        try:
            os.write(self._lifeline, b"c")
        except BrokenPipeError:
            pass  # it ended meanwhile
        self.let_go()

    def let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class Stranger:
    """A guard that some other process started, known by the lock that it holds and the process id in the record."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    def alive(self) -> bool:
        return is_held(self._record.folder)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop(self) -> None:
        while self.alive():
            pid = self._record.status.get("guard")
            if pid is not None and _is_guard(pid, self._record.folder.resolve()):
                os.kill(pid, signal.SIGTERM)
                return
            time.sleep(0.02)  # it is about to start, and will say who it is

    def let_go(self) -> None:
        pass


def _is_guard(pid: int, folder: Path) -> bool:
    """Whether process `pid` guards the run in `folder`, and has not become somebody else since."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    command = Path(f"/proc/{pid}/cmdline")
    if not command.parent.parent.joinpath("self").exists():
        return True  # a system that does not tell
    try:
        words = command.read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"guard.py") for word in words) and os.fsencode(folder) in words
