"""What a batch of notebooks says while it runs: which one, n of N, its step, time so far and time expected.

On a terminal the last line changes every second; elsewhere a line comes at each beginning and end, and twice a minute.
"""

import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..display.markup import one_line
from ..errors import InputError
from ..record.run_progress import RunProgress
from .report import run_rows

_TERMINAL, _LOG = 1.0, 30.0  # seconds between two looks at what is at work


@dataclass
class _AtWork:
    number: int
    report: Path
    began: float = field(default_factory=time.monotonic)
    cell: str = ""


class Progress:
    """Follows the notebooks `names`; `expected` are the seconds of each. Several may be at work at once."""

    def __init__(self, names: Sequence[str], expected: Mapping[str, float], *, terminal: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._numbers = {name: number for number, name in enumerate(names, start=1)}
        self._expected, self._began = dict(expected), time.monotonic()
        self._left = set(names)  # neither ended nor left out
        self._at_work: dict[str, _AtWork] = {}
        self._lock = threading.RLock()
        self._width = 0  # of the line that changes
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._ticker.start()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._print(one_line(line))

    def begin(self, name: str, report: Path) -> None:
        """Say that a notebook begins, which adds what it tells to the file `report`."""
        with self._lock:
            self._at_work[name] = _AtWork(self._numbers[name], report)
            if not self._terminal:
                self._print(f"{self._heading(name)}: begins, {_about(self._expected[name])}; {self._whole()}")
        self._show()

    def cell(self, name: str, text: str) -> None:
        """Take note of the cell that a notebook has come to."""
        with self._lock:
            if name in self._at_work:
                self._at_work[name].cell = text

    def end(self, name: str, line: str) -> None:
        """Say how a notebook ended, or why it is left out."""
        with self._lock:
            self._left.discard(name)
            self._at_work.pop(name, None)
            self._print(f"{self._heading(name)}: {one_line(line)}")
        self._show()

    def close(self) -> None:
        """Take the changing line away."""
        self._closed.set()
        self._ticker.join()
        with self._lock:
            self._erase()

    @property
    def seconds(self) -> float:
        """Seconds since the batch began."""
        return time.monotonic() - self._began

    def state(self) -> str:
        """What is at work, in one line; nothing where nothing is."""
        with self._lock:
            told = [self._state(name, at) for name, at in self._at_work.items()]
            return one_line(" | ".join([*told, self._whole()])) if told else ""

    def _state(self, name: str, at: _AtWork) -> str:
        passed = time.monotonic() - at.began
        parts = [f"{self._heading(name)}  {clock(passed)} of {_about(self._expected[name])}", at.cell, _step(at.report)]
        return " · ".join(part for part in parts if part)

    def _heading(self, name: str) -> str:
        return f"[{self._numbers[name]}/{len(self._numbers)}] {name}"

    def _whole(self) -> str:
        now = time.monotonic()
        ahead = {name: self._expected[name] for name in self._left}
        for name, at in self._at_work.items():
            ahead[name] = max(0.0, ahead.get(name, 0.0) - (now - at.began))
        return f"{clock(self.seconds)} so far, {_about(sum(ahead.values()))} to go"

    def _tick(self) -> None:
        while not self._closed.wait(_TERMINAL if self._terminal else _LOG):
            if self._terminal:
                self._show()
            elif line := self.state():
                self.say(line)

    def _show(self) -> None:
        if not self._terminal:
            return
        with self._lock, suppress(OSError):
            line = self.state()
            self._erase()
            if line:
                sys.stderr.write(line[: _columns() - 1])
                sys.stderr.flush()
                self._width = min(len(line), _columns() - 1)

    def _print(self, line: str) -> None:
        with suppress(OSError):
            self._erase()
            print(line, file=sys.stderr, flush=True)

    def _erase(self) -> None:
        if self._width:
            with suppress(OSError):
                sys.stderr.write(f"\r{' ' * self._width}\r")
                sys.stderr.flush()
            self._width = 0


def clock(seconds: float) -> str:
    """Seconds as people read them: "0:07", "12:30", "1:02:03"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _about(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


def _step(report: Path) -> str:
    """The epoch of the run that a notebook waits for; nothing where it waits for none, or has said nothing."""
    progress, known = RunProgress(), False
    try:
        rows = run_rows(report)
    except InputError:
        return ""
    begins = [k for k, row in enumerate(rows) if row.get("event") == "start"]
    for row in rows[begins[-1] :] if begins else rows:
        known = progress.take(row) or known
    if rows and rows[-1].get("event") == "epoch":
        return f"{progress.epoch} done"
    return progress.epoch if known else ""


def _columns() -> int:
    return max(20, shutil.get_terminal_size().columns)
