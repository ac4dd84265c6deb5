"""Packets between GPUs of their own: headers by sockets, payloads from device to device by NCCL.

Their order is that of the headers. A receive for more than is sent does not end, and one that waits for long occupies
the GPU: so none is posted before its header is available. A thread for each peer and tag does that, as soon as the
header says how large it is: no one needs to know how many packets will come, and none is received that was not sent.
"""

import math
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import DeadlinePassed, seconds_left, translated, wait_for
from .packet import Packet, encode, payload_bytes
from .sockets import DEPTH, Sockets, Way

_NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class NcclLink:
    """Channel for the payloads of one cut in one direction from device to device: a group that carries nothing else.

    NCCL knows no tags, and two ranks that each send before they receive would wait for each other on one communicator.
    """

    group: Any
    device: torch.device


class NcclTransport:
    """The member of `Transport` over links, by tag, alongside sockets that carry headers alone."""

    def __init__(self, links: Mapping[int, NcclLink], headers: Sockets) -> None:
        self._links, self._headers = links, headers
        self._turns = {tag: threading.Lock() for tag in links}
        self._arriving: dict[Way, _Arriving] = {}  # of those from whom something was expected

    def reaches(self, peer: int) -> bool:
        return peer in self._headers.peers

    def send(self, packet: Packet, peer: int, tag: int, *, deadline: float, message: str) -> "_OnLink":
        link = self._links[tag]
        header, payload = encode(packet, device=link.device)
        works: list[Any] = [self._headers.send(peer, tag, header, _NOTHING)]
        if len(payload):
            with translated(message, peer=peer):
                works.append(dist.isend(payload, peer, group=link.group))
        return _OnLink(peer, works, payload)

    def expect(self, peers: Sequence[int], tag: int) -> None:
        for way in {(peer, tag) for peer in peers} - self._arriving.keys():
            self._arriving[way] = _Arriving(self._links[tag], self._headers, way, self._turns[tag])

    def receive(self, peer: int, tag: int, *, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        return self._arriving[peer, tag].take(deadline, message)


@dataclass(frozen=True, eq=False)
class _OnLink:
    """A packet under way in two parts, and the payload's memory."""

    peer: int
    works: Sequence[Any]
    payload: Tensor

    def wait(self, deadline: float, message: str) -> None:
        for work in self.works:
            wait_for(work, deadline, message, peer=self.peer)


class _Arriving:
    """A peer's packets with one tag, and the thread that receives their payloads, `DEPTH` ahead of who takes them.

    It ends when the sockets are closed.
    """

    def __init__(self, link: NcclLink, headers: Sockets, way: Way, turn: threading.Lock) -> None:
        """`turn`: of the threads of a link, which opens a communicator for each peer as it first receives."""
        self._link, self._headers, self._way, self._turn = link, headers, way, turn
        self._arrived: queue.Queue[tuple[Tensor, Tensor] | BaseException] = queue.Queue(maxsize=DEPTH)
        threading.Thread(target=self._bring, name=f"nccl {way}", daemon=True).start()

    def take(self, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        peer, _ = self._way
        try:
            found = self._arrived.get(timeout=seconds_left(deadline))
        except queue.Empty:
            raise DeadlinePassed(message, peer=peer) from None
        if isinstance(found, BaseException):
            with translated(message, peer=peer):
                raise found
        return found

    def _bring(self) -> None:
        peer, tag = self._way
        try:
            while True:
                header, _ = self._headers.take(peer, tag, deadline=math.inf, message="receives")
                payload = torch.empty(payload_bytes(header), dtype=torch.uint8, device=self._link.device)
                if len(payload):
                    with self._turn:
                        receiving = dist.irecv(payload, peer, group=self._link.group)
                    assert receiving is not None, "both ranks are of the group"
                    receiving.wait()
                self._arrived.put((header, payload))
                del header, payload  # a peer that sends nothing more would have them kept
        except BaseException as error:  # handed on to the worker, who raises it
            self._arrived.put(error)
