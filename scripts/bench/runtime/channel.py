"""The way between two stages: the same bytes as bare messages of gloo and as packets, in turn."""

import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparsepipe.engines.allocator import keep_freed_memory
from sparsepipe.runtime.transport.channel import Inbox, Outbox, Transport, tag_of
from sparsepipe.runtime.transport.packet import FORWARD, Packet, Slot
from sparsepipe.runtime.transport.shared_memory import SharedMemoryTransport, meet
from sparsepipe.runtime.transport.sockets import DEPTH, SocketTransport, connect

from .cases import Case
from .processes import join


def role_channel(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Send the same bytes as bare messages and as packets, in turn: what else goes on meets all alike.

    Bare: all receives posted before the first message comes, which takes the memory of all; or as many as an inbox has.
    Packets: through shared memory, as between the processes of a host, or through sockets, as between hosts.
    """
    rank, store = join(folder)
    shared = meet(store, rank, range(2))
    if shared is None:
        raise SystemExit("the two processes cannot share memory: is this Linux?")
    way = [(1 - rank, tag_of(FORWARD, 0))]
    sockets = connect(store, rank, *((way, []) if rank == 0 else ([], way)), timeout=60)
    keep_freed_memory()  # as every worker does
    found = {}
    for megabytes in (1, 4, 16):
        rows = torch.randn(megabytes * 2**18 // 64, 64)
        count = max(32, 256 // megabytes)
        times: dict[str, list[float]] = {"gloo": [], "gloo_in_turn": [], "packets": [], "packets_by_sockets": []}
        for _ in range(9):
            times["gloo"].append(_bare(rows, count, rank, at_once=count))
            times["gloo_in_turn"].append(_bare(rows, count, rank, at_once=DEPTH))
            times["packets"].append(_packets(rows, count, rank, SharedMemoryTransport(shared)))
            times["packets_by_sockets"].append(_packets(rows, count, rank, SocketTransport(sockets)))
        rates = {how: count * rows.nbytes / statistics.median(taken) / 1e9 for how, taken in times.items()}
        ratios = {
            f"{packets}/{bare}": rates[packets] / rates[bare]
            for packets in ("packets", "packets_by_sockets")
            for bare in ("gloo", "gloo_in_turn")
        }
        found[f"{megabytes} MB"] = rates | ratios
    return {"gigabytes_per_second": found}


def role_link(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure the link between the two processes: bytes a second of large messages, seconds a small one takes."""
    rank, _ = join(folder)
    rows, word = torch.randn(2**18), torch.zeros(1)
    count = 32
    _bare(rows, 4, rank, at_once=DEPTH)
    bandwidth = count * rows.nbytes / _bare(rows, count, rank, at_once=DEPTH)
    trips = []
    for _ in range(50):
        start = time.perf_counter()
        for sender in (0, 1):
            if rank == sender:
                dist.send(word, 1 - rank)
            else:
                dist.recv(word, 1 - rank)
        trips.append(time.perf_counter() - start)
    return {"bandwidth": bandwidth, "latency": statistics.median(trips) / 2}


def _bare(rows: Tensor, count: int, rank: int, *, at_once: int) -> float:
    buffers = [torch.zeros_like(rows) for _ in range(at_once)] if rank else []
    works: deque[Any] = deque()
    dist.barrier()
    start = time.perf_counter()
    for k in range(count):
        if len(works) == at_once:
            works.popleft().wait()
        works.append(dist.irecv(buffers[k % at_once], 0, tag=77) if rank else dist.isend(rows, 1, tag=77))
    for work in works:
        work.wait()
    dist.barrier()
    return time.perf_counter() - start


def _packets(rows: Tensor, count: int, rank: int, transport: Transport) -> float:
    dist.barrier()
    start = time.perf_counter()
    if rank == 0:
        outbox = Outbox([transport], limit=8)
        for m in range(count):
            outbox.send(Packet(FORWARD, m, 0, (Slot(rows),)), 1, timeout=60, action="0F0")
        outbox.finish(timeout=60)
    else:
        inbox = Inbox([(0, m) for m in range(count)], direction=FORWARD, boundary=0, transports=[transport])
        for m in range(count):
            inbox.take(m, timeout=60, action="1F0")
    dist.barrier()
    return time.perf_counter() - start
