"""A pipeline plan: the layers of each stage, the devices that run it, and the schedule. The runtime obeys it alone."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from . import plan_check
from .cluster import Cluster
from .display import html
from .display.counting import number_of
from .display.markup import one_line
from .display.numbers import duration, gap_text
from .display.plan_diff import PlanDiff, diff, listed
from .display.plan_text import stage_table, warmups_told
from .errors import InputError
from .graph import LayerGraph
from .io.fields import integer, number, one_of, shown, text, texts
from .io.files import read_json, write_json
from .schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES, ScheduleRules
from .sizes import SIZE_UNITS, Certainty, size_words

FORMAT = "sparsepipe-plan-1"
_size_unit = one_of(*SIZE_UNITS)
_OF_LATENCY = ("latency_seconds", "latency_lower_bound_seconds")


@dataclass(frozen=True)
class Stage:
    """Layers on one or more replicas. A replica with share 2 takes two minibatches where one with share 1 takes one."""

    layers: tuple[str, ...]  # ids, in topological order
    ranks: tuple[int, ...]
    shares: tuple[int, ...] = ()  # one per rank; equal when empty
    device_types: tuple[str, ...] = ()  # one per rank, for readers and pictures
    nodes: tuple[str, ...] = ()
    warmup: int | None = None  # forwards before the first backward; None: computed by the schedule
    recompute: bool = False  # keep only the stage's inputs and run the forward again before the backward

    def __post_init__(self) -> None:
        if not self.shares:
            object.__setattr__(self, "shares", (1,) * len(self.ranks))

    @cached_property
    def round(self) -> int:
        """Minibatches after which every replica has had its share."""
        return sum(self.shares)

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """The replica (its place in `ranks`) of each minibatch of a round: smooth weighted round-robin.

        Shares (2, 1) give (0, 1, 0) and not (0, 0, 1), so that no replica waits for a burst.
        """
        if len(set(self.shares)) == 1:  # of thousands of replicas at once
            return tuple(range(len(self.shares))) * self.shares[0]
        credit, turns = [0] * len(self.shares), []
        for _ in range(self.round):
            credit = [c + share for c, share in zip(credit, self.shares, strict=True)]
            chosen = max(range(len(credit)), key=lambda k: (credit[k], -k))
            credit[chosen] -= self.round
            turns.append(chosen)
        return tuple(turns)

    def replica(self, minibatch: int) -> int:
        """The rank that runs `minibatch`."""
        return self.ranks[self.turns[minibatch % self.round]]

    def share(self, rank: int) -> int:
        return self.shares[self.ranks.index(rank)]


@dataclass(frozen=True)
class StageEstimate:
    """What the planner expects of one stage, per minibatch."""

    compute_seconds: float  # share-weighted, with the optimizer's step: the pace its replicas keep together
    memory_bytes: float = 0.0  # at its fullest, on one replica; interleaved, when its device with all its stages is
    transfer_seconds: float = 0.0  # its slower boundary
    averaging_seconds: float = 0.0
    sent_bytes: float = 0.0  # activations to the next stage and gradients to the one before, one minibatch


@dataclass(frozen=True)
class Estimate:
    """What the planner expects of a plan, and how far from the best it can be at most."""

    period_seconds: float  # per minibatch in steady state; for flush schedules step time / num_microbatches
    stages: tuple[StageEstimate, ...]
    lower_bound_seconds: float | None = None  # no plan has a smaller period; None: the planner proves nothing
    plan_seconds: float = 0.0
    single_device_seconds: float | None = None  # period of one device (the fastest type)
    data_parallel_seconds: float | None = None  # period of one stage over all devices
    size: float | None = None  # of the minibatch the times hold for: the mean one
    memory_size: float | None = None  # of the minibatch that memory must do for: a large one
    size_unit: str = "voxels"  # what both count
    # Of a plan for inference, whose other times are then of forwards alone: seconds from an input to its output.
    latency_seconds: float | None = None
    latency_lower_bound_seconds: float | None = None  # no plan that keeps the pace has a smaller latency
    certainty: Certainty | None = None  # of the times: None where the costs do not depend on size

    @property
    def gap(self) -> float | None:
        """How far what was to be least can be above the optimum, as a share of it: 0 means proven optimal.

        That is `latency_seconds` where there is one, else `period_seconds`.
        """
        if self.latency_seconds and self.latency_lower_bound_seconds is not None:
            return max(0.0, (self.latency_seconds - self.latency_lower_bound_seconds) / self.latency_seconds)
        if self.lower_bound_seconds is None or self.period_seconds == 0:
            return None
        return max(0.0, (self.period_seconds - self.lower_bound_seconds) / self.period_seconds)


@dataclass(frozen=True)
class PositionEstimate:
    """What the planner expects of a place in the pipeline, per minibatch: of all stages on the same ranks together."""

    stages: tuple[int, ...]
    compute_seconds: float
    averaging_seconds: float
    memory_bytes: float  # on the fullest device

    @property
    def busy_seconds(self) -> float:
        return self.compute_seconds + self.averaging_seconds

    @property
    def name(self) -> str:
        """ "stage 1", or "stages 0 and 2"."""
        return f"stage{'s' if len(self.stages) > 1 else ''} {listed(self.stages)}"


@dataclass(frozen=True)
class Plan:
    """Stages in pipeline order with their schedule.

    A rank may serve several stages, as many as every other rank: the stages are interleaved then, see interleaved.py.
    `num_microbatches` minibatches make one step of a schedule that flushes or keeps two versions. Others update after
    every round of the replicas, or after `accumulation` rounds.
    """

    stages: tuple[Stage, ...]
    schedule: str = "1f1b"
    weights: str = ""  # the schedule's default policy when empty
    num_microbatches: int = 1
    routing: str = "round-robin"
    planner: str = "by hand"
    estimate: Estimate | None = None
    warnings: tuple[str, ...] = ()
    accumulation: int = 1
    # What the plan was made from: a Provenance, as JSON. Two plans that do the same are equal wherever they come from.
    provenance: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.weights and self.schedule in WEIGHT_POLICIES:
            object.__setattr__(self, "weights", WEIGHT_POLICIES[self.schedule][0])

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
    def flushes(self) -> bool:
        """Whether the pipeline is empty at every update of the weights."""
        return self.weights in WEIGHT_RULES and WEIGHT_RULES[self.weights].flushes

    @property
    def updates_by_step(self) -> bool:
        """Whether weights are updated once per step of `num_microbatches` minibatches, else per round of replicas."""
        return self.weights in WEIGHT_RULES and WEIGHT_RULES[self.weights].updates_by_step

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank once, in pipeline order."""
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
        count = self.num_microbatches if num_microbatches is None else num_microbatches
        return replace(self, schedule=schedule, weights="", num_microbatches=count)

    def diff(self, other: "Plan") -> PlanDiff:
        """What changes from this plan to `other`: layers and ranks that move, stage times, memory, period, gap."""
        return diff(self, other)

    @property
    def extrapolation(self) -> str:
        """How far beyond the measured sizes the estimate's times are: `Certainty.beyond`."""
        return Certainty.beyond(self.estimate.certainty) if self.estimate else ""

    def violations(self, graph: LayerGraph, cluster: Cluster | None = None) -> list[str]:
        """Every reason why this plan cannot run on `graph` (and `cluster`), each in one line."""
        return plan_check.violations(self, graph, None if cluster is None else len(cluster.devices))

    def check(self, graph: LayerGraph, cluster: Cluster | None = None) -> "Plan":
        """Return self, or raise InputError that lists every violation."""
        if found := self.violations(graph, cluster):
            raise InputError("plan.violations", "the plan cannot run: " + "; ".join(found))
        return self

    def to_json(self) -> dict[str, Any]:
        """The plan file, which is also what `sparsepipe plan --json` prints."""
        estimate = self.estimate
        return {
            "format": FORMAT,
            "planner": self.planner,
            "period_seconds": estimate.period_seconds if estimate else None,
            "lower_bound_seconds": estimate.lower_bound_seconds if estimate else None,
            "gap": estimate.gap if estimate else None,
            **(
                {name: getattr(estimate, name) for name in _OF_LATENCY} if estimate and estimate.latency_seconds else {}
            ),
            "plan_seconds": estimate.plan_seconds if estimate else None,
            "single_device_seconds": estimate.single_device_seconds if estimate else None,
            "data_parallel_seconds": estimate.data_parallel_seconds if estimate else None,
            "voxels": estimate.size if estimate else None,
            "memory_voxels": estimate.memory_size if estimate else None,
            **({"size_unit": estimate.size_unit} if estimate and estimate.size_unit != "voxels" else {}),
            **(estimate.certainty.to_json() if estimate and estimate.certainty else {}),
            "schedule": self.schedule,
            "weights": self.weights,
            "routing": self.routing,
            "num_microbatches": self.num_microbatches,
            "accumulation": self.accumulation,
            "stages": [
                _stage_to_json(stage, estimate.stages[k] if estimate else None) for k, stage in enumerate(self.stages)
            ],
            "warnings": list(self.warnings),
            **({} if self.provenance is None else {"provenance": dict(self.provenance)}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        """Read what `to_json` wrote. Raises InputError where something is missing or of the wrong kind."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InputError("plan.malformed", f"not a plan: expected a JSON object with format {FORMAT!r}")
        if "pipelines" in document:
            raise InputError(
                "plan.several_pipelines", "the plan of several pipelines, expected that of one; Pipelines.load reads it"
            )
        try:
            plan = cls(
                tuple(_stage_from_json(entry) for entry in document["stages"]),
                text(document["schedule"], "schedule"),
                text(document["weights"], "weights"),
                integer(document["num_microbatches"], "num_microbatches"),
                text(document["routing"], "routing"),
                text(document["planner"], "planner"),
                _estimate_from_json(document),
                texts(document.get("warnings", []), "warnings"),
                integer(document.get("accumulation", 1), "accumulation"),
                _provenance(document.get("provenance")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("plan.foreign", f"not a plan this project wrote ({error!r})") from None
        if told := plan_check.beyond_bounds(plan):
            raise InputError("plan.out_of_bounds", told[0])
        return plan

    def save(self, path: Path | str) -> Path:
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Plan":
        try:
            return cls.from_json(read_json(path, what="plan"))
        except InputError as error:
            message = str(error)
            raise InputError(
                error.code, message if message.startswith(str(path)) else f"{path}: {message}", **error.fields
            ) from None

    def _repr_html_(self) -> str:
        return html.plan(self)

    def __str__(self) -> str:
        """The plan as a table for people."""
        lines = [self.summary(), *stage_table(self.stages, self.estimate.stages if self.estimate else None)]
        lines += warmups_told(self.stages)
        return "\n".join([*lines, *(f"warning: {one_line(text)}" for text in self.warnings)])

    def summary(self) -> str:
        """Planner, schedule, period and gap in one line."""
        stages, devices = (
            number_of(len(items), word) for items, word in ((self.stages, "stage"), (self.ranks, "device"))
        )
        text = f"{self.planner}: {stages} on {devices}, {self.schedule} ({self.weights})"
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


def _stage_to_json(stage: Stage, estimate: StageEstimate | None) -> dict[str, Any]:
    kinds = stage.device_types or (None,) * len(stage.ranks)
    nodes = stage.nodes or (None,) * len(stage.ranks)
    replicas = [
        {"rank": rank, "device_type": kind, "node": node, "share": share}
        for rank, kind, node, share in zip(stage.ranks, kinds, nodes, stage.shares, strict=True)
    ]
    settings = {
        "layers": list(stage.layers),
        "replicas": replicas,
        "warmup": stage.warmup,
        "recompute": stage.recompute,
    }
    return settings | (asdict(estimate) if estimate else {})


def _stage_from_json(entry: Mapping[str, Any]) -> Stage:
    replicas = entry["replicas"]
    warmup, recompute = entry.get("warmup"), entry.get("recompute", False)
    if not isinstance(recompute, bool):
        raise InputError("plan.recompute_malformed", f"recompute = {recompute!r}: expected true or false")
    return Stage(
        texts(entry["layers"], "layers of a stage"),
        tuple(integer(replica["rank"], "rank") for replica in replicas),
        tuple(integer(replica["share"], "share") for replica in replicas),
        _labels(replicas, "device_type"),
        _labels(replicas, "node"),
        None if warmup is None else integer(warmup, "warmup"),
        recompute,
    )


def _provenance(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise InputError("plan.provenance_malformed", f"provenance = {shown(value)}: expected an object, or none")
    return value


def _labels(replicas: Iterable[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    labels = [replica.get(key) for replica in replicas]
    return tuple(text(label, key) for label in labels) if all(label is not None for label in labels) else ()


def _estimate_from_json(document: Mapping[str, Any]) -> Estimate | None:
    if document.get("period_seconds") is None:
        return None
    columns = ("compute_seconds", "memory_bytes", "transfer_seconds", "averaging_seconds")

    def stage(entry: Mapping[str, Any]) -> StageEstimate:
        values = {column: number(entry[column], column) for column in columns}
        return StageEstimate(**values, sent_bytes=number(entry.get("sent_bytes", 0), "sent_bytes"))

    def known(key: str) -> float | None:
        return None if document.get(key) is None else number(document[key], key)

    return Estimate(
        number(document["period_seconds"], "period_seconds"),
        tuple(stage(entry) for entry in document["stages"]),
        known("lower_bound_seconds"),
        number(document["plan_seconds"], "plan_seconds"),
        known("single_device_seconds"),
        known("data_parallel_seconds"),
        known("voxels"),
        known("memory_voxels"),
        _size_unit(document.get("size_unit", "voxels"), "size_unit"),
        latency_seconds=known("latency_seconds"),
        latency_lower_bound_seconds=known("latency_lower_bound_seconds"),
        # Plans of before do not say how sure they are.
        certainty=None if (share := known("uncertainty")) is None else Certainty(known("extrapolation") or 1.0, share),
    )
