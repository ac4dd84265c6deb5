"""Packets in their order: what comes in place of the one expected stops a rank, and nobody sends without end."""

import os

import pytest
import torch

from sparsepipe.runtime.channel import DEPTH, Inbox, Outbox, Shelf, Sizes, divided
from sparsepipe.runtime.failures import DeadlinePassed, PacketMismatch
from sparsepipe.runtime.packet import BACKWARD, FORWARD, Packet, Slot
from sparsepipe.runtime.pipes import Pipes, make_pipe
from sparsepipe.runtime.shared_memory import SharedMemory


def _packet(minibatch: int, *, rows: int = 4, direction: int = FORWARD) -> Packet:
    return Packet(direction, minibatch, 7, (Slot(torch.ones(rows, 8)),))


def _shared() -> tuple[SharedMemory, SharedMemory]:
    """What ranks 0 and 1 would share, both in this process."""
    (to_1, from_0), (to_0, from_1) = make_pipe(), make_pipe()
    me = os.getpid()
    return SharedMemory({1: me}, Pipes({1: to_0}, {1: from_0})), SharedMemory({0: me}, Pipes({0: to_1}, {0: from_1}))


def test_a_packet_that_is_not_the_one_expected_is_refused_with_both_sides_numbers() -> None:
    own, theirs = _shared()
    outbox = Outbox(memory=own)
    outbox.send(_packet(3), 1, timeout=5, action="0F3")
    told = "packet from rank 0: minibatch 3 sent, 4 expected; boundary 7 sent, 8 expected"
    with pytest.raises(PacketMismatch, match=told):
        Inbox([(0, 4)], direction=FORWARD, boundary=8, memory=theirs).take(4, timeout=5, action="1F4")
    inbox = Inbox([(0, 4), (0, 5)], direction=FORWARD, boundary=7, memory=theirs)
    with pytest.raises(PacketMismatch, match="1F5 asks for minibatch 5, but 4 from rank 0 comes next"):
        inbox.take(5, timeout=5, action="1F5")
    shelf = Shelf(0)
    with pytest.raises(PacketMismatch, match="1B2 asks for minibatch 2, but nothing is on the shelf"):
        shelf.take(2, timeout=5, action="1B2")
    shelf.put(_packet(3, direction=BACKWARD))
    with pytest.raises(PacketMismatch, match="1B2 asks for minibatch 2, but minibatch 3 is on the shelf"):
        shelf.take(2, timeout=5, action="1B2")
    own.close()
    theirs.close()


def test_a_rank_that_has_too_many_packets_under_way_waits_for_the_oldest() -> None:
    own, theirs = _shared()
    outbox = Outbox(limit=2, memory=own)
    inbox = Inbox([(0, m) for m in range(4)], direction=FORWARD, boundary=7, memory=theirs)
    for m in range(2):
        outbox.send(_packet(m, rows=1000), 1, timeout=5, action=f"0F{m}")
    with pytest.raises(DeadlinePassed, match=r"0F0 waited 0.05 s for rank 1 to take its packet"):
        outbox.send(_packet(2, rows=1000), 1, timeout=0.05, action="0F2")
    for m in range(2):
        assert inbox.take(m, timeout=5, action=f"1F{m}").minibatch == m
    for m in range(2, 4):
        outbox.send(_packet(m, rows=1000), 1, timeout=0.05, action=f"0F{m}")
    own.close()
    theirs.close()


@pytest.mark.parametrize(("rows", "messages"), [(4, 1), (1000, 1), (20_000, 1), (50_000, 2)])
def test_packets_of_a_like_size_are_one_message_each_through_sockets_and_large_ones_two(rows, messages) -> None:
    """Those at first, of which nothing is posted ahead, are a header and the rest, unless they fit into the header."""
    sizes, largest = Sizes(), _packet(0, rows=rows * 6 // 5)
    first = [divided(largest, sizes) for _ in range(DEPTH)]
    assert [sum(part is not None for part in parts) for parts in first] == DEPTH * [1 + (rows > 50)]
    for m in range(9):
        parts = [part for part in divided(_packet(m, rows=rows), sizes) if part is not None]
        assert len(parts) == messages
        assert sum(part.nbytes for part in parts) >= rows * 32
