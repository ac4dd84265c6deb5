"""The local launcher: workers on this machine, as children of a guard that dies with this process."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...cluster import Cluster
from ...errors import InputError, RunFailed
from ...host.background_load import num_processors
from ...host.limits import limit_met
from ...host.memory import available_bytes
from ...host.openmp import check_threads, waiting
from ...host.python_path import check_current_folder, python_command, python_environment
from ...plan import Plan
from ...profile import Profile
from ...record import RunRecord
from ...runtime import RunConfig
from ..base import Row, prepare
from ..handle import Child, Handle, Stranger
from ..kept_rows import KeptRows
from ..metrics_tail import Tail
from .supervisor import gone, read_status

_POLLS_A_SECOND = 5
_TO_END = 5.0  # seconds that a job has to end once it was asked to
_TO_READ = 3.0  # seconds in which a status that cannot be read now may be readable again
_FEW_WORKERS = 8  # which any machine starts
_WORKER_BYTES = 250e6  # of a worker that has done nothing yet but to bring torch in


class LocalJob:
    """A run on this machine. One thread follows its metrics; unless detached, the run ends when this process does.

    Whatever becomes of that thread, or of the files that it reads, the wait for the job ends when the job does. Rows in
    memory are bounded (`KeptRows`); `wait` and `poll` read what they tell from the file.
    """

    def __init__(self, record: RunRecord, handle: Handle, tail: Tail | None = None) -> None:
        self.record = record
        self._handle = handle
        self._tail = tail or Tail(record.folder / "metrics.jsonl")
        self._start, self._polled = self._tail.copy(), self._tail.copy()
        self._rows = KeptRows()
        self._changed = threading.Condition()
        self._ended = False
        self._status: Row = {"state": "running"}
        self._thread = threading.Thread(target=self._follow, name=f"job {record.name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return not self._ended

    @property
    def state(self) -> str:
        return str(self._status["state"])

    @property
    def rows(self) -> tuple[Row, ...]:
        with self._changed:
            return self._rows.all()

    def poll(self) -> list[Row]:
        rows: list[Row] = []
        while new := self._polled.read():
            rows += new
        return rows

    def wait(self, timeout: float | None = None, on_row: Callable[[Row], None] | None = None) -> Row:
        deadline = None if timeout is None else time.monotonic() + timeout
        tail = self._start.copy()
        while True:
            ended = self._ended
            new = tail.read() if on_row else []
            for row in new:
                on_row(row)  # type: ignore[misc]  # there are none without it
            if ended and not new:
                return self._result()
            if deadline is not None and time.monotonic() > deadline and not ended:
                raise TimeoutError(f"{self.record.folder}: still running after {timeout:g} s")
            with self._changed:
                if not self._ended and not new:
                    self._changed.wait(1 / _POLLS_A_SECOND)

    def cancel(self) -> None:
        if self._ended:
            return
        self._handle.stop()
        self._thread.join(timeout=_TO_END)
        if not self._ended:
            raise RunFailed(
                f"{self.record.folder}: still there {_TO_END:g} s after it was asked to end; its guard does not answer"
            )

    def _result(self) -> Row:
        status = self._status
        if self._tail.damaged:
            where = self.record.folder / "metrics.jsonl"
            warnings.warn(f"{where}: {self._tail.damaged} lines are no rows and were passed over", stacklevel=3)
        if status["state"] == "finished":
            if summary := self._rows.last("summary"):
                return summary
            raise RunFailed(f"{self.record.folder}: the run finished, but its metrics.jsonl has no summary any more")
        reason = status.get("reason", f"ended in state {status['state']!r}")
        if status.get("exit_code") == 2:
            raise InputError(reason)
        raise RunFailed(f"{self.record.folder}: {reason}")

    def _follow(self) -> None:
        """Read new rows until the processes are gone, then those of the end. However this ends, so does the wait."""
        status: Row = {"state": "failed", "reason": "its follower ended"}
        try:
            while self._handle.alive():
                self._read()
                self._handle.wait(1 / _POLLS_A_SECOND)
            self._read()
            status = self._settled()
            self._handle.let_go()
        except BaseException as error:
            told = limit_met(error) or f"{type(error).__name__}: {error}"
            status = {"state": "failed", "reason": f"it could not be followed ({told}); runs attach follows it again"}
            raise
        finally:
            with self._changed:
                self._status, self._ended = status, True
                self._changed.notify_all()

    def _settled(self) -> Row:
        """Return the status of a run whose processes are gone, and write it where they could not."""
        if told := self._handle.last_words():
            return told
        status = self._status_on_disk()
        if status["state"] not in ("started", "running"):
            return status
        if not self.record.folder.is_dir():
            return {"state": "failed", "reason": gone(self.record.folder)}
        try:
            self.record.write_status("failed", reason="its guard was killed")
        except OSError as error:
            reason = f"how it ended could not be written ({error.strerror}); make room on its disk, then resume it"
            return {"state": "failed", "reason": reason}
        return {"state": "failed", "reason": "its guard was killed"}

    def _status_on_disk(self) -> Row:
        """Read how the run stands. What fails for want of descriptors is tried again; damage is an end of its own."""
        deadline = time.monotonic() + _TO_READ
        while True:
            try:
                return read_status(self.record.folder)
            except ValueError as error:
                why = f"{self.record.folder / 'status.json'} is damaged, {error}"
            except OSError as error:
                why = f"status.json cannot be read ({error.strerror})"
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) and time.monotonic() < deadline:
                    time.sleep(1 / _POLLS_A_SECOND)
                    continue
            return {"state": "unknown", "reason": f"how it ended is not known: {why}"}

    def _read(self) -> None:
        while rows := self._tail.read():
            with self._changed:
                self._rows.add(rows)
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
    is chosen by the system. The store at a port asks for no secret: leave it out where others have accounts on this
    machine. `detach`: the job outlives this process; `attach` finds it again.
    Raises InputError for a port that cannot be had, more threads than there are cores, and more workers than there is
    memory for.
    """
    _check_port(port)
    check_threads(config.threads)
    _check_workers(len(plan.ranks))
    check_current_folder()
    record, lock = prepare(
        plan, config, run_dir=run_dir, resume=resume, profile=profile, cluster=cluster, campaign=campaign
    )
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    options += ["--port", str(port)] if port is not None else []
    command = python_command("sparsepipe.launchers.local.elastic", *options)
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
                stdout=log if detach else subprocess.PIPE,  # for its last words, where the disk takes none
                stderr=log,
                env=_environment(config, len(plan.ranks)),
            )
    except OSError as error:
        if writing >= 0:
            os.close(writing)
        what = limit_met(error, where=record.folder) or f"{error.filename}: {error.strerror}"
        raise RunFailed(f"{record.folder}: its processes could not be started: {what}") from None
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


def _check_workers(count: int) -> None:
    """Raise InputError where so many workers do not fit into memory, and warn where they would crowd the cores."""
    cores, room = num_processors(), available_bytes()
    if count > _FEW_WORKERS and count * _WORKER_BYTES > room:
        raise InputError(
            f"{count} workers take about {count * _WORKER_BYTES / 1e9:.0f} GB before they train, {room / 1e9:.1f} GB "
            "are free on this machine; use a plan of fewer ranks"
        )
    if count > max(_FEW_WORKERS, 4 * cores):
        warnings.warn(
            f"{count} workers share {cores} cores of this machine: they take turns, and train far slower than planned",
            stacklevel=4,
        )


def _check_port(port: Any) -> None:
    if port is None:
        return
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise InputError(f"port {port!r} given, expected a number from 1 to 65535, or none")
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise InputError(f"port {port} of 127.0.0.1 cannot be had ({error.strerror}); give another, or none") from None
