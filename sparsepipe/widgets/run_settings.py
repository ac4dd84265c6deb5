"""The settings of a launch board's next run: epochs, learning rate, batch size, and another schedule than planned."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ipywidgets

from ..display.counting import number_of
from ..errors import InputError
from ..pipelines import Pipelines
from ..plan import Plan
from ..runtime.config import RunConfig
from ..schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES
from . import looks

_MOST = 10**6
_AS_PLANNED = ("as planned", "")  # not None, which a page shows as an empty box


class RunSettings:
    """Four controls over a configuration. `changed` is called when one of them was moved; `widget` shows them."""

    def __init__(self, config: RunConfig, changed: Callable[[], Any]) -> None:
        self.epochs = _number(looks.BoundedIntText, "epochs", "how often the run reads all its data", min=1)
        self.learning_rate = _number(looks.FloatText, "learning rate", "at first, before its schedule lowers it")
        self.batch_size = _number(looks.BoundedIntText, "batch size", "samples of a minibatch", min=1)
        self.schedule = looks.Dropdown(
            options=[_AS_PLANNED, *((name, name) for name in WEIGHT_POLICIES)],
            description="schedule",
            tooltip="the order of forwards and backwards; " + "; ".join(_told(name) for name in WEIGHT_POLICIES),
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
            raise InputError(error.code, _as_called(str(error)), **error.fields) from None

    @config.setter
    def config(self, config: RunConfig) -> None:
        self._given = config
        self.epochs.value, self.batch_size.value = config.epochs, config.batch_size
        self.learning_rate.value = config.learning_rate
        self.epochs.disabled = config.minibatches is not None
        if self.epochs.disabled:
            self.epochs.tooltip = (
                f"the run ends after {number_of(config.minibatches, 'minibatch')}, whatever its epochs"
            )

    def scheduled(self, plan: Plan | Pipelines) -> Plan | Pipelines:
        """The plan under the schedule chosen, without the estimate of another one; steps of pipelines stay alike."""
        name = self.schedule.value
        if not name or name == plan.schedule:
            return plan
        plans = plan.pipelines if isinstance(plan, Pipelines) else (plan,)
        steps = WEIGHT_RULES[WEIGHT_POLICIES[name][0]].updates_by_step
        count = max(max(one.num_microbatches, 2 * len(one.stages)) for one in plans) if steps else 1
        changed = [replace(one.with_schedule(name, num_microbatches=count), estimate=None) for one in plans]
        if isinstance(plan, Plan):
            return changed[0]
        return replace(plan, pipelines=tuple(changed), lower_bound_seconds=None, data_parallel_seconds=None)


def _as_called(text: str) -> str:
    """A refusal with the names that the controls have on screen."""
    return text.replace("learning_rate", "learning rate").replace("batch_size", "batch size")


def _told(name: str) -> str:
    return f"{name}: {SCHEDULE_RULES[name].summary}"


def _number(kind: Any, name: str, tip: str, **limits: Any) -> Any:
    most = {"max": _MOST} if limits else {}
    return kind(description=name, tooltip=tip, layout={"width": "170px"}, style=looks.OWN_WIDTH, **limits, **most)
