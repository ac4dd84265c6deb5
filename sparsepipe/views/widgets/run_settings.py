"""The settings of a launch board's next run: epochs, learning rate, batch size, and another schedule than planned."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ipywidgets

from ...errors import InputError
from ...planning import PlanSettings
from ...runtime.config import RunConfig
from ...util.io.settings import rows
from ...util.text.counting import number_of
from ...values.plan import Plan
from ...values.schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES
from . import looks

_MOST = 10**6
_OF_RUNS, _SCHEDULE = rows(RunConfig), rows(PlanSettings)["schedule"]
_AS_PLANNED = ("as planned", "")  # not None, which a page shows as an empty box


class RunSettings:
    """Four controls over a configuration. `changed` is called when one of them was moved; `widget` shows them."""

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
        self.config = config
        for control in self._controls:
            control.observe(lambda _: changed(), names="value")
        self.widget = looks.HBox(self._controls, layout={"flex_flow": "row wrap"})

    @property
    def _controls(self) -> tuple[ipywidgets.Widget, ...]:
        return self.epochs, self.learning_rate, self.batch_size, self.schedule

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


def _as_called(name: str, _: Any) -> str:
    """A setting by the name that its control has on screen."""
    return _OF_RUNS[name].label


def _told(name: str) -> str:
    return f"{name}: {SCHEDULE_RULES[name].summary}"


def _number(kind: Any, name: str, **limits: Any) -> Any:
    row = _OF_RUNS[name]
    look: Any = {"layout": {"width": "170px"}, "style": looks.OWN_WIDTH}
    return kind(description=row.label, tooltip=row.help, **look, **limits)
