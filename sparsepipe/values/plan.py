"""A plan: of one or several pipelines the layers of each stage, the devices that run it, and the schedule.

The runtime obeys it alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import InputError, one_line
from ..util.derived import digest
from ..util.io.fields import integer, maybe, number, shown, text, texts
from ..util.io.files import read_json, write_json
from ..util.text.numbers import Certainty, Printed, duration, gap_text, listed, number_of, rate_text, size_words
from .cluster import Cluster
from .graph import LayerGraph
from .plan_checks import beyond_bounds, overlaps, unlike_layers, violations
from .plan_parts import (
    Estimate,
    PositionEstimate,
    Stage,
    StageEstimate,
    StagePlan,
    estimate_from_json,
    estimate_of_all,
    estimate_to_json,
    segment_text,
    stage_from_json,
    stage_to_json,
)
from .replication import rule_from_json, rule_to_json
from .replication.base import Rule
from .schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, ScheduleRules

__all__ = ["FORMAT", "Estimate", "Plan", "PlanDiff", "PositionEstimate", "Stage", "StageEstimate"]

FORMAT = "sparsepipe-plan-1"
_SETTINGS = ("num_microbatches", "accumulation")  # of plans, which a difference names with the schedule
_STAGE_SETTINGS = ("shares", "warmup", "recompute", "segments", "sharding")  # of stages
_ROUTING = "round-robin"  # which replica takes a minibatch: the only way there is
_EDITED = "the plan was edited after it was planned, so it has no estimate; `sparsepipe simulate` estimates it"

Place = int | tuple[int, ...] | None  # a stage; several for a rank of interleaved stages; none


@dataclass(frozen=True, slots=True)
class Move:
    """Consecutive layers, or ranks, that are in stage `before` of one plan and in stage `after` of the other."""

    items: tuple[str, ...]
    before: Place
    after: Place

    def __str__(self) -> str:
        names = self.items[0] if len(self.items) == 1 else f"{self.items[0]} … {self.items[-1]} ({len(self.items)})"
        return f"{names}: {_place(self.before)} → {_place(self.after)}"


@dataclass(frozen=True, slots=True)
class PlanDiff(Printed):
    """Difference between two plans.

    A stage's numbers: (compute, transfer, averaging seconds a minibatch, memory bytes, bytes sent a minibatch).
    """

    planners: tuple[str, str]
    periods: tuple[float | None, float | None]  # seconds per minibatch
    gaps: tuple[float | None, float | None]
    layers: tuple[Move, ...]
    ranks: tuple[Move, ...]
    stages: tuple[tuple[tuple[float, ...] | None, tuple[float, ...] | None], ...]  # of either plan, by stage number
    settings: tuple[tuple[str, str, str], ...] = ()  # what differs otherwise: name, before, after

    @property
    def same(self) -> bool:
        """Return whether both plans place the same layers on the same ranks."""
        return not self.layers and not self.ranks

    @property
    def speedup(self) -> float | None:
        """Return the speedup of the second plan, by the planners' estimates."""
        before, after = self.periods
        return before / after if before is not None and after else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"same": self.same, "speedup": self.speedup}

    def moves(self) -> list[str]:
        """List the layers and ranks that are in another stage, a line for each row: "layer l2: stage 1 → stage 0"."""
        named = [("layer", move) for move in self.layers] + [("rank", move) for move in self.ranks]
        return [f"{what}{'s' if len(move.items) > 1 else ''} {move}" for what, move in named]

    def changed_settings(self) -> list[str]:
        """List what else differs, a line each: "stage 0, sharding: none → space"."""
        return [f"{name}: {before} → {after}" for name, before, after in self.settings]


@dataclass(frozen=True)
class Plan(StagePlan, Printed):
    """Describe a plan: stages of layers, the ranks of each stage, and the schedule of the pipeline.

    `partition` returns a plan, `simulate` predicts it, and `launch` trains under it. With interleaved stages, every
    rank has the same number of stages.

    A plan may have several pipeline replicas (hybrid data and pipeline parallelism): `pipelines` lists the plan of
    each. `Plan.together` builds such a plan. Its stages, schedule and estimate are derived from its `members`; to
    change them, change the members.

    Attributes:
        stages: The stages in pipeline order.
        schedule: Name of the schedule, a key of `SCHEDULES`.
        weights: Policy for weight versions, such as "stash". Empty: default of the schedule.
        num_microbatches: Number of minibatches per step, for synchronous schedules and two-version weights ("2bw").
        planner: Name of the planner.
        estimate: Estimates of the planner: seconds per minibatch, lower bound, bytes. None: unknown.
        warnings: Warnings about unreliable numbers, one sentence each.
        accumulation: Rounds of the replicas per weight update of an asynchronous schedule (gradient accumulation).
        provenance: Sources of the plan (profile, cluster, settings), as JSON.
        members: Plans of the pipeline replicas, if there are several.
        replication: Synchronization scheme of the pipeline replicas.
        samples: Samples per minibatch of pipeline replicas. None: unknown.
        joined: Members from which stages, schedule and estimate were derived.

    Example:
        >>> plan = sp.partition(profile, cluster, planner="model-parallel")
        >>> [stage.layers for stage in plan.stages]
        [('conv1', 'conv2'), ('conv3', 'linear')]
        >>> sp.Plan.load(plan.save("plan.json")) == plan
        True

    See also:
        background/how_it_works, `partition`, `simulate`, `launch`
    """

    members: tuple["Plan", ...] = ()
    replication: Rule | None = None
    samples: float | None = None
    joined: tuple["Plan", ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.members:
            self._check_untouched()
            estimate = estimate_of_all([plan.estimate for plan in self.members], self.estimate)
            for name, value in {**_of_members(self.members), "estimate": estimate, "joined": self.members}.items():
                object.__setattr__(self, name, value)
        elif not self.weights and self.schedule in WEIGHT_POLICIES:
            object.__setattr__(self, "weights", WEIGHT_POLICIES[self.schedule][0])

    def _check_untouched(self) -> None:
        """Raise InputError if what follows from the pipelines' plans was to be replaced by something else."""
        for name, value in (_of_members(self.joined) if self.joined else {"stages": ()}).items():
            if getattr(self, name) != value:
                raise InputError(
                    "plan.follows_from_pipelines",
                    f"{name} of a plan of {number_of(len(self.members), 'pipeline')} is computed from its pipelines; "
                    "change it there, and pass them to `with_pipelines`",
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
        """Combine plans of pipelines on disjoint ranks of one cluster into one plan.

        `samples`: samples per minibatch, if known. `lower_bound_seconds`: bound on the period of any device split.
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
        """Copy a plan to several pipeline replicas on consecutive ranks of a cluster.

        Args:
            plan: Plan of one pipeline, whose ranks start at 0.
            count: Number of pipeline replicas, 2 or more.
            replication: Synchronization scheme.
            samples: Samples per minibatch, if known.

        Returns:
            The plan of all replicas.

        Raises:
            InputError: The count is below 2.

        Example:
            >>> from sparsepipe.values.replication import parse_rule
            >>> sp.Plan.alike(plan, 2, parse_rule("ad-psgd")).ranks
            (0, 1, 2, 3)

        See also:
            guides/pipeline_replicas, `partition_pipelines`
        """
        integer(count, "pipelines", least=2)
        num_ranks = len(plan.ranks)
        copies = []
        for k in range(count):
            stages = (replace(one, ranks=tuple(rank + k * num_ranks for rank in one.ranks)) for one in plan.stages)
            copies.append(replace(plan, stages=tuple(stages)))
        return cls.together(copies, replication, samples=samples)

    @property
    def pipelines(self) -> tuple["Plan", ...]:
        """Plan of each pipeline. For a plan of one pipeline, the plan itself."""
        return self.members or (self,)

    def one(self, remedy: str = "give one of its `pipelines`") -> "Plan":
        """Return self. Raises InputError with `remedy` if the plan has several pipelines."""
        if self.replication is not None:
            raise InputError(
                "plan.several_pipelines",
                f"the plan has {number_of(len(self.members), 'pipeline')}, expected one; {remedy}",
            )
        return self

    def with_pipelines(self, pipelines: Iterable["Plan"]) -> "Plan":
        """Return a copy with other plans for its pipelines, without the bounds proven for the previous ones."""
        plans = tuple(pipelines)
        return replace(self, members=plans, estimate=None) if self.members else plans[0]

    def with_local(self, k: int, plan: "Plan") -> "Plan":
        """Return a copy with another plan for pipeline `k`. Its ranks start at 0, as in `local(k)`."""
        if not self.members:
            return plan
        ranks = self.ranks_of(k)
        stages = (replace(one, ranks=tuple(ranks[rank] for rank in one.ranks)) for one in plan.stages)
        members = list(self.members)
        members[k] = replace(plan, stages=tuple(stages))
        return self.with_pipelines(members)

    @property
    def rules(self) -> ScheduleRules:
        """Rules of the schedule. Raises InputError if the schedule is unknown."""
        if self.schedule not in SCHEDULE_RULES:
            raise InputError(
                "schedule.unknown",
                f"unknown schedule {self.schedule!r}, expected one of {', '.join(SCHEDULE_RULES)}",
            )
        return SCHEDULE_RULES[self.schedule]

    @property
    def rule(self) -> Rule:
        """Synchronization scheme of the pipelines. The plan must have one."""
        assert self.replication is not None, "a plan of several pipelines"
        return self.replication

    @property
    def position_estimates(self) -> tuple[PositionEstimate, ...]:
        """Return the estimate of each of the `positions`. The plan must have an estimate."""
        assert self.estimate is not None
        estimates = []
        for stages in self.positions:
            each = [self.estimate.stages[k] for k in stages]
            compute, averaging = sum(e.compute_seconds for e in each), sum(e.averaging_seconds for e in each)
            estimates.append(PositionEstimate(stages, compute, averaging, sum(e.memory_bytes for e in each)))
        return tuple(estimates)

    def with_schedule(self, schedule: str, *, num_microbatches: int | None = None) -> "Plan":
        """Return a copy with the same stages under another schedule, with that schedule's default weight policy."""
        if self.members:
            each = (plan.with_schedule(schedule, num_microbatches=num_microbatches) for plan in self.members)
            return self.with_pipelines(each)
        count = self.num_microbatches if num_microbatches is None else num_microbatches
        return replace(self, schedule=schedule, weights="", num_microbatches=count)

    def diff(self, other: "Plan") -> PlanDiff:
        """Compare with another plan: layers and ranks that move, stage times, memory, iteration time, gap."""
        return _diff(self, other)

    @property
    def extrapolation(self) -> str:
        """Return a text with the largest extrapolation of the estimates beyond the measured sizes."""
        return Certainty.beyond(*(plan.estimate.certainty for plan in self.pipelines if plan.estimate))

    @property
    def counted(self) -> str:
        """Return the unit of throughput: "samples", or "minibatches" if the samples per minibatch are unknown."""
        return "minibatches" if self.samples is None else "samples"

    @property
    def minibatches_per_second(self) -> float | None:
        """Predicted throughput, without synchronization stalls of pipelines. None if a plan has no estimate."""
        periods = [plan.estimate.period_seconds if plan.estimate else 0.0 for plan in self.pipelines]
        return sum(1 / period for period in periods) if all(periods) else None

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """Warnings of the device split and of every pipeline's plan, without duplicates."""
        return tuple(dict.fromkeys([*self.warnings, *(text for plan in self.pipelines for text in plan.warnings)]))

    def ranks_of(self, k: int) -> tuple[int, ...]:
        """Ranks of pipeline `k` in ascending order. With several pipelines, entry i is rank i of `local(k)`."""
        return tuple(sorted(self.pipelines[k].ranks))

    def among_all(self, k: int, rank: int) -> int:
        """Return the global rank of `rank` in the job of pipeline `k`. With one pipeline both are equal."""
        ranks = self.ranks_of(k) if self.members else ()
        return ranks[rank] if 0 <= rank < len(ranks) else rank

    def prefix(self, k: int) -> str:
        """Return the prefix of messages about pipeline `k`, such as "pipeline 1: ". Empty for a single pipeline."""
        return f"pipeline {k}: " if self.members else ""

    def first_rank(self, k: int) -> int:
        """Count the ranks of the pipelines before `k`."""
        return sum(len(plan.ranks) for plan in self.pipelines[:k])

    def first_stage(self, k: int) -> int:
        """Count the stages of the pipelines before `k`: stage s of pipeline k is stage `first_stage(k)` + s of all."""
        return sum(len(plan.stages) for plan in self.pipelines[:k])

    @property
    def trace_facts(self) -> dict[str, Any]:
        """Return properties of the replicas' trace. "pipelines": ranks of each pipeline. "like_stages": per stage
        the first that has the same layers.
        """
        layers = [stage.layers for stage in self.stages]
        ranks = [list(self.ranks_of(k)) for k in range(len(self.pipelines))]
        return {"pipelines": ranks, "like_stages": [layers.index(own) for own in layers]}

    def local(self, k: int) -> "Plan":
        """Return the plan that the job of pipeline `k` runs. With several pipelines its ranks are renumbered from 0."""
        if not self.members:
            return self
        local_index = {rank: i for i, rank in enumerate(self.ranks_of(k))}
        plan = self.pipelines[k]
        stages = (replace(stage, ranks=tuple(local_index[rank] for rank in stage.ranks)) for stage in plan.stages)
        return replace(plan, stages=tuple(stages))

    def violations(self, graph: LayerGraph, cluster: Cluster | None = None) -> list[str]:
        """List the reasons why the plan cannot run on `graph` (and `cluster`), one line each."""
        faults, whole = self.violations_together(), {layer.id for layer in graph.layers}
        alike = not unlike_layers(self.pipelines)
        for k, plan in enumerate(self.pipelines):
            if alike or set(plan.layers) == whole:  # else that it lacks some is said already
                member_faults = violations(plan, graph, None if cluster is None else len(cluster.devices))
                faults += [self.prefix(k) + text for text in member_faults]
        return faults

    def violations_together(self) -> list[str]:
        """List the reasons why the pipelines cannot train together with any network, one line each."""
        if self.replication is None:
            return []
        faults = [*overlaps(self.members), *unlike_layers(self.members)]
        if len(self.members) < 2:
            reason = "a synchronization scheme averages between two or more pipelines; give the plan of one without it"
            return [f"{len(self.members)} pipeline: {reason}", *faults]
        try:
            self.replication.groups(len(self.members))
        except InputError as error:
            faults.insert(0, str(error))
        return faults

    def check(self, graph: LayerGraph, cluster: Cluster | None = None) -> "Plan":
        """Return self, or raise InputError that lists every violation."""
        if faults := self.violations(graph, cluster):
            raise InputError("plan.violations", "the plan cannot run: " + "; ".join(faults))
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the content of the plan file, which `sparsepipe plan --json` also prints.

        `stages` are those of all pipelines. A plan of several pipelines also lists them per pipeline in `pipelines`.
        """
        estimates = self.estimate.stages if self.estimate else [None] * len(self.stages)
        counts = {"num_microbatches": self.num_microbatches, "accumulation": self.accumulation}
        return {
            "format": FORMAT,
            "planner": self.planner,
            **estimate_to_json(self.estimate),
            **({"estimate_of": self._estimated_digest} if self.estimate else {}),
            "schedule": self.schedule,
            "weights": self.weights,
            **({"routing": _ROUTING} | counts if self.replication is None else self._pipelines_to_json()),
            "stages": [stage_to_json(stage, own) for stage, own in zip(self.stages, estimates, strict=True)],
            "warnings": list(self.warnings),
            **({} if self.provenance is None else {"provenance": dict(self.provenance)}),
        }

    @property
    def _estimated_digest(self) -> str:
        """A digest of what the estimate holds for: an edited plan file has another."""
        return digest([[stage_to_json(stage, None) for stage in self.stages], self.schedule, self.num_microbatches])

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
        """Read the output of `to_json`. Raises InputError if a value is missing or has the wrong type."""
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
                raise InputError("plan.routing_unknown", f"unknown routing {routing!r}, expected {_ROUTING!r}")
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("plan.foreign", f"not a plan of sparsepipe ({error!r})") from None
        if beyond := beyond_bounds(plan):
            raise InputError("plan.out_of_bounds", beyond[0])
        if plan.estimate and document.get("estimate_of", plan._estimated_digest) != plan._estimated_digest:
            return replace(plan, estimate=None, warnings=(*plan.warnings, _EDITED))
        return plan

    @classmethod
    def _from_pipelines(cls, document: Mapping[str, Any]) -> "Plan":
        entries = document["pipelines"]
        if not isinstance(entries, list):
            raise InputError("pipelines.list_malformed", f"pipelines is {shown(entries)}, expected a list of plans")
        if "replication" not in document:
            raise InputError(
                "pipelines.no_replication", "pipelines are given without 'replication'; add a synchronization scheme"
            )
        members = []
        for k, entry in enumerate(entries):
            try:
                members.append(cls.from_json(entry))
            except InputError as error:
                raise error.within(f"pipeline {k}: ") from None
            if members[k].replication is not None:
                raise InputError(
                    "plan.nested_pipelines",
                    f"pipeline {k}: is a plan of several pipelines, expected a plan of one pipeline",
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
        """Read a plan file of one or several pipelines. Raises InputError that names the file."""
        try:
            return cls.from_json(read_json(path, what="plan"))
        except InputError as error:
            raise error.within("" if str(error).startswith(str(path)) else f"{path}: ") from None

    def summary(self) -> str:
        """Return planner, schedule, period and gap (several pipelines: number, scheme, throughput) in one line."""
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
        raise InputError("plan.provenance_malformed", f"provenance is {shown(value)}, expected an object or none")
    return value


def _of_members(members: tuple[Plan, ...]) -> dict[str, Any]:
    """Return what a plan of several pipelines has from theirs."""
    return {
        "stages": tuple(stage for plan in members for stage in plan.stages),
        "schedule": _joined(plan.schedule for plan in members),
        "weights": _joined(plan.weights for plan in members),
        "planner": _joined(plan.planner for plan in members),
        "num_microbatches": max(plan.num_microbatches for plan in members),
        "accumulation": max(plan.accumulation for plan in members),
    }


def _joined(words: Iterable[str]) -> str:
    """Return what pipelines have, each once: "1f1b", or "1f1b+gpipe" where they differ."""
    return "+".join(dict.fromkeys(words))


def _diff(before: Plan, after: Plan) -> PlanDiff:
    """Compare two plans of the same network, stage by stage."""
    ids = list(dict.fromkeys(id for plan in (before, after) for stage in plan.stages for id in stage.layers))
    ranks = sorted({rank for plan in (before, after) for stage in plan.stages for rank in stage.ranks})
    layer_places: list[dict[str, Place]] = [
        {id: k for k, stage in enumerate(plan.stages) for id in stage.layers} for plan in (before, after)
    ]
    rank_places = [{str(rank): _place_of_rank(plan, rank) for rank in ranks} for plan in (before, after)]
    count = max(len(before.stages), len(after.stages))
    return PlanDiff(
        (before.planner, after.planner),
        tuple(plan.estimate.period_seconds if plan.estimate else None for plan in (before, after)),  # type: ignore[arg-type]
        tuple(plan.estimate.gap if plan.estimate else None for plan in (before, after)),  # type: ignore[arg-type]
        _moves(ids, *layer_places),
        _moves([str(rank) for rank in ranks], *rank_places),
        tuple((_costs(before, k), _costs(after, k)) for k in range(count)),
        _changed_settings(before, after),
    )


def _changed_settings(before: Plan, after: Plan) -> tuple[tuple[str, str, str], ...]:
    """Return the settings of the plans, and of stages with the same number, that differ: (name, before, after)."""
    plans = (before, after)
    pairs: list[tuple[str, list[object]]] = [("schedule", [f"{plan.schedule} ({plan.weights})" for plan in plans])]
    pairs += [(name.replace("_", " "), [getattr(plan, name) for plan in plans]) for name in _SETTINGS]
    pairs.append(("synchronization scheme", [plan.replication and plan.replication.name for plan in plans]))
    for k, stages in enumerate(zip(before.stages, after.stages, strict=False)):
        for name in _STAGE_SETTINGS:
            if name != "shares" or len({len(stage.shares) for stage in stages}) == 1:  # else the ranks say it
                pairs.append((f"stage {k}, {name}", [getattr(stage, name) for stage in stages]))
    return tuple((name, _setting(old), _setting(new)) for name, (old, new) in pairs if old != new)


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in (None, ()):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(segment_text(item) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)


def _place_of_rank(plan: Plan, rank: int) -> Place:
    stages = tuple(k for k, stage in enumerate(plan.stages) if rank in stage.ranks)
    return stages if len(stages) > 1 else next(iter(stages), None)


def _moves(items: Sequence[str], before: dict[str, Place], after: dict[str, Place]) -> tuple[Move, ...]:
    runs = groupby(items, key=lambda item: (before.get(item), after.get(item)))
    return tuple(Move(tuple(run), *places) for places, run in runs if places[0] != places[1])


def _costs(plan: Plan, k: int) -> tuple[float, ...] | None:
    if plan.estimate is None or k >= len(plan.estimate.stages):
        return None
    e = plan.estimate.stages[k]
    return e.compute_seconds, e.transfer_seconds, e.averaging_seconds, e.memory_bytes, e.sent_bytes


def _place(stage: Place) -> str:
    if isinstance(stage, tuple):
        return f"stages {listed(stage)}"
    return "no stage" if stage is None else f"stage {stage}"
