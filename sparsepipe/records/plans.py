"""The plans that a run followed, one after the other, each with the minibatch it began at.

plan.json                       the newest, which workers follow
plans/000.json 001.json …       {"first_minibatch": 120, "plan": {…}}: each of them, the newest too
plan-before-1.json …            earlier plans of runs made before there was plans/; when they began was not written down

A plan is written to plans/ first and becomes plan.json last: where a kill came between, the run never followed it, and
it is left out.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import DamagedRecord, InputError
from ..util.io.fields import fields, integer, maybe
from ..util.io.files import write_json
from ..values.plan import Plan
from .record_files import read_fields

_FILE = fields({"first_minibatch": maybe(lambda value, what: integer(value, what, most=10**15))})


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
    plan_fields = read_fields(path, _FILE, what="plan of a run")
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
