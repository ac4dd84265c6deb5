"""Runs whose plan changes while they train: asked for one plan after the other, then to stop."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime_jobs import Job

from sparsepipe.runtime import commands
from sparsepipe.values.plan import Plan


@dataclass
class Moves:
    """A run that changes its plan: the job it begins as, the plans it goes on under, and when it did."""

    job: Job
    plans: Sequence[Plan]
    minibatches: list[int] = field(default_factory=list)  # the first under each of the plans
    done: int = 0  # when it stopped
    problem: str = ""

    def ask(self, folder: Path, *, seconds: float = 200.0) -> None:
        """Ask for the plans, each once the run is under the one before, and at last to stop."""
        deadline = time.monotonic() + seconds
        try:
            for plan in self.plans:
                token = commands.leave(folder, plan, reason="a test")
                while (found := commands.taken_plan(folder, token)) is None:
                    assert (told := commands.refused_plan(folder, token)) is None, told
                    assert time.monotonic() < deadline, "it takes too long"
                    time.sleep(0.01)
                self.minibatches.append(found)
            commands.ask(folder, commands.STOP)
            while (stopped := commands.taken(folder)) is None or stopped[0] != commands.STOP:
                assert time.monotonic() < deadline, "it does not stop"
                time.sleep(0.01)
            self.done = stopped[1]
        except BaseException as error:
            self.problem = f"{type(error).__name__}: {error}"
            commands.ask(folder, commands.STOP)


def ask_all(folder: Path, runs: Sequence[Moves]) -> threading.Thread:
    """Begin to ask each of the runs for its changes, one run after the other, as `run_jobs` runs them in `folder`."""

    def ask() -> None:
        for run in runs:
            run.ask(folder / run.job.name)

    for run in runs:
        (folder / run.job.name / "logs").mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread
