"""What carries tensors between ranks: gloo, or NCCL where each has a GPU of its own; who is named where one is lost."""

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from coded import raises
from runtime_jobs import PLAIN, Job, plan_of, run_jobs, run_ranks, settings, shapes

from sparsepipe.engines.base import CoordinateSet
from sparsepipe.runtime.failures import DeadlinePassed, PeerLost
from sparsepipe.runtime.processes.identity import Identity
from sparsepipe.runtime.transport.channel import Inbox, Outbox, tag_of
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD, Packet, Slot
from sparsepipe.runtime.transport.process_groups import NcclLink, NcclTransport
from sparsepipe.runtime.transport.shared_memory import SharedMemoryTransport, meet
from sparsepipe.runtime.transport.sockets import SocketTransport, connect
from sparsepipe.runtime.worker.connections import Connections
from sparsepipe.runtime.worker.join import backend, joined
from sparsepipe.runtime.worker.run import run
from sparsepipe.util.io.files import write_atomic
from sparsepipe.values.schedule import compile


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
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    assert backend(device, Identity(world_size=4, local_world_size=2)) == expected


@pytest.mark.parametrize(("gpus", "expected"), [(4, "cpu:gloo,cuda:nccl"), (3, "gloo")])
def test_nccl_carries_within_pipelines_where_the_ranks_of_all_have_gpus_of_their_own(monkeypatch, gpus, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    environment = {"RANK": "0", "WORLD_SIZE": "2", "SPARSEPIPE_PIPELINE": "1", "SPARSEPIPE_NUM_RANKS": "4"}
    assert backend("cuda", Identity.from_environment(environment)) == expected


def test_a_job_of_more_ranks_than_the_plan_has_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    data, folder = shapes(tmp_path), tmp_path / "run"
    with raises("plan.ranks_not_of_job", "2", ranks="[0, 1]", world_size=3):
        run(folder, plan_of(PLAIN, [[0], [1]]), settings(data))
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sockets", "nccl links", "shared memory"])
def test_packets_of_any_size_arrive_in_order(tmp_path, how) -> None:
    """Both ranks send packets before they receive any, one cut and both directions: larger and smaller ones than those
    before, some in their header, some of no rows. A wire has no tags to help. A part ends before all that was expected
    in it has come, and what comes then is the next part's."""
    _two_ranks(tmp_path, how)


def _two_ranks(folder: Path, how: str) -> None:
    work = _left_alone if how in ("gone", "silent", "silent as it starts") else _exchange
    run_ranks(work, 2, folder, how, logs=folder, limit=120, more={"GLOO_SOCKET_IFNAME": "lo"})


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "silent", "silent as it starts"])
def test_a_rank_that_is_gone_or_silent_is_named_whatever_it_is_waited_for(tmp_path, how) -> None:
    """Gloo throws plain RuntimeErrors, which are not this rank's own."""
    _two_ranks(tmp_path, how)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: run it where there is one (two for NCCL)")
def test_stages_on_gpus_train_like_one_process(tmp_path) -> None:
    """Over NCCL with two GPUs or more, through pinned memory and sockets where both stages share one."""
    clouds, flush = shapes(tmp_path), {"schedule": "1f1b-flush", "num_microbatches": 2}
    config = settings(clouds, device="cuda", epochs=2)
    jobs = [Job(f"{len(ranks)}", plan_of(PLAIN, ranks, **flush), config) for ranks in ([[0]], [[0], [1]])]
    found = run_jobs(tmp_path, jobs)
    one, two = (torch.tensor(found[name].losses) for name in ("1", "2"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


# Some fit into their header; larger and smaller ones than those before.
_ROWS = (500, 0, 3, 700, 1, 6000, 4000, 20_000, 19_000, 3, 21_000, 60_000, 0, 50_000, 61_000, 1, 90_000, 20_000, 2)


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
    linked = how == "nccl links"
    out, back = (FORWARD, BACKWARD) if rank == 0 else (BACKWARD, FORWARD)
    peer, count = 1 - rank, 2 * len(_ROWS)
    if how == "shared memory":
        transport = SharedMemoryTransport(meet(store, rank, range(2)))
    else:
        ways = [[(peer, tag_of(direction, 3))] for direction in (out, back)]
        sockets = connect(store, rank, *ways, timeout=60, headers_alone=linked)
        transport = SocketTransport(sockets)
    if linked:  # of gloo's, which carries what is on a CPU as NCCL does what is on a GPU
        groups = {tag_of(way, 3): dist.new_group([0, 1]) for way in (FORWARD, BACKWARD)}
        links = {tag: NcclLink(group, torch.device("cpu")) for tag, group in groups.items()}
        transport = NcclTransport(links, sockets)
    expected, second = [(peer, m) for m in range(count)], count - 9  # the first minibatch of the second part
    inbox = Inbox(expected, direction=back, boundary=7, cut=3, transports=[transport])
    outbox = Outbox([transport], limit=2 * count)
    for m in range(count):
        outbox.send(_packet(out, m), peer, timeout=60, action="a", cut=3)
    kept = []  # what has come stays as it was while more comes
    for m in range(count):
        if m == second:
            inbox = Inbox(expected[m:], direction=back, boundary=7, cut=3, transports=[transport])
        kept = [*kept[-3:], (inbox.take(m, timeout=60, action="b"), _packet(back, m))]
        for found, sent in kept:
            _same(found, sent)
    outbox.finish(timeout=60)


def _same(found: Packet, sent: Packet) -> None:
    assert torch.equal(found.slots[0].rows, sent.slots[0].rows)
    for got, due in zip(found.coordinate_sets, sent.coordinate_sets, strict=True):
        assert torch.equal(got.coordinates, due.coordinates)


def _raises(kind: type[RuntimeError], message: str, action: Callable[[], object]) -> None:
    with pytest.raises(kind, match=message) as caught:
        action()
    assert type(caught.value) is kind


def _left_alone(folder: Path, how: str, rank: int) -> None:
    """Rank 1 ends or does nothing more, and rank 0 meets that wherever it may."""
    done, options = folder / "done", {"run_dir": folder, "device": "cpu", "threads": 1, "timeout": 6}
    program, identity = compile(plan_of(PLAIN, [[0, 1]]), 1), Identity.from_environment()
    os.environ["SPARSEPIPE_RENDEZVOUS"] = "file"
    if how == "silent as it starts" and rank == 1:
        dist.FileStore(str(folder / "logs" / ".rendezvous-0-0"), 2).set("ready/1", b"1")
        _until(done.exists)
        return
    if how == "silent as it starts":
        join = joined(identity, **options)
        _raises(DeadlinePassed, "rank 0 waited 6 s for the other ranks to connect; rank 1 has been in", join.__enter__)
        done.touch()
        return
    with joined(identity, **options) as process:
        connections = Connections.open(program, process, synchronise=True, share_memory=False)
        ways = [(1 - rank, tag_of(FORWARD, 0))]
        sockets = connect(dist.FileStore(str(folder / "sockets"), 2), rank, ways, ways, timeout=60)
        write_atomic(folder / f"pid{rank}", str(os.getpid()))
        if rank == 1 and how == "gone":
            os._exit(0)
        if rank == 1:
            _until(done.exists)
            os._exit(0)
        _until((folder / "pid1").exists)
        within = connections.at(0).replication.statistics
        inbox = Inbox([(1, 0)], direction=FORWARD, boundary=7, transports=[SocketTransport(sockets)])
        what = re.escape("batch norm in the forward of minibatch 3 of rank 0")

        def exchange(way: Callable[[torch.Tensor], object]) -> None:
            process.heartbeats.tell("forward", 3)
            way(torch.ones(4))

        if how == "gone":
            _until(lambda: not Path(f"/proc/{(folder / 'pid1').read_text()}/stat").exists())
            _raises(PeerLost, rf"lost another rank: .*\({what}\)", lambda: exchange(within.gather))
            _raises(PeerLost, rf"lost another rank: .*\({what}\)", lambda: exchange(within.sum))
            _raises(PeerLost, r"lost rank 1: .*\(0F0\)", lambda: inbox.take(0, timeout=60, action="0F0"))
        else:
            _raises(DeadlinePassed, rf"{what} waited 6 s for the other ranks", lambda: exchange(within.gather))
            _raises(DeadlinePassed, r"0F0 waited 1 s .*rank 1", lambda: inbox.take(0, timeout=1, action="0F0"))
            done.touch()
        os._exit(0)


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)
