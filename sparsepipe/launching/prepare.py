"""What every launcher does before it starts processes: check the plan, write the run's record and lock its folder.

RUN/                plan.json, config.json, origin.json, status.json
RUN/pipelines/K/    of each of several pipelines: a run's folder as of one, its plan's ranks from 0
"""

import json
import os
import time
import warnings
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.folder import found
from ..errors import InputError
from ..records import Origin, RunRecord
from ..records.provenance import Provenance
from ..records.record_files import CLOCK, read_fields
from ..records.run_progress import begin_plan, forget_processes, num_processes
from ..runtime import RunConfig, commands
from ..runtime.config import OPTIMIZERS, Composition, without_profile
from ..runtime.pipelines.journal import RESUME
from ..runtime.plan_fit import check_fits, write_forward_only
from ..runtime.processes import rank_readings
from ..runtime.training_state.checkpoint_folders import FOLDER, WHOLE
from ..runtime.workloads import check_launch
from ..runtime.workloads.resolved import ResolvedRun
from ..util.io.files import expanded, write_atomic, write_json
from ..util.io.functions import functions_of, is_function, short_name, with_functions
from ..util.io.options import tell
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import rule_text
from ..values.replication.base import Arithmetic
from ..values.schedule import check_rule
from ..values.stragglers import Stragglers
from .lock import hold, is_held
from .memory_need import check_at_launch, fitted_to_limit, kept_devices
from .resuming import find_checkpoint, inference_config

if TYPE_CHECKING:
    from ..runtime.training_state.initial_weights import InitialState

# Which of the settings are held against what the data are, beside the split that is validated on.
_OF_DATA = {"task", "features", "augmentation", "data_args", "loss", "loss_args", "validation_split"}
_OF_DATA |= {"collate", "crop", "views", "sampler"}


def for_hosts(plan: Plan, *, port: int | None, run_dir: Path | str, resume: bool) -> int:
    """Return how many processes the job of a plan has, if several hosts can run it.

    Raises InputError for what one machine alone takes.
    """
    if port is not None:
        text = "a port requires {launcher}, because several hosts choose their ports themselves; omit the port"
        raise InputError("port.of_hosts", text, setting={"launcher": "local"})
    count = num_processes(expanded(run_dir).resolve(), plan) if resume else len(plan.ranks)
    if not plan.members and not set(plan.ranks) <= set(range(count)):
        raise InputError(
            "plan.ranks_not_of_job",
            f"the plan uses ranks {sorted(plan.ranks)}, expected 0 to {count - 1}; start the job with a plan for all "
            "ranks, then switch to this plan",
        )
    return count


def prepare(
    plan: Plan,
    run: ResolvedRun,
    *,
    run_dir: Path | str,
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    forward_only: Path | str | None = None,
    elsewhere: bool = False,
) -> tuple[RunRecord, list[int]]:
    """Write the plan, the settings and their origin for the workers; return the record and the locks (see `lock.hold`).

    Several pipelines have a record each within that of the whole run, with a lock.
    `forward_only`: the checkpoint, or the run, whose weights to compute outputs with; nothing is trained.
    `elsewhere`: workers are on other hosts, which know how many threads each has, and whose memory is their own.
    Raises InputError if the plan cannot run, for want of memory too, or the folder is another run's.
    """
    if forward_only is not None:
        if resume:
            text = "{forward_only} recomputes all outputs and cannot resume; omit {resume}, or omit {forward_only}"
            raise InputError("resume.forward_only", text, setting={"forward_only": None, "resume": None})
        run = replace(run, config=inference_config(run.config))
    folder = expanded(run_dir).resolve()
    profile, cluster = _slept_by(folder if resume else None, run.config, profile, cluster)
    processes = num_processes(folder, plan) if resume else len(plan.ranks)
    _check_together(plan, run.config, profile, cluster)
    run = _for_workers(run, processes, elsewhere=elsewhere)
    config = run.config
    for k in range(len(plan.pipelines)):
        _check_pipeline(plan, k, run, profile, cluster, processes)
    check_need = partial(
        check_at_launch,
        plan,
        profile=profile,
        cluster=cluster,
        resumes=folder if resume else None,
        here=not elsewhere,
        forward_only=forward_only is not None,
    )
    is_composed = config.is_composed and config.workload.trains
    if not is_composed:
        check_need(config)
    weights = find_checkpoint(forward_only, plan, config) if forward_only is not None else None
    check_name(folder)
    if not elsewhere:
        check_here(run)  # last, as it reads the data
    if is_composed:
        run = _composition(plan, run, profile, cluster, folder if resume else None, here=not elsewhere)
        config = run.config
        check_need(config)  # it goes by the samples of a minibatch
    run = fitted_to_limit(plan, run, profile=profile, resumes=folder if resume else None, here=not elsewhere)
    config = run.config
    is_new = not (resume and (folder / "plan.json").exists())
    begins = is_new or _starts_from_others(folder, config)
    initial = _initial_weights(run, begins=begins, here=not elsewhere)
    locks = [hold(folder)]
    try:
        record = _written(
            folder, plan, run, resume=resume, profile=profile, cluster=cluster, campaign=campaign, initial=initial
        )
        if weights:
            write_forward_only(folder, weights)
        if is_new:
            note_concurrent_runs(record)
        (folder / RESUME).unlink(missing_ok=True)
        if plan.members and resume:
            from .resuming import go_on_from_checkpoint  # here: it brings torch

            go_on_from_checkpoint(folder)
        if not elsewhere:  # all ranks share this machine
            threads = config.threads or max(1, len(os.sched_getaffinity(0)) // processes)
            run = replace(run, config=config.replace(threads=threads))
        for k in range(len(plan.members)):
            place = folder / "pipelines" / str(k)
            locks.append(hold(place))
            _written(
                place,
                plan.local(k),
                run,
                resume=resume,
                profile=profile,
                cluster=cluster,
                campaign=campaign,
                initial=initial,
                is_replica=True,
            )
            _same_clock(folder, place)
        return record, locks
    except BaseException:
        for lock in locks:
            os.close(lock)
        raise


def check_plan(
    plan: Plan,
    run: ResolvedRun,
    *,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    resumes: Path | None = None,
    here: bool = True,
    forward_only: bool = False,
) -> None:
    """Raise InputError if a launch would refuse a plan of declared layers, for its memory or what its stages share.

    Nothing is written; with a memory limit the sizes of samples are read. Arguments: see `check_at_launch`.
    """
    if forward_only:
        run = replace(run, config=inference_config(run.config))
    _check_together(plan, run.config, profile, cluster)
    for k in range(len(plan.pipelines)):
        _check_pipeline(plan, k, run, profile, cluster, len(plan.ranks))
    if not run.config.is_composed:  # else minibatches are composed first
        check_at_launch(
            plan, run.config, profile=profile, cluster=cluster, resumes=resumes, here=here, forward_only=forward_only
        )
        fitted_to_limit(plan, run, profile=profile, resumes=resumes, here=here)


def _starts_from_others(folder: Path, config: RunConfig) -> bool:
    """Return whether a run that has no checkpoint resumes with other initial weights than those in its folder."""
    return _initial_differs(folder, config) and not any((folder / FOLDER).glob(WHOLE))


def _initial_differs(folder: Path, config: RunConfig) -> bool:
    return config.initial != RunConfig.from_json(RunRecord.load(folder).config).initial


def _initial_weights(run: ResolvedRun, *, begins: bool, here: bool) -> "InitialState | None":
    """Read the weights that a run starts from, and compare them with the network if its data are `here`.

    Raises InputError for a file without weights, for those of another network, for patterns that match nothing, and
    for an optimizer or a schedule of the user's own that fails.
    """
    config = run.config
    names_functions = is_function(config.learning_rate_schedule) or config.optimizer not in OPTIMIZERS
    if not begins or not run.workload.trains:
        return None
    if not (config.initial or config.freeze or config.patterns or names_functions):
        return None
    # Here: they bring torch, for which nobody else who launches need wait.
    from ..runtime.training_state.initial_weights import InitialState, read_state
    from ..runtime.workloads.learning import check_training

    state = {} if config.initial is None else read_state(expanded(config.initial))
    match = check_training(run, state) if here else None
    if config.initial is None:
        return None
    if match:
        tell(f"initial weights from {config.initial}: {match}")
    return InitialState(state, match)


def _composition(
    plan: Plan, run: ResolvedRun, profile: Profile | None, cluster: Cluster | None, resumes: Path | None, *, here: bool
) -> ResolvedRun:
    """Return a run with the settings `composition` and `batch_size`: decided once, by the plan that a run begins with.

    `resumes`: the folder of the run that continues. `here`: the data are on this machine, and sizes of samples are
    read. Raises InputError for a budget without a profile, and for samples that no budget holds.
    """
    config = run.config
    if Composition.decided(config) is not None:
        return run
    if resumes is not None and (resumes / "plan.json").exists():
        before = RunConfig.from_json(RunRecord.load(resumes).config)
        kept = config.replace(composition=before.composition)
        if (decided := Composition.decided(kept)) is not None:
            return replace(run, config=kept.replace(batch_size=before.batch_size) if decided.budget else kept)
    if profile is None and resumes is not None:
        profile, cluster = kept_devices(resumes)
    from ..planning.orders import synchronous_step, waiting_pipeline  # here: most launches compose nothing

    waiting = waiting_pipeline(plan)
    found = Composition(
        config.batch_voxels,
        1 if waiting is None else len(waiting.stages),
        synchronous_step(plan),
        asked=config.composition_asked,
        unit="voxels" if config.batch_voxels is not None else "",
    )
    by_profile = config.batch_seconds is not None or config.batch_bytes is not None
    if profile is not None:
        from ..planning.run_estimate import largest_size, stage_costs

        devices = cluster or Cluster.uniform(1 + max(plan.ranks), device_type=profile.device_types[0])
        if by_profile:
            most = largest_size(plan, profile, devices, seconds=config.batch_seconds, kept_bytes=config.batch_bytes)
            found = replace(found, budget=most, unit=profile.size_unit)
        if waiting is not None:
            sizes = np.geomspace(1, 4 * max(profile.range_of_laws(profile.device_types[0])), 33)
            seconds = stage_costs(waiting, profile, devices, sizes)[0]
            found = replace(found, sizes=tuple(sizes.tolist()), seconds=tuple(map(tuple, seconds.tolist())))
    elif by_profile:
        raise without_profile(config)
    run = replace(run, config=config.replace(composition=json.dumps(asdict(found))))
    if not here:
        samples = config.batch_size
        if profile is not None and profile.batch_size and found.budget:
            samples = max(1, round(found.budget * profile.batch_size / profile.size()))
        return replace(run, config=run.config.replace(batch_size=samples))
    from ..runtime.workloads.learning import composed  # here: it brings torch

    minibatches, unit = composed(run.config, run.data.training, epoch=0), run.size_unit
    if config.batch_voxels is not None and unit != "voxels":
        raise InputError(
            "order.budget_of_voxels",
            f"{{batch_voxels}} given, but samples of {config.data} are measured in {unit}; give {{batch_size}}",
            setting=dict.fromkeys(("batch_voxels", "batch_size")),
        )
    if profile is not None and profile.size_unit != unit:
        raise InputError(
            "order.profile_of_other_unit",
            f"the profile is measured in {profile.size_unit}, but samples of {config.data} are measured in {unit}; "
            "profile the network on these data",
        )
    mean = sum(map(len, minibatches)) / len(minibatches)
    return replace(run, config=run.config.replace(batch_size=round(mean))) if found.budget else run


def _for_workers(run: ResolvedRun, processes: int, *, elsewhere: bool) -> ResolvedRun:
    """Return a run with the settings that workers get: functions of the user's own so that all find them from anywhere.

    Raises InputError for a function that does not exist or cannot be sent to the workers' hosts, and for stragglers
    that are malformed or none of the processes.
    """
    config = run.config
    if not config.workload.trains:
        config = config.replace(validate=False, checkpoint_every=0)
    if config.stragglers is not None:
        stragglers = Stragglers.parse(config.stragglers)
        stragglers.check(processes)
        config = config.replace(stragglers=str(stragglers) or None)
    if run.counts_classes and not elsewhere and config.workload.trains:
        config = config.replace(loss_args=json.dumps(run.loss_args))  # class weights are counted once, here
    functions = functions_of(vars(config))
    for function in functions.values() if elsewhere else ():
        function.files_for_hosts()
    absolute = {name: str(function.absolute()) for name, function in functions.items()}
    return replace(run, config=config.replace(**with_functions(vars(config), absolute)))


def _check_pipeline(
    plan: Plan, k: int, run: ResolvedRun, profile: Profile | None, cluster: Cluster | None, processes: int
) -> None:
    """Raise InputError if pipeline `k` cannot run.

    `processes`: of the whole job, of which the plan of one pipeline may leave out some.
    """
    own = plan.local(k)
    try:
        check_launch(own, run, profile, cluster)
        check_fits(own, run.config, num_processes=processes - len(plan.ranks) + len(own.ranks))
    except InputError as error:
        raise error.within(plan.prefix(k)) from None


def _check_together(plan: Plan, config: RunConfig, profile: Profile | None, cluster: Cluster | None) -> None:
    """Raise InputError for what several pipelines cannot do together, in one line that says why."""
    rule = plan.replication
    if rule is None:
        return
    if found := plan.violations(profile.graph, cluster) if profile else plan.violations_together():
        raise InputError("plan.violations", "the plan cannot run: " + "; ".join(found))
    check_rule(plan)
    if config.learning_rate_schedule == "plateau":
        raise InputError(
            "replication.plateau",
            "{learning_rate_schedule} plateau follows the validation loss, which only one of several pipelines "
            "computes; plan one pipeline, or choose another schedule",
            setting="learning_rate_schedule",
        )
    if rule.arithmetic is Arithmetic.MEAN_GRADIENTS and config.precision == "float16":
        raise InputError(
            "replication.float16",
            f"replication {rule.name} averages gradients, but precision float16 scales them by a different factor in "
            "each pipeline; use bfloat16, or a scheme that averages weights, such as partial-reduce",
        )


def _same_clock(folder: Path, place: Path) -> None:
    """Let a pipeline's times begin when those of all do."""
    clock = folder / "logs" / "clock.json"
    if not clock.exists():
        write_json(clock, {"started": time.time()})
    write_json(place / "logs" / "clock.json", {"started": _started(clock)})


def _started(clock: Path) -> float:
    return float(read_fields(clock, CLOCK, what="run's clock")["started"])


def _written(
    folder: Path,
    plan: Plan,
    run: ResolvedRun,
    *,
    resume: bool,
    profile: Profile | None,
    cluster: Cluster | None,
    campaign: str | None,
    initial: "InitialState | None",
    is_replica: bool = False,
) -> RunRecord:
    """Write what the folder of a run, or of a pipeline replica of it, holds before its workers start.

    Its lock is held.
    """
    config = run.config
    commands.clear(folder)
    rank_readings.forget(folder)
    if resume and (folder / "plan.json").exists():
        record = _changed(folder, plan, config, is_replica=is_replica)
        if initial is not None:
            initial.save(folder)
        if not (folder / "profile.json").exists():
            _keep_devices(folder, plan, config, profile, cluster)
        return record
    rule = plan.replication
    settings = config if rule is None else config.to_json() | {"replication": rule_text(rule)}
    rests_on = Provenance.of(profile, cluster, plan.pipelines, settings, campaign=campaign, data=config.data)
    origin = Origin.here(campaign=campaign, provenance=rests_on.to_json(), **_facts(plan.pipelines[0], run))
    record = RunRecord.create(folder, plan, config.to_json(), origin)
    if initial is not None:
        initial.save(folder)
    _keep_devices(folder, plan, config, profile, cluster)
    return record


def _slept_by(
    resumed: Path | None, config: RunConfig, profile: Profile | None, cluster: Cluster | None
) -> tuple[Profile | None, Cluster | None]:
    """Return the profile and the cluster of a run; of an emulation that is `resumed` without them, those it kept."""
    if resumed is None or config.workload.trains or profile is not None or cluster is not None:
        return profile, cluster
    return kept_devices(resumed)


def _keep_devices(
    folder: Path, plan: Plan, config: RunConfig, profile: Profile | None, cluster: Cluster | None
) -> None:
    """Write the profile and the cluster that a run is compared with, and that its limit of memory goes by."""
    if profile is not None and cluster is None and config.memory_limit is not None:
        cluster = Cluster.uniform(1 + max(plan.ranks), device_type=profile.device_types[0])
    if profile is not None and cluster is not None:
        profile.save(folder / "profile.json")
        write_atomic(folder / "cluster.toml", cluster.to_toml())


def _changed(folder: Path, plan: Plan, config: RunConfig, *, is_replica: bool = False) -> RunRecord:
    """Give a record the plan and the settings that its run continues with; what it followed so far stays readable.

    Raises InputError, with nothing changed, where its metrics or earlier plans are damaged, and for settings that no
    worker would continue with from its newest checkpoint.
    """
    # Here: they bring torch, for which nobody else who launches need wait.
    from ..runtime.training_state import checkpoint
    from . import resuming

    if (folder / "metrics.jsonl").exists():
        RunRecord(folder).metrics()  # read now: what is damaged is told before anything starts
    if found := checkpoint.latest(folder):
        found.check(model=short_name(config.model), layers=())
        if not plan.members and any(found.manifest.get("left", {}).values()):
            raise InputError(
                "resume.several_pipelines",
                f"{found.folder}: several pipelines stopped within an epoch, which one pipeline cannot continue; "
                "resume with a plan of several pipelines, or from a checkpoint at the end of an epoch",
            )
        if _initial_differs(folder, config):
            raise InputError(
                "resume.other_initial",
                f"{folder}: resumes from the weights of {found.folder.name}, not from initial weights; omit "
                f"{{initial}}, or train in another folder",
                setting="initial",
            )
        found.check_minibatches(config.sampling, epoch_minibatches=resuming.epoch_minibatches(found))
        resuming.check_end(found, config)
        if plan.members:
            resuming.check_left(found, config)
        for text in resuming.told(folder, found, RunConfig.from_json(RunRecord.load(folder).config), config):
            warnings.warn(text, stacklevel=6)
    elif not is_replica and (text := resuming.keep_earlier_rows(folder)):  # checkpoints of replicas are in the run's
        warnings.warn(text, stacklevel=6)
    if plan.members or num_processes(folder, plan) == len(plan.ranks):
        forget_processes(folder)
    begin_plan(folder, plan, found.minibatches if found else 0)
    _keep_old(folder, "config.json")
    write_json(folder / "config.json", config.to_json())
    return RunRecord.load(folder)


def _facts(plan: Plan, run: ResolvedRun) -> dict[str, Any]:
    config = run.config
    facts = {
        "seed": config.seed,
        "model": short_name(config.model),
        "data": Path(config.data).name,
        "planner": plan.planner,
    }
    code = {name: function.sha256() for name, function in run.functions.items()}
    return facts | ({"code_sha256": code} if code else {})


def check_here(run: ResolvedRun) -> None:
    """Raise InputError if workers on this machine would find no such device or data: see `_check_data`."""
    if not run.workload.trains:
        return
    if run.config.device != "cpu":
        from ..runtime.processes.devices import check_device  # here: it brings torch

        check_device(run.config.device)
    _check_data(run)


def _check_data(run: ResolvedRun) -> None:
    """Raise InputError if workers on this machine would find no data of that name, or none for the other settings.

    Point clouds are read, once for the same data and settings. A function of the user's own is called, and data that
    are made when they are first opened are made, only where such a setting is given.
    """
    config = run.config
    is_there = "data" not in run.functions and found(config.data) is not None
    if _OF_DATA & config.chosen.keys() or (is_there and not run.is_table):
        # Here: it brings torch, for which nobody who launches a table with settings as by default need wait.
        from ..runtime.workloads.opening import check_settings

        check_settings(run)
    if config.best is not None and config.validate:
        from ..runtime.workloads.opening import check_best  # here, too

        check_best(run)
    if is_there and not run.data.has_examples:
        run.check_clouds(("train", *([config.validation_split] if config.validate else [])), engine=config.engine)


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
        text = f"{ascii(str(folder))}: the name is not valid UTF-8; choose another {{run_dir}}"
        raise InputError("run_dir.not_utf8", text, setting="run_dir") from None


def _keep_old(folder: Path, name: str) -> None:
    path = folder / name
    count = len(list(folder.glob(f"{path.stem}-before-*.json")))
    path.replace(folder / f"{path.stem}-before-{count + 1}.json")
