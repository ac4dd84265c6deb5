"""What a data set's folder holds, whatever its layout: samples by split, their classes, and how to read one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...errors import InputError
from ..formats import READERS, Cloud, Mesh, Reading

SPLITS = ("train", "validation", "test")
# Optional, at the top: {"name": …, "synthetic": true, "parts": […], "metric": true, …}, and what Reading takes from it.
MARKER = "dataset.json"
CLASSIFICATION = "classification"  # one label a sample
SEGMENTATION = "segmentation"  # one label a point, hence a voxel


@dataclass(frozen=True)
class SampleFile:
    """One sample on disk; `name` is its path inside the data set, which is the same on every machine.

    `label` is the class of the whole, None where only points have classes. `entry` is its place in a file of many.
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
class DataFolder:
    """A data set's samples in a stable order; `marker` holds what its own dataset.json says.

    `classes` are those of whole samples, `parts` those of points; either may be empty. `metric` clouds are scans in
    metres, which keep their place and size; others fill the unit cube. `reader` gives one sample's content.
    Raises InputError where dataset.json declares columns, labels or unmeasured points wrongly.
    """

    name: str
    path: Path
    classes: tuple[str, ...]
    files: tuple[SampleFile, ...]
    marker: dict
    layout: str
    reader: Callable[[SampleFile, Reading], Mesh | Cloud]
    parts: tuple[str, ...] = ()
    metric: bool = False
    default_task: str = CLASSIFICATION

    def __post_init__(self) -> None:
        _ = self.reading  # what dataset.json says wrongly is refused now

    @cached_property
    def reading(self) -> Reading:
        """What dataset.json declares of the files."""
        return Reading.declared(self.marker, self.path / MARKER)

    def read(self, file: SampleFile) -> Mesh | Cloud:
        """Return one sample's content. Raises InputError that names the file where it cannot be read."""
        return self.reader(file, self.reading)

    @property
    def synthetic(self) -> bool:
        """Say whether the shapes were generated, not measured or designed: figures must say so."""
        return bool(self.marker.get("synthetic", False))

    @property
    def tasks(self) -> tuple[str, ...]:
        """What can be learned here, the usual task first."""
        there = [task for task, names in ((CLASSIFICATION, self.classes), (SEGMENTATION, self.parts)) if names]
        return tuple(sorted(there, key=lambda task: task != self.default_task))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits found, in the usual order."""
        found = {file.split for file in self.files}
        return tuple(split for split in SPLITS if split in found)

    def split(self, name: str) -> tuple[SampleFile, ...]:
        """Return the samples of one split. Raises InputError where there is none, or a class is missing in it."""
        files = tuple(file for file in self.files if file.split == name)
        if not files:
            raise InputError(f"{self.path}: no split {name!r}, expected one of {', '.join(self.splits)}")
        empty = sorted(set(range(len(self.classes))) - {file.label for file in files})
        if empty and self.layout == "classes":
            folder = self.path / self.classes[empty[0]] / name
            raise InputError(f"{folder}: no {formats()} file, expected at least one; add files or remove the class")
        return files


def folders(path: Path) -> list[Path]:
    """List the folders inside one, by name, without what archives and readers leave there."""
    ignored = ("__MACOSX", "__pycache__")
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in ignored)


def formats() -> str:
    """Name the formats that can be read."""
    return ", ".join(list(READERS)[:-1]) + f" or {list(READERS)[-1]}"


def listed_lines(path: Path) -> list[str]:
    """Return the lines of a small list, such as class names. Raises InputError where it is missing or empty."""
    from ...files import read_text

    lines = [line.strip() for line in read_text(path, what="list").splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{path}: empty, expected one name a line; fetch the data set again")
    return lines


def sample_of(
    path: Path, root: Path, *, label: int | None, split: str, companions: tuple[Path, ...] = ()
) -> SampleFile:
    """Describe one sample. Raises InputError where one of its files is missing."""
    try:
        num_bytes = sum(file.stat().st_size for file in (path, *companions))
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: listed but not there; fetch the data set again") from None
    return SampleFile(path, path.relative_to(root).as_posix(), label, split, num_bytes, companions=companions)
