"""A few HDF5 files of many clouds each, as modelnet40_ply_hdf5_2048: train and test by name, shape_names.txt.

Which files are a split's is said by dataset.json ("files": {"train": ["a.h5"], …}), else by train_files.txt and its
like, else by whole words of their names; then several are one split where one number counts them through.
"""

import json
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import shown
from ..formats import Cloud, Reading, stem_of, suffix_of
from ..formats.hdf5 import hdf5_labels, read_hdf5
from . import base
from .base import (
    COMPANION_SUFFIXES,
    MARKER,
    SPLITS,
    WORDS,
    DataFolder,
    Listing,
    SampleFile,
    are_parts,
    entries,
    folders,
    is_file,
    listed_lines,
    read_marker,
    short,
    split_of,
    splits_named,
    version_of,
)

SUFFIXES = (".h5", ".hdf5")
_NAMES = "shape_names.txt"
FILES = "files"  # the key of dataset.json
_MOST_NAMED = 6  # files in a message


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    files = _files(root)
    if not files:
        return False
    return not folders(root) or any(splits_named(stem_of(path)) for path in files) or FILES in read_marker(root)


def opened(root: Path, marker: base.Marker) -> DataFolder:
    """List the samples.

    Raises InputError if several files of a split are no parts of one, a list names a file that does not exist, a file
    is in two lists, or a label has no class.
    """
    listing = Listing(root)
    splits = _chosen(root, marker) if FILES in marker else _found_splits(listing)
    used = [path for paths in splits.values() for path in paths]
    for split in SPLITS:
        for path in dict.fromkeys(splits.get(split, ())):
            if splits[split].count(path) > 1:
                listing.faults.append(f"{path}: listed twice in split {split}; remove one entry")
            try:
                labels, num_bytes = hdf5_labels(path), path.stat().st_size
            except InputError as error:
                listing.faults.append(str(error))
                continue
            listing.files += [
                SampleFile(path, f"{path.relative_to(root).as_posix()}/{entry}", int(label), split, num_bytes, entry)
                for entry, label in enumerate(labels)
            ]
    for path in entries(root) if FILES not in marker else ():
        named = next(iter(splits_named(stem_of(path))), None) if path.is_file() and not _split_of_list(path) else None
        if named is not None and not splits.get(named) and path.suffix.lower() not in COMPANION_SUFFIXES:
            listing.faults.append(
                f"{path}: named after split {named}, which has no HDF5 file; store it as HDF5, or move it away"
            )
    _note_left_out(listing, set(used))
    if not listing.files:
        names = ", ".join(path.name for path in _files(root)[:_MOST_NAMED])
        raise listing.empty(
            f"{root}: no file *train*.h5 or *test*.h5 among {names}, expected at least one; rename them, or assign "
            f"them to splits in {MARKER}: {_example(root)}"
        )
    return DataFolder(
        marker.get("name", root.name),
        root,
        _classes(listing),
        tuple(listing.files),
        marker,
        "hdf5",
        _read,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _files(root: Path) -> list[Path]:
    return [path for path in entries(root) if suffix_of(path) in SUFFIXES and path.is_file()]


def _classes(listing: Listing) -> tuple[str, ...]:
    names = listing.root / _NAMES
    largest = max(listing.files, key=lambda file: file.label or 0)
    assert largest.label is not None
    classes = tuple(listed_lines(names) if names.is_file() else map(str, range(largest.label + 1)))
    if largest.label >= len(classes):
        listing.faults.append(
            f"{largest.path}: label {largest.label}, expected below {len(classes)}, as many as {_NAMES} names"
        )
    return classes


# --- which files are a split's ---------------------------------------------------------------------------------------


def _found_splits(listing: Listing) -> dict[str, list[Path]]:
    """Return each split's files: those that its list names, which are paths of their authors' machines, else by name.

    What is named after no split, or after two, is left out.
    """
    root = listing.root
    lists = {path: split for path in entries(root) if (split := _split_of_list(path))}
    splits: dict[str, list[Path]] = {}
    for path, split in lists.items():
        if split in splits:
            raise InputError("layout.list_twice", f"{path}: is a second list of split {split}; remove one of them")
        splits[split] = _listed(listing, path)
    by_name: dict[str, list[Path]] = {}
    for path in _files(root):
        named = splits_named(stem_of(path))
        if len(named) == 1 and named[0] not in splits:
            by_name.setdefault(named[0], []).append(path)
    meant = f"choose the files in {root / MARKER}, such as {_example(root)}"
    for split, paths in by_name.items():
        if not are_parts([stem_of(path) for path in paths]):
            raise InputError(
                "layout.files_undecided",
                f"{root}: {_named(paths)} are all named after split {split}, but their numbers do not run from 0 or "
                f"1; {meant}, or in {split}_files.txt",
            )
    chosen = [path for paths in by_name.values() for path in paths]
    if len({version for path in chosen if (version := version_of(stem_of(path)))}) > 1:
        raise InputError(
            "layout.versions_mixed", f"{root}: {_named(chosen)} belong to several versions, expected only one; {meant}"
        )
    return splits | by_name


def _named(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths[:_MOST_NAMED]) + (", …" if len(paths) > _MOST_NAMED else "")


def _split_of_list(path: Path) -> str | None:
    word, underscore, rest = path.name.rpartition("_")
    return split_of(word) if underscore and rest.lower() == "files.txt" and path.is_file() else None


def _listed(listing: Listing, path: Path) -> list[Path]:
    paths = [listing.root / Path(line).name for line in listed_lines(path)]
    for one in paths:
        if not is_file(one):
            listing.faults.append(f"{short(one)}: listed in {path.name} but missing; fetch the data set again")
    return [one for one in paths if is_file(one)]


def _chosen(root: Path, marker: base.Marker) -> dict[str, list[Path]]:
    """Return the files that dataset.json names. Raises InputError for one that does not exist."""
    where, given = root / MARKER, marker[FILES]
    if not isinstance(given, dict) or not given:
        raise InputError(
            "marker.files_malformed",
            f"{where}: 'files' is not an object with a list per split, expected one such as {_example(root)}",
        )
    splits: dict[str, list[Path]] = {}
    for word, names in given.items():
        split = split_of(word)
        if split is None or split in splits:
            raise InputError(
                "marker.split_malformed",
                f"{where}: 'files' lists {shown(word)}, expected each split of {', '.join(WORDS)} at most once",
            )
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise InputError(
                "marker.names_malformed",
                f"{where}: 'files' of {word} is not a list of names, expected one such as {_example(root)}",
            )
        splits[split] = [_inside(root, name) for name in names]
    return splits


def _inside(root: Path, name: str) -> Path:
    relative = Path(name.replace("\\", "/"))  # as Windows writes paths
    if "\0" in name or relative.is_absolute() or ".." in relative.parts or not is_file(root / relative):
        raise InputError(
            "marker.file_outside",
            f"{root / MARKER}: 'files' names {name[:80]!r}, which lies outside {root}; name a file inside this folder",
        )
    return root / relative


def _example(root: Path) -> str:
    names = [path.name for path in _files(root)][:1] or ["train.h5"]
    return json.dumps({FILES: {"train": names}})


def _note_left_out(listing: Listing, used: set[Path]) -> None:
    """Note the files and folders alongside those that are read."""
    known = {_NAMES, MARKER}
    others = [path for path in entries(listing.root) if path not in used]
    for path in others:
        if suffix_of(path) in SUFFIXES and path.is_file():
            named = splits_named(stem_of(path))
            why = f"named after {' and '.join(named)}" if len(named) > 1 else "named after no split"
            listing.leave(path, "in no list" if len(named) == 1 else why)
        elif path.is_dir():
            listing.leave(path, "a folder next to HDF5 files; give its path if it is a data set")
    files = [path for path in others if not path.is_dir() and path.name not in known and not _split_of_list(path)]
    listing.leave_files((path for path in files if suffix_of(path) not in SUFFIXES), "not read")
    listing.leave_files((path for path in files if suffix_of(path) in SUFFIXES and not path.is_file()), "not read")


def _read(file: SampleFile, reading: Reading) -> Cloud:
    return read_hdf5(file.path, reading, entry=file.entry)
