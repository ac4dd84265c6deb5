"""The content of a data set's folder in any layout: its samples by split, their classes, and how to read one."""

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import name_text, read_json
from ...util.io.quantities import meant
from ...util.text.numbers import number_of
from ..formats import READERS, Cloud, Mesh, Reading, suffix_of
from ..formats.base import decoded, read_bytes
from ..labels import CLASSIFICATION, SEGMENTATION

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


# Entries of folders: those that systems and tools leave there are ignored in every layout, others may name a split
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


# Optional, at the top: {"name": …, "synthetic": true, "parts": […], "metric": true, "files": {…}}, and Reading's keys.
MARKER = "dataset.json"
Marker = dict[str, Any]  # its content
_KEYS = frozenset(  # of it; the last ones are of generated data sets
    "name metric parts labels ignore columns unmeasured colour_max files segment synthetic generator version seed "
    "num_train num_test families".split()
)
_MOST_SHOWN = 400  # characters of a path in a message
UNREAD = "of unsupported formats"
COMPANION_SUFFIXES = {  # of files that go with samples and are none
    *(".md", ".json", ".yaml", ".yml", ".html", ".pdf", ".log", ".seg", ".label", ".mtl", ".ini", ".cfg", ".py"),
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".svg", ".mp4", ".zip", ".tar", ".tgz"),
}


@dataclass(frozen=True)
class SampleFile:
    """One sample on disk; `name` is its path inside the data set, which is the same on every machine.

    `label` is the class of the whole, None if only points have classes. `entry` is its place in a file of many.
    `companions` are the further files that reading it needs, its points' labels among them.
    """

    path: Path
    name: str
    label: int | None
    split: str
    num_bytes: int
    entry: int | None = None
    companions: tuple[Path, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """Files or folders inside a data set that are not used as samples: `path` inside it, how many, and why."""

    path: str
    why: str
    files: int = 1


@dataclass(frozen=True)
class DataFolder:
    """Store the samples of a data set in a stable order. `marker` is the content of its dataset.json.

    `classes` are those of whole samples, `parts` those of points; either may be empty. Clouds with `metric` are scans
    in metres, which keep their position and size. Other clouds are scaled to the unit cube. `reader` reads one sample.
    Raises InputError for a dataset.json with malformed columns, labels or treatment of unmeasured points.
    """

    name: str
    path: Path
    classes: tuple[str, ...]
    files: tuple[SampleFile, ...]
    marker: Marker
    layout: str
    reader: Callable[[SampleFile, Reading], Mesh | Cloud]
    parts: tuple[str, ...] = ()
    metric: bool = False
    default_task: str = CLASSIFICATION
    left_out: tuple[LeftOut, ...] = ()
    faults: tuple[str, ...] = ()  # what keeps it from being used, one line each; `open_folder` raises the first

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", name_text(self.name))
        object.__setattr__(self, "classes", tuple(map(name_text, self.classes)))
        files = (replace(file, name=name_text(file.name)) if not file.name.isascii() else file for file in self.files)
        object.__setattr__(self, "files", tuple(files))
        _ = self.reading  # what dataset.json says wrongly is refused now
        for names, what in ((self.classes, "classes"), (self.parts, "parts")):
            if twins := duplicate_names(names):
                raise InputError(
                    "layout.names_alike",
                    f"{self.path}: {what} {twins}; rename one, or merge them",
                )

    @cached_property
    def reading(self) -> Reading:
        """Return what dataset.json declares about the files."""
        return Reading.declared(self.marker, self.path / MARKER)

    def read(self, file: SampleFile) -> Mesh | Cloud:
        """Return the content of one sample. Raises InputError that names the file if it cannot be read."""
        return self.reader(file, self.reading)

    @property
    def synthetic(self) -> bool:
        """Return whether the shapes were generated. Titles of their figures say so."""
        return bool(self.marker.get("synthetic", False))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the possible learning tasks, the usual one first."""
        there = [task for task, names in ((CLASSIFICATION, self.classes), (SEGMENTATION, self.parts)) if names]
        return tuple(sorted(there, key=lambda task: task != self.default_task))

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits of the data set, in the usual order."""
        found = {file.split for file in self.files}
        return tuple(split for split in SPLITS if split in found)

    def split(self, name: str) -> tuple[SampleFile, ...]:
        """Return the samples of one split.

        Raises InputError for an unknown split, or if a class has no sample in it.
        """
        files = self.of_split(name)
        if not files:
            there = f"; left out: {self._left_out_folders()}" if self.left_out else ""
            raise InputError(
                "dataset.split_unknown",
                f"{self.path}: has no split {name!r}, expected one of {', '.join(self.splits)}{there}",
                name=name,
            )
        if self.layout == "classes" and (empty := self.classes_without(name)):
            first = self.files[0]
            of_class = first.label is not None and first.name.startswith(f"{self.classes[first.label]}/")
            folder = self.path / (f"{empty[0]}/{name}" if of_class else f"{name}/{empty[0]}")
            raise InputError(
                "layout.class_empty",
                f"{folder}: has no {formats()} file; add files, or remove the class",
            )
        return files

    def of_split(self, name: str) -> tuple[SampleFile, ...]:
        """Return the samples of one split. Empty for an unknown split."""
        return tuple(file for file in self.files if file.split == name)

    def classes_without(self, split: str) -> list[str]:
        """Return the classes that have no sample in a split."""
        there = {file.label for file in self.files if file.split == split}
        return [name for label, name in enumerate(self.classes) if label not in there]

    def _left_out_folders(self) -> str:
        first = ", ".join(entry.path for entry in self.left_out[:3])
        return f"{first}, …" if len(self.left_out) > 3 else first


@dataclass
class Listing:
    """Result of listing a folder by its layout: samples, omitted files, and faults of the folder."""

    root: Path
    files: list[SampleFile] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def leave(self, path: Path, why: str, *, files: int = 1) -> None:
        """Note what is no part of the data set."""
        folder = "/" if path.is_dir() else ""
        self.left_out.append(LeftOut(f"{path.relative_to(self.root).as_posix()}{folder}", why, files))

    def leave_files(self, paths: Iterable[Path], why: str) -> None:
        """Note files that are not read, those of a folder and a suffix in one entry; broken links are distinguished."""
        alike: defaultdict[tuple[Path, str, str], list[Path]] = defaultdict(list)
        for path in paths:
            reason = why if path.exists() else "a link to nothing"
            alike[path.parent, path.suffix, reason].append(path)
        for (folder, suffix, reason), group in alike.items():
            many = len(group) > 1
            self.leave(folder / f"*{suffix}" if many else group[0], reason, files=len(group))

    def refuse_unread(
        self, folder: Path, paths: Iterable[Path], why: str = UNREAD, *, expected: str | None = None
    ) -> None:
        """Note as a fault that a folder of samples has none, but files that may be meant as such."""
        suffixes = Counter(
            suffix_of(path) or "no suffix" for path in paths if path.suffix.lower() not in COMPANION_SUFFIXES
        )
        if suffixes:
            kinds = ", ".join(sorted(suffixes)[:6])
            self.faults.append(
                f"{folder}: contains no sample, but {number_of(sum(suffixes.values()), 'file')} ({kinds}) {why}; "
                f"expected {expected or formats()}; convert these files, or move the folder elsewhere"
            )

    def attempt(self, make: Callable[[], SampleFile]) -> None:
        """Add the sample that `make` describes, or what is wrong with it."""
        try:
            self.files.append(make())
        except InputError as error:
            self.faults.append(str(error))

    def empty(self, message: str) -> InputError:
        """Return what to raise if there is no sample: what is wrong with those found, else `message`."""
        return InputError("layout.empty", self.faults[0] if self.faults else message)


def formats() -> str:
    """Name the formats that can be read."""
    return ", ".join(list(READERS)[:-1]) + f" or {list(READERS)[-1]}"


def read_marker(root: Path) -> Marker:
    """Return what a data set says of itself. Raises InputError for a dataset.json that is no object, or odd in it.

    A key that is not known may be there for people, but not one that is a misspelt one.
    """
    path = root / MARKER
    if not os.path.lexists(path):  # a link to nothing, or a pipe, is no data set without one
        return {}
    marker = read_json(path, what="data set's description")
    if not isinstance(marker, dict) or not isinstance(marker.get("name", ""), str):
        raise InputError(
            "marker.no_name", f"{path}: expected an object with a string 'name'; correct or remove the file"
        )
    for key in marker.keys() - _KEYS:
        if near := meant(key.lower(), sorted(_KEYS)):
            raise InputError(
                "marker.key_unknown",
                f"{path}: unknown key {shown(key)} (did you mean {near!r}?); rename or remove it",
            )
    return marker


def listed_lines(path: Path) -> list[str]:
    """Return the lines of a small list, such as class names, with paths as they are written here, not on Windows.

    Raises InputError if it is missing or empty.
    """
    text = decoded(read_bytes(path, what="a list")).replace("\\", "/")
    return [line.strip() for line in text.splitlines() if line.strip()]


def declared_parts(root: Path, marker: Marker) -> tuple[str, ...]:
    """Return the names of points' classes that dataset.json lists, () without. Raises InputError for another value."""
    parts = marker.get("parts", [])
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise InputError(
            "marker.parts_malformed",
            f"{root / MARKER}: 'parts' is {parts!r}, expected a list of names; correct or remove it",
        )
    return tuple(parts)


def is_metric(root: Path, marker: Marker, *, otherwise: bool) -> bool:
    """Return whether dataset.json says that clouds are in metres. Raises InputError for another value."""
    metric = marker.get("metric", otherwise)
    if not isinstance(metric, bool):
        raise InputError(
            "marker.metric_malformed",
            f"{root / MARKER}: 'metric' is {metric!r}, expected true or false; correct or remove it",
        )
    return metric


def duplicate_names(names: Iterable[str]) -> str:
    """Return two of the names that are the same but for case or Unicode form, as words of a message; "" without any."""
    first: dict[str, str] = {}
    for name in names:
        key = normalized_name(name)
        if key in first:
            how = "are the same" if first[key] == name else "differ only by case or Unicode form"
            return f"{first[key]!a} and {name!a} {how}"
        first[key] = name
    return ""


def normalized_name(name: str) -> str:
    """Return what names have in common that differ by case or Unicode form alone: archives and disks change both."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def sample_of(
    path: Path, root: Path, *, label: int | None, split: str, companions: tuple[Path, ...] = ()
) -> SampleFile:
    """Describe one sample. Raises InputError if one of its files is missing."""
    for file in (path, *companions):
        if not is_file(file):
            raise InputError("layout.listed_missing", f"{short(file)}: listed but missing; fetch the data set again")
    num_bytes = sum(file.stat().st_size for file in (path, *companions))
    return SampleFile(path, path.relative_to(root).as_posix(), label, split, num_bytes, companions=companions)


def is_file(path: Path) -> bool:
    """Return whether a file exists: not where its name is one that no file can have, either."""
    try:
        return path.is_file()
    except OSError:
        return False


def short(path: Path) -> str:
    """Write a path that a list made up, so that a message stays a line."""
    text = str(path)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
