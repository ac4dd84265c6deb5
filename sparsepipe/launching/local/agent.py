"""The local launcher's own process: it starts the workers of one run, and again where one fails and that can help.

`python -m sparsepipe.launching.local --run-dir DIR [--resume] [--port P | --ranks 2,3]`

Workers are forked from it, since it has imported torch and the runtime: they start at once. So it has no thread, and
leaves CUDA alone. They find each other through a file or, where a port is asked for, through a store bound to the
loopback interface, in a process of its own since torch serves it by a thread.

Of several pipelines it is their parent, with their coordination and a launcher for each, forked as workers are:

    supervisor ── parent ─┬─ coordinator
                          ├─ launcher of pipeline 0 ── workers
                          └─ launcher of pipeline 1 ── workers

A pipeline whose worker dies is restarted by its launcher while the others continue.
"""

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import num_processes
from ...runtime import commands
from ...runtime.failures import described
from ...runtime.processes.run_folder import RunFolder, RunFolderGone
from ...runtime.processes.signs_of_life import Lifeline, Listener, watch
from ...runtime.training_state.checkpoint_folders import remove_partial
from ...util.host.forked import Forked, fork
from ...util.host.imports import python_command
from ...util.host.limits import MemoryKills, short_of_memory
from ...util.text.numbers import number_of
from ...values.plan import Plan
from ..failure_cause import LOST, FailureCause, clear, find_cause
from ..pipelines_parent import Parent
from ..supervisor import say_status, tell_status
from .coordination import Coordination
from .workers import LOOPBACK, Workers

_LOOK_SECONDS = 0.05  # between two looks at the workers
# Seconds for one that is killed to be seen so, after others have lost it: its connections end before it does.
_TO_SEE_A_KILL = 1.0


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launching.local", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--port", type=int)
    parser.add_argument("--ranks", type=_ranks, help="of a job on several hosts: those of this one, started once")
    arguments = parser.parse_args(options)
    lifeline = Lifeline()
    try:
        folder = RunFolder(arguments.run_dir)
    except RunFolderGone as error:
        say_status({"state": "failed", "reason": str(error)})
        return 1
    listener = Listener()
    try:
        record = RunRecord.load(arguments.run_dir)
        if record.plan.members:
            return _run_pipelines(record, arguments, lifeline, closing=listener.descriptors)
        cause = _launch(record, arguments, listener, lifeline)
    except Exception as error:
        traceback.print_exc()
        told = described(error, run_dir=arguments.run_dir, rank=-1, stage=None)
        plain = told["limit"] or told["input_error"]
        what = told["message"] if plain else f"{told['kind']}: {told['message']}; its log is logs/launcher.log"
        exit_code = 2 if told["input_error"] else 1
        cause = FailureCause(f"the launcher: {what}", None, None, exit_code=exit_code, code=told["code"])
    finally:
        listener.close()
    return _finish(folder, cause)


def _ranks(told: str) -> tuple[int, ...]:
    return tuple(map(int, told.split(",")))


def _launch(
    record: RunRecord, arguments: argparse.Namespace, listener: Listener, lifeline: Lifeline
) -> FailureCause | None:
    """Run the workers to their end. Returns why they failed, None if they did not."""
    clear(record.folder, 0)
    os.environ["SPARSEPIPE_LAUNCH"] = f"{os.getpid()}-{time.time_ns()}"
    closing = (*listener.descriptors, *_own(lifeline))
    store = _serve_store(arguments.port, closing=closing) if arguments.port is not None else None
    attempt, allowed = 0, 0 if arguments.ranks else record.config["max_restarts"]
    try:
        while True:
            cause = _attempt(record, attempt, arguments, listener=listener, lifeline=lifeline, closing=closing)
            if cause is None or cause.lasting or attempt == allowed:
                return cause
            print(f"{cause.reason}; restarting from the last checkpoint", file=sys.stderr, flush=True)
            attempt += 1
            clear(record.folder, attempt)
            listener.forget()
    finally:
        if store is not None:
            store.kill()


def _attempt(
    record: RunRecord,
    attempt: int,
    arguments: argparse.Namespace,
    *,
    listener: Listener,
    lifeline: Lifeline,
    closing: tuple[int, ...],
) -> FailureCause | None:
    """Start the workers once and wait for their end; where one fails the others are ended at once. Returns why."""
    plan = record.plan.one()  # which may have changed while the last attempt ran
    kills = MemoryKills.now()
    count = num_processes(record.folder, plan)
    workers = Workers(
        record.folder,
        arguments.ranks or range(count),
        count,
        resume=arguments.resume,
        attempt=attempt,
        port=arguments.port,
        closing=closing,
    )
    short: tuple[float, str] | None = None  # when memory was last nearly used up, and how much was left
    while workers.running and not workers.failed():
        lifeline.look(_LOOK_SECONDS)
        listener.said()  # before its pipe is full
        if text := short_of_memory():
            short = time.monotonic(), text
    exits = workers.failed()
    if not exits:
        return None
    deadline = time.monotonic() + _TO_SEE_A_KILL
    while True:
        said, killed = listener.said(), MemoryKills.now().since(kills)
        if killed is None and short and time.monotonic() - short[0] < _TO_SEE_A_KILL + _LOOK_SECONDS:
            killed = f"perhaps by the kernel, because memory ran out ({short[1]})"
        cause = find_cause(record.folder, plan, exits, said=said, killed=killed)
        if cause.precedence != LOST or time.monotonic() > deadline:
            workers.kill()
            return cause
        lifeline.look(_LOOK_SECONDS)
        exits = workers.failed()


def _finish(folder: RunFolder, cause: FailureCause | None) -> int:
    """Write the final status or, where the folder is gone or its disk full, print it; return the exit code."""
    if cause is None:
        status = _success(folder.path)
    else:
        status = {"state": "failed", **cause.to_json()}
        with suppress(OSError):
            print(cause.reason, file=sys.stderr, flush=True)
    if folder.gone:
        say_status({**status, "state": "failed", "reason": str(RunFolderGone(folder.path))})
        return 1
    _make_room(folder.path)
    tell_status(folder.path, **status)
    return cause.exit_code if cause else 0


def _success(folder: Path) -> dict[str, Any]:
    """Return the state of a run whose workers all succeeded."""
    found = commands.taken(folder)
    if found is None or found[0] != commands.STOP:
        return {"state": "finished"}
    return {
        "state": "stopped",
        "reason": f"stopped after {number_of(found[1], 'minibatch')} as requested; resume it to continue",
    }


def _make_room(folder: Path) -> None:
    """Remove the rendezvous file of earlier workers, and shards of checkpoints that were never completed."""
    with suppress(OSError):
        for path in (folder / "logs").glob(".rendezvous-*"):
            path.unlink()
        remove_partial(folder)


def _serve_store(port: int, *, closing: tuple[int, ...]) -> Forked:
    """Serve the store where workers meet, at a port of the loopback interface."""
    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise InputError(
            "port.in_use",
            f"port {port} of {LOOPBACK} is not available ({error.strerror}); choose another port, or omit it",
        ) from None

    def serve() -> int:
        watch()
        store = dist.TCPStore(LOOPBACK, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
        while store is not None:
            signal.pause()
        return 0

    with listener:  # the child's alone
        return fork(serve, closing=closing, session=False)


def _own(lifeline: Lifeline) -> list[int]:
    """The descriptor of a lifeline, if there is one."""
    return [lifeline.descriptor] if lifeline.descriptor >= 0 else []


class LocalLaunchers:
    """Forks the local launcher of each of several pipelines from this process, which has imported what they need."""

    def __init__(self, folder: Path, plan: Plan, *, resume: bool, closing: Sequence[int]) -> None:
        self.folder, self.plan, self.resume, self._closing = folder, plan, resume, closing

    def start(self, k: int, *, first_attempt: int) -> Forked:
        """Start that of pipeline `k`, whose workers count their attempts from `first_attempt`."""
        folder, ranks = self.folder / "pipelines" / str(k), self.plan.ranks_of(k)
        more = {
            "SPARSEPIPE_PIPELINE": str(k),
            "SPARSEPIPE_RANKS": ",".join(map(str, ranks)),
            "SPARSEPIPE_NUM_RANKS": str(len(self.plan.ranks)),
            "SPARSEPIPE_FIRST_RANK": str(self.plan.first_rank(k)),
            "SPARSEPIPE_FIRST_ATTEMPT": str(first_attempt),
        }
        options = ["--run-dir", str(folder), *(["--resume"] if self.resume or first_attempt else [])]
        begin = partial(_launch_pipeline, options, folder / "logs" / "launcher.log", more)
        command = python_command("sparsepipe.launching.local", *options)
        # Without a session of its own it ends with this process's group.
        return fork(begin, command=command, closing=self._closing, session=False)


def _launch_pipeline(options: Sequence[str], log: Path, more: Mapping[str, str]) -> int:
    os.environ |= more
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in (1, 2):
        os.dup2(stream, descriptor)
    os.close(stream)
    return main(options)


def _run_pipelines(
    record: RunRecord, arguments: argparse.Namespace, lifeline: Lifeline, *, closing: Sequence[int]
) -> int:
    """Be the parent of several pipelines, which have their coordination and a launcher each; return the exit code."""
    folder, plan = record.folder, record.plan
    coordination = Coordination(
        folder,
        plan,
        seed=record.config["seed"],
        timeout=record.config["timeout_seconds"],
        launch=f"{os.getpid()}-{time.time_ns()}",
    )
    launchers = LocalLaunchers(folder, plan, resume=arguments.resume, closing=[*closing, *_own(lifeline)])
    return Parent(record, plan, coordination, launchers).wait(lifeline.look)
