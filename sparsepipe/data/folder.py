"""A data set's folder: its layout recognised, its samples listed and checked; no cloud is read yet."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..files import read_json
from .layouts import FALLBACK, LAYOUTS, MARKER, SPLITS, DataFolder, SampleFile, folders


def open_folder(path: Path | str) -> DataFolder:
    """List a data set in any layout of `layouts`, or one folder around it, as archives have.

    Without a sign of another it is taken for ModelNet's: CLASS/{train,test}/FILE. Raises InputError where it is none,
    a class has no files, or a sample is there in two formats.
    """
    given = Path(path)
    if not given.is_dir():
        state = "is a file" if given.exists() else "no such folder"
        raise InputError(f"{given}: {state}, expected a folder CLASS/{{train,test}}/FILE; check the path")
    root = given.resolve()
    while True:
        for layout in LAYOUTS:
            if layout.found(root):
                return layout.opened(root, _marker(root))
        inner = _inner(root)
        if inner is None:
            return FALLBACK.opened(root, _marker(root))
        root = inner


def info(path: Path | str) -> dict:
    """Say what a folder holds, ready for JSON: name, layout, tasks, classes, samples by split and class, formats."""
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
        "formats": dict(_counted(folder, lambda file: file.path.suffix.lower().removeprefix("."))),
        "bytes": sum(sizes.values()),
    }


def _counted(folder: DataFolder, key: Callable[[SampleFile], str]) -> list[tuple[str, int]]:
    counts = Counter(key(file) for file in folder.files)
    return sorted(counts.items(), key=lambda item: (SPLITS.index(item[0]) if item[0] in SPLITS else 0, item[0]))


def _inner(path: Path) -> Path | None:
    """Return the only folder inside one, where that is not itself a class: archives unpack so."""
    inside = folders(path)
    if len(inside) != 1 or any((inside[0] / split).is_dir() for split in SPLITS):
        return None
    holds = folders(inside[0]) or any(layout.found(inside[0]) for layout in LAYOUTS)
    return inside[0] if holds else None


def _marker(root: Path) -> dict:
    path = root / MARKER
    if not path.is_file():
        return {}
    marker = read_json(path, what="data set's description")
    if not isinstance(marker, dict) or not isinstance(marker.get("name", ""), str):
        raise InputError(f"{path}: expected an object with 'name' as text; correct or remove it")
    return marker
