"""The coordination of several pipelines on one of their hosts, as the agent there has it: a process under a supervisor.

    agent ──pipe──► supervisor ──► this module ─┬─ coordinator             at the host's address of the network alone
                                                └─ parameter server

`python -m sparsepipe.launching.ssh.hosted_coordinator --run-dir RUN --launch NAME --host ADDRESS …` is that module. It
ends, with the last rows of the record written, by SIGTERM.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...runtime.processes.lifeline import watch
from ...util.host.imports import python_command, python_environment
from ...values.plan import Plan
from ..local.coordination import LOG_FILES, Coordination, GoneAttempts, address_of
from ..supervisor import read_status
from .hosted_run import HostedRun

RECORD_FILES = (  # what is written here of the record
    *("metrics.jsonl", "minibatches.jsonl", "merges.jsonl", *LOG_FILES),
    *("logs/launcher.log", "control/taken.json", "control/refused.json"),
)
_MODULE = "sparsepipe.launching.ssh.hosted_coordinator"
_LOOK_SECONDS = 0.1
_TO_END = 25.0  # seconds for the coordinator to write its last rows


class HostedCoordinator:
    """The process, in the folder of a `HostedRun` that has the plan of all pipelines."""

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._gone = GoneAttempts(run.folder, encrypts=False)
        self._told = False

    def start(self, job: Mapping[str, Any], *, interface: str, address: str) -> None:
        """Start it, as the controller describes it, at `address`, which the network's `interface` has."""
        self._gone = GoneAttempts(self._run.folder, encrypts=bool(job["encrypts"]))
        options = ["--run-dir", str(self._run.folder), "--launch", str(job["launch"]), "--host", address]
        options += ["--seed", str(int(job["seed"])), "--timeout", str(float(job["timeout"]))]
        options += ["--encrypt"] if job["encrypts"] else []
        environment = python_environment(GLOO_SOCKET_IFNAME=interface, OMP_NUM_THREADS="1")
        self._run.begin(python_command(_MODULE, *options), environment, RECORD_FILES)

    def listens(self) -> dict[str, Any] | None:
        """Return where the coordinator listens and its secret, once: as soon as it does."""
        if self._told or (found := address_of(self._run.folder)) is None:
            return None
        self._told = True
        return {"host": found.host, "port": found.port, "secret": found.secret.hex()}

    def tell_gone(self, pipeline: int, attempt: int | None) -> None:
        """Tell the coordinator that an attempt of a pipeline, or it for good, has ended."""
        self._gone.add(pipeline, attempt)

    def look(self) -> None:
        """Tell it of what it has not heard of yet."""
        self._gone.tell()

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        with suppress(OSError, ValueError, KeyError):
            os.kill(int(read_status(self._run.folder)["launcher"]), signal.SIGTERM)
            self._run.wait(_TO_END)


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--launch", required=True, help="names this launch of the run")
    parser.add_argument("--host", required=True, help="the address to listen at")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--encrypt", action="store_true")
    arguments = parser.parse_args()
    watch()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    coordination = Coordination(
        arguments.run_dir,
        Plan.load(arguments.run_dir / "plan.json"),
        seed=arguments.seed,
        timeout=arguments.timeout,
        launch=arguments.launch,
        host=arguments.host,
        encrypts=arguments.encrypt,
    )
    while not ended.wait(_LOOK_SECONDS):
        coordination.look()
    coordination.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
