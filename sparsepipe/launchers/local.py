"""The local launcher: workers on this machine, as children of a guard that dies with this process."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError, RunFailed
from ..plan import Plan
from ..record import RunRecord
from ..runtime import RunConfig
from .base import Row, prepare
from .tail import Tail

_POLLS_A_SECOND = 5
_PACKAGE = Path(__file__).resolve().parents[2]


class LocalJob:
    """A run on this machine. One thread follows its metrics; it ends when this process does."""

    def __init__(self, record: RunRecord, process: subprocess.Popen, lifeline: int) -> None:
        self.record = record
        self._process, self._lifeline = process, lifeline
        self._tail = Tail(record.folder / "metrics.jsonl")
        self._rows: list[Row] = []
        self._seen = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ended = False
        self._thread = threading.Thread(target=self._follow, name=f"job {record.name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return not self._ended

    @property
    def rows(self) -> tuple[Row, ...]:
        with self._lock:
            return tuple(self._rows)

    def poll(self) -> list[Row]:
        with self._lock:
            new = self._rows[self._seen :]
            self._seen = len(self._rows)
            return new

    def wait(self, timeout: float | None = None, on_row: Callable[[Row], None] | None = None) -> Row:
        deadline = None if timeout is None else time.monotonic() + timeout
        told = 0
        while True:
            with self._changed:
                if not self._ended and len(self._rows) == told:
                    self._changed.wait(1 / _POLLS_A_SECOND)
                new, ended = self._rows[told:], self._ended
            told += len(new)
            for row in new if on_row else ():
                on_row(row)
            if ended and not new:
                return self._result()
            if deadline is not None and time.monotonic() > deadline and not ended:
                raise TimeoutError(f"{self.record.folder}: still running after {timeout:g} s")

    def cancel(self) -> None:
        if self._lifeline >= 0:
            try:
                os.write(self._lifeline, b"c")
            except BrokenPipeError:
                pass  # it ended meanwhile
            os.close(self._lifeline)
            self._lifeline = -1
        self._thread.join(timeout=5)

    def _result(self) -> Row:
        status = self.record.status
        if status["state"] == "finished":
            return next(row for row in reversed(self._rows) if row["event"] == "summary")
        reason = status.get("reason", f"ended in state {status['state']!r}")
        if status.get("exit_code") == 2:
            raise InputError(reason)
        raise RunFailed(f"{self.record.folder}: {reason}")

    def _follow(self) -> None:
        """Read new rows until the processes are gone, then those of the end."""
        while self._process.poll() is None:
            self._read()
            try:
                self._process.wait(1 / _POLLS_A_SECOND)
            except subprocess.TimeoutExpired:
                continue
        self._read()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _read(self) -> None:
        rows = self._tail.read()
        if rows:
            with self._changed:
                self._rows += rows
                self._changed.notify_all()


def launch_local(
    plan: Plan, config: RunConfig, *, run_dir: Path | str, resume: bool = False, port: int | None = None
) -> LocalJob:
    """Start the workers of `plan` on this machine, over the loopback interface alone.

    `port`: where the workers meet, through a store there; without one they meet through a file, and every port in use
    is chosen by the system. Raises InputError for a port that cannot be had.
    """
    _check_port(port)
    record = prepare(plan, config, run_dir=run_dir, resume=resume)
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    options += ["--port", str(port)] if port is not None else []
    command = [sys.executable, "-m", "sparsepipe.launchers.elastic", *options]
    reading, writing = os.pipe()  # neither outlives an exec but for the guard, which is given the reading end
    guard = Path(__file__).with_name("guard.py")
    try:
        with (record.folder / "logs" / "launcher.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(guard), str(reading), str(record.folder), *command],
                pass_fds=(reading,),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(config, len(plan.ranks)),
            )
    finally:
        os.close(reading)
    return LocalJob(record, process, writing)


def _environment(config: RunConfig, world_size: int) -> dict[str, str]:
    paths = [str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // world_size)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "GLOO_SOCKET_IFNAME": _loopback(),
        "OMP_NUM_THREADS": str(threads),
    }


def _loopback() -> str:
    """Name the loopback interface: lo on Linux, lo0 on macOS and the BSDs."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")


def _check_port(port: Any) -> None:
    if port is None:
        return
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise InputError(f"port {port!r} given, expected a number from 1 to 65535, or none")
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise InputError(f"port {port} of 127.0.0.1 cannot be had ({error.strerror}); give another, or none") from None
