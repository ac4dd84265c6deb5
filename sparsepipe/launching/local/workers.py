"""The worker processes of one attempt at a run, forked from the launcher's, which has imported what they need."""

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from ...runtime.__main__ import work
from ...util.host.forked import Forked, fork
from ...util.host.imports import python_command

LOOPBACK = "127.0.0.1"
_NEEDED = (  # by most runs, sooner or later
    "sparsepipe.runtime.worker.run",
    "sparsepipe.runtime.workloads.learning",
    "sparsepipe.engines.native",
    "sparsepipe.data.examples.opening",
)


def bring_in() -> None:
    """Import what workers need, before they are forked: none of them waits for torch."""
    gc.disable()  # what torch's import makes stays: to search it for garbage takes a fifth of the start
    for module in _NEEDED:
        import_module(module)
    gc.freeze()  # nor is it written to in the workers, which have the memory in common
    gc.enable()


class Workers:
    """One process for each of the `ranks`, of `world_size` in the job; where not all can be started none is left.

    `attempt`: how often they were started before; `port`: of the store where they meet, None if they meet in a file;
    `closing`: descriptors of this process that are not theirs.
    """

    def __init__(
        self,
        run_dir: Path,
        ranks: Sequence[int],
        world_size: int,
        *,
        resume: bool,
        attempt: int,
        port: int | None,
        closing: Iterable[int],
    ) -> None:
        self._processes: dict[int, Forked] = {}
        command = python_command("sparsepipe.runtime", "--run-dir", str(run_dir), *(["--resume"] if resume else []))
        closing = list(closing)
        try:
            for place, rank in enumerate(ranks):
                environment = _environment(rank, world_size, attempt=attempt, port=port)
                environment |= {"LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(len(ranks))}
                begin = partial(_work, run_dir, environment, resume=resume)
                self._processes[rank] = fork(begin, command=command, closing=closing)
        except OSError:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Return whether any of them is alive."""
        return any(process.poll() is None for process in self._processes.values())

    def failed(self) -> dict[int, int]:
        """Return the exit codes, by rank, of those that have ended otherwise than well; -9 for SIGKILL."""
        return {rank: code for rank, process in self._processes.items() if (code := process.poll())}

    def kill(self) -> None:
        """End those that are alive: they write nothing that could be half written."""
        for process in self._processes.values():
            process.kill()


def _work(run_dir: Path, environment: Mapping[str, str], *, resume: bool) -> int:
    os.environ |= environment
    return work(run_dir, resume=resume)


def _environment(rank: int, world_size: int, *, attempt: int, port: int | None) -> dict[str, str]:
    """Return the environment variables of a worker, as torchrun sets them."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port or 0),
        "SPARSEPIPE_RENDEZVOUS": "file" if port is None else "tcp",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
