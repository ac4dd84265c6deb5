"""One job of the launch board in detail: rank activity, waiting, logs, predicted and measured times, drift.

Drift: how slow each rank and link is, compared with its profile, and what became lasting.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...launching import Job
from ...monitoring import Alarm, Follower, Standing
from ...planning.replaying import what_if
from ...planning.simulator import simulate
from ...records import RunRecord
from ...records.provenance import Provenance
from ...records.run_progress import num_processes
from ...runtime.config import RunConfig
from ...util.text.numbers import duration, number_of, pace_text, rate_text
from ...values.plan import Estimate, Plan
from ...values.trace import Trace
from .. import plots
from ..markup import Html, joined
from ..plots.theme import resting_on
from ..plots.timeline import working_epoch
from . import looks
from .controls import folded
from .html_view import HtmlView, Messages, scrolled
from .live import doings_of, doings_table, log_of, recent_spans
from .plot_view import PlotView
from .promised import MadeFor, samples_per_second
from .runs import RunsFigures, TraceLink
from .view_model import timelines

_SECONDS = 0.5  # between two looks at the jobs
_CURVES = 2.0  # seconds between two drawings of the curves: they cost the cores that train
_ALARMS = 5  # the newest that are shown
# No red is read on light pages and on dark ones alike: what became lasting has a bar beside it, and bold numbers.
_ALARM, _USUAL = "border-left:4px solid #D55E00;padding-left:6px;font-weight:600", ""
_SHOWN = Html("<div style='opacity:.75'>Slowdown vs profile, for minibatches of the same sizes</div>{}{}")
_TABLE = Html("<table style='font-size:13px;line-height:1.6'>{}</table>")
_DRIFT_ROW = Html(
    "<tr><td style='padding-right:10px'>{}</td><td style='padding-right:10px;{}'>{:.2f} ×</td><td>{}</td></tr>"
)
_LINE = Html("<div style='{}'>{}</div>")


def drift_table(standings: Sequence[Standing], alarms: Sequence[Alarm]) -> Html:
    """A row for each rank and link with its ratio, and a sentence for each of the newest lasting changes, as HTML."""
    if not standings:
        return Html("")
    rows = []
    for one in standings:
        told = [] if one.since is None else [f"since minibatch {one.since}"]
        told += [f"{number_of(one.spikes, 'spike')}"] if one.spikes else []
        rows.append(_DRIFT_ROW.format(one.name, _ALARM if one.changed else _USUAL, one.factor, ", ".join(told)))
    lines = [_LINE.format(_USUAL if alarm.recovered else _ALARM, str(alarm)) for alarm in alarms[-_ALARMS:]]
    return _SHOWN.format(scrolled(_TABLE.format(joined(rows)), "drift"), joined(lines))


class DriftOfJobs:
    """Follows each job of a board from when it is first seen running to its end, where a profile is known."""

    def __init__(self, made_for: Callable[[str], MadeFor]) -> None:
        """`made_for` says what the plan of a job's name was made for; a run's own profile comes first."""
        self._made_for = made_for
        self._followers: dict[Path, Follower] = {}
        self._ended: set[Path] = set()  # and those of which nothing can be told

    def look(self, name: str, job: Job) -> None:
        """Take what a job has written; once more when it has ended. Never raises: a job continues without."""
        folder, running = job.record.folder, job.running
        if folder in self._ended:
            return
        if not running:
            self._ended.add(folder)
        if folder not in self._followers and running:
            try:
                self._followers[folder] = self._follower(name, job)
            except InputError:  # no profile, or one of another network
                self._ended.add(folder)
        if folder in self._followers:
            self._followers[folder].look()

    def table(self, job: Job) -> Html:
        """Facts of a job; empty if unknown."""
        follower = self._followers.get(job.record.folder)
        return drift_table(follower.watch.standings, follower.watch.alarms) if follower else Html("")

    def _follower(self, name: str, job: Job) -> Follower:
        if (job.record.folder / "profile.json").exists():
            return Follower(job.record)
        made_for = self._made_for(name)
        return Follower(job.record, made_for.profile, made_for.cluster)


_EXPLAINED = 500  # minibatches, the newest, of which the culprit is told: within a second
_NONE = ("choose a job", "")  # not None, which a page shows as an empty box


class EndedJob:
    """Predicted and measured results of a finished run; `widget` is hidden until there is one."""

    def __init__(self, made_for: Callable[[str], MadeFor]) -> None:
        self.made_for = made_for
        self.speeds, self.culprit = HtmlView(), HtmlView()
        self.timeline, self.anatomy = PlotView(), PlotView()
        parts = [self.speeds, self.timeline, self.anatomy, self.culprit]
        self.widget = looks.VBox(parts, layout={"display": "none"})
        self._tried: Path | None = None  # the run that was compared last
        self._compared: Path | None = None  # the run of the figures

    def hide(self) -> None:
        looks.show(self.widget, on=False)

    def show(self, name: str, record: RunRecord) -> None:
        """Show the run of the job of that name, once: one that cannot be compared is not tried again."""
        try:
            if record.folder not in (self._compared, self._tried):
                self._tried, self._compared = record.folder, None
                self.compare(name, record)
                self._compared = record.folder
        finally:  # figures of another run are not shown below this one
            looks.show(self.widget, on=self._compared == record.folder)

    def compare(self, name: str, record: RunRecord) -> None:
        """Speeds, then the last epoch as predicted, above it as measured, and where the time went."""
        looks.show(self.anatomy, on=True)
        self.speeds.value = speeds_table(record)
        last = max((row["epoch"] for row in record.metrics("step")), default=0)
        if len(record.pipelines) > 1:
            self._compare_rules(record, last)
            return
        measured = working_epoch(record, last)
        sizes = record.sizes_of_epoch(last)
        simulated = self._simulated(name, record.plan_of_epoch(last), sizes)
        traces = {"measured": measured} if simulated is None else {"simulated": simulated, "measured": measured}
        first = len(sizes) // 3
        note = f"{record.name}, last epoch"
        window = (first, min(first + 7, len(sizes)))
        profile = None if simulated is None else self.made_for(name).profile
        rests_on = Provenance.of(profile, runs=[record])
        timeline = plots.timeline(*traces.values(), minibatches=window, note=note)
        self.timeline.show(resting_on(timeline, rests_on), timeline=timelines(traces.values(), window))
        self.anatomy.show(resting_on(plots.anatomy(traces, note=note), rests_on))
        self.culprit.value = _held_up_by(measured)

    def _compare_rules(self, record: RunRecord, last: int) -> None:
        """Of several pipelines: their paces compared with those that they would have alone, and who averaged with whom;
        what held the last epoch up, or why that is unknown.
        """
        outcome, rests_on = plots.Outcome.of_run(record), Provenance.of(runs=[record])
        self.timeline.show(resting_on(plots.waiting([outcome], note=record.name), rests_on))
        averaged = bool(outcome.group_sizes or outcome.staleness)
        looks.show(self.anatomy, on=averaged)
        if averaged:
            self.anatomy.show(resting_on(plots.groups([outcome], note=record.name), rests_on))
        try:
            self.culprit.value = _held_up_by(working_epoch(record, last))
        except InputError as error:  # of a long run that part of the trace may be left out
            self.culprit.value = Html("Cause of the delay unknown: {}").format(error)

    def _simulated(self, name: str, plan: Any, sizes: Any) -> Trace | None:
        """The last epoch as the simulator plays it; None if nothing was measured for such a plan's devices."""
        made_for = self.made_for(name)
        if made_for.profile is None or made_for.cluster is None:
            return None
        try:
            return simulate(plan, made_for.profile, made_for.cluster, sizes)
        except InputError:
            return None


class JobDetails:
    """One of `jobs` in detail; `made_for` says what the plan of a job's name was made for."""

    def __init__(self, messages: Messages, jobs: Mapping[str, Job], made_for: Callable[[str], MadeFor]) -> None:
        self.jobs = jobs
        self.drift, self.drifts = DriftOfJobs(made_for), HtmlView()
        self.job = looks.Dropdown(options=[_NONE], description="job", layout={"width": "260px"}, style=looks.OWN_WIDTH)
        self.job.tooltip = "job shown below"
        self.rank = looks.Dropdown(description="log of rank", style=looks.OWN_WIDTH, layout={"width": "180px"})
        self.rank.tooltip = "rank whose log is shown"
        self.ranks, self.log = HtmlView(), HtmlView()
        self.end, self.curves = EndedJob(made_for), TrainingCurves()
        self.settings = HtmlView()
        self._quiet = False
        for chooser in (self.job, self.rank):
            chooser.observe(messages.shown(self._chosen), names="value")
        ranks = looks.HBox([self.rank], layout={"flex_flow": "row wrap"})
        content = looks.VBox([self.ranks, self.drifts, ranks, self.log, self.settings])
        fold = folded(
            "logs, alarms, settings", "shows what each rank waits for, its slowdown, log and settings", content
        )
        heads = looks.HBox([self.job, fold], layout={"flex_flow": "row wrap"})
        self.widget = looks.VBox([heads, content, self.end.widget], layout={"display": "none"})

    def add(self, name: str, *, select: bool = True) -> None:
        """Offer a job, and show it where `select`."""
        looks.show(self.widget, on=True)
        chosen = name if select else self.job.value
        self._quiet = True
        try:  # new options choose the first of them
            if name not in [value for _, value in self.job.options]:
                self.job.options = (*self.job.options, (name, name))
            self.job.value = chosen
        finally:
            self._quiet = False
        self.show()

    def _chosen(self, _: object) -> None:
        if not self._quiet:
            self.show()

    def show(self, _: object = None) -> None:
        name = self.job.value
        job = self.jobs.get(name) if name else None
        looks.show(self.rank, on=job is not None)
        if job is None:
            self.ranks.value = self.drifts.value = self.log.value = self.settings.value = ""
            self.end.hide()
            return
        folder, plan = job.record.folder, job.record.plan
        ranks = tuple(sorted({*plan.ranks, *range(0 if plan.members else num_processes(folder, plan))}))
        if self.rank.options != ranks:
            self.rank.options = ranks
            self.rank.value = ranks[0]
        activities = doings_of(job.record, recent_spans(job.record))
        self.ranks.value = doings_table(activities, left_out=set(ranks) - set(plan.ranks))
        self.drifts.value = self.drift.table(job)
        self.log.value = log_of(folder, self.rank.value or 0, plan)
        self.settings.value = _settings_table(job.record)
        if job.state == "finished":
            self.end.show(name, job.record)
        else:
            self.end.hide()


def _settings_table(record: RunRecord) -> Html:
    """The settings that a run's user chose: all that differ from the defaults."""
    try:
        rows = RunConfig.from_json(record.config).chosen.items()
    except InputError:  # the card says what is damaged
        return Html("")
    lines = [_ROW.format(joined([_CELL.format(name.replace("_", " ")), _CELL.format(value)])) for name, value in rows]
    table = Html("<table style='font-size:13px;text-align:left'>{}</table>").format(joined(lines))
    return scrolled(table, "settings of the run")


def _held_up_by(measured: Trace) -> Html:
    newest = max(span.minibatch for span in measured.spans) - _EXPLAINED
    recent = tuple(span for span in measured.spans if span.minibatch > newest)
    result = what_if(Trace(recent, measured.source, measured.facts))
    return Html("{}: {}").format("Delayed by" if result.cause else "Delays", result.culprit)


class TrainingCurves:
    """The loss of each job over its minibatches; hidden until there is one."""

    def __init__(self) -> None:
        self.plot = PlotView()
        self.widget = looks.VBox([self.plot], layout={"display": "none"})
        self._drawn: tuple[float, tuple[tuple[str, int], ...]] = (0.0, ())

    def draw(self, rows: Mapping[str, Any], *, ended: bool) -> None:
        """Draw the rows of each job, if that is due: some seconds after the last time, or when all jobs ended."""
        training = {name: steps for name, steps in rows.items() if _has_loss(steps)}
        looks.show(self.widget, on=bool(training))
        count = tuple((name, len(steps)) for name, steps in training.items())
        due = time.monotonic() - self._drawn[0] > _CURVES or ended
        if due and count != self._drawn[1] and training:
            self.plot.show(plots.progress(training))
            self._drawn = (time.monotonic(), count)


def _has_loss(rows: Sequence[Mapping[str, object]]) -> bool:
    """Return True for a job that trains: an emulation has steps without a loss."""
    return any(row["event"] == "step" and row["loss"] is not None for row in rows)


class JobsCompared:
    """Figures of jobs that were compared last, and a link to a trace: hidden until there are any."""

    def __init__(self, messages: Messages) -> None:
        self.figures, self.trace = RunsFigures(messages), TraceLink(messages)
        self.widget = looks.VBox([self.trace.link, self.figures.widget])

    def show(self, records: list[RunRecord]) -> None:
        """Draw these runs. Raises InputError for one that has not done two minibatches."""
        self.figures.show(records)


class JobWatch:
    """Looks at all jobs again and again, in one thread that ends with the last job. Changes of widgets pass `lock`."""

    def __init__(self, messages: Messages, look: Callable[[], None], running: Callable[[], bool]) -> None:
        self.lock = threading.RLock()
        self.thread: threading.Thread | None = None
        self._look = messages.watched(look)  # a refusal stays to be read while jobs go on
        self._running = running
        self._following = False  # whether the thread looks at the jobs again

    def begin(self) -> None:
        """Look at the jobs from here on, until none runs."""
        if not self._following:
            self._following = True
            self.thread = threading.Thread(target=self._follow, name="launch board", daemon=True)
            self.thread.start()

    def _follow(self) -> None:
        pause = threading.Event()
        while True:
            with self.lock:  # a job that is begun from here on has a thread of its own
                self._following = self._running()
                last = not self._following
            self._look()
            if last:
                return
            pause.wait(_SECONDS)


_CELL, _HEAD = Html("<td style='padding-right:18px'>{}</td>"), Html("<th style='padding-right:18px'>{}</th>")
_ROW = Html("<tr>{}</tr>")


def speeds_table(record: RunRecord) -> Html:
    """The run's throughput and the busy time of each stage, predicted and measured; empty before there is a summary."""
    summaries, plan = record.metrics("summary"), record.plan
    if not summaries:
        return Html("")
    summary = summaries[-1]
    predicted = samples_per_second(plan, record.config["batch_size"] if record.knows_samples else 1)
    rows = [("", "predicted", "measured")]
    throughput = ", ".join(filter(None, [_speed(predicted, record.counted), plan.extrapolation]))
    rows.append(("throughput", throughput, pace_text(summary)))
    stages = _expected_stages(plan)
    for row in summary.get("stages", ()):
        name, expected, k = stages[row["stage"]]
        if expected is None or not expected.period_seconds:
            told = "not predicted"
        else:
            seconds = expected.stages[k].compute_seconds
            told = f"{seconds / expected.period_seconds:.0%} ({duration(seconds)} per minibatch)"
        rows.append((f"{name} computes", told, f"{row['busy_fraction']:.0%} of the time"))
    head, *body = rows
    lines = [_ROW.format(joined(map(_HEAD.format, head))), *(_ROW.format(joined(map(_CELL.format, r))) for r in body)]
    table = Html("<table style='font-size:13px;text-align:left'>{}</table>").format(joined(lines))
    return scrolled(table, "predicted and measured")


def _expected_stages(plan: Plan) -> list[tuple[str, Estimate | None, int]]:
    """Of each stage, by its number in the plan's file: its name, its pipeline's estimate, and its place in that."""
    return [
        (f"{f'pipeline {number}, ' if plan.members else ''}stage {plan.first_stage(number) + k}", own.estimate, k)
        for number, own in enumerate(plan.pipelines)
        for k in range(len(own.stages))
    ]


def _speed(value: float | None, counted: str) -> str:
    return "not predicted" if value is None else rate_text(value, counted)
