"""Packets in their order: what comes in place of the one expected stops a rank, and nobody sends without end."""

import contextlib
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from coded import raises
from processes import ENOUGH

from sparsepipe.runtime.failures import DeadlinePassed, PeerLost
from sparsepipe.runtime.transport.channel import Inbox, LocalQueue, Outbox, tag_of
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD, HEADER_BYTES, Packet, Slot, encode
from sparsepipe.runtime.transport.shared_memory import Pipes, SharedMemory, SharedMemoryTransport, make_pipe
from sparsepipe.runtime.transport.sockets import DEPTH, Sockets, SocketTransport, connect
from sparsepipe.runtime.wire import handshake
from sparsepipe.runtime.wire.frames import LENGTHS_BYTES, lengths


def _packet(minibatch: int, *, rows: int = 4, direction: int = FORWARD) -> Packet:
    return Packet(direction, minibatch, 7, (Slot(torch.ones(rows, 8)),))


def _shared() -> tuple[SharedMemory, SharedMemory]:
    """What ranks 0 and 1 would share, both in this process."""
    (to_1, from_0), (to_0, from_1) = make_pipe(), make_pipe()
    me = os.getpid()
    return SharedMemory({1: me}, Pipes({1: to_0}, {1: from_0})), SharedMemory({0: me}, Pipes({0: to_1}, {0: from_1}))


def test_a_packet_that_is_not_the_one_expected_is_refused_with_both_sides_numbers() -> None:
    own, theirs = _shared()
    outbox = Outbox([SharedMemoryTransport(own)])
    outbox.send(_packet(3), 1, timeout=ENOUGH, action="0F3")
    error = ("packet.sides_differ", "0", "minibatch 3 sent, 4 expected; boundary 7 sent, 8 expected")
    with raises(*error):
        inbox = Inbox([(0, 4)], direction=FORWARD, boundary=8, transports=[SharedMemoryTransport(theirs)])
        inbox.take(4, timeout=ENOUGH, action="1F4")
    inbox = Inbox([(0, 4), (0, 5)], direction=FORWARD, boundary=7, transports=[SharedMemoryTransport(theirs)])
    with raises("packet.other_minibatch", action="1F5", minibatch=5, due=4, peer=0):
        inbox.take(5, timeout=ENOUGH, action="1F5")
    local = LocalQueue(0)
    with raises("packet.other_minibatch", "nothing", action="1B2", minibatch=2):
        local.take(2, timeout=ENOUGH, action="1B2")
    local.put(_packet(3, direction=BACKWARD))
    with raises("packet.other_minibatch", "minibatch 3", action="1B2", minibatch=2):
        local.take(2, timeout=ENOUGH, action="1B2")
    own.close()
    theirs.close()


def test_a_rank_that_has_too_many_packets_under_way_waits_for_the_oldest() -> None:
    own, theirs = _shared()
    outbox = Outbox([SharedMemoryTransport(own)], limit=2)
    inbox = Inbox([(0, m) for m in range(4)], direction=FORWARD, boundary=7, transports=[SharedMemoryTransport(theirs)])
    for m in range(2):
        outbox.send(_packet(m, rows=1000), 1, timeout=ENOUGH, action=f"0F{m}")
    with pytest.raises(DeadlinePassed, match="0F0.*0.05 s.*rank 1"):
        outbox.send(_packet(2, rows=1000), 1, timeout=0.05, action="0F2")
    for m in range(2):
        assert inbox.take(m, timeout=ENOUGH, action=f"1F{m}").minibatch == m
    for m in range(2, 4):
        outbox.send(_packet(m, rows=1000), 1, timeout=ENOUGH, action=f"0F{m}")
    own.close()
    theirs.close()


TAG = tag_of(FORWARD, 1)


def _joined_by_sockets() -> tuple[Sockets, socket.socket]:
    """Rank 1's end of a connection, and rank 0's bare one."""
    theirs, own = socket.socketpair()
    return Sockets({}, {(0, TAG): theirs}), own


def _framed(packet: Packet) -> bytes:
    header, payload = encode(packet)
    return lengths(header.nbytes, payload.nbytes) + header.numpy().tobytes() + payload.numpy().tobytes()


def test_a_socket_brings_a_few_packets_ahead_and_then_no_more() -> None:
    """What comes byte by byte is put together; who sends without end is stopped, and goes on when packets are taken."""
    sockets, peer = _joined_by_sockets()
    frame = _framed(_packet(0, rows=100))
    for byte in frame:
        peer.sendall(bytes([byte]))
    inbox = Inbox(
        [(0, m) for m in range(200)], direction=FORWARD, boundary=7, cut=1, transports=[SocketTransport(sockets)]
    )
    assert torch.equal(inbox.take(0, timeout=ENOUGH, action="1F0").slots[0].rows, torch.ones(100, 8))
    peer.settimeout(2)
    sent = 1
    with pytest.raises(TimeoutError):
        while True:  # what the system itself holds is not much
            left = _framed(_packet(sent, rows=20_000))
            sent += 1
            while left:
                left = left[peer.send(left) :]
    assert DEPTH < sent < 190
    for m in range(1, sent - 1):
        assert inbox.take(m, timeout=ENOUGH, action=f"1F{m}").minibatch == m
    peer.sendall(left)
    assert inbox.take(sent - 1, timeout=ENOUGH, action="1F").slots[0].rows.shape == (20_000, 8)
    peer.close()
    sockets.close()


def test_the_end_of_a_connection_comes_behind_what_it_brought_and_is_that_of_its_peer() -> None:
    sockets, peer = _joined_by_sockets()
    whole = _framed(_packet(0, rows=1000))
    peer.sendall(whole + whole[:-1])
    peer.close()
    inbox = Inbox([(0, 0), (0, 1)], direction=FORWARD, boundary=7, cut=1, transports=[SocketTransport(sockets)])
    assert inbox.take(0, timeout=ENOUGH, action="1F0").minibatch == 0
    for _ in range(2):
        lost = r"lost rank 0: its end of a connection is closed \(1F1\)"
        with pytest.raises(PeerLost, match=lost):
            inbox.take(1, timeout=ENOUGH, action="1F1")
    sockets.close()


def test_who_does_not_read_or_is_gone_is_named_by_who_sends() -> None:
    theirs, own = socket.socketpair()
    sockets = Sockets({(1, TAG): own}, {})
    outbox = Outbox([SocketTransport(sockets)], limit=4)
    with pytest.raises(DeadlinePassed, match=r"0F\d.*0.2 s.*rank 1"):
        for m in range(9):
            outbox.send(_packet(m, rows=100_000), 1, timeout=0.2, action=f"0F{m}", cut=1)
    theirs.close()
    with pytest.raises(PeerLost, match=r"rank 1.*0F\d"):
        outbox.finish(timeout=ENOUGH)
    sockets.close()


def test_a_stranger_who_knows_no_secret_is_taken_for_no_rank(monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store, found = dist.HashStore(), {}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connect, store, 1, [], [(0, TAG)], timeout=ENOUGH)
        host, port, _ = json.loads(store.get("socket/1"))
        assert host == "127.0.0.1"
        for said in (b"", b"hello", bytes(32)):
            with socket.create_connection((host, port)) as stranger:
                stranger.sendall(said)
        found[0] = connect(store, 0, [(1, TAG)], [], timeout=ENOUGH)
        found[1] = waiting.result()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
    outbox = Outbox([SocketTransport(found[0])])
    outbox.send(_packet(5, rows=70), 1, timeout=ENOUGH, action="0F5", cut=1)
    inbox = Inbox([(0, 5)], direction=FORWARD, boundary=7, cut=1, transports=[SocketTransport(found[1])])
    assert inbox.take(5, timeout=ENOUGH, action="1F5").slots[0].rows.shape == (70, 8)
    outbox.finish(timeout=ENOUGH)
    for sockets in found.values():
        sockets.close()


def test_strangers_cost_a_meeting_no_more_than_their_own_connections(monkeypatch) -> None:
    """Each that said nothing cost as long as it was listened to, one after the other, past the deadline."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(handshake, "SECONDS", 2 * ENOUGH)  # whoever waits for one stranger is past the deadline
    store = dist.HashStore()
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as strangers:
        waiting = pool.submit(connect, store, 1, [], [(0, TAG)], timeout=ENOUGH)
        host, port, _ = json.loads(store.get("socket/1"))
        for said in (b"", b"half of a reply", *[b""] * 100):
            stranger = strangers.enter_context(socket.create_connection((host, port)))
            stranger.sendall(said)
        own = connect(store, 0, [(1, TAG)], [], timeout=ENOUGH)
        theirs = waiting.result()
    for sockets in (own, theirs):
        sockets.close()


def test_strangers_do_not_hold_up_a_deadline(monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(handshake, "SECONDS", 2 * ENOUGH)
    store = dist.HashStore()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connect, store, 1, [], [(0, TAG)], timeout=1)
        host, port, _ = json.loads(store.get("socket/1"))
        with socket.create_connection((host, port)), socket.create_connection((host, port)):
            with pytest.raises(DeadlinePassed, match="rank 1.*1 s.*rank 0"):
                waiting.result(timeout=ENOUGH)


@pytest.mark.parametrize("length", [2**62, 2**40, 17, 2**64 - 1])
def test_a_frame_is_as_long_as_its_header_says(length: int) -> None:
    """A length of 2^62 was asked of the memory as it stood."""
    sockets, peer = _joined_by_sockets()
    frame = _framed(_packet(0, rows=100))
    peer.sendall(lengths(HEADER_BYTES, length) + frame[LENGTHS_BYTES:])
    inbox = Inbox([(0, 0)], direction=FORWARD, boundary=7, cut=1, transports=[SocketTransport(sockets)])
    with raises("packet.frame_malformed", length):
        inbox.take(0, timeout=ENOUGH, action="1F0")
    peer.close()
    sockets.close()


@pytest.mark.parametrize("headers_alone", [True, False])
def test_a_header_comes_alone_where_something_else_carries_the_payload_and_nowhere_else(headers_alone: bool) -> None:
    """A frame without its payload was taken for one whose payload NCCL brings, whether there was NCCL or not."""
    theirs, peer = socket.socketpair()
    sockets = Sockets({}, {(0, TAG): theirs}, headers_alone=headers_alone)
    header, payload = encode(_packet(0, rows=100))
    peer.sendall(lengths(HEADER_BYTES, 0) + header.numpy().tobytes() + _framed(_packet(1, rows=100)))
    taken = []
    with raises("packet.frame_malformed"):
        for _ in range(2):
            taken.append(sockets.take(0, TAG, deadline=time.monotonic() + ENOUGH, message="1F0 waited"))
    assert len(taken) == headers_alone and len(payload) > 0
    peer.close()
    sockets.close()


def test_a_rank_that_connects_to_nobody_is_named(monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = dist.HashStore()
    with pytest.raises(DeadlinePassed, match="rank 0.*0.1 s.*rank 3"):
        connect(store, 0, [], [(3, TAG)], timeout=0.1)
    with pytest.raises(DeadlinePassed, match="rank 0.*0.1 s.*rank 3"):
        connect(store, 0, [(3, TAG)], [], timeout=0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.set("socket/3", json.dumps(["127.0.0.1", port, "00"]))
    with pytest.raises(PeerLost, match="rank 3"):
        connect(store, 0, [(3, TAG)], [], timeout=ENOUGH)
