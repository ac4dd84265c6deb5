"""The parts of a plan: its stages, and what the planner expects of them, with their form in plan files.

And its checks: everything that is wrong with a plan by itself, for a layer graph, or for a number of devices.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..errors import InputError
from ..util.io.fields import MOST_DEVICES, MOST_MINIBATCHES, integer, number, one_of, shown, text, texts
from ..util.text.counting import listed, number_of
from ..util.text.sizes import SIZE_UNITS, Certainty
from .graph import LayerGraph
from .schedule_rules import INTERLEAVING, SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES

_size_unit = one_of(*SIZE_UNITS)
_MOST_NAMED = 4  # layers in a message
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

        That is `latency_seconds` if there is one, else `period_seconds`.
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
class StagePlan:
    """The stages of a plan and their schedule, and what follows from these: all that the checks ask for.

    `plan.Plan` adds what it is to be several pipelines.
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

    @property
    def flushes(self) -> bool:
        """Return whether the pipeline is empty at every update of the weights."""
        return self.weights in WEIGHT_RULES and WEIGHT_RULES[self.weights].flushes

    @property
    def updates_by_step(self) -> bool:
        """Return whether weights are updated once per step of `num_microbatches` minibatches, else per round of
        replicas.
        """
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
        positions_by_layers: dict[frozenset[int], list[int]] = {}
        for k, stage in enumerate(self.stages):
            positions_by_layers.setdefault(frozenset(stage.ranks), []).append(k)
        return tuple(map(tuple, positions_by_layers.values()))

    @property
    def pipeline_size(self) -> int:
        """Places in the pipeline, each a rank with its replicas: as many as stages unless stages share ranks."""
        return len(self.positions)

    @property
    def stages_per_rank(self) -> int:
        """Stages that each rank serves: 1 unless stages share ranks (torch: local stages, Megatron: virtual ones)."""
        return max(map(len, self.positions), default=1)


def estimate_of_all(estimates: Sequence[Estimate | None], known: Estimate | None) -> Estimate | None:
    """What is expected of several pipelines together where none waits; None if one of them has no estimate.

    `known`: the lower bound, planning time and data-parallel baseline of the whole.
    """
    each = [estimate for estimate in estimates if estimate is not None and estimate.period_seconds]
    if len(each) < len(estimates):
        return None
    alone = [estimate.single_device_seconds for estimate in each if estimate.single_device_seconds is not None]
    return Estimate(
        1 / sum(1 / estimate.period_seconds for estimate in each),
        tuple(stage for estimate in each for stage in estimate.stages),
        known.lower_bound_seconds if known else None,
        known.plan_seconds if known else 0.0,
        min(alone, default=None),
        known.data_parallel_seconds if known else None,
        each[0].size,
        each[0].memory_size,
        each[0].size_unit,
    )


def estimate_to_json(estimate: Estimate | None) -> dict[str, Any]:
    """Return the entries of a plan file that say what is expected of the whole plan."""
    names = ("period_seconds", "lower_bound_seconds", "gap")
    latency = _OF_LATENCY if estimate and estimate.latency_seconds else ()
    names = (*names, *latency, "plan_seconds", "single_device_seconds", "data_parallel_seconds")
    return {
        **{name: getattr(estimate, name, None) for name in names},
        "voxels": estimate.size if estimate else None,
        "memory_voxels": estimate.memory_size if estimate else None,
        **({"size_unit": estimate.size_unit} if estimate and estimate.size_unit != "voxels" else {}),
        **(estimate.certainty.to_json() if estimate and estimate.certainty else {}),
    }


def stage_to_json(stage: Stage, estimate: StageEstimate | None) -> dict[str, Any]:
    """The entry of a stage in a plan file, with what is expected of it."""
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


def stage_from_json(entry: Mapping[str, Any]) -> Stage:
    """Read what `stage_to_json` wrote. Raises InputError, KeyError or TypeError for anything else."""
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


def estimate_from_json(document: Mapping[str, Any]) -> Estimate | None:
    """Read the estimate in a plan file; None if it has none. Raises as `stage_from_json` does."""
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


def _labels(replicas: Iterable[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    labels = [replica.get(key) for replica in replicas]
    return tuple(text(label, key) for label in labels) if all(label is not None for label in labels) else ()


def violations(plan: StagePlan, graph: LayerGraph, num_devices: int | None = None) -> list[str]:
    """Return every reason why `plan` cannot run on `graph`, and on a cluster of `num_devices`, a line each."""
    faults = [*_of_settings(plan), *_of_stages(plan), *_of_placement(plan), *_of_layers(plan, graph)]
    if num_devices is not None:
        faults += [
            f"rank {rank} is not in a cluster of {number_of(num_devices, 'device')}"
            for rank in plan.ranks
            if rank >= num_devices
        ]
    return faults


def overlaps(plans: Sequence[StagePlan]) -> list[str]:
    """Return which ranks are in more than one pipeline, a line each."""
    shared_ranks, owner = [], dict[int, int]()
    for k, plan in enumerate(plans):
        for rank in plan.ranks:
            if owner.setdefault(rank, k) != k:
                shared_ranks.append(f"rank {rank} is in pipelines {owner[rank]} and {k}: expected in one")
    return shared_ranks


def unlike_layers(plans: Sequence[StagePlan]) -> list[str]:
    """Return what one pipeline has and another has not, of the first that differs from pipeline 0."""
    for k, plan in enumerate(plans[1:], start=1):
        first, own_layers = plans[0].layers, plan.layers
        for has, lacks, lacking in ((0, k, set(first) - set(own_layers)), (k, 0, set(own_layers) - set(first))):
            if lacking:
                layers = [id for id in plans[has].layers if id in lacking]
                more = f" and {len(layers) - _MOST_NAMED} more" if len(layers) > _MOST_NAMED else ""
                named = ", ".join(layers[:_MOST_NAMED])
                reason = f"pipeline {lacks} lacks layers that pipeline {has} has ({named}{more})"
                return [f"{reason}: plan all for the same network"]
    return []


def beyond_bounds(plan: StagePlan) -> list[str]:
    """Return which of a plan's numbers, or of their products, would fill the memory before anything is run."""
    faults = []
    if not 1 <= plan.num_microbatches <= MOST_MINIBATCHES:
        count = shown(plan.num_microbatches)
        faults.append(f"num_microbatches is {count}, expected 1 or more, at most {MOST_MINIBATCHES}")
    for k, stage in enumerate(plan.stages):
        if stage.round > MOST_DEVICES:
            faults.append(f"stage {k} has shares of {shown(stage.round)} together, expected {MOST_DEVICES} at most")
        elif stage.round * plan.accumulation > MOST_MINIBATCHES:
            what = f"stage {k} updates after {shown(stage.round * plan.accumulation)} minibatches"
            faults.append(
                f"{what}, expected {MOST_MINIBATCHES} at most: accumulate fewer rounds than {plan.accumulation}"
            )
        if (stage.warmup or 0) * len(stage.ranks) > MOST_MINIBATCHES:
            what = f"stage {k} has a warm-up of {shown(stage.warmup)} on {number_of(len(stage.ranks), 'rank')}"
            faults.append(f"{what}, expected {MOST_MINIBATCHES} minibatches at most together")
    return faults


def _of_settings(plan: StagePlan) -> list[str]:
    """The schedule, its weights, and numbers that stand for the whole plan."""
    faults = []
    if plan.schedule not in WEIGHT_POLICIES:
        faults.append(f"schedule {plan.schedule!r} is unknown, expected one of {', '.join(WEIGHT_POLICIES)}")
    elif plan.weights not in WEIGHT_POLICIES[plan.schedule]:
        allowed = " or ".join(WEIGHT_POLICIES[plan.schedule])
        faults.append(f"weights {plan.weights!r} do not go with schedule {plan.schedule!r}, expected {allowed}")
    faults += beyond_bounds(plan)
    if plan.accumulation < 1:
        faults.append(f"accumulation is {plan.accumulation}, expected 1 or more rounds")
    elif plan.accumulation > 1 and plan.updates_by_step:
        faults.append(f"accumulation goes with asynchronous rounds; with {plan.weights} set num_microbatches")
    together = plan.weights in WEIGHT_RULES and WEIGHT_RULES[plan.weights].same_everywhere
    if together and len({stage.round for stage in plan.stages}) > 1:
        faults.append(f"weights {plan.weights!r} need stages that update equally often: replicas of equal rounds")
    return faults


def _of_stages(plan: StagePlan) -> list[str]:
    """Each stage by itself: its layers, ranks, shares and warm-up."""
    faults = [] if plan.stages else ["it has no stages"]
    for k, stage in enumerate(plan.stages):
        if not stage.layers:
            faults.append(f"stage {k} has no layers")
        if not stage.ranks:
            faults.append(f"stage {k} has no ranks")
        if len(stage.shares) != len(stage.ranks):
            faults.append(f"stage {k} has {len(stage.shares)} shares for {number_of(len(stage.ranks), 'rank')}")
        elif any(share < 1 for share in stage.shares):
            faults.append(f"stage {k} has shares {stage.shares}, expected 1 or more each")
        if stage.warmup is not None and stage.warmup < 0:
            faults.append(f"stage {k} has a warm-up of {stage.warmup}, expected 0 or more")
        twice = sorted(rank for rank, count in Counter(stage.ranks).items() if count > 1)
        faults += [f"rank {rank} serves more than one replica of stage {k}" for rank in twice]
    faults += [f"rank {rank} is negative" for rank in plan.ranks if rank < 0]
    return faults


def _of_placement(plan: StagePlan) -> list[str]:
    """What stages that share ranks ask for: a schedule that knows how, and its placement over the same replicas."""
    rules, count = SCHEDULE_RULES.get(plan.schedule), plan.stages_per_rank
    shared = [rank for rank in plan.ranks if len(plan.stages_of(rank)) > 1]
    if shared and (rules is None or not rules.interleaves or (plan.updates_by_step and not plan.flushes)):
        return [
            f"rank {rank} serves more than one replica, stages {listed(plan.stages_of(rank))}: only schedules "
            f"{', '.join(map(repr, INTERLEAVING))} interleave stages, and not with weights '2bw'"
            for rank in sorted(shared)
        ]
    if rules is None or not (shared or rules.check_stages_per_rank(count)):
        return []
    size, first = plan.pipeline_size, plan.stages[: plan.pipeline_size]
    if len(plan.stages) % size or sorted(rank for stage in first for rank in stage.ranks) != sorted(plan.ranks):
        return [f"interleaved stages come in whole laps over all ranks, each once; {len(plan.stages)} do not"]
    if reason := rules.check_stages_per_rank(count):
        return [f"schedule {plan.schedule!r} {reason}, this plan {count}"]
    faults = []
    for k, stage in enumerate(plan.stages):
        before = rules.position(k, size)
        if stage.ranks != first[before].ranks:
            faults.append(f"stage {k} is on ranks {stage.ranks}, expected {first[before].ranks} as stage {before}")
        if not plan.flushes and len(set(stage.shares)) > 1:
            faults.append(f"stage {k} has shares {stage.shares}, without flushes interleaved stages need equal ones")
        if stage.shares != first[0].shares:
            faults.append(f"stage {k} has shares {stage.shares}, interleaved stages need those of stage 0")
        if stage.warmup is not None:
            faults.append(f"stage {k} has a warm-up of its own, interleaved stages have the one of their laps")
    return faults


def _of_layers(plan: StagePlan, graph: LayerGraph) -> list[str]:
    """Every layer of the graph is in one stage, and no stage feeds an earlier one."""
    faults: list[str] = []
    stage_of_layer: dict[str, int] = {}
    for k, stage in enumerate(plan.stages):
        for id in stage.layers:
            if id in stage_of_layer:
                faults.append(f"layer {id!r} is in stage {stage_of_layer[id]} and again in stage {k}")
            stage_of_layer.setdefault(id, k)
    known = {layer.id for k, layer in enumerate(graph.layers) if k not in graph.input_layers}
    if unknown := [id for id in stage_of_layer if id not in known]:
        faults.append(
            f"it is for a different graph: {len(unknown)} of its layers ({_few(unknown)}) are not in this one"
        )
    if missing := [layer.id for layer in graph.layers if layer.id in known and layer.id not in stage_of_layer]:
        faults.append(
            f"{number_of(len(missing), 'layer')} of the graph {'is' if len(missing) == 1 else 'are'} in no stage "
            f"({_few(missing)})"
        )
    for i, j in graph.edges:
        a, b = graph.layers[i].id, graph.layers[j].id
        if stage_of_layer.get(a, 0) > stage_of_layer.get(b, len(plan.stages)):
            faults.append(
                f"layer {a!r} of stage {stage_of_layer[a]} feeds {b!r} of the earlier stage {stage_of_layer[b]}"
            )
    return faults


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
