"""Launch on this machine: the workers are children of a supervisor that ends with this process, unless detached."""

import os
import socket
import warnings
from pathlib import Path
from typing import Any

from ...cluster import Cluster
from ...errors import InputError, RunFailed
from ...host.background_load import num_processors
from ...host.limits import limit_met
from ...host.memory import available_bytes
from ...host.openmp import check_threads, waiting
from ...host.python_path import check_current_folder, python_environment
from ...plan import Plan
from ...profile import Profile
from ...record import RunRecord
from ...runtime import RunConfig
from ..followed_job import FollowedJob
from ..handle import AttachedProcess, ChildProcess
from ..metrics_tail import Tail
from ..prepare import prepare
from .warm_start import Starter

_STARTER = Starter()
_FEW_WORKERS = 8  # which any machine starts
_WORKER_BYTES = 250e6  # of a worker that has done nothing yet but to bring torch in


def launch(
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
) -> FollowedJob:
    """Start the workers of `plan` on this machine, over the loopback interface alone.

    `port`: rendezvous through a TCPStore at this port; without one it is a FileStore, and every port in use is chosen
    by the system. The store at a port asks for no secret: leave it out where others have accounts on this
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
    tail = Tail(record.folder / "metrics.jsonl")
    if resume:
        tail.skip()  # rows of before were told before
    # Neither end of the pipe nor the lock outlives an exec, but for the supervisor, which is given the reading end.
    reading, writing = (-1, -1) if detach else os.pipe()
    given = (lock,) if detach else (lock, reading)
    environment = _environment(config, len(plan.ranks))
    try:
        process = _STARTER.start(record.folder, options, environment=environment, lock=lock, lifeline=reading)
    except OSError as error:
        if writing >= 0:
            os.close(writing)
        what = limit_met(error, where=record.folder) or f"{error.filename}: {error.strerror}"
        raise RunFailed(f"{record.folder}: its processes could not be started: {what}") from None
    finally:
        for descriptor in given:
            os.close(descriptor)
    return FollowedJob(record, ChildProcess(process, writing), tail)


def attach(run_dir: Path | str) -> FollowedJob:
    """Return the job of a run that another process launched, running or ended: it is followed and cancelled alike.

    Raises InputError where the folder holds no run.
    """
    record = RunRecord.load(Path(run_dir).resolve())
    return FollowedJob(record, AttachedProcess(record))


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
    """Raise InputError where `count` workers do not fit into memory, and warn where they are more than the cores."""
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
