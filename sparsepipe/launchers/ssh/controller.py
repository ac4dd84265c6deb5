"""The ssh launcher's own process, on the launching host: it has an agent on each host, and brings all together.

`python -m sparsepipe.launchers.ssh --run-dir DIR [--resume]`, under the supervisor, as the local launcher is:

    supervisor ── controller ─┬─ ssh host1 ── agent ── workers 0, 1        the run's record is here, and is written
                              └─ ssh host2 ── agent ── workers 2, 3        from what the agents say

It ends with the supervisor; with its `ssh` processes end the agents, and with them what they started.
"""

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...cluster import Cluster
from ...errors import InputError
from ...files import cut_torn_row, write_atomic
from ...host.limits import limit_met
from ...host.ssh import ssh_command
from ...plan import Plan
from ...record import RunRecord
from ...record.plans import begin_plan
from ...runtime import RunConfig, commands
from ...runtime.processes.lifeline import watch
from ...runtime.training_state.partial_checkpoints import remove_partial
from ..failure_cause import KILLED, FailureCause, clear
from ..supervisor import tell_status
from .connection import OverSsh
from .placement import HOSTS, hosted_ranks
from .session import HostLost, HostUnreached, Session

_LOOK_AGAIN_SECONDS = 2.0  # for a host that is waited for
_SILENT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class Controller:
    """Runs a plan on hosts to its end: again where that helps, on the hosts left or, as asked, once all are back."""

    def __init__(self, record: RunRecord, plan: Plan, cluster: Cluster, *, resume: bool) -> None:
        self.record, self.plan, self.cluster, self.resume = record, plan, cluster, resume
        self._attempt, self._allowed = 0, int(record.config["max_restarts"])
        self._waits = record.config.get("on_lost_host") == "wait"
        self._begun = False

    def run(self) -> FailureCause | None:
        """Connect, start the workers, and wait for their end, again where that helps. Returns why it failed."""
        while True:
            cause, lost = self._session()
            if cause is None or cause.lasting or not lost or not self._begun or self._attempt >= self._allowed:
                return cause
            self._attempt += 1
            self.resume = True
            _clear(self.record.folder, self._attempt)
            try:
                if not self._waits:
                    self._go_on_without(cause, lost)
                elif not self._await_hosts(cause, lost):
                    return replace(cause, reason=f"{cause.reason}; it was waited for until the run was asked to stop")
            except InputError as error:
                return replace(cause, reason=f"{cause.reason}; it cannot go on: {error}")

    def _session(self) -> tuple[FailureCause | None, tuple[str, ...]]:
        """Work with the hosts there are. Returns why that failed, and the names of the hosts that were lost."""
        hosts = hosted_ranks(self.plan, self.cluster)
        with Session(self.record, self.plan, hosts, resume=self.resume, reach=OverSsh()) as session:
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
            if cause and cause.limit and not self._waits:  # others may have what one host lacks
                session.lost |= session.limited
                cause = replace(cause, lasting=False)
            return cause, tuple(hosts[number].node.name for number in sorted(session.lost))

    # --- hosts that were lost ----------------------------------------------------------------------------------------

    def _go_on_without(self, cause: FailureCause, lost: Collection[str]) -> None:
        """Plan anew for the hosts that are left. Raises InputError where there is no plan for them."""
        # Here: planners, and torch, which no launch waits for.
        from ...planners.hosts_left import plan_for_hosts_left
        from ...runtime.plan_fit import check_fits
        from ...runtime.training_state import checkpoint

        folder = self.record.folder
        going = plan_for_hosts_left(self.plan, self.cluster, lost, profile=folder / "profile.json")
        check_fits(going.plan, RunConfig.from_json(self.record.config))
        hosted_ranks(going.plan, going.cluster)
        found = checkpoint.latest(folder)
        begin_plan(folder, going.plan, found.minibatches if found else 0)
        write_atomic(folder / HOSTS, going.cluster.to_toml(), private=True)
        self.record = RunRecord.load(folder)
        self.plan, self.cluster = going.plan, going.cluster
        names = ", ".join(node.name for node in going.cluster.nodes)
        _say(f"{cause.reason}; going on from the last checkpoint on {names}: {going.how}")

    def _await_hosts(self, cause: FailureCause, lost: Sequence[str]) -> bool:
        """Wait until hosts can be reached again; return False where the run is asked to stop meanwhile."""
        _say(f"{cause.reason}; waiting for {', '.join(lost)}, to go on from the last checkpoint then")
        for node in (node for node in self.cluster.nodes if node.name in lost):
            while subprocess.run(ssh_command(node.ssh_destination, ["true"]), check=False, **_SILENT).returncode:
                if commands.requested(self.record.folder) == commands.STOP:
                    return False
                time.sleep(_LOOK_AGAIN_SECONDS)
            _say(f"{node.name} is back")
        return True


def attempts(session: Session, attempt: int, allowed: int) -> tuple[FailureCause | None, int]:
    """Start the workers, again from the last checkpoint while all hosts are there, to attempt number `allowed`.

    Returns why the last attempt failed, and its number.
    """
    first = True
    while True:
        cause = session.attempt(attempt, first=first)
        if cause is None or cause.lasting or session.lost or attempt >= allowed:
            return cause, attempt
        _say(f"{cause.reason}; starting again from the last checkpoint")
        session.stop_all()
        attempt, first = attempt + 1, False
        clear(session.record.folder, attempt)


def _clear(folder: Path, attempt: int) -> None:
    """Remove what a host that was lost has sent in part."""
    clear(folder, attempt)
    remove_partial(folder)
    for path in (folder / "metrics.jsonl", *folder.glob("trace-rank*.jsonl")):
        cut_torn_row(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.ssh", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args(options)
    watch()
    return controlled(arguments.run_dir, lambda record, plan: _launch(record, plan, resume=arguments.resume))


def controlled(folder: Path, launch: Callable[[RunRecord, Plan], FailureCause | None]) -> int:
    """Have `launch` run a record's plan to the end, and write how it ended; return the exit code."""
    try:
        record = RunRecord.load(folder)
        clear(folder, 0)
        plan = record.plan
        assert isinstance(plan, Plan), "looked at before it was launched"
        cause = launch(record, plan)
    except InputError as error:
        cause = FailureCause(str(error), None, None, exit_code=2)
    except Exception as error:
        traceback.print_exc()
        what = limit_met(error, where=folder) or f"{type(error).__name__}: {error}"
        cause = FailureCause(f"the launcher: {what}; its log is logs/launcher.log", None, None)
    return _finish(folder, cause)


def _launch(record: RunRecord, plan: Plan, *, resume: bool) -> FailureCause | None:
    return Controller(record, plan, Cluster.load(record.folder / HOSTS), resume=resume).run()


def _finish(folder: Path, cause: FailureCause | None) -> int:
    """Write the final status; return the exit code."""
    remove_partial(folder)
    if cause is not None:
        print(cause.reason, file=sys.stderr, flush=True)
        tell_status(folder, state="failed", **cause.to_json())
        return cause.exit_code
    found = commands.taken(folder)
    commands.drop_request(folder)
    if found is None:
        tell_status(folder, state="finished")
    else:
        after = f"stopped after {found[1]} minibatches, as asked; resume it to go on"
        tell_status(folder, state="stopped", reason=after)
    return 0
