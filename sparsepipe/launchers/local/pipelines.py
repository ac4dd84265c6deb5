"""The parent of several pipelines on this machine: their coordination and one local launcher each.

`python -m sparsepipe.launchers.local.pipelines --run-dir RUN [--resume]`, under the supervisor:

    supervisor ── parent ─┬─ coordinator
                          ├─ launcher of pipeline 0 ── workers
                          └─ launcher of pipeline 1 ── workers

A pipeline whose worker dies is restarted by its launcher while the others go on. The launchers are forked from the
parent, as workers are from a launcher: torch is imported once. So the parent has no thread, and leaves CUDA alone.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ...host.forked import Forked, fork, show_command
from ...host.python_path import python_command
from ...plan import Plan
from ...record import RunRecord
from ...runtime.processes.lifeline import Lifeline
from ..pipelines_parent import Parent
from ..supervisor import ROOM, say_status
from .coordination import Coordination
from .workers import bring_in


class LocalLaunchers:
    """Forks the local launcher of each pipeline from this process, which imports what they need."""

    def __init__(self, folder: Path, plan: Plan, *, resume: bool, lifeline: Lifeline) -> None:
        self.folder, self.plan, self.resume, self._lifeline = folder, plan, resume, lifeline
        bring_in()

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
        begin = partial(_launch, options, folder / "logs" / "launcher.log", more)
        closing = [self._lifeline.descriptor] if self._lifeline.descriptor >= 0 else []
        command = python_command("sparsepipe.launchers.local", *options)
        return fork(begin, command=command, closing=closing, session=False)  # which ends with this process's group


def _launch(options: Sequence[str], log: Path, more: Mapping[str, str]) -> int:
    from .agent import main as launch

    os.environ |= more
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in (1, 2):
        os.dup2(stream, descriptor)
    os.close(stream)
    return launch(options)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.local.pipelines", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = [word for word in sys.argv[1:] if word != ROOM]
    arguments = parser.parse_args(options)
    show_command(python_command("sparsepipe.launchers.local.pipelines", *options))
    lifeline = Lifeline()
    try:
        return _run(arguments.run_dir, resume=arguments.resume, lifeline=lifeline)
    except FileNotFoundError as error:
        say_status(state="failed", reason=f"the run folder is gone: {arguments.run_dir} ({error.strerror})")
        return 1


def _run(folder: Path, *, resume: bool, lifeline: Lifeline) -> int:
    record, plan = RunRecord.load(folder), Plan.load(folder / "plan.json")
    coordination = Coordination(
        folder,
        plan,
        seed=record.config["seed"],
        timeout=record.config["timeout_seconds"],
        launch=f"{os.getpid()}-{time.time_ns()}",
    )
    launchers = LocalLaunchers(folder, plan, resume=resume, lifeline=lifeline)
    return Parent(record, plan, coordination, launchers).wait(lifeline.look)


if __name__ == "__main__":
    sys.exit(main())
