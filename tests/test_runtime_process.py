"""What carries tensors between ranks: gloo, or NCCL where every rank has a GPU of its own."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from runtime_jobs import PLAIN, REPOSITORY, Job, plan_of, run_jobs, settings, shapes

from sparsepipe.engines.base import CoordinateSet
from sparsepipe.runtime.channel import Inbox, Outbox, Wire, WireInbox
from sparsepipe.runtime.packet import BACKWARD, FORWARD, Packet, Slot
from sparsepipe.runtime.process import backend
from sparsepipe.runtime.shared_memory import meet


@pytest.mark.parametrize(
    ("device", "gpus", "nccl", "expected"),
    [
        ("cpu", 8, True, "gloo"),
        ("cuda", 2, True, "cpu:gloo,cuda:nccl"),
        ("cuda", 3, True, "cpu:gloo,cuda:nccl"),
        ("cuda", 1, True, "gloo"),  # two ranks share it
        ("cuda", 2, False, "gloo"),  # a torch without NCCL
        ("cuda:0", 2, True, "gloo"),  # the user puts every rank on one
    ],
)
def test_nccl_carries_where_every_rank_has_its_own_gpu(monkeypatch, device, gpus, nccl, expected) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    assert backend(device) == expected


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sockets", "wires", "shared memory"])
def test_packets_of_any_size_arrive_in_order(tmp_path, how) -> None:
    """Both ranks send packets before they receive any, one cut and both directions: larger and smaller ones than those
    before, some in their header, some of no rows. A wire has no tags to help."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, str(tmp_path), how]
    ranks = [subprocess.Popen([*command, str(k)], env=environment, stderr=subprocess.PIPE) for k in range(2)]
    told = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: run it where there is one (two for NCCL)")
def test_stages_on_gpus_train_like_one_process(tmp_path) -> None:
    """Over NCCL with two GPUs or more, over gloo and pinned memory where both stages share one."""
    clouds, flush = shapes(tmp_path), {"schedule": "1f1b-flush", "num_microbatches": 2}
    config = settings(clouds, device="cuda", epochs=2)
    jobs = [Job(f"{len(ranks)}", plan_of(PLAIN, ranks, **flush), config) for ranks in ([[0]], [[0], [1]])]
    found = run_jobs(tmp_path, jobs)
    one, two = (torch.tensor(found[name].losses) for name in ("1", "2"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


_ROWS = (20_000, 19_000, 3, 21_000, 60_000, 0, 50_000, 61_000, 1, 90_000, 20_000, 2)


def _packet(direction: int, minibatch: int) -> Packet:
    generator = torch.Generator().manual_seed(10 * minibatch + direction)
    count = _ROWS[(minibatch + 5 * direction) % len(_ROWS)]
    rows = torch.randn(count, 32, generator=generator)
    coordinates = torch.stack([torch.arange(count)] * 4, dim=1).int()
    sets = (CoordinateSet((1, 1, 1), coordinates),) if direction == FORWARD else ()
    return Packet(direction, minibatch, 7, (Slot(rows, 0 if sets else None, True),), sets)


def _exchange(folder: Path, how: str, rank: int) -> None:
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    wired = how == "wires"
    wires = {way: Wire(dist.new_group([0, 1]), torch.device("cpu")) if wired else None for way in (FORWARD, BACKWARD)}
    memory = meet(store, rank, range(2)) if how == "shared memory" else None
    out, back = (FORWARD, BACKWARD) if rank == 0 else (BACKWARD, FORWARD)
    peer, count = 1 - rank, 2 * len(_ROWS)
    options = {"direction": back, "boundary": 7, "cut": 3}
    wire = wires[back]
    expected = [(peer, m) for m in range(count)]
    inbox = WireInbox(wire, expected, **options) if wire else Inbox(expected, memory=memory, **options)
    outbox = Outbox(limit=2 * count, memory=memory)
    for m in range(count):
        outbox.send(_packet(out, m), peer, timeout=60, action="a", cut=3, wire=wires[out])
    kept = []  # what has come stays as it was while more comes
    for m in range(count):
        kept = [*kept[-3:], (inbox.take(m, timeout=60, action="b"), _packet(back, m))]
        for found, sent in kept:
            _same(found, sent)
    outbox.finish(timeout=60)


def _same(found: Packet, sent: Packet) -> None:
    assert torch.equal(found.slots[0].rows, sent.slots[0].rows)
    for got, due in zip(found.coordinate_sets, sent.coordinate_sets, strict=True):
        assert torch.equal(got.coordinates, due.coordinates)


if __name__ == "__main__":
    _exchange(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    os._exit(0)
