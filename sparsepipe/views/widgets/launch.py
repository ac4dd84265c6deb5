"""The launch board: a card for each plan, its job's progress, and at its end the prediction and the measurement."""

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets

from ...errors import DamagedRecord, InputError
from ...launching import Job, attach, launch
from ...launching.base import MetricsRow
from ...launching.lock import is_held
from ...launching.replan import Requested, replanned, request_replan
from ...launching.run_folders import folders, new_folder
from ...planning import partition
from ...records import RunRecord
from ...runtime.config import RunConfig
from ...util.host.background_load import num_processors
from ...util.io.fields import shown
from ...util.io.files import expanded
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from ..glossary import definitions
from . import looks
from .controls import Shown, with_tips
from .html_view import HtmlView, Messages, Question, explained
from .job_details import JobDetails, JobsCompared, JobWatch, TrainingCurves
from .job_line import Board, JobLine
from .promised import MadeFor, measured_here, promised, same_data, unit_of
from .run_settings import LaunchDrawer, PlanChange, RunSettings


class LaunchBoard(Shown):
    """Launch plans under one configuration, and watch their jobs; the last line of a notebook's cell shows it.

    `jobs` contains the jobs by name, and `add` adds a plan. The card of a plan shows its newest run in `runs`, also
    after a restart of the kernel, if plan, data, batch size, voxel size and arguments are the same. A job of an earlier
    plan of the same name is followed while it runs. While another job of `runs` is running, a click asks for
    confirmation. A plan for devices that this machine does not have is emulated, unless its card says otherwise.

    Args:
        plans: Plans by name, a card each.
        config: Settings of the runs; controls change epochs, learning rate, batch size and schedule.
        runs: Folder of the run directories.
        profile: Costs with which a finished run is simulated.
        cluster: Devices of the simulation.
        campaign: Name of the experiment that the runs belong to.

    Raises:
        InputError: The settings or a plan cannot be read.

    Example:
        >>> board = sp.widgets.LaunchBoard({}, sp.RunConfig("minkvgg11bn-narrow", "digits"), runs="runs")
        >>> len(board.jobs)
        0

    See also:
        guides/explorer_and_board, `widgets.PartitionExplorer`, `launch`
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        config: RunConfig,
        *,
        runs: Path | str,
        profile: Profile | None = None,
        cluster: Cluster | None = None,
        campaign: str | None = None,
    ) -> None:
        self.runs, self.campaign = expanded(runs), campaign
        self.jobs: dict[str, Job] = {}
        self.messages = Messages()
        self.watch = JobWatch(self.messages, self.update, lambda: any(job.running for job in self.jobs.values()))
        self.drawer = LaunchDrawer(self, RunSettings(config, self.messages.shown(self.changed)), self.messages)
        self.offered = OfferedPlans(self, config, profile, cluster)
        for name, plan in plans.items():
            self.offered.add(name, plan)
        self.details = JobDetails(self.messages, self.jobs, self.offered.made_for)
        self.change = PlanChange(self.messages, lambda name: self.prepared(name)[0], self._change)
        self.compared = JobsCompared(self.messages)
        self._one_by_one = threading.Lock()  # who launches several has it
        all_of_them = looks.Button(
            description="launch all", icon="forward", tooltip="train the plans, one after another"
        )
        all_of_them.on_click(self.messages.shown(lambda _: self._launch_all()))
        parts = [self.settings.widget, all_of_them, self.question.widget, self.offered.widget, self.change.widget]
        words = HtmlView(explained(definitions("Runs", "averaging")))
        views = [self.messages, *parts, self.compared.widget, self.curves.widget, self.details.widget, words]
        self.widget = looks.VBox(views, layout=ipywidgets.Layout())
        with_tips(self.widget)
        self.messages.shown(self._begun)()

    @property
    def settings(self) -> RunSettings:
        """Controls of the next run."""
        return self.drawer.settings

    @property
    def detach(self) -> ipywidgets.Checkbox:
        """Control that keeps jobs running after the kernel stops."""
        return self.settings.detach

    @property
    def question(self) -> Question:
        """Question before a launch in parallel."""
        return self.drawer.question

    @property
    def curves(self) -> TrainingCurves:
        """Loss of each job."""
        return self.details.curves

    @property
    def plans(self) -> dict[str, Plan]:
        """Plans by name."""
        return self.offered.plans

    @property
    def config(self) -> RunConfig:
        """Settings of the next launch. Raises InputError for an invalid choice."""
        return self.settings.config

    @config.setter
    def config(self, config: RunConfig) -> None:
        self.offered.config = self.settings.config = config
        self.changed()

    def add(self, plan: Plan, name: str, *, made_for: MadeFor | None = None) -> JobLine:
        """Add a plan. A plan of the same name is replaced.

        `made_for` names the devices that its estimate holds for. Without it, the board's profile predicts the
        throughput, if it has these devices. The newest run of this plan in `runs` is shown. Raises InputError while a
        job of this name is running.
        """
        with self.watch.lock:
            self._check_idle(name)
            self.jobs.pop(name, None)  # of the plan that was called so before; found again where it is this one
            line = self.offered.add(name, plan, made_for or self.offered.of_unknown_batches)
            self._place(line)
            self.reattach()
            self.changed()
            return line

    def line(self, name: str) -> JobLine:
        """Return the card of a plan. Raises InputError for an unknown plan."""
        self.planned(name)
        return self.offered.lines[name]

    def planned(self, name: str) -> Plan:
        """Plan of this name under the chosen schedule. Raises InputError for an unknown plan."""
        if name not in self.plans:
            raise InputError(
                "board.plan_unknown",
                f"the board has no plan {shown(name)}; choose one of its plans: {', '.join(self.plans) or 'none'}",
            )
        return self.settings.scheduled(self.plans[name])

    def settings_of(self, name: str) -> RunConfig:
        """Return the settings of the next launch of this name.

        If the plan is emulated, they are those of the emulation.
        """
        config = self.settings.config
        if not self.line(name).others.emulated:
            return config
        return self.offered.basis(name).emulation(config, self.settings.minibatches.value)

    def prepared(self, name: str) -> tuple[Plan, RunConfig]:
        """Return the plan and the settings of the next launch of this name."""
        config = self.settings_of(name)
        return promised(self.planned(name), config, self.offered.promise_basis(name)), config

    def launch(self, name: str) -> Job:
        """Launch one plan in a new run folder. Raises InputError if it is already running or cannot be launched."""
        with self.watch.lock:
            self._check_idle(name)
            plan, config = self.prepared(name)
            run_dir = new_folder(self.runs, self._called(name))
            options = self.offered.made_for(name).held_against(plan)
            options |= {"campaign": self.campaign, "detach": self.detach.value}
            self.jobs[name] = launch(plan, config, run_dir=run_dir, **options)
            self._begin(name)
            return self.jobs[name]

    def start(self, name: str) -> None:
        """Launch one plan as a click on its card does: asks first if another job is running."""
        self.line(name).start.click()

    def run(self, names: Sequence[str], *, on_row: Callable[[MetricsRow], None] | None = None) -> dict[str, RunRecord]:
        """Launch plans one after another and return their records when all have ended.

        A running or finished job of the board's experiment is not launched again. `on_row` is called with each new row
        of metrics. Raises InputError or RunFailed for a run that cannot start or fails.
        """
        records = {}
        with self._one_by_one:
            for name in names:
                job = self.jobs.get(name)
                if job is None or not self._counts(name, job):
                    job = self.launch(name)
                job.wait(on_row=on_row)
                records[name] = job.record
        return records

    def _counts(self, name: str, job: Job) -> bool:
        """Return whether a job is a run of the board's experiment that need not be repeated."""
        if self.campaign is not None and job.record.campaign != self.campaign:
            return False
        return job.running or (job.state == "finished" and not self.line(name).differences(job.record))

    def _launch_all(self) -> None:
        threading.Thread(
            target=self.messages.shown(lambda: self.run(list(self.plans))), name="launch all", daemon=True
        ).start()

    def resume(self, name: str) -> Job | None:
        """Continue an unfinished job from its newest checkpoint.

        With more epochs in the controls, a finished job continues, too.

        Returns None without a checkpoint. Raises InputError if the job cannot continue.
        """
        with self.watch.lock, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._check_idle(name)
            if name not in self.jobs:
                return None
            record = self.jobs[name].record
            config = RunConfig.from_json(record.config)
            if self.settings.config.epochs > config.epochs:
                config = config.replace(epochs=self.settings.config.epochs)
            detach = bool(self.detach.value)
            self.jobs[name] = launch(record.plan, config, run_dir=record.folder, resume=True, detach=detach)
            self.line(name).launched(record.plan)
            self.line(name).other = "; ".join(dict.fromkeys(str(each.message) for each in caught))
            self._begin(name)
            return self.jobs[name]

    def compare(self, name: str) -> None:
        """Draw a job next to those of the board with the same data and minibatches."""
        job = self.jobs[name]
        others = [other.record for other in self.jobs.values() if other is not job and not other.running]
        same = [record for record in others if same_data(job.record, record) and len(record.metrics("step")) > 1]
        self.compared.show([job.record, *same])

    def open_trace(self, name: str) -> None:
        """Write the trace of a job as a page and for Perfetto, and link to it."""
        self.compared.trace.show(self.jobs[name].record)

    def plan_here(self, name: str) -> threading.Thread:
        """Plan the network of a plan for this machine, in a thread, and add the result to the board as NAME-here.

        The board's profile is used if it was measured on this machine. Otherwise the network is profiled now.
        """
        self.messages.say("profiling the network on this machine: this takes a minute or more")
        thread = threading.Thread(
            target=self.messages.shown(lambda: self._plan_here(name)), name=f"plan {name} here", daemon=True
        )
        thread.start()
        return thread

    def _plan_here(self, name: str) -> None:
        plan, config = self.planned(name), self.settings.config
        made_for = self.offered.of_this_machine(plan, config)
        if made_for is None:
            made_for = measured_here(config, len(plan.ranks), say=self.messages.say)
        assert made_for.profile is not None and made_for.cluster is not None
        planned = partition(made_for.profile, made_for.cluster, schedule=plan.pipelines[0].schedule)
        self.add(planned, f"{name}-here", made_for=made_for)

    def _check_idle(self, name: str) -> None:
        if name in self.jobs and self.jobs[name].running:
            raise InputError("board.job_running", f"job {name} is already running; cancel it, or wait until it ends")

    def at_work(self) -> list[str]:
        """Running jobs of this board's folder on the cores of this machine."""
        return sorted(path.parent.name for path in self.runs.glob("*/plan.json") if is_held(path.parent))

    def asks_first(self, name: str) -> bool:
        """Ask whether to launch in parallel with the running jobs. False: no job is running."""
        others = self.at_work()
        if not others:
            return False
        verb = "is" if len(others) == 1 else "are"
        self.question.ask(
            f"{', '.join(others)} {verb} running on the same {number_of(num_processors(), 'core')}: both would be "
            f"slower, and the throughput of {name} would not be comparable with other runs.",
            self.offered.lines[name].go,
        )
        return True

    def reattach(self) -> list[str]:
        """Follow the running jobs of these names, and show the newest ended run of each plan.

        Returns the names of the running jobs.
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

    def stop(self, name: str) -> None:
        """Stop a job with a checkpoint; a second call ends it at once. Its record stays."""
        if name not in self.jobs:
            return
        if self.line(name).buttons.stopping:
            self.cancel(name)
            return
        self.line(name).buttons.offer("stopping")
        self.jobs[name].stop()

    def cancel(self, name: str) -> None:
        """End a job at once. Its record stays."""
        if name in self.jobs:
            self.jobs[name].cancel()

    def replan(self, name: str | None, plan: Plan, *, called: str = "another plan") -> threading.Thread:
        """Switch a running job to another plan. Returns the thread that waits for the switch.

        Without a name, the only running job is switched. Its card shows the minibatch of the switch. If a rank cannot
        switch, the board's messages name it, and the job continues unchanged. Raises InputError, which is also shown,
        for a job that is not running, or a plan that does not fit it (`launching.replan`).
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
        for line in self.offered.lines.values():
            self._place(line)
        self.reattach()
        self.changed()

    def _place(self, line: JobLine) -> None:
        """Let a card say for which other devices its plan was made."""
        line.others.offer(self.offered.basis(line.name).other_devices(self.plans[line.name], self.settings.config))

    def changed(self) -> None:
        """Show on each card the settings of its next launch."""
        for name, line in self.offered.lines.items():
            plan, config = self.prepared(name)
            line.tell(plan, config.batch_size, unit_of(config, self.offered.basis(name)))
        self.settings.offer_emulation(on=any(line.others.emulated for line in self.offered.lines.values()))
        self.update()

    def _begin(self, name: str, *, select: bool = True) -> None:
        self.details.add(name, select=select)
        self.watch.begin()

    def _called(self, name: str) -> str:
        return f"{self.settings_of(name).model}-{name}"


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

    @property
    def _given(self) -> MadeFor:
        """The board's own profile and devices, at its settings."""
        return MadeFor(self.config.batch_size, self.config.voxel_size, self.profile, self.cluster)

    def add(self, name: str, plan: Plan, made_for: MadeFor | None = None) -> JobLine:
        """Offer a plan, instead of one of the same name."""
        self.plans[name] = plan
        if made_for is not None:
            self._made_for[name] = made_for
        self.lines[name] = JobLine(self.board, name, plan, self.basis(name).cluster)
        self.widget.children = tuple(line.widget for line in self.lines.values())
        return self.lines[name]

    def basis(self, name: str) -> MadeFor:
        """Return the profile and devices that a plan was made for, whatever it runs on."""
        return self._made_for.get(name, self._given)

    def promise_basis(self, name: str) -> MadeFor:
        """Return the basis of the next run's prediction: none, if it trains on other devices than planned."""
        others = self.lines[name].others
        return self.basis(name) if others.emulated or not others.devices else MadeFor(0, None)

    def made_for(self, name: str) -> MadeFor:
        """Return the basis that the next run is compared with; of an emulation the times that it sleeps for."""
        basis = self.promise_basis(name)
        return basis.emulated(self.board.config) if self.lines[name].others.emulated else basis

    def of_this_machine(self, plan: Plan, config: RunConfig) -> MadeFor | None:
        """Return the board's profile and devices if they are this machine's and of the plan's network."""
        known = self._given
        if known.profile is None or known.cluster is None or known.other_devices(plan, config):
            return None
        layers = {layer.id for layer in known.profile.graph.layers}
        return known if all(set(pipeline.layers) <= layers for pipeline in plan.pipelines) else None


def _rated(job: Job) -> Sequence[Mapping[str, Any]]:
    """A job's rows, their throughput in minibatches if no one knows how many samples one has."""
    return job.rows if job.record.knows_samples else [job.record.rated(dict(row)) for row in job.rows]


def _readable(folder: Path) -> bool:
    """Return whether a run's record says how it stands; a damaged one says nothing."""
    try:
        return bool(RunRecord(folder).status["state"] and RunRecord(folder).plan)
    except DamagedRecord:
        return False
