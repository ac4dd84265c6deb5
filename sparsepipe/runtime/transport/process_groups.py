"""Process groups of torch: NCCL between GPUs, and gloo whose connections are encrypted."""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import DeadlinePassed, PacketMismatch, PeerLost, seconds_left, translated, wait_for
from ..in_order import Begun, InOrder
from ..wire.encryption import Encryption
from .channel import Sending
from .packet import Packet, Slot, decode, encode, payload_bytes
from .sockets import DEPTH, Sockets, SocketTransport, Way, connect

_NOTHING = torch.empty(0, dtype=torch.uint8)


# Packets between GPUs of their own: headers by sockets, payloads from device to device by NCCL
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


BACKEND = "encrypted"  # in torch.distributed's words
_TAG = 0  # of all its connections
_PIECE_BYTES = 2**20
_LONG = float("inf")  # deadlines are kept where somebody waits for the work


def use(encryption: Encryption, *, address: str) -> None:
    """Have torch.distributed know the backend, whose groups listen at `address`. Once in a process."""
    make = partial(_opened, encryption=encryption, address=address)
    dist.Backend.register_backend(BACKEND, make, devices=["cpu", "cuda"])


def _opened(
    store: dist.Store, rank: int, size: int, timeout: timedelta, *, encryption: Encryption, address: str
) -> "EncryptedGroup":
    ways = {(peer, _TAG) for peer in range(size) if peer != rank}
    told: dict[str, Any] = {"timeout": timeout.total_seconds(), "address": address, "encryption": encryption}
    return EncryptedGroup(rank, size, connect(store, rank, ways, ways, **told))


class EncryptedGroup(dist.ProcessGroup):
    """The group of `size` ranks in which this one is `rank`. All that it does is begun here and done in its thread."""

    def __init__(self, rank: int, size: int, sockets: Sockets) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch has it, its stubs leave it out
        self._rank, self._ranks = rank, range(size)
        self._others = [peer for peer in self._ranks if peer != rank]
        self._sockets, self._transport = sockets, SocketTransport(sockets)
        self._thread = InOrder("encrypted sums")
        self._count = 0  # of what was done: packets say which they are of

    def getBackendName(self) -> str:
        return BACKEND

    def _set_group_name(self, name: Any) -> None:
        self._name = name  # torch keeps it in backends in C++, of which there is none here

    @property
    def group_name(self) -> Any:
        return self._name

    # torch.distributed calls these with lists; its other overloads are for callers in C++.

    def allreduce(self, tensors: list[Tensor], options: Any) -> Begun:  # type: ignore[override]
        assert options.reduceOp == dist.ReduceOp.SUM, "nothing else is asked for"
        return self._begin(partial(self._sum, tensors[0]))

    def broadcast(self, tensors: list[Tensor], options: Any) -> Begun:  # type: ignore[override]
        return self._begin(partial(self._broadcast, tensors[0], options.rootRank))

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None
    ) -> Begun:
        return self._begin(partial(self._gather, outputs[0], inputs[0]))

    def alltoall_base(  # type: ignore[override]
        self, output: Tensor, own: Tensor, output_sizes: list[int], sizes: list[int], options: Any = None
    ) -> Begun:
        assert not output_sizes and not sizes, "nothing but equal parts is asked for"
        return self._begin(partial(self._exchange, output, own))

    all_to_all_single = alltoall_base  # type: ignore[assignment]  # what torch calls it since 2.13

    def send(self, tensors: list[Tensor], target: int, tag: int) -> "_Given":  # type: ignore[override]
        under_way: list[Sending] = []  # what comes after it does not wait for its end: the other rank may send first
        return _Given(self._thread.begin(partial(self._give, tensors[0], target, under_way)), under_way)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Begun:  # type: ignore[override]
        return self._thread.begin(partial(_translated, partial(self._receive, tensors[0], source)))

    def shutdown(self) -> None:
        """Close, once nothing is under way any more."""
        self._thread.close()
        self._sockets.close()

    def _begin(self, do: Callable[[], None]) -> Begun:
        return self._thread.begin(partial(self._do, do))

    def _do(self, do: Callable[[], None]) -> None:
        try:
            _translated(do)
        finally:
            self._count += 1

    # --- what the thread does ----------------------------------------------------------------------------------------

    def _sum(self, values: Tensor) -> None:
        here = values.detach().cpu().contiguous().view(-1)  # of a CPU's own memory, where it lies there in one piece
        parts = here.tensor_split(len(self._ranks))
        under_way = self._send({peer: parts[peer] for peer in self._others})
        own = parts[self._rank]
        for piece in _pieces(own):
            self._add_up(piece)
        under_way += self._send(dict.fromkeys(self._others, own))
        for peer in self._others:
            self._take(parts[peer], peer)
        _finish(under_way)
        if here.data_ptr() != values.data_ptr():
            values.copy_(here.view(values.shape))

    def _add_up(self, own: Tensor) -> None:
        """Make a piece of this rank's the sum of what all ranks have there, in their order."""
        found = {self._rank: own} | {peer: self._piece(peer) for peer in self._others}
        total = found[0].clone()
        for peer in self._ranks[1:]:
            total += found[peer]
        own.copy_(total)

    def _broadcast(self, values: Tensor, root: int) -> None:
        if self._rank == root:
            _finish(self._send(dict.fromkeys(self._others, values)))
        else:
            self._take(values, root)

    def _gather(self, outputs: list[Tensor], own: Tensor) -> None:
        under_way = self._send(dict.fromkeys(self._others, own))
        outputs[self._rank].copy_(own)
        for peer in self._others:
            self._take(outputs[peer], peer)
        _finish(under_way)

    def _exchange(self, output: Tensor, own: Tensor) -> None:
        count = len(self._ranks)
        parts, outputs = own.view(count, -1), output.view(count, -1)
        under_way = self._send({peer: parts[peer] for peer in self._others})
        outputs[self._rank].copy_(parts[self._rank])
        for peer in self._others:
            self._take(outputs[peer], peer)
        _finish(under_way)

    def _give(self, values: Tensor, target: int, under_way: list[Sending]) -> None:
        under_way += self._send({target: values})

    def _receive(self, values: Tensor, source: int) -> None:
        self._take(values, source)

    def _send(self, messages: Mapping[int, Tensor]) -> list[Sending]:
        """Begin to send each rank its message, to all of them at a time. What they are made of must not change."""
        flat = {peer: values.detach().cpu().contiguous().view(-1) for peer, values in messages.items()}
        return [self._send_piece(peer, piece) for peer, values in flat.items() for piece in _pieces(values)]

    def _send_piece(self, peer: int, piece: Tensor) -> Sending:
        packet = Packet(0, self._count, 0, (Slot(piece),))
        return self._transport.send(packet, peer, _TAG, deadline=_LONG, message="a sum")

    def _take(self, values: Tensor, peer: int) -> None:
        """Receive what a rank sends into `values`."""
        whole = values.detach()
        flat = whole.view(-1) if whole.is_contiguous() else whole.new_empty(whole.numel())
        for piece in _pieces(flat):
            piece.copy_(self._piece(peer))
        if not whole.is_contiguous():
            whole.copy_(flat.view(whole.shape))

    def _piece(self, peer: int) -> Tensor:
        """Return the next piece of what a rank sends."""
        packet = decode(*self._transport.receive(peer, _TAG, deadline=_LONG, message="a sum"))
        if packet.minibatch != self._count:
            raise PacketMismatch(
                "group.work_differs", f"received work item {packet.minibatch} of a group, expected item {self._count}"
            )
        return packet.slots[0].rows


def _pieces(values: Tensor) -> Sequence[Tensor]:
    """Return the pieces of `values` [n] that travel one by one, as views; of none there is none."""
    return values.split(max(1, _PIECE_BYTES // values.element_size())) if len(values) else ()


@dataclass(frozen=True, eq=False)
class _Given:
    """A message to one rank: waited for, once, until the system has all of it."""

    begun: Begun
    under_way: list[Sending]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once it has. Raises TimeoutError, or what went wrong."""
        deadline = _LONG if timeout is None else time.monotonic() + timeout.total_seconds()
        self.begun.wait(timeout)
        try:
            _translated(partial(_finish, self.under_way, deadline=deadline))
        except DeadlinePassed:
            raise TimeoutError("the other rank does not read") from None
        return True


def _translated(do: Callable[[], None]) -> None:
    try:
        do()
    except PeerLost:  # it names ranks as they are called in this group
        raise ConnectionError("its end of a connection is closed") from None


def _finish(under_way: list[Sending], *, deadline: float = _LONG) -> None:
    """Wait until the system has all of it: who waits for the sum may write to its memory then."""
    for sending in under_way:
        sending.wait(deadline, "a sum")
