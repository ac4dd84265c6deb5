"""The content of a data set's folder in any layout: its samples by split, their classes, and how to read one."""

import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import name_text, read_json
from ...util.io.quantities import meant
from ...util.text.counting import number_of
from ..formats import READERS, Cloud, Mesh, Reading, suffix_of
from ..formats.base import decoded, read_bytes
from ..labels import CLASSIFICATION, SEGMENTATION
from .entries import SPLITS

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
