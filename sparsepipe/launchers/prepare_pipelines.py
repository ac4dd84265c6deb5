"""What is done before several pipelines start: the record of the whole run, and one of each pipeline within it.

RUN/                plan.json (all pipelines and their rule), config.json, origin.json, status.json
RUN/pipelines/K/    a run's folder as of one pipeline, its plan's ranks from 0
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cluster import Cluster
from ..errors import InputError
from ..io.files import write_json
from ..io.paths import expanded
from ..pipelines import Pipelines
from ..profile import Profile
from ..record import RunRecord
from ..record.record_files import CLOCK, read_fields
from ..replication.base import Arithmetic
from ..runtime import RunConfig
from ..runtime.pipelines.resuming import has_rows_of, keep_nothing
from ..schedule import check_rule
from ..stragglers import Stragglers
from .here import check_here
from .lock import hold
from .memory_need import check_at_launch
from .prepare import check_name, checked, note_concurrent_runs, written

if TYPE_CHECKING:
    from ..runtime.training_state.checkpoint import Checkpoint  # which brings torch

RESUME = Path("logs", "resume.json")  # of the whole run: the checkpoint that it goes on from, for workers (member.py)


def prepare_pipelines(
    plan: Pipelines,
    config: RunConfig,
    *,
    run_dir: Path | str,
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    elsewhere: bool = False,
) -> tuple[RunRecord, list[int]]:
    """Write the records of a run of several pipelines; return that of the whole run, and the locks of all.

    `elsewhere`: the workers are on other hosts, which know how many threads each has, and whose memory is their own.
    Raises InputError where the pipelines cannot run, alone or together, for want of memory too, or the folder is
    another run's.
    """
    if profile is not None:
        plan.check(profile.graph, cluster)
    configs = [_of_one(plan, k, config, profile, cluster) for k in range(len(plan.pipelines))]
    _check_together(plan, configs[0])
    if not elsewhere:
        configs = [_sharing_cores(own, num_ranks=len(plan.ranks)) for own in configs]
    folder = expanded(run_dir).resolve()
    check_at_launch(
        plan.pipelines,
        configs[0],
        profile=profile,
        cluster=cluster,
        resumes=folder if resume else None,
        here=not elsewhere,
    )
    check_name(folder)
    if not elsewhere:
        check_here(config)  # last, as it reads the data
    locks = [hold(folder)]
    try:
        is_new = not (resume and (folder / "plan.json").exists())
        whole = configs[0].replace(threads=config.threads)
        given: dict[str, Any] = {"profile": profile, "cluster": cluster, "campaign": campaign, "resume": resume}
        record = written(folder, plan, whole, **given)
        if is_new:
            note_concurrent_runs(record)
        if resume:
            go_on_from_checkpoint(folder)
        else:
            (folder / RESUME).unlink(missing_ok=True)
        for k, own in enumerate(configs):
            place = folder / "pipelines" / str(k)
            locks.append(hold(place))
            written(place, plan.local(k), own, **given)
            _same_clock(folder, place)
        return record, locks
    except BaseException:
        for lock in locks:
            os.close(lock)
        raise


def _of_one(plan: Pipelines, k: int, config: RunConfig, profile: Profile | None, cluster: Cluster | None) -> RunConfig:
    """Return the settings of one pipeline's workers. Raises InputError that names it where it cannot run."""
    try:
        return checked(plan.local(k), config, profile=profile, cluster=cluster)
    except InputError as error:
        raise InputError(error.code, f"pipeline {k}: {error}", **error.fields) from None


def _sharing_cores(config: RunConfig, *, num_ranks: int) -> RunConfig:
    """Return a pipeline's settings with the threads of its workers, where all ranks share this machine."""
    return config.replace(threads=config.threads or max(1, len(os.sched_getaffinity(0)) // num_ranks))


def _check_together(plan: Pipelines, config: RunConfig) -> None:
    """Raise InputError for what pipelines cannot do together, in one line that says why."""
    if len(plan.pipelines) < 2:
        raise InputError(
            "replication.one_pipeline",
            f"{len(plan.pipelines)} pipeline: a replication rule averages between two or more",
        )
    plan.replication.groups(len(plan.pipelines), seed=config.seed)  # options that do not fit are told
    layers = set(plan.pipelines[0].layers)
    for k, own in enumerate(plan.pipelines):
        if unlike := sorted(layers ^ set(own.layers)):
            raise InputError(
                "pipelines.layers_differ",
                f"pipelines 0 and {k} differ in layer {unlike[0]!r}: plan all for the same network",
            )
    check_rule(plan)
    if plan.replication.arithmetic is Arithmetic.MEAN_GRADIENTS and config.precision == "float16":
        raise InputError(
            "replication.float16",
            f"replication {plan.replication.name} averages gradients, which each pipeline scales by a factor of its "
            "own with precision float16; use bfloat16, or a rule that averages weights, such as partial-reduce",
        )
    if config.stragglers is not None:
        Stragglers.parse(config.stragglers).check(len(plan.ranks))


def go_on_from_checkpoint(folder: Path) -> None:
    """Say what the run goes on from: a checkpoint, or nothing, where its metrics begin anew.

    It is the newest one whose minibatches the metrics here all tell of; where there is none, the newest one. Raises
    InputError for a checkpoint that does not say what an epoch is.
    """
    from ..runtime.training_state import checkpoint  # it brings torch

    chosen: dict[str, Any] | None = None
    for found in checkpoint.newest_first(folder):
        progress = _progress(found)
        whole = has_rows_of(folder, progress)
        chosen = progress if whole else chosen or progress
        if whole:
            break
    if chosen is None:
        (folder / RESUME).unlink(missing_ok=True)
        keep_nothing(folder)
        return
    write_json(folder / RESUME, chosen)


def _progress(found: "Checkpoint") -> dict[str, Any]:
    """What a checkpoint says is done, and what is left."""
    from .resuming import epoch_minibatches

    per_epoch = epoch_minibatches(found)
    if per_epoch is None:
        raise InputError(
            "resume.no_epoch",
            f"{found.folder}: does not say how many minibatches an epoch has; train anew in another folder",
        )
    left = {int(epoch): list(numbers) for epoch, numbers in found.manifest.get("left", {}).items()}
    if "left" not in found.manifest and found.minibatches % per_epoch:  # of a run of one pipeline
        epoch, first = divmod(found.minibatches, per_epoch)
        left = {epoch: list(range(first, per_epoch))}
    return {"checkpoint": found.folder.name, "done": found.minibatches, "left": left, "epoch_minibatches": per_epoch}


def _same_clock(folder: Path, place: Path) -> None:
    """Let a pipeline's times begin when those of all do."""
    clock = folder / "logs" / "clock.json"
    if not clock.exists():
        write_json(clock, {"started": time.time()})
    write_json(place / "logs" / "clock.json", {"started": _started(clock)})


def _started(clock: Path) -> float:
    return float(read_fields(clock, CLOCK, what="run's clock")["started"])
