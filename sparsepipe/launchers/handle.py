"""A job's processes from outside: whether they are at work, and how to end them."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from ..record import RunRecord


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
    """A guard that some other process started, known by its process id in the record."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._pid = record.status.get("guard")

    def alive(self) -> bool:
        return self._pid is not None and is_guard(self._pid, self._record.folder.resolve())

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def stop(self) -> None:
        if self.alive():
            os.kill(self._pid, signal.SIGTERM)

    def let_go(self) -> None:
        pass


def is_guard(pid: int, folder: Path) -> bool:
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
