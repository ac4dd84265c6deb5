"""The ssh launcher's own process, on the launching host: it has an agent on each host, and brings all together.

`python -m sparsepipe.launching.ssh --run-dir DIR [--resume]`, under the supervisor, as the local launcher is:

    supervisor ── controller ─┬─ ssh host1 ── agent ── workers 0, 1        the run's record is here, and is written
                              └─ ssh host2 ── agent ── workers 2, 3        from what the agents say

It ends with the supervisor; with its `ssh` processes end the agents, and with them what they started. Of several
pipelines it is their parent (hosted_parent.py), which starts a controller for each.
"""

import argparse
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...records import RunRecord
from ...records.record_files import HOSTS
from ...records.run_progress import num_processes
from ...runtime.processes.lifeline import watch
from ...util.host.ssh import ssh_command
from ...util.io.files import write_atomic
from ...values.cluster import Cluster
from ...values.plan import Plan
from ..failure_cause import FailureCause, cause_of
from .connection import OverSsh
from .hosted_parent import HostedParent, PlaceOfAll
from .placement import HostedPipeline, HostedRanks, hosted_pipelines, hosted_ranks, hosts_of_all
from .restarting import HostPlace, OneOfSeveral, Restarting, TakenHosts, clear_what_is_torn, finish
from .session import HostLost

if TYPE_CHECKING:  # it brings planners
    from ...planning.hosts_left import Continuation

_SILENT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class HostsOfFile:
    """The hosts of a cluster, reached by `ssh`: the `HostPlace` (restarting.py) of a run's ranks."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """`folder`: of the run, where the hosts are kept for whoever resumes it."""
        self._folder, self._cluster = folder, cluster

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[TakenHosts]:
        """Yield the hosts of the plan's ranks; whoever resumes the run finds them as well, once its plan is theirs."""
        text, path = self._cluster.to_toml(), self._folder / HOSTS
        if not path.exists() or path.read_text() != text:
            write_atomic(path, text, private=True)
        yield TakenHosts(hosted_ranks(num_processes(self._folder, plan), self._cluster), OverSsh())

    def without(self, plan: Plan, lost: Sequence[HostedRanks], *, profile: Path) -> "Continuation":
        from ...planning.hosts_left import plan_for_hosts_left  # planners, which no launch waits for

        names = {hosted.node.name for hosted in lost}
        going = plan_for_hosts_left(plan, self._cluster, names, profile=profile)
        hosted_ranks(1 + max(going.plan.ranks), going.cluster)
        self._cluster = going.cluster
        return going

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """See `HostPlace`: once `ssh` gets to them all."""
        return back_over_ssh(lost)


class HostsOfPipeline(OneOfSeveral):
    """The hosts of one of several pipelines, reached by `ssh`."""

    def __init__(self, pipeline: HostedPipeline) -> None:
        self._pipeline = pipeline

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[TakenHosts]:
        yield TakenHosts(self._pipeline.hosts, OverSsh(), self._pipeline)

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        return back_over_ssh(lost)


class HostsOfAll:
    """The hosts of a cluster, reached by `ssh`: a place of all pipelines (hosted_parent.py)."""

    controller: Sequence[str] = ("sparsepipe.launching.ssh",)
    reach = OverSsh()

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        """Raises InputError if the cluster has no hosts for the plan."""
        self._hosts = hosts_of_all(plan, cluster)

    def hosts(self) -> tuple[HostedRanks, ...]:
        return self._hosts

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        return back_over_ssh(lost)


@contextmanager
def _place_of_all(record: RunRecord, _: argparse.Namespace) -> Iterator[HostsOfAll]:
    yield HostsOfAll(record.plan, Cluster.load(record.folder / HOSTS))


def back_over_ssh(lost: Sequence[HostedRanks]) -> str | None:
    """Return in a few words that `ssh` gets to all of these hosts; None while it does not."""
    nodes = [hosted.node for hosted in lost]
    for node in nodes:
        if subprocess.run(ssh_command(node.ssh_destination, ["true"]), check=False, **_SILENT).returncode:
            return None
    return f"{', '.join(node.name for node in nodes)} {'is' if len(nodes) == 1 else 'are'} back"


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = parser_of("sparsepipe.launching.ssh", __doc__)
    arguments = parser.parse_args(options)
    watch()
    return controlled(arguments, _launch, _place_of_all)


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every controller has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pipeline", type=int, help="which of several it is: the hosts are those of the whole run")
    parser.add_argument("--first-attempt", type=int, default=0, help="from which its attempts are counted")
    parser.add_argument("--begun", action="store_true", help="its hosts were reached before: they are waited for")
    return parser


def of_several(record: RunRecord, plan: Plan, place: HostPlace, arguments: argparse.Namespace) -> FailureCause | None:
    """Run one of several pipelines as the options of its controller say. Returns why it failed."""
    return Restarting(
        record,
        plan,
        place,
        resume=arguments.resume,
        begun=arguments.begun,
        pipeline=arguments.pipeline,
        first_attempt=arguments.first_attempt,
    ).run()


def controlled(
    arguments: argparse.Namespace,
    launch: Callable[[RunRecord, Plan, argparse.Namespace], FailureCause | None],
    place_of_all: Callable[[RunRecord, argparse.Namespace], AbstractContextManager[PlaceOfAll]],
) -> int:
    """Run a record's plan to the end, and write how it ended; return the exit code.

    `launch` runs one pipeline, and `place_of_all` has the hosts of several.
    """
    folder, refused = arguments.run_dir, False
    try:
        record = RunRecord.load(folder)
        if record.plan.members:
            with place_of_all(record, arguments) as place:
                return HostedParent(record, record.plan, place, resume=arguments.resume).run()
        clear_what_is_torn(folder, 0)
        cause = launch(record, record.plan, arguments)
    except HostLost as lost:
        cause = lost.cause
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
