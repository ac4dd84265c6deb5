"""The guard: a small process between a job and whoever started it, which ends the job however that one ends.

Run as a script, with the standard library alone, so that it starts at once:

    python guard.py LIFELINE RUN_DIR COMMAND ...

LIFELINE is the reading end of a pipe whose writing end the parent keeps. When it closes, because the parent asked for
it or died, the guard ends every process of the job: the command's group, and the workers, which have sessions of their
own. LIFELINE -1 is a job of its own (detached): it ends by itself or by SIGTERM to the guard.

        kernel ──pipe──► guard ──named pipe──► launcher, worker 0, worker 1 …     each ends when its writer is gone
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


class Guard:
    """Starts the command, waits for its end or for the lifeline's, and leaves nothing behind."""

    def __init__(self, lifeline: int, run_dir: Path, command: list[str]) -> None:
        self.run_dir = run_dir
        self._stopping = threading.Lock()
        self._cancelled: str | None = None
        self._fifo = run_dir / "logs" / f".lifeline-{os.getpid()}"
        os.mkfifo(self._fifo, 0o600)
        self._writer = os.open(self._fifo, os.O_RDWR)  # reading too, or opening would wait for a reader
        self.process = subprocess.Popen(
            command, start_new_session=True, env={**os.environ, "SPARSEPIPE_LIFELINE": str(self._fifo)}
        )
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell or terminal leaves the job alone
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self.stop("cancelled by a signal"))
        if lifeline >= 0:
            threading.Thread(target=self._watch, args=(lifeline,), daemon=True).start()

    def _watch(self, lifeline: int) -> None:
        asked = os.read(lifeline, 1)  # b"" when every writing end is closed: the parent is gone
        self.stop("cancelled" if asked else "the process that launched it ended")

    def stop(self, why: str) -> None:
        """End the job now. Its files are whole at any moment, so nobody is asked to finish."""
        self._cancelled = self._cancelled or why
        self._kill_all()

    def _kill_all(self) -> None:
        with self._stopping:
            if self._writer >= 0:
                os.close(self._writer)
                self._writer = -1
        _kill_group(self.process.pid)
        for path in (self.run_dir / "logs").glob("rank*.pid"):  # a stopped worker does not see its lifeline close
            _kill_worker(path, self.run_dir)

    def wait(self) -> int:
        """Wait for the command, make sure of every worker's end, and return the command's exit code."""
        code = self.process.wait()
        self._kill_all()
        self._fifo.unlink(missing_ok=True)
        self._settle(code)
        return code if code >= 0 else 128 - code

    def _settle(self, code: int) -> None:
        """Say how the run stands where the launcher could not say it any more."""
        path = self.run_dir / "status.json"
        status = json.loads(path.read_text()) if path.exists() else {"state": "running"}
        if status.get("state") != "running":
            return
        if self._cancelled:
            write_status(self.run_dir, state="cancelled", reason=self._cancelled)
        else:
            what = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            reason = f"the launcher {what}; its log is {self.run_dir / 'logs' / 'launcher.log'}"
            write_status(self.run_dir, state="failed", reason=reason)


def write_status(run_dir: Path, **status: object) -> None:
    """Write status.json, whole."""
    with tempfile.NamedTemporaryFile("w", dir=run_dir, prefix=".status.json.", delete=False) as handle:
        handle.write(json.dumps({**status, "time": time.time()}, indent=2) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    Path(handle.name).replace(run_dir / "status.json")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone already


def _kill_worker(path: Path, run_dir: Path) -> None:
    """Kill the worker of this run that wrote its process id to `path`, unless that id has become somebody else's."""
    try:
        pid = int(path.read_text())
        command = Path(f"/proc/{pid}/cmdline")
        words = command.read_bytes().split(b"\0") if Path("/proc/self").exists() else []
        if not words or (b"sparsepipe.runtime" in words and os.fsencode(run_dir) in words):
            os.kill(pid, signal.SIGKILL)
    except (ValueError, OSError):
        pass  # gone already, or just being written


def main() -> int:
    lifeline, run_dir, *command = sys.argv[1:]
    guard = Guard(int(lifeline), Path(run_dir), command)
    write_status(guard.run_dir, state="running", guard=os.getpid(), launcher=guard.process.pid)
    return guard.wait()


if __name__ == "__main__":
    sys.exit(main())
