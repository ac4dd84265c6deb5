"""What each rank's machine says, from the rank's host to whoever asks a predictor about the run.

record   control/readings           somebody asks for it  ──►  host   its ranks are read (rank_watches.py)
         logs/rankN.machine.json                          ◄──         logs/rankN.machine.json, again every two seconds
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import number, shown
from ...util.io.files import write_atomic
from ..commands import FOLDER, read_own

PATTERN = "logs/rank*.machine.json"  # in a run's folder
_ASKED = "readings"
_MOST_BYTES = 2**16
_STALE_SECONDS = 10.0  # the rank has ended, or its host is lost


def ask(run_dir: Path) -> None:
    """Have the hosts of a run read the machine for their ranks. Raises OSError."""
    (run_dir / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_atomic(run_dir / FOLDER / _ASKED, "", make_folder=False)


def are_asked_for(run_dir: Path) -> bool:
    return (run_dir / FOLDER / _ASKED).exists()


def forget(run_dir: Path) -> None:
    """Take back what an earlier launch was asked for, and remove what was read then."""
    for path in (run_dir / FOLDER / _ASKED, *run_dir.glob(PATTERN)):
        path.unlink(missing_ok=True)


def write(logs: Path, rank: int, metrics: Mapping[str, float]) -> None:
    """Leave a rank's newest reading for who takes it to the record."""
    with suppress(OSError):  # a full disk: nobody is told then, and the run meets it by itself
        write_atomic(_path(logs, rank), json.dumps(dict(metrics)) + "\n", synced=False, make_folder=False)


def newest(logs: Path, rank: int) -> dict[str, float] | None:
    """Return what a rank's host has read of it in the last seconds; None if it told of nothing.

    Raises InputError in a line for a file that is none.
    """
    path = _path(logs, rank)
    try:
        if time.time() - path.stat().st_mtime > _STALE_SECONDS:
            return None
        found = json.loads(read_own(path, most_bytes=_MOST_BYTES))
    except OSError:
        return None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError("readings.malformed", f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise InputError("readings.malformed", f"{path}: contains {shown(found)}, expected an object with numbers")
    return {name: number(value, f"{path}: {shown(name)}") for name, value in found.items()}


def _path(logs: Path, rank: int) -> Path:
    return logs / f"rank{rank}.machine.json"
