"""A run cut where its pipeline is empty: into epochs, of which one may have been begun before or be left unfinished."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochPart:
    """`count` minibatches of an epoch, from its minibatch `first` on: most often all of it."""

    epoch: int
    first: int
    count: int


@dataclass(frozen=True)
class RunLength:
    """How many minibatches an epoch has, and the whole run."""

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
