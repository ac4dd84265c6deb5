"""Draw pictures of figures with Chromium; every wait is bounded, and a browser that fails costs one line.

The browser runs below a process of its own (chromium_process.py), which this one starts at the first picture, keeps for
the next ones, and ends with all its children.
"""

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ...errors import InputError
from ...records import NO_PICTURES
from ...util.host.imports import python_environment

SECONDS_TO_START, SECONDS_TO_DRAW = 90.0, 90.0  # the longest waits, for a machine with much else to do
_PATIENCE = 3.0  # seconds in which a process that was told to end does
_LONGEST = 40  # letters of the temporary folder's path, to which our folder's and Chromium's names are added
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


class NoPicture(InputError):
    """No picture could be drawn. The table and the provenance of a figure can still be written."""


class _Died(Exception):
    """The drawing process died; it is worth starting another."""


@dataclass
class _Drawer:
    """The process that draws, and the folder in which it keeps its files."""

    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, path: str) -> "_Drawer":
        folder = Path(tempfile.mkdtemp(prefix="pictures-", dir=_short_folder()))
        command = [sys.executable, "-P", "-W", "ignore", str(Path(__file__).with_name("chromium_process.py")), path]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=python_environment(TMPDIR=str(folder)),
            start_new_session=True,  # a group of its own: it ends with the browser and all that the browser started
        )
        drawer = cls(process, folder)
        try:
            drawer.answer(SECONDS_TO_START)
        except BaseException:
            drawer.end()
            raise
        return drawer

    def draw(self, figure: go.Figure, suffix: str, scale: float) -> bytes:
        source, target = (self.folder / name for name in ("figure.json", f"figure.{suffix}"))
        source.write_text(figure.to_json(remove_uids=False))  # without them plotly.js draws random ones
        size = {"width": figure.layout.width, "height": figure.layout.height}
        request = {"figure": str(source), "path": str(target), "options": {"format": suffix, "scale": scale, **size}}
        assert self.process.stdin
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            raise _Died("it ended") from None
        self.answer(SECONDS_TO_DRAW)
        return target.read_bytes()

    def answer(self, seconds: float) -> None:
        """Wait for the answer to a request. Raises _Died, or NoPicture where none comes within `seconds`."""
        assert self.process.stdout
        last, heard = time.monotonic() + seconds, b""
        while not heard.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, last - time.monotonic()))
            if not ready:
                raise NoPicture("chromium.timeout", f"Chromium did not answer within {seconds:g} s")
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                raise _Died("it ended")
            heard += part
        if error := json.loads(heard).get("error"):
            raise _Died(error)

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.close()
            self.process.wait(_PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # the group lives as long as any of it does
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _short_folder() -> str:
    """Folder for temporary files, or /tmp: Chromium does not start if the path of its socket has over 107 letters."""
    found = tempfile.gettempdir()
    return found if len(found) <= _LONGEST or not os.access("/tmp", os.W_OK) else "/tmp"


@dataclass
class _State:
    drawer: _Drawer | None = None
    refused: dict[str, str] = field(default_factory=dict)  # browser → why it is not asked again
    lock: Any = field(default_factory=threading.Lock)


_state = _State()


def browser() -> str | None:
    """Return the path of the Chromium that draws pictures: BROWSER_PATH, else the first on PATH.

    None: there is none.
    """
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if Path(named).is_file() else None
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def drawn(figure: go.Figure, suffix: str, scale: float) -> bytes:
    """Draw with one browser for all figures: it takes seconds to start and a tenth of one to draw.

    A browser that ended since the last figure is started again, once. One that hangs, or cannot start, is not asked
    again until `close_browser`. Raises NoPicture in one line, at the latest after SECONDS_TO_START and SECONDS_TO_DRAW.
    """
    if told := os.environ.get(NO_PICTURES):
        raise NoPicture("chromium.left_out", told)
    path = browser()
    if path is None:
        raise NoPicture(
            "chromium.not_installed",
            "Chromium not found; install it (Debian: apt install chromium), or set BROWSER_PATH",
        )
    with _state.lock:
        if path in _state.refused:
            raise NoPicture("chromium.unusable", _state.refused[path])
        try:
            return _drawn(path, figure, suffix, scale)
        except (NoPicture, _Died) as error:
            _end()
            why = " ".join(str(error).split())[:200]
            told = f"the Chromium {path} cannot be used ({why}); repair it, or name another in BROWSER_PATH"
            _state.refused[path] = told
            raise NoPicture("chromium.unusable", told) from None
        except BaseException:  # an interrupt: what is half drawn would be the answer to the next figure
            _end()
            raise


def why_it_cannot_draw() -> str | None:
    """Draw something small, and end the browser; None if that went well, else why not, in a line."""
    try:
        drawn(go.Figure(layout={"width": 100, "height": 100}), "png", 1)
    except NoPicture as error:
        return str(error)
    finally:
        close_browser()
    return None


def _drawn(path: str, figure: go.Figure, suffix: str, scale: float) -> bytes:
    if _state.drawer is not None:
        try:
            return _state.drawer.draw(figure, suffix, scale)
        except _Died:
            _end()
    _state.drawer = _Drawer.start(path)
    return _state.drawer.draw(figure, suffix, scale)


def _end() -> None:
    if _state.drawer is not None:
        drawer, _state.drawer = _state.drawer, None
        drawer.end()


def _forget() -> None:
    """Reset this module in a forked child: the drawing process is its parent's, and so may the lock be."""
    _state.__init__()  # type: ignore[misc]


def close_browser() -> None:
    """End the browser if this process has started one. The next picture starts another."""
    with _state.lock:
        _end()
        _state.refused.clear()


atexit.register(close_browser)
os.register_at_fork(after_in_child=_forget)
