"""Entries of folders: those that systems and tools leave there are ignored in every layout, others may name a split."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import InputError

_NAMES = {
    "__macosx",  # macOS, in archives
    "icon\r",
    "thumbs.db",  # Windows
    "ehthumbs.db",
    "desktop.ini",
    "$recycle.bin",
    "system volume information",
    "lost+found",  # Linux
    "@eadir",  # network storage
    "__pycache__",
}
_STREAM = ":zone.identifier"  # Windows: where a file was downloaded from


def is_litter(name: str) -> bool:
    """Return whether a file or folder of this name belongs to no data set: hidden (`._x`, `.DS_Store`) or a
    system's.
    """
    lower = name.lower()
    return name.startswith(".") or lower in _NAMES or lower.endswith(_STREAM)


def entries(folder: Path) -> list[Path]:
    """List what is inside a folder, by name, without litter. Raises InputError if it cannot be listed."""
    return [folder / entry.name for entry in _listed(folder)]


def folders(path: Path) -> list[Path]:
    """List the folders inside one, by name, without litter. Raises InputError if it cannot be listed."""
    return [path / entry.name for entry in _listed(path) if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder: not where it is a link that leads nowhere, or if no one may look."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as inside:  # it knows folders from files without asking for each
            return sorted((entry for entry in inside if not is_litter(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            "folder.unlistable", f"{folder}: cannot be listed ({error.strerror}); check its path and permissions"
        ) from None


SPLITS = ("train", "validation", "test")
_WORDS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
WORDS = tuple(_WORDS)  # that name a split, in any case
_VERSION = ("v", "ver", "version")  # a number behind one of them tells variants apart, not parts


def split_of(word: str) -> str | None:
    """Return the split that a word names, in any case; None if it names none."""
    return _WORDS.get(word.lower())


def words_of(stem: str) -> list[str]:
    """Divide a file's name into words and numbers, lower case: `ply_data_train0`, `PlyDataTrain0` → … train, 0."""
    found = re.findall(r"\d+|[^\W\d_]+", stem)
    divided = (re.split(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", word) for word in found)
    return [part.lower() for parts in divided for part in parts]


def splits_named(stem: str) -> list[str]:
    """Return the splits that whole words of a file's name say: `retrain` and `constraint` say none."""
    return sorted({split for word in words_of(stem) if (split := split_of(word))}, key=SPLITS.index)


def are_parts(stems: Sequence[str]) -> bool:
    """Return whether files of one split are parts of one set: equal except for one number that counts from 0 or 1.

    train0, train1 and train-00000-of-00002, train-00001-of-00002 are; train_v1, train_v2 and train_1024, train_2048
    are alternatives; train0, train2 lack one.
    """
    names = [words_of(stem) for stem in stems]
    if len(names) > 1:
        if len({len(name) for name in names}) > 1:
            return False
        differing = [place for place, words in enumerate(zip(*names, strict=True)) if len(set(words)) > 1]
        if len(differing) != 1:
            return False
        place = differing[0]
        words = [name[place] for name in names]
        if not all(word.isdecimal() for word in words) or (place and names[0][place - 1] in _VERSION):
            return False
        numbers = sorted(map(int, words))
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
            return False
    return all(_number_said(name) in (None, len(names)) for name in names)


def version_of(stem: str) -> str | None:
    """Return the version that a file's name says (`v2`), None if it says none."""
    words = words_of(stem)
    pairs = zip(words, words[1:], strict=False)
    return next((number for word, number in pairs if word in _VERSION and number.isdecimal()), None)


def _number_said(words: list[str]) -> int | None:
    """Return how many parts a name says there are (`00000-of-00005`), None if it says nothing."""
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        if word == "of" and before.isdecimal() and after.isdecimal() and len(after) < 9:
            return int(after)
    return None
