"""The parent of several pipelines on hosts: a controller each, and their coordinator on one of the hosts.

`python -m sparsepipe.launchers.ssh.pipelines --run-dir RUN [--resume]`, under the supervisor:

    supervisor ── parent ─┬─ ssh host1 ── agent ── coordinator
                          ├─ controller of pipeline 0 ─── ssh host1 ── agent ── workers
                          └─ controller of pipeline 1 ─┬─ ssh host2 ── agent ── workers
                                                       └─ ssh host3 ── agent ── workers

A controller is that of a plan of one pipeline (controller.py), in the pipeline's own folder of the record.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from ...cluster import Cluster
from ...errors import InputError
from ...host.limits import limit_met
from ...pipelines import Pipelines
from ...record import RunRecord
from ...runtime.processes.lifeline import watch
from ...runtime.training_state.partial_checkpoints import remove_partial
from ..failure_cause import FailureCause
from ..local.coordination import start
from ..pipelines_parent import Parent
from .connection import OverSsh
from .controller import finish
from .hosted_coordination import HostedCoordination
from .placement import HOSTS, hosted_pipelines
from .session import HostLost


class Controllers:
    """Starts the controller of each pipeline."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self._folder, self._resume = folder, resume

    def start(self, k: int, *, first_attempt: int) -> subprocess.Popen:
        """Start that of pipeline `k`, whose workers count their attempts from `first_attempt`."""
        folder = self._folder / "pipelines" / str(k)
        options = ["--run-dir", str(folder), "--pipeline", str(k), "--first-attempt", str(first_attempt)]
        options += ["--resume"] if self._resume or first_attempt else []
        return start("sparsepipe.launchers.ssh", options, folder / "logs" / "launcher.log")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.ssh.pipelines", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    folder: Path = arguments.run_dir
    watch()
    try:
        return _run(folder, resume=arguments.resume)
    except HostLost as lost:
        cause = lost.cause
    except InputError as error:
        cause = FailureCause(str(error), None, None, exit_code=2)
    except Exception as error:
        traceback.print_exc()
        what = limit_met(error, where=folder) or f"{type(error).__name__}: {error}"
        cause = FailureCause(f"the launcher: {what}; its log is logs/launcher.log", None, None)
    return finish(folder, cause)


def _run(folder: Path, *, resume: bool) -> int:
    """Run all pipelines to the end, and write how they ended; return the exit code."""
    record, plan, cluster = RunRecord.load(folder), Pipelines.load(folder / "plan.json"), Cluster.load(folder / HOSTS)
    first = hosted_pipelines(plan, cluster)[0]
    with HostedCoordination(record, first.hosts[0], reach=OverSsh(), alone=len(first.of_all) == 1) as coordination:
        coordination.begin(f"{os.getpid()}-{time.time_ns()}", resume=resume)
        parent = Parent(record, plan, coordination, Controllers(folder, resume=resume))
        try:
            return parent.wait()
        finally:
            parent.kill()
            remove_partial(folder)


if __name__ == "__main__":
    sys.exit(main())
