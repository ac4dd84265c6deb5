"""Launch on this machine: the workers are children of a supervisor that ends with this process, unless detached."""

import socket
import subprocess
from pathlib import Path
from typing import Any, Unpack

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import num_processes
from ...runtime.workloads.resolved import ResolvedRun
from ...util.host.cpu import check_threads
from ...util.host.imports import check_current_folder, python_command
from ...values.plan import Plan
from ..base import Asked
from ..followed_job import FollowedJob
from ..handle import AttachedProcess
from ..prepare import prepare
from ..supervisor import ROOM
from .started import check_workers, environment_of, followed, supervised
from .warm_start import SentProcess, Starter

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
