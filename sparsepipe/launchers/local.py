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

from ..children import python_command, python_environment
from ..cluster import Cluster
from ..errors import InputError, RunFailed
from ..plan import Plan
from ..profile import Profile
from ..record import RunRecord
from ..runtime import RunConfig
from ..thread_pools import waiting
from .base import Row, prepare
from .handle import Child, Handle, Stranger
from .tail import Tail

_POLLS_A_SECOND = 5


class LocalJob:
    """A run on this machine. One thread follows its metrics; unless detached, the run ends when this process does."""

    def __init__(self, record: RunRecord, handle: Handle, tail: Tail | None = None) -> None:
        self.record = record
        self._handle = handle
        self._tail = tail or Tail(record.folder / "metrics.jsonl")
        self._rows: list[Row] = []
        self._seen = 0
        self._changed = threading.Condition()
        self._ended = False
        self._status: Row = {}  # at its end
        self._thread = threading.Thread(target=self._follow, name=f"job {record.name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return not self._ended

    @property
    def rows(self) -> tuple[Row, ...]:
        with self._changed:
            return tuple(self._rows)

    def poll(self) -> list[Row]:
        with self._changed:
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
        if not self._ended:
            self._handle.stop()
            self._thread.join(timeout=5)

    def _result(self) -> Row:
        status = self._status
        if status["state"] == "finished":
            return self.record.metrics("summary")[-1]
        reason = status.get("reason", f"ended in state {status['state']!r}")
        if status.get("exit_code") == 2:
            raise InputError(reason)
        raise RunFailed(f"{self.record.folder}: {reason}")

    def _follow(self) -> None:
        """Read new rows until the processes are gone, then those of the end."""
        while self._handle.alive():
            self._read()
            self._handle.wait(1 / _POLLS_A_SECOND)
        self._read()
        status = self._settled()
        with self._changed:
            self._status, self._ended = status, True
            self._changed.notify_all()
        self._handle.let_go()

    def _settled(self) -> Row:
        """Return the status of a run whose processes are gone, and write it where they could not."""
        status = self.record.status
        if status["state"] not in ("started", "running"):
            return status
        try:
            self.record.write_status("failed", reason="its guard was killed")
            return self.record.status
        except OSError as error:
            reason = f"how it ended could not be written ({error.strerror}); make room on its disk, then resume it"
            return {"state": "failed", "reason": reason}

    def _read(self) -> None:
        rows = self._tail.read()
        if rows:
            with self._changed:
                self._rows += rows
                self._changed.notify_all()


def launch_local(
    plan: Plan,
    config: RunConfig,
    *,
    run_dir: Path | str,
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    port: int | None = None,
    detach: bool = False,
) -> LocalJob:
    """Start the workers of `plan` on this machine, over the loopback interface alone.

    `port`: where the workers meet, through a store there; without one they meet through a file, and every port in use
    is chosen by the system. `detach`: the job outlives this process; `attach` finds it again.
    Raises InputError for a port that cannot be had.
    """
    _check_port(port)
    record, lock = prepare(
        plan, config, run_dir=run_dir, resume=resume, profile=profile, cluster=cluster, campaign=campaign
    )
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    options += ["--port", str(port)] if port is not None else []
    command = python_command("sparsepipe.launchers.elastic", *options)
    tail = Tail(record.folder / "metrics.jsonl")
    if resume:
        tail.skip()  # rows of before were told before
    # Neither end of the pipe outlives an exec, but for the guard, which is given the reading one; nor does the lock.
    reading, writing = (-1, -1) if detach else os.pipe()
    given = (lock,) if detach else (lock, reading)
    guard = Path(__file__).with_name("guard.py")
    try:
        with (record.folder / "logs" / "launcher.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(guard), str(reading), str(record.folder), *command],
                pass_fds=given,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(config, len(plan.ranks)),
            )
    finally:
        for descriptor in given:
            os.close(descriptor)
    return LocalJob(record, Child(process, writing), tail)


def attach(run_dir: Path | str) -> LocalJob:
    """Return the job of a run that another process launched, running or ended: it is followed and cancelled alike.

    Raises InputError where the folder holds no run.
    """
    record = RunRecord.load(Path(run_dir).resolve())
    return LocalJob(record, Stranger(record))


def _environment(config: RunConfig, world_size: int) -> dict[str, str]:
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // world_size)
    return python_environment(
        GLOO_SOCKET_IFNAME=_loopback(),
        NCCL_SOCKET_IFNAME=_loopback(),
        OMP_NUM_THREADS=str(threads),
        **(waiting(config.engine, threads) if config.device == "cpu" else {}),
    )


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
