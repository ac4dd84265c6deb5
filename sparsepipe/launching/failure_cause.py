"""Why a run failed: the first error among those that its workers report; the others follow from it."""

import json
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..runtime.failures import SMALLER_LIMIT, work_path
from ..util.host.limits import limit_in, limit_met
from ..util.io.files import open_regular, read_whole
from ..values.plan import Plan

_LOG_BYTES = 2000  # of the end of a log
# Precedences: of a worker, or a host, that went without a word, and of a worker that lost its connection to another.
KILLED, LOST = 2, 4


@dataclass(frozen=True)
class FailureCause:
    """The cause of a failure, as one line, and its place. `lasting`: a restart would fail in the same way.

    `precedence`: of the causes that several hosts find, the one to report is that of the lowest (see `find_cause`).
    `limit`: it is a limit of the machine, such as a full disk, which others may not have.
    """

    reason: str
    rank: int | None
    stage: int | None
    exit_code: int = 1  # of the command line: 2 where the user's input is at fault
    lasting: bool = False
    precedence: int = 1
    limit: bool = False
    code: str | None = None  # of the error (see errors.py), if it has one

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_cause(
    run_dir: Path,
    plan: Plan,
    exits: Mapping[int, int],
    *,
    said: Sequence[Mapping[str, Any]] = (),
    killed: str | None = None,
) -> FailureCause:
    """Find the cause of a failure in the workers' error files, the errors they `said` otherwise, and their exit codes.

    `exits`: rank → code, -9 for SIGKILL. In order of precedence: the run's folder is gone; a worker's own exception; a
    worker that was killed (`killed`: what the kernel says of that); a worker that others waited for until a timeout; a
    worker that lost its connection to another.
    """
    by_rank = {error["rank"]: error for error in _errors(run_dir)}
    by_rank |= {error["rank"]: {**error, "written": error["rank"] in by_rank} for error in said}
    errors = sorted(by_rank.values(), key=lambda error: error["time"])
    if gone := [error for error in errors if error["kind"] == "RunFolderGone"]:
        return FailureCause(gone[0]["message"], None, None, lasting=True, precedence=0)
    own = [error for error in errors if not error["secondary"] and error["kind"] != "DeadlinePassed"]
    if own:
        return _of_error(own[0], plan)
    told = {error["rank"] for error in errors}
    for rank, code in sorted(exits.items()):
        if code < 0 and rank not in told:
            why = killed if code == -signal.SIGKILL else limit_in(_end_of_log(run_dir, rank), where=run_dir)
            reason = f"{_named(rank, plan)}: killed by signal {_signal(-code)}{f', {why}' if why else ''}"
            if why and code == -signal.SIGKILL:
                work = _text_of(work_path(run_dir, rank)).strip()
                reason += f", in {work}; {SMALLER_LIMIT}" if work else f"; {SMALLER_LIMIT}"
            return FailureCause(reason, rank, _stage(rank, plan), precedence=KILLED)
    waiting = [error for error in errors if error["kind"] == "DeadlinePassed"]
    if waiting:
        return _of_error(waiting[0], plan, precedence=3)
    if errors:
        return _of_error(errors[0], plan, precedence=LOST)
    for rank, code in sorted(exits.items()):
        limit = limit_in(_end_of_log(run_dir, rank), where=run_dir)
        reason = f"{_named(rank, plan)}: {limit or f'ended with code {code}'}; see logs/rank{rank}.log"
        return FailureCause(reason, rank, _stage(rank, plan))
    return FailureCause("it ended without a message; see logs/launcher.log", None, None)


def cause_of(error: BaseException, folder: Path) -> FailureCause:
    """Return why the launcher of the run in `folder` failed, given what ended it.

    The traceback of what is not at fault in the user's input is printed: the launcher's log has it.
    """
    if isinstance(error, InputError):
        return FailureCause(str(error), None, None, exit_code=2, code=error.code)
    traceback.print_exception(error)
    what = limit_met(error, where=folder) or f"{type(error).__name__}: {error}"
    return FailureCause(f"the launcher: {what}; its log is logs/launcher.log", None, None)


def clear(run_dir: Path, attempt: int) -> None:
    """Rename the error files of an earlier attempt, so that they are not taken for errors of the next one.

    What its workers were at is forgotten.
    """
    for path in (run_dir / "logs").glob(".rank*.work"):
        path.unlink(missing_ok=True)
    for path in (run_dir / "logs").glob("rank*.error.json"):
        path.replace(path.with_name(path.name.replace(".error.json", f".error-before-{attempt}.json")))


def _errors(run_dir: Path) -> list[dict[str, Any]]:
    found = []
    for path in (run_dir / "logs").glob("rank*.error.json"):
        try:
            found.append(json.loads(read_whole(path)))
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


def _of_error(error: Mapping[str, Any], plan: Plan, *, precedence: int = 1) -> FailureCause:
    rank, stage = error["rank"], error["stage"]
    plain = error["input_error"] or error.get("limit", False)
    what = error["message"] if plain else f"{error['kind']}: {error['message']}"
    unwritten = error["input_error"] or not error.get("written", True)
    where = "" if unwritten else f"; traceback in logs/rank{rank}.error.json"
    code = 2 if error["input_error"] else 1
    reason, limit = f"{_named(rank, plan)}: {what}{where}", bool(error.get("limit", False))
    return FailureCause(reason, rank, stage, code, error["lasting"], precedence, limit, error.get("code"))


def _end_of_log(run_dir: Path, rank: int) -> str:
    """The end of a worker's log, where C++ code says why it aborted."""
    return _text_of(run_dir / "logs" / f"rank{rank}.log")


def _text_of(path: Path) -> str:
    """The end of a file; nothing if there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _signal(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
