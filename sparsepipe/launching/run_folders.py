"""Numbered folders for runs: NAME-001, NAME-002, … below one folder; none is ever overwritten. Runs deleted.

A run stands as its status says, unless whoever wrote that is gone.
"""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import DamagedRecord, InputError
from ..records import RunRecord
from .handle import AttachedProcess
from .lock import hold
from .supervisor import GOING_ON, read_status, tell_status


def folders(runs: Path, name: str) -> list[Path]:
    """The folders of the runs called `name`, the newest first."""
    return [path for _, path in sorted(_numbered(runs, name), reverse=True) if (path / "plan.json").exists()]


def new_folder(runs: Path, name: str) -> Path:
    """A folder that does not exist yet: NAME-004 after NAME-003."""
    number = max((number for number, _ in _numbered(runs, name)), default=0) + 1
    return runs / f"{_plain(name)}-{number:03d}"


def _numbered(runs: Path, name: str) -> list[tuple[int, Path]]:
    whole = re.compile(re.escape(_plain(name)) + r"-(\d{3,})")
    paths = runs.iterdir() if runs.is_dir() else ()
    return [(int(found[1]), path) for path in paths if (found := whole.fullmatch(path.name))]


def _plain(name: str) -> str:
    """The name without what would make it more than one folder."""
    return re.sub(r"[/\\:]+", "-", name)


def delete_runs(folders: Iterable[Path]) -> None:
    """Delete runs' folders; of a link to a run the link alone. Raises InputError for one that is running."""
    there = [folder for folder in folders if folder.exists() or folder.is_symlink()]
    locks = []
    try:  # held until they are gone, so that nobody resumes one of them while it goes
        for folder in there:
            if not folder.is_symlink():
                locks.append(hold(folder))
        for folder in there:
            _remove(folder)
    finally:
        for lock in locks:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a run, or the link to one. Raises InputError where the system does not let us."""
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except OSError as error:
        raise InputError(
            "run.not_deletable",
            f"{folder}: cannot be deleted completely ({error.strerror}: {error.filename}); check permissions, "
            "then delete it again",
        ) from None


def is_alive(record: RunRecord) -> bool:
    """Return whether a run is alive, by its status where that can be read, and by its supervisor."""
    try:
        ended = record.status["state"] not in GOING_ON
    except DamagedRecord:
        ended = False
    return not ended and AttachedProcess(record).alive()


def state_of(record: RunRecord) -> str:
    """The state of a run; "killed" where its status says that it continues but its supervisor is gone.

    Raises DamagedRecord if its status cannot be read.
    """
    state = str(record.status["state"])
    return "killed" if state in GOING_ON and not is_alive(record) else state


def went_on(folder: Path) -> Sequence[str]:
    """Return a line for each time that a run lost something and continued; none where its status cannot be read."""
    with suppress(OSError, ValueError):
        told = read_status(folder).get("went_on", [])
        return [text for text in told if isinstance(text, str)] if isinstance(told, list) else []
    return []


def tell_going_on(folder: Path, text: str) -> None:
    """Add a line to the status of a run that continues."""
    with suppress(OSError, ValueError):  # it cannot be read now: the launcher's log has the line too
        status = read_status(folder)
        tell_status(folder, **{**status, "went_on": [*went_on(folder), text]})
