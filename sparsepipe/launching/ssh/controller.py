"""The ssh launcher's own process, on the launching host: it has an agent on each host, and brings all together.

`python -m sparsepipe.launching.ssh --run-dir DIR [--resume]`, under the supervisor, as the local launcher is:

    supervisor ── controller ─┬─ ssh host1 ── agent ── workers 0, 1        the run's record is here, and is written
                              └─ ssh host2 ── agent ── workers 2, 3        from what the agents say

It ends with the supervisor; with its `ssh` processes end the agents, and with them what they started. Of several
pipelines it is their parent (hosted_parent.py), which starts a controller for each.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...errors import InputError
from ...records import RunRecord
from ...records.record_files import HOSTS
from ...records.run_progress import begin_plan, forget_processes, keep_processes, num_processes
from ...runtime import RunConfig, commands
from ...runtime.processes.signs_of_life import watch
from ...runtime.training_state.checkpoint_folders import remove_partial
from ...util.host.ssh import ssh_command
from ...util.io.files import cut_torn_row, write_atomic
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ..failure_cause import KILLED, FailureCause, cause_of, clear
from ..pipelines_parent import awaiting
from ..run_folders import tell_going_on, went_on
from ..supervisor import tell_status
from .connection import OverSsh, Reach
from .hosted_parent import HostedParent, PlaceOfAll
from .launch_ssh import HostedPipeline, HostedRanks, hosted_pipelines, hosted_ranks, hosts_of_all
from .rows import METRICS
from .session import HostLost, HostUnreached, Session

if TYPE_CHECKING:
    from ...planning.hardware_changes import Continuation


_LOOK_AGAIN_SECONDS = 2.0  # for a host that is waited for


# A plan on hosts to its end: again if that helps, on the hosts that are left or, as asked, once all are back
class TakenHosts(NamedTuple):
    """Hosts with the ranks of a plan, that of rank 0 first, and the way to them."""

    hosts: tuple[HostedRanks, ...]
    reach: Reach
    pipeline: HostedPipeline | None = None  # which of several it is, where it is one


class HostPlace(Protocol):
    """Hosts on which the ranks of a run can be placed."""

    def taken(self, plan: Plan) -> AbstractContextManager[TakenHosts]:
        """Have hosts for the plan's ranks to the end of the block. Raises InputError if there are none."""
        ...

    def without(self, plan: Plan, lost: Sequence[HostedRanks], *, profile: Path) -> "Continuation":
        """Plan again for what is left without these hosts, which are not taken again; `profile` may be no file.

        Raises InputError if there is no plan for what is left.
        """
        ...

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """Return in a few words that the plan can be taken up where it was; None while these hosts are missing."""
        ...


class OneOfSeveral:
    """A `HostPlace` of one of several pipelines, which does without none of its hosts: others continue meanwhile."""

    def without(self, plan: Plan, lost: Sequence[HostedRanks], *, profile: Path) -> "Continuation":
        raise InputError("replan.several_pipelines", "pipeline replicas cannot be repartitioned")


class Restarting:
    """Runs the plan of a record, from the newest checkpoint if it resumes."""

    def __init__(
        self,
        record: RunRecord,
        plan: Plan,
        place: HostPlace,
        *,
        resume: bool,
        pipeline: int | None = None,
        first_attempt: int = 0,
        begun: bool = False,
    ) -> None:
        """`pipeline`: which of several it is; it waits for a host that it has lost, while others continue. Its attempts
        are counted from `first_attempt`. `begun`: its hosts were reached before, so that one that is not is lost.
        """
        self.record, self.plan, self.place, self.resume = record, plan, place, resume
        self._is_one_of_several = pipeline is not None
        self._attempt, self._allowed = first_attempt, first_attempt + int(record.config["max_restarts"])
        self._waits = record.config.get("on_lost_host") == "wait" or self._is_one_of_several
        self._begun = begun or first_attempt > 0

    def run(self) -> FailureCause | None:
        """Connect, start the workers, and wait for their end, again if that helps. Returns why it failed."""
        while True:
            cause, lost = self._session()
            if cause is None or cause.lasting or not lost or not self._begun or self._attempt >= self._allowed:
                return cause
            self._attempt += 1
            self.resume = True
            clear_what_is_torn(self.record.folder, self._attempt)
            try:
                if not self._waits:
                    self._go_on_without(cause, lost)
                elif not self._await_hosts(cause, lost):
                    return replace(cause, reason=f"{cause.reason}; it was waited for until {self._end_of_wait}")
            except InputError as error:
                return replace(cause, reason=f"{cause.reason}; the run cannot continue: {error}")

    @property
    def _end_of_wait(self) -> str:
        return "no other pipeline was at work" if self._is_one_of_several else "the run was asked to stop"

    def _session(self) -> tuple[FailureCause | None, tuple[HostedRanks, ...]]:
        """Work with the hosts there are. Returns why that failed, and the hosts that were lost."""
        with (
            self.place.taken(self.plan) as (hosts, reach, own),
            Session(self.record, self.plan, hosts, resume=self.resume, reach=reach, pipeline=own) as session,
        ):
            try:
                session.greet()
                self._begun = True
                cause, self._attempt = attempts(session, self._attempt, self._allowed)
            except HostLost as lost:
                cause = lost.cause
            except HostUnreached as error:
                if not self._begun:
                    raise
                cause = FailureCause(str(error), None, None, precedence=KILLED)
            self.plan = session.plan  # which may have changed
            if cause and cause.limit and not self._waits:  # others may have what one host lacks
                session.lost |= session.limited
                cause = replace(cause, lasting=False)
            return cause, tuple(hosts[number] for number in sorted(session.lost))

    # --- hosts that were lost ----------------------------------------------------------------------------------------

    def _go_on_without(self, cause: FailureCause, lost: Sequence[HostedRanks]) -> None:
        """Plan again for the hosts that are left. Raises InputError if there is no plan for them."""
        # Here: planners, and torch, which no launch waits for.
        from ...runtime.plan_fit import check_fits
        from ...runtime.training_state import checkpoint

        folder = self.record.folder
        going = self.place.without(self.plan, lost, profile=folder / "profile.json")
        count = 1 + max(going.plan.ranks)  # those that it leaves out stay in the job
        check_fits(going.plan, RunConfig.from_json(self.record.config), num_processes=count)
        found = checkpoint.latest(folder)
        if count > len(going.plan.ranks):
            keep_processes(folder, count)
        else:
            forget_processes(folder)
        begin_plan(folder, going.plan, found.minibatches if found else 0)
        if going.plan != self.plan and not self.record.workload.trains:
            slept_by = folder / "cluster.toml"  # in which ranks are called as before
            write_atomic(slept_by, going.cluster.to_toml())
        self.plan = going.plan
        names = ", ".join(node.name for node in going.cluster.nodes)
        told = f"{cause.reason}; continuing from the last checkpoint on {names}: {going.how}"
        _say(told)
        tell_going_on(folder, told)

    def _await_hosts(self, cause: FailureCause, lost: Sequence[HostedRanks]) -> bool:
        """Wait until hosts can be worked with again; return False if the run is asked to stop meanwhile."""
        names = ", ".join(hosted.node.name for hosted in lost)
        going_on = "to join the others again" if self._is_one_of_several else "to continue from the last checkpoint"
        _say(f"{cause.reason}; waiting for {names}, {going_on} then")
        with awaiting(self.record.folder, names, attempt=self._attempt - 1):
            return self._are_back(lost)

    def _are_back(self, lost: Sequence[HostedRanks]) -> bool:
        while (told := self.place.back(lost)) is None:
            if commands.requested(self.record.folder) == commands.STOP:
                return False
            time.sleep(_LOOK_AGAIN_SECONDS)
        _say(told)
        return True


def attempts(session: Session, attempt: int, allowed: int) -> tuple[FailureCause | None, int]:
    """Start the workers, again from the last checkpoint while no host is lost, to attempt number `allowed`.

    Returns why the last attempt failed, and its number.
    """
    first = True
    while True:
        cause = session.attempt(attempt, first=first)
        if cause is None or cause.lasting or session.lost or attempt >= allowed:
            return cause, attempt
        _say(f"{cause.reason}; restarting from the last checkpoint")
        session.stop_all()
        attempt, first = attempt + 1, False
        clear(session.record.folder, attempt)


def clear_what_is_torn(folder: Path, attempt: int) -> None:
    """Remove, before an attempt, files that came only in part: from a lost host, or to a killed controller."""
    clear(folder, attempt)
    remove_partial(folder)
    for path in (folder / "metrics.jsonl", *folder.glob("trace-rank*.jsonl")):
        cut_torn_row(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
        after = f"stopped after {number_of(found[1], 'minibatch')} as requested; resume it to continue"
        tell_status(folder, state="stopped", reason=after, **lost)
    return 0


_SILENT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class HostsOfFile:
    """The hosts of a cluster, reached by `ssh`: the `HostPlace` (controller.py) of a run's ranks."""

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
        from ...planning.hardware_changes import plan_for_hosts_left  # planners, which no launch waits for

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
