"""Commands for a run that is at work: left in its folder by whoever may write there, taken up by its rank 0.

control/request.json    {"command": "stop"}                         asked for; another stop takes its place
                        {"command": "replan", "plan": "1f2e3d4c"}   switch to control/plan-1f2e3d4c.json
control/taken.json      {"command": "stop", "minibatch": 120}       what the run did, and after how many minibatches
control/refused.json    {"reason": …}                               what was wrong with a request

A request stays until it has been carried out: a job whose worker was killed meanwhile finds it again when it is started
again. Whoever launches a run in the folder clears what is left. How a plan is handed over, commands.py says.
"""

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..util.io.fields import each, fields, integer, maybe, number, one_of, shown, text
from ..util.io.files import write_json
from ..values.plan import Plan

STOP = "stop"  # end the run at an agreed minibatch, with a checkpoint to resume from
REPLAN = "replan"  # go on under another plan from an agreed minibatch on
COMMANDS = (STOP, REPLAN)  # a worker announces them by their place here
FOLDER, REQUEST = "control", "request.json"
TAKEN, REFUSED = "taken.json", "refused.json"
_MOST_BYTES = 2**16  # the bytes of thousands of places of a plan
_MOST_REASON = 500  # letters


def _token(value: Any, what: str) -> str:
    if not re.fullmatch("[0-9a-f]{8}", text(value, what)):
        raise InputError("command.digits_malformed", f"{what} is {shown(value)}, expected eight hexadecimal digits")
    return str(value)


_FIELDS = fields(
    {
        "command": one_of(*COMMANDS),
        "minibatch": lambda value, what: integer(value, what, most=10**15),
        "plan": maybe(_token),
        "reason": text,
        "predicted_gain_seconds": maybe(number),
        "memory_bytes": maybe(each(number)),
    }
)


class Request(NamedTuple):
    """A request to a run."""

    command: str
    plan: str | None = None  # names the plan to go on under
    reason: str = ""  # why
    predicted_gain_seconds: float | None = None  # of whoever decided on it
    memory_bytes: Sequence[float] | None = None  # of a rank at each of the plan's places, by whoever asks


def ask(run_dir: Path, command: str) -> None:
    """Leave a command for the run. Raises InputError if it is none, or cannot be left there."""
    if command not in COMMANDS:
        raise InputError(
            "command.unknown", f"unknown command {command!r}, expected one of {', '.join(COMMANDS)}", command=command
        )
    try:
        (run_dir / FOLDER).mkdir(mode=0o700, exist_ok=True)
        write_json(run_dir / FOLDER / REQUEST, {"command": command}, make_folder=False)
    except OSError as error:
        raise InputError(
            "command.undeliverable",
            f"{run_dir}: cannot receive the command {command} ({error.strerror})",
            command=command,
        ) from None


def requested(run_dir: Path) -> str | None:
    """Return the command of `request`; None if there is none."""
    found = request(run_dir)
    return found.command if found else None


def request(run_dir: Path) -> Request | None:
    """Return what the run is asked for, None if it is nothing. What is no request is refused, and put aside.

    Only a small file of this user's own, or of the system's, is read. Never raises for what somebody left there.
    """
    path = run_dir / FOLDER / REQUEST
    try:
        found = _FIELDS(json.loads(read_own(path, most_bytes=_MOST_BYTES)), str(path))
        told = Request._make([found["command"], *(found.get(name) for name in Request._fields[1:])])
        if told.command == REPLAN and told.plan is None:
            raise InputError("command.no_plan", f"{path}: contains no plan; send the request again")
        return told._replace(reason=" ".join((told.reason or "").split())[:_MOST_REASON])
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse(run_dir, f"cannot be read ({error.strerror})")
    except (ValueError, RecursionError) as error:  # InputError is a ValueError
        refuse(run_dir, str(error))
    return None


def take(run_dir: Path, command: str, minibatch: int, *, plan: str | None = None) -> None:
    """Note that a command was carried out, after so many minibatches of the run; `plan`: that of a replan."""
    told = {"command": command, "minibatch": minibatch} | ({"plan": plan} if plan else {})
    write_json(run_dir / FOLDER / TAKEN, told, make_folder=False)
    _put_aside(run_dir, f".{REQUEST}.taken", plan).unlink(missing_ok=True)


def taken(run_dir: Path) -> tuple[str, int] | None:
    """Return the last command that the run carried out, and after how many minibatches; None if there was none."""
    found = _told(run_dir, TAKEN)
    return (found["command"], found["minibatch"]) if found and {"command", "minibatch"} <= found.keys() else None


def taken_plan(run_dir: Path, plan: str) -> int | None:
    """Return the minibatch from which on the run switches to a plan that was asked for; None if it does not."""
    found = _told(run_dir, TAKEN)
    return found.get("minibatch") if found and found.get("plan") == plan else None


def refused_plan(run_dir: Path, plan: str) -> str | None:
    """Return why the run does not switch to a plan that was asked for; None if it has not said so."""
    found = _told(run_dir, REFUSED)
    return found.get("reason") if found and found.get("plan") == plan else None


def clear(run_dir: Path) -> None:
    """Remove what is left of an earlier launch. Its lock is held, so nothing is at work."""
    plans = (run_dir / FOLDER).glob("plan-*.json")
    for path in (*(run_dir / FOLDER / name for name in (REQUEST, TAKEN, REFUSED)), *plans):
        with suppress(OSError):
            path.unlink()


def drop_request(run_dir: Path) -> None:
    """Take back what a run was asked for that has ended."""
    with suppress(OSError):
        (run_dir / FOLDER / REQUEST).unlink()


def refuse(run_dir: Path, reason: str, *, plan: str | None = None) -> None:
    """Put a request aside that cannot be carried out, so that it is not looked at again; `plan`: that of a replan."""
    folder = run_dir / FOLDER
    told = {"reason": reason[:_MOST_REASON]} | ({"plan": plan} if plan else {})
    _put_aside(run_dir, f"{REQUEST}.refused", plan)
    with suppress(OSError):
        write_json(folder / REFUSED, told, make_folder=False)


def read_own(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of a small file of this user's own, or of the system's: no link is followed, no pipe read.

    Raises OSError if it cannot be opened, InputError if it is another file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # a FIFO would block
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise InputError("command.too_large", f"{path}: expected a file of at most {most_bytes} bytes")
        if status.st_uid not in (os.geteuid(), 0):
            raise InputError(
                "command.of_other_user", f"{path}: belongs to user {status.st_uid}, expected the user who runs the job"
            )
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def _put_aside(run_dir: Path, name: str, plan: str | None) -> Path:
    """Give the request another name and return its path. One that has taken the place of that of `plan` stays."""
    path, aside = run_dir / FOLDER / REQUEST, run_dir / FOLDER / name
    with suppress(OSError):
        path.replace(aside)  # first: whoever asks meanwhile is not lost
        if plan is not None and (_told(run_dir, name) or {}).get("plan") != plan:
            aside.replace(path)
    return aside


def parsed(content: bytes, what: str) -> dict[str, Any]:
    """Return what the content of one of the files here says; `what` names it. Raises InputError if it is none."""
    try:
        return dict(_FIELDS(json.loads(content), what))
    except (ValueError, RecursionError) as error:  # InputError is a ValueError
        raise InputError("command.malformed", f"{what}: {error}") from None


def _told(run_dir: Path, name: str) -> dict[str, Any] | None:
    """Return the content of one of the files; None if none can be read."""
    try:
        return parsed(read_own(run_dir / FOLDER / name, most_bytes=_MOST_BYTES), name)
    except (OSError, ValueError):
        return None


_LOOKS, _LOOK_SECONDS = 1000, 0.02  # for the end of a request that was answered, on a busy machine
_MOST_REQUEST_BYTES = 2**24  # of a plan: one of thousands of layers and devices has a few


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
        return Plan.from_json(json.loads(read_own(path, most_bytes=_MOST_REQUEST_BYTES)))
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
