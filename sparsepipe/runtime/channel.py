"""Packets between adjacent stages: receives posted ahead by a thread, sends kept until done, every wait limited.

Each packet is two messages, header and payload, on tags of their own for each cut and direction, so that neither the
two directions nor headers and payloads nor the several cuts between a pair of ranks can be taken for each other. What
goes from one stage of a rank to another of the same stays in memory, on a shelf.

Headers go over gloo. So do payloads, from pinned memory where they come from a GPU; where every rank has a GPU of its
own they go over NCCL, from device to device, on a wire of their own: its order is then that of the headers.

    sender   isend header, isend payload ─────►  Inbox   thread 1: header arrived → post the receive of its payload
             (kept until the peer has them)              thread 2: payload arrived → packet, for the worker to take
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .failures import DeadlinePassed, PacketMismatch, PeerLost
from .packet import HEADER_INTEGERS, Packet, decode, encode, payload_bytes, sent_at

_CPU, _NOTHING = torch.device("cpu"), torch.empty(0, dtype=torch.uint8)
_DIRECTIONS = ("forward", "backward")


def _tags(direction: int, cut: int) -> tuple[int, int]:
    return 4 * cut + 2 * direction + 1, 4 * cut + 2 * direction + 2


@dataclass(frozen=True)
class Wire:
    """What carries the payloads of one cut in one direction from device to device: a group that carries nothing else.

    NCCL knows no tags, and two ranks that each send before they receive would wait for each other on one communicator.
    """

    group: Any
    device: torch.device


class Inbox:
    """The packets of one direction that one segment of the schedule will bring, in the order of the action list.

    `expected` lists (peer, minibatch). A few receives are always posted: nothing is sent before its receive is.
    """

    def __init__(
        self,
        expected: Sequence[tuple[int, int]],
        *,
        direction: int,
        boundary: int,
        cut: int = 0,
        wire: Wire | None = None,
        pinned: bool = False,
        depth: int = 2,
        link_seconds: Callable[[int, int], float] | None = None,
    ) -> None:
        self._expected = tuple(expected)
        self._direction, self._boundary, self._depth = direction, boundary, depth
        self._wire = wire
        # Of a buffer: on the wire's device, else what a GPU can copy from by itself where there is one.
        self._memory: dict[str, Any] = {"device": wire.device} if wire else {"pin_memory": pinned}
        self._tags = _tags(direction, cut)
        self._arrived: queue.SimpleQueue[Packet | BaseException] = queue.SimpleQueue()
        self._taken = 0
        self._link_seconds = link_seconds  # (peer, bytes) -> seconds, to act as a slower link than this one
        self._link_free: dict[int, float] = {}
        # Packets whose payload is on its way or that wait for the worker: more are not let in (back-pressure).
        self._room = threading.Semaphore(depth + 1)
        self._coming: queue.SimpleQueue[tuple[int, int, Tensor, Tensor, Any] | BaseException | None] = (
            queue.SimpleQueue()
        )
        self._coming_first = self._coming_last = 0  # packets that thread 2 has handed on, and was given
        if self._expected:
            for task in (self._receive_headers, self._receive_payloads):
                name = f"inbox {_DIRECTIONS[direction]}"
                threading.Thread(target=task, name=name, daemon=True).start()

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next. Raises DeadlinePassed, PeerLost or PacketMismatch."""
        peer, due = self._expected[self._taken]
        if due != minibatch:
            raise PacketMismatch(f"{action} asks for minibatch {minibatch}, but {due} from rank {peer} comes next")
        try:
            packet = self._arrived.get(timeout=timeout)
        except queue.Empty:
            raise DeadlinePassed(
                f"{action} waited {timeout:g} s for the {_DIRECTIONS[self._direction]} of minibatch {minibatch} "
                f"from rank {peer}",
                peer=peer,
            ) from None
        if isinstance(packet, BaseException):
            raise packet
        self._taken += 1
        self._room.release()
        return packet

    def peer(self) -> int:
        """The rank that sends the next packet."""
        return self._expected[self._taken][0]

    def _receive_headers(self) -> None:
        """Await one header after the other, and post the receive of its payload as soon as its size is known."""
        header_tag, payload_tag = self._tags
        posted: deque[tuple[int, int, Tensor, Any]] = deque()
        upcoming = iter(self._expected)
        try:
            for _ in self._expected:
                while len(posted) < self._depth and (following := next(upcoming, None)) is not None:
                    header = torch.empty(HEADER_INTEGERS, dtype=torch.int64)
                    posted.append((*following, header, dist.irecv(header, following[0], tag=header_tag)))
                peer, minibatch, header, work = posted.popleft()
                self._wait(work, peer, minibatch)
                self._room.acquire()
                size, work = payload_bytes(header), None
                payload = torch.empty(size, dtype=torch.uint8, **self._memory) if size else _NOTHING
                if size:
                    work = dist.irecv(payload, peer, group=self._wire and self._wire.group, tag=payload_tag)
                if work is None and self._link_seconds is None and self._coming_first == self._coming_last:
                    self._arrived.put(self._checked(decode(header, payload), peer, minibatch))  # all of it is here
                    continue
                self._coming_last += 1
                self._coming.put((peer, minibatch, header, payload, work))
            self._coming.put(None)
        except BaseException as error:  # handed on to the worker, who raises it
            self._coming.put(error)

    def _receive_payloads(self) -> None:
        """Await one payload after the other and make packets of them."""
        try:
            while True:
                coming = self._coming.get()
                if coming is None:
                    return
                if isinstance(coming, BaseException):
                    raise coming
                peer, minibatch, header, payload, work = coming
                if work is not None:
                    self._wait(work, peer, minibatch)
                if self._link_seconds:
                    self._hold_back(sent_at(header), peer, self._link_seconds(peer, len(payload)))
                self._arrived.put(self._checked(decode(header, payload), peer, minibatch))
                self._coming_first += 1
        except BaseException as error:  # handed to the worker, who raises it
            self._arrived.put(error)

    def _hold_back(self, sent: float, peer: int, seconds: float) -> None:
        """Wait until a packet sent at `sent` would be here over a link that moves one packet after the other."""
        begin = max(sent, self._link_free.get(peer, 0.0))
        self._link_free[peer] = begin + seconds
        time.sleep(max(0.0, begin + seconds - time.monotonic()))

    def _wait(self, work: Any, peer: int, minibatch: int) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            what = f"{_DIRECTIONS[self._direction]} of minibatch {minibatch}"
            raise PeerLost(f"lost rank {peer} while waiting for the {what}: {_first_line(error)}") from error

    def _checked(self, packet: Packet, peer: int, minibatch: int) -> Packet:
        got = (packet.direction, packet.minibatch, packet.boundary)
        due = (self._direction, minibatch, self._boundary)
        if got != due:
            named = ("direction", "minibatch", "boundary")
            sides = "; ".join(
                f"{name} {theirs} sent, {ours} expected"
                for name, theirs, ours in zip(named, got, due, strict=True)
                if theirs != ours
            )
            raise PacketMismatch(f"packet from rank {peer}: {sides}")
        return packet


class Shelf:
    """An Inbox without a wire: what one stage of this rank puts there for the next, in order."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._packets: deque[Packet] = deque()

    def put(self, packet: Packet) -> None:
        """Lay a packet down, free of the graph that made its rows."""
        slots = tuple(replace(slot, rows=slot.rows.detach()) for slot in packet.slots)
        self._packets.append(replace(packet, slots=slots))

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next: the rank's own list has put it there before."""
        found = self._packets.popleft() if self._packets else None
        if found is None or found.minibatch != minibatch:
            there = "nothing" if found is None else f"minibatch {found.minibatch}"
            raise PacketMismatch(f"{action} asks for minibatch {minibatch}, but {there} is on the shelf")
        return found

    def peer(self) -> int:
        return self._rank


class Outbox:
    """Packets on their way out of this rank: sent without waiting, their memory kept until the peer has them."""

    def __init__(self, *, limit: int = 8) -> None:
        self._limit = limit  # packets under way; the schedule bounds them too
        self._under_way: deque[tuple[int, str, list[tuple[Any, Tensor]]]] = deque()

    def send(
        self, packet: Packet, peer: int, *, timeout: float, action: str, cut: int = 0, wire: Wire | None = None
    ) -> int:
        """Start sending; wait for the oldest packet only where too many are under way. Returns the bytes sent."""
        while len(self._under_way) >= self._limit:
            self._finish_oldest(time.monotonic() + timeout, timeout)
        header, payload = encode(packet, device=wire.device if wire else _CPU)
        header_tag, payload_tag = _tags(packet.direction, cut)
        try:
            works = [(dist.isend(header, peer, tag=header_tag), header)]
            if len(payload):
                works.append((dist.isend(payload, peer, group=wire and wire.group, tag=payload_tag), payload))
        except RuntimeError as error:
            raise PeerLost(f"lost rank {peer} while sending for {action}: {_first_line(error)}") from error
        self._under_way.append((peer, action, works))
        return header.nbytes + payload.nbytes

    def finish(self, *, timeout: float) -> None:
        """Wait until everything sent has been taken. Raises DeadlinePassed or PeerLost."""
        deadline = time.monotonic() + timeout
        while self._under_way:
            self._finish_oldest(deadline, timeout)

    def _finish_oldest(self, deadline: float, timeout: float) -> None:
        peer, action, works = self._under_way.popleft()
        for work, _ in works:
            wait_for(work, deadline, f"{action} waited {timeout:g} s for rank {peer} to take its packet", peer=peer)


def wait_for(work: Any, deadline: float, message: str, *, peer: int) -> None:
    """Wait for one communication until `deadline` (time.monotonic). Raises DeadlinePassed (`message`) or PeerLost."""
    left = max(deadline - time.monotonic(), 0.001)
    try:
        work.wait(timedelta(seconds=left))
    except RuntimeError as error:
        if time.monotonic() >= deadline - 0.01:
            raise DeadlinePassed(message, peer=peer) from error
        raise PeerLost(f"lost rank {peer}: {_first_line(error)} ({message.split(' waited')[0]})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
