"""The local launcher's own process: torchrun's agent (torch.distributed.elastic) for the workers of one run.

`python -m sparsepipe.launchers.local --run-dir DIR [--resume] [--port P]`

torchrun's usual rendezvous listens on every interface of the machine. This one is alone on its machine and meets
nobody, so it needs no server: workers find each other through a file, or, where a port is asked for, through a store
bound to the loopback interface.
"""

import argparse
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from ...errors import InputError
from ...host.memory_kills import MemoryKills
from ...host.python_path import python_command
from ...plan import Plan
from ...record import RunRecord
from ...runtime import commands
from ...runtime.failures import described
from ...runtime.processes.last_words import Listener
from ...runtime.processes.lifeline import watch
from ...runtime.processes.run_folder import RunFolder, RunFolderGone
from ...runtime.training_state.checkpoint import ASIDE
from ..failure_cause import FailureCause, clear, find_cause
from ..supervisor import say_status, tell_status

_LOOPBACK = "127.0.0.1"


class _Alone(RendezvousHandler):
    """The rendezvous of a single agent, which waits for nobody."""

    use_agent_store = False

    def __init__(self, run_id: str, port: int) -> None:
        self._run_id, self._port = run_id, port
        self._store = dist.HashStore()

    def get_backend(self) -> str:
        return "alone"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(dist.PrefixStore(str(time.monotonic()), self._store), 0, 1, self._meeting_point())

    def _meeting_point(self) -> RendezvousStoreInfo:
        return RendezvousStoreInfo(master_addr=_LOOPBACK, master_port=self._port)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


class _Agent(LocalElasticAgent):
    """torchrun's agent that ends the other workers at once when one fails, and restarts only where that can help."""

    def __init__(self, spec: WorkerSpec, *, run_dir: Path, plan: Plan, listener: Listener) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=os.devnull), shutdown_timeout=1)
        self._run_dir, self._plan, self._listener = run_dir, plan, listener
        self._kills = MemoryKills.now()
        self.cause: FailureCause | None = None

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert isinstance(self._pcontext, SubprocessContext)  # that of a command, as ours is
        processes = {rank: handler.proc for rank, handler in self._pcontext.subprocess_handlers.items()}
        exits = {rank: code for rank, process in processes.items() if (code := process.poll()) not in (None, 0)}
        self._listener.said()  # before its pipe is full
        if exits:
            for process in processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            said, killed = self._listener.said(), MemoryKills.now().since(self._kills)
            self.cause = find_cause(self._run_dir, self._plan, exits, said=said, killed=killed)
            if self.cause.lasting:
                self._remaining_restarts = 0
            elif self._remaining_restarts > 0:
                print(f"{self.cause.reason}; starting again from the last checkpoint", file=sys.stderr, flush=True)
                clear(self._run_dir, self._worker_group.spec.max_restarts - self._remaining_restarts + 1)
                self._listener.forget()
                self._kills = MemoryKills.now()
        return super()._monitor_workers(worker_group)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.local", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    watch()
    try:
        folder = RunFolder(arguments.run_dir)
    except RunFolderGone as error:
        say_status(state="failed", reason=str(error))
        return 1
    listener = Listener()
    try:
        cause = _launch(arguments, listener)
    except Exception as error:
        traceback.print_exc()
        told = described(error, run_dir=arguments.run_dir, rank=-1, stage=None)
        plain = told["limit"] or told["input_error"]
        what = told["message"] if plain else f"{told['kind']}: {told['message']}; its log is logs/launcher.log"
        cause = FailureCause(f"the launcher: {what}", None, None, exit_code=2 if told["input_error"] else 1)
    finally:
        listener.close()
    return _finish(folder, cause)


def _launch(arguments: argparse.Namespace, listener: Listener) -> FailureCause | None:
    """Run the workers to their end. Returns why they failed, None where they did not."""
    record = RunRecord.load(arguments.run_dir)
    clear(record.folder, 0)
    store = _store(arguments.port)
    options = ["--run-dir", str(record.folder), *(["--resume"] if arguments.resume else [])]
    interpreter, *words = python_command("sparsepipe.runtime", *options)
    spec = WorkerSpec(
        role="worker",
        local_world_size=len(record.plan.ranks),
        entrypoint=interpreter,
        args=tuple(words),
        rdzv_handler=_Alone(record.name, arguments.port or 0),
        max_restarts=record.config["max_restarts"],
        monitor_interval=0.1,
        local_addr=_LOOPBACK,
    )
    os.environ["SPARSEPIPE_LAUNCH"] = f"{os.getpid()}-{time.time_ns()}"
    os.environ["SPARSEPIPE_RENDEZVOUS"] = "file" if store is None else "tcp"
    agent = _Agent(spec, run_dir=record.folder, plan=record.plan, listener=listener)
    result = agent.run()
    if result.state == WorkerState.SUCCEEDED:
        return None
    return agent.cause or FailureCause("the workers ended without a word; see logs/launcher.log", None, None)


def _finish(folder: RunFolder, cause: FailureCause | None) -> int:
    """Write the final status or, where the folder is gone or its disk full, print it; return the exit code."""
    if cause is None:
        status = _success(folder.path)
    else:
        status = {"state": "failed", **cause.to_json()}
        with suppress(OSError):
            print(cause.reason, file=sys.stderr, flush=True)
    if folder.gone:
        say_status(**{**status, "state": "failed", "reason": str(RunFolderGone(folder.path))})
        return 1
    _make_room(folder.path)
    tell_status(folder.path, **status)
    return cause.exit_code if cause else 0


def _success(folder: Path) -> dict[str, Any]:
    """How a run stands whose workers all ended well."""
    if (found := commands.taken(folder)) is None:
        return {"state": "finished"}
    return {"state": "stopped", "reason": f"stopped after {found[1]} minibatches, as asked; resume it to go on"}


def _make_room(folder: Path) -> None:
    """Remove the rendezvous file of earlier workers, and shards of checkpoints that were never completed."""
    with suppress(OSError):
        for path in (folder / "logs").glob(".rendezvous-*"):
            path.unlink()
        for path in (folder / "checkpoints").glob(".minibatch-*"):
            if not path.name.endswith(ASIDE):
                shutil.rmtree(path, ignore_errors=True)


def _store(port: int | None) -> Any:
    """Listen for the workers at a port of the loopback interface, where one is asked for."""
    if port is None:
        return None
    try:
        listener = socket.create_server((_LOOPBACK, port))
    except OSError as error:
        raise InputError(
            f"port {port} of {_LOOPBACK} cannot be had ({error.strerror}); give another, or none"
        ) from None
    return dist.TCPStore(_LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
