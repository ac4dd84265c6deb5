"""A pipeline's whole state for one that rejoins: taken from a live one's ranks at one update, however both are cut."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...failures import DeadlinePassed, PacketMismatch, seconds_left
from ...pipelines.base import Coordinator, Holder
from ...wire.encryption import Encryption
from .messages import NO_PAYLOAD, CalledOff, Message
from .peers import Link, called_off
from .reduction import packed, packed_bytes, unpacked

_FURTHEST = 1024  # updates ahead for which the ranks of a pipeline are asked


class Snapshot(NamedTuple):
    update: int  # after which it was taken
    tensors: Mapping[str, Tensor]


class StateDesk:
    """Hands out a rank's state as it is after an update. It answers "state", and "update" with the last one."""

    def __init__(self, state: Callable[[], Mapping[str, Tensor]], *, timeout: float) -> None:
        self._state, self._timeout = state, timeout
        self._changed = threading.Condition()
        self._update = -1
        self._final: Snapshot | None = None
        self._closed = False
        self._wanted: dict[int, int] = {}  # update -> how many wait for it
        self._taken: dict[int, Snapshot] = {}

    def boundary(self, update: int) -> None:
        """An update is over, in the thread that trains: copy the state for those who wait for it."""
        with self._changed:
            self._update = update
            if update in self._wanted:
                self._taken[update] = self._snapshot()
            if self._wanted:
                self._changed.notify_all()

    def final(self) -> None:
        """There is no update any more: what there is now is what everybody gets."""
        with self._changed:
            self._final = self._snapshot()
            self._changed.notify_all()

    def close(self) -> None:
        """Answer those who wait that there is no state here any more: others hold the layers, or no one does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._update, {name: tensor.detach().cpu().clone() for name, tensor in self._state().items()})

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        if not isinstance(facts.get("update"), int):
            raise PacketMismatch("state.no_update", "a state request lacks its update number")
        return 0

    def answer(self, request: Message) -> tuple[Mapping[str, Any], Tensor]:
        """Return the state after the update that is asked for; -1: none, only which update was the last.

        "passed" where it was before.
        """
        wanted = request.facts["update"]
        found = None if wanted < 0 else self._after(wanted)
        with self._changed:
            facts: dict[str, Any] = {"update": self._update, "final": self._final is not None}
        if found is None:
            return facts | {"passed": True}, NO_PAYLOAD
        described, payload = packed(found.tensors)
        return facts | {"update": found.update, "passed": False, **described}, payload

    def _after(self, update: int) -> Snapshot | None:
        deadline = time.monotonic() + self._timeout
        with self._changed:
            self._wanted[update] = self._wanted.get(update, 0) + 1
            try:
                while self._final is None and update not in self._taken:
                    if self._update >= update:
                        return None
                    if self._closed:
                        raise CalledOff("its layers change hands")
                    if time.monotonic() >= deadline:
                        raise CalledOff(f"no update {update} within {self._timeout:g} s")
                    self._changed.wait(seconds_left(deadline))
                return self._taken.get(update, self._final)
            finally:
                self._wanted[update] -= 1
                if not self._wanted[update]:
                    del self._wanted[update]
                    self._taken.pop(update, None)


def fetch_state(
    coordinator: Coordinator, layers: Sequence[str], *, timeout: float, encryption: Encryption | None = None
) -> dict[str, Tensor] | None:
    """Return weights, optimizer state and buffers of some layers, and more, from another pipeline that trains.

    They are named as in checkpoints, and all of them are of the same update of that pipeline; there may be more than
    was asked for. None: no other pipeline is alive. `encryption`: they come through TLS.

    Raises DeadlinePassed if some are, but none gives its state within `timeout` seconds.
    """
    deadline, why = time.monotonic() + timeout, ""
    while time.monotonic() < deadline:
        live = coordinator.live()
        if not live:
            return None
        for pipeline in live:
            try:
                holders = coordinator.holders(pipeline)
                if missing := set(layers) - {layer for holder in holders for layer in holder.layers}:
                    raise CalledOff(f"pipeline {pipeline} has no layer {min(missing)}")
                return _fetched(
                    [holder for holder in holders if set(layers).intersection(holder.layers)],
                    *(coordinator.pipeline, deadline, encryption),
                )
            except CalledOff as error:
                why = str(error)
        time.sleep(0.1)  # it may have died just now, and be alive for the coordinator
    raise DeadlinePassed(f"pipeline {coordinator.pipeline} waited {timeout:g} s for another's state ({why})", peer=None)


def _fetched(holders: Sequence[Holder], own: int, deadline: float, encryption: Encryption | None) -> dict[str, Tensor]:
    """Fetch what the holders of another pipeline have, for pipeline `own`. Raises CalledOff."""
    links, pipeline = list[Link](), holders[0].pipeline
    try:
        with called_off(pipeline):
            for holder in holders:
                links.append(Link(holder, pipeline=own, deadline=deadline, encryption=encryption))
            ahead = 1
            while ahead <= _FURTHEST:
                found = _at_once(links, ahead, deadline)
                if found is not None:
                    return found
                ahead *= 2  # one of them was there before it was asked
    finally:
        for link in links:
            link.close()
    raise CalledOff(f"pipeline {pipeline}: its ranks are too far apart to be met at one update")


def _at_once(links: Sequence[Link], ahead: int, deadline: float) -> dict[str, Tensor] | None:
    """Return the state after the update that is `ahead` of all ranks; None if one has passed it meanwhile."""
    last = max((_ask(link, -1, deadline).facts["update"] for link in links), default=-1)
    for link in links:
        link.ask({"what": "state", "update": last + ahead}, NO_PAYLOAD, deadline=deadline)
    answers = [link.answer(_state_bytes, deadline=deadline) for link in links]
    if any(answer.facts.get("passed") is not False for answer in answers):
        return None
    if len({answer.facts["update"] for answer in answers}) > 1:
        return None  # one of them ended between
    return {name: tensor for answer in answers for name, tensor in unpacked(answer).items()}


def _ask(link: Link, update: int, deadline: float) -> Message:
    link.ask({"what": "state", "update": update}, NO_PAYLOAD, deadline=deadline)
    answer = link.answer(0, deadline=deadline)
    if not isinstance(answer.facts.get("update"), int):
        raise PacketMismatch("state.no_update", "a rank's message lacks its update number")
    return answer


def _state_bytes(facts: Mapping[str, Any]) -> int:
    return packed_bytes(facts) if facts.get("passed") is False else 0
