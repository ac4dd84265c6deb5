"""The parent of several pipelines: their coordinator and one local launcher each, restarted where that helps.

`python -m sparsepipe.launchers.local.pipelines --run-dir RUN [--resume]`, under the supervisor:

    supervisor ── parent ─┬─ coordinator                       started again when it dies: it goes on from its journal
                          ├─ launcher of pipeline 0 ── workers
                          └─ launcher of pipeline 1 ── workers

A pipeline whose worker dies is restarted by its launcher while the others go on. The run fails when all have.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...host.python_path import python_command
from ...pipelines import Pipelines
from ...record import RunRecord
from ...replication import Arithmetic, rule_to_json
from ...runtime import commands
from ...runtime.pipelines.client import connect
from ...runtime.processes.lifeline import watch
from ..prepare_pipelines import RESUME
from ..supervisor import GOING_ON, kill_worker, read_status, say_status, tell_status

_LOOK_SECONDS = 0.1
_BEYOND_ALL = 10**6  # an attempt that is none: after all there can be
_TO_END = 5.0  # seconds that the coordinator has to write its last rows
_MOST_STARTS = 100  # more restarts than any run needs: one that dies at once is at fault itself
_BETWEEN_COORDINATORS = 0.2  # seconds, so that one that cannot start takes no processor


@dataclass(eq=False)
class _Launcher:
    """The launcher of one pipeline, and how it ended."""

    pipeline: int
    folder: Path
    process: subprocess.Popen
    starts: int = 1
    code: int | None = None  # once it has ended for good
    status: dict[str, Any] = field(default_factory=dict)  # then


class Parent:
    """Starts a coordinator and a launcher a pipeline, and waits for the end of all."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder, self.resume = folder, resume
        self.record = RunRecord.load(folder)
        self.plan = Pipelines.load(folder / "plan.json")
        self.launch = f"{os.getpid()}-{time.time_ns()}"
        self.coordinators = 0
        self.next_coordinator = 0.0
        self.coordinator = self._start_coordinator()
        self.servers = 0
        self.server = self._start_server()
        self.launchers = [self._start_launcher(k) for k in range(len(self.plan.pipelines))]

    def wait(self) -> int:
        """Keep the processes going until every launcher has ended; write the status and return the exit code."""
        while any(launcher.code is None for launcher in self.launchers):
            time.sleep(_LOOK_SECONDS)
            if self.coordinator.poll() is not None and time.monotonic() > self.next_coordinator:
                self.coordinator = self._start_coordinator()
            if self.server is not None and self.server.poll() is not None:
                self.server = self._start_server()
            for launcher in self.launchers:
                if launcher.code is None and (code := launcher.process.poll()) is not None:
                    self._ended(launcher, code)
        for process in filter(None, (self.server, self.coordinator)):
            _end(process)
        status = self._status()
        tell_status(self.folder, **status)
        return int(status.get("exit_code", 0))

    def _start_coordinator(self) -> subprocess.Popen:
        self.coordinators += 1
        if self.coordinators > _MOST_STARTS:
            raise RuntimeError(f"the coordinator ended {_MOST_STARTS} times; its log is logs/coordinator.log")
        options = ["--run-dir", str(self.folder), "--pipelines", str(len(self.plan.pipelines))]
        options += ["--replication", json.dumps(rule_to_json(self.plan.replication))]
        options += ["--seed", str(self.record.config["seed"]), "--launch", self.launch]
        if (self.folder / RESUME).exists():
            options += ["--resume", str(self.folder / RESUME)]
        self.next_coordinator = time.monotonic() + _BETWEEN_COORDINATORS
        return _start("sparsepipe.runtime.pipelines.service", options, self.folder / "logs" / "coordinator.log", {})

    def _start_launcher(self, k: int, *, starts: int = 1) -> _Launcher:
        folder, ranks = self.folder / "pipelines" / str(k), self.plan.ranks_of(k)
        more = {
            "SPARSEPIPE_PIPELINE": str(k),
            "SPARSEPIPE_RANKS": ",".join(map(str, ranks)),
            "SPARSEPIPE_NUM_RANKS": str(len(self.plan.ranks)),
            "SPARSEPIPE_FIRST_RANK": str(self.plan.first_rank(k)),
            # Higher than that of any before: workers tell their attempts apart by it.
            "SPARSEPIPE_FIRST_ATTEMPT": str((starts - 1) * (self._most_restarts + 1)),
        }
        options = ["--run-dir", str(folder), *(["--resume"] if self.resume or starts > 1 else [])]
        process = _start("sparsepipe.launchers.local", options, folder / "logs" / "launcher.log", more)
        tell_status(folder, state="running", guard=os.getppid(), launcher=process.pid)
        return _Launcher(k, folder, process, starts)

    @property
    def _most_restarts(self) -> int:
        return int(self.record.config["max_restarts"])

    def _ended(self, launcher: _Launcher, code: int) -> None:
        """A launcher ended: start another where it was killed, else keep how it stands."""
        for path in (launcher.folder / "logs").glob("rank*.pid"):  # workers whose launcher was killed
            kill_worker(path, launcher.folder)
        if code < 0 and launcher.starts <= self._most_restarts:
            self.launchers[launcher.pipeline] = self._start_launcher(launcher.pipeline, starts=launcher.starts + 1)
            return
        try:
            launcher.status = read_status(launcher.folder)
        except (OSError, ValueError):
            launcher.status = {"state": "failed", "reason": "how it ended cannot be read"}
        if launcher.status["state"] in GOING_ON:
            what = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            launcher.status = {"state": "failed", "reason": f"its launcher {what}; see {launcher.folder}/logs"}
            tell_status(launcher.folder, **launcher.status)
        launcher.code = code if code >= 0 else 128 - code
        if launcher.code:
            self._tell_gone(launcher.pipeline)

    def _tell_gone(self, pipeline: int) -> None:
        """Tell the coordinator that a pipeline does not come back: a new one has no connection whose end would."""
        with (
            suppress(RuntimeError),
            closing(
                connect(self.folder, pipeline=pipeline, rank=-1, attempt=_BEYOND_ALL, timeout=_TO_END)
            ) as coordinator,
        ):
            coordinator.leave()

    def _start_server(self) -> subprocess.Popen | None:
        """Start the parameter server, where the rule has one. A new one begins from what it is given first."""
        if self.plan.replication.arithmetic is not Arithmetic.SERVER:
            return None
        options = ["--run-dir", str(self.folder), "--attempt", str(self.servers)]
        options += ["--timeout", str(self.record.config["timeout_seconds"])]
        self.servers += 1
        if self.servers > _MOST_STARTS:
            raise RuntimeError(f"the parameter server ended {_MOST_STARTS} times; its log is logs/server.log")
        return _start(
            "sparsepipe.runtime.replication.between_pipelines", options, self.folder / "logs" / "server.log", {}
        )

    def _status(self) -> dict[str, Any]:
        """How the whole run stands: it failed where no pipeline came to its end."""
        failed = [launcher for launcher in self.launchers if launcher.code]
        reasons = [f"pipeline {one.pipeline}: {one.status.get('reason', one.status['state'])}" for one in failed]
        if len(failed) == len(self.launchers):
            cause = max(failed, key=lambda one: one.code == 2)  # what the user gave, where that is at fault
            status = {**cause.status, "state": "failed", "reason": reasons[failed.index(cause)]}
            rank = status.get("rank")
            if rank is not None:
                status["rank"] = self.plan.ranks_of(cause.pipeline)[rank]
            status["exit_code"] = cause.code
            return {key: value for key, value in status.items() if key != "time"}
        told = {"reason": "; ".join(reasons)} if reasons else {}
        if (found := commands.taken(self.folder)) is None:
            return {"state": "finished", **told}
        after = f"stopped after {found[1]} minibatches, as asked; resume it to go on"
        for launcher in set(self.launchers) - set(failed):
            tell_status(launcher.folder, state="stopped", reason=after)
        return {"state": "stopped", "reason": "; ".join([after, *reasons])}


def _end(process: subprocess.Popen) -> None:
    """Ask a process to end, and see that it does."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(module: str, options: list[str], log: Path, more: dict[str, str]) -> subprocess.Popen:
    with log.open("ab") as stream:
        return subprocess.Popen(
            python_command(module, *options),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **more},
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.local.pipelines", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    watch()
    try:
        return Parent(arguments.run_dir, resume=arguments.resume).wait()
    except FileNotFoundError as error:
        say_status(state="failed", reason=f"the run folder is gone: {arguments.run_dir} ({error.strerror})")
        return 1


if __name__ == "__main__":
    sys.exit(main())
