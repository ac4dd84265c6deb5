"""Buffers that two ranks share: what is in one stays until the last view of it is gone; nothing outlives its owner."""

import gc
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe.runtime.failures import PeerLost
from sparsepipe.runtime.transport import shared_memory
from sparsepipe.runtime.transport.shared_memory import BufferLease, SharedMemory, meet

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd: this is not Linux")


def _pair() -> tuple[SharedMemory, SharedMemory]:
    """Ranks 0 and 1, both in this process."""
    return SharedMemory({1: os.getpid()}), SharedMemory({0: os.getpid()})


def _lend(memory: SharedMemory) -> BufferLease:
    lending = memory.lend(1)
    assert lending is not None
    return lending


def _send(sender: SharedMemory, receiver: SharedMemory, payload: torch.Tensor) -> tuple[BufferLease, torch.Tensor]:
    lending = _lend(sender)
    lending(len(payload)).copy_(payload)
    assert lending.place is not None and not lending.taken
    return lending, receiver.receive(0, *lending.place, len(payload))


def _bytes(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def _open_files() -> list[str]:
    return [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


def _files() -> list[str]:
    """The shared buffers that this process has open or mapped, cycles of objects aside."""
    for _ in range(2):
        maps = Path("/proc/self/maps").read_text().splitlines()
        if not (found := [name for name in [*_open_files(), *maps] if "memfd:sparsepipe" in name]):
            break
        gc.collect()  # only then: in a process of many tests it takes seconds
    return found


def test_a_buffer_is_lent_again_only_when_no_view_of_it_is_left() -> None:
    sender, receiver = _pair()
    first, found = _send(sender, receiver, _bytes(10_000))
    assert first.taken and receiver.held_bytes == 10_000
    rows = found.view(torch.float32)[5:]
    del found
    second, other = _send(sender, receiver, _bytes(9_000, seed=1))
    assert second.place != first.place, "rows are still a view of the first"
    assert torch.equal(rows.view(torch.uint8), _bytes(10_000)[20:])
    del rows
    assert receiver.held_bytes == 9_000
    third, _ = _send(sender, receiver, _bytes(8_000, seed=2))
    assert third.place == first.place
    assert torch.equal(other, _bytes(9_000, seed=1))
    sender.close()
    receiver.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 4)), max_size=30))
def test_what_came_stays_as_it_was_whatever_comes_after(sent) -> None:
    """Payloads of any size, each kept while some more come: buffers grow and go round beneath them."""
    sender, receiver = _pair()
    kept: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for k, (size, keep) in enumerate(sent):
        payload = _bytes(size, seed=k)
        _, found = _send(sender, receiver, payload)
        kept = [(until, due, rows) for until, due, rows in [*kept, (k + keep, payload, found)] if until > k]
        del found
        assert all(torch.equal(due, rows) for _, due, rows in kept)
        assert receiver.held_bytes == sum(len(due) for _, due, _ in kept)
    sender.close()
    receiver.close()


def test_nothing_is_left_open_or_mapped() -> None:
    assert _files() == []
    sender, receiver = _pair()
    kept = [_send(sender, receiver, _bytes(5_000 * k, seed=k))[1] for k in range(1, 5)]
    assert _files()
    sender.close()
    receiver.close()
    assert torch.equal(kept[3], _bytes(20_000, seed=4)), "what is in use lives on"
    kept.clear()
    assert _files() == []


def test_who_shares_nothing_is_lent_nothing() -> None:
    assert _pair()[0].lend(2) is None


def _meeting(count: int) -> list[SharedMemory | None]:
    store = dist.HashStore()
    with ThreadPoolExecutor(count) as ranks:
        return list(ranks.map(lambda rank: meet(store, rank, range(count)), range(count)))


def _pipes() -> list[str]:
    gc.collect()  # those of earlier tests are closed now, not between two counts
    return [name for name in _open_files() if name.startswith("pipe:")]


def test_ranks_of_one_host_find_each_other() -> None:
    before = len(_pipes())
    found = _meeting(3)
    assert [set(memory.peers) for memory in found] == [{1, 2}, {0, 2}, {0, 1}]
    assert _files() == []
    assert len(_pipes()) - before == 3 * 2 * 2, "of each pipe, one end in either rank"
    for memory in found:
        memory.close()
    assert len(_pipes()) == before


def test_a_buffer_of_a_rank_that_is_gone_is_a_lost_rank() -> None:
    sender, receiver = _pair()
    lending = _lend(sender)
    lending(10_000)
    assert lending.place is not None
    sender.close()
    with pytest.raises(PeerLost, match="lost rank 0"):
        receiver.receive(0, *lending.place, 10_000)


def test_ranks_that_cannot_read_each_other_share_nothing(monkeypatch) -> None:
    """As on two hosts, where a process id means another process or none."""
    before = len(_pipes())
    monkeypatch.setattr(shared_memory.os, "getpid", lambda: 2**22 + 1)  # above the largest there can be
    assert _meeting(2) == [None, None]
    assert len(_pipes()) == before


def test_a_pipe_of_another_process_of_that_number_is_not_waited_for() -> None:
    """Where hosts count processes each for itself, a rank of another host may name a process of this one."""
    for end in os.pipe():
        assert not shared_memory._reads(os.getpid(), end, bytes(16))
        os.close(end)


def test_sharing_takes_both(monkeypatch) -> None:
    """One of the two cannot read the other's, whichever asks first."""
    reads, asked = shared_memory._reads, itertools.count()

    def not_at_first(pid: int, fd: int, secret: bytes) -> bool:
        return next(asked) > 0 and reads(pid, fd, secret)

    before = len(_pipes())
    monkeypatch.setattr(shared_memory, "_reads", not_at_first)
    assert _meeting(2) == [None, None]
    assert len(_pipes()) == before
