"""A role in processes of its own: started together, met over gloo, and what each said."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from sparsepipe.runtime.processes import signs_of_life

from ..document import REPOSITORY

_COMMAND = REPOSITORY / "scripts" / "bench_runtime.py"
_attempts = iter(range(10**6))


def start(
    role: str,
    name: str,
    folder: Path,
    seconds: float,
    *,
    world_size: int,
    extra: Sequence[str] = (),
    before: Sequence[Sequence[str]] = (),
    interface: str = "lo",
) -> list:
    """Run a role in `world_size` processes at once and return what each said.

    `before`: of each process, the words of a command that starts it somewhere else, such as in another network, whose
    `interface` they meet over.
    """
    attempt = str(next(_attempts))
    (folder / f"run-{attempt}" / "logs").mkdir(parents=True, exist_ok=True)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface, "ATTEMPT": attempt}
    outputs = [folder / f"{role}-{attempt}-{rank}.json" for rank in range(world_size)]
    words = [sys.executable, str(_COMMAND), "--role", role, "--workload", name, "--folder", str(folder)]
    words += ["--seconds", str(seconds), *extra]
    reading, writing = os.pipe()  # they end with this process, however it ends
    common |= {signs_of_life.VARIABLE: f"/proc/self/fd/{reading}"}
    try:
        processes = [
            subprocess.Popen(
                [*(before[rank] if before else ()), *words, "--output", str(output)],
                env={**common, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
                pass_fds=(reading,),
            )
            for rank, output in enumerate(outputs)
        ]
        for process in processes:
            process.wait()
    finally:
        os.close(reading)
        os.close(writing)
    if any(process.returncode for process in processes):
        raise SystemExit(f"bench_runtime: {role} of {name} failed; its traceback is above")
    return [json.loads(output.read_text()) for output in outputs]


def join(folder: Path) -> tuple[int, dist.Store]:
    """Meet the other process of a role, as one of two over gloo; return the own rank and what both met by."""
    rank = int(os.environ["RANK"])
    store = dist.FileStore(str(folder / f"store-{os.environ['ATTEMPT']}"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return rank, store
