"""The parameter server's side and a pipeline's: changes are added up there, and its weights are taken back."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....values.replication.base import SERVER, Merge
from ...failures import PacketMismatch
from .layout import WEIGHT, Layout
from .merging import Contribution, Merged, distance
from .messages import NO_PAYLOAD, CalledOff, Message
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
