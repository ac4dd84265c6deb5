"""A pipeline's whole state for one that rejoins: taken from a live one's ranks at one update, however both are cut."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ....values.replication.base import Merge
from ...failures import DeadlinePassed, PacketMismatch, seconds_left
from ...pipelines.base import Coordinator, Holder
from ...wire.encryption import Encryption
from .mean import Contribution, Merged, Merging
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


_ASK_SECONDS = 0.5  # for which the coordinator is asked at once whether a merge is decided


# Contributions under way: a thread waits for the merges that they are in and carries them out, in their order
@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a contribution."""

    contribution: Contribution
    merge: Merge
    merged: Merged | None  # None: nothing
    why: str | None  # it was called off
    seconds: float  # from the decision to the result


class UnderWay:
    """The contributions of one stage that have no outcome yet, oldest first."""

    def __init__(self, coordinator: Coordinator, merging: Merging, *, lasts: Callable[[Merge], float]) -> None:
        """`lasts`: by how many seconds a merge lasts longer than it takes here (StageRunner.merge_seconds)."""
        self._coordinator, self._merging, self._lasts = coordinator, merging, lasts
        self._todo: queue.SimpleQueue[Contribution | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._outcomes: deque[Outcome] = deque()
        self._count = 0
        self._decided_alone = False  # contributions that are in no merge yet are dropped
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="averages: merge", daemon=True)
        self._thread.start()

    @property
    def any(self) -> bool:
        """Return whether the outcome of a contribution has not been taken yet."""
        with self._changed:
            return self._count > 0

    def begin(self, contribution: Contribution) -> None:
        with self._changed:
            self._count += 1
        self._todo.put(contribution)

    def take(self) -> list[Outcome]:
        """Return the outcomes that have come. Raises what went wrong in the background."""
        with self._changed:
            if self._error is not None:
                raise self._error
            found = list(self._outcomes)
            self._outcomes.clear()
            self._count -= len(found)
            return found

    def wait(self, *, seconds: float, what: str) -> list[Outcome]:
        """Return all outcomes, once they have come. Raises DeadlinePassed."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(self._outcomes) < self._count and self._error is None:
                if time.monotonic() >= deadline:
                    raise DeadlinePassed(f"{what} waited {seconds:g} s for other pipelines", peer=None)
                self._changed.wait(seconds_left(deadline))
        return self.take()

    def drop_undecided(self) -> None:
        """Wait no more for merges: those contributions that are in none come to nothing."""
        with self._changed:
            self._decided_alone = True

    def close(self) -> None:
        self.drop_undecided()
        self._todo.put(None)

    def _work(self) -> None:
        try:
            while (contribution := self._todo.get()) is not None:
                outcome = self._carried_out(contribution)
                with self._changed:
                    if outcome is None:
                        self._count -= 1
                    else:
                        self._outcomes.append(outcome)
                    self._changed.notify_all()
        except BaseException as error:  # handed to the worker, who raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _carried_out(self, contribution: Contribution) -> Outcome | None:
        merge = None
        while merge is None:
            merge = self._coordinator.merge_of(contribution.number, wait=_ASK_SECONDS)
            with self._changed:
                if merge is None and self._decided_alone:
                    return None
        start = time.monotonic()
        merged, why = None, None
        if len(merge.members) > 1 or merge.partner is not None:
            try:
                merged = self._merging.merge(merge, contribution)
                time.sleep(self._lasts(merge))
            except CalledOff as error:
                why = str(error)
        return Outcome(contribution, merge, merged, why, time.monotonic() - start)
