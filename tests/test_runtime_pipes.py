"""Headers through pipes: in order for each tag, whoever reads first; no wait without an end; gone with their peer."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.runtime.failures import DeadlinePassed, PeerLost
from sparsepipe.runtime.transport.packet import HEADER_INTEGERS
from sparsepipe.runtime.transport.shared_memory import Pipes

MORE_THAN_A_PIPE_HOLDS = 200


def _ring(count: int) -> list[Pipes]:
    """A pipe from each of `count` ranks to each other, all in this process."""
    ends = {(source, to): os.pipe() for source in range(count) for to in range(count) if source != to}
    return [
        Pipes(
            {source: reads for (source, to), (reads, _) in ends.items() if to == rank},
            {to: writes for (source, to), (_, writes) in ends.items() if source == rank},
        )
        for rank in range(count)
    ]


def _header(number: int) -> torch.Tensor:
    return torch.arange(HEADER_INTEGERS) + number


def _take(pipes: Pipes, peer: int, tag: int, *, seconds: float = 20) -> torch.Tensor:
    return pipes.take(peer, tag, deadline=time.monotonic() + seconds, message="1F0 waited for rank 0")


def _put(pipes: Pipes, peer: int, tag: int, number: int, *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    pipes.put(peer, tag, _header(number), deadline=deadline, message="0F0 waited for rank 1")


@given(st.lists(st.integers(1, 4), max_size=8), st.randoms())
def test_each_tag_keeps_its_order_whichever_is_asked_for_first(tags, random) -> None:
    sender, receiver = _ring(2)
    for number, tag in enumerate(tags):
        _put(sender, 1, tag, number)
    for tag in random.sample(sorted(set(tags)), len(set(tags))):
        for number in (k for k, other in enumerate(tags) if other == tag):
            assert torch.equal(_take(receiver, 0, tag), _header(number))
    sender.close()
    receiver.close()


def test_ranks_that_all_write_before_they_read_do_not_wait_for_each_other() -> None:
    """Round a ring of three: each writes more than a pipe holds to the next, then reads."""
    ring = _ring(3)

    def work(rank: int) -> None:
        for number in range(MORE_THAN_A_PIPE_HOLDS):
            _put(ring[rank], (rank + 1) % 3, 7, number)
        for number in range(MORE_THAN_A_PIPE_HOLDS):
            assert torch.equal(_take(ring[rank], (rank - 1) % 3, 7), _header(number))

    with ThreadPoolExecutor(3) as ranks:
        list(ranks.map(work, range(3)))
    for pipes in ring:
        pipes.close()


def test_what_a_peer_sent_before_its_end_arrives_and_then_it_is_lost() -> None:
    sender, receiver = _ring(2)
    _put(sender, 1, 7, 5)
    assert not receiver.ended(0)
    sender.close()
    assert receiver.ended(0)
    assert torch.equal(_take(receiver, 0, 7), _header(5))
    for lost in (lambda: _take(receiver, 0, 7), lambda: _put(receiver, 0, 7, 1)):
        with pytest.raises(PeerLost, match="lost rank 0"):
            lost()
    receiver.close()


def test_another_rank_may_leave_while_one_waits_for_its_peer() -> None:
    first, second, third = _ring(3)
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(_take, first, 1, 7)
        third.close()
        time.sleep(0.05)
        _put(second, 0, 7, 3)
        assert torch.equal(taken.result(), _header(3))
    first.close()
    second.close()


def test_no_wait_without_an_end() -> None:
    sender, receiver = _ring(2)
    with pytest.raises(DeadlinePassed, match="1F0.*rank 0") as caught:
        _take(receiver, 0, 7, seconds=0.02)
    assert caught.value.peer == 0
    with pytest.raises(DeadlinePassed, match="0F0.*rank 1") as caught:
        for number in range(MORE_THAN_A_PIPE_HOLDS):
            _put(sender, 1, 7, number, seconds=0.02)
    assert caught.value.peer == 1
    with pytest.raises(DeadlinePassed):  # nor does what is left of one keep another awake
        _take(sender, 1, 7, seconds=0.02)
    sender.close()
    receiver.close()
