"""Replay: a stage that sleeps for its profiled times and moves tensors of its profiled sizes over links as slow.

Everything else is the real runtime: processes, action lists, packets, recorder. So a cluster no one here owns, of
devices profiled elsewhere, runs on a laptop; and with layers that cost nothing, what is left is the runtime's overhead.
On several hosts packets cross their network, too, as many bytes as sockets would carry between the cluster's nodes: a
transfer takes as long as its link says, or as the network does if that is slower.

Links slower than those of this machine: when a packet that leaves now would be there, as the simulator has it.

A port carries one transfer after the other, whoever sends them, so every rank must know when each is free:

    ranks of one host       in a file that all map: seconds of time.monotonic, which they share
    ranks of several        in the job's store, by the monotonic clock of its host; how far that is ahead of a rank's
                            own each rank has told there

Between hosts what a packet carries crosses their network meanwhile: it has come when both are over.
"""

import fcntl
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...networks.batch_norm import Group
from ...networks.losses import CrossEntropy, Loss, Outcome, Tally
from ...records.run_progress import REPLAY
from ...util.io.files import lock_file
from ...values.cluster import Cluster
from ...values.costs import Array, LayerTable, MergeCosts, averaging_time, network_time, ports
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.replication import sent_share
from ...values.replication.base import SERVER, Merge
from ...values.schedule import Op, Program, compile_until_steady, weights_share
from ..config import RunConfig
from ..failures import translated
from ..processes.identity import Identity
from ..processes.process import Process
from ..processes.signs_of_life import mapped_file
from ..rendezvous.store import KeyedStore
from ..stages.base import InFlight, Outputs, PackedOutputs, Position
from ..training_state.checkpoint import Checkpoint
from ..training_state.weights import Version
from ..transport.packet import BACKWARD, FORWARD, Packet, Slot, boundary_id
from .base import Rows


class Links(Protocol):
    """The links of a cluster."""

    def send(self, device: int, peer: int, num_bytes: int, *, forward: bool, to: int) -> float:
        """Start a transfer from a device to another one as soon as both ports are free.

        Returns when it ends, by the time.monotonic of the rank `to`, which receives it. Raises DeadlinePassed or
        PeerLost.
        """
        ...


def links_of(process: Process, cluster: Cluster, *, run_dir: Path) -> Links:
    """Return what this rank knows of a cluster's links, together with the others of its job. They all come here."""
    if len(process.hosts) > 1 and isinstance(process.store, KeyedStore):
        return LinksOverHosts(process.store.again(), cluster, rank=process.rank)
    return LinksOfHost(run_dir / "logs" / ".ports", cluster)


class LinksOfHost:
    """The links of a cluster whose ranks are processes of one host."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self._path, self._cluster = path, cluster
        devices, directions = range(len(cluster.devices)), (True, False)
        pairs = [(a, b, forward) for a in devices for b in devices if a != b for forward in directions]
        names = dict.fromkeys(port for pair in pairs for port in ports(cluster, *pair[:2], forward=pair[2]))
        self._place = {port: k for k, port in enumerate(names)}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._free = np.frombuffer(mapped_file(path, 8 * max(len(names), 1)))

    def send(self, device: int, peer: int, num_bytes: int, *, forward: bool, to: int = 0) -> float:
        both = [self._place[port] for port in ports(self._cluster, device, peer, forward=forward)]
        seconds = self._cluster.link(device, peer).transfer_time(num_bytes)
        with self._path.open("rb") as file:
            lock_file(file.fileno(), fcntl.LOCK_EX, path=self._path, remedy="choose a run folder on another disk")
            end = max(time.monotonic(), *self._free[both]) + seconds
            self._free[both] = end
        return float(end)


class LinksOverHosts:
    """The links of a cluster whose ranks are on several hosts.

    Each transfer asks the store once, for about as long as a word takes there and back, and as far as half of that are
    the clocks distinguished.
    """

    def __init__(self, store: KeyedStore, cluster: Cluster, *, rank: int) -> None:
        """`store`: a connection to it of this rank's own. Raises PeerLost."""
        self._store, self._cluster, self._rank = store, cluster, rank
        self._ahead: dict[int, float] = {}  # of the receivers' clocks: the store's
        with self._told():
            store.set(_clock_of(rank), repr(store.ahead_of_here(monotonic=True)))

    def send(self, device: int, peer: int, num_bytes: int, *, forward: bool, to: int) -> float:
        both = [f"port/{'/'.join(map(str, port))}" for port in ports(self._cluster, device, peer, forward=forward)]
        with self._told():
            end = self._store.occupy(both, self._cluster.link(device, peer).transfer_time(num_bytes))
            if to not in self._ahead:
                self._ahead[to] = float(self._store.get(_clock_of(to)))
        return end - self._ahead[to]

    def _told(self) -> AbstractContextManager[None]:
        return translated(f"rank {self._rank} waited for the store, which has the links' ports", peer=-1)


def _clock_of(rank: int) -> str:
    return f"clock/{rank}"


_MINIBATCHES = 50  # of a replay that is not told how many


class _SleptBatch(NamedTuple):
    """A minibatch: its size, and nothing else."""

    size: int


class _SleptSamples:
    """Stands in for a data set."""

    def __init__(self, sizes: Sequence[float], batch_size: int) -> None:
        self._sizes, self._batch_size = sizes, batch_size

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> _SleptBatch:
        """Return the minibatch that starts with sample `indices[0]`."""
        return _SleptBatch(int(self._sizes[indices[0] // self._batch_size]))


@dataclass(frozen=True)
class OtherPipelines:
    """Of a replay of several pipelines: which one the job is, and what weights cost between them."""

    pipeline: int
    costs: MergeCosts

    @classmethod
    def of(cls, plan: Plan, pipeline: int, profile: Profile, cluster: Cluster) -> "OtherPipelines":
        """The weights of a layer are as many bytes as the profile says, fewer where the rule encodes them."""
        share = sent_share(plan.rule)
        return cls(pipeline, MergeCosts(plan.pipelines, cluster, profile.graph, share=share))

    def seconds(self, merge: Merge, stage: int) -> float:
        """Seconds from when the parts of all are there until a stage of this pipeline has the result of a merge.

        As they are simulated (planning/simulator/exchange.py), but for a parameter server's port, which is free here.
        """
        place = self.pipeline, stage
        if merge.partner == SERVER:
            return 2 * self.costs.server_seconds(place)
        members = merge.members if merge.partner is None else (*merge.members, merge.partner)
        return self.costs.seconds_to_result(place, members)


class Replay:
    """A profile and a cluster in the place of a network, an engine and data."""

    facts = REPLAY
    synthetic = True
    num_classes = 1
    state_names = None
    labels_are_read = False
    reading_processes = 0

    def __init__(
        self,
        run_dir: Path,
        config: RunConfig,
        profile: Profile,
        cluster: Cluster,
        *,
        ranks: Sequence[int] = (),
        others: OtherPipelines | None = None,
    ) -> None:
        """`ranks`: which devices of the cluster this job's ranks are, if they are some of it alone. `others`: where
        it is one pipeline of several.
        """
        self.others = others
        self.config, self.profile, self.cluster = config, profile, cluster
        self._ranks, self._run_dir = tuple(ranks), run_dir
        self._links: Links | None = None
        self.total_minibatches = config.minibatches or _MINIBATCHES
        sizes = profile.typical_sizes
        self.sizes = [sizes[m % len(sizes)] for m in range(self.total_minibatches)]  # of each minibatch, in the profile
        self.training = self.validation = _SleptSamples(self.sizes, config.batch_size)

    @classmethod
    def open(cls, run_dir: Path, config: RunConfig) -> "Replay":
        """Raises InputError if the run's folder holds no profile or cluster."""
        profile, cluster = Profile.load(run_dir / "profile.json"), Cluster.load(run_dir / "cluster.toml")
        identity, others = Identity.from_environment(), None
        if identity.pipeline is not None:
            plan = Plan.load(run_dir.parent.parent / "plan.json")
            others = OtherPipelines.of(plan, identity.pipeline, profile, cluster)
        return cls(run_dir, config, profile, cluster, ranks=identity.ranks, others=others)

    def device(self, rank: int) -> int:
        """Return which device of the cluster a rank of this job is."""
        return self._ranks[rank] if self._ranks else rank

    def links(self, process: Process) -> Links:
        """Return what carries packets between the devices. All ranks of the job come here."""
        self._links = self._links or links_of(process, self.cluster, run_dir=self._run_dir)
        return self._links

    @property
    def model(self) -> str:
        return self.config.model

    @property
    def engine_name(self) -> str:
        return self.config.engine

    @property
    def size_unit(self) -> str:
        return self.profile.size_unit

    @property
    def epoch_minibatches(self) -> int:
        return self.total_minibatches

    @property
    def mean_samples(self) -> None:
        return None

    @property
    def num_samples(self) -> int:
        return self.total_minibatches * self.config.batch_size

    def sample_name(self, index: int) -> str:
        return str(index)

    @property
    def data_digest(self) -> str:
        return ""  # nothing is read

    def check(self, plan: Plan) -> None:
        plan.check(self.profile.graph, self.cluster)

    def order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        size = self.config.batch_size
        return tuple(tuple(range(m * size, (m + 1) * size)) for m in range(self.total_minibatches))

    def validation_order(self) -> tuple[tuple[int, ...], ...]:
        return self.order(0)

    def parts(self, samples: Any, indices: Sequence[int]) -> tuple[Sequence[int], ...]:
        return (indices,)

    def begin_batch(self, samples: Any, indices: Sequence[int], epoch: int) -> Any:
        return samples.batch(indices, epoch=epoch)

    def labels(self, samples: Any, indices: Sequence[int], epoch: int) -> Tensor:
        return torch.zeros(len(indices), dtype=torch.int64)

    def rows(self, samples: Any, indices: Sequence[int], output: Any) -> Rows:
        return Rows(output[: len(indices)], torch.tensor(tuple(indices), dtype=torch.int64))

    def addresses(self) -> dict[str, Any]:
        return {}

    @property
    def score_names(self) -> tuple[str, ...]:
        return ()

    def scores(self, found: Checkpoint) -> dict[str, float | None]:
        return {}

    @property
    def loss(self) -> Loss:
        return CrossEntropy(self.num_classes)

    def tally(self) -> Tally:
        return Tally(self.loss)

    def runner(self, plan: Plan, position: Position) -> "SleptStage":
        return SleptStage(self, plan, position.stage, position.rank, self.links(position.process))


@dataclass(frozen=True)
class StageSeconds:
    """Time of a stage for a minibatch, by the index of its size; `backward_weight`: that part of backward."""

    forward: Array
    backward: Array
    backward_weight: Array

    @property
    def backward_input(self) -> Array:
        return self.backward - self.backward_weight


class StagePackets:
    """Packets of a stage: meaningless bytes of the profiled size, over the link to the stage that needs them."""

    def __init__(
        self,
        program: Program,
        workload: Replay,
        place: tuple[int, int],
        links: Links,
        bytes_after: Sequence[Array],
        bytes_before: Sequence[Array],
    ) -> None:
        """`place`: stage and rank. Bytes are by the place of a minibatch's size, within a node and between nodes."""
        self.program, self.workload, self.links = program, workload, links
        self.stage, self.rank = place
        self.num_bytes = {Op.FORWARD: bytes_after, Op.BACKWARD: bytes_before}
        # One tensor for all packets: new memory for each would take the time of bringing its pages in.
        self._rows = torch.zeros(max(int(own.max()) for own in (*bytes_after, *bytes_before)), dtype=torch.uint8)

    def send(self, op: Op, minibatch: int, place: int, boundary: int, size: int) -> Packet:
        """Return the packet of a minibatch, whose size has this `place`, with the time when it arrives."""
        target = self.program.target(self.stage, op)
        assert target is not None, "stages at the ends send nothing outwards"
        here, devices = self.workload.device(self.rank), self.workload.cluster.devices
        arrives, num_bytes, forward = 0.0, 0, op is Op.FORWARD
        sends = self.rank == self.program.rank_of(self.stage, minibatch)  # of ranks that share scenes, the first
        for peer in self.program.receivers(target, minibatch) if sends else ():
            there = self.workload.device(peer)
            num_bytes = int(self.num_bytes[op][devices[here].node.name != devices[there].node.name][place])
            if here != there:  # what stays on a device takes no time
                arrives = max(arrives, self.links.send(here, there, num_bytes, forward=forward, to=peer))
        direction, slot = FORWARD if forward else BACKWARD, Slot(self._rows[:num_bytes])
        return Packet(direction, minibatch, boundary, (slot,), size=size, arrives=arrives)


class SleptStage:
    """Sleeps for as long as the profile says that a stage's layers take: the member of `StageRunner` for a replay."""

    def __init__(self, workload: Replay, plan: Plan, stage: int, rank: int, links: Links) -> None:
        self.is_first, self.is_last = stage == 0, stage == len(plan.stages) - 1
        self.reads_samples = self.is_first
        self.id_before, self.id_after = (boundary_id([f"replay {cut}"]) for cut in (stage, stage + 1))
        program, profile, own = compile_until_steady(plan), workload.profile, plan.stages[stage]
        kind = workload.cluster.devices[workload.device(rank)].type.name
        sizes = sorted(set(workload.sizes))
        self._places = [sizes.index(size) for size in workload.sizes]  # of each minibatch, among the sizes
        table = LayerTable.of(profile, sizes, [kind])
        layers = [profile.graph.index[id] for id in own.layers]
        within, between = (table.payloads(plan, between_hosts=apart) for apart in (False, True))
        maps_made = table.maps_made_again(plan)[stage]
        sending = network_time(*(workload.cluster, plan, stage, rank), between.__getitem__, device=workload.device)
        part, of_parts = own.parts_of_work()[own.ranks.index(rank)], (workload.cluster, plan, stage, layers)
        forward, whole = (
            part * seconds + more
            for seconds, more in zip(
                (table.stage_forward(layers, kind, maps_made), table.backward[kind][layers].sum(axis=0)),
                table.parts_seconds(*of_parts),
                strict=True,
            )
        )
        again = forward if own.recompute else part * table.forward[kind][table.recomputed(own)].sum(axis=0)
        self.seconds = StageSeconds(
            forward + table.reading_again(plan, stage, kind) + sending[0],
            whole + again + sending[1],
            weights_share(plan, stage) * whole,
        )
        self._packets = StagePackets(
            program,
            workload,
            (stage, rank),
            links,
            [payloads[stage + 1][0] for payloads in (within, between)],
            [payloads[stage][1] for payloads in (within, between)],
        )
        devices = tuple(map(workload.device, own.ranks))
        self.averaging_seconds = averaging_time(workload.cluster, devices, float(table.parameter_bytes[layers].sum()))
        self._others, self._stage = workload.others, stage
        self.step_seconds = table.update_time(layers, [kind], kept=program.num_versions(stage, rank) > 1)

    @property
    def reports(self) -> bool:
        own = self._packets.program.plan.stages[self._stage]
        return not own.shares_scenes or self._packets.rank == own.ranks[0]

    @property
    def kept_from(self) -> tuple[int, ...]:
        """There is nothing to keep, which would take no time."""
        return ()

    @property
    def kept_for(self) -> tuple[int, ...]:
        return ()

    def merge_seconds(self, merge: Merge) -> float:
        return self._others.seconds(merge, self._stage) if self._others else 0.0

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def buffers(self) -> dict[str, Tensor]:
        return {}

    def constants(self) -> dict[str, Tensor]:
        return {}

    def share_statistics(self, group: Group | None) -> None:
        """There are none."""

    def begin(self, *, training: bool, epoch: int = 0) -> None:
        """Nothing is kept between epochs."""

    def forward(self, received: Any, version: Version, minibatch: int) -> tuple[InFlight, dict[str, Any]]:
        size, outputs = self.evaluate(received, version, minibatch)
        return InFlight(minibatch, version, size=size), outputs

    def evaluate(self, received: Any, version: Version, minibatch: int) -> tuple[int, dict[str, Any]]:
        _sleep(self.seconds.forward[self._places[minibatch]])
        return received.size, {}

    def run_again(self, flight: InFlight) -> dict[str, Any]:
        """Nothing was kept for it: the time of a second forward is part of the backward's."""
        return {}

    def pack_outputs(
        self, outputs: Outputs, minibatch: int, size: int, part_sizes: Sequence[int] = ()
    ) -> PackedOutputs:
        packet = self._packets.send(Op.FORWARD, minibatch, self._places[minibatch], self.id_after, size)
        return PackedOutputs(packet, (), ())

    def loss(
        self,
        outputs: Mapping[str, Any],
        labels: Any,
        *,
        samples: int,
        detailed: bool = False,
        weights: Sequence[float] | None = None,
    ) -> tuple[Tensor, Outcome]:
        return torch.zeros(()), Outcome(None, samples, 0)  # nothing is learned

    def result(self, outputs: Mapping[str, Any]) -> Tensor:
        return torch.zeros(0)  # nothing is computed

    def unpack_output_gradients(self, flight: InFlight, packet: Packet) -> list[Tensor | None]:
        return []

    def backward(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        _sleep(self.seconds.backward[self._places[flight.minibatch]])
        return [], []

    def backward_input(
        self, flight: InFlight, gradients: Sequence[Tensor | None], *, scale: float = 1.0
    ) -> tuple[list[Tensor | None], None]:
        _sleep(self.seconds.backward_input[self._places[flight.minibatch]])
        return [], None

    def backward_weight(self, flight: InFlight, later: None) -> list[Tensor | None]:
        _sleep(self.seconds.backward_weight[self._places[flight.minibatch]])
        return []

    def pack_input_gradients(self, flight: InFlight, gradients: Sequence[Tensor | None]) -> Packet:
        place = self._places[flight.minibatch]
        return self._packets.send(Op.BACKWARD, flight.minibatch, place, self.id_before, flight.size)


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
