"""ModelNet's layout of folders, CLASS/SPLIT/FILE, found, checked and listed; no file is opened yet."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..files import read_json
from .formats import READERS

SPLITS = ("train", "validation", "test")
MARKER = "dataset.json"  # optional, beside the class folders: {"name": …, "synthetic": true, …}


@dataclass(frozen=True)
class SampleFile:
    """One sample on disk; `name` is its path inside the data set, which is the same on every machine."""

    path: Path
    name: str
    label: int
    split: str
    num_bytes: int


@dataclass(frozen=True)
class DataFolder:
    """A data set's files in class order, then name; `marker` holds what its own dataset.json says."""

    name: str
    path: Path
    classes: tuple[str, ...]
    files: tuple[SampleFile, ...]
    marker: dict

    @property
    def synthetic(self) -> bool:
        """Say whether the shapes were generated, not measured or designed: figures must say so."""
        return bool(self.marker.get("synthetic", False))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits found, in the usual order."""
        found = {file.split for file in self.files}
        return tuple(split for split in SPLITS if split in found)

    def split(self, name: str) -> tuple[SampleFile, ...]:
        """Return the files of one split. Raises InputError where there is none, or a class is missing in it."""
        files = tuple(file for file in self.files if file.split == name)
        if not files:
            raise InputError(f"{self.path}: no split {name!r}, expected one of {', '.join(self.splits)}")
        empty = sorted(set(range(len(self.classes))) - {file.label for file in files})
        if empty:
            folder = self.path / self.classes[empty[0]] / name
            raise InputError(f"{folder}: no {_formats()} file, expected at least one; add files or remove the class")
        return files


def open_folder(path: Path | str) -> DataFolder:
    """List a data set in ModelNet's layout: CLASS/{train,test}/*.{off,pcd}, or one folder around it, as archives have.

    Raises InputError where the layout is another, a class has no files, or a sample is there in two formats.
    """
    given = Path(path)
    if not given.is_dir():
        state = "is a file" if given.exists() else "no such folder"
        raise InputError(f"{given}: {state}, expected a folder CLASS/{{train,test}}/FILE; check the path")
    root = _root(given.resolve())
    marker = _marker(root)
    classes = tuple(folder.name for folder in _folders(root))
    files: list[SampleFile] = []
    for label, name in enumerate(classes):
        found = _class_files(root, name, label)
        if not found:
            raise InputError(
                f"{root / name}: no {_formats()} file in {_splits()}; add files or remove the class folder"
            )
        files += found
    if not files:
        raise InputError(f"{root}: no class folder, expected CLASS/{{train,test}}/FILE; check the path")
    return DataFolder(marker.get("name", root.name), root, classes, tuple(files), marker)


def info(path: Path | str) -> dict:
    """Say what a folder holds, ready for JSON: name, classes, samples by split and class, formats, bytes."""
    folder = open_folder(path)
    by_class = {
        name: {
            split: sum(file.label == label and file.split == split for file in folder.files) for split in folder.splits
        }
        for label, name in enumerate(folder.classes)
    }
    return {
        "name": folder.name,
        "path": str(path),
        "synthetic": folder.synthetic,
        "classes": list(folder.classes),
        "splits": dict(_counted(folder, lambda file: file.split)),
        "samples": len(folder.files),
        "samples_by_class": by_class,
        "formats": dict(_counted(folder, lambda file: file.path.suffix.lower().removeprefix("."))),
        "bytes": sum(file.num_bytes for file in folder.files),
    }


def _counted(folder: DataFolder, key) -> list[tuple[str, int]]:
    counts = Counter(key(file) for file in folder.files)
    return sorted(counts.items(), key=lambda item: (SPLITS.index(item[0]) if item[0] in SPLITS else 0, item[0]))


def _root(path: Path) -> Path:
    """Step into folders that hold nothing but one folder which is not itself a class: archives unpack so."""
    folders = _folders(path)
    if len(folders) == 1 and not any((folders[0] / split).is_dir() for split in SPLITS) and _folders(folders[0]):
        return _root(folders[0])
    return path


def _marker(root: Path) -> dict:
    path = root / MARKER
    if not path.is_file():
        return {}
    marker = read_json(path, what="data set's description")
    if not isinstance(marker, dict) or not isinstance(marker.get("name", ""), str):
        raise InputError(f"{path}: expected an object with 'name' as text; correct or remove it")
    return marker


def _class_files(root: Path, name: str, label: int) -> list[SampleFile]:
    files = []
    for split in SPLITS:
        folder = root / name / split
        stems: dict[str, Path] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.startswith(".") or path.suffix.lower() not in READERS or not path.is_file():
                continue
            twin = stems.setdefault(path.stem, path)
            if twin != path:
                raise InputError(f"{twin}: the same sample is there as {path.name}; keep one format")
            relative = path.relative_to(root).as_posix()
            files.append(SampleFile(path, relative, label, split, path.stat().st_size))
    return files


def _folders(path: Path) -> list[Path]:
    ignored = ("__MACOSX", "__pycache__")
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in ignored)


def _formats() -> str:
    return " or ".join(READERS)


def _splits() -> str:
    return ", ".join(f"{split}/" for split in SPLITS)
