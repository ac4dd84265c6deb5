"""The parent process of several pipelines, on one machine or over hosts: it starts a launcher for each.

A launcher that is killed is started again if that is allowed. The run fails when all pipelines have, and at once
where what the user gave keeps one of them from beginning.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import DamagedRecord
from ..records import RunRecord
from ..records.run_progress import begin_plan, followed_plans, newest_plan
from ..runtime import commands
from ..runtime.pipelines.member import MINIBATCHES
from ..util.io.files import read_rows
from ..util.text.numbers import number_of
from ..values.plan import Plan
from .run_folders import went_on
from .supervisor import GOING_ON, STATUS, kill_worker, read_status, tell_begun, tell_status

# In the status of a run that has lost hosts: which ones it waits for, to go on, and the attempt that lost them.
_AWAITS, _LOST_BY = "awaits", "lost_by_attempt"
_INPUT = 2  # the exit code of what the user gave being at fault
_LOOK_SECONDS = 0.1


class Coordinating(Protocol):
    """The coordinator of all pipelines, wherever it is."""

    def look(self) -> None:
        """See that it continues."""
        ...

    def tell_gone(self, pipeline: int, attempt: int | None = None) -> None:
        """Tell it that an attempt of a pipeline has ended; without one, that the pipeline does not come back."""
        ...

    def end(self) -> None:
        """End it, once its record is whole."""
        ...


class Process(Protocol):
    """Interface of a launcher's process: a `subprocess.Popen` or a forked process."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit code, -9 where SIGKILL ended it; None while it is alive."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        ...


class Launchers(Protocol):
    """Starts the launcher of one pipeline."""

    def start(self, k: int, *, first_attempt: int) -> Process:
        """Start that of pipeline `k`, whose workers count their attempts from `first_attempt`."""
        ...


@dataclass(eq=False)
class _Launcher:
    """The launcher of one pipeline, and how it ended."""

    pipeline: int
    folder: Path
    process: Process
    starts: int = 1
    code: int | None = None  # once it has ended for good
    refused: bool = False  # what the user gave kept it from beginning
    last_lost: int = -1  # the last of its attempts that lost a host
    status: dict[str, Any] = field(default_factory=dict)  # then


class Parent:
    """Starts a launcher a pipeline alongside their coordination, and waits for the end of all."""

    def __init__(self, record: RunRecord, plan: Plan, coordination: Coordinating, launchers: Launchers) -> None:
        self.folder, self.record, self.plan = record.folder, record, plan
        self.coordination, self._starting = coordination, launchers
        self._followed: dict[int, int] = {}  # pipeline → when its plan was written that the whole run's has
        self.launchers = [self._start(k) for k in range(len(plan.pipelines))]

    def wait(self, pause: Callable[[float], object] = time.sleep) -> int:
        """Keep the processes going until every launcher has ended; write the status and return the exit code.

        `pause` is what passes a time of so many seconds between two looks.
        """
        while any(launcher.code is None for launcher in self.launchers) and not self._refused:
            pause(_LOOK_SECONDS)
            self.coordination.look()
            for launcher in self.launchers:
                if launcher.code is None and (code := launcher.process.poll()) is not None:
                    self._ended(launcher, code)
            self._look_at_lost()
            self._follow_plans()
        self.kill()
        self._follow_plans()
        self.coordination.end()
        status = self._status()
        told = [*went_on(self.folder), *rejoined(self.folder), *self._went_on_without(status)]
        tell_status(self.folder, **{**status, **({"went_on": told} if told else {})})
        return int(status.get("exit_code", 0))

    def kill(self) -> None:
        """End every launcher at once."""
        for launcher in self.launchers:
            if launcher.process.poll() is None:
                launcher.process.kill()
                launcher.process.wait()

    def _start(self, k: int, *, starts: int = 1) -> _Launcher:
        folder = self.folder / "pipelines" / str(k)
        (folder / STATUS).unlink(missing_ok=True)  # how one before it stood says nothing from now on
        # Higher than that of any before: workers tell their attempts apart by it.
        process = self._starting.start(k, first_attempt=(starts - 1) * (self._most_restarts + 1))
        tell_begun(folder, state="running", guard=os.getppid(), launcher=process.pid)
        return _Launcher(k, folder, process, starts)

    @property
    def _most_restarts(self) -> int:
        return int(self.record.config["max_restarts"])

    def _ended(self, launcher: _Launcher, code: int) -> None:
        """A launcher ended: start another where it was killed, else keep how it stands."""
        for path in (launcher.folder / "logs").glob("rank*.pid"):  # workers whose launcher was killed
            kill_worker(path, launcher.folder)
        if code < 0 and launcher.starts <= self._most_restarts:
            self.launchers[launcher.pipeline] = self._start(launcher.pipeline, starts=launcher.starts + 1)
            return
        try:
            launcher.status = read_status(launcher.folder)
        except (OSError, ValueError):
            launcher.status = {"state": "failed", "reason": "its exit status cannot be read"}
        if launcher.status["state"] in GOING_ON:
            what = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            launcher.status = {"state": "failed", "reason": f"its launcher {what}; see {launcher.folder}/logs"}
            tell_status(launcher.folder, **launcher.status)
        launcher.code = code if code >= 0 else 128 - code
        launcher.refused = launcher.code == _INPUT and not self._has_joined(launcher.pipeline)
        if launcher.code:
            self.coordination.tell_gone(launcher.pipeline)

    @property
    def _refused(self) -> bool:
        """Return whether a pipeline could not begin with what the user gave: the others are not left to train without
        it.
        """
        return any(launcher.refused for launcher in self.launchers)

    def _has_joined(self, pipeline: int) -> bool:
        path = self.folder / MINIBATCHES
        rows = read_rows(path) if path.exists() else []
        return any(row["event"] == "joined" and row["pipeline"] == pipeline for row in rows)

    def _follow_plans(self) -> None:
        """Make a plan that a pipeline has come under part of the whole run's."""
        for launcher in self.launchers:
            with suppress(OSError, DamagedRecord):  # it is looked for again
                written = (launcher.folder / "plan.json").stat().st_mtime_ns
                if self._followed.get(launcher.pipeline) == written:
                    continue
                (first, own), whole = followed_plans(launcher.folder)[-1], newest_plan(self.folder)
                if whole.local(launcher.pipeline) != own:
                    begin_plan(self.folder, whole.with_local(launcher.pipeline, own), first or 0)
                self._followed[launcher.pipeline] = written

    def _look_at_lost(self) -> None:
        """Tell the others of a pipeline that has lost a host, and have it wait no longer where none is at work."""
        left = [launcher for launcher in self.launchers if launcher.code is None]
        lost_by = {launcher: _lost_by(launcher) for launcher in left}
        for launcher, attempt in lost_by.items():
            if attempt is not None and attempt > launcher.last_lost:
                launcher.last_lost = attempt
                self.coordination.tell_gone(launcher.pipeline, attempt)
        if None not in lost_by.values():
            for launcher in left:
                if commands.requested(launcher.folder) is None:
                    commands.ask(launcher.folder, commands.STOP)

    @property
    def _failed(self) -> list[_Launcher]:
        return [launcher for launcher in self.launchers if launcher.code]

    @property
    def _reasons(self) -> list[str]:
        """Return the failure reason of each failed pipeline."""
        return [f"pipeline {one.pipeline}: {one.status.get('reason', one.status['state'])}" for one in self._failed]

    def _went_on_without(self, status: Mapping[str, Any]) -> list[str]:
        """A line for each pipeline that the others continued without, where the run has come to its end."""
        if "exit_code" in status:
            return []
        return [f"{reason}; the others continued without it" for reason in self._reasons]

    def _status(self) -> dict[str, Any]:
        """Return the state of the whole run. It failed if no pipeline finished."""
        failed, reasons = self._failed, self._reasons
        if len(failed) == len(self.launchers) or self._refused:
            cause = max(failed, key=lambda one: one.code == _INPUT)
            state = "refused" if self._refused and cause.status["state"] == "refused" else "failed"
            status = {**cause.status, "state": state, "reason": reasons[failed.index(cause)]}
            rank = status.get("rank")
            if rank is not None:
                status["rank"] = self.plan.ranks_of(cause.pipeline)[rank]
            status["exit_code"] = cause.code
            return {key: value for key, value in status.items() if key != "time"}
        told = {"reason": "; ".join(reasons)} if reasons else {}
        if (found := commands.taken(self.folder)) is None:
            return {"state": "finished", **told}
        after = f"stopped after {number_of(found[1], 'minibatch')} as requested; resume it to continue"
        for launcher in set(self.launchers) - set(failed):
            tell_status(launcher.folder, state="stopped", reason=after)
        return {"state": "stopped", "reason": "; ".join([after, *reasons])}


@contextmanager
def awaiting(folder: Path, hosts: str, *, attempt: int) -> Iterator[None]:
    """Say in a run's status, to the end of the block, that it waits for hosts that an attempt has lost."""
    status = read_status(folder)
    tell_status(folder, **{**status, _AWAITS: hosts, _LOST_BY: attempt})
    yield
    tell_status(folder, **status)


def _lost_by(launcher: _Launcher) -> int | None:
    """Return the attempt of a pipeline that lost the host it waits for; None if it waits for none."""
    with suppress(OSError, ValueError):
        found = read_status(launcher.folder).get(_LOST_BY)
        return found if isinstance(found, int) else None
    return None


def rejoined(folder: Path) -> Iterator[str]:
    """Yield a line for each time that a pipeline came back, since the run began or was last resumed."""
    path = folder / MINIBATCHES
    left: dict[int, float] = {}  # pipeline → when it died, until it has come back
    trained: dict[int, int] = {}  # minibatches that the others have done since
    told: list[str] = []
    for row in read_rows(path) if path.exists() else []:
        event, pipeline = row["event"], row.get("pipeline", -1)
        if event == "resume":
            left, trained, told = {}, {}, []
        elif event == "left":
            left.setdefault(pipeline, row["seconds"])
            trained.setdefault(pipeline, 0)
        elif event == "done":
            trained = {k: count + len(row["minibatches"]) for k, count in trained.items()}
        elif event == "joined" and pipeline in left:
            died, count = left.pop(pipeline), trained.pop(pipeline)
            told.append(
                f"pipeline {pipeline}: ended {died:.1f} s after the start and trained again from "
                f"{row['seconds']:.1f} s on; the others trained {number_of(count, 'minibatch')} meanwhile"
            )
    yield from told
