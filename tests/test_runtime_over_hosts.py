"""Sums over replicas of which several share a host: their order to the bit, and what waits for whom."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from processes import ENOUGH, until
from runtime_jobs import PLAIN, plan_of, run_ranks

from sparsepipe.runtime.failures import DeadlinePassed, PeerLost
from sparsepipe.runtime.processes.identity import Identity
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.replication.over_hosts import replicas_by_host
from sparsepipe.runtime.worker.connections import Connections
from sparsepipe.runtime.worker.join import joined
from sparsepipe.values.schedule import compile

HOSTS = ((3, 4), (0, 1, 5), (2,))  # as a cluster may have them: not in order
BY_HOST = ((0, 1, 4), (2,), (3,))  # of ranks 0 to 4, which a test below has
LENGTHS = (1, 7, 100_003)


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([5, 4, 2, 0, 3], [[0, 5], [2], [3, 4]]),
        ([2, 3, 4], [[2], [3, 4]]),
        ([0, 2, 3], []),  # each on a host of its own
        ([0, 1, 5], []),  # all on one
        ([0], []),
    ],
)
def test_replicas_are_told_apart_by_host_where_some_share_one_and_not_all(ranks: list, found: list) -> None:
    assert replicas_by_host(ranks, HOSTS) == found
    assert replicas_by_host(ranks, ()) == []


def _values(rank: int, length: int) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(1000 * rank + length))


def _in_order(of_rank: list[torch.Tensor]) -> torch.Tensor:
    a, b, c, d, e = of_rank
    return ((a + b) + e) + c + d  # host by host, then host after host


def test_a_sum_over_hosts_has_the_bits_of_its_order(tmp_path: Path) -> None:
    """On five ranks, several begun before one is waited for; in a plan's order they come out, whoever is slow."""
    orders = [_in_order([_values(rank, length) for rank in range(5)]) for length in LENGTHS]
    flat = [sum(_values(rank, length) for rank in range(5)) for length in LENGTHS]
    assert not all(map(torch.equal, orders, flat)), "another order has other bits: the test can fail"
    _run(_sums, 5, tmp_path)


def _sums(folder: Path, rank: int) -> None:
    process, connections = _opened(folder, 5, BY_HOST)
    group = connections.at(0).replication._replicas
    assert group.over_hosts is not None and len(group.groups) == {0: 3, 1: 2, 4: 2, 2: 2, 3: 2}[rank]
    values = [_values(rank, length) for length in LENGTHS]
    works = [group.start_sum(own) for own in values]
    for own, work in zip(values, works, strict=True):
        group.finish(work, what="averaging 0U0")
        assert torch.equal(own, _in_order([_values(other, len(own)) for other in range(5)])), len(own)
    own = _values(rank, 5)
    group.broadcast(own, 3, what="targets")
    assert torch.equal(own, _values(3, 5))
    connections.close()
    until(lambda: threading.active_count() == 1, "its thread ends")


@pytest.mark.parametrize("how", ["gone", "silent"])
def test_a_replica_on_another_host_that_is_gone_or_silent_is_told(tmp_path: Path, how: str) -> None:
    """Rank 3 does not come to a sum: rank 2 waits for it, rank 0 for rank 2 over the network, rank 1 for rank 0."""
    _run(_left_alone, 4, tmp_path, how)


def _left_alone(folder: Path, how: str, rank: int) -> None:
    process, connections = _opened(folder, 4, ((0, 1), (2, 3)))
    group = connections.at(0).replication._replicas
    if rank == 3:
        if how == "silent":
            process.store.wait(["0", "1", "2"], timedelta(seconds=ENOUGH))
        os._exit(0)
    if how == "gone":
        kind, message = PeerLost, r"lost another rank: .*\(averaging 0U0 of rank"
    else:
        kind, message = DeadlinePassed, "averaging 0U0 of rank . waited 3 s for the other ranks"
        group = replace(group, process=replace(process, timeout=3))
    with pytest.raises(kind, match=message) as caught:
        group.sum(torch.ones(10), what="averaging 0U0")
    assert type(caught.value) is kind
    if how == "silent":  # who ends takes its connections with it, which is another thing to meet
        process.store.set(str(rank), b"1")
        process.store.wait(["0", "1", "2"], timedelta(seconds=ENOUGH))
    os._exit(0)


def _run(work: Callable[..., None], count: int, folder: Path, *arguments: object) -> None:
    (folder / "logs").mkdir()
    more = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run_ranks(work, count, folder, *arguments, logs=folder, limit=ENOUGH, more=more)


def _opened(folder: Path, count: int, hosts: tuple) -> tuple[Process, Connections]:
    """Connect the ranks of a plan of one stage, which are told that they are on these hosts."""
    options = {"run_dir": folder, "device": "cpu", "threads": 1, "timeout": ENOUGH}
    process = replace(joined(Identity.from_environment(), **options).__enter__(), hosts=hosts)
    return process, Connections.open(compile(plan_of(PLAIN, [list(range(count))]), 1), process, share_memory=False)
