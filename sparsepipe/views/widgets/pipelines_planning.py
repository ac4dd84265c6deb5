"""Split the explorer's devices into several pipelines, and simulate them with the straggler and without."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ...errors import InputError
from ...planning import Problem, partition_pipelines, planners_with
from ...planning.estimate import data_parallel_period
from ...planning.run_estimate import judged
from ...planning.scale import Scaled
from ...planning.simulator import PipelinesForecast, simulate_pipelines
from ...util.derived import Kept, remembered
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.replication import parse_rule
from ...values.replication.base import Rule
from ...values.stragglers import Stragglers
from ...values.trace import Trace
from .as_code import pipelines_code
from .partition_view import NO_PLAN
from .planning import Answer, Planning
from .settings import MINIBATCHES, TYPED, HeldUp, Settings, SeveralPipelines

MOST_PLANS = 64  # parts of the devices that are planned: some seconds
_MOST_MINIBATCHES = 240  # of each pipeline that are simulated


@dataclass(frozen=True)
class AskedSettings:
    """Settings that can be read, with what they make of profile and devices. `scaled`: as an Answer's."""

    settings: Settings
    several: SeveralPipelines
    problem: Problem
    rule: Rule
    scaled: Scaled | None


@dataclass(frozen=True)
class PipelinesAnswer:
    """Several pipelines with the settings that they were planned for, simulated with the straggler and without."""

    settings: Settings
    problem: Problem
    plan: Plan
    planned_with: dict[str, Any]  # what `partition_pipelines` was given, besides profile, devices and rule
    stragglers: Stragglers
    sizes: tuple[float, ...]  # of the minibatches that were simulated
    forecast: PipelinesForecast
    undisturbed: PipelinesForecast  # while nobody is slow
    scaled: Scaled | None

    @property
    def cluster(self) -> Cluster:
        return self.problem.cluster

    @property
    def trace(self) -> Trace:
        return self.forecast.trace

    def told(self) -> str:
        """The settings in one line."""
        return f"{self.settings.told(self.cluster)} · {self.stragglers.note() or 'no straggler'}"

    def as_code(self) -> str:
        """The cell that plans and simulates these pipelines again, given `profile`."""
        return pipelines_code(
            self.plan,
            self.cluster,
            planned_with=self.planned_with,
            num_minibatches=len(self.sizes),
            stragglers=self.stragglers,
            scaled=self.scaled,
            compression=self.settings.compression,
        )


class PipelinesPlanning:
    """Answers settings with pipelines: `asked` says at once what cannot be read, `answer` takes its time.

    `answer` may be called in a thread of its own, one call at a time.
    """

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._kept: Kept = {}

    def asked(self, settings: Settings) -> AskedSettings:
        """Raises InputError for a rule, a straggler or devices that cannot be."""
        several = settings.several
        assert several is not None
        rule = parse_rule(several.rule)
        rule.groups(several.count)
        if several.held_up.kind == TYPED:
            Stragglers.parse(several.held_up.text)
        problem = self._planning.problem(settings)
        if several.count > len(problem.cluster.devices):
            raise InputError(
                "planner.too_few_devices",
                f"{number_of(several.count, 'pipeline')} on {number_of(len(problem.cluster.devices), 'device')}: "
                "expected at least one device each; lower pipelines, or add a device with +",
            )
        return AskedSettings(settings, several, problem, rule, self._planning.scaled(settings))

    def answer(self, asked: AskedSettings) -> PipelinesAnswer:
        """Plan and simulate. Raises InputError for settings that cannot be planned, or a straggler of no rank."""
        several, profile = asked.several, asked.problem.profile
        given = _given(asked)
        split = replace(
            asked.settings, several=SeveralPipelines(several.count, "", HeldUp())
        )  # rule and straggler change none
        planned = remembered(self._kept, "plans", split, lambda: _planned(asked, given))
        pipelines = replace(planned, replication=asked.rule)
        each = min(_MOST_MINIBATCHES, self._each(asked, pipelines.pipelines[0].num_microbatches))
        ranks = [pipelines.ranks_of(k) for k in range(several.count)]
        stragglers = several.held_up.stragglers(ranks, minibatches=each)
        counts = profile.typical_sizes
        sizes = tuple(counts[k % len(counts)] for k in range(each * several.count))

        def simulated(held: Stragglers) -> PipelinesForecast:
            key = (split, asked.rule, held, each)
            make = lambda: simulate_pipelines(pipelines, profile, asked.problem.cluster, sizes, stragglers=held)  # noqa: E731
            return remembered(self._kept, "simulated", key, make)

        held = simulated(stragglers)
        free = simulated(Stragglers()) if stragglers.parts else held
        return PipelinesAnswer(
            asked.settings, asked.problem, pipelines, given, stragglers, sizes, held, free, asked.scaled
        )

    def _each(self, asked: AskedSettings, num_microbatches: int) -> int:
        """Minibatches of each pipeline on average: enough for some averages."""
        return max(MINIBATCHES, self._planning.minibatches, num_microbatches * max(2, 3 * asked.rule.every))


def _given(asked: AskedSettings) -> dict[str, Any]:
    settings = asked.settings
    found: dict[str, Any] = {"planner": settings.planner, "schedule": settings.schedule}
    found["num_microbatches"] = settings.num_microbatches
    if settings.recompute:
        found["recompute"] = True
    if settings.stages_per_device > 1:
        found["stages_per_device"] = settings.stages_per_device
    if settings.planner in planners_with("quick"):
        found["quick"] = True
    return found | {"most_plans": MOST_PLANS}


def _planned(asked: AskedSettings, given: dict[str, Any]) -> Plan:
    problem, settings = asked.problem, asked.settings
    found = partition_pipelines(problem.profile, problem.cluster, asked.several.count, **given)
    plans = tuple(_as_asked(plan, problem, settings) for plan in found.pipelines)
    samples = found.samples if settings.batch_size is None else float(settings.batch_size)
    # The plans are judged by the default cost model, and so is what they are beside.
    assert found.estimate is not None
    beside = replace(found.estimate, data_parallel_seconds=data_parallel_period(problem))
    return replace(found, members=plans, samples=samples, estimate=beside)


def _as_asked(plan: Plan, problem: Problem, settings: Settings) -> Plan:
    """The plan with the weight policy chosen, as the default cost model sees it."""
    if settings.planner == "optimal" and plan.weights == settings.weights:
        return plan  # it is that model's already
    if plan.weights != settings.weights:
        plan = replace(plan, weights=settings.weights).check(problem.graph, problem.cluster)
    expected = judged(plan, problem)
    assert expected.estimate is not None
    bound = plan.estimate.lower_bound_seconds if plan.estimate else None
    return replace(expected, estimate=replace(expected.estimate, lower_bound_seconds=bound))


PLANNING = "planning the pipelines…"
_PATIENCE = 300.0  # seconds for which a click waits


class PlanOnScreen:
    """The requested settings, and the last answer: of that, or of settings before if it was refused or is `pending`.

    `planning` answers those of one pipeline, `together` of several.

    The page's clicks come in one thread, cells run in another: `lock` is held by whoever changes any of it.
    """

    def __init__(self, planning: Planning) -> None:
        self.planning, self.together = planning, PipelinesPlanning(planning)
        self.lock = threading.Condition()
        self.asked: Settings | None = None  # what was planned last, or refused, or is being planned
        self.shown: Answer | PipelinesAnswer | None = None
        self.refused = ""  # why what the controls say cannot be planned
        self.pending = False  # whether several pipelines are being planned
        self._changing = True  # whether a change is at work, or the controls are being made

    @property
    def plan(self) -> Plan | None:
        """The plan for what was asked; None while it cannot be planned, or is being planned."""
        return self.shown.plan if self.shown is not None and not (self.refused or self.pending) else None

    @property
    def of_one(self) -> Answer | None:
        """The answer for what was asked, if there is one, of one pipeline."""
        return self.shown if self.plan is not None and isinstance(self.shown, Answer) else None

    def last(self) -> Answer | PipelinesAnswer:
        """The answer in the picture. Raises InputError if there was none yet."""
        if self.shown is None:
            raise InputError("explorer.no_plan", f"no plan yet: {self.refused}")
        return self.shown

    def begin(self) -> None:
        """From here on changes count."""
        self._changing = False

    def change(self, act: Callable[[], None]) -> None:
        """Act on a change of a control, once: not on those that follow from it."""
        with self.lock:  # a change from another thread waits, and is not lost
            if self._changing:
                return
            self._changing = True
            try:
                act()
            finally:
                self._changing = False
                self.lock.notify_all()

    def ask(self, settings: Settings, *, pending: bool = False) -> None:
        """Note what is asked for from here on."""
        self.asked, self.pending = settings, pending

    def awaits(self, settings: Settings) -> bool:
        """Return whether pipelines are being planned for these settings, and not for later ones."""
        return self.pending and self.asked == settings

    def take(self, answer: Answer | PipelinesAnswer) -> None:
        """Note the answer to what was asked."""
        self.shown, self.asked, self.pending = answer, answer.settings, False

    def current(self) -> Answer | PipelinesAnswer:
        """Wait for pipelines that are being planned. Raises InputError if what was asked was refused."""
        if not self.lock.wait_for(lambda: not self.pending, timeout=_PATIENCE):
            raise InputError("explorer.planning", f"{PLANNING}, and try again")
        if self.shown is None or self.refused:
            raise InputError("explorer.no_plan", NO_PLAN)
        return self.shown


Work = TypeVar("Work")


class Later(Generic[Work]):
    """Calls `act` with what was asked last, `pause` seconds after it was, in one thread that ends when nothing is left.

    What is asked while `act` is at work comes after it; what was asked before that, and not begun, is dropped. `act`
    must raise nothing.
    """

    def __init__(self, act: Callable[[Work], None], *, pause: float, name: str) -> None:
        self._act, self._pause, self._name = act, pause, name
        self._turn = threading.Condition()
        self._asked: list[Work] = []  # one or none
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self.superseded = False  # whether something was asked, or dropped, since `act` began its work

    def ask(self, what: Work) -> None:
        with self._turn:
            self.superseded = True
            self._asked, self._due = [what], time.monotonic() + self._pause
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def is_superseded(self) -> bool:
        """Return whether something was asked, or dropped, since `act` began its work."""
        return self.superseded

    def drop(self) -> None:
        """Forget what was asked and is not begun."""
        with self._turn:
            self.superseded = True
            self._asked = []

    def _work(self) -> None:
        while True:
            with self._turn:
                while self._asked and (left := self._due - time.monotonic()) > 0:
                    self._turn.wait(left)
                if not self._asked:
                    self._thread = None
                    return
                (what,), self._asked = self._asked, []
                self.superseded = False
            self._act(what)
