"""Launch on this machine: the workers are children of a supervisor that ends with this process, unless detached."""

import os
import socket
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from ...errors import InputError, RunFailed
from ...records import RunRecord
from ...records.run_progress import num_processes
from ...runtime import RunConfig
from ...runtime.workloads.resolved import ResolvedRun
from ...util.host.background_load import num_processors
from ...util.host.cpu import check_threads, waiting
from ...util.host.imports import check_current_folder, python_command, python_environment
from ...util.host.limits import available_bytes, limit_met
from ...util.text.numbers import number_of
from ...values.plan import Plan
from .. import supervisor
from ..base import Asked
from ..followed_job import FollowedJob, Tail
from ..handle import AttachedProcess, ChildProcess
from ..prepare import prepare
from ..supervisor import ROOM
from .warm_start import SentProcess, Starter

_FEW_WORKERS = 8  # which any machine starts
_WORKER_BYTES = 250e6  # of a worker that has done nothing yet but to bring torch in


# A run's processes, begun: with a lifeline to this process unless they are detached, and followed
def followed(
    record: RunRecord,
    locks: Sequence[int],
    begin: Callable[[int], subprocess.Popen[bytes] | SentProcess],
    *,
    resume: bool,
    detach: bool,
) -> FollowedJob:
    """Begin a run's supervisor and follow the run. `locks` are the supervisor's from then on.

    `begin` starts it, given the reading end of its lifeline, -1 if it is detached.
    """
    tail = Tail(record.folder / "metrics.jsonl")
    if resume:
        tail.skip()  # rows of before were told before
        (record.folder / supervisor.STATUS).unlink(missing_ok=True)  # how it ended before says nothing from now on
    # Neither end of the pipe nor the lock outlives an exec, but for the supervisor, which is given the reading end.
    reading, writing = (-1, -1) if detach else os.pipe()
    given = list(locks) if detach else [*locks, reading]
    handle: ChildProcess | None = None
    try:
        try:
            handle = ChildProcess(begin(reading), writing)
        finally:
            for descriptor in given:
                os.close(descriptor)
        return FollowedJob(record, handle, tail)
    except BaseException as error:  # an interrupt, too: a job that nobody follows must not go on
        if handle is not None:
            handle.stop()
        elif writing >= 0:
            os.close(writing)
        if handle is not None or not isinstance(error, OSError):
            raise
        what = limit_met(error, where=record.folder) or f"{error.filename}: {error.strerror}"
        raise RunFailed("run.not_started", f"{record.folder}: its processes could not be started: {what}") from None


def supervised(
    record: RunRecord, locks: Sequence[int], command: Sequence[str], environment: Mapping[str, str], *, detach: bool
) -> Callable[[int], subprocess.Popen[bytes]]:
    """Return the `begin` of `followed` that starts `command` below a supervisor, in a process of its own."""

    def begin(lifeline: int) -> subprocess.Popen[bytes]:
        with (record.folder / "logs" / "launcher.log").open("ab") as log:
            return subprocess.Popen(
                supervisor.command(lifeline, str(record.folder), command),
                pass_fds=[*locks, *([lifeline] if lifeline >= 0 else [])],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log if detach else subprocess.PIPE,  # its last words, where the disk takes none
                stderr=log,
                env=environment,
            )

    return begin


def environment_of(config: RunConfig, world_size: int, *, interface: str | None = None) -> dict[str, str]:
    """Return the environment of a run's processes, which share the cores among `world_size` workers of this host.

    `interface`: the network that they connect over, loopback unless given.
    """
    interface = interface or _loopback()
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // world_size)
    return python_environment(
        GLOO_SOCKET_IFNAME=interface,
        NCCL_SOCKET_IFNAME=interface,
        OMP_NUM_THREADS=str(threads),
        **(waiting(config.engine, threads) if config.device == "cpu" else {}),
    )


def _loopback() -> str:
    """Name the loopback interface: lo on Linux, lo0 on macOS and the BSDs."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")


def check_workers(count: int) -> None:
    """Raise InputError if `count` workers do not fit into memory, and warn if they are more than the cores."""
    cores, room = num_processors(), available_bytes()
    if count > _FEW_WORKERS and count * _WORKER_BYTES > room:
        raise InputError(
            "memory.too_many_workers",
            f"{count} workers need about {count * _WORKER_BYTES / 1e9:.0f} GB at start, but {room / 1e9:.1f} GB are "
            "free on this machine; use a plan with fewer ranks",
        )
    if count > max(_FEW_WORKERS, 4 * cores):
        warnings.warn(
            f"{count} workers share {number_of(cores, 'core')} of this machine, so training is much slower than "
            "predicted",
            stacklevel=4,
        )


_STARTER = Starter()


def launch(
    plan: Plan,
    run: ResolvedRun,
    *,
    port: int | None = None,
    detach: bool = False,
    forward_only: Path | str | None = None,
    **asked: Unpack[Asked],
) -> FollowedJob:
    """Start the workers of `plan` on this machine, over the loopback interface alone; of several pipelines with their
    coordinator.

    `port`: rendezvous through a TCPStore at this port; without one it is a FileStore, and every port in use is chosen
    by the system. The store at a port asks for no secret: leave it out where others have accounts on this
    machine. `detach`: the job outlives this process; `attach` finds it again. `forward_only`: a checkpoint, or a run
    of which the newest: nothing is trained, and the network's outputs for the validation split are written.
    Raises InputError for a port that is not available, more threads than there are cores, more workers than there is
    memory for, and a plan that needs more memory, by the run's profile, than its devices or this machine have.
    """
    if plan.members and port is not None:
        raise InputError(
            "port.of_several_pipelines",
            "a port requires a plan of one pipeline, because pipeline replicas choose their ports themselves; omit "
            "the port",
        )
    check_port(port)
    check_threads(run.config.threads)
    folder, resume = Path(asked["run_dir"]).resolve(), asked.get("resume", False)
    processes = num_processes(folder, plan) if resume else len(plan.ranks)
    check_workers(processes)
    check_current_folder()
    record, locks = prepare(plan, run, forward_only=forward_only, **asked)
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    options += ["--port", str(port)] if port is not None else []
    environment = environment_of(run.config, processes)

    def begin(lifeline: int) -> subprocess.Popen[bytes] | SentProcess:
        return _STARTER.start(record.folder, options, environment=environment, lock=locks[0], lifeline=lifeline)

    if plan.members:  # under a parent, with their coordinator
        command = [*python_command("sparsepipe.launching.local", *options), ROOM]
        parent = supervised(record, locks, command, environment, detach=detach)
        return followed(record, locks, parent, resume=resume, detach=detach)
    return followed(record, locks, begin, resume=resume, detach=detach)


def attach(run_dir: Path | str) -> FollowedJob:
    """Return the job of a run that another process launched, running or ended: it is followed and cancelled in the same
    way.

    Raises InputError if the folder holds no run.
    """
    record = RunRecord.load(Path(run_dir).resolve())
    return FollowedJob(record, AttachedProcess(record))


def check_port(port: Any) -> None:
    if port is None:
        return
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise InputError(
            "port.malformed", f"port {port!r} given, expected 1 to 65535; choose another port, or omit it", port=port
        )
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise InputError(
            "port.in_use",
            f"port {port} of 127.0.0.1 is not available ({error.strerror}); choose another port, or omit it",
        ) from None
