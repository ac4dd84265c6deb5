"""A run's folder while the run is at work: opened once, and looked at whether its name still leads to it."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SECONDS = 0.5  # between two looks


class RunFolderGone(RuntimeError):
    """The run's folder was moved or removed: nothing that is written reaches the record any more."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"the run directory is missing: {path} was moved or removed during the run")


class RunFolder:
    """The folder at `path`, which is kept open: no other folder is taken for it. Raises RunFolderGone without one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise RunFolderGone(path) from None

    @property
    def gone(self) -> bool:
        """Return whether the path leads elsewhere, or nowhere. A look that fails for another reason is none."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def gone_within(self, seconds: float) -> bool:
        """Return whether it is gone by then: who removes a folder begins with what is in it."""
        deadline = time.monotonic() + seconds
        while not self.gone and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.gone

    def watch(self, ended: Callable[[RunFolderGone], None]) -> None:
        """Call `ended` in a thread once the folder is gone in two looks, one after the other."""
        threading.Thread(target=self._watch, args=(ended,), name="run folder", daemon=True).start()

    def _watch(self, ended: Callable[[RunFolderGone], None]) -> None:
        looks = 0
        while looks < 2:
            time.sleep(_SECONDS)
            looks = looks + 1 if self.gone else 0
        ended(RunFolderGone(self.path))
