"""The launch board: a button for each plan, its job's progress, and at its end the plan beside what was measured."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets

from .. import plots
from ..cluster import Cluster
from ..display.markup import Html
from ..errors import DamagedRecord, InputError, RunFailed
from ..launchers import Job, attach, launch
from ..launchers.run_folders import folders, new_folder
from ..plan import Plan
from ..plots.epochs import working_epoch
from ..plots.theme import doubted
from ..profile import Profile
from ..provenance import Provenance
from ..record import RunRecord
from ..replaying import what_if
from ..runtime.config import RunConfig
from ..simulator import simulate
from ..trace import Trace
from .html_view import HtmlView
from .live import doings, doings_table, learned, log_of, phase
from .messages import Messages
from .plot_view import PlotView
from .responsive import responsive

_SECONDS = 0.5  # between two looks at the jobs
_WORK = ("stages", "schedule", "weights", "num_microbatches")  # of a plan: what a run does
_EXPLAINED = 500  # minibatches, the newest, of which the culprit is told: within a second
_CURVES = 2.0  # seconds between two drawings of the curves: they cost the cores that train


class LaunchBoard:
    """Launches plans under one configuration. `jobs` holds them by name; `widget` is what to display.

    A job that runs already, because the page was closed or, for a detached one, the kernel was restarted, is found in
    `runs` and followed again. With `profile` and `cluster` a finished run is held against its simulation.
    One thread follows all jobs, and changes of widgets pass one lock.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        config: RunConfig,
        *,
        runs: Path | str,
        profile: Profile | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.plans, self.config, self.runs = dict(plans), config, Path(runs)
        self.profile, self.cluster = profile, cluster
        self.jobs: dict[str, Job] = {}
        self.messages = Messages()
        self.curves = PlotView()
        self.detach = ipywidgets.Checkbox(
            description="jobs outlive the kernel",
            indent=False,
            tooltip="detach: found again by this board, or by attach()",
        )
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._drawn = (0.0, -1)
        self._lines = {name: _Line(self, name) for name in self.plans}
        self.details = _Details(self)
        lines = ipywidgets.VBox([line.widget for line in self._lines.values()])
        self.widget = responsive(ipywidgets.VBox([self.messages, self.detach, lines, self.curves, self.details.widget]))
        self.messages.shown(self.reattach)()

    def launch(self, name: str) -> Job:
        """Launch one plan in a new run folder. Raises InputError where it runs already or cannot."""
        with self._lock:
            if name in self.jobs and self.jobs[name].running:
                raise InputError(f"{name} is running already: cancel it first, or wait")
            run_dir = new_folder(self.runs, self._called(name))
            self.jobs[name] = launch(self.plans[name], self.config, run_dir=run_dir, detach=self.detach.value)
            self._begin(name)
            return self.jobs[name]

    def reattach(self) -> list[str]:
        """Follow the jobs of these plans that are running already; returns their names."""
        found = []
        with self._lock:
            for name in self.plans:
                for folder in folders(self.runs, self._called(name))[:1]:
                    if name in self.jobs or not _may_run(folder):
                        continue
                    job = attach(folder)
                    if job.running:
                        self.jobs[name] = job
                        self._lines[name].launched(job.record.plan)
                        self._begin(name)
                        found.append(name)
        return found

    def cancel(self, name: str) -> None:
        """End one job; its record stays."""
        if name in self.jobs:
            self.jobs[name].cancel()

    def update(self) -> None:
        """Refresh the state of all jobs on screen."""
        with self._lock:
            rows = {name: job.rows for name, job in self.jobs.items()}
            for name, job in self.jobs.items():
                self._lines[name].show(job, rows[name])
            self.details.show(rows)
            self._draw(rows)

    def _draw(self, rows: Mapping[str, Any]) -> None:
        count = sum(map(len, rows.values()))
        ended = not any(job.running for job in self.jobs.values())
        due = time.monotonic() - self._drawn[0] > _CURVES or ended
        if due and count != self._drawn[1] and any(row["event"] == "step" for own in rows.values() for row in own):
            self.curves.show(plots.progress(rows))
            self._drawn = (time.monotonic(), count)

    def _begin(self, name: str) -> None:
        self.details.add(name)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._follow, name="launch board", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        pause = threading.Event()
        look = self.messages.shown(self.update)
        while any(job.running for job in list(self.jobs.values())):
            look()
            pause.wait(_SECONDS)
        look()

    def _called(self, name: str) -> str:
        return f"{self.config.model}-{name}"


class _Line:
    """One plan's buttons, progress and state."""

    def __init__(self, board: LaunchBoard, name: str) -> None:
        self.board, self.name = board, name
        self.plan, self.other = board.plans[name], ""
        narrow = ipywidgets.Layout(width="90px")
        self.start = ipywidgets.Button(description="launch", button_style="primary", layout=narrow, icon="play")
        self.stop = ipywidgets.Button(description="cancel", layout=narrow, disabled=True, icon="stop")
        wide, names = ipywidgets.Layout(width="170px"), {"description_width": "44px"}
        self.progress = ipywidgets.IntProgress(max=1, layout=wide, style=names)
        self.state = HtmlView("not launched")
        label = HtmlView(Html("<b>{}</b>").format(name), layout=ipywidgets.Layout(min_width="110px"))
        self.start.on_click(board.messages.shown(self._start))
        self.stop.on_click(board.messages.shown(lambda _: board.cancel(name)))
        row = ipywidgets.Layout(flex_flow="row wrap", align_items="center")
        self.widget = ipywidgets.HBox([label, self.start, self.stop, self.progress, self.state], layout=row)

    def launched(self, plan: Plan) -> None:
        """Show that a job of `plan` runs, and where that is not the plan of this name any more."""
        self.plan, own = plan, self.board.plans[self.name]
        same = all(getattr(plan, name) == getattr(own, name) for name in _WORK)
        self.other = "" if same else f"a run of an earlier plan of this name ({plan.summary()})"
        self._offer(running=True)
        self.progress.value, self.progress.description, self.progress.bar_style = 0, "", ""

    def _start(self, _: Any) -> None:
        job = self.board.jobs.get(self.name)
        if job is None or not job.running:  # else its line stays, and the board says why not
            self.launched(self.board.plans[self.name])
            self.state.value = "starting worker processes…"
        try:
            self.board.launch(self.name)
        except BaseException:
            if job is None or not job.running:
                self._offer(running=False)
                self.state.value = "not launched"
            raise

    def _offer(self, *, running: bool) -> None:
        self.start.disabled, self.stop.disabled = running, not running

    def show(self, job: Job, rows: Any) -> None:
        told, done, total = phase(rows, self.plan, running=job.running)
        self.progress.max, self.progress.value = max(total, done, 1), done
        self.progress.description = f"{done / total:.0%}" if total else ""
        if job.running:
            self.state.value = "; ".join(filter(None, [self.other, told, learned(rows)]))
            return
        self._offer(running=False)
        self.progress.bar_style = {"finished": "success", "failed": "danger"}.get(job.state, "warning")
        self.state.value = _ended(job)


class _Details:
    """One job in detail: what its ranks do, who waits for whom, logs, and at its end planned beside measured."""

    def __init__(self, board: LaunchBoard) -> None:
        self.board = board
        self.job = ipywidgets.Dropdown(
            description="job", layout={"width": "260px"}, style={"description_width": "40px"}
        )
        self.rank = ipywidgets.Dropdown(description="log of rank", layout={"width": "180px"})
        self.ranks, self.log = HtmlView(), HtmlView()
        self.timeline, self.anatomy = PlotView(), PlotView()
        self.culprit = HtmlView()
        self.end = ipywidgets.VBox([self.timeline, self.anatomy, self.culprit], layout={"display": "none"})
        self._tried: Path | None = None  # the run that was compared last
        self._compared: Path | None = None  # the run of the figures
        for chooser in (self.job, self.rank):
            chooser.observe(board.messages.shown(lambda _: self.show()), names="value")
        heads = ipywidgets.HBox([self.job, self.rank], layout={"flex_flow": "row wrap"})
        self.widget = ipywidgets.VBox([heads, self.ranks, self.log, self.end], layout={"display": "none"})

    def add(self, name: str) -> None:
        self.widget.layout.display = ""
        if name not in self.job.options:
            self.job.options = (*self.job.options, name)
        self.job.value = name

    def show(self, _: Any = None) -> None:
        name = self.job.value
        job = self.board.jobs.get(name) if name else None
        if job is None:
            return
        ranks = tuple(range(len(job.record.plan.ranks)))
        if self.rank.options != ranks:
            self.rank.options = ranks
            self.rank.value = 0
        self.ranks.value = doings_table(doings(job.record.folder))
        self.log.value = log_of(job.record.folder, self.rank.value or 0)
        finished = job.state == "finished"
        try:
            if finished and job.record.folder not in (self._compared, self._tried):
                self._tried, self._compared = job.record.folder, None
                self._compare(job.record)
                self._compared = job.record.folder
        finally:  # figures of another run are not shown below this one
            self.end.layout.display = "" if finished and self._compared == job.record.folder else "none"

    def _compare(self, record: RunRecord) -> None:
        """The last epoch as planned, above it as measured, and where the time went."""
        last = max((row["epoch"] for row in record.metrics("step")), default=0)
        measured = working_epoch(record, last)
        traces = {"measured": measured}
        sizes = record.sizes_of_epoch(last)
        if self.board.profile is not None and self.board.cluster is not None:
            traces = {
                "simulated": simulate(record.plan_of_epoch(last), self.board.profile, self.board.cluster, sizes),
                **traces,
            }
        first = len(sizes) // 3
        note = f"{record.name}, last epoch"
        window = (first, min(first + 7, len(sizes)))
        rests_on = Provenance.of(self.board.profile if len(traces) > 1 else None, runs=[record])
        timeline = plots.timeline(*traces.values(), minibatches=window, note=note)
        self.timeline.show(doubted(timeline, rests_on.doubts))
        self.anatomy.show(doubted(plots.anatomy(traces, note=note), rests_on.doubts))
        newest = max(span.minibatch for span in measured.spans) - _EXPLAINED
        recent = Trace(tuple(span for span in measured.spans if span.minibatch > newest), measured.source)
        self.culprit.value = Html("Held up by: {}").format(what_if(recent).culprit)


def _may_run(folder: Path) -> bool:
    """Whether a run's record says that it goes on; a damaged one says nothing."""
    try:
        return RunRecord(folder).status["state"] in ("started", "running")
    except DamagedRecord:
        return False


def _ended(job: Job) -> str:
    try:
        summary = job.wait(timeout=1)
    except (InputError, RunFailed) as error:
        return Html("<span style='color:#D55E00'>{}</span>").format(error)
    accuracy = (summary.get("validation") or {}).get("accuracy")
    told = f", validation accuracy {accuracy:.1%}" if accuracy is not None else ""
    ended = "finished" if job.state == "finished" else f"{job.state} after {summary['minibatches']} minibatches"
    return f"{ended}: {summary['samples_per_second']:.0f} samples/s{told}"
