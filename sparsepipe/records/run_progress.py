"""What a run follows, and how far it is: its plans one after the other, its processes, its rows of metrics.

The plans that a run followed, one after the other, each with the minibatch it began at.

plan.json                       the newest, which workers follow
plans/000.json 001.json …       {"first_minibatch": 120, "plan": {…}}: each of them, the newest too
plan-before-1.json …            earlier plans of runs made before there was plans/; when they began was not written down

A plan is written to plans/ first and becomes plan.json last: where a kill came between, the run never followed it, and
it is left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedRecord, InputError
from ..util.io.fields import MOST_DEVICES, fields, integer, maybe
from ..util.io.files import write_json
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.trace import Source
from .record_files import read_fields

_PLAN = fields({"first_minibatch": maybe(lambda value, what: integer(value, what, most=10**15))})


class FollowedPlan(NamedTuple):
    """A plan and the minibatch of the run that it began at; None if that was not written down."""

    first_minibatch: int | None
    plan: Plan


def newest_plan(folder: Path) -> Plan:
    """Return what workers follow. Raises DamagedRecord if it cannot be read."""
    return _load(folder / "plan.json")


def followed_plans(folder: Path) -> tuple[FollowedPlan, ...]:
    """Return every plan that a run followed, the newest last. Raises DamagedRecord that names the file."""
    newest = newest_plan(folder)
    known = [numbered for _, numbered in _kept(folder)]
    places = [plan_index for plan_index, numbered in enumerate(known) if numbered.plan == newest]
    if places:
        return tuple(known[: places[-1] + 1])
    return (*known, FollowedPlan(None if known else 0, newest))  # written by hand, or by a version without plans/


def plan_at(plans: Sequence[FollowedPlan], minibatch: int) -> Plan:
    """Return the plan of `followed_plans` under which a minibatch was trained.

    A run that went back to an earlier checkpoint under another plan did the minibatches after it again: the newest plan
    that began at or before the minibatch counts. One of which that was not written down counts for all before it.
    """
    for first, plan in reversed(plans):
        if first is None or first <= minibatch:
            return plan
    return plans[0].plan


def begin_plan(folder: Path, plan: Plan, first_minibatch: int) -> None:
    """Make `plan` the newest of a run, from a minibatch on; one that is the newest already stays as it is.

    Raises DamagedRecord, with nothing changed, where earlier plans cannot be read.
    """
    known_plans = _kept(folder)
    try:
        known = list(followed_plans(folder)) if (folder / "plan.json").exists() else []
    except DamagedRecord:
        known = [
            numbered for _, numbered in known_plans
        ]  # of plan.json, which is written anew: plans/ has been read above
    if not known or known[-1].plan != plan:
        known.append(FollowedPlan(first_minibatch, plan))
    names = [f"{number:03d}.json" for number in range(len(known))]
    for name, (first, followed) in zip(names, known, strict=True):
        write_json(folder / "plans" / name, {"first_minibatch": first, "plan": followed.to_json()})
    for path, _ in _numbered(folder / "plans", r"(\d+)\.json"):
        if path.name not in names:
            path.unlink()  # no worker followed it
    plan.save(folder / "plan.json")


def went_back(folder: Path, minibatches: int) -> None:
    """Note that a run switches to its newest plan from a checkpoint after so many minibatches, maybe before the plan
    began: what comes after it is done again, under that plan.
    """
    if not (folder / "plan.json").exists():
        return
    newest = followed_plans(folder)[-1]
    for path, numbered in _kept(folder):
        if numbered == newest and numbered.first_minibatch is not None and numbered.first_minibatch > minibatches:
            write_json(path, {"first_minibatch": minibatches, "plan": numbered.plan.to_json()})


def _kept(folder: Path) -> list[tuple[Path, FollowedPlan]]:
    """Every plan kept alongside plan.json, in order, with its file."""
    if numbered_plans := _numbered(folder / "plans", r"(\d+)\.json"):
        return [(path, _read(path)) for path, _ in numbered_plans]
    before = _numbered(folder, r"plan-before-(\d+)\.json")
    return [(path, FollowedPlan(None if k else 0, _load(path))) for k, (path, _) in enumerate(before)]


def _read(path: Path) -> FollowedPlan:
    plan_fields = read_fields(path, _PLAN, what="plan of a run")
    first, document = plan_fields["first_minibatch"], plan_fields["plan"]
    try:
        return FollowedPlan(first, Plan.from_json(document))
    except InputError as error:
        raise DamagedRecord(error.code, f"{path}: {error}", **error.fields) from None


def _load(path: Path) -> Plan:
    try:
        return Plan.load(path)
    except InputError as error:
        raise DamagedRecord(error.code, str(error), **error.fields) from None


def _numbered(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    """Files whose names have a number, in its order."""
    if not folder.is_dir():
        return []
    numbered_paths = [(path, int(match[1])) for path in folder.iterdir() if (match := re.fullmatch(pattern, path.name))]
    return sorted(numbered_paths, key=lambda one: one[1])


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


@dataclass(frozen=True)
class WorkloadFacts:
    """Facts of a workload for other rooms than the runtime."""

    name: str
    trains: bool = True  # else there is nothing to validate, and nothing to keep in checkpoints
    source: Source = "measured"  # of its traces


LEARNING = WorkloadFacts("learning")
REPLAY = WorkloadFacts("replay", trains=False, source="emulated")

_BY_ENGINE: Mapping[str, WorkloadFacts] = {"replay": REPLAY}  # those that bring what runs their layers


def workload_facts(engine: str) -> WorkloadFacts:
    """The workload of runs with an engine: its own if it has one, else learning, which any engine can run."""
    return _BY_ENGINE.get(engine, LEARNING)


SAMPLES, MINIBATCHES = "samples_per_second", "minibatches_per_second"


def knows_samples(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether the run in a folder, with these settings, knows how many samples a minibatch of it has."""
    if workload_facts(config.get("engine", "")).trains or config.get("batch_size", 1) > 1:
        return True
    try:
        return Profile.load(folder / "profile.json").batch_size is not None
    except InputError:  # gone, or damaged: nothing tells
        return False


def in_minibatches(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics whose samples are minibatches, with its pace under the name of minibatches/s."""
    return {MINIBATCHES if key == SAMPLES else key: value for key, value in row.items()}
