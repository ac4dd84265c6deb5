"""The verbs of the command line that list, show, compare, follow, change, stop and delete runs."""

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DamagedRecord, InputError, one_line, visible
from ..launching import attach
from ..launching.lock import is_held
from ..launching.replan import check_running, replanned, request_replan
from ..launching.run_folders import delete_runs, is_alive, state_of, went_on
from ..records import RunRecord
from ..records.formats.clusters import load_cluster
from ..records.formats.plan_files import load_plan
from ..records.provenance import Provenance
from ..runtime import RunConfig
from ..runtime.workloads import layer_graph
from ..runtime.workloads.resolved import resolve
from ..util.io.files import open_regular, write_json
from ..util.text.numbers import number_of
from ..values.cluster import Cluster
from ..values.profile import Profile
from ..views.values import left_out
from .follow_run import drift_answer
from .launches import (
    RUNS,
    column_name,
    followed,
    follower_of,
    latency_text,
    minibatches_text,
    open_sinks,
    run_cell,
    run_folder,
    run_lines,
)
from .options import known_cluster
from .output import Answer, cell, column_cells, print_answer, progress_line, table
from .profile_and_cluster import check_machines, profile_and_cluster


def runs_list(options: argparse.Namespace) -> Answer:
    folders = sorted(path.parent for path in Path(options.folder).glob("*/plan.json"))
    columns = ("run", "state", "model", "schedule", "stages", "samples_per_second", "accuracy")
    if not folders:
        progress_line(
            f"no runs in {options.folder}: `sparsepipe train` creates them in {RUNS}, or in the folder of --out"
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
        return followed(job, cancel=False, sinks=open_sinks(options))
    except KeyboardInterrupt:
        progress_line(f"{job.record.folder} continues; `sparsepipe runs cancel` ends it")
        raise


def runs_logs(options: argparse.Namespace) -> Answer:
    """Print the last lines of the logs of a run's processes; with --follow those that come until it ends, too."""
    record = _record(options.run)
    name = "*" if options.rank is None else f"rank{options.rank}"
    logs = [_Log(path, record.folder) for path in _log_files(record.folder, name)]
    if not logs:
        raise InputError(
            "run.no_logs", f"{record.folder}: has no logs/{name}.log; `sparsepipe runs show` shows the state of the run"
        )
    documents = {log.name: log.last(options.lines) for log in logs}
    text = "\n".join(log.line(line) for log in logs for line in documents[log.name])
    if not options.follow:
        return Answer({"run": record.name, "logs": documents}, text)
    if not options.json and text:
        print_answer(visible(text))
    while True:
        alive = is_alive(record)  # before the last look: what comes meanwhile is read
        for log in logs:
            new = log.new()
            documents[log.name] += new
            if new and not options.json:
                print_answer(visible("\n".join(map(log.line, new))))
        if not alive:
            return Answer({"run": record.name, "logs": documents}, f"{one_line(record.folder)}: {state_of(record)}")
        time.sleep(_LOOK_SECONDS)


_LOOK_SECONDS = 0.2  # between two looks at logs that are followed


def _log_files(folder: Path, name: str) -> list[Path]:
    """The logs of a run of one pipeline, or of several, in the order of their names."""
    return sorted([*folder.glob(f"logs/{name}.log"), *folder.glob(f"pipelines/*/logs/{name}.log")])


class _Log:
    """A log file that is read line by line; an unfinished line is kept until its end comes."""

    def __init__(self, path: Path, folder: Path) -> None:
        *_, pipeline, _, name = ("", *path.relative_to(folder).with_suffix("").parts)
        self.name = f"pipeline {pipeline}, {name}" if pipeline else name
        self._file, self._part = open_regular(path), b""

    def last(self, count: int) -> list[str]:
        """The last lines so far; all of them where `count` is 0."""
        return list(deque(self.new(), maxlen=count or None))

    def new(self) -> list[str]:
        """The lines that came since the last call."""
        *lines, self._part = (self._part + self._file.read()).split(b"\n")
        return [line.decode(errors="backslashreplace") for line in lines]

    def line(self, text: str) -> str:
        """A line with the log's name before it."""
        return f"{self.name}: {text}"


def runs_rm(options: argparse.Namespace) -> Answer:
    """Delete runs after a question: none that is running, and nothing outside of their folder."""
    folders = list(dict.fromkeys(_folder_in(options.folder, name) for name in options.runs))
    if running := [folder for folder in folders if not folder.is_symlink() and is_held(folder)]:
        raise InputError(
            "run.running", f"{running[0]}: is running; end it by `sparsepipe runs cancel {running[0].name}`"
        )
    names = ", ".join(one_line(folder) for folder in folders)
    if not options.yes and not _agreed(f"Delete {names} with records, traces and checkpoints? [y/N] "):
        return Answer({"deleted": []}, "nothing deleted")
    delete_runs(folders)
    return Answer({"deleted": [str(folder) for folder in folders]}, f"deleted: {names}")


def _folder_in(folder: Path, run: Path) -> Path:
    """Return the folder of a run in the runs' folder. Raises InputError for one elsewhere, and for what is no run."""
    path = run if run.parent != Path() and run.parent.resolve() == folder.resolve() else folder / run
    if path.name in ("", "..") or path.parent.resolve() != folder.resolve():
        raise InputError(
            "run.outside_folder",
            f"{run}: is not in {folder}; name a run in that folder, or set the folder by --folder DIR",
        )
    if not (path / "plan.json").exists() and not path.is_symlink():
        raise InputError(
            "run.not_found", f"{path}: is not a run (it has no plan.json); `sparsepipe runs list` lists the runs"
        )
    return path


def _agreed(question: str) -> bool:
    """Return True if the user says yes. Raises InputError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise InputError(
            "runs.nobody_to_ask",
            "cannot ask for confirmation without a terminal; use --yes to delete without confirmation",
        )
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def runs_stop(options: argparse.Namespace) -> Answer:
    """Ask a run to end with a checkpoint, and follow it to its end. Interrupting that takes nothing back."""
    record = _record(options.run)
    if not is_alive(record):
        raise InputError("run.not_running", f"{record.folder}: is not running (state: {state_of(record)})")
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
    """Switch a running job to another plan, and wait until it has switched. Interrupting that takes nothing back."""
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
        document, f"{one_line(record.folder)}: switched to {one_line(options.plan)} from minibatch {minibatch} on"
    )


def runs_cancel(options: argparse.Namespace) -> Answer:
    record = _record(options.run)
    if not is_alive(record):
        raise InputError("run.not_running", f"{record.folder}: is not running (state: {state_of(record)})")
    job = attach(record.folder)
    job.cancel()
    state = "killed" if job.state == "running" else job.state
    return Answer({"run": record.name, "state": state}, f"{one_line(record.folder)}: {state}")


def runs_export(options: argparse.Namespace) -> Answer:
    record = _record(options.run)
    trace = record.trace()
    if not trace.spans:
        raise InputError("run.no_trace", f"{record.folder}: has no trace yet; try again after the first minibatches")
    path = write_json(options.out, trace.to_chrome())
    facts = {"file": str(path), "spans": len(trace.spans), "ranks": list(trace.ranks)}
    missing = f" ({left_out(trace)})" if trace.left_out else ""
    facts |= {"left_out": trace.left_out} if trace.left_out else {}
    return Answer(
        facts,
        f"{one_line(path)}: {number_of(len(trace.spans), 'span')}{missing}; open it at ui.perfetto.dev or "
        "chrome://tracing",
    )


def runs_drift(options: argparse.Namespace) -> Answer:
    """Print the slowdown of each rank and link vs the profile (default: the profile of the run)."""
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
            f"--{'bandwidth' if options.bandwidth else 'memory'} requires --profile; add that, or omit the option",
        )
    return None, load_cluster(known_cluster(options.cluster)) if options.cluster else None


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
    """Return the summary in the record of a run; empty before its end."""
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
    "runs list": runs_list,
    "runs show": runs_show,
    "runs compare": runs_compare,
    "runs logs": runs_logs,
    "runs attach": runs_attach,
    "runs stop": runs_stop,
    "runs replan": runs_replan,
    "runs cancel": runs_cancel,
    "runs rm": runs_rm,
    "runs export": runs_export,
    "runs drift": runs_drift,
}
