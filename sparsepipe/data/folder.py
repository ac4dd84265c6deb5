"""Open a data set's folder: recognise its layout, list its samples and check its files, without reading a cloud."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from ..errors import InputError
from ..util.io.files import expanded
from .formats.base import format_of
from .layouts import FALLBACK, LAYOUTS, SPLITS, DataFolder, LeftOut, SampleFile, folders, hdf5, read_marker

_DEPTH = 3  # folders around a data set, as archives have
_MOST_FOLDERS = 200  # looked into beside each other, to find it


def open_folder(path: Path | str) -> DataFolder:
    """List a data set in any supported layout.

    A folder that contains only the data set's folder, as in archives, is accepted.

    Raises InputError if it contains no data set or several, or a malformed file.
    """
    folder = list_folder(path)
    if folder.faults:
        more = len(folder.faults) - 1
        rest = f" ({more} more like this: `sparsepipe data check` lists all)" if more else ""
        raise InputError("dataset.folder_fault", f"{folder.faults[0]}{rest}")
    return folder


def list_folder(path: Path | str) -> DataFolder:
    """List a data set with its `faults`, what is wrong with its files. Raises InputError if no sample is found."""
    given = expanded(path)
    if not given.is_dir():
        state = "is a file" if given.exists() else "no such folder"
        raise InputError(
            "dataset.not_found", f"{given}: {state}, expected a folder CLASS/{{train,test}}/FILE; check the path"
        )
    top = root = given.resolve()
    beside: list[LeftOut] = []
    while True:
        layout = _layout(root)
        inside = folders(root) if layout is None else []
        inner = [folder for folder in inside if _holds_data(folder, _DEPTH)]
        if layout is not None or not inner:
            opened: DataFolder = (layout or FALLBACK).opened(root, read_marker(root))
            return replace(
                opened, left_out=(*beside, *opened.left_out), faults=(*opened.faults, *_in_two_splits(opened))
            )
        if len(inner) > 1:
            names = ", ".join(folder.name for folder in inner[:8]) + (", …" if len(inner) > 8 else "")
            raise InputError(
                "dataset.several",
                f"{root}: contains {len(inner)} data sets: {names}; give the path of one of them",
                names=names,
            )
        beside += [
            LeftOut(f"{folder.relative_to(top).as_posix()}/", f"beside the data set {inner[0].name}")
            for folder in inside
            if folder != inner[0]
        ]
        root = inner[0]


def info(path: Path | str) -> dict[str, object]:
    """Describe what a folder holds, ready for JSON: name, layout, tasks, classes, samples by split and class, formats.

    "left_out" lists what is there and is no sample, with the reason.
    """
    folder = open_folder(path)
    by_class = {
        name: {
            split: sum(file.label == label and file.split == split for file in folder.files) for split in folder.splits
        }
        for label, name in enumerate(folder.classes)
    }
    sizes = {file.path: file.num_bytes for file in folder.files}  # many samples may share a file
    return {
        "name": folder.name,
        "path": str(path),
        "layout": folder.layout,
        "synthetic": folder.synthetic,
        "tasks": list(folder.tasks),
        "classes": list(folder.classes or folder.parts),
        "parts": list(folder.parts),
        "splits": dict(_counted(folder, lambda file: file.split)),
        "samples": len(folder.files),
        "samples_by_class": by_class,
        "formats": dict(_counted(folder, lambda file: format_of(file.path))),
        "bytes": sum(sizes.values()),
        "left_out": [{"path": entry.path, "files": entry.files, "why": entry.why} for entry in folder.left_out],
        "missing": missing_classes(folder),
    }


def missing_classes(folder: DataFolder) -> list[dict[str, str]]:
    """Return each class that has no sample in a split, which cannot be trained or validated on."""
    if folder.layout != "classes":
        return []
    return [{"class": name, "split": split} for split in folder.splits for name in folder.classes_without(split)]


def _counted(folder: DataFolder, key: Callable[[SampleFile], str]) -> list[tuple[str, int]]:
    counts = Counter(key(file) for file in folder.files)
    return sorted(counts.items(), key=lambda item: (SPLITS.index(item[0]) if item[0] in SPLITS else 0, item[0]))


def _layout(root: Path) -> ModuleType | None:
    """Return the layout that a folder is of. Raises InputError if it is of two: one would be dropped."""
    found = [layout for layout in LAYOUTS if layout.found(root)]
    if len(found) > 1 and not (hdf5 in found and hdf5.FILES in read_marker(root)):
        names = " and one of layout ".join(layout.__name__.rpartition(".")[2] for layout in found)
        raise InputError(
            "dataset.layouts_mixed",
            f"{root}: contains data sets of layouts {names}, expected only one; move the others elsewhere",
        )
    return hdf5 if len(found) > 1 else next(iter(found), None)


def _holds_data(folder: Path, depth: int) -> bool:
    """Return whether a folder is a data set, or holds one not too far down."""
    if _layout(folder) is not None:
        return True
    return depth > 1 and any(_holds_data(inside, depth - 1) for inside in folders(folder)[:_MOST_FOLDERS])


def _in_two_splits(folder: DataFolder) -> list[str]:
    """Return a line for each file that is a sample of two splits (by names, links or lists), or twice in one list."""
    first: dict[tuple[int, int], SampleFile] = {}
    faults: dict[tuple[Path, Path], str] = {}
    seen: dict[Path, tuple[int, int]] = {}
    for file in folder.files:
        if file.path not in seen:
            facts = file.path.stat()
            seen[file.path] = facts.st_dev, facts.st_ino
        other = first.setdefault(seen[file.path], file)
        if other is file:
            continue
        if other.split != file.split:
            faults[other.path, file.path] = (
                f"{file.path}: in split {file.split}, but identical to {other.path} in split {other.split}; remove "
                "it from one of the splits"
            )
        elif file.entry is None and other.path == file.path:
            faults[other.path, file.path] = f"{file.path}: listed twice in split {file.split}; remove one entry"
    return list(faults.values())
