"""A plan handed to a run that is at work: a file alongside the request that names it, which one process alone can
leave.

control/plan-1f2e3d4c.json                                      the plan, which rank 0 reads once, for all ranks
control/request.json    {"command": "replan", "plan": "1f2e3d4c", "reason": "rank 1 is slow"}
"""

import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..util.io.files import write_json
from ..values.plan import Plan
from .commands import FOLDER, REPLAN, REQUEST, read_own, refused_plan, request, taken_plan

_LOOKS, _LOOK_SECONDS = 1000, 0.02  # for the end of a request that was answered, on a busy machine
_MOST_BYTES = 2**24  # of a plan: one of thousands of layers and devices has a few


def leave(
    run_dir: Path,
    plan: Plan,
    *,
    reason: str = "",
    predicted_gain_seconds: float | None = None,
    memory_bytes: Sequence[float] | None = None,
) -> str:
    """Ask a run to switch to `plan`; return the token that names it.

    `memory_bytes`: what a rank at each of the plan's places needs, where whoever asks knows it.
    Raises InputError if the run is asked for something else that it has not done yet, or cannot be asked.
    """
    folder, token = run_dir / FOLDER, secrets.token_hex(4)
    told: dict[str, Any] = {"command": REPLAN, "plan": token, "reason": reason}
    told |= {"predicted_gain_seconds": predicted_gain_seconds}
    told |= {"memory_bytes": [round(each) for each in memory_bytes]} if memory_bytes else {}
    made = folder / f".{REQUEST}.{token}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            write_json(_path(run_dir, token), plan.to_json(), make_folder=False)
            write_json(made, told, make_folder=False)
            _link(run_dir, made)
        except BaseException:
            forget(run_dir, token)
            raise
        finally:
            made.unlink(missing_ok=True)
    except FileExistsError:
        raise InputError(
            "replan.asked_already",
            f"{run_dir}: a plan change is already pending; wait until it ends, then repeat the request",
        ) from None
    except OSError as error:
        raise InputError(
            "command.undeliverable", f"{run_dir}: cannot receive the command {REPLAN} ({error.strerror})"
        ) from None
    return token


def _link(run_dir: Path, made: Path) -> None:
    """Make a request the run's, unless there is one. One that was answered a moment ago is about to be taken away."""
    for _ in range(_LOOKS):
        try:
            return os.link(made, run_dir / FOLDER / REQUEST)  # whoever is second finds one there
        except FileExistsError:
            before = request(run_dir)
            if before and (before.plan is None or not _is_answered(run_dir, before.plan)):
                raise
        time.sleep(_LOOK_SECONDS)
    raise FileExistsError


def _is_answered(run_dir: Path, token: str) -> bool:
    return taken_plan(run_dir, token) is not None or refused_plan(run_dir, token) is not None


def read(run_dir: Path, token: str) -> Plan:
    """Return the plan that a request names. Raises InputError if there is none, or none that can be read."""
    path = _path(run_dir, token)
    try:
        return Plan.from_json(json.loads(read_own(path, most_bytes=_MOST_BYTES)))
    except OSError as error:
        raise InputError("file.unreadable", f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError("replan.request_malformed", f"{path}: {error}") from None


def forget(run_dir: Path, token: str) -> None:
    """Remove a plan that was handed over, once it is known what became of it."""
    _path(run_dir, token).unlink(missing_ok=True)


def name_of(token: str) -> str:
    """Return what the file of a plan that is handed over is called in the run's folder."""
    return f"{FOLDER}/plan-{token}.json"


def _path(run_dir: Path, token: str) -> Path:
    return run_dir / name_of(token)
