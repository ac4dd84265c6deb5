"""A few HDF5 files of many clouds each, as modelnet40_ply_hdf5_2048: *train*.h5, *test*.h5, shape_names.txt."""

from pathlib import Path

from ...errors import InputError
from ..formats import Cloud, Reading
from ..formats.hdf5 import hdf5_labels, read_hdf5
from .base import DataFolder, SampleFile, listed_lines

_SPLITS = {"train": "train", "val": "validation", "test": "test"}  # in file names: here
_NAMES = "shape_names.txt"


def found(root: Path) -> bool:
    """Say whether a folder is of this layout."""
    return any(root.glob("*.h5"))


def opened(root: Path, marker: dict) -> DataFolder:
    """List the samples. Raises InputError where a list names a file that is not there, or a label has no class."""
    files: list[SampleFile] = []
    for word, split in _SPLITS.items():
        for path in _split_files(root, word):
            labels = hdf5_labels(path)
            num_bytes = path.stat().st_size
            files += [
                SampleFile(path, f"{path.name}/{entry}", int(label), split, num_bytes, entry)
                for entry, label in enumerate(labels)
            ]
    if not files:
        raise InputError(f"{root}: no file *train*.h5 or *test*.h5, expected at least one; check the path")
    largest = max(files, key=lambda file: file.label)
    names = root / _NAMES
    classes = tuple(listed_lines(names) if names.is_file() else map(str, range(largest.label + 1)))
    if largest.label >= len(classes):
        raise InputError(
            f"{largest.path}: label {largest.label}, expected below {len(classes)}, as many as {_NAMES} names"
        )
    return DataFolder(marker.get("name", root.name), root, classes, tuple(files), marker, "hdf5", _read)


def _split_files(root: Path, word: str) -> list[Path]:
    """Return a split's files: those that its list names, which are paths of their authors' machines, else by name."""
    listed = root / f"{word}_files.txt"
    if not listed.is_file():
        return sorted(root.glob(f"*{word}*.h5"))
    paths = [root / Path(line).name for line in listed_lines(listed)]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: listed in {listed.name} but not there; fetch the data set again")
    return paths


def _read(file: SampleFile, reading: Reading) -> Cloud:
    return read_hdf5(file.path, reading, entry=file.entry)
