"""The parent of several pipelines on this machine: their coordination and one local launcher each.

`python -m sparsepipe.launchers.local.pipelines --run-dir RUN [--resume]`, under the supervisor:

    supervisor ── parent ─┬─ coordinator
                          ├─ launcher of pipeline 0 ── workers
                          └─ launcher of pipeline 1 ── workers

A pipeline whose worker dies is restarted by its launcher while the others go on.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from ...pipelines import Pipelines
from ...record import RunRecord
from ...runtime.processes.lifeline import watch
from ..pipelines_parent import Parent
from ..supervisor import say_status
from .coordination import Coordination, start


class LocalLaunchers:
    """Starts the local launcher of each pipeline."""

    def __init__(self, folder: Path, plan: Pipelines, *, resume: bool) -> None:
        self.folder, self.plan, self.resume = folder, plan, resume

    def start(self, k: int, *, first_attempt: int) -> subprocess.Popen:
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
        return start("sparsepipe.launchers.local", options, folder / "logs" / "launcher.log", more)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.local.pipelines", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    watch()
    try:
        return _run(arguments.run_dir, resume=arguments.resume)
    except FileNotFoundError as error:
        say_status(state="failed", reason=f"the run folder is gone: {arguments.run_dir} ({error.strerror})")
        return 1


def _run(folder: Path, *, resume: bool) -> int:
    record, plan = RunRecord.load(folder), Pipelines.load(folder / "plan.json")
    coordination = Coordination(
        folder,
        plan,
        seed=record.config["seed"],
        timeout=record.config["timeout_seconds"],
        launch=f"{os.getpid()}-{time.time_ns()}",
    )
    return Parent(record, plan, coordination, LocalLaunchers(folder, plan, resume=resume)).wait()


if __name__ == "__main__":
    sys.exit(main())
