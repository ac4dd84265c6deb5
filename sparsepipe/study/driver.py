"""Execute the notebooks in their order, one at a time or side by side, and return the files of their figures.

What a batch of notebooks says while it runs: which one, n of N, its step, time so far and time expected.

On a terminal the last line changes every second; elsewhere a line comes at each beginning and end, and twice a minute.
"""

import fcntl
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, RunFailed, one_line
from ..records.run_progress import RunProgress
from ..util.io.files import lock_file
from . import catalogue
from .executed import Executed, not_drawn, run_rows, warnings_of
from .notebook_job import NotebookJob, Outcome, has_minkowski
from .page import write_page

_BUILD_LOCK = Path(sys.prefix, "minkowski-build.lock")  # which scripts/setup.sh holds; its log has the same name
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
        """The work in progress, in one line; empty if there is none."""
        with self._lock:
            parts = [self._state(name, at) for name, at in self._at_work.items()]
            return one_line(" | ".join([*parts, self._whole()])) if parts else ""

    def _state(self, name: str, at: _AtWork) -> str:
        passed = time.monotonic() - at.began
        usual = self._expected[name]
        of_all = f"of {_about(usual)}" if passed < usual else f"(usually {_about(usual)})"
        parts = [f"{self._heading(name)}  {clock(passed)} {of_all}", at.cell, _step(at.report)]
        return " · ".join(part for part in parts if part)

    def _heading(self, name: str) -> str:
        return f"[{self._numbers[name]}/{len(self._numbers)}] {name}"

    def _whole(self) -> str:
        now = time.monotonic()
        ahead = {name: self._expected[name] for name in self._left}
        late = False
        for name, at in self._at_work.items():
            rest = ahead.get(name, 0.0) - (now - at.began)
            ahead[name], late = max(0.0, rest), late or rest < 0
        seconds = sum(ahead.values())
        if late:  # nobody knows how much longer it takes
            more = f"over {_rounded(seconds)} to go" if seconds >= 1 else "longer than usual"
            return f"{clock(self.seconds)} so far, {more}"
        return f"{clock(self.seconds)} so far, {_about(seconds)} to go"

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
    return f"about {_rounded(seconds)}"


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _step(report: Path) -> str:
    """The epoch of the run that a notebook waits for; nothing if it waits for none, or has said nothing."""
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


if TYPE_CHECKING:
    from ..views.plots import Paper


def reproduce(
    figures: Sequence[str] | None = None,
    *,
    jobs: int = 1,
    data: str | Path | None = None,
    out: Path | str = "figures",
    notebooks: Path | None = None,
    only_changed: bool = False,
    resume: bool = False,
    parameters: dict[str, Any] | None = None,
    pictures: bool = True,
    paper: "Paper | None" = None,
) -> list[Path]:
    """Execute notebooks and return the files of their figures.

    `figures` are names of notebooks, or of figures whose notebooks are executed. `work/`, `runs/` and the executed
    copies (`runs/notebooks/`) are next to `out`. After each notebook `out/index.html` is written again: a page of all
    figures, which opens from disk. Notebooks that use MinkowskiEngine come last, and wait while scripts/setup.sh still
    builds it. Meanwhile stderr shows the current notebook, its step, and the time so far and expected. The last lines
    are warnings, and the result of each notebook in a sentence.

    Args:
        jobs: Number of notebooks that run at the same time, except those that measure.
        parameters: Values of parameters, given to every notebook that has them.
        only_changed: Whether to skip notebooks whose text, parameters and code are unchanged since they last ended, and
            whose figures exist.
        resume: Whether to skip notebooks that ended under these parameters, changed since or not. A failed batch
            continues with the notebook that failed. A failed notebook stops only those that need it.
        pictures: Whether to draw pictures. Without them, only tables and provenance are written.
        paper: Width, height, font and title of exported figures.

    Raises:
        InputError: An unknown name, or a parameter that none of these notebooks has.
        RunFailed: At the end: notebook, cell and error of every failure, or pictures that could not be drawn.
    """
    given = parameters or {}
    job = NotebookJob.prepare(out=out, notebooks=notebooks, data=data, parameters=given, pictures=pictures, paper=paper)
    chosen = job.chosen(figures)
    job.check_parameters(chosen, given)
    users = [name for name in chosen if job.uses_minkowski(name)]
    if is_building := bool(users) and not _build_has_ended(wait=False):
        chosen = catalogue.put_off(chosen, users)
    progress = Progress(chosen, job.expected_seconds(chosen))
    if is_building:
        progress.say(
            f"MinkowskiEngine is still being built, at low priority: {', '.join(users)} need it and run last, after "
            "the build; measured times may be longer until then"
        )
    elif users and not has_minkowski():
        progress.say(_without_minkowski(users))
    if paper and (doubt := paper.doubt()):
        progress.say(f"warning: {doubt}")
    batch = _Batch(job, chosen, progress, only_changed, resume, waiting=users if is_building else [])
    try:
        for wave in catalogue.waves(chosen):
            batch.run(wave, jobs)
    finally:
        job.end()
        progress.close()
    batch.summarise()
    batch.raise_failures()
    return [path for name in chosen for path in job.files(name)]


def _build_has_ended(*, wait: bool) -> bool:
    """Return whether no build of MinkowskiEngine is running for this environment; `wait`: return once that is so."""
    try:
        descriptor = os.open(_BUILD_LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        how = fcntl.LOCK_SH if wait else fcntl.LOCK_SH | fcntl.LOCK_NB
        return lock_file(descriptor, how, path=_BUILD_LOCK, remedy="let scripts/setup.sh end before")
    finally:
        os.close(descriptor)


def _without_minkowski(users: Sequence[str]) -> str:
    return (
        f"MinkowskiEngine is not installed: {', '.join(users)} use only the native engine and skip cells that need it"
    )


@dataclass
class _Batch:
    """One call of `reproduce`: what of it is done, what failed, what runs again."""

    job: NotebookJob
    chosen: list[str]
    progress: Progress
    only_changed: bool
    resume: bool
    waiting: list[str]  # for the build of MinkowskiEngine
    done: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    def run(self, wave: Sequence[str], jobs: int) -> None:
        """Run those of a wave that have to; write the page again after each."""
        ready = [name for name in wave if self._has_to_run(name)]
        if any(self.job.exports[name] for name in ready):
            self.job.look_for_a_browser(self.progress.say)
        if set(ready).intersection(self.waiting):
            self._wait_for_minkowski()
        self.again.update(ready)  # those that start from one of them are done again
        if jobs == 1 or len(ready) < 2:
            for name in ready:
                self._run(name)
            return
        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(self._run, ready))
            except BaseException:
                self.job.end()
                raise

    def _wait_for_minkowski(self) -> None:
        """Wait until its build has ended, and say how it did."""
        if not _build_has_ended(wait=False):
            self.progress.say(f"waiting for the build of MinkowskiEngine (log: {_BUILD_LOCK.with_suffix('.log')})")
            _build_has_ended(wait=True)
        self.progress.say("MinkowskiEngine is built" if has_minkowski() else _without_minkowski(self.waiting))
        self.waiting = []

    def _has_to_run(self, name: str) -> bool:
        needs = catalogue.NOTEBOOKS.get(name, ())
        if broken := [needed for needed in needs if needed in self.failures]:
            self.failures[name] = f"not run, as {broken[0]} failed"
            self.progress.end(name, self.failures[name])
            return False
        if self.again.intersection(needs) or (self.again and name == catalogue.LAST):
            return True
        if self.resume and self.job.has_ended_well(name):
            self.progress.end(name, "already finished")
        elif self.only_changed and self.job.is_done(name):
            self.progress.end(name, "unchanged since the last run")
        else:
            return True
        self.done.append(name)
        return False

    def _run(self, name: str) -> None:
        self.progress.begin(name, self.job.report(name))
        outcome: Outcome = self.job.run(name, on_cell=lambda text: self.progress.cell(name, text))
        warned = warnings_of(self.job.report(name))
        if outcome.error:
            self.failures[name] = outcome.error
            log = self.job.log(name)
            self.progress.end(name, f"failed after {outcome.seconds:.1f} s, {outcome.error} (log: {log})")
        else:
            self.done.append(name)
            warnings_text = f", {len(warned)} warning{'s' * (len(warned) > 1)}" if warned else ""
            self.progress.end(name, f"{outcome.seconds:.1f} s{warnings_text}")
        for text in warned:
            self.progress.say(f"  warning: {text}")
        write_page(self.job)

    def summarise(self) -> None:
        """Say what was done, which notebooks warn, and each one's answer."""
        say, job = self.progress.say, self.job
        write_page(job)
        say(f"{len(self.done)} of {len(self.chosen)} notebooks in {clock(self.progress.seconds)}; figures in {job.out}")
        warned = {name: found for name in self.chosen if (found := warnings_of(job.report(name)))}
        for name, found in warned.items():
            for text in found:
                say(f"{name}: warning: {text}")
        if warned:
            say(f"{len(warned)} of {len(self.chosen)} notebooks warn: {', '.join(warned)}")
        for name in self.done:
            executed = Executed.read(name, job.copy(name))
            if executed and executed.sentence:
                say(f"{name}: {executed.sentence}")

    def raise_failures(self) -> None:
        """Raise RunFailed if a notebook failed, or pictures are missing that were asked for."""
        told = [f"{name}.ipynb: {error}" for name, error in self.failures.items()]
        if told:
            told = [f"{'; '.join(told)} (executed copies: {self.job.copies}; continue by --resume)"]
        missing = [
            text for name in self.done if self.job.pictures for text in not_drawn(self.job.report(name)).values()
        ]
        if missing:
            of = sum(len(self.job.exports[name]) for name in self.chosen)
            told.append(f"{len(missing)} of {of} figures have no pictures: {missing[0]}")
        if told:
            raise RunFailed("notebooks.failed", "; ".join(told))
