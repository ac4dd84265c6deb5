"""This process among the others: its rank, its threads, its groups, and words that all ranks agree on."""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from ...errors import InputError
from ...plan import Plan
from ..failures import DeadlinePassed, seconds_left, translated
from ..transport.channel import NcclLink, tag_of, wait_for
from ..transport.packet import BACKWARD, FORWARD
from ..transport.shared_memory import SharedMemory, meet
from ..transport.sockets import Sockets, Way, connect
from .heartbeats import Heartbeats

_NEVER = timedelta(days=7)  # receives are posted long before they are due; deadlines are kept where somebody waits


@dataclass(frozen=True)
class Process:
    """A rank of a running job, at one of its stages. Groups are None where this rank is alone in them."""

    rank: int
    world_size: int
    stage: int
    device: torch.device
    timeout: float
    stage_group: Any = None
    statistics_group: "Replicas | None" = None  # the same ranks, for what they exchange within a forward or backward
    heartbeats: Heartbeats | None = None
    groups: Mapping[int, tuple[Any, "Replicas | None"]] = field(default_factory=dict)  # stage → the two above
    wires: Mapping[tuple[int, int], NcclLink] = field(default_factory=dict)  # (direction, cut) → what carries payloads
    shared_memory: SharedMemory | None = None  # with other ranks of this host
    sockets: Sockets | None = None  # to and from the others

    def at(self, stage: int) -> "Process":
        """This process at `stage`."""
        group, within = self.groups.get(stage, (None, None))
        return replace(self, stage=stage, stage_group=group, statistics_group=within)

    def compression(self, direction: int, cut: int) -> str:
        """Return how packets are made smaller where nothing is asked for: see `runtime.compression`."""
        through_socket = self.sockets is not None and self.sockets.carries(tag_of(direction, cut))
        return "lossless" if through_socket and self.device.type == "cpu" else "none"

    def sum(self, values: Tensor, *, what: str) -> Tensor:
        """Return the sum of `values` over all ranks. Every rank must come here within the deadline."""
        if self.world_size > 1:
            self._all_reduce(values, None, dist.ReduceOp.SUM, what)
        return values

    def sum_over_stage(self, values: Tensor, *, what: str) -> Tensor:
        """Return the sum of `values` over the replicas of this rank's stage, in place."""
        if self.stage_group is not None:
            self._all_reduce(values, self.stage_group, dist.ReduceOp.SUM, what)
        return values

    def start_sum_over_stage(self, values: Tensor) -> Any:
        """Begin to sum `values` over the replicas of this rank's stage, in place; `finish_sum` waits for it."""
        return dist.all_reduce(values, group=self.stage_group, async_op=True)

    def finish_sum(self, work: Any, *, what: str) -> None:
        """Wait for a sum, or the like, that was begun. Raises DeadlinePassed or PeerLost."""
        if self.heartbeats:
            self.heartbeats.tell("meet")
        message = f"{what} of rank {self.rank} waited {self.timeout:g} s for the other ranks"
        wait_for(work, time.monotonic() + self.timeout, message, peer=-1)

    def barrier(self, what: str) -> None:
        """Wait until every rank is here."""
        self.sum(torch.zeros(1), what=what)

    def _all_reduce(self, values: Tensor, group: Any, op: Any, what: str) -> None:
        self.finish_sum(dist.all_reduce(values, op=op, group=group, async_op=True), what=what)


@dataclass
class Replicas:
    """The replicas of this rank's stage, for what its layers exchange within a forward or backward."""

    group: Any
    process: Process
    on_device: bool = False  # NCCL: queued on the GPU, where NCCL's own watch keeps the deadline
    _waited: float = 0.0

    def take_waited(self) -> float:
        """Return the seconds waited for other replicas since the last call: none on a GPU, where nobody waits here."""
        waited, self._waited = self._waited, 0.0
        return waited

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return `own` of every replica, in rank order. Raises DeadlinePassed or PeerLost."""
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
        self._finish(dist.all_gather(found, own, group=self.group, async_op=True))
        return found

    def sum(self, own: Tensor) -> None:
        """Make `own` the sum over the replicas. Raises DeadlinePassed or PeerLost."""
        self._finish(dist.all_reduce(own, group=self.group, async_op=True))

    def _finish(self, work: Any) -> None:
        if self.on_device:
            work.wait()
            return
        start, heartbeats = time.monotonic(), self.process.heartbeats
        if heartbeats is None:
            self.process.finish_sum(work, what="batch norm")
        else:
            before = heartbeats.of(self.process.rank)
            self.process.finish_sum(work, what=f"batch norm in the {before.kind} of minibatch {before.minibatch}")
            heartbeats.tell(before.kind, before.minibatch, before.peer)
        self._waited += time.monotonic() - start


@contextmanager
def joined(
    plan: Plan,
    *,
    run_dir: Path,
    device: str,
    threads: int | None,
    timeout: float,
    synchronise: bool = False,
    share_memory: bool = True,
) -> Iterator[Process]:
    """Join the job that the environment describes (torchrun's RANK and WORLD_SIZE) and leave it at the end.

    Ranks meet through a file in the run directory, so nothing listens for it; across hosts, through MASTER_ADDR.
    Raises InputError where the number of ranks is not the plan's.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if sorted(plan.ranks) != list(range(world_size)):
        raise InputError(
            f"the plan needs ranks {sorted(plan.ranks)}, but this job has {world_size}: 0 to {world_size - 1}"
        )
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // world_size))
    stage = plan.stages_of(rank)[0]
    where = _device(device)
    if world_size == 1:
        yield Process(rank, world_size, stage, where, timeout)
        return
    if where.type == "cuda":
        torch.cuda.set_device(where)
    heartbeats = Heartbeats(run_dir / "logs" / ".whereabouts", world_size, rank)
    process = Process(rank, world_size, stage, where, timeout, heartbeats=heartbeats)
    store = _store(run_dir, world_size, timeout)
    _meet(store, rank, world_size, timeout)  # from then on what heartbeats say is of this attempt
    try:
        heartbeats.tell("meet")
        shared_memory = meet(store, rank, plan.ranks) if share_memory and where.type == "cpu" else None
        process = replace(process, shared_memory=shared_memory)
        message = f"rank {rank} waited {timeout:g} s for the other ranks to connect"
        with translated(message, peer=-1, deadline=time.monotonic() + timeout):
            process = _connected(process, plan, store, carrier=backend(device), synchronise=synchronise)
        outgoing, incoming = _ways(plan, rank, shared_memory.peers if shared_memory else ())
        sockets = connect(store, rank, outgoing, incoming, timeout=timeout, pinned=where.type == "cuda")
        process = replace(process, sockets=sockets)
        heartbeats.tell("starting")
        yield process
    except DeadlinePassed as error:
        raise _blamed(error, heartbeats) from error
    sockets.close()
    if shared_memory:
        shared_memory.close()
    # Not after an error: it would wait for receives that are still posted, which may never end.
    dist.destroy_process_group()


def _blamed(error: DeadlinePassed, heartbeats: Heartbeats) -> DeadlinePassed:
    """Return the error with the rank in it that everybody waits for, where that can be told."""
    found = None if error.peer is None else heartbeats.find_straggler(error.peer)
    return DeadlinePassed(f"{error}; {found}", peer=found.rank) if found else error


def _connected(process: Process, plan: Plan, store: dist.Store, *, carrier: str, synchronise: bool) -> Process:
    """Open what carries tensors between the ranks. Every rank comes here, and to each group, its own or not."""
    over_nccl, limit = "nccl" in carrier, timedelta(seconds=process.timeout)
    dist.init_process_group(carrier, store=store, rank=process.rank, world_size=process.world_size, timeout=limit)
    mates, within = {}, {}  # of the stages with replicas among this rank's
    for k, stage in enumerate(plan.stages):
        if len(stage.ranks) > 1:
            ranks = sorted(stage.ranks)
            groups = [dist.new_group(ranks, timeout=limit) for _ in range(1 + synchronise)]
            if process.rank in ranks:
                mates[k] = groups[0]
                if synchronise:
                    within[k] = groups[1]
    wires = _wires(plan, process.device, limit) if over_nccl else {}
    # All are here, and deadlines are kept where somebody waits: but for NCCL's, which are begun where they are due.
    for group in (None, *(() if over_nccl else (*mates.values(), *within.values()))):
        _set_pg_timeout(_NEVER, group)
    told = {k: Replicas(group, process, on_device=over_nccl) for k, group in within.items()}
    both = {k: (group, told.get(k)) for k, group in mates.items()}
    return replace(process, groups=both, wires=wires)


def _ways(plan: Plan, rank: int, sharing: Collection[int]) -> tuple[set[Way], set[Way]]:
    """Return the ways that packets go by socket out of and into a rank that shares memory with these others."""
    outgoing, incoming = set(), set()
    for cut, (before, after) in enumerate(pairwise(plan.stages), start=1):
        if before.ranks == after.ranks:
            continue  # each replica works on its own packets
        for own, other, out in ((before, after, FORWARD), (after, before, BACKWARD)):
            if rank in own.ranks:
                peers = set(other.ranks) - {rank, *sharing}
                outgoing |= {(peer, tag_of(out, cut)) for peer in peers}
                incoming |= {(peer, tag_of(1 - out, cut)) for peer in peers}
    return outgoing, incoming


def backend(device: str) -> str:
    """Return what carries tensors between ranks, in torch.distributed's words.

    NCCL those on GPUs, where every rank of this host has a GPU of its own (it refuses two ranks on one); else gloo all.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    if device != "cuda" or torch.cuda.device_count() < ranks or not dist.is_nccl_available():
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def _wires(plan: Plan, device: torch.device, limit: timedelta) -> dict[tuple[int, int], NcclLink]:
    """Open a wire for each cut and direction. Every rank comes here, those that a wire does not touch too."""
    wires = {}
    for cut, (before, after) in enumerate(pairwise(plan.stages), start=1):
        ranks = sorted({*before.ranks, *after.ranks})
        for direction in (FORWARD, BACKWARD):
            wires[direction, cut] = NcclLink(dist.new_group(ranks, timeout=limit), device)
    return wires


def _store(run_dir: Path, world_size: int, timeout: float) -> dist.Store:
    if os.environ.get("SPARSEPIPE_RENDEZVOUS", "file") == "file":
        attempt = "-".join(os.environ.get(name, "0") for name in ("SPARSEPIPE_LAUNCH", "TORCHELASTIC_RESTART_COUNT"))
        folder = run_dir / "logs"
        path = folder / f".rendezvous-{attempt}"
        # The ranks' secrets go into it: nobody else may read it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        store = dist.FileStore(str(path), world_size)
        store.set_timeout(timedelta(seconds=timeout))
        return store
    # The launcher's own store: it listens where the launcher bound it, and outlives every attempt.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout))
    return dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


_TO_START = 60.0  # seconds that importing torch may take on a busy machine, however short the run's own deadlines are


def _meet(store: dist.Store, rank: int, world_size: int, timeout: float) -> None:
    """Wait until every rank has started, so that one which did not is named."""
    store.set(f"ready/{rank}", b"1")
    timeout = max(timeout, _TO_START)
    deadline = time.monotonic() + timeout
    for peer in range(world_size):
        try:
            store.wait([f"ready/{peer}"], timedelta(seconds=seconds_left(deadline)))
        except RuntimeError:
            message = f"rank {rank} waited {timeout:g} s for rank {peer} to start"
            raise DeadlinePassed(message, peer=peer) from None


def _device(name: str) -> torch.device:
    if not name.startswith("cuda"):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(f"device {name!r} given, but this machine has no CUDA device; use --device cpu")
    if ":" in name:
        return torch.device(name)
    return torch.device(
        "cuda", int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) % torch.cuda.device_count()
    )
