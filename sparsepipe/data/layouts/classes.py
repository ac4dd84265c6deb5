"""Class folders, CLASS/SPLIT/FILE as ModelNet has them or SPLIT/CLASS/FILE as ImageNet's, in any format.

NAME.seg alongside a sample holds each face's or point's part.
"""

import io
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...util.io.fields import complaint
from ..formats import READERS, Cloud, Mesh, Reading, read, stem_of, suffix_of
from ..formats.base import decoded, read_bytes, whole_labels
from .base import (
    MARKER,
    SPLITS,
    UNREAD,
    WORDS,
    DataFolder,
    Listing,
    Marker,
    SampleFile,
    declared_parts,
    entries,
    folders,
    formats,
    is_metric,
    sample_of,
    split_of,
)
from .pointcept import is_scene

SEGMENTS = ".seg"  # one whole number a line, as the Princeton segmentation benchmark writes them
_Table = dict[str, dict[str, Path]]  # class → split → the folder of its samples


def found(root: Path) -> bool:
    """Return whether a folder is of this layout: samples lie in CLASS/SPLIT or SPLIT/CLASS."""
    return _classes_first(root) or _splits_first(root)


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the samples. A folder without any is no class: it is left out.

    Raises InputError if none has any, or if samples lie in both orders.
    """
    listing = Listing(root)
    classes: list[str] = []
    for name, places in sorted(_table(listing).items()):
        label, before = len(classes), len(listing.files)
        for split in SPLITS:
            if split in places:
                _list_samples(listing, places[split], label=label, split=split)
        if len(listing.files) > before:
            classes.append(name)
        else:
            for place in places.values():
                listing.leave(place, "a class's folder without a sample")
    listing.leave_files((path for path in entries(root) if not path.is_dir() and path.name != MARKER), "not read")
    if not listing.files:
        raise listing.empty(_nothing(root, listing))
    return DataFolder(
        marker.get("name", root.name),
        root,
        tuple(classes),
        tuple(listing.files),
        marker,
        "classes",
        _read,
        parts=declared_parts(root, marker),
        metric=is_metric(root, marker, otherwise=False),
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


# --- which folders are classes ---------------------------------------------------------------------------------------


def _classes_first(root: Path) -> bool:
    """Return whether samples lie in CLASS/SPLIT; a class may itself be called after a split where another is not."""
    inside = folders(root)
    if any(_holds_split(folder) for folder in inside if not split_of(folder.name)):
        return True
    return any(_holds_split(folder) for folder in inside if split_of(folder.name)) and not _splits_first(root)


def _splits_first(root: Path) -> bool:
    """Return whether samples lie in SPLIT/CLASS."""
    return any(
        _holds_samples(inside)
        for folder in folders(root)
        if split_of(folder.name)
        for inside in folders(folder)
        if not split_of(inside.name)
    )


def _holds_split(folder: Path) -> bool:
    """Return whether samples lie in FOLDER/SPLIT itself, and not one folder further down."""
    return any(
        _holds_samples(inside) and not any(map(_holds_samples, folders(inside)))
        for inside in folders(folder)
        if split_of(inside.name)
    )


def _holds_samples(folder: Path) -> bool:
    return not is_scene(folder) and any(suffix_of(path) in READERS and path.is_file() for path in entries(folder))


def _table(listing: Listing) -> _Table:
    """Return the folders of samples by class and split; other folders are noted as left out."""
    root = listing.root
    splits_first = _splits_first(root)
    if splits_first and _classes_first(root):
        raise InputError(
            "layout.order_mixed",
            f"{root}: contains both CLASS/SPLIT and SPLIT/CLASS folders; use only one of these layouts",
        )
    table: _Table = {}
    for outer in folders(root):
        if splits_first and not split_of(outer.name):
            listing.leave(outer, f"no split's folder: {_what(outer)}")
            continue
        loose = [path for path in entries(outer) if not path.is_dir()]
        inside = folders(outer)
        if not splits_first and not any(split_of(folder.name) for folder in inside):
            listing.leave(outer, f"no class: {_what(outer)}")
            continue
        if not inside:
            listing.refuse_unread(outer, loose, "in no folder of a class")
        listing.leave_files(loose, "in no folder of a class" if splits_first else "in no split's folder")
        for inner in inside:
            name, word = (inner.name, outer.name) if splits_first else (outer.name, inner.name)
            split = split_of(word)
            if split is None:
                listing.leave(inner, f"no split's folder, which are {', '.join(WORDS)}")
                continue
            twin = table.setdefault(name, {}).setdefault(split, inner)
            if twin != inner:
                listing.faults.append(f"{twin}: duplicates the split {inner}; keep one, or merge them")
    return table


def _what(folder: Path) -> str:
    """Return in a few words what a folder holds that is left out."""
    inside = entries(folder)
    if not inside:
        return "it is empty"
    names = [f"{path.name}/" if path.is_dir() else path.name for path in inside[:3]]
    return f"it holds {', '.join(names)}{', …' if len(inside) > 3 else ''}"


def _nothing(root: Path, listing: Listing) -> str:
    there = "; ".join(f"{entry.path} is {entry.why}" for entry in listing.left_out[:3]) or "it is empty"
    return (
        f"{root}: no class folder, expected CLASS/{{train,test}}/FILE or {{train,test}}/CLASS/FILE with {formats()} "
        f"files; it contains: {there}"
    )


def _list_samples(listing: Listing, folder: Path, *, label: int, split: str) -> None:
    stems: dict[str, Path] = {}
    others: list[Path] = []
    used: set[Path] = set()
    for path in entries(folder):
        if path.is_dir():
            listing.leave(path, "a folder among samples")
        elif suffix_of(path) not in READERS or not path.is_file():
            others.append(path)
        elif (twin := stems.setdefault(stem_of(path), path)) != path:
            listing.faults.append(f"{twin}: duplicates the sample {path.name}; keep one format")
        else:
            segments = path.with_name(stem_of(path) + SEGMENTS)
            companions = (segments,) if segments.is_file() else ()
            used.update(companions)
            listing.files.append(sample_of(path, listing.root, label=label, split=split, companions=companions))
    if not stems:
        listing.refuse_unread(folder, others)
    listing.leave_files((path for path in others if path not in used), UNREAD)


def _read(file: SampleFile, reading: Reading) -> Mesh | Cloud:
    content = read(file.path, reading)
    if not file.companions:
        return content
    labels = _segments(file.companions[0], reading)
    try:
        return content.with_labels(labels)
    except InputError as error:
        raise error.within(f"{file.companions[0]}: ") from None


def _segments(path: Path, reading: Reading) -> np.ndarray:
    data = read_bytes(path, what="a list of labels")
    try:
        labels = np.loadtxt(io.StringIO(decoded(data)), ndmin=1)
    except ValueError as error:
        raise InputError(
            "labels.malformed",
            f"{path}: expected one whole number per line ({complaint(error)}); repair or remove the file",
        ) from None
    if labels.ndim != 1:
        raise InputError(
            "labels.column_count",
            f"{path}: has {labels.shape[1]} numbers per line, expected one; repair or remove the file",
        )
    return whole_labels(path, labels, reading)
