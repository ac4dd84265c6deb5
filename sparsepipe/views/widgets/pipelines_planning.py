"""Split the explorer's devices into several pipelines, and simulate them with the straggler and without."""

from dataclasses import dataclass, replace
from typing import Any

from ...errors import InputError
from ...planning import Problem, partition_pipelines, planners_with
from ...planning.estimate import data_parallel_period
from ...planning.run_estimate import judged
from ...planning.scale import Scaled
from ...planning.simulator import PipelinesForecast, simulate_pipelines
from ...util.derived.remembered import Kept, remembered
from ...util.text.counting import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.replication import parse_rule
from ...values.replication.base import Rule
from ...values.stragglers import Stragglers
from ...values.trace import Trace
from .as_code import pipelines_code
from .planning import Planning
from .settings import Settings
from .several import MINIBATCHES, TYPED, HeldUp, Several

MOST_PLANS = 64  # parts of the devices that are planned: some seconds
_MOST_MINIBATCHES = 240  # of each pipeline that are simulated


@dataclass(frozen=True)
class Asked:
    """Settings that can be read, with what they make of profile and devices. `scaled`: as an Answer's."""

    settings: Settings
    several: Several
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

    def asked(self, settings: Settings) -> Asked:
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
                "expected at least one device each; lower pipelines, or raise a device slider",
            )
        return Asked(settings, several, problem, rule, self._planning.scaled(settings))

    def answer(self, asked: Asked) -> PipelinesAnswer:
        """Plan and simulate. Raises InputError for settings that cannot be planned, or a straggler of no rank."""
        several, profile = asked.several, asked.problem.profile
        given = _given(asked)
        split = replace(asked.settings, several=Several(several.count, "", HeldUp()))  # rule and straggler change none
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

    def _each(self, asked: Asked, num_microbatches: int) -> int:
        """Minibatches of each pipeline on average: enough for some averages."""
        return max(MINIBATCHES, self._planning.minibatches, num_microbatches * max(2, 3 * asked.rule.every))


def _given(asked: Asked) -> dict[str, Any]:
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


def _planned(asked: Asked, given: dict[str, Any]) -> Plan:
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
