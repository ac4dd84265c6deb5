"""Sequences of unlike length in two arrays, as they are kept in the cache."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequence k is `ids`[`offsets`[k] : `offsets`[k + 1]]: ids int32 [N], offsets int64 [sequences + 1]."""

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int] | np.ndarray]) -> "Ragged":
        arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence: int64 [sequences]."""
        return np.diff(self.offsets)


def padded(rows: Sequence[np.ndarray], padding: int) -> np.ndarray:
    """Put sequences into one array, the shorter ones padded at their end: int64 [rows, longest]."""
    table = np.full((len(rows), max(len(row) for row in rows)), padding, dtype=np.int64)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = row
    return table
