"""Items of an iterable data set by their number: read in order, in every process the same, again for each epoch.

An iterable has no indices. Item 7 of epoch 2 is what its third iteration gives as its eighth; to resume there, the
items before are read and skipped. The last ones read stay in memory, for those who ask for a minibatch a second time.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ...errors import InputError
from ...util.derived import SHARED_GENERATORS, sample_seed
from ...util.io.options import tell
from ...util.text.numbers import number_of

_T = TypeVar("_T")
_KEPT = 1024  # items that were read last
_MOST_COUNTED = 10_000_000  # items that are read to find out how many there are
_TOLD_EVERY = 100_000  # items, while they are counted or skipped


def is_stream(dataset: object) -> bool:
    """Return whether a data set gives its items in order alone, and again: a generator gives them once."""
    kind = type(dataset)
    if isinstance(dataset, set | frozenset | str | bytes | Mapping) or hasattr(kind, "__next__"):
        return False
    return isinstance(dataset, IterableDataset) or (hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"))


class Stream:
    """An iterable data set as items by number. Its draws repeat by seed and epoch, whatever else draws meanwhile."""

    def __init__(self, dataset: Iterable[Any], name: str, seed: int) -> None:
        """`name`: of the split, in messages and as part of the seed."""
        self._dataset, self._name, self._seed = dataset, name, seed
        self._lock = RLock()
        self._kept: OrderedDict[tuple[int, int], Any] = OrderedDict()  # (epoch, number) → item
        self._iterator: Iterator[Any] | None = None
        self._epoch, self._next = -1, 0
        self._draws: tuple[Any, Any, Any] = states_of_generators()
        self._length: int | None = None

    def __len__(self) -> int:
        """Count the items: as the data set says, else by reading all of them once."""
        with self._lock:
            if self._length is None:
                self._length = self._said_length()
            if self._length is None:
                tell(f"{self._name}: an iterable without len(); all items are read once to count them")
                self._length = self._counted()
            return self._length

    def item(self, number: int, epoch: int) -> Any:
        """Return an item of an epoch. Raises InputError if the epoch ends before it, and what the data set raises."""
        with self._lock:
            while (kept_item := self._kept.get((epoch, number), self)) is self:
                if self._iterator is None or self._epoch != epoch or self._next > number:
                    self._begin(epoch)
                    if number > self._next + _KEPT:
                        tell(f"{self._name}: {number_of(number, 'item')} of an iterable are read and skipped")
                self._read(number)
            return kept_item

    def _begin(self, epoch: int) -> None:
        set_epoch: Callable[[int], None] | None = getattr(self._dataset, "set_epoch", None)
        with SHARED_GENERATORS:
            others = states_of_generators()
            try:
                seed_generators(sample_seed(self._seed, f"{self._name}:stream:{epoch}"))
                if set_epoch is not None:
                    set_epoch(epoch)
                self._iterator = iter(self._dataset)
                self._draws = states_of_generators()
            finally:
                restore_generators(others)
        self._epoch, self._next = epoch, 0

    def _read(self, wanted: int) -> None:
        """Read one item more: its draws continue those of the item before."""
        assert self._iterator is not None
        with SHARED_GENERATORS:
            others = states_of_generators()
            try:
                restore_generators(self._draws)
                item = next(self._iterator, self)
                self._draws = states_of_generators()
            finally:
                restore_generators(others)
        if item is self:
            raise InputError(
                "own_data.stream_ended",
                f"{self._name}: epoch {self._epoch} of the iterable ends after {number_of(self._next, 'item')}, "
                f"expected more than {wanted}; define a __len__ that is true for every epoch",
                items=self._next,
            )
        self._kept[self._epoch, self._next] = item
        self._next += 1
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _said_length(self) -> int | None:
        try:
            return len(self._dataset)  # type: ignore[arg-type]  # some iterables have one
        except (TypeError, NotImplementedError):
            return None

    def _counted(self) -> int:
        for count in range(_MOST_COUNTED):
            try:
                self.item(count, 0)
            except InputError as error:
                if error.code != "own_data.stream_ended":
                    raise
                return count
            if count and count % _TOLD_EVERY == 0:
                tell(f"{self._name}: {count:,} items counted so far")
        raise InputError(
            "own_data.stream_endless",
            f"{self._name}: the iterable has more than {_MOST_COUNTED:,} items and no len(); define a __len__ with "
            "the items per epoch",
        )


def with_generators(name: str, seed: int, run: Callable[[], _T]) -> _T:
    """Run code that may draw, by seed and name: other threads draw too, so it has the generators for itself."""
    with SHARED_GENERATORS:
        others = states_of_generators()
        try:
            seed_generators(sample_seed(seed, name))
            return run()
        finally:
            restore_generators(others)


def states_of_generators() -> tuple[Any, Any, Any]:
    """Return the states of the global generators of torch, numpy and Python."""
    return torch.random.get_rng_state(), np.random.get_state(), random.getstate()


def restore_generators(states: tuple[Any, Any, Any]) -> None:
    """Bring the global generators to states that they had."""
    torch.random.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def seed_generators(seed: int) -> None:
    """Let the global generators of torch, numpy and Python restart."""
    torch.random.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed % 2**32)  # a longer one takes longer
