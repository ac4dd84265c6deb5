"""What BERT learns from: documents of plain text, two pieces of them, whether one follows the other, masked words.

Devlin, Chang, Lee, Toutanova. BERT. NAACL 2019, appendix A.1 and A.2: 15% of the words are predicted; of these 80%
are masked, 10% become any other and 10% stay. Every other time the second piece is of another document.

Documents are in train/*.txt and test/*.txt, or *.txt in one folder. A document is a file, or where a split is a single
file what stands between its empty lines. Sentences are lines, long ones divided where a sentence ends. In one folder
every tenth document, by name or place, is for testing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator

from ....errors import InputError
from ....util.io.files import open_regular
from ...labels import IGNORED
from ...layouts.base import entries, folders, split_of
from .aligned import read_lines
from .vocabulary import Ragged

SUFFIX = ".txt"
EVERY = 10  # documents: the last of so many is for testing, where the folder does not say
_LOOKED_AT = 4096  # bytes of a file that tell whether it is prose
_LETTERS = 0.6  # of its characters, blanks among them
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-ZÀ-Þ])")


@dataclass(frozen=True)
class PlainTexts:
    """The files of a split. `part` is None, or which of their documents belong to it: True those for testing."""

    split: str
    files: tuple[Path, ...]
    part: bool | None = None

    def read(self) -> list[list[str]]:
        """Return the sentences of each document. Raises InputError that names a file that cannot be read."""
        if len(self.files) > 1:
            found = [[line for line in read_lines(path) if line] for path in self.files]
        else:
            found = _between_empty_lines(read_lines(self.files[0]))
        whole = [document for document in found if document]
        if self.part is not None:
            whole = [document for place, document in enumerate(whole) if (place % EVERY == EVERY - 1) == self.part]
        if not whole:
            raise InputError(
                "texts.no_documents", f"{self.files[0].parent}: has no document for split {self.split}; add one"
            )
        return [[sentence for line in document for sentence in sentences(line)] for document in whole]


def found(root: Path) -> bool:
    """Return whether a folder holds prose, in train/ or itself and then nothing else."""
    train = _split_folders(root).get("train")
    files = _texts(train if train is not None else root)
    if train is None and [path for path in entries(root) if path not in files]:
        return False
    return bool(files) and is_prose(files[0])


def opened(root: Path, split: str) -> PlainTexts:
    """Find the files of a split."""
    inside = _split_folders(root)
    if "train" not in inside:
        return PlainTexts(split, tuple(_texts(root)), split == "test")
    held = next((inside[name] for name in ("test", "validation") if name in inside and _texts(inside[name])), None)
    if held is None:
        return PlainTexts(split, tuple(_texts(inside["train"])), split == "test")
    return PlainTexts(split, tuple(_texts(held if split == "test" else inside["train"])))


def is_prose(path: Path) -> bool:
    """Return whether a file begins as a text does, and not as rows of numbers do."""
    try:
        with open_regular(path) as file:
            start = file.read(_LOOKED_AT)
    except OSError:
        return False
    text = start.decode("utf-8", errors="replace")
    letters = sum(letter.isalpha() or letter.isspace() for letter in text)
    return b"\0" not in start and bool(text.strip()) and letters > _LETTERS * len(text)


def sentences(line: str) -> list[str]:
    """Divide a line behind full stops that a capital follows."""
    return [sentence for sentence in _SENTENCE_ENDS.split(line) if sentence.strip()]


def _between_empty_lines(lines: Sequence[str]) -> list[list[str]]:
    documents: list[list[str]] = [[]]
    for line in lines:
        if line:
            documents[-1].append(line)
        elif documents[-1]:
            documents.append([])
    return documents


def _texts(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if path.suffix.lower() == SUFFIX and path.is_file()]


def _split_folders(root: Path) -> dict[str, Path]:
    return {split: folder for folder in folders(root) if (split := split_of(folder.name))}


_TOLD = 0.15
_MASKED, _CHANGED = 0.8, 0.1
_LEAST = 4  # subwords of a chunk
ROOM = 3  # subwords of a sequence that [CLS] and two [SEP] take


@dataclass(frozen=True, eq=False)
class MaskedSample:
    """One sequence: `words`, `token_types` and the words to predict, `told`, IGNORED elsewhere: int64 [length]."""

    words: np.ndarray
    token_types: np.ndarray
    told: np.ndarray
    next_sentence: int  # 0 where the second piece follows the first, 1 where it is another's


@dataclass(frozen=True, eq=False)
class Chunks:
    """Pieces of documents that fill a sequence each: sentences one after the other, cut at a sentence's end.

    `bounds` int64 [chunks, 2] into the sentences' subwords, `documents` int64 [chunks].
    """

    sentences: Ragged
    bounds: np.ndarray
    documents: np.ndarray

    @classmethod
    def of(cls, sentences: Ragged, documents: np.ndarray, sequence_length: int) -> "Chunks":
        """Fill sequences with the sentences of each document, `documents` int64 [sentences]; scraps are left out."""
        room, bounds, owners = sequence_length - ROOM, [], []
        start = 0
        for place in range(len(sentences)):
            first, last = int(sentences.offsets[place]), int(sentences.offsets[place + 1])
            if place and (documents[place] != documents[place - 1] or last - start > room) and first > start:
                bounds.append((start, first))
                owners.append(documents[place - 1])
                start = first
            while last - start > room:  # a sentence longer than a sequence
                bounds.append((start, start + room))
                owners.append(documents[place])
                start += room
        if len(sentences) and int(sentences.offsets[-1]) > start:
            bounds.append((start, int(sentences.offsets[-1])))
            owners.append(documents[-1])
        table = np.array(bounds, dtype=np.int64).reshape(-1, 2)
        long = (table[:, 1] - table[:, 0]) >= _LEAST
        return cls(sentences, table[long], np.array(owners, dtype=np.int64)[long])

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence with its special tokens; shorter where another's piece is: int64 [chunks]."""
        lengths: np.ndarray = self.bounds[:, 1] - self.bounds[:, 0] + ROOM
        return lengths

    def pieces(self, index: int, draw: Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Cut a chunk in two; every other time the second piece is replaced by as much of another document."""
        start, end = self.bounds[index].tolist()
        offsets = self.sentences.offsets
        inner = offsets[np.searchsorted(offsets, start, side="right") : np.searchsorted(offsets, end, side="left")]
        cut = int(draw.choice(inner)) if len(inner) else (start + end) // 2
        first, second = self.sentences.ids[start:cut], self.sentences.ids[cut:end]
        if draw.random() < 0.5:
            return first, second, 0
        others = np.flatnonzero(self.documents != self.documents[index])
        if not len(others):  # of one document alone
            others = np.flatnonzero(np.arange(len(self)) != index)
        if not len(others):
            return first, second, 0
        low, high = self.bounds[int(draw.choice(others))].tolist()
        return first, self.sentences.ids[low : min(high, low + end - cut)], 1


def masked_sample(
    first: np.ndarray,
    second: np.ndarray,
    next_sentence: int,
    draw: Generator,
    *,
    special: Sequence[int],
    vocabulary_size: int,
) -> MaskedSample:
    """Put two pieces between special tokens and mask words. `special`: the numbers of BERT_TOKENS, which come first."""
    _, _, begin, end, mask = special
    words = np.concatenate([[begin], first, [end], second, [end]]).astype(np.int64)
    types = np.repeat([0, 1], [len(first) + 2, len(second) + 1])
    candidates = np.flatnonzero(~np.isin(words, (begin, end)))
    chosen = draw.permutation(candidates)[: max(1, round(_TOLD * len(candidates)))]
    told = np.full(len(words), IGNORED, dtype=np.int64)
    told[chosen] = words[chosen]
    how = draw.random(len(chosen))
    changed = chosen[(how >= _MASKED) & (how < _MASKED + _CHANGED)]
    words[chosen[how < _MASKED]] = mask
    words[changed] = draw.integers(len(special), vocabulary_size, size=len(changed))
    return MaskedSample(words, types, told, next_sentence)
