"""The supervisor: a small process between a job and its parent, which ends the job when the parent ends or dies.

Run as a script, with the standard library alone, so that it starts at once:

    python supervisor.py LIFELINE RUN_DIR COMMAND ...

LIFELINE is the reading end of a pipe whose writing end the parent keeps. When it closes, because the parent asked for
it or died, the supervisor ends every process of the job: the command's group, and the workers, which have sessions of
their own. LIFELINE -1 is a detached job: it ends by itself or by SIGTERM to the supervisor. In status.json and in
messages the supervisor is called the run's guard.

        parent ──pipe──► supervisor ──named pipe──► launcher, worker 0, worker 1 …     each ends when its writer is gone

Its current directory is the run's folder, so that it writes there even where the folder was moved, and does not make
the folder again if it was removed. How the job ended is written to status.json or, if that cannot be written, in
a line on standard output.
"""

import errno
import importlib.util
import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

STATUS = "status.json"
GOING_ON = ("started", "running")  # the states of a run that has not ended
TEMPLATE = "SPARSEPIPE_TEMPLATE"  # names the end of a socket that the launcher is to give to a template (local/)
ROOM = " " * 10240  # ends the command of what others are forked from: they write their own over it
_LEFT_BEHIND = (".rendezvous-*", ".lifeline-*", ".rank*.work")  # in logs/, by processes that were killed
_HALF_WRITTEN = re.compile(r"\..+\.(json|jsonl|toml)\.[0-9a-z_]{8}")  # what a killed write leaves
COMMANDS = ("stop", "replan")  # what a run hears: those of runtime/commands.py, which whoever asks may know more of
_STATUS_BYTES = 2**20
_LOG_BYTES = 4096  # of the end of a log, to look for its last line


class Process(Protocol):
    """The launcher: a child, in a session of its own."""

    pid: int

    def wait(self) -> int:
        """Wait for its end and return its exit code, -9 for SIGKILL."""
        ...


Start = Callable[[dict[str, str], Sequence[int]], Process]  # of its environment and descriptors that are not for it


class Supervisor:
    """Starts the launcher, waits for its end or for the lifeline's, and leaves nothing behind."""

    def __init__(self, lifeline: int, run_dir: Path, start: Start) -> None:
        self.run_dir = run_dir
        self._stopping = threading.Lock()
        self._cancelled: str | None = None
        self._kills = _memory_kills()
        before = self._kills.now()
        self._killed: Callable[[], str | None] = lambda: self._kills.now().since(before)  # for want of memory
        _clear(run_dir)
        self._fifo = run_dir / "logs" / f".lifeline-{os.getpid()}"
        os.mkfifo(self._fifo, 0o600)
        self._writer = os.open(self._fifo, os.O_RDWR)  # reading too, or opening would wait for a reader
        environment = {**os.environ, "SPARSEPIPE_LIFELINE": str(self._fifo)}
        self.process = start(environment, [self._writer, *([lifeline] if lifeline >= 0 else [])])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell or terminal leaves the job alone
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self.stop("cancelled by a signal"))
        os.chdir(run_dir)
        if lifeline >= 0:
            threading.Thread(target=self._watch, args=(lifeline,), daemon=True).start()

    def _watch(self, lifeline: int) -> None:
        asked = os.read(lifeline, 1)  # b"" when every writing end is closed: the parent is gone
        self.stop("cancelled" if asked else "the process that launched it ended")

    def stop(self, why: str) -> None:
        """Kill the job now. Its files are consistent at any moment, so no process needs time to finish."""
        self._cancelled = self._cancelled or why
        self._kill_all()

    def _kill_all(self) -> None:
        with self._stopping:
            if self._writer >= 0:
                os.close(self._writer)
                self._writer = -1
        _kill_group(self.process.pid)
        for path in Path("logs").glob("rank*.pid"):  # a stopped worker does not see its lifeline close
            kill_worker(path, self.run_dir)
        for folder in _pipelines():
            for path in (folder / "logs").glob("rank*.pid"):
                kill_worker(path, self.run_dir / folder)

    def wait(self) -> int:
        """Wait for the command, make sure of every worker's end, and return the command's exit code."""
        code = self.process.wait()
        self._kill_all()
        for folder in (Path(), *_pipelines()):
            with suppress(OSError):
                _clear(folder)
        self._settle(code)
        self._settle_pipelines()
        return code if code >= 0 else 128 - code

    def _settle(self, code: int) -> None:
        """Write the final status where the launcher died before it could."""
        try:
            if read_status(Path())["state"] not in GOING_ON:
                return
        except (OSError, ValueError):
            pass  # damaged, or not to be read now: what is known is written over it
        if self._cancelled:
            tell_status(Path(), state="cancelled", reason=self._cancelled)
        elif is_gone(self.run_dir, Path()):
            tell_status(Path(), state="failed", reason=gone(self.run_dir))
        else:
            log = Path("logs", "launcher.log")
            killed = self._killed() if code == -signal.SIGKILL else None
            why = f" ({killed})" if killed else _last_line(log)
            what = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            reason = f"the launcher {what}{why}; its log is {self.run_dir / log}"
            tell_status(Path(), state="failed", reason=reason)

    def _settle_pipelines(self) -> None:
        """Write how each of several pipelines ended, as the run did, where its own launcher could not."""
        for folder in _pipelines():
            with suppress(OSError, ValueError):
                if read_status(folder)["state"] in GOING_ON:
                    whole = read_status(Path())
                    state = "cancelled" if whole["state"] == "cancelled" else "failed"
                    tell_status(folder, state=state, reason=whole.get("reason", "the run ended"))


def _pipelines() -> list[Path]:
    """The folders of a run's pipelines, if it has several, from within the run's folder."""
    return sorted(Path("pipelines").glob("*/"))


def read_status(run_dir: Path) -> dict[str, Any]:
    """Return the content of status.json; `{"state": "started"}` before it is written.

    Raises OSError if it cannot be read at this moment, ValueError if it is no status.
    """
    try:
        descriptor = os.open(run_dir / STATUS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
    except FileNotFoundError:
        return {"state": "started"}
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file")
        content = handle.read(_STATUS_BYTES)  # the file may be sparse
    try:
        status = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(status, dict) or not isinstance(status.get("state"), str):
        raise ValueError("it contains no state")
    return status


def tell_status(run_dir: Path, **status: object) -> None:
    """Write status.json, whole; if that cannot be done, say it in a line on standard output."""
    _tell(run_dir, status, lambda written: written.replace(run_dir / STATUS))


def tell_begun(run_dir: Path, **status: object) -> None:
    """Write the first status of a run, unless a launcher that ended at once has written how: that one stays."""

    def link(written: Path) -> None:
        try:
            os.link(written, run_dir / STATUS)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not (run_dir / STATUS).exists():
                written.replace(run_dir / STATUS)
        written.unlink(missing_ok=True)

    _tell(run_dir, status, link)


def _tell(run_dir: Path, status: Mapping[str, object], put: Callable[[Path], object]) -> None:
    """Write a status alongside status.json, and `put` it in its place."""
    document = {**status, "time": time.time()}
    temporary = run_dir / f".{STATUS}.{secrets.token_hex(4)}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w") as handle:
            handle.write(json.dumps(document, indent=2) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        put(temporary)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if "reason" in status and error.errno != errno.ENOENT:  # else the folder is gone, as the reason says
            document["reason"] = f"{status['reason']} ({STATUS} could not be written: {error.strerror})"
        say_status(document)


def say_status(status: Mapping[str, object]) -> None:
    """Print the status as a line on standard output, which the launching process reads."""
    with suppress(OSError):
        os.write(1, json.dumps(status).encode() + b"\n")


def gone(run_dir: Path) -> str:
    """The reason that is reported for a run whose folder was removed while it ran."""
    return f"the run directory is missing: {run_dir} was moved or removed during the run"


def is_gone(run_dir: Path, opened: Path) -> bool:
    """Return whether `run_dir` is not the folder any more that was `opened` (a path that leads to it wherever it
    is).
    """
    try:
        return not run_dir.samefile(opened)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # not known now


def _clear(run_dir: Path) -> None:
    """Remove what earlier launchers and supervisors left; the lock is held, so none of them is at work."""
    left = [path for pattern in _LEFT_BEHIND for path in (run_dir / "logs").glob(pattern)]
    for folder in (run_dir, run_dir / "logs"):
        left += [path for path in folder.glob(".*") if _HALF_WRITTEN.fullmatch(path.name)]
    for path in left:
        with suppress(OSError):
            path.unlink()


def _last_line(log: Path) -> str:
    """The last line of a log, to be put behind what it explains; nothing if there is none."""
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = handle.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1].strip()[:300]})" if lines else ""


def _memory_kills() -> Any:
    """Return the class of util/host/limits.py, loaded as a file: this script stands alone, and starts at once."""
    path = Path(__file__).parent.parent / "util" / "host" / "limits.py"
    spec = importlib.util.spec_from_file_location("limits", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["limits"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MemoryKills


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone already


def kill_worker(path: Path, run_dir: Path) -> None:
    """Kill the worker of this run that wrote its process id to `path`, unless another process has that id by now."""
    try:
        pid = int(path.read_text())
        command = Path(f"/proc/{pid}/cmdline")
        words = command.read_bytes().split(b"\0") if Path("/proc/self").exists() else []
        if not words or (b"sparsepipe.runtime" in words and os.fsencode(run_dir) in words):
            os.kill(pid, signal.SIGKILL)
    except (ValueError, OSError):
        pass  # gone already, or just being written


def command(lifeline: int, run_dir: str, launcher: Sequence[str]) -> list[str]:
    """Return the command of a run's supervisor, given its launcher's."""
    return [sys.executable, "-I", __file__, str(lifeline), run_dir, *launcher]


def supervise(lifeline: int, run_dir: Path, start: Start) -> int:
    """Be the supervisor of a run to its end; return the exit code of its launcher."""
    try:
        supervisor = Supervisor(lifeline, run_dir, start)
    except OSError as error:
        what = f"the supervisor could not start the launcher ({error.strerror}: {error.filename or run_dir})"
        tell_status(run_dir, state="failed", reason=what)
        return 1
    tell_begun(Path(), state="running", guard=os.getpid(), launcher=supervisor.process.pid, commands=list(COMMANDS))
    return supervisor.wait()


def _popen(words: list[str], environment: dict[str, str]) -> Process:
    """Start the launcher by its command; one that is to leave a template is given a socket's end, and room."""
    given = [int(end)] if (end := environment.get(TEMPLATE)) else []
    try:
        return subprocess.Popen(
            [*words, *([ROOM] if given else [])], start_new_session=True, env=environment, pass_fds=given
        )
    finally:
        for descriptor in given:
            os.close(descriptor)


def main() -> int:
    lifeline, run_dir, *words = sys.argv[1:]
    return supervise(int(lifeline), Path(run_dir), lambda environment, _: _popen(words, environment))


if __name__ == "__main__":
    sys.exit(main())
