"""How a process joins its job and leaves it: threads, device, a store to meet at, and which rank others wait for."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from ...errors import InputError
from ...util.host.ssh import is_loopback
from ...values.plan import Plan
from ..failures import DeadlinePassed, seconds_left, translated
from ..processes.devices import check_device
from ..processes.identity import Identity
from ..processes.process import Process
from ..processes.rank_readings import tell_gpu
from ..processes.signs_of_life import Heartbeats
from ..rendezvous.store import KeyedStore
from ..training_state.checkpoint import belongs
from ..transport import process_groups
from ..transport.state_transfer import StateTransfer
from ..wire.encryption import Encryption
from ..wire.messages import STORE, ListenerAddress
from .gloo_listeners import gloo_connects
from .stage_replica import StageReplica

NEVER = timedelta(days=7)  # of groups: deadlines are kept where somebody waits
_ALONE = "127.0.0.1"  # where a process without others is
_TO_START = 60.0  # seconds that importing torch may take on a busy machine, however short the run's own deadlines are


@contextmanager
def joined(
    identity: Identity,
    *,
    run_dir: Path,
    device: str,
    threads: int | None,
    timeout: float,
    encrypt: bool = False,
) -> Iterator[Process]:
    """Join the job in which this process is `identity`, and leave it at the end.

    Ranks meet through a file in the run's folder, so nothing listens for it, or through the launcher's store; those of
    several hosts in one that asks for the job's secret. `encrypt`: what they say to each other goes through TLS.
    Raises InputError for a device that does not exist, and DeadlinePassed with the rank that did not come.
    """
    rank, world_size = identity.rank, identity.world_size
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // _ranks_of_host(identity)))
    where = _device(device, identity)
    if where.type == "cuda":  # Triton's kernels run on the current one, whichever their tensors are on
        torch.cuda.set_device(where)
        tell_gpu(run_dir / "logs", rank, where)
    encryption = _encryption(run_dir, identity) if encrypt and (world_size > 1 or identity.hosts) else None
    if world_size == 1:
        address = identity.address if identity.pipeline is not None else _ALONE  # others of its run may call it
        yield Process(
            *(rank, world_size, where, timeout), address=address, record=identity.record, encryption=encryption
        )
        return
    heartbeats = Heartbeats(run_dir / "logs" / ".whereabouts", world_size, rank, here=_ranks_here(identity))
    store = _store(run_dir, identity, timeout, encryption)
    _meet(store, rank, world_size, timeout)  # from then on what heartbeats say is of this attempt
    carrier = backend(device, identity, encrypted=encryption is not None)
    process = Process(
        rank,
        world_size,
        where,
        timeout,
        heartbeats,
        store,
        identity.address,
        carrier,
        identity.hosts,
        identity.record,
        encryption,
    )
    if encryption:
        process_groups.use(encryption, address=process.address)
    try:
        heartbeats.tell("meet")
        message, limit = f"rank {rank} waited {timeout:g} s for the other ranks to connect", timedelta(seconds=timeout)
        with translated(message, peer=-1, deadline=time.monotonic() + timeout):
            with gloo_connects():
                dist.init_process_group(process.backend, store=store, rank=rank, world_size=world_size, timeout=limit)
            if carrier != process_groups.BACKEND:
                _set_pg_timeout(NEVER, None)
        yield process
    except DeadlinePassed as error:
        raise _blamed(error, heartbeats) from error
    # Not after an error: it would wait for receives that are still posted, which may never end.
    dist.destroy_process_group()


def backend(device: str, identity: Identity, *, encrypted: bool = False) -> str:
    """Return what carries tensors between ranks, in torch.distributed's words.

    NCCL those on GPUs, where every rank of this host has a GPU of its own, those of other pipelines among them (it
    refuses two ranks on one); else gloo all. `encrypted`: neither, for what they open is in clear.
    """
    if encrypted:
        return process_groups.BACKEND
    if device != "cuda" or torch.cuda.device_count() < _ranks_of_host(identity) or not dist.is_nccl_available():
        return "gloo"
    if identity.hosts:  # what NCCL opens between hosts asks nobody who they are
        return "gloo"
    return "cpu:gloo,cuda:nccl"


def _ranks_of_host(identity: Identity) -> int:
    """Return how many ranks of the run there are on this host, those of other pipelines among them."""
    return identity.num_ranks or identity.local_world_size


def _blamed(error: DeadlinePassed, heartbeats: Heartbeats) -> DeadlinePassed:
    """Return the error with the rank in it that everybody waits for, if that is known."""
    found = None if error.peer is None else heartbeats.find_straggler(error.peer)
    return DeadlinePassed(f"{error}; {found}", peer=found.rank) if found else error


def _encryption(run_dir: Path, identity: Identity) -> Encryption | None:
    """Return what goes with a job on several hosts; None for one that stays on this machine.

    Raises InputError if there is nothing to encrypt with.
    """
    if identity.hosts:
        return Encryption.of_run(run_dir)
    if identity.store is not None and not is_loopback(identity.store[0]):
        raise InputError(
            "encryption.store_in_clear",
            "encryption is requested, but the ranks of this job use torch's unencrypted store at "
            f"{identity.store[0]}; launch the job over ssh, or disable encryption",
        )
    return None


def _store(run_dir: Path, identity: Identity, timeout: float, encryption: Encryption | None) -> dist.Store:
    if identity.hosts:
        address = ListenerAddress.read(run_dir / STORE)
        message = f"rank {identity.rank} waited {timeout:g} s for the store at {address.host}, where ranks meet"
        with translated(message, peer=-1, deadline=time.monotonic() + timeout):
            own: dict[str, Any] = {"rank": identity.rank, "prefix": f"attempt-{identity.attempt}/", "timeout": timeout}
            return KeyedStore(address, **own, encryption=encryption)
    if identity.store is None:
        path = run_dir / "logs" / f".rendezvous-{identity.launch}-{identity.attempt}"
        # The ranks' secrets go into it: nobody else may read it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = dist.FileStore(str(path), identity.world_size)
        file.set_timeout(timedelta(seconds=timeout))
        return file
    # The launcher's own store: it listens where the launcher bound it, and outlives every attempt.
    outer = dist.TCPStore(*identity.store, is_master=False, timeout=timedelta(seconds=timeout))
    return dist.PrefixStore(f"attempt-{identity.attempt}", outer)


def _ranks_here(identity: Identity) -> tuple[int, ...]:
    """Return the ranks of this host; none if they are all."""
    return next((ranks for ranks in identity.hosts if identity.rank in ranks), ())


def _meet(store: dist.Store, rank: int, world_size: int, timeout: float) -> None:
    """Wait until every rank has started, so that one which did not is named."""
    store.set(f"ready/{rank}", "1")
    timeout = max(timeout, _TO_START)
    deadline = time.monotonic() + timeout
    for peer in range(world_size):
        try:
            store.wait([f"ready/{peer}"], timedelta(seconds=seconds_left(deadline)))
        except RuntimeError:
            message = f"rank {rank} waited {timeout:g} s for rank {peer} to start"
            raise DeadlinePassed(message, peer=peer) from None


def _device(name: str, identity: Identity) -> torch.device:
    check_device(name)
    if not name.startswith("cuda"):
        return torch.device("cpu")
    if ":" in name:
        return torch.device(name)
    return torch.device("cuda", identity.local_rank % torch.cuda.device_count())


def source_of(stage: int, target: int, before: Plan) -> int:
    """Return the rank that gives layers of one of the old stages to rank `target`: itself, if it holds them."""
    holders = before.stages[stage].ranks
    return target if target in holders else holders[target % len(holders)]


def layers_of(rank: int, plan: Plan) -> Sequence[str]:
    """Return the layers that a rank holds under a plan."""
    return [id for k in plan.stages_of(rank) for id in plan.stages[k].layers]


class HandOver:
    """This rank's part in it."""

    def __init__(self, process: Process, *, before: Plan, after: Plan, own: Mapping[int, StageReplica]) -> None:
        """`own`: this rank's stages under the plan before. All ranks come here. Raises DeadlinePassed or PeerLost."""
        self._after, self._rank = after, process.rank
        self._kept: dict[str, Tensor] = {}
        outgoing: dict[int, dict[str, Tensor]] = {}
        for k, replica in own.items():
            tensors = replica.tensors()
            for target in after.ranks:
                given = dict(replica.kept)
                given |= tensors if source_of(k, target, before) == self._rank else {}
                wanted = set(layers_of(target, after))
                found = {key: tensor for key, tensor in given.items() if belongs(key, wanted, layers=before.layers)}
                (self._kept if target == self._rank else outgoing.setdefault(target, {})).update(found)
        self.transfer = StateTransfer.of(process, outgoing)

    def finish(self, own: Mapping[int, StageReplica]) -> None:
        """Send and receive, and give this rank's stages under the new plan what they are made of.

        All ranks come here, with the room that they need. Raises DeadlinePassed or PeerLost.
        """
        received = {key: tensor.clone() for key, tensor in self.transfer.run().items()}  # not a view of all that came
        tensors = self._kept | received
        for replica in own.values():
            wanted = set(replica.own.layers)
            layers = self._after.layers
            found = {key: tensor for key, tensor in tensors.items() if belongs(key, wanted, layers=layers)}
            replica.adopt(found)
