"""A run cut where its pipeline is empty: into epochs, of which one may have been begun before or be left unfinished."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...values.plan import Plan
from ...values.schedule import Program, check_runs, compile


@dataclass(frozen=True)
class EpochPart:
    """`count` minibatches of an epoch, from its minibatch `first` on: most often all of it."""

    epoch: int
    first: int
    count: int


class Averaged(NamedTuple):
    """An update of a stage after which pipelines may average: its number among the pipeline's, and its samples."""

    update: int
    samples: int


@dataclass(frozen=True)
class Units:
    """Whole units of a part: as many minibatches as every stage makes whole updates of, the last may be shorter.

    Stages of unlike rounds update unlike often. Pipelines average after units, whose numbers are the same in all
    stages.
    """

    whole: int  # minibatches
    first: int  # units that the pipeline took before this part
    before: int  # minibatches of those units

    def ended_by(self, members: range, count: int, samples: Callable[[int], Sequence[int]]) -> Averaged | None:
        """Return the unit that ends with a stage's update of `members`, None if its last update is yet to come.

        `count`: minibatches of the part. `samples`: of a minibatch of it.
        """
        end = members[-1] + 1
        if end % self.whole and end != count:
            return None
        place = (end - 1) // self.whole
        return Averaged(self.first + place, sum(len(samples(m)) for m in range(place * self.whole, end)))


@dataclass(frozen=True)
class RunLength:
    """Number of minibatches of an epoch and of the whole run."""

    epoch_minibatches: int
    total_minibatches: int

    def parts(self, done: int = 0) -> Iterator[EpochPart]:
        """Yield what is still to be trained when `done` minibatches are."""
        while done < self.total_minibatches:
            epoch, first = divmod(done, self.epoch_minibatches)
            count = min(self.epoch_minibatches - first, self.total_minibatches - done)
            yield EpochPart(epoch, first, count)
            done += count

    def counts(self, done: int = 0) -> set[int]:
        """Return the counts of `parts`, at most three, however many epochs are left to train."""
        left, whole = self.total_minibatches - done, self.epoch_minibatches
        first = min(left, -done % whole or whole)
        return {count for count in (first, whole if left - first >= whole else 0, (left - first) % whole) if count > 0}


class Programs:
    """The plan compiled for the parts of a run."""

    def __init__(self, plan: Plan, length: RunLength) -> None:
        self.plan, self.length = plan, length
        self._compiled: dict[int, Program] = {}

    def of(self, num_minibatches: int) -> Program:
        """Return the program of so many minibatches, compiled once for each number."""
        if num_minibatches not in self._compiled:
            self._compiled[num_minibatches] = compile(self.plan, num_minibatches)
        return self._compiled[num_minibatches]

    def check(self, num_minibatches: int, *, synchronised: bool) -> None:
        """Compile it, and raise InputError if the actions of a new one would deadlock."""
        if num_minibatches not in self._compiled:
            check_runs(self.of(num_minibatches), synchronised=synchronised)
