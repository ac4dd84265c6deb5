"""Plain texts in documents: train/*.txt and test/*.txt, or *.txt in one folder.

A document is a file, or where a split is a single file what stands between its empty lines. Sentences are lines, long
ones divided where a sentence ends. In one folder every tenth document, by name or place, is for testing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import InputError
from ....util.io.files import open_regular
from ...layouts.litter import entries, folders
from ...layouts.splits import split_of
from .aligned import read_lines

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
