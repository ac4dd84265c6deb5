"""What every launcher gives: a job that runs on its own, whose record grows, to be waited for or cancelled."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError
from ..files import write_json
from ..models import network
from ..plan import Plan
from ..record import Origin, RunRecord
from ..runtime import RunConfig
from ..schedule import check_runs

Row = dict[str, Any]


class Job(Protocol):
    """A run that was launched. Nothing here blocks but `wait`."""

    record: RunRecord

    @property
    def running(self) -> bool:
        """Whether its processes are at work."""
        ...

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row of metrics seen so far."""
        ...

    def poll(self) -> list[Row]:
        """Return the rows of metrics that came since the last call."""
        ...

    def wait(self, timeout: float | None = None, on_row: Callable[[Row], None] | None = None) -> Row:
        """Wait for the end and return the run's summary; `on_row` is called with each new row meanwhile.

        Raises RunFailed in one line (which rank, what it met, where its traceback is), InputError where the user's
        input was at fault, and TimeoutError after `timeout` seconds. Interrupting the wait leaves the job alone.
        """
        ...

    def cancel(self) -> None:
        """End the job within a second. Its record and checkpoints stay."""
        ...


def prepare(plan: Plan, config: RunConfig, *, run_dir: Path | str, resume: bool) -> RunRecord:
    """Write what the workers will read. Raises InputError where the plan cannot run or the folder is another run's."""
    model = network(config.model, num_classes=2)  # the layers do not depend on the number of classes
    plan.check(model.graph())
    if sorted(plan.ranks) != list(range(len(plan.ranks))):
        raise InputError(f"the plan uses ranks {sorted(plan.ranks)}, expected 0 to {len(plan.ranks) - 1}")
    rounds = max(plan.num_microbatches, *(stage.round for stage in plan.stages))
    check_runs(plan, 2 * rounds + len(plan.ranks) + 1)
    folder = Path(run_dir).resolve()
    if not (resume and (folder / "plan.json").exists()):
        return RunRecord.create(folder, plan, config.to_json(), Origin.here(**_facts(plan, config)))
    record = RunRecord.load(folder)
    if record.status["state"] == "running" and _lives(record):
        raise InputError(f"{folder}: this run is still running; cancel it first")
    for name in ("plan.json", "config.json"):  # what the run followed so far stays readable
        _keep_old(folder, name)
    plan.save(folder / "plan.json")
    write_json(folder / "config.json", config.to_json())
    return RunRecord.load(folder)


def launch(
    plan: Plan,
    config: RunConfig,
    *,
    run_dir: Path | str,
    launcher: str = "local",
    resume: bool = False,
    **options: Any,
) -> Job:
    """Start `plan` as worker processes and return at once.

    `resume` goes on from the newest checkpoint in `run_dir`, under the same plan or another. `options` are the
    launcher's own. Raises InputError for a plan, a folder or an option that cannot be used, before anything is started.
    """
    if launcher not in LAUNCHERS:
        raise InputError(f"unknown launcher {launcher!r}, expected one of {', '.join(LAUNCHERS)}")
    return LAUNCHERS[launcher](plan, config, run_dir=run_dir, resume=resume, **options)


def _local(*arguments: Any, **options: Any) -> Job:
    from .local import launch_local

    return launch_local(*arguments, **options)


LAUNCHERS: dict[str, Callable[..., Job]] = {"local": _local}


def _facts(plan: Plan, config: RunConfig) -> dict[str, Any]:
    return {"seed": config.seed, "model": config.model, "data": Path(config.data).name, "planner": plan.planner}


def _keep_old(folder: Path, name: str) -> None:
    path = folder / name
    count = len(list(folder.glob(f"{path.stem}-before-*.json")))
    path.replace(folder / f"{path.stem}-before-{count + 1}.json")


def _lives(record: RunRecord) -> bool:
    try:
        os.kill(record.status["guard"], 0)
    except (KeyError, ProcessLookupError, PermissionError):
        return False
    return True
