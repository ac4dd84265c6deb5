"""What changes when a run resumes under other settings: impossible ends are refused, changed rates are reported."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..data.minibatch_sizes import sizes
from ..data.order import SHUFFLE
from ..errors import InputError
from ..records import RunRecord
from ..records.record_files import read_metrics
from ..runtime.config import BUDGETS, REFUSE, RunConfig
from ..runtime.pipelines.journal import RESUME, has_rows_of, keep_nothing
from ..runtime.pipelines.minibatch_queue import MinibatchQueue
from ..runtime.training_state.checkpoint import Checkpoint, latest, newest_first
from ..util.io.files import expanded, sha256, write_json
from ..util.io.functions import functions_of, short_name
from ..util.text.numbers import as_given, number_of
from ..values.cluster import Cluster
from ..values.plan import Plan


def check_end(found: Checkpoint, config: RunConfig) -> None:
    """Raise InputError if the settings end the run before the minibatch that its newest checkpoint has reached."""
    per_epoch = epoch_minibatches(found)
    if per_epoch is None:
        return
    total, done = config.total_minibatches(per_epoch), found.minibatches
    if total < done:
        name = "epochs" if config.minibatches is None else "minibatches"
        raise InputError(
            "resume.ends_before",
            f"{{{name}}} would end the run after minibatch {total}, but {found.folder} has already trained {done} "
            f"({number_of(done / per_epoch, 'epoch', as_given)}); raise it to at least that, or retrain in another "
            "folder",
            setting={name: getattr(config, name)},
        )


def go_on_from_checkpoint(folder: Path) -> None:
    """Say what the run continues from: a checkpoint, or nothing, if its metrics begin again.

    It is the newest one whose minibatches the metrics here all tell of; if there is none, the newest one. Raises
    InputError for a checkpoint that does not say what an epoch is.
    """
    chosen: dict[str, Any] | None = None
    config = RunConfig.from_json(RunRecord(folder).config)
    for found in newest_first(folder):
        progress = _progress(found, config)
        whole = has_rows_of(folder, progress)
        chosen = progress if whole else chosen or progress
        if whole:
            break
    if chosen is None:
        (folder / RESUME).unlink(missing_ok=True)
        keep_nothing(folder)
        return
    write_json(folder / RESUME, chosen)


def keep_earlier_rows(folder: Path) -> str:
    """Keep a copy of the metrics of a run that has no checkpoint, and return the warning that it starts over.

    The workers drop the rows of minibatches that they train again. Empty if there are none.
    """
    metrics = folder / "metrics.jsonl"
    if not metrics.exists() or not (steps := read_metrics(metrics, "step")):
        return ""
    copy = folder / f"metrics-before-{1 + len(list(folder.glob('metrics-before-*.jsonl')))}.jsonl"
    shutil.copyfile(metrics, copy)
    done = 1 + max(row["minibatch"] for row in steps)
    rows = f"the rows of its {number_of(done, 'minibatch')} are kept in {copy.name}"
    return f"starting over: {folder.name} ended before its first checkpoint; {rows}"


def check_left(found: Checkpoint, config: RunConfig) -> None:
    """Raise InputError if what a checkpoint says is done does not belong to a run of several under these settings.

    Asked before the record changes: the coordinator would refuse it as well.
    """
    progress = _progress(found, config)
    per_epoch = progress["epoch_minibatches"]
    left = {str(epoch): numbers for epoch, numbers in progress["left"].items()}
    told = {"done": progress["done"], "epoch_minibatches": per_epoch, "left": left}
    MinibatchQueue(per_epoch, config.total_minibatches(per_epoch), told)


def _progress(found: Checkpoint, config: RunConfig) -> dict[str, Any]:
    """Return the progress in a checkpoint: finished work, and the rest of begun epochs under the settings.

    If the run was to end within an epoch, the rest of that epoch is left, too.
    """
    per_epoch = epoch_minibatches(found)
    if per_epoch is None:
        raise InputError(
            "resume.no_epoch",
            f"{found.folder}: does not give the number of minibatches per epoch; retrain in another folder",
        )
    left = {int(epoch): list(numbers) for epoch, numbers in found.manifest.get("left", {}).items()}
    total = config.total_minibatches(per_epoch)
    epoch, first = divmod(found.minibatches + sum(map(len, left.values())), per_epoch)
    if first:  # where the run was to end; of one pipeline, where it ended
        left[epoch] = [*left.get(epoch, ()), *range(first, per_epoch)]
    left = {epoch: [m for m in numbers if epoch * per_epoch + m < total] for epoch, numbers in left.items()}
    return {"checkpoint": found.folder.name, "done": found.minibatches, "left": left, "epoch_minibatches": per_epoch}


def nothing_left(folder: Path, config: RunConfig) -> bool:
    """Return whether a run that resumes from the newest checkpoint in `folder` has trained all that its settings ask
    for.
    """
    found = latest(folder)
    per_epoch = epoch_minibatches(found) if found else None
    return found is not None and per_epoch is not None and config.total_minibatches(per_epoch) == found.minibatches


def told(folder: Path, found: Checkpoint, before: RunConfig, config: RunConfig) -> Iterator[str]:
    """Yield warnings, a line each, for a run in `folder` that resumes from the checkpoint `found`.

    Raises InputError if nothing is left to train, and no record of what was.
    """
    per_epoch = epoch_minibatches(found)
    metrics = folder / "metrics.jsonl"
    if not metrics.exists() or metrics.stat().st_size == 0:
        if per_epoch is not None and config.total_minibatches(per_epoch) == found.minibatches:
            raise InputError(
                "resume.metrics_missing",
                f"{metrics}: the file is missing, and the training is finished; restore the file, or train more epochs",
            )
        yield (
            f"{metrics}: the file is missing, and the losses of the first "
            f"{number_of(found.minibatches, 'minibatch')} with it; the run continues from {found.folder.name}"
        )
    yield from _changed_code(RunRecord.load(folder), config)
    if per_epoch is not None and found.minibatches:
        yield from _rate_told(found.minibatches, per_epoch, before, config, metrics=metrics)


def _validation_losses(metrics: Path, minibatches: int) -> list[float]:
    """Return the losses of the validations after so many minibatches or fewer: a schedule may follow them."""
    rows = read_metrics(metrics, "epoch") if metrics.exists() else []
    scores = [row["validation"] for row in rows if row.get("validation") and row["minibatches"] <= minibatches]
    return [score["loss"] for score in scores if score.get("loss") is not None]


def _changed_code(record: RunRecord, config: RunConfig) -> Iterator[str]:
    """Yield a line for each of the user's functions whose files differ from those that the run began with."""
    recorded = record.origin.get("facts", {}).get("code_sha256", {})
    for name, function in functions_of(vars(config)).items():
        # Records were once of the function's file alone, which says nothing about its neighbours.
        if recorded.get(name, function.sha256()) not in (function.sha256(), sha256(function.file())):
            yield f"{function}: its code has changed since the run began; the run resumes with the code as it is now"


def epoch_minibatches(found: Checkpoint) -> int | None:
    """Return the minibatches of an epoch as a checkpoint counts them; None if it is too old to say."""
    if (count := found.manifest.get("epoch_minibatches")) is not None:
        return int(count)
    samples, batch_size = (found.manifest.get(name) for name in ("samples", "batch_size"))
    if samples is None or batch_size is None:
        return None
    return len(sizes(samples, batch_size, last=found.manifest.get("last_minibatch", "keep")))


def _rate_told(done: int, per_epoch: int, before: RunConfig, config: RunConfig, *, metrics: Path) -> Iterator[str]:
    """Yield a line where the new settings give another learning rate for the next minibatch than the old ones."""
    totals = [own.total_minibatches(per_epoch) for own in (before, config)]
    rates = [own.rate for own in (before, config)]
    losses, losses_of_last = (_validation_losses(metrics, minibatches) for minibatches in (done, done - 1))
    expected, next_rate = (
        rate.at(done, epoch_minibatches=per_epoch, total_minibatches=total, losses=losses)
        for rate, total in zip(rates, totals, strict=True)
    )
    if abs(next_rate - expected) <= 1e-9 * max(abs(next_rate), abs(expected)):
        return
    last = rates[0].at(done - 1, epoch_minibatches=per_epoch, total_minibatches=totals[0], losses=losses_of_last)
    how = f"the learning rate's schedule {config.learning_rate_schedule!r}"
    if rates[0] == rates[1]:
        how += f" is stretched over {number_of(totals[1], 'minibatch')}, {totals[0]} before"
    else:
        how += f" has other settings than before, over {number_of(totals[1], 'minibatch')}"
    yield f"{how}: the rate goes from {last:.4g} at minibatch {done - 1} to {next_rate:.4g} at minibatch {done}"


def inference_config(config: RunConfig) -> RunConfig:
    """Return the settings of a run of forwards alone. Raises InputError for an engine that computes no outputs."""
    if not config.workload.trains:
        text = f"engine {config.engine!r} computes no outputs; omit {{forward_only}}"
        raise InputError("engine.computes_nothing", text, setting="forward_only")
    # Of a training run: nothing is kept for a backward, so no limit makes layers recompute.
    of_training = (*BUDGETS, "composition", "initial", "memory_limit", "fitting_sizes")
    composed = dict.fromkeys(of_training) | {"order": SHUFFLE, "oversize": REFUSE}
    return config.replace(validate=True, checkpoint_every=0, max_restarts=0, stragglers=None, **composed)


def first_pipeline(plan: Plan, cluster: Cluster | None) -> tuple[Plan, Cluster | None]:
    """Return the plan that computes outputs in the place of several pipelines, each of which has the whole network: the
    first of them, with ranks from 0, and its own devices of the cluster.

    Raises InputError for ranks that the cluster has no device for.
    """
    return plan.local(0), None if cluster is None else cluster.part(plan.ranks_of(0))


def find_checkpoint(given: Path | str, plan: Plan, config: RunConfig) -> Path:
    """Return the folder of a checkpoint: of a run's folder its newest one.

    Raises InputError if there is none, or it is of another network.
    """
    # Here: it brings torch, for which nobody else who launches need wait.
    from ..runtime.training_state import checkpoint

    folder = expanded(given).resolve()
    if (folder / "plan.json").exists():
        found = checkpoint.latest(folder)
        if found is None:
            raise InputError(
                "run.no_checkpoint",
                f"{given}: the run has no checkpoint yet; wait for the end of an epoch, or name another run",
            )
    else:
        found = checkpoint.load(folder)
    found.check(model=short_name(config.model), layers=plan.layers)
    return found.folder


def run_of(given: Path) -> Path | None:
    """Return the folder of the run that a checkpoint, or the folder itself, is of; None if it stands alone."""
    folder = given.resolve()
    return next((one for one in (folder, folder.parent.parent) if (one / "plan.json").exists()), None)
