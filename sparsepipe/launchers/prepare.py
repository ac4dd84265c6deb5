"""What every launcher does before it starts processes: check the plan, write the run's record and lock its folder."""

import os
import warnings
from pathlib import Path
from typing import Any

from ..cluster import Cluster
from ..errors import InputError
from ..functions import UserFunction, is_function, short_name
from ..io.files import write_atomic, write_json
from ..io.paths import expanded
from ..pipelines import Pipelines
from ..plan import Plan
from ..profile import Profile
from ..provenance import Provenance
from ..record import Origin, RunRecord
from ..record.plans import begin_plan
from ..record.processes import forget_processes, num_processes
from ..replication import rule_text
from ..runtime import RunConfig, commands
from ..runtime.forward_only import write_forward_only
from ..runtime.plan_fit import check_fits
from ..runtime.processes import rank_readings
from ..runtime.workloads import check_launch
from ..stragglers import Stragglers
from ..workload_facts import workload_facts
from .here import check_here
from .inference import find_checkpoint, inference_config
from .lock import hold, is_held
from .memory_need import check_at_launch


def for_hosts(plan: Plan, *, port: int | None, run_dir: Path | str, resume: bool) -> int:
    """Return how many processes the job of a plan has, if several hosts can run it.

    Raises InputError for what one machine alone takes.
    """
    check_for_hosts(port=port)
    count = num_processes(expanded(run_dir).resolve(), plan) if resume else len(plan.ranks)
    if not set(plan.ranks) <= set(range(count)):
        raise InputError(
            "plan.ranks_not_of_job",
            f"the plan uses ranks {sorted(plan.ranks)}, expected 0 to {count - 1}: a job begins with all of its ranks; "
            "give it another plan, which one that runs can change",
        )
    return count


def check_for_hosts(*, port: int | None) -> None:
    """Raise InputError for what goes with one machine alone."""
    if port is not None:
        raise InputError(
            "port.of_hosts", "a port goes with launcher='local': hosts choose theirs by themselves; leave it out"
        )


def prepare(
    plan: Plan,
    config: RunConfig,
    *,
    run_dir: Path | str,
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    forward_only: Path | str | None = None,
    elsewhere: bool = False,
) -> tuple[RunRecord, int]:
    """Write the plan, the settings and their origin for the workers; return the record and its lock (see `lock.hold`).

    `forward_only`: the checkpoint, or the run, whose weights to compute outputs with; nothing is trained.
    `elsewhere`: workers are on other hosts, whose memory is not this machine's.
    Raises InputError where the plan cannot run, for want of memory too, or the folder is another run's.
    """
    if forward_only is not None:
        if resume:
            raise InputError(
                "resume.forward_only", "forward_only computes outputs anew: leave out resume, or forward_only"
            )
        config = inference_config(config)
    folder = expanded(run_dir).resolve()
    processes = num_processes(folder, plan) if resume else len(plan.ranks)
    config = checked(plan, config, profile=profile, cluster=cluster, processes=processes)
    check_at_launch(
        [plan],
        config,
        profile=profile,
        cluster=cluster,
        resumes=folder if resume else None,
        here=not elsewhere,
        forward_only=forward_only is not None,
    )
    weights = find_checkpoint(forward_only, plan, config) if forward_only is not None else None
    if config.stragglers is not None:
        Stragglers.parse(config.stragglers).check(processes)
    check_name(folder)
    if not elsewhere:
        check_here(config)  # last, as it reads the data
    lock = hold(folder)
    try:
        is_new = not (resume and (folder / "plan.json").exists())
        record = written(folder, plan, config, resume=resume, profile=profile, cluster=cluster, campaign=campaign)
        if weights:
            write_forward_only(folder, weights)
        if is_new:
            note_concurrent_runs(record)
        return record, lock
    except BaseException:
        os.close(lock)
        raise


def checked(
    plan: Plan,
    config: RunConfig,
    *,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    processes: int | None = None,
) -> RunConfig:
    """Return the settings that the workers of a plan run with. Raises InputError where it cannot run.

    `processes`: of the job, one for each of the plan's ranks unless given.
    """
    if not workload_facts(config.engine).trains:
        config = config.replace(validate=False, checkpoint_every=0)
    config = _importable(config)
    check_launch(plan, config, profile, cluster)
    check_fits(plan, config, num_processes=processes)
    if config.stragglers is not None:
        config = config.replace(stragglers=str(Stragglers.parse(config.stragglers)) or None)
    return config


def written(
    folder: Path,
    plan: Plan | Pipelines,
    config: RunConfig,
    *,
    resume: bool,
    profile: Profile | None,
    cluster: Cluster | None,
    campaign: str | None,
) -> RunRecord:
    """Write what a run's folder holds before its workers start. Its lock is held."""
    commands.clear(folder)
    rank_readings.forget(folder)
    if resume and (folder / "plan.json").exists():
        return _changed(folder, plan, config)
    plans = plan.pipelines if isinstance(plan, Pipelines) else [plan]
    rests_on = Provenance.of(profile, cluster, plans, _settings(plan, config), campaign=campaign, data=config.data)
    origin = Origin.here(campaign=campaign, provenance=rests_on.to_json(), **_facts(plans[0], config))
    record = RunRecord.create(folder, plan, config.to_json(), origin)
    if profile is not None and cluster is not None:
        profile.save(folder / "profile.json")
        write_atomic(folder / "cluster.toml", cluster.to_toml())
    return record


def _changed(folder: Path, plan: Plan | Pipelines, config: RunConfig) -> RunRecord:
    """Give a record the plan and the settings that its run goes on with; what it followed so far stays readable.

    Raises InputError, with nothing changed, where its metrics or earlier plans are damaged, and for settings that no
    worker would go on with from its newest checkpoint.
    """
    # Here: they bring torch, for which nobody else who launches need wait.
    from ..runtime.training_state import checkpoint
    from . import resuming

    if (folder / "metrics.jsonl").exists():
        RunRecord(folder).metrics()  # read now: what is damaged is told before anything starts
    if found := checkpoint.latest(folder):
        found.check(model=short_name(config.model), layers=())
        if not isinstance(plan, Pipelines) and any(found.manifest.get("left", {}).values()):
            raise InputError(
                "resume.several_pipelines",
                f"{found.folder}: several pipelines had minibatches of an epoch in work then, which one cannot "
                "take up; resume with a plan of several, or from a checkpoint at an epoch's end",
            )
        found.check_minibatches({"batch_size": config.batch_size, "last_minibatch": config.last_minibatch})
        resuming.check_end(found, config)
        for text in resuming.told(folder, found, RunConfig.from_json(RunRecord.load(folder).config), config):
            warnings.warn(text, stacklevel=6)
    if isinstance(plan, Pipelines) or num_processes(folder, plan) == len(plan.ranks):
        forget_processes(folder)
    begin_plan(folder, plan, found.minibatches if found else 0)
    _keep_old(folder, "config.json")
    write_json(folder / "config.json", config.to_json())
    return RunRecord.load(folder)


def _settings(plan: Plan | Pipelines, config: RunConfig) -> RunConfig | dict[str, Any]:
    """What a run's numbers depend on besides its plan: the settings and, of several pipelines, their rule."""
    if isinstance(plan, Pipelines):
        return {**config.to_json(), "replication": rule_text(plan.replication)}
    return config


def _facts(plan: Plan, config: RunConfig) -> dict[str, Any]:
    facts = {
        "seed": config.seed,
        "model": short_name(config.model),
        "data": Path(config.data).name,
        "planner": plan.planner,
    }
    code = _code_digests(config)
    return facts | ({"code_sha256": code} if code else {})


def _importable(config: RunConfig) -> RunConfig:
    """Return the settings with functions of the user's own named so that every worker finds them, wherever it starts.

    Raises InputError for one that is not there.
    """
    named = {name: getattr(config, name) for name in ("model", "data", "loss")}
    absolute = {
        name: str(UserFunction.parse(value).absolute()) for name, value in named.items() if value and is_function(value)
    }
    return config.replace(**absolute)


def _code_digests(config: RunConfig) -> dict[str, str]:
    """Return the SHA-256 of each file of the user's own code that a run imports, by setting."""
    named = {name: getattr(config, name) for name in ("model", "data", "loss")}
    return {name: UserFunction.parse(value).sha256() for name, value in named.items() if value and is_function(value)}


def note_concurrent_runs(record: RunRecord) -> None:
    """Note in the record of this run, and of every run alive in the same folder of runs, that they run concurrently."""
    for path in record.folder.parent.glob("*/plan.json"):
        try:
            if path.parent == record.folder or not is_held(path.parent):
                continue
            RunRecord(path.parent).note_beside(record.name)
            record.note_beside(path.parent.name)
        except (InputError, OSError):  # a damaged record, or one that is not ours, stops no other run
            continue


def check_name(folder: Path) -> None:
    """Raise InputError for a folder whose name the workers could not pass on: torch takes names in UTF-8 alone."""
    try:
        os.fsencode(folder).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            "run_dir.not_utf8", f"{ascii(str(folder))}: a name that is not UTF-8; choose another run_dir"
        ) from None


def _keep_old(folder: Path, name: str) -> None:
    path = folder / name
    count = len(list(folder.glob(f"{path.stem}-before-*.json")))
    path.replace(folder / f"{path.stem}-before-{count + 1}.json")
