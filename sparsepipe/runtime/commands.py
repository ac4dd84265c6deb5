"""Commands for a run that is at work: left in its folder by whoever may write there, taken up by its rank 0.

control/request.json    {"command": "stop"}                         asked for; another request takes its place
control/taken.json      {"command": "stop", "minibatch": 120}       what the run did, and after how many minibatches
control/refused.json    {"reason": …}                               what was wrong with a request

A request stays until it has been carried out: a job whose worker was killed meanwhile finds it again when it is started
again. Whoever launches a run in the folder clears what is left.
"""

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..fields import fields, integer, one_of
from ..files import write_json

STOP = "stop"  # end the run at an agreed minibatch, with a checkpoint to resume from
COMMANDS = (STOP,)  # a worker announces them by their place here
_FOLDER, _REQUEST, _TAKEN, _REFUSED = "control", "request.json", "taken.json", "refused.json"
_MOST_BYTES = 4096
_FIELDS = fields({"command": one_of(*COMMANDS), "minibatch": lambda value, what: integer(value, what, most=10**15)})


def ask(run_dir: Path, command: str) -> None:
    """Leave a command for the run. Raises InputError where it is none, or cannot be left there."""
    if command not in COMMANDS:
        raise InputError(f"unknown command {command!r}, expected one of {', '.join(COMMANDS)}")
    try:
        (run_dir / _FOLDER).mkdir(mode=0o700, exist_ok=True)
        write_json(run_dir / _FOLDER / _REQUEST, {"command": command}, make_folder=False)
    except OSError as error:
        raise InputError(f"{run_dir}: cannot be told to {command} ({error.strerror})") from None


def requested(run_dir: Path) -> str | None:
    """Return the command that the run is asked for, None where there is none. What is none is refused, and put aside.

    Only a small file of this user's own, or of the system's, is read. Never raises for what somebody left there.
    """
    path = run_dir / _FOLDER / _REQUEST
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # a FIFO would block
    except FileNotFoundError:
        return None
    except OSError as error:
        _refuse(run_dir, f"cannot be read ({error.strerror})")
        return None
    try:
        return str(_FIELDS(_read(descriptor), str(path))["command"])
    except (OSError, ValueError, RecursionError) as error:  # InputError is a ValueError
        _refuse(run_dir, str(error))
        return None
    finally:
        os.close(descriptor)


def take(run_dir: Path, command: str, minibatch: int) -> None:
    """Note that a command was carried out, after so many minibatches of the run."""
    write_json(run_dir / _FOLDER / _TAKEN, {"command": command, "minibatch": minibatch}, make_folder=False)
    (run_dir / _FOLDER / _REQUEST).unlink(missing_ok=True)


def taken(run_dir: Path) -> tuple[str, int] | None:
    """Return the last command that the run carried out, and after how many minibatches; None where there was none."""
    try:
        with (run_dir / _FOLDER / _TAKEN).open("rb") as handle:
            found = _FIELDS(json.loads(handle.read(_MOST_BYTES)), _TAKEN)
        return found["command"], found["minibatch"]
    except (OSError, ValueError, RecursionError):
        return None


def clear(run_dir: Path) -> None:
    """Remove what is left of an earlier launch. Its lock is held, so nothing is at work."""
    for name in (_REQUEST, _TAKEN, _REFUSED):
        with suppress(OSError):
            (run_dir / _FOLDER / name).unlink()


def _read(descriptor: int) -> Any:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise InputError(f"expected a file of at most {_MOST_BYTES} bytes")
    if status.st_uid not in (os.geteuid(), 0):
        raise InputError(f"is of user {status.st_uid}, expected this run's own user")
    return json.loads(os.read(descriptor, _MOST_BYTES))


def _refuse(run_dir: Path, reason: str) -> None:
    """Put a request aside that is none, so that it is not looked at again."""
    folder = run_dir / _FOLDER
    with suppress(OSError):
        (folder / _REQUEST).replace(folder / f"{_REQUEST}.refused")
    with suppress(OSError):
        write_json(folder / _REFUSED, {"reason": reason[:500]}, make_folder=False)
