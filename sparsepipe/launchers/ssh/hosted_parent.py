"""The parent of several pipelines on hosts, however these are reached: a controller each, and their coordinator.

    supervisor ── parent ─┬─ host1 ── agent ── coordinator
                          ├─ controller of pipeline 0 ─── host1 ── agent ── workers
                          └─ controller of pipeline 1 ─┬─ host2 ── agent ── workers
                                                       └─ host3 ── agent ── workers

A controller is that of a plan of one pipeline (controller.py), in the pipeline's own folder of the record. Where the
coordinator's host is lost and restarts are left, all begin again from the last checkpoint: with a coordinator on
another of their hosts or, as asked and where there is no other, on that one once it is back.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Protocol

from ...errors import InputError
from ...pipelines import Pipelines
from ...record import RunRecord
from ...runtime import commands
from ...runtime.training_state.checkpoint_folders import remove_partial
from ..failure_cause import cause_of
from ..going_on import tell_going_on
from ..local.coordination import start
from ..pipelines_parent import Parent, awaiting
from ..prepare_pipelines import go_on_from_checkpoint
from .connection import Reach
from .controller import finish
from .hosted_coordination import HostedCoordination
from .placement import HostedRanks
from .session import HostLost, HostUnreached

_LOOK_AGAIN_SECONDS = 2.0  # for a host that is waited for


class PlaceOfAll(Protocol):
    """Where the ranks of all pipelines are."""

    @property
    def controller(self) -> Sequence[str]:
        """The module that is a pipeline's controller, and the options of its own that it is started with."""
        ...

    @property
    def reach(self) -> Reach:
        """The way to the host of the coordinator."""
        ...

    def hosts(self) -> tuple[HostedRanks, ...]:
        """Return the hosts of all ranks as they are now; the coordinator is begun on the first."""
        ...

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """Return in a few words that hosts which were lost can be worked with again; None while they cannot."""
        ...


class Controllers:
    """Starts the controller of each pipeline."""

    def __init__(self, folder: Path, words: Sequence[str], *, resume: bool, begun: bool) -> None:
        """`words`: see `PlaceOfAll.controller`. `begun`: the run had begun before, on hosts that are waited for now."""
        self._folder, self._words = folder, words
        self._more = [*(["--resume"] if resume else []), *(["--begun"] if begun else [])]

    def start(self, k: int, *, first_attempt: int) -> Popen:
        """Start that of pipeline `k`, whose workers count their attempts from `first_attempt`."""
        folder, (module, *own) = self._folder / "pipelines" / str(k), self._words
        options = [*own, "--run-dir", str(folder), "--pipeline", str(k), "--first-attempt", str(first_attempt)]
        options += self._more or (["--resume"] if first_attempt else [])
        return start(module, options, folder / "logs" / "launcher.log")


class HostedParent:
    """Runs all pipelines of a record, again where the host of their coordinator was lost and that is allowed."""

    def __init__(self, record: RunRecord, plan: Pipelines, place: PlaceOfAll, *, resume: bool) -> None:
        self.record, self.plan, self.place, self.resume = record, plan, place, resume
        self._waits = record.config.get("on_lost_host") == "wait"
        self._begun = False
        self._lost: set[str] = set()  # names of hosts that the coordinator is not begun on again

    def run(self) -> int:
        """Run all to the end, and write how they ended; return the exit code.

        Raises HostLost where the coordinator's host is lost, and InputError for hosts that cannot be worked with.
        """
        left = int(self.record.config["max_restarts"])
        hosted = self.place.hosts()[0]
        while True:
            try:
                return self._with_coordinator_on(hosted)
            except (HostLost, HostUnreached) as error:
                if not self._begun:
                    raise
                if not left or self._asked_to_stop:
                    raise HostLost(str(error)) from error
                left -= 1
                hosted = self._after(hosted, str(error))

    def _with_coordinator_on(self, hosted: HostedRanks) -> int:
        folder, alone = self.record.folder, len(self.place.hosts()) == 1
        controllers = Controllers(folder, self.place.controller, resume=self.resume, begun=self._begun)
        with HostedCoordination(self.record, hosted, reach=self.place.reach, alone=alone) as coordination:
            coordination.begin(f"{os.getpid()}-{time.time_ns()}", resume=self.resume)
            self._begun = True
            parent = Parent(self.record, self.plan, coordination, controllers)
            try:
                return parent.wait()
            finally:
                parent.kill()
                remove_partial(folder)

    @property
    def _asked_to_stop(self) -> bool:
        folder = self.record.folder
        return commands.requested(folder) == commands.STOP or commands.taken(folder) is not None

    def _after(self, lost: HostedRanks, reason: str) -> HostedRanks:
        """Make all ready to begin again after a host was lost; return the one for the coordinator.

        Raises HostLost where that host is waited for and the run is asked to stop meanwhile.
        """
        name, folder = lost.node.name, self.record.folder
        self._lost.add(name)
        others = [hosted for hosted in self.place.hosts() if hosted.node.name not in self._lost]
        if others and not self._waits:
            chosen = others[0]
        else:
            _say(f"{reason}; waiting for {name}, to go on from the last checkpoint then")
            with awaiting(folder, name, attempt=0):
                self._await_back(lost, reason)
            self._lost.discard(name)
            there = {hosted.node.name: hosted for hosted in self.place.hosts()}
            chosen = there.get(name) or next(iter(there.values()))
        told = f"{reason}; all pipelines go on from the last checkpoint, with their coordinator on {chosen.node.name}"
        _say(told)
        tell_going_on(folder, told)
        self.resume = True
        go_on_from_checkpoint(folder)
        for k in range(len(self.plan.pipelines)):
            commands.clear(folder / "pipelines" / str(k))
        return chosen

    def _await_back(self, lost: HostedRanks, reason: str) -> None:
        while (told := self.place.back([lost])) is None:
            if self._asked_to_stop:
                raise HostLost(f"{reason}; it was waited for until the run was asked to stop")
            time.sleep(_LOOK_AGAIN_SECONDS)
        _say(told)


def parser_of_parent(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every parent has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    return parser


def run_all(
    folder: Path, place: Callable[[RunRecord, Pipelines], AbstractContextManager[PlaceOfAll]], *, resume: bool
) -> int:
    """Run the pipelines of a record on hosts where `place` has them, and write how that ended; return the exit code."""
    refused = False
    try:
        record, plan = RunRecord.load(folder), Pipelines.load(folder / "plan.json")
        with place(record, plan) as there:
            return HostedParent(record, plan, there, resume=resume).run()
    except HostLost as lost:
        cause = lost.cause
    except Exception as error:
        cause, refused = cause_of(error, folder), isinstance(error, InputError)
    return finish(folder, cause, refused=refused)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
