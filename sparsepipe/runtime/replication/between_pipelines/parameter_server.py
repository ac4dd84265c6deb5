"""The parameter server's side and a pipeline's: changes are added up there, and its weights are taken back."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from ....values.replication.base import SERVER, Merge
from ...failures import DeadlinePassed, PacketMismatch, PeerLost
from ...pipelines.base import Address
from ...wire.encryption import Encryption, tls_of
from ...wire.handshake import Caller, Listener, new_secret
from .mean import Contribution, Merged, distance
from .messages import NO_PAYLOAD, WEIGHT, CalledOff, Layout, Message, receive, send
from .peers import Link, Peers, called_off

PUSHED = "pushed:"
_MOST_ELEMENTS = 2**34  # of all tensors: more is no network


class Store:
    """The server's weights, by name. It answers "push" with what it has then, and how many came before.

    Each tensor begins as the first pipeline that pushes has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tensors: dict[str, Tensor] = {}
        self._pushes = 0
        self._last: dict[tuple[int, str], int] = {}  # by pipeline and tensor: the merge of its last change

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        return 4 * sum(_sizes(facts).values())

    def answer(self, request: Message) -> tuple[Mapping[str, Any], Tensor]:
        facts, sizes = request.facts, _sizes(request.facts)
        share, merge, pipeline = facts.get("share"), facts.get("merge"), facts.get("pipeline")
        values = dict(zip(sizes, request.payload.view(torch.float32).split(list(sizes.values())), strict=True))
        with self._lock:
            if any(name in self._tensors and len(self._tensors[name]) != size for name, size in sizes.items()):
                raise CalledOff("tensors of other sizes than the parameter server has")
            if facts.get("begins") is True:
                new = [name for name in values if name not in self._tensors]
                self._tensors |= {name: values[name].clone() for name in new}
                return {"began": new}, NO_PAYLOAD
            if not isinstance(share, float) or not isinstance(merge, int) or not isinstance(pipeline, int):
                raise CalledOff("a push without share, merge and pipeline")
            if not self._tensors.keys() >= sizes.keys():
                return {"missing": True}, NO_PAYLOAD
            for name, value in values.items():
                self._add(name, value, share, (pipeline, merge))
            place, self._pushes = self._pushes, self._pushes + 1
            found = torch.cat([self._tensors[name] for name in sizes]) if sizes else torch.empty(0)
        return {"missing": False, "place": place}, found.view(torch.uint8)

    def _add(self, name: str, value: Tensor, share: float, push: tuple[int, int]) -> None:
        """Add a share of a change to weights, or take a share of a mean of buffers. Twice the same counts once."""
        pipeline, merge = push
        if self._last.get((pipeline, name), -1) < merge:
            own = self._tensors[name]
            change = value if name.startswith(WEIGHT) else value - own
            self._tensors[name] = own + change * share
            self._last[pipeline, name] = merge


def _sizes(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the tensors of a request, with how many elements each has. Raises PacketMismatch."""
    sizes = facts.get("sizes")
    if not isinstance(sizes, dict) or not all(isinstance(size, int) and size >= 0 for size in sizes.values()):
        raise PacketMismatch("push.no_sizes", "a push message lacks the sizes")
    if sum(sizes.values()) > _MOST_ELEMENTS:
        raise PacketMismatch(
            "push.size_out_of_range", f"a push message has {sum(sizes.values())} elements, which is out of range"
        )
    return sizes


class ServerStep:
    """The member of `Merging` for Arithmetic.SERVER (Park et al., HetPipe, USENIX ATC 2020).

    What a pipeline's weights changed by since its last push, without what it took back, is pushed; the merge's first
    weight is the share of it that the server adds. What failed to be pushed is part of the next push. It has no state.
    """

    def __init__(self, layout: Layout, peers: Peers, weights: Tensor, *, timeout: float) -> None:
        """`weights`: the vector that training begins with."""
        self.layout, self._peers, self._timeout = layout, peers, timeout
        self._pushed = weights.clone()  # the weights as they would be without what is not pushed yet

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        change, weights = snapshot.clone(), self.layout.weights
        change[weights] -= self._pushed[weights]
        before, self._pushed = self._pushed, snapshot
        return Contribution(number, update, snapshot, torch.stack([change, before]))

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        assert contribution.change is not None
        change, before = contribution.change
        own, deadline, began = contribution.snapshot, time.monotonic() + self._timeout, list[str]()
        holder = next(iter(self._peers.coordinator.holders(SERVER)), None)
        if holder is None:
            raise CalledOff("there is no parameter server")
        with called_off(SERVER):
            link = self._peers.link(holder, deadline)
            bytes_before = link.bytes
            try:
                told, found = self._push(link, merge, change, deadline)
                if told.get("missing"):
                    begin = own.clone()
                    begin[self.layout.weights] = before[self.layout.weights]
                    answered, _ = self._ask(link, {"begins": True}, begin, deadline)
                    began = list(answered.get("began", ()))
                    told, found = self._push(link, merge, change, deadline)
            except BaseException:
                self._peers.drop([link])
                raise
        if told.get("missing"):
            raise CalledOff("the parameter server lacks tensors that it was given")
        correction, weights = found - own, self.layout.weights
        away = distance(correction[weights], found[weights])
        facts = {"distance": away, "bytes": link.bytes - bytes_before, "place": told.get("place")}
        if began:
            facts["began"] = began  # tensors that the server has from this pipeline
        return Merged(correction, found, facts)

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        if merged is not None:
            self._pushed = self._pushed + merged.correction
        elif contribution.change is not None:
            weights, pushed = self.layout.weights, self._pushed.clone()
            pushed[weights] -= contribution.change[0][weights]
            self._pushed = pushed

    def state(self) -> dict[str, Tensor]:
        return {}

    def kept(self) -> dict[str, Tensor]:
        """Return the weights without what is not pushed yet: of that the next push is, whoever makes it."""
        parts = self.layout.parts(self._pushed).items()
        return {f"{PUSHED}{name.removeprefix(WEIGHT)}": part for name, part in parts if name.startswith(WEIGHT)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from what other ranks of this pipeline kept: who joins has pushed nothing of its own yet."""
        for name, part in self.layout.parts(self._pushed).items():
            key = f"{PUSHED}{name.removeprefix(WEIGHT)}"
            if name.startswith(WEIGHT) and key in state:
                part.copy_(state[key])

    def _push(self, link: Link, merge: Merge, change: Tensor, deadline: float) -> tuple[Mapping[str, Any], Tensor]:
        pipeline = self._peers.coordinator.pipeline
        facts = {"share": float(merge.weights[0]), "merge": merge.number, "pipeline": pipeline}
        return self._ask(link, facts, change, deadline)

    def _ask(
        self, link: Link, facts: Mapping[str, Any], values: Tensor, deadline: float
    ) -> tuple[Mapping[str, Any], Tensor]:
        told = {"what": "push", "sizes": self.layout.sizes, **facts}
        link.ask(told, values.view(torch.uint8), deadline=deadline)
        answered = link.answer(lambda found: values.nbytes * (found.get("missing") is False), deadline=deadline)
        return answered.facts, answered.payload.view(torch.float32)


_MOST_CONNECTIONS = 1024
_TO_CLOSE = 5.0  # seconds for answers under way, when the server closes

Answer = tuple[Mapping[str, Any], Tensor]  # facts and payload


# What a rank offers the other pipelines' ranks: a port that answers those who know its secret
class Handler(Protocol):
    """Answers one kind of request. Called by a thread for each connection."""

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        """Return how long the payload of a request with these facts is. Raises PacketMismatch if they say nothing
        that this rank knows of.
        """
        ...

    def answer(self, request: Message) -> Answer:
        """Raises CalledOff if there is none."""
        ...


class Server:
    """Listens until it is closed, and answers each connection by a thread of its own.

    Who connects hears first which tensors there are, and how many elements each has.
    """

    def __init__(
        self,
        host: str,
        sizes: Mapping[str, int],
        handlers: Mapping[str, Handler],
        *,
        timeout: float,
        encryption: Encryption | None = None,
    ) -> None:
        """`handlers` by the "what" of a request. A request that has begun must have come within `timeout` seconds.
        `encryption`: what follows the handshake goes through TLS.
        """
        self._sizes, self._handlers, self._timeout = dict(sizes), dict(handlers), timeout
        self._idle = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._busy = 0  # requests that have come and are not answered yet
        secret = new_secret()
        self._listener = Listener(host, secret, self._begin, tls=tls_of(encryption, server_side=True))
        self.address = Address(host, self._listener.port, secret.hex())

    def close(self) -> None:
        """Answer what was asked, and listen no more."""
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, timeout=_TO_CLOSE)
        self._listener.close()
        with self._idle:
            for connection in self._connections:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS's own takes it from who reads

    def _begin(self, caller: Caller) -> None:
        connection = caller.connection
        with self._idle:
            room = len(self._connections) < _MOST_CONNECTIONS
            if room:
                self._connections.add(connection)
        if room:
            threading.Thread(target=self._serve, args=(connection,), name="averages: answer", daemon=True).start()
        else:
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._send(connection, {"tensors": self._sizes}, NO_PAYLOAD)
            while True:
                request = receive(connection, self._payload_bytes, seconds=self._timeout, since_begun=True)
                with self._counted():
                    self._answer(connection, request)
        except (OSError, PacketMismatch):
            pass  # it has gone, or speaks another language
        finally:
            with self._idle:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, request: Message) -> None:
        facts: Mapping[str, Any]
        try:
            facts, payload = self._handlers[request.facts["what"]].answer(request)
        except (CalledOff, DeadlinePassed, PeerLost) as error:
            facts, payload = {"called_off": str(error)}, NO_PAYLOAD
        self._send(connection, facts, payload)

    def _send(self, connection: socket.socket, facts: Mapping[str, Any], payload: Tensor) -> None:
        send(connection, facts, payload, deadline=time.monotonic() + self._timeout)

    def _payload_bytes(self, facts: Mapping[str, Any]) -> int:
        what = facts.get("what")
        if not isinstance(what, str) or what not in self._handlers:
            raise PacketMismatch("message.kind_unknown", f"a request has the unknown kind {what!r}")
        return self._handlers[what].payload_bytes(facts)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request as under way while it is answered."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._idle:
            self._busy += more
            self._idle.notify_all()
