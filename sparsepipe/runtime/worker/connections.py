"""What connects a process with the others under one plan: opened when the plan begins, closed when it ends.

    Process      rank, device, store, what all ranks sum together          as long as the job
    Connections  replicas of each stage, packets between its neighbours    as long as a plan

Who feeds whom is asked of the plan's Program.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from ...errors import InputError
from ...values.plan import Plan, Stage
from ...values.schedule import Op, Program
from ..failures import translated
from ..processes.process import Process
from ..replication.all_reduce import AllReduce
from ..replication.base import Alone, ReplicaGroup, Replication, StatisticsGroup
from ..replication.over_hosts import SumOverHosts, replicas_by_host
from ..stages.base import Position
from ..transport.channel import Transport, tag_of
from ..transport.packet import BACKWARD, FORWARD
from ..transport.process_groups import NcclLink, NcclTransport
from ..transport.shared_memory import SharedMemory, SharedMemoryTransport, meet
from ..transport.sockets import Sockets, SocketTransport, Way, connect
from .gloo_listeners import gloo_connects
from .join import NEVER

_GROUPS = 100_000  # of a plan, at most: two a stage and a cut
_DIRECTIONS = {Op.FORWARD: FORWARD, Op.BACKWARD: BACKWARD}  # of the packets that an operation sends to another stage


class Boundary(NamedTuple):
    """Tensors that cross a cut of a plan in one direction. Cut k lies between the stages k - 1 and k."""

    direction: int
    cut: int
    source: Stage
    target: Stage


def boundaries(program: Program) -> Iterator[Boundary]:
    """Yield every cut between other ranks in both directions, in an order that all ranks share.

    Between stages on the same ranks each replica works on its own packets.
    """
    stages = program.plan.stages
    for k, source in enumerate(stages):
        for op, direction in _DIRECTIONS.items():
            target = program.target(k, op)
            if target is not None and stages[target].ranks != source.ranks:
                yield Boundary(direction, max(k, target), source, stages[target])


@dataclass(frozen=True, eq=False)
class Connections:
    """Channels for tensors between this rank and the others under one plan."""

    process: Process
    program: Program
    replicas: dict[int, ReplicaGroup] = field(default_factory=dict)  # by stage, of those that this rank shares
    statistics: dict[int, StatisticsGroup] = field(default_factory=dict)  # the same, within a pass
    at_work: list[ReplicaGroup] = field(default_factory=list)  # of the plan's ranks, where it leaves out others: one
    links: dict[tuple[int, int], NcclLink] = field(default_factory=dict)  # (direction, cut) → what carries payloads
    shared_memory: SharedMemory | None = None  # with other ranks of this host
    sockets: Sockets | None = None  # to and from the others

    @classmethod
    def open(
        cls,
        program: Program,
        process: Process,
        *,
        opening: int = 0,
        synchronise: bool = False,
        share_memory: bool = True,
    ) -> "Connections":
        """Connect the ranks as a plan needs it. All ranks of the job come here, within the process's deadline.

        `program` is compiled until steady: that bounds how many packets are on their way at once. `opening` tells one
        plan's connections from another's in the same job: any number that is the same on all ranks and that none
        has given before. `synchronise`: batch norms of a stage's replicas share their statistics.
        Raises InputError if the plan's ranks are not the job's, DeadlinePassed and PeerLost.
        """
        check_ranks(program.plan, process.world_size)
        if process.store is None:
            return cls(process, program)
        rank, timeout = process.rank, process.timeout
        store = dist.PrefixStore(f"connections-{opening}", process.store)
        share_memory = share_memory and process.device.type == "cpu"
        ranks = program.plan.ranks
        shared_memory = meet(store, rank, ranks) if share_memory and rank in ranks else None
        message = f"rank {rank} waited {timeout:g} s for the other ranks to connect"
        found = cls(process, program, shared_memory=shared_memory)
        try:
            with translated(message, peer=-1, deadline=time.monotonic() + timeout):
                # torch names groups by counting: from a number of this opening's, or ranks of which one failed to open
                # another would not meet any more.
                _world.group_count = _GROUPS * (1 + opening)
                with gloo_connects():
                    found._open_groups(synchronise=synchronise)
            ways = _ways(program, rank, found.memory_peers)
            sockets = connect(
                store,
                rank,
                *ways,
                timeout=timeout,
                pinned=process.device.type == "cuda",
                headers_alone=bool(found.links),
                address=process.address,
                encryption=process.encryption,
            )
        except BaseException:
            found.release()
            raise
        return replace(found, sockets=sockets)

    def at(self, stage: int) -> Position:
        """This process at one of its stages."""
        ways = (FORWARD, stage + 1), (BACKWARD, stage)
        forwards, backwards = (self._compression(*way) for way in ways)
        scenes = self.statistics[stage] if self.program.plan.stages[stage].shares_scenes else None
        return Position(self.process, stage, self._replication(stage), (forwards, backwards), scenes)

    def sum(self, values: Tensor, *, what: str) -> Tensor:
        """Return the sum of `values` over the plan's ranks, in place. Raises DeadlinePassed or PeerLost."""
        return self.at_work[0].sum(values, what=what) if self.at_work else self.process.sum(values, what=what)

    def _replication(self, stage: int) -> Replication:
        if stage not in self.replicas:
            return Alone()
        count = len(self.program.plan.stages[stage].ranks)
        return AllReduce(self.replicas[stage], num_replicas=count, statistics=self.statistics.get(stage))

    @property
    def transports(self) -> list[Transport]:
        """Transports to and from other ranks; the first that reaches a rank is used for it."""
        found: list[Transport] = [SharedMemoryTransport(self.shared_memory)] if self.shared_memory else []
        if self.sockets and self.links:
            found.append(NcclTransport({tag_of(*way): link for way, link in self.links.items()}, self.sockets))
        elif self.sockets:
            found.append(SocketTransport(self.sockets))
        return found

    @property
    def memory_peers(self) -> list[int]:
        """The ranks that this one shares memory with."""
        return sorted(self.shared_memory.peers) if self.shared_memory else []

    def close(self) -> None:
        """Close all of it, once nothing is under way any more. All ranks come here. The process stays in its job."""
        if self.process.store is None:
            return
        self.process.barrier("end of a plan")  # what one has received, another may still be sending
        self.release()

    def release(self) -> None:
        """Close this rank's ends, wherever the other ranks are: nothing is under way."""
        if self.sockets:
            self.sockets.close()
        if self.shared_memory:
            self.shared_memory.close()
        groups = [group for own in (*self.replicas.values(), *self.at_work) for group in own.groups]
        for own in self.replicas.values():
            if own.over_hosts:
                own.over_hosts.close()
        groups += [own.group for own in self.statistics.values()]
        groups += [link.group for link in self.links.values()]
        self.at_work.clear()
        for known in (self.replicas, self.statistics, self.links):
            known.clear()
        for group in groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)

    def _compression(self, direction: int, cut: int) -> str:
        """Return the default compression of packets: see transport/compression.py."""
        through_socket = self.sockets is not None and self.sockets.carries(tag_of(direction, cut))
        return "lossless" if through_socket and self.process.device.type == "cpu" else "none"

    def _open_groups(self, *, synchronise: bool) -> None:
        """Open what torch.distributed carries. Every rank comes here, and to each group, its own or not."""
        process, limit = self.process, timedelta(seconds=self.process.timeout)
        over_nccl, over_gloo = "nccl" in process.backend, process.backend == "gloo"
        for k, stage in enumerate(self.program.plan.stages):
            if len(stage.ranks) > 1:
                ranks = sorted(stage.ranks)
                within = synchronise or stage.shares_scenes
                groups = [dist.new_group(ranks, timeout=limit) for _ in range(1 + within)]
                over_hosts = _open_over_hosts(process, ranks, limit)
                if process.rank in ranks:
                    self.replicas[k] = ReplicaGroup(process, groups[0], over_hosts)
                    if within:
                        self.statistics[k] = StatisticsGroup(groups[1], process, on_device=over_nccl)
        for direction, cut, source, target in boundaries(self.program) if over_nccl else ():
            group = dist.new_group(sorted({*source.ranks, *target.ranks}), timeout=limit)
            self.links[direction, cut] = NcclLink(group, process.device)
        if len(ranks := sorted(self.program.plan.ranks)) < process.world_size:
            group = dist.new_group(ranks, timeout=limit)
            if process.rank in ranks:
                self.at_work.append(ReplicaGroup(process, group))
                if over_gloo:
                    _set_pg_timeout(NEVER, group)
        # All are here, and deadlines are kept where somebody waits: but for NCCL's, which are begun where they are due.
        if over_gloo:
            for k, own in self.replicas.items():
                for group in own.groups:
                    _set_pg_timeout(NEVER, group)
                if k in self.statistics:
                    _set_pg_timeout(NEVER, self.statistics[k].group)


def _open_over_hosts(process: Process, ranks: Sequence[int], limit: timedelta) -> SumOverHosts | None:
    """Open what sums over a stage's replicas host by host; None if no host has several of them, or one has all.

    Every rank of the job comes here, and to each group, its own or not.
    """
    parts = replicas_by_host(ranks, process.hosts)
    if not parts:
        return None
    firsts = [own[0] for own in parts]
    between = dist.new_group(firsts, timeout=limit)
    within = [dist.new_group(own, timeout=limit) if len(own) > 1 else None for own in parts]
    for own, group in zip(parts, within, strict=True):
        if process.rank in own:
            return SumOverHosts(group, between if process.rank == own[0] else None, own[0])
    return None


def check_ranks(plan: Plan, world_size: int, *, num_processes: int | None = None) -> None:
    """Raise InputError unless a plan's ranks are of a job of so many, of which it may leave out some.

    `num_processes` is how many the job is to have; one that somebody starts by hand, as torchrun does, has others.
    """
    ranks = sorted(plan.ranks)
    if not set(ranks) <= set(range(world_size)) or world_size != (num_processes or world_size):
        raise InputError(
            "plan.ranks_not_of_job",
            f"the plan needs ranks {ranks}, but this job has {world_size} (0 to {world_size - 1}); start a larger job",
            ranks=ranks,
            world_size=world_size,
        )


def _ways(program: Program, rank: int, sharing: Collection[int]) -> tuple[set[Way], set[Way]]:
    """Return the ways that packets go by socket out of and into a rank that shares memory with these others."""
    outgoing, incoming = set(), set()
    for direction, cut, source, target in boundaries(program):
        tag = tag_of(direction, cut)
        if rank in source.ranks:
            outgoing |= {(peer, tag) for peer in set(target.ranks) - {rank, *sharing}}
        if rank in target.ranks:
            incoming |= {(peer, tag) for peer in set(source.ranks) - {rank, *sharing}}
    return outgoing, incoming
