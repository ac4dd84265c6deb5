"""One plan on the launch board: its stages and what it promises, its buttons, its job's progress and end."""

from collections.abc import Sequence
from typing import Any, Protocol

from ...errors import DamagedRecord, InputError, RunFailed
from ...launching import Job
from ...records import RunRecord
from ...runtime.config import RunConfig
from ...util.text.counting import counted, number_of
from ...util.text.numbers import as_measured, rate_text, validation_text
from ...values.plan import Plan
from ...values.replication import rule_text
from ..markup import Html
from . import looks
from .html_view import HtmlView
from .live import learned, phase
from .messages import Messages
from .promised import differences, samples_per_second
from .view_model import devices

_BAD = Html("<span style='border-left:4px solid #D55E00;padding-left:6px'>{}</span>")
_MOST_STAGES = 6  # that are named one by one


class Board(Protocol):
    """Interface of the board for its lines."""

    messages: Messages
    jobs: dict[str, Job]

    @property
    def config(self) -> RunConfig: ...

    def prepared(self, name: str) -> tuple[Plan, RunConfig]: ...

    def planned(self, name: str) -> Plan: ...

    def asks_first(self, name: str) -> bool: ...

    def launch(self, name: str) -> Job: ...

    def cancel(self, name: str) -> None: ...


class JobLine:
    """One plan's buttons, progress and state."""

    def __init__(self, board: Board, name: str, plan: Plan) -> None:
        self.board, self.name, self.plan = board, name, plan
        self.other = ""  # what its job is, where it is of another plan
        self._moved = False  # whether that is a plan that this board gave a job of this one
        free = {"width": "auto"}  # a button is called after its plan, for those who hear it alone
        self.start = looks.Button(description=f"launch {name}", button_style="primary", layout=free, icon="play")
        self.stop = looks.Button(description=f"cancel {name}", layout=free, disabled=True, icon="stop")
        self.start.tooltip, self.stop.tooltip = (
            "start the job's processes",
            "stop the job's processes; the run directory stays",
        )
        wide, names = {"width": "170px"}, {"description_width": "44px"}
        self.progress = looks.IntProgress(max=1, layout=wide, style=names, tooltip=f"minibatches of {name} done")
        self.state = HtmlView("not launched", layout={"flex": "1 1 300px", "min_width": "0"})
        self.promise = HtmlView(layout={"flex": "1 1 100%", "margin": "0 0 6px 12px"})  # a line of its own
        self.start.on_click(board.messages.shown(self._start))
        self.stop.on_click(board.messages.shown(lambda _: board.cancel(name)))
        row = {"flex_flow": "row wrap", "align_items": "center"}
        self.widget = looks.HBox([self.start, self.stop, self.progress, self.state, self.promise], layout=row)

    def tell(self, plan: Plan, batch_size: int) -> None:
        """Show the stages that the next launch would have, and the speed that is predicted for it."""
        self.promise.value = _promise(plan, batch_size)

    def launched(self, plan: Plan, *, running: bool = True, differs: Sequence[str] = ()) -> None:
        """Show that a job of `plan` runs or ended, and in what it differs from a run that would be launched now."""
        self.plan, self._moved = plan, False
        self.other = f"with another {', '.join(differs)}" if differs else ""
        if "plan" in differs:
            self.other = f"run of an earlier plan with this name ({plan.summary()})"
        self._offer(running=running)
        self.progress.value, self.progress.description, self.progress.bar_style = 0, "", ""

    def goes_on(self, plan: Plan, *, called: str, minibatch: int, doubt: str = "") -> None:
        """Show that its job is under another plan from a minibatch on, and what could not be checked of it
        beforehand.
        """
        self.plan, self._moved = plan, True
        self.other = f"under {called} from minibatch {minibatch} on{f' ({doubt})' if doubt else ''}"

    def never_ran(self, earlier: RunRecord | None) -> None:
        """Show that no run is of this plan and these settings, and the newest of its name, if there is one."""
        told = ""
        if earlier:
            other = ", ".join(self.differences(earlier))
            told = f": {earlier.name}, the newest run of this name, differs in its {other}; see the table of runs"
        self.state.value = f"not launched{told}"
        self.progress.max, self.progress.value, self.progress.description, self.progress.bar_style = 1, 0, "", ""
        self._offer(running=False)

    def is_of(self, job: Job) -> bool:
        """Return whether a job is of this line's plan, or runs: how fast another was says nothing of the plan."""
        return job.running or self._moved or not self.differences(job.record)

    def differences(self, record: RunRecord) -> list[str]:
        """Return in what a run differs from what the next launch would be; [] if in nothing."""
        return differences(record, self.board.planned(self.name), self.board.config)

    def _start(self, _: object) -> None:
        job = self.board.jobs.get(self.name)
        if (job is None or not job.running) and self.board.asks_first(self.name):
            return
        self.go()

    def go(self) -> None:
        """Launch, whatever else is at work."""
        job = self.board.jobs.get(self.name)
        if job is None or not job.running:  # else its line stays, and the board says why not
            self.launched(self.board.prepared(self.name)[0])
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

    def show(self, job: Job, rows: object) -> bool:
        """Show how a job stands, or what is damaged of its record; return whether that shows how fast the plan is."""
        try:
            if not self.is_of(job):
                self.never_ran(job.record)
                return False
            self._show(job, rows)
        except DamagedRecord as error:
            folder = str(job.record.folder)
            self._offer(running=job.running)
            self.state.value = _BAD.format(error if folder in str(error) else f"{folder}: {error}")
            return False
        return True

    def _show(self, job: Job, rows: Any) -> None:
        told, done, total = phase(rows, self.plan, running=job.running)
        self.progress.max, self.progress.value = max(total, done, 1), done
        self.progress.description = f"{done / total:.0%}" if total else ""
        if job.running:
            self.state.value = "; ".join(filter(None, [self.other, told, learned(rows)]))
            return
        self._offer(running=False)
        styles = {"finished": "success", "failed": "danger", "refused": "danger"}
        self.progress.bar_style = styles.get(job.state, "warning")
        self.state.value = Html("; ").join(filter(None, [self.other, _ended(job)]))


def _parts(plan: Plan) -> list[str]:
    """The stages, each with its layers and devices; of several pipelines how many stages on which devices, and the
    rule.
    """
    parts = []
    if plan.replication is not None:
        for k, own in enumerate(plan.members):
            kinds = [kind for stage in own.stages for kind in stage.device_types or ["device"] * len(stage.ranks)]
            parts.append(f"pipeline {k}: {number_of(len(own.stages), 'stage')} on {counted(kinds)}")
        return [*parts, f"synchronized by {rule_text(plan.replication)}"]
    for k, stage in enumerate(plan.stages[:_MOST_STAGES]):
        first, last, count = stage.layers[0], stage.layers[-1], len(stage.layers)
        layers = f"{first} … {last} ({count} layers)" if count > 1 else first
        parts.append(f"stage {k}: {layers} on {devices(plan, k)}")
    if len(plan.stages) > _MOST_STAGES:
        parts.append(f"and {number_of(len(plan.stages) - _MOST_STAGES, 'more stage')}")
    return parts


def _promise(plan: Plan, batch_size: int) -> Html:
    parts, speed = _parts(plan), samples_per_second(plan, batch_size)
    parts.append(f"{plan.schedule}, weights {plan.weights}")
    unknown = "no prediction: these settings have not been profiled"
    parts += [unknown] if speed is None else [*filter(None, [plan.extrapolation]), "predicted for these devices"]
    text = Html(" · ").join(parts)
    return Html("<div style='font-size:12px;line-height:1.4'>{}{}</div>").format(
        text, "" if speed is None else _speed(speed)
    )


def _speed(speed: float) -> Html:
    return Html(" <b>{}</b>").format(rate_text(speed))


def _ended(job: Job) -> Html | str:
    """The end of a job: predicted and measured throughput, and the accuracy reached."""
    try:
        summary = job.wait(timeout=1)
    except (InputError, RunFailed) as error:
        return _BAD.format(error)
    learned = validation_text(summary)
    told = f", {learned}" if learned else ""
    ended = (
        "finished" if job.state == "finished" else f"{job.state} after {number_of(summary['minibatches'], 'minibatch')}"
    )
    measured = summary["samples_per_second"]
    told_rate = rate_text(measured, job.record.counted)
    predicted = samples_per_second(job.record.plan, job.record.config["batch_size"])
    beside = f"predicted {as_measured(predicted)}, measured {told_rate}" if predicted else ""
    beside += f" ({measured / predicted:.0%})" if predicted else ""
    beside += f", {job.record.plan.extrapolation}" if predicted and job.record.plan.extrapolation else ""
    return f"{ended}: {beside or told_rate}{told}"
