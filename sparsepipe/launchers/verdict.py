"""Why a run failed: of all that went wrong, the one thing that went wrong first."""

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..plan import Plan


@dataclass(frozen=True)
class Verdict:
    """The cause in one line. `lasting`: a restart would meet it again."""

    reason: str
    rank: int | None
    stage: int | None
    exit_code: int = 1  # of the command line: 2 where the user's input is at fault
    lasting: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(run_dir: Path, plan: Plan, exits: Mapping[int, int]) -> Verdict:
    """Find the cause among what the workers wrote and how they exited (`exits`: rank → code, -9 for SIGKILL).

    A worker's own exception comes first; then a worker that was killed; then one that was waited for in vain; last one
    that lost its connection to another.
    """
    errors = sorted(_errors(run_dir), key=lambda error: error["time"])
    own = [error for error in errors if not error["secondary"] and error["kind"] != "DeadlinePassed"]
    if own:
        return _of_error(own[0], plan)
    told = {error["rank"] for error in errors}
    for rank, code in sorted(exits.items()):
        if code < 0 and rank not in told:
            return Verdict(f"{_named(rank, plan)}: killed by signal {_signal(-code)}", rank, _stage(rank, plan))
    waiting = [error for error in errors if error["kind"] == "DeadlinePassed"]
    if waiting:
        return _of_error(waiting[0], plan)
    if errors:
        return _of_error(errors[0], plan)
    for rank, code in sorted(exits.items()):
        reason = f"{_named(rank, plan)}: ended with code {code}; see logs/rank{rank}.log"
        return Verdict(reason, rank, _stage(rank, plan))
    return Verdict("it ended without a word; see logs/launcher.log", None, None)


def clear(run_dir: Path, attempt: int) -> None:
    """Put the errors of an earlier attempt aside, so that they are not taken for this one's."""
    for path in (run_dir / "logs").glob("rank*.error.json"):
        path.replace(path.with_name(path.name.replace(".error.json", f".error-before-{attempt}.json")))


def _errors(run_dir: Path) -> list[dict[str, Any]]:
    found = []
    for path in (run_dir / "logs").glob("rank*.error.json"):
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue  # a worker that was killed while it wrote
    return found


def _stage(rank: int, plan: Plan) -> int | None:
    return next(iter(plan.stages_of(rank)), None)


def _named(rank: int, plan: Plan) -> str:
    own = plan.stages_of(rank)
    if len(own) < 2:
        return f"rank {rank} (stage {_stage(rank, plan)})"
    return f"rank {rank} (stages {', '.join(map(str, own))})"


def _of_error(error: Mapping[str, Any], plan: Plan) -> Verdict:
    rank, stage = error["rank"], error["stage"]
    what = error["message"] if error["input_error"] else f"{error['kind']}: {error['message']}"
    where = "" if error["input_error"] else f"; traceback in logs/rank{rank}.error.json"
    code = 2 if error["input_error"] else 1
    return Verdict(f"{_named(rank, plan)}: {what}{where}", rank, stage, code, error["lasting"])


def _signal(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
