"""A card of the launch board: a plan with its buttons, its job's progress, pace, devices, and why it is slow."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import ipywidgets

from ...errors import DamagedRecord, InputError, RunFailed
from ...launching import Job
from ...records import RunRecord
from ...runtime.config import RunConfig
from ...util.text.numbers import as_measured, counted, number_of, rate_text, validation_text
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.replication import rule_text
from ..markup import Html
from . import looks
from .html_view import HtmlView, Messages
from .live import JobView, MetricsRow, doings_of, learned, phase, recent_cause, recent_pace, recent_spans, recent_trace
from .looks import sentence
from .promised import differences, samples_per_second
from .view_model import devices

_BAD = Html("<span style='border-left:4px solid #D55E00;padding-left:6px'>{}</span>")
_MOST_STAGES = 6  # that are named one by one
_LOOKS_FOR_CAUSE = 5.0  # seconds between two looks for what delays a job: they cost the cores that train
_NEAR = 0.95  # of its prediction, from which on a job is as fast as predicted
EMULATE, TRAIN = "emulate these devices", "train on this machine"
_PACE = Html(
    "<span style='display:inline-block;vertical-align:middle;width:120px;height:8px;margin-right:8px;"
    "border:1px solid var(--jp-border-color1,#bbb)'>"
    "<span style='display:block;height:100%;width:{:.0f}%;background:#0072B2'></span></span><b>{}</b>{}"
)
_TITLE = Html("<b>{}</b>{}")
_STATES = {"finished": "✓ finished", "failed": "✕ failed", "refused": "✕ refused", "killed": "✕ killed"}
_RESUMABLE = ("stopped", "cancelled", "failed", "killed", "unknown")


class Board(Protocol):
    """Interface of the board for its lines."""

    messages: Messages
    jobs: dict[str, Job]

    @property
    def config(self) -> RunConfig: ...

    def prepared(self, name: str) -> tuple[Plan, RunConfig]: ...

    def planned(self, name: str) -> Plan: ...

    def settings_of(self, name: str) -> RunConfig: ...

    def asks_first(self, name: str) -> bool: ...

    def launch(self, name: str) -> Job: ...

    def resume(self, name: str) -> Job | None: ...

    def stop(self, name: str) -> None: ...

    def compare(self, name: str) -> None: ...

    def open_trace(self, name: str) -> None: ...

    def plan_here(self, name: str) -> object: ...

    def changed(self) -> None: ...


class JobButtons:
    """A card's heading: name and state, and what can be done with the job."""

    def __init__(self, board: Board, name: str) -> None:
        self.name, self.title = name, HtmlView()
        self.title.add_class("sp-job-title")
        self.start = card_button(name, "launch", "play", "start the job's processes")
        self.start.button_style = "primary"
        self.stop = card_button(
            name, "stop", "stop", "end after the next weight update, with a checkpoint; a second click ends it at once"
        )
        self.resume = card_button(name, "resume", "step-forward", "continue from the newest checkpoint of the run")
        self.compare = card_button(
            name, "compare", "bar-chart", "draw throughput, curves and timelines of this job and of others on the board"
        )
        self.trace = card_button(name, "open trace", "search-plus", "timeline page of the run, and its Perfetto file")
        self.stop.on_click(board.messages.shown(lambda _: board.stop(name)))
        for button, act in ((self.resume, board.resume), (self.compare, board.compare), (self.trace, board.open_trace)):
            button.on_click(board.messages.telling(partial(act, name)))
        acts = [self.start, self.stop, self.resume, self.compare, self.trace]
        self.widget = looks.HBox([self.title, *acts], layout={"flex_flow": "row wrap", "align_items": "center"})
        self.widget.add_class("sp-job-head")
        self.offer(None)

    def offer(self, state: str | None) -> None:
        """Show the state of a job, and enable what can be done with it; None: there is none."""
        running = state in ("running", "stopping")
        self.start.disabled, self.stop.disabled = running, not running
        self.resume.disabled = state not in _RESUMABLE
        self.compare.disabled = self.trace.disabled = state is None
        self.stop.description = "cancel" if state == "stopping" else "stop"
        self.title.value = _TITLE.format(self.name, "" if state is None else f" · {_STATES.get(state, state)}")

    @property
    def stopping(self) -> bool:
        """Return whether the job was asked to stop, so that a further click ends it at once."""
        return bool(self.stop.description == "cancel")


class OtherDevices:
    """Offers what can be done with a plan for devices that this machine does not have; hidden for other plans."""

    def __init__(self, board: Board, name: str) -> None:
        self.devices = ""  # that the plan was made for
        self.where = looks.Dropdown(
            options=[EMULATE, TRAIN],
            description=f"run {name}",
            tooltip="emulate: processes sleep for the profiled times; train: its predictions do not hold here",
            style=looks.OWN_WIDTH,
            layout={"width": "auto"},
        )
        self.anew = card_button(
            name, "plan for this machine", "cogs", "profile the network here and plan for its cores"
        )
        self.made_for = HtmlView(layout={"flex": "1 1 200px", "min_width": "0"})
        row = {"flex_flow": "row wrap", "align_items": "center", "display": "none"}
        self.widget = looks.HBox([self.made_for, self.where, self.anew], layout=row)
        self.anew.on_click(board.messages.telling(lambda: board.plan_here(name)))
        self.where.observe(board.messages.shown(lambda _: board.changed()), names="value")

    @property
    def emulated(self) -> bool:
        """Return whether the next launch emulates them."""
        return bool(self.devices) and self.where.value == EMULATE

    def offer(self, devices: str) -> None:
        """Show for which other devices the plan was made; empty: for this machine."""
        self.devices = devices
        self.made_for.value = f"Made for other devices: {devices}"
        looks.show(self.widget, on=bool(devices))


class JobLive:
    """Shows a job at work: throughput and prediction, devices, the last seconds, and what delays it."""

    def __init__(self, cluster: Cluster | None) -> None:
        self.pace, self.why, self.view = HtmlView(), HtmlView(), JobView()
        self.widget = looks.VBox([self.pace, self.view, self.why])
        self._cluster, self._looked, self._drawn = cluster, 0.0, False
        self.clear()

    def show_plan(self, plan: Plan) -> None:
        """Draw the devices with the stages of a plan."""
        self.view.show_devices(plan, self._cluster)

    def clear(self) -> None:
        """Show no job, until there is one."""
        self._looked, self._drawn = 0.0, False
        self.view.lanes = "{}"
        for text in (self.pace, self.why):
            looks.show(text, on=False)

    def draw(self, job: Job, rows: Sequence[MetricsRow]) -> None:
        """Show how a job stands; at its end once."""
        if self._drawn:
            return
        self._drawn = not job.running
        record = job.record
        measured = recent_pace(rows, samples=record.knows_samples)
        predicted = _predicted(record)
        looks.show(self.pace, on=measured is not None and job.running)  # at its end the state says it
        if measured is not None:
            self.pace.value = _paced(measured, predicted, record.counted)
        recent = recent_spans(record)
        trace = recent_trace(record, recent)
        self.view.show_lanes(trace, doings_of(record, recent))
        if time.monotonic() - self._looked > _LOOKS_FOR_CAUSE or not job.running:
            cause = recent_cause(trace)
            self._looked = time.monotonic()
            looks.show(self.why, on=cause is not None)
            if cause is not None:
                near = measured is not None and predicted is not None and measured >= _NEAR * predicted
                lead = "As fast as predicted: " if near else "Why it is slow: " if cause.cause else ""
                self.why.value = sentence(f"{lead}{cause.culprit}")


class JobLine:
    """One plan's card: buttons, progress and state, and what its job is at."""

    def __init__(self, board: Board, name: str, plan: Plan, cluster: Cluster | None = None) -> None:
        self.board, self.name, self.plan = board, name, plan
        self.other = ""  # what its job is, where it is of another plan
        self._moved = False  # whether that is a plan that this board gave a job of this one
        self.buttons, self.others, self.live = JobButtons(board, name), OtherDevices(board, name), JobLive(cluster)
        wide, names = {"width": "220px"}, {"description_width": "44px"}
        self.progress = looks.IntProgress(max=1, layout=wide, style=names, tooltip=f"minibatches of {name} done")
        self.state = HtmlView("not launched", layout={"flex": "1 1 300px", "min_width": "0"})
        self.promise = HtmlView()
        self.start.on_click(board.messages.shown(self._start))
        row = {"flex_flow": "row wrap", "align_items": "center"}
        progress = looks.HBox([self.progress, self.state], layout=row)
        parts = [self.buttons.widget, progress, self.live.widget, self.others.widget, self.promise]
        self.widget = looks.VBox(parts)
        self.widget.add_class("sp-job")

    @property
    def start(self) -> ipywidgets.Button:
        """The button that launches."""
        return self.buttons.start

    @property
    def stop(self) -> ipywidgets.Button:
        """The button that stops the job, or ends it at once if it was asked to stop."""
        return self.buttons.stop

    def tell(self, plan: Plan, batch_size: int, unit: str = "samples") -> None:
        """Show the stages that the next launch would have, and the speed that is predicted for it."""
        self.promise.value = _promise(plan, batch_size, unit)
        self.live.show_plan(plan)

    def launched(self, plan: Plan, *, running: bool = True, differs: Sequence[str] = ()) -> None:
        """Show that a job of `plan` runs or ended, and in what it differs from a run that would be launched now."""
        self.plan, self._moved = plan, False
        self.other = f"with another {', '.join(differs)}" if differs else ""
        if "plan" in differs:
            self.other = f"run of an earlier plan with this name ({plan.summary()})"
        self.live.clear()
        self.buttons.offer("running" if running else None)
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
        self.buttons.offer(None)
        self.live.clear()

    def is_of(self, job: Job) -> bool:
        """Return whether a job is of this line's plan, or runs: how fast another was says nothing of the plan."""
        return job.running or self._moved or not self.differences(job.record)

    def differences(self, record: RunRecord) -> list[str]:
        """Return in what a run differs from what the next launch would be; [] if in nothing."""
        return differences(record, self.board.planned(self.name), self.board.settings_of(self.name))

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
                self.buttons.offer(None)
                self.state.value = "not launched"
            raise

    def show(self, job: Job, rows: object) -> bool:
        """Show how a job stands, or what is damaged of its record; return whether that shows how fast the plan is."""
        try:
            if not self.is_of(job):
                self.never_ran(job.record)
                return False
            self._show(job, rows)
        except DamagedRecord as error:
            self.buttons.offer("running" if job.running else "unknown")
            folder = str(job.record.folder)
            text = str(error) if folder in str(error) else f"{folder}: {error}"
            self.state.value = _BAD.format(_by_name(text, job.record))
            return False
        return True

    def _show(self, job: Job, rows: Any) -> None:
        told, done, total = phase(rows, self.plan, running=job.running)
        self.progress.max, self.progress.value = max(total, done, 1), done
        self.progress.description = f"{done / total:.0%}" if total else ""
        self.live.draw(job, rows)
        if job.running:
            if not self.buttons.stopping:
                self.buttons.offer("running")
            self.state.value = "; ".join(filter(None, [self.other, told, learned(rows)]))
            return
        self.buttons.offer(job.state)
        styles = {"finished": "success", "failed": "danger", "refused": "danger"}
        self.progress.bar_style = styles.get(job.state, "warning")
        self.state.value = Html("; ").join(filter(None, [self.other, _ended(job)]))


def card_button(name: str, description: str, icon: str, tip: str) -> ipywidgets.Button:
    """A button of the plan `name`, after which tips.js calls it."""
    button = looks.Button(description=description, tooltip=tip, icon=icon, layout={"width": "auto"})
    button.add_class(f"sp-of-{'-'.join(name.split())}")
    return button


def _predicted(record: RunRecord) -> float | None:
    """The throughput that a run's plan promises, in the unit of the record."""
    return samples_per_second(record.plan, record.config["batch_size"] if record.knows_samples else 1)


def _paced(measured: float, predicted: float | None, unit: str) -> Html:
    if not predicted:
        return Html("<b>{}</b>, not predicted").format(rate_text(measured, unit))
    share = measured / predicted
    compared = f" now; {as_measured(predicted)} predicted ({share:.0%})"
    return _PACE.format(100 * min(share, 1.0), rate_text(measured, unit), compared)


def _by_name(text: str, record: RunRecord) -> str:
    """A message that calls a run by its name, not by the path of its folder."""
    return text.replace(str(record.folder), record.name)


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


def _promise(plan: Plan, batch_size: int, unit: str) -> Html:
    parts, speed = _parts(plan), samples_per_second(plan, batch_size if unit == "samples" else 1)
    parts.append(f"{plan.schedule}, weights {plan.weights}")
    unknown = "no prediction: these settings have not been profiled"
    parts += [unknown] if speed is None else [*filter(None, [plan.extrapolation]), "predicted for these devices"]
    text = Html(" · ").join(parts)
    return Html("<div style='font-size:12px;line-height:1.4'>{}{}</div>").format(
        text, "" if speed is None else Html(" <b>{}</b>").format(rate_text(speed, unit))
    )


def _ended(job: Job) -> Html | str:
    """The end of a job: predicted and measured throughput, and the accuracy reached."""
    try:
        summary = job.wait(timeout=1)
    except (InputError, RunFailed) as error:
        return _BAD.format(_by_name(str(error), job.record))
    learned = validation_text(summary)
    told = f", {learned}" if learned else ""
    ended = (
        "finished" if job.state == "finished" else f"{job.state} after {number_of(summary['minibatches'], 'minibatch')}"
    )
    measured = summary["samples_per_second"]
    told_rate = rate_text(measured, job.record.counted)
    predicted = _predicted(job.record)
    beside = f"predicted {as_measured(predicted)}, measured {told_rate}" if predicted else ""
    beside += f" ({measured / predicted:.0%})" if predicted else ""
    beside += f", {job.record.plan.extrapolation}" if predicted and job.record.plan.extrapolation else ""
    return f"{ended}: {beside or told_rate}{told}"
