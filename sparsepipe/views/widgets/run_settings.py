"""Controls of the launch board: settings and devices of the next run, and the plan of a running job."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import ipywidgets

from ...errors import InputError
from ...planning import PlanSettings
from ...runtime.config import RunConfig
from ...util.io.files import expanded
from ...util.io.settings import rows
from ...util.text.numbers import number_of
from ...values.plan import Plan
from ...values.schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES
from ..markup import Html
from . import looks
from .html_view import HtmlView, Messages, Question
from .job_line import JobLine

_ASKED = Html("{} prepares the switch to {} while it trains")
_EMULATED = 200  # minibatches of an emulation, unless a user says otherwise
_DRAWER = Html("<b>Launch {}</b><div style='font-size:12px;line-height:1.4'>{}</div>")
_MOST = 10**6
_OF_RUNS, _SCHEDULE = rows(RunConfig), rows(PlanSettings)["schedule"]
_AS_PLANNED = ("as planned", "")  # not None, which a page shows as an empty box


class RunSettings:
    """Controls over a configuration. `changed` is called when one of them was moved; `widget` shows them."""

    def __init__(self, config: RunConfig, changed: Callable[[], Any]) -> None:
        self.epochs = _number(looks.BoundedIntText, "epochs", min=1, max=_MOST)
        self.learning_rate = _number(looks.FloatText, "learning_rate")
        self.batch_size = _number(looks.BoundedIntText, "batch_size", min=1, max=_MOST)
        self.schedule = looks.Dropdown(
            options=[_AS_PLANNED, *((name, name) for name in WEIGHT_POLICIES)],
            description=_SCHEDULE.label,
            tooltip="; ".join([_SCHEDULE.help, *(_told(name) for name in WEIGHT_POLICIES)]),
            layout={"width": "210px"},
            style=looks.OWN_WIDTH,
        )
        self.minibatches = _number(looks.BoundedIntText, "minibatches", min=1, max=_MOST, value=_EMULATED)
        self.minibatches.description, self.minibatches.tooltip = "emulated minibatches", "length of an emulation"
        self.detach = looks.Checkbox(
            description="keep jobs running after the kernel stops",
            indent=False,
            tooltip="detach: reattach from this board or with attach()",
        )
        self.config = config
        for control in self._controls:
            control.observe(lambda _: changed(), names="value")
        for control in (*self._controls, self.detach):
            control.add_class("sp-of-launch")  # the explorer, whose drawer shows them too, has some of their names
        self.widget = looks.HBox([*self._controls, self.detach], layout={"flex_flow": "row wrap"})
        self.offer_emulation(on=False)

    @property
    def _controls(self) -> tuple[ipywidgets.Widget, ...]:
        return self.epochs, self.learning_rate, self.batch_size, self.schedule, self.minibatches

    def offer_emulation(self, *, on: bool) -> None:
        """Show the number of minibatches of emulations, or hide it if there are none."""
        looks.show(self.minibatches, on=on)

    @property
    def config(self) -> RunConfig:
        """The configuration with what the controls say. Raises InputError for what no run can have."""
        changes = {
            name: getattr(self, name).value
            for name in ("epochs", "learning_rate", "batch_size")
            if getattr(self, name).value != getattr(self._given, name)
        }
        try:
            return self._given.replace(**changes) if changes else self._given
        except InputError as error:
            raise InputError(error.code, error.written(_as_called), **error.fields) from None

    @config.setter
    def config(self, config: RunConfig) -> None:
        self._given = config
        self.epochs.value, self.batch_size.value = config.epochs, config.batch_size
        self.learning_rate.value = config.learning_rate
        self.epochs.disabled = config.minibatches is not None
        if config.minibatches is not None:
            self.epochs.tooltip = (
                f"the run ends after {number_of(config.minibatches, 'minibatch')}, regardless of epochs"
            )

    def scheduled(self, plan: Plan) -> Plan:
        """The plan under the schedule chosen, without the estimate of another one; steps of pipelines stay equal."""
        name = self.schedule.value
        if not name or name == plan.schedule:
            return plan
        steps = WEIGHT_RULES[WEIGHT_POLICIES[name][0]].updates_by_step
        count = max(max(one.num_microbatches, 2 * len(one.stages)) for one in plan.pipelines) if steps else 1
        changed = [replace(one.with_schedule(name, num_microbatches=count), estimate=None) for one in plan.pipelines]
        return plan.with_pipelines(changed)


class DrawerBoard(Protocol):
    """Interface of the board for its drawer."""

    def planned(self, name: str) -> Plan: ...

    def start(self, name: str) -> None: ...

    def line(self, name: str) -> JobLine: ...


class LaunchDrawer:
    """A plan with the settings of its next run and a button that launches it: hidden until `open`.

    It shows the board's own controls. `widget` is displayed by an explorer, whose picture stays in sight.
    """

    def __init__(self, board: DrawerBoard, settings: RunSettings, messages: Messages) -> None:
        self.name, self._board = "", board
        self.settings = settings
        self.question = Question(
            messages,
            looks.Button(description="launch in parallel", icon="play", tooltip="launch anyway"),
            looks.Button(description="wait", icon="times", tooltip="do not launch"),
        )
        self.summary, self.widget = HtmlView(), looks.VBox([], layout={"display": "none"})
        self.start = looks.Button(description="launch now", icon="play", tooltip="start the plan's processes")
        self.start.button_style = "primary"
        self.close = looks.Button(description="close", icon="times", tooltip="keep the plan on the launch board")
        self.start.on_click(messages.shown(lambda _: self._start()))
        self.close.on_click(lambda _: looks.show(self.widget, on=False))
        self.widget.add_class("sp-drawer")

    def open(self, name: str) -> None:
        """Show the plan of this name on the board."""
        line = self._board.line(name)
        self.name = name
        self.summary.value = _DRAWER.format(name, self._board.planned(name).summary())
        buttons = looks.HBox([self.start, self.close])
        self.widget.children = (self.summary, line.others.widget, self.settings.widget, buttons, self.question.widget)
        looks.show(self.widget, on=True)

    def _start(self) -> None:
        self._board.start(self.name)
        looks.show(self.widget, on=self.question.asked)


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


def _as_called(name: str, _: Any) -> str:
    """A setting by the name that its control has on screen."""
    return _OF_RUNS[name].label


def _told(name: str) -> str:
    return f"{name}: {SCHEDULE_RULES[name].summary}"


def _number(kind: Any, name: str, **limits: Any) -> Any:
    row = _OF_RUNS[name]
    look: Any = {"layout": {"width": "250px" if name == "minibatches" else "170px"}, "style": looks.OWN_WIDTH}
    return kind(description=row.label, tooltip=row.help, **look, **limits)
