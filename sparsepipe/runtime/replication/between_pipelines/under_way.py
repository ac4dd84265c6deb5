"""Contributions under way: a thread waits for the merges that they are in and carries them out, in their order."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ....values.replication.base import Merge
from ...failures import DeadlinePassed, seconds_left
from ...pipelines.base import Coordinator
from .merging import Contribution, Merged, Merging
from .messages import CalledOff

_ASK_SECONDS = 0.5  # for which the coordinator is asked at once whether a merge is decided


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
