"""Replay: a stage that sleeps for its profiled times and moves tensors of its profiled sizes over links as slow.

Everything else is the real runtime: processes, action lists, packets, recorder. So a cluster nobody here owns, of
devices profiled elsewhere, runs on a laptop; and with layers that cost nothing, what is left is the runtime's overhead.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...cluster import Cluster
from ...costs import LayerTable, averaging_time
from ...plan import Plan
from ...profile import Profile
from ...schedule import compile_until_steady, weights_share
from ..config import RunConfig
from ..replication.replica_group import ReplicaGroup
from ..stages.loss import Outcome
from ..stages.network_stage import InFlight, Output
from ..stages.position import Position
from ..training_state.weights import Version
from ..transport.emulated_links import Links
from ..transport.packet import BACKWARD, FORWARD, Packet, Slot, boundary_id

ENGINE = "replay"
_MINIBATCHES = 50  # of a replay that is not told how many


@dataclass(frozen=True)
class _Name:
    """What a record says of the network or the engine."""

    name: str
    num_classes: int = 1


class ReplayWorkload:
    """A profile and a cluster in the place of a network, an engine and data."""

    def __init__(self, run_dir: Path, config: RunConfig, profile: Profile, cluster: Cluster) -> None:
        self.config, self.profile, self.cluster = config, profile, cluster
        self.links = Links(run_dir / "logs" / ".ports", cluster)
        self.network, self.engine = _Name(config.model), _Name(ENGINE)
        self.training, self.validation = self, None
        self.synthetic = True
        self.total_minibatches = self.epoch_minibatches = config.minibatches or _MINIBATCHES

    @classmethod
    def open(cls, run_dir: Path, config: RunConfig) -> "ReplayWorkload":
        """Raises InputError where the run's folder holds no profile or cluster."""
        return cls(run_dir, config, Profile.load(run_dir / "profile.json"), Cluster.load(run_dir / "cluster.toml"))

    def check(self, plan: Plan) -> None:
        plan.check(self.profile.graph, self.cluster)

    def segments(self, done: int = 0) -> list[tuple[int, int, int]]:
        return [(0, done, self.total_minibatches - done)] if done < self.total_minibatches else []

    @property
    def num_samples(self) -> int:
        return self.total_minibatches * self.config.batch_size

    def segment_lengths(self, done: int = 0) -> set[int]:
        return {count for _, _, count in self.segments(done)}

    def order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        size = self.config.batch_size
        return tuple(tuple(range(m * size, (m + 1) * size)) for m in range(self.total_minibatches))

    per_voxel = False

    def labels(self, dataset: Any, indices: Sequence[int], epoch: int) -> Tensor:
        return torch.zeros(len(indices), dtype=torch.int64)

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> "ReplayBatch":
        """Stand in for the minibatch that starts with sample `indices[0]`."""
        return ReplayBatch(int(self.voxels[indices[0] // self.config.batch_size]))

    def runner(self, plan: Plan, position: Position) -> "ReplayRunner":
        return ReplayRunner(self, plan, position.stage, position.rank)

    @cached_property
    def voxels(self) -> list[float]:
        """Active voxels of each minibatch: those of the profile's minibatches, again and again."""
        counts = self.profile.typical_sizes
        return [counts[m % len(counts)] for m in range(self.total_minibatches)]


@dataclass(frozen=True)
class ReplayBatch:
    num_voxels: int


class ReplayRunner:
    """A stage in the shape of StageRunner."""

    def __init__(self, workload: ReplayWorkload, plan: Plan, stage: int, rank: int) -> None:
        self.module, self.recompute = nn.Module(), False
        self.splits = plan.rules.splits_backward
        self.is_first, self.is_last = stage == 0, stage == len(plan.stages) - 1
        self.id_before, self.id_after = (boundary_id([f"replay {cut}"]) for cut in (stage, stage + 1))
        self._rank, self._stage, self._plan, self._links = rank, stage, plan, workload.links
        profile, own = workload.profile, plan.stages[stage]
        kind = workload.cluster.devices[rank].type.name
        self._places = {count: k for k, count in enumerate(sorted(set(workload.voxels)))}
        self._voxels = workload.voxels
        table = LayerTable.of(profile, sorted(self._places), [kind])
        layers = [profile.graph.index[id] for id in own.layers]
        before = set(profile.graph.input_layers) | {
            profile.graph.index[id] for earlier in plan.stages[:stage] for id in earlier.layers
        }
        self._forward = table.stage_forward(layers, kind)
        whole = table.backward[kind][layers].sum(axis=0)
        self._backward = whole + (self._forward if own.recompute else 0.0)
        self._backward_weight = weights_share(plan, stage) * whole
        self._backward_input = self._backward - self._backward_weight
        self._bytes_after = table.payload(before | set(layers))[0]
        self._bytes_before = table.payload(before)[1]
        # One tensor for all packets: new memory for each would take the time of bringing its pages in.
        self._rows = torch.zeros(int(max(self._bytes_after.max(), self._bytes_before.max())), dtype=torch.uint8)
        self._averaging = averaging_time(workload.cluster, own.ranks, float(table.parameter_bytes[layers].sum()))
        versions = compile_until_steady(plan).num_versions(stage, rank)
        self.step_seconds = table.update_time(layers, [kind], kept=versions > 1)

    def begin(self, *, training: bool) -> None:
        """Nothing is kept between stretches."""

    def forward(self, arrived: Any, version: Version, minibatch: int) -> tuple[InFlight, dict[str, Any]]:
        _sleep(self._forward[self._place(minibatch)])
        voxels = arrived.num_voxels if self.is_first else arrived.voxels
        return InFlight(minibatch, version, (), (), voxels), {}

    def leave(
        self, outputs: Mapping[str, Any], minibatch: int, voxels: int
    ) -> tuple[Packet, tuple[Output, ...], tuple[Tensor | None, ...]]:
        num_bytes = int(self._bytes_after[self._place(minibatch)])
        return self._packet(FORWARD, minibatch, self.id_after, num_bytes, voxels), (), ()

    def loss(self, outputs: Mapping[str, Any], labels: Tensor, *, samples: int) -> tuple[Tensor, Outcome]:
        return torch.zeros(()), Outcome(0.0, samples, samples, 0)

    def backward(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor], list[Tensor]]:
        _sleep(self._backward[self._place(flight.minibatch)])
        return [], []

    def backward_input(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor], None]:
        _sleep(self._backward_input[self._place(flight.minibatch)])
        return [], None

    def backward_weight(self, flight: InFlight, later: None) -> list[Tensor]:
        _sleep(self._backward_weight[self._place(flight.minibatch)])
        return []

    def answer(self, flight: InFlight, gradients: Sequence[Tensor]) -> Packet:
        num_bytes = int(self._bytes_before[self._place(flight.minibatch)])
        return self._packet(BACKWARD, flight.minibatch, self.id_before, num_bytes, flight.voxels)

    def check_answer(self, flight: InFlight, packet: Packet) -> list[Tensor]:
        return []

    def average(
        self, gradients: Sequence[Tensor], count: int, replicas: ReplicaGroup | None, *, what: str
    ) -> list[Tensor]:
        if replicas is not None:
            replicas.sum(torch.zeros(1), what=what)
        _sleep(self._averaging)
        return []

    def _packet(self, direction: int, minibatch: int, boundary: int, num_bytes: int, voxels: int) -> Packet:
        """So many bytes, of no meaning, on their way over the cluster's link."""
        forward = direction == FORWARD
        peer = self._plan.stages[self._stage + (1 if forward else -1)].replica(minibatch)
        own = peer == self._rank  # what stays on a device takes no time
        arrives = 0.0 if own else self._links.send(self._rank, peer, num_bytes, forward=forward)
        return Packet(direction, minibatch, boundary, (Slot(self._rows[:num_bytes]),), voxels=voxels, arrives=arrives)

    def _place(self, minibatch: int) -> int:
        return self._places[self._voxels[minibatch]]


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
