"""The ssh launcher's own process, on the launching host: it has an agent on each host, and brings all together.

`python -m sparsepipe.launchers.ssh --run-dir DIR [--resume]`, under the supervisor, as the local launcher is:

    supervisor ── controller ─┬─ ssh host1 ── agent ── workers 0, 1        the run's record is here, and is written
                              └─ ssh host2 ── agent ── workers 2, 3        from what the agents say

It ends with the supervisor; with its `ssh` processes end the agents, and with them what they started.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cluster import Cluster
from ...display.counting import number_of
from ...errors import InputError
from ...host.ssh import ssh_command
from ...io.files import write_atomic
from ...plan import Plan
from ...record import RunRecord
from ...record.processes import num_processes
from ...runtime import commands
from ...runtime.processes.lifeline import watch
from ...runtime.training_state.checkpoint_folders import remove_partial
from ..failure_cause import FailureCause, cause_of
from ..going_on import went_on
from ..supervisor import tell_status
from .connection import OverSsh
from .placement import HOSTS, HostedPipeline, HostedRanks, hosted_pipelines, hosted_ranks
from .restarting import OneOfSeveral, Place, Restarting, Taken, clear_what_is_torn
from .rows import METRICS

if TYPE_CHECKING:  # it brings planners
    from ...planners.hosts_left import Continuation

_SILENT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class HostsOfFile:
    """The hosts of a cluster, reached by `ssh`: the `Place` (restarting.py) of a run's ranks."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """`folder`: of the run, where the hosts are kept for whoever resumes it."""
        self._folder, self._cluster = folder, cluster

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[Taken]:
        """Yield the hosts of the plan's ranks; whoever resumes the run finds them as well, once its plan is theirs."""
        text, path = self._cluster.to_toml(), self._folder / HOSTS
        if not path.exists() or path.read_text() != text:
            write_atomic(path, text, private=True)
        yield Taken(hosted_ranks(num_processes(self._folder, plan), self._cluster), OverSsh())

    def without(self, plan: Plan, lost: Sequence[HostedRanks], *, profile: Path) -> "Continuation":
        from ...planners.hosts_left import plan_for_hosts_left  # planners, which no launch waits for

        names = {hosted.node.name for hosted in lost}
        going = plan_for_hosts_left(plan, self._cluster, names, profile=profile)
        hosted_ranks(1 + max(going.plan.ranks), going.cluster)
        self._cluster = going.cluster
        return going

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """See `Place`: once `ssh` gets to them all."""
        return back_over_ssh(lost)


class HostsOfPipeline(OneOfSeveral):
    """The hosts of one of several pipelines, reached by `ssh`."""

    def __init__(self, pipeline: HostedPipeline) -> None:
        self._pipeline = pipeline

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[Taken]:
        yield Taken(self._pipeline.hosts, OverSsh(), self._pipeline)

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        return back_over_ssh(lost)


def back_over_ssh(lost: Sequence[HostedRanks]) -> str | None:
    """Return in a few words that `ssh` gets to all of these hosts; None while it does not."""
    nodes = [hosted.node for hosted in lost]
    for node in nodes:
        if subprocess.run(ssh_command(node.ssh_destination, ["true"]), check=False, **_SILENT).returncode:
            return None
    return f"{', '.join(node.name for node in nodes)} {'is' if len(nodes) == 1 else 'are'} back"


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = parser_of("sparsepipe.launchers.ssh", __doc__)
    arguments = parser.parse_args(options)
    watch()
    return controlled(arguments.run_dir, lambda record, plan: _launch(record, plan, arguments))


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every controller has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pipeline", type=int, help="which of several it is: the hosts are those of the whole run")
    parser.add_argument("--first-attempt", type=int, default=0, help="from which its attempts are counted")
    parser.add_argument("--begun", action="store_true", help="its hosts were reached before: they are waited for")
    return parser


def of_several(record: RunRecord, plan: Plan, place: Place, arguments: argparse.Namespace) -> FailureCause | None:
    """Run one of several pipelines as the options of its controller say. Returns why it failed."""
    numbers = {"pipeline": arguments.pipeline, "first_attempt": arguments.first_attempt}
    return Restarting(record, plan, place, resume=arguments.resume, begun=arguments.begun, **numbers).run()


def controlled(folder: Path, launch: Callable[[RunRecord, Plan], FailureCause | None]) -> int:
    """Have `launch` run a record's plan to the end, and write how it ended; return the exit code."""
    refused = False
    try:
        record = RunRecord.load(folder)
        clear_what_is_torn(folder, 0)
        cause = launch(record, record.plan.one())
    except Exception as error:
        cause, refused = cause_of(error, folder), isinstance(error, InputError)
    return finish(folder, cause, refused=refused)


def _launch(record: RunRecord, plan: Plan, arguments: argparse.Namespace) -> FailureCause | None:
    if arguments.pipeline is None:
        place = HostsOfFile(record.folder, Cluster.load(record.folder / HOSTS))
        return Restarting(record, plan, place, resume=arguments.resume).run()
    run = record.folder.parents[1]
    all_of_them = hosted_pipelines(Plan.load(run / "plan.json"), Cluster.load(run / HOSTS))
    return of_several(record, plan, HostsOfPipeline(all_of_them[arguments.pipeline]), arguments)


def finish(folder: Path, cause: FailureCause | None, *, refused: bool = False) -> int:
    """Write the final status; return the exit code. `refused`: hosts could not begin with what the user gave."""
    remove_partial(folder)
    lost = {"went_on": told} if (told := went_on(folder)) else {}
    if cause is not None:
        print(cause.reason, file=sys.stderr, flush=True)
        metrics = folder / METRICS
        trained = metrics.exists() and metrics.stat().st_size > 0
        tell_status(folder, state="refused" if refused and not trained else "failed", **cause.to_json(), **lost)
        return cause.exit_code
    found = commands.taken(folder)
    commands.drop_request(folder)
    if found is None or found[0] != commands.STOP:
        tell_status(folder, state="finished", **lost)
    else:
        after = f"stopped after {number_of(found[1], 'minibatch')}, as asked; resume it to go on"
        tell_status(folder, state="stopped", reason=after, **lost)
    return 0
