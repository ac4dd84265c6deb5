"""The verbs of the command line that start (under Slurm: by a script for sbatch), follow and compare runs."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.describing import unread_files
from ..errors import DamagedRecord, InputError, one_line
from ..launching import SLURM, attach, default_launcher
from ..launching.going_on import went_on
from ..launching.replan import check_running, replanned, request_replan
from ..launching.run_state import is_alive, state_of
from ..launching.slurm import sbatch_script, submit
from ..monitoring.interference.predictor import Predictor
from ..monitoring.launching import launch
from ..records import RunRecord
from ..records.formats.clusters import load_cluster
from ..records.formats.pipedream_driver import DriverFile, is_driver_file
from ..records.formats.plan_files import load_plan
from ..records.provenance import Provenance
from ..records.record_files import HOSTS
from ..records.sinks import Sink, open_sink
from ..runtime import RunConfig
from ..runtime.config import BUDGETS, DEVICES
from ..runtime.workloads import layer_graph
from ..runtime.workloads.resolved import resolve
from ..util.io.files import write_json
from ..util.io.settings import rows
from ..util.text.counting import number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..views.values import left_out
from .follow_run import Forgiving, drift_answer
from .launches import (
    RUNS,
    check_forward_only,
    check_launcher,
    checkpoint_or_run,
    follower_of,
    new_run_dir,
    run_folder,
    trained_by,
    waited,
)
from .options import given, known_cluster
from .output import Answer, cell, column_cells, progress_line, table, warn
from .profile_and_cluster import check_machines, profile_and_cluster
from .run_text import column_name, latency_text, minibatches_text, run_cell, run_lines, summary_text
from .without_effect import without_effect


def for_slurm(options: argparse.Namespace, *, run_dir: Path, plan: Plan, cluster: Cluster | None, gpus: bool) -> Answer:
    """The script that runs this command in a job, with `--submit` the job too. Nothing of the run is begun here.

    Raises InputError for what Slurm cannot give.
    """
    if options.detach:
        raise InputError(
            "option.of_local_launcher",
            "--detach with --launcher slurm, whose jobs outlive a terminal by themselves: leave it out",
        )
    script = sbatch_script(options.words, run_dir=run_dir, num_ranks=len(plan.ranks), cluster=cluster, gpus=gpus)
    document = {"script": script, "run_dir": str(run_dir)}
    if not options.submit:
        return Answer(document, script.rstrip("\n"))
    job = submit(script)
    return Answer(document | {"job": job}, f"job {job}: squeue -j {job} shows it; its run is in {run_dir}")


_CPU = DEVICES[:1]


def run(options: argparse.Namespace) -> Answer:
    if options.forward_only:
        check_forward_only(options)  # before a driver file says more
    options = typed = _with_run_folders(options)
    driver = DriverFile.load(options.plan) if options.plan and is_driver_file(options.plan) else None
    if driver:
        options = filled(options, driver)
    of_driver = driver.cluster() if driver else None
    cluster = load_cluster(known_cluster(named)) if (named := _cluster_file(options)) else of_driver
    launcher = options.launcher or default_launcher(cluster)
    record: RunRecord | None
    if options.resume:
        if options.forward_only:
            raise InputError("option.of_training", "--forward-only computes outputs anew: leave out --resume")
        record = RunRecord.load(options.resume)
        settings, folder = dict(record.config), record.folder
        if options.run_dir and options.run_dir.resolve() != folder.resolve():
            raise InputError(
                "option.run_dir_of_resume",
                f"--run-dir {options.run_dir} with --resume {options.resume}: a run goes on in its own folder; leave "
                "out --run-dir, or copy the folder and resume the copy",
            )
    else:
        record = trained_by(options) if options.forward_only else None
        settings = dict(record.config) if record else {}
        for name in ("plan", "model", "data"):
            if not getattr(options, name) and record is None:
                raise InputError(
                    "option.missing", f"no {name}: sparsepipe run PLAN --model M --data D, or --resume RUN"
                )
        parent = driver.folder if driver and driver.folder else RUNS
        folder = options.run_dir or new_run_dir(options.model or settings["model"], parent)
    config = settings_of(options, before=settings if record else None)
    resolved = resolve(config)
    chosen = record.plan if record and not options.plan else load_plan(options.plan, lambda: layer_graph(resolved))
    if driver and chosen.replication is None:
        chosen = driver.planned(chosen)
    warn(f"plan: {text}" for text in chosen.warnings)
    warn(without_effect(typed, resolved, chosen))
    warn(unread_files(config.data, lambda _: resolved.data.folder))
    if options.launcher == SLURM:
        if resolved.is_table:  # of a module only where its data are is it known
            chosen.check(layer_graph(resolved))
        return for_slurm(options, run_dir=folder, plan=chosen, cluster=cluster, gpus=config.device not in _CPU)
    if options.submit:
        raise InputError("option.of_slurm", f"--submit goes with --launcher {SLURM}")
    check_launcher(options, launcher)
    profile, cluster = _held_against(options, chosen, cluster)
    where = {"port": options.port, "detach": options.detach or None, "replication": options.replication}
    where |= {"replan": options.replan, "tell": progress_line, "predictor": _predictor(options)}
    where |= {"forward_only": options.forward_only, "ray_address": options.ray_address}
    where = {key: value for key, value in where.items() if value is not None}
    where |= {"launcher": launcher, "profile": profile, "cluster": cluster}
    sinks = _sinks(options)
    done = options.resume is not None and _nothing_left(folder, config)
    job = launch(chosen, resolved, run_dir=folder, resume=options.resume is not None, **where)
    if options.detach:
        return _left_alone(job)
    return _followed(job, sinks=sinks, nothing_left=done)


def _nothing_left(folder: Path, config: RunConfig) -> bool:
    from ..launching.resuming import nothing_left  # here: it brings torch, as what resumes will

    return nothing_left(folder, config)


def _with_run_folders(options: argparse.Namespace) -> argparse.Namespace:
    """The options with the folder of the run, or of the checkpoint, that they name."""
    resume = options.resume and run_folder(options.resume)
    forward_only = options.forward_only and checkpoint_or_run(options.forward_only)
    return argparse.Namespace(**{**vars(options), "resume": resume, "forward_only": forward_only})


def _predictor(options: argparse.Namespace) -> Predictor | None:
    return Predictor.load(options.predictor) if options.predictor else None


def _cluster_file(options: argparse.Namespace) -> Path | None:
    """Return the file of the hosts to run on; of a run that resumes, unless others are given, those it ran on."""
    given: Path | None = options.cluster
    if given or options.resume is None or options.launcher is not None:
        return given
    before: Path = options.resume / HOSTS
    return before if before.exists() else None


def _held_against(
    options: argparse.Namespace, plan: Plan, cluster: Cluster | None
) -> tuple[Profile | None, Cluster | None]:
    """The profile that the run is held against while it trains, and its devices.

    Where no cluster is known they are as many like ones as the plan has ranks. Raises InputError where the plan is not
    one for them.
    """
    if not options.profile:
        return None, cluster
    if options.resume:
        raise InputError(
            "option.of_new_run",
            "--profile goes with a new run; one that resumes keeps the profile that it was launched with",
        )
    given = dict.fromkeys(("server_file", "bandwidth", "memory", "devices")) | vars(options)
    if options.cluster is None:
        given["devices"] = [len(plan.ranks)]
    profile, like = profile_and_cluster(argparse.Namespace(**given), warn=False)
    warn(text for text in profile.warnings if text not in plan.warnings)  # those are told
    cluster = like if cluster is None or options.cluster is not None else cluster
    plan.check(profile.graph, cluster)
    return profile, cluster


def settings_of(options: argparse.Namespace, *, before: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the settings that the options of `run` ask for, over those `before` of the run that they resume.

    Raises InputError for a setting outside its range.
    """
    asked = given(options, rows(RunConfig))
    if options.straggler:
        asked["stragglers"] = ";".join(options.straggler)
    if budgets := [name for name in BUDGETS if name in asked]:
        if "batch_size" in asked:
            text = f"{{{budgets[0]}}} composes minibatches in place of {{batch_size}}: leave out one of them"
            raise InputError("setting.two_budgets", text, setting=dict.fromkeys((budgets[0], "batch_size")))
        asked = dict.fromkeys(BUDGETS) | asked  # one takes the place of another
    if before is None:
        return RunConfig(**asked)
    if "epochs" in asked:  # minibatches of before would end the run whatever is asked for now
        asked = {"minibatches": None} | asked
    return RunConfig.from_json({**before, **asked})


def runs_list(options: argparse.Namespace) -> Answer:
    folders = sorted(path.parent for path in Path(options.folder).glob("*/plan.json"))
    columns = ("run", "state", "model", "schedule", "stages", "samples_per_second", "accuracy")
    if not folders:
        progress_line(
            f"no runs in {options.folder}: `sparsepipe run` makes them in {RUNS}, unless --run-dir says where"
        )
    return _side_by_side([_row_or_damage(RunRecord(folder)) for folder in folders], columns)


def runs_show(options: argparse.Namespace) -> Answer:
    record = _record(options.run)
    row = _run_row(record)
    document = row | {
        "plan": record.plan.to_json(),
        "config": record.config,
        "origin": record.origin,
        "status": record.status,
    }
    lines = run_lines(row)
    summary = _summary(record)
    if latency := latency_text(summary):
        document["latency_seconds"] = summary["latency_seconds"]
        lines.append(f"latency of a minibatch, first stage to last: {latency}")
    if composed := minibatches_text(record.config):
        lines.append(f"minibatches: {one_line(composed)}")
    lines += [f"went on: {one_line(text)}" for text in went_on(record.folder)]
    if len(record.plans) > 1:
        document["plans"] = [{"first_minibatch": first, "plan": plan.to_json()} for first, plan in record.plans]
        for k, own in enumerate(record.pipelines):
            why = {row["minibatch"]: row.get("reason") for row in own.metrics("replan")}
            lines += [
                f"{record.plan.prefix(k)}plan from minibatch {cell(first)}: {plan.summary()}"
                + (f"; {one_line(reason)}" if (reason := why.get(first)) else "")
                for first, plan in own.plans
            ]
    return Answer(document, "\n".join([*lines, str(record.plan)]))


def runs_compare(options: argparse.Namespace) -> Answer:
    records = [_record(run) for run in options.runs]
    rows = [_row_or_damage(record, rests_on=True) for record in records]
    sound = [record for record, row in zip(records, rows, strict=True) if "damage" not in row]
    for text in Provenance.of(runs=sound).doubts:
        progress_line(f"warning: {text}")
    if damaged := [row["damage"] for row in rows if "damage" in row]:
        if len(damaged) == len(rows):
            raise InputError("run.damaged", damaged[0])
    return _side_by_side(rows, tuple(_NO_ROW))


def runs_attach(options: argparse.Namespace) -> Answer:
    """Follow a run to its end. Interrupting it leaves the run alone."""
    job = attach(_record(options.run).folder)
    try:
        return _followed(job, cancel=False, sinks=_sinks(options))
    except KeyboardInterrupt:
        progress_line(f"{job.record.folder} goes on; sparsepipe runs cancel ends it")
        raise


def runs_stop(options: argparse.Namespace) -> Answer:
    """Ask a run to end with a checkpoint, and follow it to its end. Interrupting that takes nothing back."""
    record = _record(options.run)
    if not is_alive(record):
        raise InputError("run.not_running", f"{record.folder}: is not running, it is {state_of(record)}")
    job = attach(record.folder)
    job.stop()
    follower = follower_of(record)
    summary = job.wait(on_row=lambda row: follower(record.rated(row)))
    follower.close()
    document = {"run": record.name, "state": job.state, "minibatches": summary["minibatches"]}
    return Answer(
        document, f"{one_line(record.folder)}: {job.state} after {number_of(summary['minibatches'], 'minibatch')}"
    )


def runs_replan(options: argparse.Namespace) -> Answer:
    """Have a run go on under another plan, and wait until it does. Interrupting that takes nothing back."""
    record = _record(options.run)
    check_running(record)
    plan = load_plan(options.plan, lambda: layer_graph(resolve(RunConfig.from_json(record.config))))
    asked, job = request_replan(record.folder, plan, reason=options.reason), attach(record.folder)
    if asked.doubt:
        progress_line(f"warning: {asked.doubt}")
    minibatch = replanned(record.folder, asked.token, running=lambda: job.running)
    document = {"run": record.name, "minibatch": minibatch, "reason": options.reason}
    document |= {"warnings": [asked.doubt] if asked.doubt else []}
    return Answer(
        document, f"{one_line(record.folder)}: goes on under {one_line(options.plan)} from minibatch {minibatch} on"
    )


def runs_cancel(options: argparse.Namespace) -> Answer:
    record = _record(options.run)
    if not is_alive(record):
        raise InputError("run.not_running", f"{record.folder}: is not running, it is {state_of(record)}")
    job = attach(record.folder)
    job.cancel()
    state = "killed" if job.state == "running" else job.state
    return Answer({"run": record.name, "state": state}, f"{one_line(record.folder)}: {state}")


def runs_export(options: argparse.Namespace) -> Answer:
    record = _record(options.run)
    trace = record.trace()
    if not trace.spans:
        raise InputError("run.no_trace", f"{record.folder}: has no trace yet")
    path = write_json(options.chrome, trace.to_chrome())
    facts = {"file": str(path), "spans": len(trace.spans), "ranks": list(trace.ranks)}
    missing = f" ({left_out(trace)})" if trace.left_out else ""
    facts |= {"left_out": trace.left_out} if trace.left_out else {}
    return Answer(
        facts,
        f"{one_line(path)}: {number_of(len(trace.spans), 'span')}{missing}; open it at ui.perfetto.dev or chrome://tracing",
    )


def runs_drift(options: argparse.Namespace) -> Answer:
    """How slow each rank and link was, beside its profile; that of the run where none is given."""
    return drift_answer(_record(options.run), *_given_devices(options))


# --- what they share ----------------------------------------------------------------------------------------------


def _record(run: Path) -> RunRecord:
    """Open a run by its folder, or by its name where it is in the usual place."""
    return RunRecord.load(run_folder(run))


def _given_devices(options: argparse.Namespace) -> tuple[Profile | None, Cluster | None]:
    """The profile and the cluster that the options name; None where they name none."""
    if options.profile or options.server_file or options.devices:
        return profile_and_cluster(options)
    check_machines(options)
    if options.bandwidth or options.memory:
        raise InputError(
            "option.of_profile",
            f"--{'bandwidth' if options.bandwidth else 'memory'} goes with --profile: give that, or leave it out",
        )
    return None, load_cluster(known_cluster(options.cluster)) if options.cluster else None


def _sinks(options: argparse.Namespace) -> list[Sink]:
    """Open what --log asks for. Raises InputError for what cannot be opened, and where nobody will follow the run."""
    if options.log and getattr(options, "detach", False):
        raise InputError(
            "option.of_followed_run",
            "--log and --detach: nobody follows the run; leave it out, and give it to `runs attach`",
        )
    return [Forgiving(kind, open_sink(kind, folder)) for kind, folder in options.log]


def _followed(job: Any, *, cancel: bool = True, sinks: Sequence[Sink] = (), nothing_left: bool = False) -> Answer:
    summary = waited(job, cancel=cancel, sinks=sinks)
    beyond_sizes = job.record.plan.extrapolation
    text = summary_text(summary, nothing_left=nothing_left)
    return Answer(summary, f"{text}; times of its plan: {beyond_sizes}" if beyond_sizes else text)


def _left_alone(job: Any) -> Answer:
    """Tell of a job that goes on by itself, once its record says so: what is asked about it next finds it running."""
    record: RunRecord = job.record
    while job.running and record.status["state"] == "started":
        time.sleep(0.02)
    folder, state = record.folder, state_of(record)
    text = (
        f"{folder} runs on its own; sparsepipe runs attach {folder.name} follows it, runs stop and runs cancel end it"
        if state == "running"
        else f"{folder}: {state}; sparsepipe runs attach {folder.name} tells why"
    )
    return Answer({"run_dir": str(folder), "state": state}, text)


_NO_ROW = dict.fromkeys(("run", "state", "model", "engine", "schedule", "stages", "samples_per_second", "accuracy"))


def _side_by_side(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Answer:
    """Format rows of runs as a table, with a line below it for each damaged record."""
    cells = (column_cells([run_cell(c, row[c]) for row in rows]) for c in columns)
    text = table([[*map(column_name, columns)], *zip(*cells, strict=True)])
    damaged = [f"{one_line(row['run'])} cannot be read: {row['damage']}" for row in rows if "damage" in row]
    return Answer(rows, "\n".join([text, *damaged]))


def _row_or_damage(record: RunRecord, *, rests_on: bool = False) -> dict[str, Any]:
    """A run's row; of a damaged one its name, the state "damaged", and what is wrong.

    `rests_on`: what says whether it may be compared must be readable, too.
    """
    try:
        if rests_on:
            Provenance.of(runs=[record])
        return _run_row(record)
    except DamagedRecord as error:
        return {**_NO_ROW, "run": record.name, "state": "damaged", "damage": str(error)}


def _summary(record: RunRecord) -> dict[str, Any]:
    """What the run came to, as its record has it; empty before it has ended."""
    return (record.metrics("summary") or [{}])[-1]


def _run_row(record: RunRecord) -> dict[str, Any]:
    summary = _summary(record)
    plans = record.plan.pipelines
    return {
        "run": record.name,
        "state": state_of(record),
        "model": record.model or None,
        "engine": summary.get("engine") or record.config.get("engine"),
        "schedule": ", ".join(dict.fromkeys(plan.schedule for plan in plans)),
        "stages": " + ".join("-".join(str(len(stage.ranks)) for stage in plan.stages) for plan in plans),
        "samples_per_second": summary.get("samples_per_second"),
        **({"minibatches_per_second": pace} if (pace := summary.get("minibatches_per_second")) is not None else {}),
        "accuracy": (summary.get("validation") or {}).get("accuracy"),
    }


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "run": run,
    "runs list": runs_list,
    "runs show": runs_show,
    "runs compare": runs_compare,
    "runs attach": runs_attach,
    "runs stop": runs_stop,
    "runs replan": runs_replan,
    "runs cancel": runs_cancel,
    "runs export": runs_export,
    "runs drift": runs_drift,
}


def filled(options: argparse.Namespace, driver: DriverFile) -> argparse.Namespace:
    """The options with what the file says wherever the command line says nothing.

    Prints a line for each key of the file that has no meaning here. Raises InputError for a network, or a conf json,
    that is not there.
    """
    for line in driver.without_meaning:
        progress_line(f"{driver.path}: {line}")
    said: dict[str, Any] = {"plan": driver.config_file}
    if options.model is None:
        said["model"] = driver.model
    if options.data is None:
        said["data"] = driver.data
    said |= {name: value for name, value in driver.settings.items() if getattr(options, name, None) is None}
    return argparse.Namespace(**{**vars(options), **said})
