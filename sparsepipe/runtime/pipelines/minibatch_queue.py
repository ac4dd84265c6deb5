"""The minibatches of a run by epoch: which no one has yet, who has which, which are done. Pipelines share them.

epoch 0   done ██████████████████████   held by 1: 22 23 │              put back by a pipeline that died: 7
epoch 1   done ███   held by 0: 4 5 6   waiting: 7 8 9 …                they are handed out before all others
epoch 2   whole
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import InputError
from ...util.io.fields import each, fields, integer, shown
from ...util.text.numbers import number_of

_MOST = 10**15  # minibatches of a run, as its record's files allow


def _count(value: Any, what: str) -> int:
    return integer(value, what, most=_MOST)


_PROGRESS = fields({"done": _count, "epoch_minibatches": _count, "left": fields({}, others=each(_count))})


def read_progress(document: Any, what: str) -> dict[str, Any]:
    """Return what an earlier run left to do, as `MinibatchQueue.progress` gives it. Raises InputError."""
    told = _PROGRESS(document, what)
    for epoch in told["left"]:
        if not epoch.isascii() or not epoch.isdigit() or len(epoch) > len(str(_MOST)):
            raise InputError("progress.epoch_malformed", f"{what}: epoch {shown(epoch)}: expected a whole number")
    return {name: told[name] for name in ("done", "epoch_minibatches", "left")}


@dataclass
class _Epoch:
    """An epoch that was begun and has minibatches that are not done."""

    waiting: deque[int]
    held: dict[int, int] = field(default_factory=dict)  # minibatch → the pipeline that has it

    @property
    def left(self) -> list[int]:
        return sorted((*self.waiting, *self.held))


class MinibatchQueue:
    """Minibatches are numbers in the order of their epoch. Those of older epochs come first."""

    def __init__(
        self, epoch_minibatches: int, total_minibatches: int, progress: Mapping[str, Any] | None = None
    ) -> None:
        """`progress`: what an earlier run left to do, as `progress` gives it.

        Raises InputError if that does not belong to a run of this length.
        """
        self.epoch_minibatches, self.total_minibatches = epoch_minibatches, total_minibatches
        self.num_epochs = -(-total_minibatches // epoch_minibatches)
        self.num_done = 0
        self._begun: dict[int, _Epoch] = {}  # in ascending order
        self._fresh = 0  # the first epoch that was not begun
        if progress is not None:
            self._go_on(progress)

    def _go_on(self, progress: Mapping[str, Any]) -> None:
        told = read_progress(progress, "progress")
        if told["epoch_minibatches"] != self.epoch_minibatches:
            raise InputError(
                "progress.minibatches_differ",
                f"progress: the checkpoint has {number_of(told['epoch_minibatches'], 'minibatch')} per epoch, but "
                f"this run has {self.epoch_minibatches}; resume with the original data and batch size",
            )
        left = {int(name): minibatches for name, minibatches in told["left"].items()}
        for epoch in sorted(left):
            if epoch >= self.num_epochs or any(m >= self._length(epoch) for m in left[epoch]):
                raise InputError(
                    "progress.epoch_malformed",
                    f"progress: epoch {epoch} has {shown(left[epoch])} left, which does not fit a run of "
                    f"{self.total_minibatches} minibatches with {self.epoch_minibatches} per epoch; resume with the "
                    "original data",
                )
            if left[epoch]:
                self._begun[epoch] = _Epoch(deque(sorted(set(left[epoch]))))
        self._fresh = max(left, default=-1) + 1 or -(-told["done"] // self.epoch_minibatches)
        self.num_done = min(self._fresh * self.epoch_minibatches, self.total_minibatches) - sum(
            len(epoch.waiting) for epoch in self._begun.values()
        )
        if self.num_done != told["done"]:
            raise InputError(
                "progress.count_differs",
                f"progress: {number_of(told['done'], 'minibatch')} are done, but the remaining minibatches imply "
                f"{self.num_done} of {self.total_minibatches}; resume with the original data and batch size",
            )

    def _length(self, epoch: int) -> int:
        return min(self.epoch_minibatches, self.total_minibatches - epoch * self.epoch_minibatches)

    def next_epoch(self) -> int | None:
        """Return the oldest epoch with minibatches that no one has; None if there is none."""
        for number, epoch in self._begun.items():
            if epoch.waiting:
                return number
        return self._fresh if self._fresh < self.num_epochs else None

    def num_waiting(self, epoch: int) -> int:
        """Number of unassigned minibatches of an epoch."""
        if epoch >= self._fresh:
            return self._length(epoch)
        return len(self._begun[epoch].waiting) if epoch in self._begun else 0

    def is_done(self, epoch: int) -> bool:
        """Return whether all minibatches of an epoch are done."""
        return epoch < self._fresh and epoch not in self._begun

    @property
    def num_begun(self) -> int:
        """Number of begun epochs."""
        return self._fresh

    @property
    def num_held(self) -> int:
        return sum(len(epoch.held) for epoch in self._begun.values())

    def holds(self, pipeline: int) -> bool:
        """Return whether a pipeline has minibatches that are not done."""
        return any(pipeline in epoch.held.values() for epoch in self._begun.values())

    def take(self, epoch: int, count: int, *, pipeline: int) -> list[int]:
        """Hand out the next `count` minibatches of an epoch, which has as many."""
        if epoch == self._fresh:
            self._begun[epoch] = _Epoch(deque(range(self._length(epoch))))
            self._fresh += 1
        begun = self._begun[epoch]
        taken = [begun.waiting.popleft() for _ in range(count)]
        begun.held |= dict.fromkeys(taken, pipeline)
        return taken

    def finish(self, epoch: int, minibatch: int) -> None:
        """Count a minibatch that is held as done."""
        begun = self._begun[epoch]
        del begun.held[minibatch]
        self.num_done += 1
        if not begun.held and not begun.waiting:
            del self._begun[epoch]

    def put_back(self, pipeline: int) -> dict[int, list[int]]:
        """Take from a pipeline what it holds, to be handed out before all others. Return it by epoch."""
        found = {}
        for number, epoch in self._begun.items():
            if back := sorted(m for m, holder in epoch.held.items() if holder == pipeline):
                epoch.waiting.extendleft(reversed(back))
                for minibatch in back:
                    del epoch.held[minibatch]
                found[number] = back
        return found

    def progress(self) -> dict[str, Any]:
        """Return `{"done", "epoch_minibatches", "left": {epoch: minibatches}}`; what pipelines hold is left as well.

        Epochs before those named are done, those after them are whole.
        """
        first = min(self._begun, default=self._fresh)
        left = {n: self._begun[n].left if n in self._begun else [] for n in range(first, self._fresh)}
        named = {str(n): minibatches for n, minibatches in left.items()}
        return {"done": self.num_done, "epoch_minibatches": self.epoch_minibatches, "left": named}
