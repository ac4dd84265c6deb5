"""What verbs about runs have in common: the folder, the plan's file, launcher and checkpoint asked for, the wait."""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from ..data.cache import NO_CACHE
from ..data.order import SHUFFLE
from ..errors import InputError, one_line
from ..launching import LOCAL, RAY, Job
from ..launching.resuming import run_of
from ..launching.run_folders import state_of, went_on
from ..launching.slurm import sbatch_script, submit
from ..records import RunRecord, load_warnings
from ..records.run_progress import MINIBATCHES, SAMPLES
from ..records.sinks import Sink, described, open_sink
from ..runtime import RunConfig
from ..runtime.config import BUDGETS, CheckpointConfig, EvaluationConfig, OptimizerConfig
from ..util.host.background_load import BackgroundLoad
from ..util.io.files import expanded
from ..util.io.functions import short_name
from ..util.io.quantities import SIZE, TIME
from ..util.io.settings import rows
from ..util.text.numbers import as_measured, duration, number_of, pace_text, validation_text
from ..values.cluster import Cluster
from ..values.plan import Plan
from .follow_run import DriftLines, Forgiving, RunFollower
from .options import given
from .output import Answer, cell, progress_line

# What a run's row is called in text, as figures and the board call it; --json has the keys themselves.
_NAMES = {
    "stages": "replicas of stages",
    SAMPLES: "samples/s",
    MINIBATCHES: "minibatches/s",
    "accuracy": "validation accuracy",
}


def column_name(key: str) -> str:
    """The name of a run's number in text."""
    return _NAMES.get(key, key)


def run_cell(key: str, value: Any) -> Any:
    """A run's number as text has it: a share in per cent, a pace in three digits, others as they are."""
    if value is None:
        return value
    return as_measured(value) if key in (SAMPLES, MINIBATCHES) else f"{value:.1%}" if key == "accuracy" else value


def run_lines(row: Mapping[str, Any]) -> list[str]:
    """A line for each of a run's numbers."""
    return [f"{column_name(key)}: {cell(run_cell(key, value))}" for key, value in row.items()]


def summary_text(summary: Mapping[str, Any], *, nothing_left: bool = False) -> str:
    """The line at a run's end. `nothing_left`: it resumed with all of its minibatches trained: the pace is recorded."""
    pace, learned = pace_text(summary), validation_text(summary)
    told = f"{number_of(summary['minibatches'], 'minibatch')} at {pace}"
    if nothing_left:
        recorded = f", at {pace} by the record" if summary.get("samples_per_second") else ""
        told = f"no minibatches were left to train after {number_of(summary['minibatches'], 'minibatch')}{recorded}"
    parts = filter(None, [told, learned, _best_text(summary), _left_out_text(summary), _split_text(summary)])
    return f"{one_line(summary['run_dir'])}: {', '.join(parts)}" + _of_inference(summary)


def _best_text(summary: Mapping[str, object]) -> str:
    """The best epoch of a run that compares them; empty for others."""
    if not isinstance(best := summary.get("best"), Mapping):
        return ""
    early = " (ended early)" if summary.get("stopped_early") else ""
    return f"best {best['metric']} {best['value']:.4g} after epoch {best['epoch'] + 1}{early}"


def _left_out_text(summary: Mapping[str, object]) -> str:
    """The number of samples that did not fit under the memory limit; empty if all did."""
    if not isinstance(left_out := summary.get("left_out"), Mapping):
        return ""
    return f"{number_of(left_out['samples'], 'sample')} left out as too large for the memory limit"


def _split_text(summary: Mapping[str, Any]) -> str:
    """The number of the last epoch's minibatches that passed in parts to fit under the memory limit; empty if none."""
    if not (split := summary["train"].get("split_minibatches")):
        return ""
    return f"{number_of(split, 'minibatch')} of the last epoch split to fit under the memory limit"


def _of_inference(summary: Mapping[str, Any]) -> str:
    """Return the text at the end of an inference run, after its throughput; empty for a training run."""
    if "predictions" not in summary:
        return ""
    return f", forward passes only: latency of a minibatch {latency_text(summary)}; {one_line(summary['predictions'])}"


def minibatches_text(config: Mapping[str, object]) -> str:
    """Describe the budget and order of a run's minibatches: "at most 200,000 voxels, planned order"; else empty."""
    found = []
    for name, unit in (("batch_voxels", None), ("batch_seconds", TIME), ("batch_bytes", SIZE)):
        if isinstance(most := config.get(name), int | float):
            found.append(f"at most {unit.shown(most)} on a stage" if unit else f"at most {most:,.0f} voxels")
    found += [f"{order} order"] if (order := config.get("order", SHUFFLE)) != SHUFFLE or found else []
    return ", ".join(found)


def latency_text(summary: Mapping[str, Any]) -> str:
    """Minibatches' latencies, from the first stage to the last; empty where the run has none, as one that trained.

    Records of before have no mean.
    """
    told = {"mean": "mean", "median": "median", "p95": "95th percentile"}
    found = summary.get("latency_seconds")
    latency: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    known = {name: latency[key] for key, name in told.items() if isinstance(latency.get(key), int | float)}
    return ", ".join(f"{duration(seconds)} ({name})" for name, seconds in known.items())


RUNS = Path("runs")  # where runs are looked for by name


def run_folder(given: Path) -> Path:
    """Return the folder of a run, given the folder or its name in runs/; an unknown name is returned unchanged."""
    named = RUNS / given  # of an absolute path that itself
    return given if _is_run(given) or not _is_run(named) else named


def _is_run(folder: Path) -> bool:
    return (folder / "plan.json").exists()


def new_run_dir(model: str, parent: Path = RUNS) -> Path:
    name = short_name(model).replace(".py:", "-").replace(":", "-")
    return parent / f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def check_launcher(options: argparse.Namespace, launcher: str) -> None:
    """Raise InputError for options that go with another launcher."""
    if options.ray_address and launcher != RAY:
        raise InputError("option.of_ray", f"--ray-address requires --launcher {RAY}; add that, or omit --ray-address")
    on_lost_host = getattr(options, "on_lost_host", None)
    if on_lost_host and launcher == RAY and not (options.ray_address or os.environ.get("RAY_ADDRESS")):
        raise InputError(
            "option.of_ray", "--on-lost-host requires a Ray cluster; add --ray-address ADDRESS, or omit it"
        )
    cache = getattr(options, "cache", None)
    if launcher == LOCAL and cache not in (None, NO_CACHE) and not options.dry_run:
        # Else workers would go on without, which their logs alone tell.
        expanded(cache).mkdir(parents=True, exist_ok=True)
    given = {"--encrypt": options.encrypt, "--on-lost-host": on_lost_host}
    if launcher == LOCAL and (named := [name for name, value in given.items() if value]):
        raise InputError("option.of_hosts", f"{named[0]} requires other hosts; add --cluster FILE, or omit it")


def follower_of(record: RunRecord) -> RunFollower:
    """Return the object that shows the progress of a run on a terminal."""
    trains = record.workload.trains
    return RunFollower(trains=trains, counted=record.counted)


def waited(job: Any, *, cancel: bool = True, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Follow a job to its end, and return its summary; warnings go to stderr."""
    follower = follower_of(job.record)
    sinks = (follower, DriftLines(job.record, before=follower.close), *sinks)

    def take(row: dict[str, Any]) -> None:
        sent = described(job.record.rated(row), job.record)
        for sink in sinks:
            sink(sent)

    try:
        summary: dict[str, Any] = job.record.rated(job.wait(on_row=take))
    except KeyboardInterrupt:
        if cancel:
            job.cancel()
        raise
    finally:
        for sink in sinks:
            sink.close()
    if job.state == "stopped":
        progress_line(f"stopped as requested; continue by `sparsepipe train --resume {job.record.folder}`")
    for text in went_on(job.record.folder):
        progress_line(f"warning: {one_line(text)}")
    for text in load_warnings(BackgroundLoad.from_json(summary.get("load"))):
        progress_line(f"warning: {text}")
    return summary


def open_sinks(options: argparse.Namespace) -> list[Sink]:
    """Open the sinks of --log. Raises InputError if one cannot be opened, or if no process will follow the run."""
    if options.log and getattr(options, "detach", False):
        raise InputError(
            "option.of_followed_run",
            "--log does not apply to --detach; omit it here, and give it to `runs attach`",
        )
    return [Forgiving(kind, open_sink(kind, folder)) for kind, folder in options.log]


def followed(job: Job, *, cancel: bool = True, sinks: Sequence[Sink] = (), nothing_left: bool = False) -> Answer:
    summary = waited(job, cancel=cancel, sinks=sinks)
    beyond_sizes = job.record.plan.extrapolation
    text = summary_text(summary, nothing_left=nothing_left)
    return Answer(summary, f"{text}; times of its plan: {beyond_sizes}" if beyond_sizes else text)


def left_alone(job: Job) -> Answer:
    """Report a detached job once its record says that it runs, so that later commands find it running."""
    record: RunRecord = job.record
    while job.running and record.status["state"] == "started":
        time.sleep(0.02)
    folder, state = record.folder, state_of(record)
    text = (
        f"{folder} runs in the background; `sparsepipe runs attach {folder.name}` follows it, `runs stop` and `runs "
        "cancel` end it"
        if state == "running"
        else f"{folder}: {state}; `sparsepipe runs attach {folder.name}` shows why"
    )
    return Answer({"run_dir": str(folder), "state": state}, text)


def settings_of(options: argparse.Namespace, *, before: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the settings that the options of `run` ask for, over those `before` of the run that they resume.

    Raises InputError for a setting outside its range.
    """
    asked = given(options, rows(RunConfig))
    if options.straggler:
        asked["stragglers"] = ";".join(options.straggler)
    if budgets := [name for name in BUDGETS if name in asked]:
        if "batch_size" in asked:
            text = f"{{{budgets[0]}}} replaces {{batch_size}}: omit one of them"
            raise InputError("setting.two_budgets", text, setting=dict.fromkeys((budgets[0], "batch_size")))
        asked = dict.fromkeys(BUDGETS) | asked  # one takes the place of another
    if before is None:
        return RunConfig(**asked)
    if "epochs" in asked:  # minibatches of before would end the run whatever is asked for now
        asked = {"minibatches": None} | asked
    return RunConfig.from_json({**before, **asked})


def for_slurm(options: argparse.Namespace, *, run_dir: Path, plan: Plan, cluster: Cluster | None, gpus: bool) -> Answer:
    """The script that runs this command in a job, with `--submit` the job too. Nothing of the run is begun here.

    Raises InputError for what Slurm cannot give.
    """
    if options.detach:
        raise InputError(
            "option.of_local_launcher",
            "--detach does not apply to --launcher slurm, whose jobs are always detached; omit it",
        )
    script = sbatch_script(options.words, run_dir=run_dir, num_ranks=len(plan.ranks), cluster=cluster, gpus=gpus)
    document = {"script": script, "run_dir": str(run_dir)}
    if not options.submit:
        return Answer(document, script.rstrip("\n"))
    job = submit(script)
    return Answer(document | {"job": job}, f"job {job}: squeue -j {job} shows it; its run is in {run_dir}")


def check_forward_only(options: argparse.Namespace) -> None:
    """Raise InputError for options of training that are given with --forward-only."""
    names = ["replan", "replication", "straggler", "max_restarts", "on_lost_host", "augmentation", "sampler"]
    names += ["balance", "order", *BUDGETS, "last_minibatch", "loss_scale", "synchronised_batch_norm", "bleu_sentences"]
    names += [field.name for field in (*fields(OptimizerConfig), *fields(CheckpointConfig))]
    names += [field.name for field in fields(EvaluationConfig) if field.name != "metrics"]
    if given := [name for name in names if getattr(options, name) is not None]:
        raise InputError("option.of_training", f"--forward-only does not train; omit --{given[0].replace('_', '-')}")
    if options.validate is False:
        raise InputError(
            "option.no_validation",
            "--forward-only computes outputs for the validation split; omit --no-validation",
        )


def checkpoint_or_run(given: Path) -> Path:
    """Return the folder that `predict` is given: of a checkpoint, or of a run, which its name in runs/ says, too."""
    return given if _is_checkpoint(given) else run_folder(given)


def trained_by(options: argparse.Namespace) -> RunRecord | None:
    """Open the run whose checkpoint `predict` is given, None where that stands alone.

    Raises InputError if there is none.
    """
    if not options.forward_only.exists():
        told = "no such folder, expected a checkpoint or a run; `sparsepipe runs list` lists the runs"
        raise InputError("option.of_training", f"{one_line(options.forward_only)}: {told}")
    folder = run_of(options.forward_only)
    if not folder and not _is_checkpoint(options.forward_only):
        told = "is neither a run (no plan.json) nor a checkpoint (no manifest.json)"
        raise InputError("option.of_training", f"{one_line(options.forward_only)}: {told}")
    return RunRecord.load(folder) if folder else None


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "manifest.json").exists()
