"""Open a data set's folder: recognise its layout, list its samples and check its files, without reading a cloud."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InputError
from ..util.io.files import expanded, read_whole
from ..util.text.numbers import number_of
from .formats.base import format_of
from .layouts import FALLBACK, LAYOUTS, SPLITS, DataFolder, LeftOut, SampleFile, folders, hdf5, read_marker
from .manifests import Manifest, get_learned

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


def data_folders() -> tuple[Path, ...]:
    """Return where data sets are looked for: the folders of SPARSEPIPE_DATA, then where `fetch` puts them."""
    named = [expanded(part) for part in os.environ.get("SPARSEPIPE_DATA", "").split(os.pathsep) if part]
    return (*named, user_cache() / "data")


def user_cache() -> Path:
    """Return the user's cache folder, for what can be downloaded or computed again."""
    return expanded(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparsepipe"


def find(source: str | Path) -> Path:
    """Return the folder of a data set, given by its path or by the name of its manifest.

    Synthetic data sets are generated.

    Raises InputError for another name, for a manifest whose data no network can learn from, and if no data folder
    contains the data set.
    """
    path = expanded(source)
    if path.exists() or isinstance(source, Path) or os.sep in source:
        return path
    manifest, place = _known(source)
    return place or generator(manifest.generator)(data_folders()[-1] / manifest.folder)


def found(source: str) -> Path | None:
    """Return the folder of a data set as `find` does, None if it would be made: nothing is made.

    Raises InputError, as `find` and what opens its folder do, if there is no such data set.
    """
    path = expanded(source)
    if path.exists():
        return path
    if os.sep in source:
        raise InputError(
            "dataset.not_found",
            f"{source}: no such folder, expected a data set's folder, its name, or path/data.py:function",
        )
    _, place = _known(source)
    return place


def _known(name: str) -> tuple[Manifest, Path | None]:
    """The manifest of a data set, and its folder in a data folder; None if it can be made there."""
    manifest = get_learned(name)
    place = place_of(manifest)
    if place is None and not manifest.generator:
        places = ", ".join(str(folder) for folder in data_folders())
        raise InputError(
            "dataset.not_fetched",
            f"{name}: not found in {places}; run `sparsepipe data fetch {name}`, or name its folder in SPARSEPIPE_DATA",
            name=name,
        )
    return manifest, place


def place_of(manifest: Manifest) -> Path | None:
    """Return the first folder among the data folders that bears a data set's name, None if there is none."""
    places = (folder / name for folder in data_folders() for name in (manifest.name, manifest.folder))
    return next((place for place in places if place.is_dir()), None)


def generator(name: str) -> Callable[[Path], Path]:
    """Return the function that makes a data set in a folder. Raises InputError that lists the names there are."""
    from .preparing import make_digits

    generators = {"digits": make_digits}
    if name not in generators:
        raise InputError(
            "dataset.generator_unknown", f"unknown data set generator {name!r}, expected one of {', '.join(generators)}"
        )
    return generators[name]


def look_at(files: Iterable[Path], split: str) -> None:
    """Raise InputError if a file is empty or cannot be read, without reading any."""
    bad = []
    for path in dict.fromkeys(files):
        try:
            problem = "" if path.stat().st_size else "is empty"
            problem = problem or ("" if os.access(path, os.R_OK) else "cannot be read (no permission)")
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            bad.append(f"{path}: {problem}")
    if bad:
        more = (
            f" and {number_of(len(bad) - 1, 'more file')} {'is' if len(bad) == 2 else 'are'} so" if len(bad) > 1 else ""
        )
        raise InputError(
            "dataset.files_faulty",
            f"{bad[0]}{more}, in split {split}; repair or remove the files that `sparsepipe data check` lists",
            split=split,
        )


_MOST_HASHED_BYTES = 256 * 2**20  # contents are hashed up to here (about a second), names and sizes beyond


def files_digest(paths: Iterable[Path], names: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Hash names, each with its bytes, then the contents of files, each once; no contents of a large data set.

    It says which. Raises InputError for a file that cannot be read.
    """
    hashed = hashlib.sha256()
    for name, num_bytes in names:
        hashed.update(f"{name}\0{num_bytes}\0".encode(errors="surrogateescape"))
    once = dict.fromkeys(paths)
    try:
        whole = sum(path.stat().st_size for path in once) <= _MOST_HASHED_BYTES
        for path in once if whole else ():
            hashed.update(read_whole(path))
    except OSError as error:
        raise unreadable(error) from None
    return {"sha256": hashed.hexdigest(), "sha256_of": "names, sizes and contents" if whole else "names and sizes"}


def unreadable(error: OSError) -> InputError:
    """Return what to say of a data set's file that cannot be read."""
    return InputError(
        "file.unreadable", f"{error.filename}: cannot be read ({error.strerror}); check the data set's files"
    )


def named_digest(files: Sequence[Path], root: Path) -> dict[str, str]:
    """Return `files_digest` of files by their names below `root`. Raises InputError for one that cannot be read."""
    once = tuple(dict.fromkeys(files))
    try:
        names = [(path.relative_to(root).as_posix(), path.stat().st_size) for path in once]
    except OSError as error:
        raise unreadable(error) from None
    return files_digest(once, names)


def check_indices(indices: Sequence[int], count: int, split: str) -> None:
    """Raise InputError if one of the samples asked for does not exist."""
    for index in indices:
        if not 0 <= index < count:
            raise InputError(
                "dataset.sample_unknown",
                f"sample {index} requested, but split {split} has {count}; use 0 to {count - 1}",
                index=index,
                split=split,
            )


def check_options(options: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise InputError for an option that a kind of data set does not have."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            "dataset.option_unknown",
            f"{what}: unknown option {', '.join(unknown)}, expected {', '.join(known) or 'none'}",
        )
