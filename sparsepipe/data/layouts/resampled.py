"""ModelNet as resampled text (modelnet40_normal_resampled): CLASS/NAME.txt, x,y,z,nx,ny,nz, and lists of each split."""

import re
from functools import partial
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import shown
from ..formats import Cloud, Reading
from ..formats.base import NORMAL, POSITION
from ..formats.text import read_text_cloud
from .base import MARKER, DataFolder, Listing, Marker, SampleFile, entries, folders, listed_lines, sample_of

_SPLITS = {"train": "train", "val": "validation", "test": "test"}  # in file names: here
_LISTS = ("modelnet40", "modelnet10")  # both lists may lie in one folder: the larger is the data set


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    return any((root / f"{name}_shape_names.txt").is_file() for name in _LISTS)


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the samples. Raises InputError if a list names an unknown class or a file that does not exist."""
    prefix = next(name for name in _LISTS if (root / f"{name}_shape_names.txt").is_file())
    classes = tuple(listed_lines(root / f"{prefix}_shape_names.txt"))
    label = {name: index for index, name in enumerate(classes)}
    listing = Listing(root)
    lists = {root / f"{prefix}_{word}.txt": split for word, split in _SPLITS.items()}
    for path, split in lists.items():
        if split == "validation" and not path.is_file():  # the published set has none
            continue
        for line in listed_lines(path):
            stem = line.rpartition("/")[2].removesuffix(".txt")
            name = re.sub(r"_\d+$", "", stem)
            if name not in label or "\0" in line:
                raise InputError(
                    "layout.class_unknown",
                    f"{path}: {shown(line)} matches no class in {prefix}_shape_names.txt; correct one of the two files",
                )
            listing.attempt(partial(sample_of, root / name / f"{stem}.txt", root, label=label[name], split=split))
    if not listing.files:
        raise listing.empty(f"{root}: no sample, expected CLASS/NAME.txt as {prefix}_train.txt lists them")
    files = sorted(listing.files, key=lambda file: (file.label, file.name))
    _note_left_out(listing, {file.path for file in files}, classes)
    return DataFolder(
        marker.get("name", root.name),
        root,
        classes,
        tuple(files),
        marker,
        "resampled text",
        _read,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _note_left_out(listing: Listing, used: set[Path], classes: tuple[str, ...]) -> None:
    """Note the samples that no list names, and what else lies next to them."""
    for folder in folders(listing.root):
        if folder.name in classes:
            listing.leave_files((path for path in entries(folder) if path not in used), "in no list")
        else:
            listing.leave(folder, "no class")
    known = {MARKER, "filelist.txt"}
    known |= {f"{prefix}_{word}.txt" for prefix in _LISTS for word in ("shape_names", *_SPLITS)}
    loose = [path for path in entries(listing.root) if not path.is_dir() and path.name not in known]
    listing.leave_files(loose, "not read")


def _read(file: SampleFile, reading: Reading) -> Cloud:
    return read_text_cloud(file.path, reading, columns=(*POSITION, *NORMAL))
