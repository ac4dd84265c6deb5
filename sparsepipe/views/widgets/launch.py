"""The launch board: a button for each plan, its job's progress, and at its end the prediction and the measurement."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets

from ...errors import DamagedRecord, InputError
from ...launching import Job, attach, launch
from ...launching.lock import is_held
from ...launching.replan import Requested, replanned, request_replan
from ...launching.run_folders import folders, new_folder
from ...records import RunRecord
from ...runtime.config import RunConfig
from ...util.io.fields import shown
from ...util.io.files import expanded
from ...util.text.counting import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from .. import plots
from ..glossary import definitions
from ..markup import Html
from . import looks
from .html_view import HtmlView, explained
from .job_details import JobDetails
from .job_line import Board, JobLine
from .messages import Messages, Question
from .plot_view import PlotView
from .promised import MadeFor, promised
from .run_settings import RunSettings
from .tips import Shown, with_tips

_ASKED = Html("{} prepares the switch to {} while it trains")

_SECONDS = 0.5  # between two looks at the jobs
_CURVES = 2.0  # seconds between two drawings of the curves: they cost the cores that train


class LaunchBoard(Shown):
    """Launches plans under one configuration. `jobs` holds them by name; `widget` is what to display.

    Epochs, learning rate, batch size and schedule can be changed before a launch; `add` brings in another plan. Of each
    plan the newest run in `runs` is shown, also after the kernel was restarted: of that very plan, whatever it is
    called, on the same data with the same batch size, voxel size and arguments, as another's speed says nothing of it.
    A job of an earlier plan of its name is followed while it runs. With
    `profile` and `cluster` a finished run is compared with its simulation. While another job of `runs` is at work, a
    click asks before it launches one in parallel. One thread follows all jobs, and changes of widgets pass one lock.
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
        self.runs = expanded(runs)
        self.jobs: dict[str, Job] = {}
        self.messages = Messages()
        self.watch = JobWatch(self.messages, self.update, lambda: any(job.running for job in self.jobs.values()))
        self.curves = TrainingCurves()
        self.settings = RunSettings(config, self.messages.shown(self._tell))
        self.detach = looks.Checkbox(
            description="keep jobs running after the kernel stops",
            indent=False,
            tooltip="detach: reattach from this board or with attach()",
        )
        self.question = Question(
            self.messages,
            looks.Button(description="launch in parallel", icon="play", tooltip="launch anyway"),
            looks.Button(description="wait", icon="times", tooltip="do not launch"),
        )
        self.offered = OfferedPlans(self, config, profile, cluster)
        for name, plan in plans.items():
            self.offered.add(name, plan)
        self.details = JobDetails(self.messages, self.jobs, self.offered.made_for)
        self.change = PlanChange(self.messages, lambda name: self.prepared(name)[0], self._change)
        parts = [self.settings.widget, self.detach, self.offered.widget, self.change.widget, self.question.widget]
        words = HtmlView(explained(definitions("Runs", "averaging")))
        views = [self.messages, *parts, self.curves.widget, self.details.widget, words]
        self.widget = looks.VBox(views, layout=ipywidgets.Layout())
        with_tips(self.widget)
        self.messages.shown(self._begun)()

    @property
    def plans(self) -> dict[str, Plan]:
        """The plans by name."""
        return self.offered.plans

    @property
    def config(self) -> RunConfig:
        """The settings of the next launch. Raises InputError for what the controls say and no run can have."""
        return self.settings.config

    @config.setter
    def config(self, config: RunConfig) -> None:
        self.offered.config = self.settings.config = config
        self._tell()

    def add(self, plan: Plan, name: str, *, made_for: MadeFor | None = None) -> JobLine:
        """Show another plan, to be launched like the others; one of the same name takes its place.

        `made_for`: what its estimate holds for; without it the board's profile predicts its speed, if that is of such
        devices. A run of it that is in `runs` is shown. Raises InputError while a job of that name runs.
        """
        with self.watch.lock:
            self._check_idle(name)
            self.jobs.pop(name, None)  # of the plan that was called so before; found again where it is this one
            line = self.offered.add(name, plan, made_for or self.offered.of_unknown_batches)
            self.reattach()
            self._tell()
            return line

    def planned(self, name: str) -> Plan:
        """The plan of this name under the schedule chosen, whatever is expected of it.

        Raises InputError if no plan of the board is called so.
        """
        if name not in self.plans:
            raise InputError(
                "board.plan_unknown",
                f"the board has no plan {shown(name)}; choose one of its plans: {', '.join(self.plans) or 'none'}",
            )
        return self.settings.scheduled(self.plans[name])

    def prepared(self, name: str) -> tuple[Plan, RunConfig]:
        """The plan and the settings that the next launch of this name would have."""
        config = self.settings.config
        return promised(self.planned(name), config, self.offered.made_for(name)), config

    def launch(self, name: str) -> Job:
        """Launch one plan in a new run folder. Raises InputError if it runs already or cannot."""
        with self.watch.lock:
            self._check_idle(name)
            plan, config = self.prepared(name)
            run_dir = new_folder(self.runs, self._called(name))
            held_against = self.offered.made_for(name).held_against(plan)
            self.jobs[name] = launch(plan, config, run_dir=run_dir, detach=self.detach.value, **held_against)
            self._begin(name)
            return self.jobs[name]

    def _check_idle(self, name: str) -> None:
        if name in self.jobs and self.jobs[name].running:
            raise InputError("board.job_running", f"job {name} is already running; cancel it, or wait until it ends")

    def at_work(self) -> list[str]:
        """The runs of this board's folder that are at work now, on the cores of this machine."""
        return sorted(path.parent.name for path in self.runs.glob("*/plan.json") if is_held(path.parent))

    def asks_first(self, name: str) -> bool:
        """Ask whether to launch alongside the jobs that are at work; False if there are none."""
        others = self.at_work()
        if not others:
            return False
        cores = len(os.sched_getaffinity(0))
        verb = "is" if len(others) == 1 else "are"
        self.question.ask(
            f"{', '.join(others)} {verb} running on the same {number_of(cores, 'core')}: both would be "
            f"slower, and the throughput of {name} would not be comparable with other runs.",
            self.offered.lines[name].go,
        )
        return True

    def reattach(self) -> list[str]:
        """Follow the jobs of these names that are running already, and show the newest that ended of each very plan.

        Returns the names of the former.
        """
        found = []
        with self.watch.lock:
            for name in [name for name in self.plans if name not in self.jobs]:
                runs = [folder for folder in folders(self.runs, self._called(name)) if _readable(folder)]
                line = self.offered.lines[name]
                ended = (one for one in runs if not line.differences(RunRecord(one)))
                folder = next((one for one in runs if is_held(one)), None) or next(ended, None)
                if folder is None:
                    line.never_ran(RunRecord(runs[0]) if runs else None)
                    continue
                job, running = attach(folder), is_held(folder)
                self.jobs[name] = job
                line.launched(job.record.plan, running=running, differs=line.differences(job.record))
                self._begin(name, select=running)
                found += [name] if running else []
        return found

    def cancel(self, name: str) -> None:
        """End one job; its record stays."""
        if name in self.jobs:
            self.jobs[name].cancel()

    def replan(self, name: str | None, plan: Plan, *, called: str = "another plan") -> threading.Thread:
        """Have a running job switch to another plan, and return at once the thread that waits until it does.

        No name stands for the one job that runs. Its line says from which minibatch on; a rank that cannot is named
        in the board's messages, and the old plan continues. So is, besides being raised, the InputError of a job that
        does not run, or of a plan that cannot be its (`launching.replan`).
        """
        try:
            with self.watch.lock:
                name = self._running(name)
                folder = self.jobs[name].record.folder
                asked = request_replan(folder, plan, reason=f"{called}, from the launch board")
                self.change.say(name, called, asked.doubt)
        except InputError as error:
            self.messages.fail(str(error))
            raise
        wait = self.messages.shown(self._await_plan)
        thread = threading.Thread(target=wait, args=(name, plan, called, asked), name=f"plan of {name}", daemon=True)
        thread.start()
        return thread

    def _change(self, name: str, plan: Plan, called: str) -> None:
        self.replan(name, plan, called=called)

    def _running(self, name: str | None) -> str:
        """The job of this name, or the only one, that runs."""
        running = [each for each, job in self.jobs.items() if job.running]
        if name in running or name is None and len(running) == 1:
            return name or running[0]
        if name is not None:
            raise InputError("board.job_not_running", f"job {name} is not running; launch it first")
        told = (
            f"jobs {', '.join(running)} are running: choose one" if running else "no job is running: launch one first"
        )
        raise InputError("board.job_undecided", told)

    def _await_plan(self, name: str, plan: Plan, called: str, asked: Requested) -> None:
        job = self.jobs[name]
        try:
            first = replanned(job.record.folder, asked.token, running=lambda: job.running)
        finally:
            self.change.done()
        with self.watch.lock:
            self.offered.lines[name].goes_on(plan, called=called, minibatch=first, doubt=asked.doubt)

    def update(self) -> None:
        """Refresh the state of all jobs on screen."""
        with self.watch.lock:
            self.change.offer([name for name, job in self.jobs.items() if job.running], list(self.plans))
            rows = {name: _rated(job) for name, job in self.jobs.items()}
            told = [name for name, job in self.jobs.items() if self.offered.lines[name].show(job, rows[name])]
            for name, job in self.jobs.items():
                self.details.drift.look(name, job)
            ended = not any(job.running for job in self.jobs.values())
            self.curves.draw({name: rows[name] for name in told}, ended=ended)
            self.details.show(rows)

    def _begun(self) -> None:
        self.reattach()
        self._tell()

    def _tell(self) -> None:
        """Let each line say what the next launch would be."""
        for name, line in self.offered.lines.items():
            plan, config = self.prepared(name)
            line.tell(plan, config.batch_size)
        self.update()

    def _begin(self, name: str, *, select: bool = True) -> None:
        self.details.add(name, select=select)
        self.watch.begin()

    def _called(self, name: str) -> str:
        return f"{self.config.model}-{name}"


class OfferedPlans:
    """The plans of a board by name: the line of each, and what it was made for. `config`: as the board was given it."""

    def __init__(self, board: Board, config: RunConfig, profile: Profile | None, cluster: Cluster | None) -> None:
        self.board, self.config, self.profile, self.cluster = board, config, profile, cluster
        self.plans: dict[str, Plan] = {}
        self.lines: dict[str, JobLine] = {}
        self.widget = looks.VBox([])
        self._made_for: dict[str, MadeFor] = {}  # of plans that were added with it

    @property
    def of_unknown_batches(self) -> MadeFor:
        """Return the settings of a plan of which only profile and devices are known."""
        return MadeFor(0, None, self.profile, self.cluster)

    def add(self, name: str, plan: Plan, made_for: MadeFor | None = None) -> JobLine:
        """Offer a plan, instead of one of the same name."""
        self.plans[name] = plan
        if made_for is not None:
            self._made_for[name] = made_for
        self.lines[name] = JobLine(self.board, name, plan)
        self.widget.children = tuple(line.widget for line in self.lines.values())
        return self.lines[name]

    def made_for(self, name: str) -> MadeFor:
        """The basis of the plan of this name."""
        own = MadeFor(self.config.batch_size, self.config.voxel_size, self.profile, self.cluster)
        return self._made_for.get(name, own)


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


class TrainingCurves:
    """The loss of each job over its minibatches; hidden until there is one."""

    def __init__(self) -> None:
        self.plot = PlotView()
        self.widget = looks.VBox([self.plot], layout={"display": "none"})
        self._drawn: tuple[float, tuple[tuple[str, int], ...]] = (0.0, ())

    def draw(self, rows: Mapping[str, Any], *, ended: bool) -> None:
        """Draw the rows of each job, if that is due: some seconds after the last time, or when all jobs ended."""
        looks.show(self.widget, on=any(map(_has_loss, rows.values())))
        count = tuple((name, len(own)) for name, own in rows.items())
        due = time.monotonic() - self._drawn[0] > _CURVES or ended
        if due and count != self._drawn[1] and any(map(_has_loss, rows.values())):
            self.plot.show(plots.progress(rows))
            self._drawn = (time.monotonic(), count)


def _has_loss(rows: Sequence[Mapping[str, object]]) -> bool:
    """Return True for a job that trains: an emulation has steps without a loss."""
    return any(row["event"] == "step" and row["loss"] is not None for row in rows)


def _rated(job: Job) -> Sequence[Mapping[str, Any]]:
    """A job's rows, their throughput in minibatches if no one knows how many samples one has."""
    return job.rows if job.record.knows_samples else [job.record.rated(dict(row)) for row in job.rows]


def _readable(folder: Path) -> bool:
    """Return whether a run's record says how it stands; a damaged one says nothing."""
    try:
        return bool(RunRecord(folder).status["state"] and RunRecord(folder).plan)
    except DamagedRecord:
        return False


class PlanChange:
    """A row below the plans, hidden while nothing runs. `change(job, plan, called)` is what a click asks of the board.

    `prepared` gives the board's plan of a name. A file comes first where one is named.
    """

    def __init__(
        self,
        messages: Messages,
        prepared: Callable[[str], Plan],
        change: Callable[[str, Plan, str], object],
    ) -> None:
        self._prepared, self._change = prepared, change
        self.job = looks.Dropdown(description="running job", style=looks.OWN_WIDTH, layout={"width": "auto"})
        self.job.tooltip = "running job that switches to another plan"
        self.plan = looks.Dropdown(description="switch to", style=looks.OWN_WIDTH, layout={"width": "auto"})
        self.plan.tooltip = "plan from this board"
        self.file = looks.Text(description="or a file", style=looks.OWN_WIDTH, layout={"width": "260px"})
        self.file.placeholder, self.file.tooltip = (
            "work/plans/….json",
            "path of a plan file, instead of a plan from this board",
        )
        self.button = looks.Button(description="switch plan", icon="random", layout={"width": "auto"})
        self.button.tooltip = "layers migrate with their weights and optimizer state; the processes keep running"
        self.told = HtmlView()
        self.button.on_click(messages.shown(lambda _: self._asked()))
        row = [self.job, self.plan, self.file, self.button, self.told]
        self.widget = looks.HBox(row, layout={"flex_flow": "row wrap", "display": "none"})

    def offer(self, jobs: Sequence[str], plans: Sequence[str]) -> None:
        """Offer those jobs, which run, and plans; what was chosen stays chosen."""
        looks.show(self.widget, on=bool(jobs))
        for chooser, names in ((self.job, jobs), (self.plan, plans)):
            if chooser.options != tuple(names):
                chosen = chooser.value
                chooser.options = tuple(names)
                chooser.value = chosen if chosen in names else next(iter(names), None)

    def say(self, job: str, called: str, doubt: str = "") -> None:
        """Show that a job was asked, and what could not be checked of the plan, until `done`."""
        self.told.value = Html("; ").join(filter(None, [_ASKED.format(job, called), doubt]))

    def done(self) -> None:
        self.told.value = ""

    def _asked(self) -> None:
        if not self.job.value:
            return  # it has ended as the button was clicked
        file = self.file.value.strip()
        plan = Plan.load(expanded(file)) if file else self._prepared(self.plan.value)
        self._change(self.job.value, plan, file or self.plan.value)
