"""What a pipeline is fed: the minibatches of a part of an epoch, by their places in its list of actions.

A run of one pipeline knows them all before the part begins. One of several pipelines asks the coordinator as it
continues: each takes the next minibatch of the epoch when it has room, and a part ends if there are no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..pipelines.base import Coordinator


class Feed(Protocol):
    """The minibatches of a part, by place: 0, 1, … as the program numbers them."""

    @property
    def is_known(self) -> bool:
        """Return whether all minibatches are known now, so that any may be read ahead."""
        ...

    def has(self, place: int) -> bool:
        """Return whether there is a minibatch at a place. If there is none, there is none behind it either."""
        ...

    def number(self, place: int) -> int:
        """Return the number in the run of a minibatch that exists."""
        ...

    def samples(self, place: int) -> Sequence[int]:
        """Return the samples of a minibatch that exists, as indices into the split."""
        ...

    def done(self, place: int, row: Mapping[str, Any]) -> None:
        """Take note that an update contains the minibatch at a place, with its row for the run's metrics."""
        ...

    def end(self) -> None:
        """Have no more minibatches than were taken: the part ends where those do, on all ranks. One rank comes here."""
        ...


@dataclass(frozen=True, eq=False)
class GivenFeed:
    """Minibatches that are known: the number in the run of the first, and the samples of each."""

    first: int
    minibatches: Sequence[Sequence[int]]
    is_known = True

    def has(self, place: int) -> bool:
        return True

    def number(self, place: int) -> int:
        return self.first + place

    def samples(self, place: int) -> Sequence[int]:
        return self.minibatches[place]

    def done(self, place: int, row: Mapping[str, Any]) -> None:
        """No one else waits for it."""

    def end(self) -> None:
        """Its end is known: commands name theirs (control.py)."""


class SharedFeed:
    """Minibatches of an epoch that several pipelines take from: each is asked for once in a process."""

    is_known = False

    def __init__(
        self, coordinator: Coordinator, order: Sequence[Sequence[int]], *, task: int, first_number: int
    ) -> None:
        """`order`: the samples of each of the epoch's minibatches, of which the first has `first_number` in the run.
        `task`: the number of the task that this part is.
        """
        self._coordinator, self._order, self._task, self._first_number = coordinator, order, task, first_number
        self._taken: dict[int, int | None] = {}  # place → minibatch of the epoch

    def has(self, place: int) -> bool:
        return self._minibatch(place) is not None

    def number(self, place: int) -> int:
        found = self._minibatch(place)
        assert found is not None, "asked for beyond the end of the part"
        return self._first_number + found

    def samples(self, place: int) -> Sequence[int]:
        return self._order[self.number(place) - self._first_number]

    def done(self, place: int, row: Mapping[str, Any]) -> None:
        self._coordinator.done(self._task, place, row)

    def end(self) -> None:
        self._coordinator.end_task(self._task)

    def _minibatch(self, place: int) -> int | None:
        # Two threads may ask at once: they get the same answer, and who comes last writes it again.
        if place not in self._taken:
            self._taken[place] = self._coordinator.take_minibatch(self._task, place)
        return self._taken[place]
