"""Files of NVIDIA's shards of BERT's samples, in HDF5: which belong to a split, and whether their arrays fit.

input_ids, input_mask, segment_ids int [S, L]; masked_lm_positions, masked_lm_ids int [S, P] (padded with 0);
next_sentence_labels int [S]. As the BERT of NVIDIA's DeepLearningExamples has them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....errors import InputError
from ...formats.hdf5 import check_storage, hdf5_file
from ...layouts.base import entries, folders, split_of, splits_named

ARRAYS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
_SUFFIXES = (".hdf5", ".h5")
_MOST_LENGTH = 65_536


def found(root: Path) -> bool:
    """Return whether a folder holds HDF5 files in which there are words."""
    train = next((folder for folder in folders(root) if split_of(folder.name) == "train"), root)
    path = next(iter(_shards(train)), None)
    if path is None or not path.is_file():  # a pipe would be waited for
        return False
    try:
        with hdf5_file(path, what="a shard of samples") as file:
            return any(name in file for name in ARRAYS)
    except InputError:
        return False


def files_of(root: Path, split: str) -> tuple[tuple[Path, ...], bool | None]:
    """Return the shards of a split, and where the same files hold both splits which rows: True those for testing."""
    inside = {name: folder for folder in folders(root) if (name := split_of(folder.name))}
    by_split: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for name, folder in inside.items():
        by_split[name] += _shards(folder)
    unnamed: list[Path] = []
    for path in _shards(root):
        named = splits_named(path.stem)
        (by_split[named[0]] if len(named) == 1 else unnamed).append(path)
    by_split["train"] += unnamed
    testing = by_split["test"] or by_split["validation"]
    if split == "test" and testing:
        return tuple(testing), None
    if not by_split["train"]:
        raise InputError("shards.no_training", f"{root}: has test shards but no training shards; add some")
    return tuple(by_split["train"]), None if testing else split == "test"


def _shards(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if path.suffix.lower() in _SUFFIXES]


def shape_of(path: Path) -> tuple[int, int]:
    """Return how many samples a shard has, of how many words."""
    with opened_shard(path) as arrays:
        return tuple(arrays["input_ids"].shape)


@contextmanager
def opened_shard(path: Path) -> Iterator[dict[str, Any]]:
    """Give a shard's arrays, unread, once they are there and fit each other. Raises InputError that names the file."""
    import h5py

    with hdf5_file(path, what="a shard of samples") as file:
        links = {name: file.get(name, getlink=True) for name in ARRAYS}
        missing = [name for name, link in links.items() if link is None]
        if missing:
            raise InputError(
                "shards.array_missing", f"{path}: has no array {', '.join(missing)}, expected {', '.join(ARRAYS)}"
            )
        if any(not isinstance(link, h5py.HardLink) for link in links.values()):  # never followed
            raise InputError(
                "shards.array_is_link", f"{path}: one of its arrays is a link; store all arrays in the file itself"
            )
        arrays = {name: file[name] for name in ARRAYS}
        for name, array in arrays.items():
            _check(path, name, array)
        _check_shapes(path, {name: array.shape for name, array in arrays.items()})
        yield arrays


def _check(path: Path, name: str, array: object) -> None:
    import h5py

    if not isinstance(array, h5py.Dataset) or array.shape is None or array.dtype.kind not in "iub":
        raise InputError(
            "shards.not_whole_numbers", f"{path}: {name} is not an array of whole numbers; create the shard again"
        )
    check_storage(path, name, array)


def _check_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    words, masked = shapes["input_ids"], shapes["masked_lm_positions"]
    if len(words) != 2 or 0 in words or words[1] > _MOST_LENGTH:
        raise InputError("shards.input_shape", f"{path}: input_ids has shape {list(words)}, expected [samples, words]")
    if len(masked) != 2 or masked[0] != words[0]:
        raise InputError(
            "shards.position_shape",
            f"{path}: masked_lm_positions has shape {list(masked)}, expected [{words[0]}, masked words]",
        )
    wanted: dict[str, set[tuple[int, ...]]] = {"input_mask": {words}, "segment_ids": {words}, "masked_lm_ids": {masked}}
    wanted["next_sentence_labels"] = {words[:1], (words[0], 1)}
    for name, allowed in wanted.items():
        if shapes[name] not in allowed:
            raise InputError(
                "shards.array_shape",
                f"{path}: {name} has shape {list(shapes[name])}, expected {[*min(allowed, key=len)]}",
            )
