"""NVIDIA's shards of BERT's samples, in HDF5: the same in each epoch. Their arrays: see shard_files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError
from ....util.io.fields import given_integer
from ....util.io.files import name_text, read_text
from ...folder import check_indices, look_at, named_digest
from ...labels import IGNORED
from ..base import ExampleBatch, TextExamples
from .bert import bert_batch
from .masking import MaskedSample
from .shard_files import files_of, opened_shard, shape_of

_EVERY = 20  # samples of a shard: the last of so many is for testing, where no file is
_VOCABULARY_SIZE = 30522  # of bert-base-uncased and bert-large-uncased, with which NVIDIA's are made
_MOST_KEPT = 4  # shards in memory


@dataclass(frozen=True)
class ShardSettings:
    """Options of `open_examples`. `vocabulary_size`: the number of lines of vocab.txt if there is one, else 30522."""

    vocabulary_size: int = 0

    def __post_init__(self) -> None:
        given_integer(self.vocabulary_size, "vocabulary_size", least=0)


@dataclass(frozen=True, eq=False)
class ShardExamples(TextExamples):
    """One split of shards, as `ExampleDataset`."""

    root: Path
    split: str
    settings: ShardSettings
    _kept: dict[Path, dict[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self):
            raise InputError(
                "shards.no_samples", f"{self.root}: its shards have no samples for split {self.split}; add a test shard"
            )

    @cached_property
    def files(self) -> tuple[Path, ...]:
        return files_of(self.root, self.split)[0]

    @cached_property
    def _rows(self) -> tuple[np.ndarray, ...]:
        """The rows of each shard that are of the split: if no file is for testing, of every twenty the last is."""
        _, held_out = files_of(self.root, self.split)
        rows = [np.arange(shape_of(path)[0], dtype=np.int32) for path in self.files]
        return tuple(own if held_out is None else own[(own % _EVERY == _EVERY - 1) == held_out] for own in rows)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(rows) for rows in self._rows])

    def _place(self, index: int) -> tuple[Path, int]:
        """Return the shard and the row in it of a sample."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[number - 1]) if number else 0
        return self.files[number], int(self._rows[number][index - before])

    @cached_property
    def sequence_length(self) -> int:
        lengths = {shape_of(path)[1] for path in self.files}
        if len(lengths) > 1:
            raise InputError(
                "shards.lengths_differ",
                f"{self.root}: its shards have sequences of {sorted(lengths)} words, expected only one length",
            )
        return lengths.pop()

    @cached_property
    def vocabulary_size(self) -> int:
        if self.settings.vocabulary_size:
            return self.settings.vocabulary_size
        words = self.root / "vocab.txt"
        return len(read_text(words).splitlines()) if words.is_file() else _VOCABULARY_SIZE

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def loss(self) -> str:
        return "masked-words"

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"vocabulary_size": self.vocabulary_size, "sequence_length": self.sequence_length, "padding": 0}

    @cached_property
    def origin(self) -> dict[str, Any]:
        return {
            "name": name_text(self.root.name),
            "split": self.split,
            "samples": len(self),
            "synthetic": self.synthetic,
            **self.facts,
            **named_digest(self.files, self.root),
        }

    def name(self, index: int) -> str:
        path, row = self._place(index)
        return f"{path.relative_to(self.root).as_posix()}/{row}"

    def look(self) -> None:
        """Check that all files exist, without reading them."""
        look_at(self.files, self.split)

    def sample_sizes(self) -> Sequence[int]:
        """Return each sample's words, padding not among them. Reads the masks of all shards once."""
        return self._sizes

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        found = []
        for path, rows in zip(self.files, self._rows, strict=True):
            with opened_shard(path) as arrays:
                found.append(np.count_nonzero(arrays["input_mask"][...], axis=1)[rows])
        return tuple(np.maximum(np.concatenate(found), 1).tolist())

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
        """Return sequences as one minibatch, padding beyond the longest left away."""
        check_indices(indices, len(self), self.split)
        return bert_batch([self._sample(*self._place(index)) for index in indices], 0)

    def _sample(self, path: Path, row: int) -> MaskedSample:
        arrays = self._shard(path)
        length = max(1, int(np.count_nonzero(arrays["input_mask"][row])))
        words = arrays["input_ids"][row, :length].astype(np.int64)
        types = arrays["segment_ids"][row, :length].astype(np.int64)
        positions, masked = (arrays[name][row].astype(np.int64) for name in ("masked_lm_positions", "masked_lm_ids"))
        used = positions > 0  # the first word is never masked: 0 is padding
        follows = int(np.ravel(arrays["next_sentence_labels"][row])[0])
        told = np.full(length, IGNORED, dtype=np.int64)
        inside = used & (positions < length)
        told[positions[inside]] = masked[inside]
        highest, lowest = (
            max(int(words.max()), int(masked.max(initial=0))),
            min(int(words.min()), int(masked.min(initial=0))),
        )
        problem = ""
        if not 0 <= lowest <= highest < self.vocabulary_size:
            problem = f"words from {lowest} to {highest}, expected 0 to {self.vocabulary_size - 1}, the vocabulary's"
        elif bool((used & ~inside).any()):
            problem = f"masks word {int(positions.max())} of {length}"
        elif not bool(np.isin(types, (0, 1)).all()) or follows not in (0, 1):
            problem = "a segment or next-sentence label other than 0 and 1"
        if problem:
            raise InputError("shards.sample_damaged", f"{path}: sample {row} has {problem}; create the shard again")
        return MaskedSample(words, types, told, follows)

    def _shard(self, path: Path) -> dict[str, np.ndarray]:
        """Return a shard's arrays, the last few of them kept in memory."""
        if path not in self._kept:
            with opened_shard(path) as arrays:
                found = {name: array[...] for name, array in arrays.items()}
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[path] = found
        return self._kept[path]
