"""NVIDIA's shards of BERT's samples, in HDF5: the same in each epoch. Their arrays: see shard_files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError
from ....util.io.fields import given_integer
from ....util.io.files import name_text, read_text
from ...formats.hdf5 import check_storage, hdf5_file
from ...labels import IGNORED
from ...layouts.litter import entries, folders
from ...layouts.splits import split_of, splits_named
from ...presence import look_at
from ..base import ExampleBatch
from ..files import check_indices, named_digest
from .base import TextExamples
from .bert import bert_batch
from .masking import MaskedSample

ARRAYS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
_SUFFIXES = (".hdf5", ".h5")
_MOST_LENGTH = 65_536


def found(root: Path) -> bool:
    """Return whether a folder holds HDF5 files in which there are words."""
    train = next((folder for folder in folders(root) if split_of(folder.name) == "train"), root)
    path = next(iter(_shards(train)), None)
    if path is None or not path.is_file():  # a pipe would be waited for
        return False
    try:
        with hdf5_file(path, what="a shard of samples") as file:
            return any(name in file for name in ARRAYS)
    except InputError:
        return False


def files_of(root: Path, split: str) -> tuple[tuple[Path, ...], bool | None]:
    """Return the shards of a split, and where the same files hold both splits which rows: True those for testing."""
    inside = {name: folder for folder in folders(root) if (name := split_of(folder.name))}
    by_split: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for name, folder in inside.items():
        by_split[name] += _shards(folder)
    unnamed: list[Path] = []
    for path in _shards(root):
        named = splits_named(path.stem)
        (by_split[named[0]] if len(named) == 1 else unnamed).append(path)
    by_split["train"] += unnamed
    testing = by_split["test"] or by_split["validation"]
    if split == "test" and testing:
        return tuple(testing), None
    if not by_split["train"]:
        raise InputError("shards.no_training", f"{root}: no shard for training, only for testing; add some")
    return tuple(by_split["train"]), None if testing else split == "test"


def _shards(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if path.suffix.lower() in _SUFFIXES]


def shape_of(path: Path) -> tuple[int, int]:
    """Return how many samples a shard has, of how many words."""
    with opened_shard(path) as arrays:
        return tuple(arrays["input_ids"].shape)


@contextmanager
def opened_shard(path: Path) -> Iterator[dict[str, Any]]:
    """Give a shard's arrays, unread, once they are there and fit each other. Raises InputError that names the file."""
    import h5py

    with hdf5_file(path, what="a shard of samples") as file:
        links = {name: file.get(name, getlink=True) for name in ARRAYS}
        missing = [name for name, link in links.items() if link is None]
        if missing:
            raise InputError(
                "shards.array_missing", f"{path}: no array {', '.join(missing)}, expected {', '.join(ARRAYS)}"
            )
        if any(not isinstance(link, h5py.HardLink) for link in links.values()):  # never followed
            raise InputError(
                "shards.array_is_link", f"{path}: one of its arrays is a link, expected arrays in the file itself"
            )
        arrays = {name: file[name] for name in ARRAYS}
        for name, array in arrays.items():
            _check(path, name, array)
        _check_shapes(path, {name: array.shape for name, array in arrays.items()})
        yield arrays


def _check(path: Path, name: str, array: object) -> None:
    import h5py

    if not isinstance(array, h5py.Dataset) or array.shape is None or array.dtype.kind not in "iub":
        raise InputError(
            "shards.not_whole_numbers", f"{path}: {name} is no array of whole numbers; make the shard again"
        )
    check_storage(path, name, array)


def _check_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    words, masked = shapes["input_ids"], shapes["masked_lm_positions"]
    if len(words) != 2 or 0 in words or words[1] > _MOST_LENGTH:
        raise InputError("shards.input_shape", f"{path}: input_ids is {list(words)}, expected [samples, words]")
    if len(masked) != 2 or masked[0] != words[0]:
        raise InputError(
            "shards.position_shape",
            f"{path}: masked_lm_positions is {list(masked)}, expected [{words[0]}, masked words]",
        )
    wanted: dict[str, set[tuple[int, ...]]] = {"input_mask": {words}, "segment_ids": {words}, "masked_lm_ids": {masked}}
    wanted["next_sentence_labels"] = {words[:1], (words[0], 1)}
    for name, allowed in wanted.items():
        if shapes[name] not in allowed:
            raise InputError(
                "shards.array_shape", f"{path}: {name} is {list(shapes[name])}, expected {[*min(allowed, key=len)]}"
            )


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
                "shards.no_samples", f"{self.root}: no sample for split {self.split} in its shards; add a test shard"
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
                f"{self.root}: shards of sequences of {sorted(lengths)} words, expected one length",
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
            raise InputError("shards.sample_damaged", f"{path}: sample {row} has {problem}; make the shard again")
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
