"""Ask a running job to switch to another plan: what can be said against it here is said before anything is asked."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..records import RunRecord
from ..records.run_progress import newest_plan, num_processes
from ..runtime import RunConfig, commands
from ..runtime.plan_fit import check_fits, check_memory, check_next_of_several, held_bytes, needed_bytes
from ..runtime.workloads import check_launch
from ..runtime.workloads.resolved import resolve
from ..util.io.fields import shown
from ..util.io.files import expanded
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .memory_need import PlacedMemory, check_limit_of_job, need_of_job
from .run_folders import is_alive, state_of

_LOOK_SECONDS = 0.02  # between two looks for the answer


class Requested(NamedTuple):
    """A plan that a job was asked to switch to: the token that `replanned` waits with, and what could not be checked
    of the plan beforehand, in a line; empty if all could. Of several pipelines there is a token for each that changes,
    such as "0:1f2e3d4c,2:5b6a7988".
    """

    token: str
    doubt: str


def request_replan(
    run_dir: Path | str, plan: Plan, *, reason: str = "", predicted_gain_seconds: float | None = None
) -> Requested:
    """Ask the job in `run_dir` to switch to `plan`, and return at once what `replanned` waits with.

    Its processes stay: each prepares the plan while it trains, then layers change hands between two minibatches. If
    a rank cannot do that the job continues as before. `reason` and `predicted_gain_seconds` are for the record. The
    memory that the plan needs is estimated by the profile that the run was launched with, whoever made the plan.
    Raises InputError for a run that is not at work, or of a version before, a plan that is not one for its network, its
    ranks, its settings or its memory, one that it follows already, and while another change is under way.
    """
    record = RunRecord.load(expanded(run_dir).resolve())
    folder = record.folder
    if not isinstance(plan, Plan):
        raise InputError("plan.not_a_plan", f"plan {shown(plan)} given, expected a Plan (such as from `Plan.load`)")
    check_running(record)
    if record.plan.members:
        return _request_of_several(record, plan, reason=reason, predicted_gain_seconds=predicted_gain_seconds)
    need = _checked_plan(record, plan.one("a running job has one and keeps it so"))
    token = commands.leave(
        folder,
        plan,
        reason=reason,
        predicted_gain_seconds=predicted_gain_seconds,
        memory_bytes=need.by_place,
    )
    return Requested(token, need.doubt)


def request_of_pipeline(
    record: RunRecord, k: int, own: Plan, *, reason: str = "", predicted_gain_seconds: float | None = None
) -> Requested:
    """As `request_replan`, of pipeline `k` alone: `own` is its plan, with its job's ranks, from 0."""
    whole = record.plan.with_local(k, own)
    need = _checked_pipeline(record, whole, k)
    token = commands.leave(
        record.pipelines[k].folder,
        own,
        reason=reason,
        predicted_gain_seconds=predicted_gain_seconds,
        memory_bytes=need.by_place,
    )
    return Requested(f"{k}:{token}", need.doubt)


def _request_of_several(
    record: RunRecord, plan: Plan, *, reason: str, predicted_gain_seconds: float | None
) -> Requested:
    before = record.plan
    ranks, now = ([each.ranks_of(k) for k in range(len(each.pipelines))] for each in (before, plan))
    if ranks != now or plan.replication != before.replication:
        raise InputError(
            "replan.pipelines_differ",
            f"the plan has pipelines {now}, but the job has {ranks}, which must keep all ranks and synchronization "
            f"scheme {before.rule.name}; stop the run, then resume it under the plan",
        )
    changed = [k for k in range(len(ranks)) if plan.local(k) != before.local(k)]
    if not changed:
        raise InputError("replan.same_plan", f"{record.folder}: already follows this plan")
    for k in changed:  # all of them, before any is asked
        _checked_pipeline(record, before.with_local(k, plan.local(k)), k)
    gain = predicted_gain_seconds
    asked = [request_of_pipeline(record, k, plan.local(k), reason=reason, predicted_gain_seconds=gain) for k in changed]
    doubts = dict.fromkeys(one.doubt for one in asked if one.doubt)
    return Requested(",".join(one.token for one in asked), "; ".join(doubts))


def replanned(run_dir: Path | str, token: str, *, running: Callable[[], bool]) -> int:
    """Wait until a job is under the plan that it was asked for; return the first minibatch under it.

    `running` says whether the job is. Raises InputError if it keeps its old plan, with the reason, or ended.
    """
    folder = expanded(run_dir).resolve()
    if ":" in token:
        return max(_replanned_pipeline(folder, *one.split(":"), running=running) for one in token.split(","))
    return _replanned(folder, token, running=running)


def _replanned_pipeline(folder: Path, k: str, token: str, *, running: Callable[[], bool]) -> int:
    """Wait until a pipeline is under its plan, and the record of all says so."""
    own = folder / "pipelines" / k
    minibatch = _replanned(own, token, running=running)
    while newest_plan(folder).local(int(k)) != newest_plan(own) and running():
        time.sleep(_LOOK_SECONDS)
    return minibatch


def _replanned(folder: Path, token: str, *, running: Callable[[], bool]) -> int:
    while True:
        alive = running()
        if (minibatch := commands.taken_plan(folder, token)) is not None:
            return minibatch
        if (reason := commands.refused_plan(folder, token)) is not None:
            raise InputError("replan.refused", f"{folder}: the job keeps its plan: {reason}")
        if not alive:
            raise InputError("replan.run_ended", f"{folder}: the run ended before it switched to the requested plan")
        time.sleep(_LOOK_SECONDS)


def check_running(record: RunRecord) -> None:
    """Raise InputError for a run whose plan cannot be changed: one that is over, or of a version before."""
    if not is_alive(record):
        raise InputError(
            "run.not_running",
            f"{record.folder}: is not running (state: {state_of(record)}); resume it under the plan instead",
        )
    status = record.status
    if status["state"] == "running" and commands.REPLAN not in status.get("commands", ()):
        raise InputError(
            "replan.old_version",
            f"{record.folder}: was launched by an older version, which cannot change plans; stop the run, then "
            "resume it under the new plan",
        )


def _checked_pipeline(record: RunRecord, whole: Plan, k: int) -> PlacedMemory:
    """Return what memory pipeline `k` would need under its plan of `whole`, with ranks as among all.

    Raises InputError for one that it cannot switch to while the others keep theirs.
    """
    own, config, folder = whole.local(k), RunConfig.from_json(record.config), record.pipelines[k].folder
    try:
        count = len(record.plan.ranks_of(k))
        check_next_of_several(own, count, whole.rule)
        _check_trains(record, own, config)
        check_fits(own, config, num_processes=count)
        need, held = need_of_job(record.folder, whole.pipelines[k], config), held_bytes(folder)
        if need.by_place and held is not None:
            check_memory(needed_bytes(own, need.by_place, range(count)), config, held=held)
    except InputError as error:
        raise error.within(whole.prefix(k)) from None
    return need


def _checked_plan(record: RunRecord, plan: Plan) -> PlacedMemory:
    """Return what memory the job would need under a plan. Raises InputError for one that it cannot switch to."""
    before, config = record.plan, RunConfig.from_json(record.config)
    ranks = range(count := num_processes(record.folder, before))
    if not set(plan.ranks) <= set(ranks):
        raise InputError(
            "replan.ranks_not_of_job",
            f"the plan uses ranks {sorted(plan.ranks)}, but this job has {list(ranks)}; plan for at most this many "
            "devices, or stop the run and resume it under the plan",
        )
    if plan == before:
        raise InputError("replan.same_plan", f"{record.folder}: already follows this plan")
    _check_trains(record, plan, config)
    check_fits(plan, config, num_processes=count)
    need, held = need_of_job(record.folder, plan, config), held_bytes(record.folder)
    if need.by_place and held is not None:  # over hosts the workers look, each on its own
        check_memory(needed_bytes(plan, need.by_place, ranks), config, held=held)
    return need


def _check_trains(record: RunRecord, plan: Plan, config: RunConfig) -> None:
    """Raise InputError for the plan of another network, as far as that is known here."""
    run = resolve(config)
    check_limit_of_job(record.folder, plan, config)
    if not run.workload.trains:
        profile, cluster = Profile.load(record.folder / "profile.json"), Cluster.load(record.folder / "cluster.toml")
        check_launch(plan, run, profile, cluster)
    elif run.is_table:
        check_launch(plan, run, None, None)  # of a torch module the workers look, who have it open
