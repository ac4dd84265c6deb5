"""Processes forked from this one: they begin with all that it has imported, which takes torch seconds.

What a process is forked from must have no thread at work: in the child there is none of them, and a lock that one held
is held for ever. Neither may CUDA have been used in it.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_ARG_START, _ARG_END = 45, 46  # of /proc/PID/stat, from the state on


class Forked:
    """A child process that was forked; `poll`, `wait` and `kill` are those of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, -9 where SIGKILL ended it; None while it is alive."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self._wait(0)
        assert code is not None
        return code

    def kill(self) -> None:
        """End it now, and all processes of its session."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # it may have no session, or none yet
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def fork(
    work: Callable[[], int], *, command: Sequence[str] = (), closing: Iterable[int] = (), session: bool = True
) -> Forked:
    """Call `work` in a child process, whose exit code is what it returns.

    `command` is what `ps` shows of the child, if it is no longer than this process's own command; `closing` are
    descriptors that the child is not to have; `session`: it has one of its own, and is in no group of this process.
    Raises OSError if the machine refuses another process.
    """
    _flush()
    pid = os.fork()
    if pid:
        return Forked(pid)
    status = 1
    try:
        if session:
            os.setsid()
        for descriptor in closing:
            os.close(descriptor)
        show_command(command)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        # Not sys.exit, which would go on with what the parent was at. Gloo's threads that wait for a peer would be
        # asked to end and cannot, and a process group that a module still holds is taken down too late, which aborts.
        os._exit(status)


def show_command(command: Sequence[str]) -> None:
    """Have `ps`, and whoever reads /proc/PID/cmdline, see `command` for this process's own, if it is no longer.

    Linux alone, as setproctitle does it: the words that the process was started with are written over.
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if words and start and len(words) <= end - start:
            ctypes.memmove(start, words.ljust(end - start, b"\0"), end - start)


def _flush() -> None:
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
        sys.stderr.flush()
