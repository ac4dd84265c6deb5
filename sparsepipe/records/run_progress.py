"""How far a run is, from the rows of metrics that it writes: "epoch 3 of 12, minibatch 17 of 32"."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DamagedRecord
from ..util.io.fields import MOST_DEVICES, fields, integer
from ..util.io.files import write_json
from ..values.plan import Plan
from .plans import newest_plan
from .record_files import read_fields


class RunProgress:
    """Takes rows in their order; what it says is about the latest one. Rows without what is looked for change nothing.

    A run's row "start" says how many minibatches an epoch and the whole run have; without it no "of" is said.
    """

    def __init__(self) -> None:
        self._of_epoch: int | None = None
        self._of_run: int | None = None
        self._done = 0  # minibatches
        self._epoch = 0

    def take(self, row: Mapping[str, Any]) -> bool:
        """Take note of a row; returns whether it changed what `text` says."""
        event = row.get("event")
        if event == "start" and isinstance(row.get("epoch_minibatches"), int) and row["epoch_minibatches"] > 0:
            self._of_epoch, self._of_run = row["epoch_minibatches"], row.get("minibatches")
        elif event == "step" and isinstance(row.get("minibatch"), int) and isinstance(row.get("epoch"), int):
            self._epoch, self._done = row["epoch"], max(self._done, row["minibatch"] + 1)
        elif event == "epoch" and isinstance(row.get("epoch"), int):
            self._epoch = row["epoch"]
            self._done = max(self._done, (self._epoch + 1) * (self._of_epoch or 0))
        else:
            return False
        return True

    @property
    def num_epochs(self) -> int | None:
        """Epochs of the whole run, a part of one counted whole; None until the run has said so."""
        if not self._of_epoch or not isinstance(self._of_run, int):
            return None
        return -(-self._of_run // self._of_epoch)

    @property
    def epoch(self) -> str:
        """The epoch of the latest row, counted from 1: "epoch 3 of 12"."""
        return f"epoch {self._epoch + 1}" + (f" of {self.num_epochs}" if self.num_epochs else "")

    @property
    def text(self) -> str:
        """The epoch, and how many of its minibatches are done: "epoch 3 of 12, minibatch 17 of 32"."""
        if not self._of_epoch:
            return self.epoch
        done = min(max(self._done - self._epoch * self._of_epoch, 0), self._of_epoch)
        return f"{self.epoch}, minibatch {done} of {self._of_epoch}"


PROCESSES = "processes.json"
_FILE = fields({"count": lambda value, what: integer(value, what, least=1, most=MOST_DEVICES)})


def num_processes(folder: Path, plan: Plan) -> int:
    """Return how many processes a job that follows `plan` in the folder has. Raises DamagedRecord that names a file."""
    path = folder / PROCESSES
    if not path.exists() or not _follows(folder, plan):
        return len(plan.ranks)
    return max(int(read_fields(path, _FILE, what="number of processes")["count"]), len(plan.ranks))


def keep_processes(folder: Path, count: int) -> None:
    """Note how many processes a job has, before it follows a plan that leaves out some."""
    write_json(folder / PROCESSES, {"count": count})


def forget_processes(folder: Path) -> None:
    """Have one process for each rank from now on, as a run that is resumed under another plan."""
    (folder / PROCESSES).unlink(missing_ok=True)


def _follows(folder: Path, plan: Plan) -> bool:
    try:
        return newest_plan(folder) == plan
    except DamagedRecord:
        return False
