"""Shards of checkpoints that a host has written, found as they become whole, to be sent to the run's record.

On the host of rank 0, which makes checkpoints whole, they are sent with the manifest, and what was removed is told.
Two may have one name, as of a pipeline that has nothing more to train and averages before it closes the run: each is
sent, since what describes it is another file.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...io.files import read_whole
from ...runtime.training_state.checkpoint_folders import FOLDER, MANIFEST, PARTIAL, WHOLE

_NONE = (-1, -1)
_MOMENT = 0.05  # seconds: whoever removes a tree removes the next entry within


class Found(NamedTuple):
    """A file to be sent, by its name in the run's folder; or, without a path, a checkpoint that is gone."""

    name: str
    path: Path | None


class Shards:
    """Looks into a run's folder on one host. `leads`: rank 0 is of this host."""

    def __init__(self, folder: Path, *, leads: bool) -> None:
        self._folder, self._leads = folder, leads
        self._told: dict[str, tuple[int, int]] = {}  # names of files and of whole checkpoints, with which they were
        self.arrived: set[str] = set()  # names of shards that other hosts wrote

    def skip(self) -> None:
        """Take what is there now for known."""
        for _ in self.news():
            pass

    def news(self) -> Iterator[Found]:
        """Yield what is new since the last call, in the order in which it is to be sent."""
        place = self._folder / FOLDER
        if self._leads:
            whole = {path.name: path for path in sorted(place.glob(WHOLE))}
            for name, path in whole.items():
                if self._is_new(name, path / MANIFEST):
                    yield from self._whole(path)
            removed = sorted(self._told.keys() - whole.keys())
            for name in removed if removed and _stays(place) else ():
                del self._told[name]
                yield Found(f"{FOLDER}/{name}", None)
        else:
            for path in sorted(place.glob(f"{PARTIAL}/*.json")):
                name = f"{FOLDER}/{path.parent.name}/{path.name}"
                if path.name != MANIFEST and self._is_new(name, path):
                    yield from self._partial(path, name)

    def forget(self, checkpoint: str) -> None:
        """Remove what is left of a checkpoint that is whole elsewhere; another of its name that is begun stays."""
        folder = self._folder / FOLDER / checkpoint
        own = {name for name in self._told if f"/{checkpoint}/" in name}
        if all(_which(self._folder / name) == self._told[name] for name in own):
            shutil.rmtree(folder, ignore_errors=True)
        self._told = {name: which for name, which in self._told.items() if name not in own}

    def _is_new(self, name: str, path: Path) -> bool:
        """Whether what a file describes was not told yet; from now on it was."""
        which = _which(path)
        if which == _NONE or self._told.get(name) == which:
            return False
        self._told[name] = which
        return True

    def _whole(self, folder: Path) -> Iterator[Found]:
        """A checkpoint's own shards, then what makes it whole."""
        with suppress(OSError, ValueError):  # it was removed again, as older ones are
            files = json.loads(read_whole(folder / MANIFEST))["files"]
            hidden = f"{FOLDER}/.{folder.name}"
            for file in sorted(files):
                if f"{hidden}/{file}" not in self.arrived:
                    yield Found(f"{hidden}/{file}", folder / file)
            yield Found(f"{hidden}/{MANIFEST}", folder / MANIFEST)

    def _partial(self, description: Path, name: str) -> Iterator[Found]:
        with suppress(OSError, ValueError):
            for file in json.loads(read_whole(description)):
                yield Found(f"{FOLDER}/{description.parent.name}/{Path(file).name}", description.parent / file)
            yield Found(name, description)


def _stays(place: Path) -> bool:
    """Whether a folder in which something was removed is there still once nothing more is removed from it.

    A run removes single checkpoints. Somebody who takes the whole folder away, as a host's disk is cleared or dies,
    takes nothing away from the record, where the last checkpoints are then.
    """
    there = None
    while there != (there := {*place.glob(WHOLE)}):
        time.sleep(_MOMENT)
    return place.is_dir()


def _which(path: Path) -> tuple[int, int]:
    """Tell a file from others that have its name before and after it; none is there: _NONE."""
    try:
        status = path.stat()
    except OSError:
        return _NONE
    return status.st_ino, status.st_mtime_ns
