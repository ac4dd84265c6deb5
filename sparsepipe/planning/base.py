"""The protocol of planners: a `Problem` in, a `Plan` out."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from ..errors import InputError
from ..util.io.fields import MOST, MOST_MINIBATCHES, shown
from ..util.io.settings import Number, row
from ..util.text.numbers import number_of
from ..values.cluster import Cluster
from ..values.costs import Array, LayerTable
from ..values.graph import LayerGraph
from ..values.plan import Plan, Stage
from ..values.profile import MEMORY_QUANTILE, Profile
from ..values.schedule_rules import INTERLEAVING, SCHEDULE_RULES, WEIGHT_RULES, ScheduleRules

COMPRESSION_RATIO = row(
    Number(0, MOST, above=True), "assumed compression of activations at stage boundaries: 1/R of their bytes", unit="R"
)


@dataclass(frozen=True)
class Problem:
    """A network, the devices there are, and the schedule that the plan must obey.

    Raises InputError for an unknown schedule, fewer than 1 microbatch, and device types without a profile.
    """

    profile: Profile
    cluster: Cluster
    schedule: str = "1f1b"
    num_microbatches: int = 1
    recompute: bool = False
    forward_only: bool = False  # for inference: no backward, no update, one version of the weights and nothing else
    largest_size: float | None = None  # of the minibatch that must fit into memory; None: that of 99 % of minibatches
    easier: bool = False  # its one node stands for several: packets there are those that go between hosts

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULE_RULES:
            raise InputError(
                "schedule.unknown",
                f"unknown schedule {self.schedule!r}, expected one of {', '.join(SCHEDULE_RULES)}",
            )
        if not 1 <= self.num_microbatches <= MOST_MINIBATCHES:
            raise InputError(
                "plan.num_microbatches",
                f"{{num_microbatches}} is {shown(self.num_microbatches)}, expected 1 to {MOST_MINIBATCHES}",
                setting="num_microbatches",
            )
        for kind in self.cluster.device_types:
            self.profile.measured_sizes(kind.name)  # refuses a type that was not profiled

    @property
    def graph(self) -> LayerGraph:
        return self.profile.graph

    @property
    def rules(self) -> ScheduleRules:
        """The facts of the schedule."""
        return SCHEDULE_RULES[self.schedule]

    @property
    def synchronous(self) -> bool:
        """Return whether a step of `num_microbatches` ends in a flush."""
        return WEIGHT_RULES[self.rules.weights[0]].flushes

    @cached_property
    def size(self) -> float:
        """Size of the minibatch that times are planned for."""
        return self.profile.size()

    @cached_property
    def memory_size(self) -> float:
        """Size of the minibatch that must fit into memory."""
        return self.largest_size or self.profile.size(MEMORY_QUANTILE)

    @cached_property
    def table(self) -> LayerTable:
        """Costs at two voxel counts: column 0 the mean, for times; column 1 a high quantile, for memory."""
        counts = (self.size, self.memory_size)
        kinds = tuple(kind.name for kind in self.cluster.device_types)
        table = LayerTable.of(self.profile, counts, kinds)
        return table.of_forwards() if self.forward_only else table

    @property
    def crossing_bytes(self) -> Array:
        """Bytes of each layer's output when it goes from one device to another, at least: [L]."""
        between_hosts = self.easier or len(self.cluster.nodes) > 1
        sizes: Array = (self.table.between_hosts if between_hosts else self.table.within_host).outputs[:, 0]
        return sizes

    @cached_property
    def _of_profile(self) -> tuple[str, ...]:
        return self.profile.warnings

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The layers that stages hold: all except those that stand for loading the data."""
        inputs = self.graph.input_layers
        return tuple(k for k in range(len(self.graph.layers)) if k not in inputs)

    def memory_limit(self, stage: Stage) -> float:
        """Return the bytes of the smallest device that serves a stage."""
        return min(self.cluster.devices[rank].type.memory_bytes for rank in stage.ranks)

    def total_seconds(self, device_type: str) -> float:
        """Forward, and unless `forward_only` backward, of the whole network on one device."""
        return float(self.table.seconds[device_type][:, 0].sum())

    def alone(self, device_type: str) -> Array:
        """Seconds per minibatch of each layer on one device: forward, backward and its part of the optimizer's step."""
        minibatches = self.num_microbatches if self.synchronous else 1  # of an update
        update = self.table.update_rates[device_type] * self.table.parameter_bytes
        seconds: Array = self.table.seconds[device_type][:, 0] + update / minibatches
        return seconds

    def stage(
        self, layers: Iterable[int], ranks: Iterable[int], shares: Iterable[int] = (), *, recompute: bool | None = None
    ) -> Stage:
        """A Stage with the names of its layers, device types and nodes."""
        ranks = tuple(ranks)
        devices = [self.cluster.devices[rank] for rank in ranks]
        return Stage(
            tuple(self.graph.layers[k].id for k in sorted(layers)),
            ranks,
            tuple(shares),
            tuple(device.type.name for device in devices),
            tuple(device.node.name for device in devices),
            recompute=self.recompute if recompute is None else recompute,
        )

    def plan(self, stages: Iterable[Stage], planner: str, warnings: Iterable[str] = ()) -> Plan:
        """A Plan under this problem's schedule, without an estimate, with its profile's warnings."""
        return Plan(
            tuple(stages),
            self.schedule,
            num_microbatches=self.num_microbatches,
            planner=planner,
            warnings=(*warnings, *self._of_profile),
        )


def check_interleaves(schedule: str, stages_per_device: int) -> None:
    """Raise InputError for more or fewer stages per device than a schedule allows."""
    rules = SCHEDULE_RULES.get(schedule)
    if rules is None or not (reason := rules.check_stages_per_rank(stages_per_device)):
        return
    if not rules.interleaves:
        reason += f"; {', '.join(INTERLEAVING)} do"
    elif stages_per_device < rules.stages_per_rank[0]:
        reason += "; planner 'model-parallel' does"
    stages = number_of(stages_per_device, "stage")
    raise InputError("schedule.stages_per_device", f"{stages} per device: schedule {schedule!r} {reason}")


class Planner(Protocol):
    """Turns a Problem into a Plan, whose estimate is by the planner's own cost model."""

    name: str

    def plan(self, problem: Problem) -> Plan: ...


def with_seconds(plan: Plan, seconds: float) -> Plan:
    """The plan with the time that planning took."""
    assert plan.estimate is not None
    return replace(plan, estimate=replace(plan.estimate, plan_seconds=seconds))
