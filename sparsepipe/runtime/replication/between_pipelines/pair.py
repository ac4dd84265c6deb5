"""The mean of a pipeline's weights and another's, which does not wait for it: AD-PSGD."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....values.replication.base import Merge
from ...failures import PacketMismatch
from .mean import Contribution, Merged, distance
from .messages import Layout, Message, put, taken
from .peers import Peers, called_off

_WHOLE = (0, 1)  # a share of one: all elements


@dataclass(frozen=True)
class Served:
    """A merge in which this rank was the partner."""

    merge: Merge
    update: int  # of this rank's weights, which the other averaged with
    place: int  # among the merges that this rank was the partner in, from 0
    distance: float  # buffers included


class Offer:
    """Offer of a rank to those that draw it as a partner: a copy of its newest weights, and a lock of a moment.

    The partner's half of what a pair changes is added to the copy at once, so that the next to come meets it, and to
    the weights themselves after their next update. It answers "pair".
    """

    def __init__(self, layout: Layout, snapshot: Tensor) -> None:
        """`snapshot`: what training begins with."""
        self._layout = layout
        self._lock = threading.Lock()
        self._offered = snapshot.clone()
        self._pending = torch.zeros(layout.num_elements)
        self._served: list[Served] = []
        self._update, self._count = -1, 0

    def renew(self, snapshot: Tensor, update: int) -> None:
        """Offer what the weights are now, with what has come to be added to them since `take` was called."""
        with self._lock:
            self._offered = snapshot + self._pending
            self._update = update

    def take(self) -> tuple[Tensor | None, list[Served]]:
        """Return what others' merges add to the weights, None if there were none, and start afresh."""
        with self._lock:
            if not self._served:
                return None, []
            pending, self._pending = self._pending, torch.zeros_like(self._pending)
            served, self._served = self._served, []
            return pending, served

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        return 4 * sum(int(place.stop - place.start) for place in self._places(facts))

    def answer(self, request: Message) -> tuple[Mapping[str, Any], Tensor]:
        """Average with another pipeline's weights: return by what they change, the opposite of what is added here."""
        facts, places = request.facts, self._places(request.facts)
        merge = _merge(facts)
        theirs = request.payload.view(torch.float32)
        with self._lock:
            own = taken(self._offered, places)
            half = (theirs - own) * 0.5
            put(self._offered, places, own + half)
            put(self._pending, places, taken(self._pending, places) + half)
            away = distance(half, own + half)
            self._served.append(Served(merge, self._update, self._count, away))
            told = {"update": self._update, "place": self._count}
            self._count += 1
        return told, half.view(torch.uint8)

    def _places(self, facts: Mapping[str, Any]) -> list[slice]:
        return self._layout.shares(known(facts, self._layout), *_WHOLE)


def known(facts: Mapping[str, Any], layout: Layout) -> Sequence[str]:
    """Return the names of a request, all of which are in a layout. Raises PacketMismatch."""
    names = facts.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PacketMismatch("pair.no_names", "a pair request lacks the tensor names")
    if len(set(names)) < len(names) or not layout.places.keys() >= set(names):
        raise PacketMismatch("pair.tensors_unknown", "a pair request names unknown tensors")
    return names


@dataclass(eq=False)
class Pair:
    """The member of `Merging` for Arithmetic.PAIR (Lian et al., AD-PSGD, ICML 2018).

    The two get opposite halves of their difference, so that their sum stays what it was. Neither waits for the other's
    training; whoever is a partner answers from a thread, so no two can wait for each other. It has no state.
    """

    layout: Layout
    peers: Peers
    timeout: float

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        return Contribution(number, update, snapshot)

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        assert merge.partner is not None
        own, deadline = contribution.snapshot, time.monotonic() + self.timeout
        half, told = torch.zeros_like(own), []
        routes = self.peers.routes(merge.partner, self.layout.names, deadline=deadline)
        bytes_before = sum(route.link.bytes for route in routes)
        document = {"number": merge.number, "members": merge.members, "contributions": merge.contributions}
        document |= {"weights": merge.weights, "partner": merge.partner}
        try:
            for route in routes:
                payload = taken(own, self.layout.shares(route.names, *_WHOLE)).view(torch.uint8)
                with called_off(merge.partner):
                    route.link.ask({"what": "pair", "names": route.names, **document}, payload, deadline=deadline)
            for route in routes:
                places = self.layout.shares(route.names, *_WHOLE)
                with called_off(merge.partner):
                    expected = 4 * sum(place.stop - place.start for place in places)
                    answer = route.link.answer(expected, deadline=deadline)
                put(half, places, answer.payload.view(torch.float32))
                told.append([answer.facts.get("update"), answer.facts.get("place")])
        except BaseException:
            self.peers.drop([route.link for route in routes])
            raise
        facts = {"bytes": sum(route.link.bytes for route in routes) - bytes_before, "partner": told}
        weights = self.layout.weights
        away = distance(half[weights], (own - half)[weights])
        return Merged(-half, None, {"distance": away, **facts})

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        """Nothing is kept of it."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def kept(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """It has none."""


def _merge(facts: Mapping[str, Any]) -> Merge:
    try:
        return Merge(
            int(facts["number"]),
            tuple(map(int, facts["members"])),
            tuple(map(int, facts["contributions"])),
            tuple(map(float, facts["weights"])),
            int(facts["partner"]),
        )
    except (KeyError, TypeError, ValueError):
        raise PacketMismatch("pair.no_merge", "a pair message lacks its merge number") from None
