"""The parts of a plan: its stages, and what the planner expects of them, with their form in plan files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..errors import InputError
from ..util.io.fields import integer, number, one_of, shown, text, texts
from ..util.text.numbers import SIZE_UNITS, Certainty, listed
from .schedule_rules import WEIGHT_RULES

_size_unit = one_of(*SIZE_UNITS)
SPACE = "space"  # the sharding whose ranks share each scene
_sharding = one_of(SPACE)
_OF_LATENCY = ("latency_seconds", "latency_lower_bound_seconds")


@dataclass(frozen=True)
class Stage:
    """Describe a stage: consecutive layers on one rank, or on several ranks as replicas (data parallelism).

    Attributes:
        layers: Ids of the layers, in topological order.
        ranks: Ranks of the stage, one per replica.
        shares: Minibatches per replica in each round. With (2, 1) the first replica computes twice as many minibatches
            as the second. Default: equal shares.
        device_types: Device type of each rank, for tables and figures.
        nodes: Node of each rank, for tables and figures.
        warmup: Number of forwards before the first backward. None: computed by the schedule.
        recompute: Recomputation (activation checkpointing): store only the stage's inputs, and repeat the forward
            before the backward.
        segments: Recomputed segments (selective activation checkpointing), as (first layer, last layer) in order. Only
            their layers repeat the forward, in the backward; each segment keeps the tensors that it reads.
        sharding: "space": the ranks share each scene, cut in space, and `shares` are their shares of its work. None:
            the ranks are replicas, each with its own minibatches.

    Example:
        >>> stage = sp.Stage(("conv1", "conv2"), ranks=(0, 1), shares=(2, 1))
        >>> [stage.replica(minibatch) for minibatch in range(6)]
        [0, 1, 0, 0, 1, 0]
        >>> lean = sp.Stage(("conv1", "norm1", "relu1", "conv2"), ranks=(0,), segments=(("norm1", "relu1"),))
        >>> lean.segment_places(lean.layers)
        ((1, 3),)

    See also:
        background/how_it_works, `Plan`
    """

    layers: tuple[str, ...]
    ranks: tuple[int, ...]
    shares: tuple[int, ...] = ()
    device_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    warmup: int | None = None
    recompute: bool = False
    sharding: str | None = None
    segments: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.shares:
            object.__setattr__(self, "shares", (1,) * len(self.ranks))

    @property
    def shares_scenes(self) -> bool:
        """Return whether every rank takes part in every minibatch, with a part of each scene."""
        return self.sharding == SPACE

    @property
    def num_replicas(self) -> int:
        """Number of minibatches that its ranks compute at once."""
        return 1 if self.shares_scenes else len(self.ranks)

    def parts_of_work(self) -> tuple[float, ...]:
        """Return how much of a minibatch's work each rank does that takes part in it: all, unless they share scenes."""
        whole = sum(self.shares) if self.shares_scenes else 1
        return tuple(share / whole if self.shares_scenes else 1.0 for share in self.shares)

    @property
    def rank_turns(self) -> tuple[int, ...]:
        """Number of a round's minibatches in which each rank takes part."""
        return (1,) * len(self.ranks) if self.shares_scenes else self.shares

    @property
    def recomputes(self) -> bool:
        """Return whether some of its layers repeat their forward."""
        return self.recompute or bool(self.segments)

    @property
    def recomputed_text(self) -> str:
        """Return "all layers", or segments as "conv1 … relu2, conv5". Empty if nothing is recomputed."""
        return "all layers" if self.recompute else ", ".join(map(segment_text, self.segments))

    def segment_places(self, layers: Sequence[str]) -> tuple[tuple[int, int], ...]:
        """Return [first, end) of each recomputed segment among `layers`, the stage's in the order in which they run.

        Raises InputError for a segment with a layer of another stage, and for segments out of order or overlapping.
        """
        places: list[tuple[int, int]] = []
        index = {id: k for k, id in enumerate(layers)}
        for first, last in self.segments:
            named = f"recomputed segment {first!r} to {last!r}"
            if missing := [id for id in (first, last) if id not in index]:
                raise InputError(
                    "plan.segment_outside_stage",
                    f"{named}: layer {missing[0]!r} is not in the stage; name its first and last layer in the stage",
                )
            if index[last] < index[first]:
                raise InputError("plan.segment_reversed", f"{named}: the last layer runs before the first; swap them")
            if places and index[first] < places[-1][1]:
                raise InputError(
                    "plan.segments_overlap",
                    f"{named}: begins before the end of the segment before it; give disjoint segments in order",
                )
            places.append((index[first], index[last] + 1))
        return tuple(places)

    @cached_property
    def round(self) -> int:
        """Number of minibatches after which every replica has processed its share."""
        return 1 if self.shares_scenes else sum(self.shares)

    @cached_property
    def turns(self) -> tuple[int, ...]:
        """Return the replica (its position in `ranks`) of each minibatch of a round, by smooth weighted round-robin.

        Shares (2, 1) give (0, 1, 0) and not (0, 0, 1), so that no replica waits for a burst.
        """
        if self.shares_scenes:
            return (0,)
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
        """Return the rank that runs `minibatch`; if all do, the first."""
        return self.ranks[self.turns[minibatch % self.round]]

    def share(self, rank: int) -> int:
        return self.shares[self.ranks.index(rank)]


@dataclass(frozen=True)
class StageEstimate:
    """Estimate of one stage, per minibatch."""

    compute_seconds: float  # share-weighted, with the optimizer's step: the pace its replicas keep together
    memory_bytes: float = 0.0  # at its fullest, on one replica; interleaved, when its device with all its stages is
    transfer_seconds: float = 0.0  # its slower boundary
    averaging_seconds: float = 0.0
    sent_bytes: float = 0.0  # activations to the next stage and gradients to the one before, one minibatch


@dataclass(frozen=True)
class Estimate:
    """Estimate of a plan, with a proven bound of its distance from the optimum."""

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
        """Return the optimality gap, an upper bound as a share of the objective: 0 is provably optimal.

        That is `latency_seconds` if there is one, else `period_seconds`.
        """
        if self.latency_seconds and self.latency_lower_bound_seconds is not None:
            return max(0.0, (self.latency_seconds - self.latency_lower_bound_seconds) / self.latency_seconds)
        if self.lower_bound_seconds is None or self.period_seconds == 0:
            return None
        return max(0.0, (self.period_seconds - self.lower_bound_seconds) / self.period_seconds)


@dataclass(frozen=True)
class PositionEstimate:
    """Estimate of all stages on the same ranks together, per minibatch."""

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
        """Return whether weights are updated per step of `num_microbatches` minibatches, not per round of replicas."""
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


def segment_text(ends: tuple[str, str]) -> str:
    """Return "conv2 … relu3" for a recomputed segment, or the layer if it has only one."""
    return ends[0] if ends[0] == ends[1] else " … ".join(ends)


def estimate_of_all(estimates: Sequence[Estimate | None], known: Estimate | None) -> Estimate | None:
    """Return what is expected of several pipelines together where none waits; None where one of them has no estimate.

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
        **({"segments": [list(ends) for ends in stage.segments]} if stage.segments else {}),
        **({"sharding": stage.sharding} if stage.sharding else {}),
    }
    return settings | (asdict(estimate) if estimate else {})


def stage_from_json(entry: Mapping[str, Any]) -> Stage:
    """Read what `stage_to_json` wrote. Raises InputError, KeyError or TypeError for anything else."""
    replicas = entry["replicas"]
    warmup, recompute = entry.get("warmup"), entry.get("recompute", False)
    if not isinstance(recompute, bool):
        raise InputError("plan.recompute_malformed", f"recompute is {recompute!r}, expected true or false")
    return Stage(
        texts(entry["layers"], "layers of a stage"),
        tuple(integer(replica["rank"], "rank") for replica in replicas),
        tuple(integer(replica["share"], "share") for replica in replicas),
        _labels(replicas, "device_type"),
        _labels(replicas, "node"),
        None if warmup is None else integer(warmup, "warmup"),
        recompute,
        None if (sharding := entry.get("sharding")) is None else _sharding(sharding, "sharding"),
        _segments(entry.get("segments", [])),
    )


def _segments(entries: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(entries, list) or any(not isinstance(ends, list) or len(ends) != 2 for ends in entries):
        raise InputError(
            "plan.segments_malformed", f"segments is {shown(entries)}, expected a list of [first layer, last layer]"
        )
    return tuple((text(first, "segments"), text(last, "segments")) for first, last in entries)


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
