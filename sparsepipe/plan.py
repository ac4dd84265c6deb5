"""A plan: of one or several pipelines the layers of each stage, the devices that run it, and the schedule.

The runtime obeys it alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .display import html
from .display.counting import number_of
from .display.markup import one_line
from .display.numbers import duration, gap_text, rate_text
from .display.plan_diff import PlanDiff, diff
from .display.plan_text import stage_table, warmups_told
from .errors import InputError
from .graph import LayerGraph
from .io.fields import integer, maybe, number, shown, text, texts
from .io.files import read_json, write_json
from .plan_parts import (
    Estimate,
    PositionEstimate,
    Stage,
    StageEstimate,
    beyond_bounds,
    estimate_from_json,
    estimate_of_all,
    estimate_to_json,
    overlaps,
    stage_from_json,
    stage_to_json,
    unlike_layers,
    violations,
)
from .replication import rule_from_json, rule_to_json
from .replication.base import Rule
from .schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES, ScheduleRules
from .sizes import Certainty, size_words

__all__ = ["FORMAT", "Estimate", "Plan", "PositionEstimate", "Stage", "StageEstimate"]

FORMAT = "sparsepipe-plan-1"
_ROUTING = "round-robin"  # which replica takes a minibatch: the only way there is


@dataclass(frozen=True)
class Plan:
    """One or several pipelines that train a network: stages in pipeline order with their schedule.

    A rank may serve several stages, as many as every other rank: the stages are interleaved then, see interleaved.py.
    `num_microbatches` minibatches make one step of a schedule that flushes or keeps two versions. Others update after
    every round of the replicas, or after `accumulation` rounds.

    `pipelines` has the plan of each pipeline, whose ranks are places in one cluster. Of one pipeline that is the plan
    itself. `Plan.together` makes a plan of several, which average by `replication`; its stages, schedule and estimate
    follow from theirs: change `members`.
    """

    stages: tuple[Stage, ...]
    schedule: str = "1f1b"
    weights: str = ""  # the schedule's default policy when empty
    num_microbatches: int = 1
    planner: str = "by hand"
    estimate: Estimate | None = None
    warnings: tuple[str, ...] = ()
    accumulation: int = 1
    # What the plan was made from: a Provenance, as JSON. Two plans that do the same are equal wherever they come from.
    provenance: Mapping[str, Any] | None = field(default=None, compare=False)
    members: tuple["Plan", ...] = ()  # the pipelines, if there are several
    replication: Rule | None = None  # by which several average
    samples: float | None = None  # of a minibatch of several; None: the profile that was planned with does not say
    joined: tuple["Plan", ...] = field(default=(), repr=False, compare=False)  # what stages and more follow from

    def __post_init__(self) -> None:
        if self.members:
            self._check_untouched()
            estimate = estimate_of_all([plan.estimate for plan in self.members], self.estimate)
            for name, value in {**_of_members(self.members), "estimate": estimate, "joined": self.members}.items():
                object.__setattr__(self, name, value)
        elif not self.weights and self.schedule in WEIGHT_POLICIES:
            object.__setattr__(self, "weights", WEIGHT_POLICIES[self.schedule][0])

    def _check_untouched(self) -> None:
        """Raise InputError where what follows from the pipelines' plans was to be replaced by something else."""
        for name, value in (_of_members(self.joined) if self.joined else {"stages": ()}).items():
            if getattr(self, name) != value:
                raise InputError(
                    "plan.follows_from_pipelines",
                    f"{name} of a plan of {number_of(len(self.members), 'pipeline')} follows from theirs: change it in "
                    "its `pipelines`, and give these to `with_pipelines`",
                    name=name,
                )

    @classmethod
    def together(
        cls,
        pipelines: Iterable["Plan"],
        replication: Rule,
        *,
        samples: float | None = None,
        lower_bound_seconds: float | None = None,
        plan_seconds: float = 0.0,
        data_parallel_seconds: float | None = None,
        warnings: tuple[str, ...] = (),
        provenance: Mapping[str, Any] | None = None,
    ) -> "Plan":
        """Return the plan of several pipelines, each with ranks of its own in one cluster.

        `samples`: of a minibatch, if known. `lower_bound_seconds`: no split of the devices has a smaller period.
        `data_parallel_seconds`: the period of one stage over all devices. `warnings`: of the split; each plan has its
        own too.
        """
        known = Estimate(0.0, (), lower_bound_seconds, plan_seconds, data_parallel_seconds=data_parallel_seconds)
        return cls(
            (),
            estimate=known,
            warnings=warnings,
            provenance=provenance,
            members=tuple(pipelines),
            replication=replication,
            samples=samples,
        )

    @classmethod
    def alike(cls, plan: "Plan", count: int, replication: Rule, *, samples: float | None = None) -> "Plan":
        """Return `count` pipelines of the same plan, whose ranks are from 0: each on the next ranks of a cluster."""
        integer(count, "pipelines", least=2)
        num_ranks = len(plan.ranks)
        copies = []
        for k in range(count):
            stages = (replace(one, ranks=tuple(rank + k * num_ranks for rank in one.ranks)) for one in plan.stages)
            copies.append(replace(plan, stages=tuple(stages)))
        return cls.together(copies, replication, samples=samples)

    @property
    def pipelines(self) -> tuple["Plan", ...]:
        """The plan of each pipeline, this one itself if it is of one."""
        return self.members or (self,)

    def one(self, remedy: str = "give one of its `pipelines`") -> "Plan":
        """Return self. Raises InputError with a `remedy` for a plan of several, where that of one is asked for."""
        if self.replication is not None:
            raise InputError(
                "plan.several_pipelines",
                f"a plan of {number_of(len(self.members), 'pipeline')}, expected that of one; {remedy}",
            )
        return self

    def with_pipelines(self, pipelines: Iterable["Plan"]) -> "Plan":
        """The same with other plans for its pipelines; what was proven of those before is left out."""
        plans = tuple(pipelines)
        return replace(self, members=plans, estimate=None) if self.members else plans[0]

    def with_local(self, k: int, plan: "Plan") -> "Plan":
        """The same with another plan for pipeline `k`, whose ranks are those of `local(k)`: its job's, from 0."""
        if not self.members:
            return plan
        ranks = self.ranks_of(k)
        stages = (replace(one, ranks=tuple(ranks[rank] for rank in one.ranks)) for one in plan.stages)
        members = list(self.members)
        members[k] = replace(plan, stages=tuple(stages))
        return self.with_pipelines(members)

    @property
    def rules(self) -> ScheduleRules:
        """The facts of its schedule. Raises InputError for one that is unknown."""
        if self.schedule not in SCHEDULE_RULES:
            raise InputError(
                "schedule.unknown",
                f"schedule {self.schedule!r} is unknown, expected one of {', '.join(SCHEDULE_RULES)}",
            )
        return SCHEDULE_RULES[self.schedule]

    @property
    def rule(self) -> Rule:
        """The rule by which pipelines average, which the plan must have."""
        assert self.replication is not None, "a plan of several pipelines"
        return self.replication

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty at every update of the weights."""
        return self.weights in WEIGHT_RULES and WEIGHT_RULES[self.weights].flushes

    @property
    def updates_by_step(self) -> bool:
        """Whether weights are updated once per step of `num_microbatches` minibatches, else per round of replicas."""
        return self.weights in WEIGHT_RULES and WEIGHT_RULES[self.weights].updates_by_step

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank once, in pipeline order, pipeline 0's first."""
        return tuple(dict.fromkeys(rank for stage in self.stages for rank in stage.ranks))

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(id for stage in self.stages for id in stage.layers)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` serves: several where stages are interleaved."""
        return tuple(k for k, stage in enumerate(self.stages) if rank in stage.ranks)

    @cached_property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each place in the pipeline, those on the same ranks: ((0, 2), (1, 3)) for 4 on 2 ranks."""
        found: dict[frozenset[int], list[int]] = {}
        for k, stage in enumerate(self.stages):
            found.setdefault(frozenset(stage.ranks), []).append(k)
        return tuple(map(tuple, found.values()))

    @property
    def pipeline_size(self) -> int:
        """Places in the pipeline, each a rank with its replicas: as many as stages unless stages share ranks."""
        return len(self.positions)

    @property
    def stages_per_rank(self) -> int:
        """Stages that each rank serves: 1 unless stages share ranks (torch: local stages, Megatron: virtual ones)."""
        return max(map(len, self.positions), default=1)

    @property
    def position_estimates(self) -> tuple[PositionEstimate, ...]:
        """What the estimate, which the plan must have, says of each of its `positions`."""
        assert self.estimate is not None
        found = []
        for stages in self.positions:
            each = [self.estimate.stages[k] for k in stages]
            seconds = (sum(e.compute_seconds for e in each), sum(e.averaging_seconds for e in each))
            found.append(PositionEstimate(stages, *seconds, sum(e.memory_bytes for e in each)))
        return tuple(found)

    def with_schedule(self, schedule: str, *, num_microbatches: int | None = None) -> "Plan":
        """The same stages under another schedule, with that schedule's default weight policy."""
        if self.members:
            each = (plan.with_schedule(schedule, num_microbatches=num_microbatches) for plan in self.members)
            return self.with_pipelines(each)
        count = self.num_microbatches if num_microbatches is None else num_microbatches
        return replace(self, schedule=schedule, weights="", num_microbatches=count)

    def diff(self, other: "Plan") -> PlanDiff:
        """What changes from this plan to `other`: layers and ranks that move, stage times, memory, period, gap."""
        return diff(self, other)

    @property
    def extrapolation(self) -> str:
        """How far beyond the measured sizes the estimates' times are, the worst of all: `Certainty.beyond`."""
        return Certainty.beyond(*(plan.estimate.certainty for plan in self.pipelines if plan.estimate))

    @property
    def counted(self) -> str:
        """What throughput counts: "samples", or "minibatches" if it is not known how many samples one has."""
        return "minibatches" if self.samples is None else "samples"

    @property
    def minibatches_per_second(self) -> float | None:
        """The planner's expectation, of several pipelines if none waits; None where a plan has no estimate."""
        periods = [plan.estimate.period_seconds if plan.estimate else 0.0 for plan in self.pipelines]
        return sum(1 / period for period in periods) if all(periods) else None

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings of the split and of every pipeline's plan, each once."""
        return tuple(dict.fromkeys([*self.warnings, *(text for plan in self.pipelines for text in plan.warnings)]))

    def ranks_of(self, k: int) -> tuple[int, ...]:
        """The ranks of pipeline `k` in ascending order: of several place i is rank i of `local(k)`."""
        return tuple(sorted(self.pipelines[k].ranks))

    def among_all(self, k: int, rank: int) -> int:
        """Return what `rank` of the job of pipeline `k` is called among those of all; itself if there is one."""
        ranks = self.ranks_of(k) if self.members else ()
        return ranks[rank] if 0 <= rank < len(ranks) else rank

    def prefix(self, k: int) -> str:
        """Return what begins a message on pipeline `k`: "pipeline 1: ", nothing if there is one."""
        return f"pipeline {k}: " if self.members else ""

    def first_rank(self, k: int) -> int:
        """How many ranks the pipelines before `k` have."""
        return sum(len(plan.ranks) for plan in self.pipelines[:k])

    def first_stage(self, k: int) -> int:
        """How many stages the pipelines before `k` have: stage s of pipeline k is stage `first_stage(k)` + s of all."""
        return sum(len(plan.stages) for plan in self.pipelines[:k])

    @property
    def trace_facts(self) -> dict[str, Any]:
        """What a trace of several pipelines says: "pipelines", the ranks of each; "like_stages", of each of `stages`
        the first that has the same layers.
        """
        layers = [stage.layers for stage in self.stages]
        ranks = [list(self.ranks_of(k)) for k in range(len(self.pipelines))]
        return {"pipelines": ranks, "like_stages": [layers.index(own) for own in layers]}

    def local(self, k: int) -> "Plan":
        """Return what the job of pipeline `k` runs; of several its plan with ranks from 0, in the order of these."""
        if not self.members:
            return self
        place = {rank: i for i, rank in enumerate(self.ranks_of(k))}
        plan = self.pipelines[k]
        stages = (replace(stage, ranks=tuple(place[rank] for rank in stage.ranks)) for stage in plan.stages)
        return replace(plan, stages=tuple(stages))

    def violations(self, graph: LayerGraph, cluster: Cluster | None = None) -> list[str]:
        """Every reason why this plan cannot run on `graph` (and `cluster`), each in one line."""
        found, whole = self.violations_together(), {layer.id for layer in graph.layers}
        alike = not unlike_layers(self.pipelines)
        for k, plan in enumerate(self.pipelines):
            if alike or set(plan.layers) == whole:  # else that it lacks some is said already
                own = violations(plan, graph, None if cluster is None else len(cluster.devices))
                found += [self.prefix(k) + text for text in own]
        return found

    def violations_together(self) -> list[str]:
        """Every reason why its pipelines cannot train together, whatever the network is, each in one line."""
        if self.replication is None:
            return []
        found = [*overlaps(self.members), *unlike_layers(self.members)]
        if len(self.members) < 2:
            told = "a replication rule averages between two or more; give the plan of one by itself"
            return [f"{len(self.members)} pipeline: {told}", *found]
        try:
            self.replication.groups(len(self.members))
        except InputError as error:
            found.insert(0, str(error))
        return found

    def check(self, graph: LayerGraph, cluster: Cluster | None = None) -> "Plan":
        """Return self, or raise InputError that lists every violation."""
        if found := self.violations(graph, cluster):
            raise InputError("plan.violations", "the plan cannot run: " + "; ".join(found))
        return self

    def to_json(self) -> dict[str, Any]:
        """The plan file, which is also what `sparsepipe plan --json` prints.

        `stages` are those of all pipelines; a plan of several has theirs in `pipelines` too.
        """
        estimates = self.estimate.stages if self.estimate else [None] * len(self.stages)
        counts = {"num_microbatches": self.num_microbatches, "accumulation": self.accumulation}
        return {
            "format": FORMAT,
            "planner": self.planner,
            **estimate_to_json(self.estimate),
            "schedule": self.schedule,
            "weights": self.weights,
            **({"routing": _ROUTING} | counts if self.replication is None else self._pipelines_to_json()),
            "stages": [stage_to_json(stage, own) for stage, own in zip(self.stages, estimates, strict=True)],
            "warnings": list(self.warnings),
            **({} if self.provenance is None else {"provenance": dict(self.provenance)}),
        }

    def _pipelines_to_json(self) -> dict[str, Any]:
        rates = [plan.minibatches_per_second for plan in (self, *self.members)]
        paces = [None if rate is None or self.samples is None else rate * self.samples for rate in rates]
        return {
            "replication": rule_to_json(self.rule),
            "samples": self.samples,
            "samples_per_second": paces[0],
            "minibatches_per_second": rates[0],
            "pipelines": [
                {**plan.to_json(), "samples_per_second": pace}
                for plan, pace in zip(self.members, paces[1:], strict=True)
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        """Read what `to_json` wrote. Raises InputError where something is missing or of the wrong kind."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InputError("plan.malformed", f"not a plan: expected a JSON object with format {FORMAT!r}")
        if "pipelines" in document:
            return cls._from_pipelines(document)
        try:
            plan = cls(
                tuple(stage_from_json(entry) for entry in document["stages"]),
                text(document["schedule"], "schedule"),
                text(document["weights"], "weights"),
                integer(document["num_microbatches"], "num_microbatches"),
                text(document["planner"], "planner"),
                estimate_from_json(document),
                texts(document.get("warnings", []), "warnings"),
                integer(document.get("accumulation", 1), "accumulation"),
                _provenance(document.get("provenance")),
            )
            if (routing := text(document["routing"], "routing")) != _ROUTING:
                raise InputError("plan.routing_unknown", f"routing {routing!r} is unknown, expected {_ROUTING!r}")
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("plan.foreign", f"not a plan this project wrote ({error!r})") from None
        if told := beyond_bounds(plan):
            raise InputError("plan.out_of_bounds", told[0])
        return plan

    @classmethod
    def _from_pipelines(cls, document: Mapping[str, Any]) -> "Plan":
        entries = document["pipelines"]
        if not isinstance(entries, list):
            raise InputError("pipelines.list_malformed", f"pipelines = {shown(entries)}: expected a list of plans")
        if "replication" not in document:
            raise InputError(
                "pipelines.no_replication", "pipelines without 'replication': expected the rule by which they average"
            )
        members = []
        for k, entry in enumerate(entries):
            try:
                members.append(cls.from_json(entry))
            except InputError as error:
                raise error.within(f"pipeline {k}: ") from None
            if members[k].replication is not None:
                raise InputError(
                    "plan.nested_pipelines", f"pipeline {k}: has pipelines of its own, expected the plan of one"
                )
        seconds = {
            name: maybe(number)(document.get(name), name) for name in ("lower_bound_seconds", "data_parallel_seconds")
        }
        return cls.together(
            members,
            rule_from_json(document["replication"]),
            samples=maybe(number)(document.get("samples"), "samples"),
            plan_seconds=maybe(number)(document.get("plan_seconds"), "plan_seconds") or 0.0,
            warnings=texts(document.get("warnings", []), "warnings"),
            provenance=_provenance(document.get("provenance")),
            **seconds,
        )

    def save(self, path: Path | str) -> Path:
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Plan":
        """Read a plan file, of one or of several pipelines. Raises InputError naming the file."""
        try:
            return cls.from_json(read_json(path, what="plan"))
        except InputError as error:
            raise error.within("" if str(error).startswith(str(path)) else f"{path}: ") from None

    def _repr_html_(self) -> str:
        return html.plan(self)

    def __str__(self) -> str:
        """The plan as a table for people, of several pipelines one for each."""
        lines = [self.summary()]
        for k, plan in enumerate(self.pipelines):
            lines += ["", self.prefix(k) + plan.summary()] if self.members else []
            lines += stage_table(plan.stages, plan.estimate.stages if plan.estimate else None)
            lines += warmups_told(plan.stages)
        return "\n".join([*lines, *(f"warning: {one_line(text)}" for text in self.all_warnings)])

    def summary(self) -> str:
        """Planner, schedule, period and gap in one line; of several pipelines their number, rule and throughput."""
        devices = number_of(len(self.ranks), "device")
        if self.replication is not None:
            text = f"{number_of(len(self.members), 'pipeline')} on {devices}, {self.replication.name}"
            if self.estimate and (rate := self.minibatches_per_second):
                samples = "" if self.samples is None else f" ({rate_text(rate * self.samples)})"
                text += f", {rate_text(rate, 'minibatches')}{samples} where none waits, gap "
                text += "not proven" if self.estimate.gap is None else gap_text(self.estimate.gap)
            return one_line(text)
        text = f"{self.planner}: {number_of(len(self.stages), 'stage')} on {devices}, {self.schedule} ({self.weights})"
        text = one_line(text)
        if self.estimate:
            if self.estimate.latency_seconds is not None:
                text += f", forward only: latency {duration(self.estimate.latency_seconds)}"
            text += f", {duration(self.estimate.period_seconds)} per minibatch"
            if self.estimate.gap is not None:
                text += f", gap {gap_text(self.estimate.gap)}"
            if self.estimate.size:
                unit = size_words(self.estimate.size_unit)
                text += f"; times of a minibatch of {self.estimate.size:,.0f} {unit}"
                if self.estimate.memory_size:
                    text += f", memory for one of {self.estimate.memory_size:,.0f} {unit}"
            if self.extrapolation:
                text += f"; {self.extrapolation}"
        return text


def _provenance(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise InputError("plan.provenance_malformed", f"provenance = {shown(value)}: expected an object, or none")
    return value


def _of_members(members: tuple[Plan, ...]) -> dict[str, Any]:
    """What a plan of several pipelines has from theirs."""
    return {
        "stages": tuple(stage for plan in members for stage in plan.stages),
        "schedule": _joined(plan.schedule for plan in members),
        "weights": _joined(plan.weights for plan in members),
        "planner": _joined(plan.planner for plan in members),
        "num_microbatches": max(plan.num_microbatches for plan in members),
        "accumulation": max(plan.accumulation for plan in members),
    }


def _joined(words: Iterable[str]) -> str:
    """What pipelines have, each once: "1f1b", or "1f1b+gpipe" where they differ."""
    return "+".join(dict.fromkeys(words))
