"""MNIST and its like: images and labels in the idx format, packed by gzip or not.

A file is two zeros, the type of its numbers (8: unsigned bytes), how many axes, the length of each (big-endian, four
bytes), then the numbers. Yann LeCun's page of MNIST states it; EMNIST, Fashion-MNIST and KMNIST come so as well.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ....errors import InputError
from ....util.text.numbers import number_of
from ...formats.base import read_bytes
from ...layouts.base import entries
from .base import Style

_UNSIGNED_BYTES = 8
_STYLE = Style((0.1307,), (0.3081,), 28)  # of MNIST's training images
_NAMES = re.compile(r"(train|t10k|test)[-_](images|labels)[-_.]idx[13][-_]ubyte(\.gz)?")
_SPLITS = {"train": ("train",), "test": ("t10k", "test")}


@dataclass(frozen=True, eq=False)
class IdxPictures:
    """The two files of a split. A class is called by its number."""

    images_file: Path
    labels_file: Path
    split: str
    style = _STYLE

    @property
    def files(self) -> Sequence[Path]:
        return (self.images_file, self.labels_file)

    @cached_property
    def labels(self) -> tuple[int, ...]:
        labels = read_idx(self.labels_file, axes=1)
        if len(labels) != len(self._images):
            raise InputError(
                "idx.label_count",
                f"{self.labels_file}: has {len(labels)} labels for the {len(self._images)} images of "
                f"{self.images_file.name}, expected one label per image; fetch both files again",
            )
        if not len(labels):
            raise InputError("idx.no_images", f"{self.images_file}: contains no images, expected at least one")
        return tuple(labels.tolist())

    @cached_property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(label) for label in range(max(self.labels) + 1))

    @cached_property
    def _images(self) -> np.ndarray:
        images = read_idx(self.images_file, axes=3)
        if 0 in images.shape[1:]:
            raise InputError(
                "idx.image_size_zero",
                f"{self.images_file}: its images have {images.shape[1]} x {images.shape[2]} pixels, expected at "
                "least 1 x 1",
            )
        return images

    def name(self, index: int) -> str:
        return f"{self.split}/{index}"

    def file(self, index: int) -> Path:
        return self.images_file

    def picture(self, index: int, least_side: int) -> np.ndarray:
        picture: np.ndarray = self._images[index][..., None]
        return picture


def found(root: Path) -> bool:
    """Return whether a folder holds files that are called as MNIST's."""
    return any(_NAMES.fullmatch(path.name) for path in entries(root))


def opened(root: Path, split: str) -> IdxPictures:
    """Find the two files of a split. Raises InputError if one is missing, or there twice."""
    there = {"images": [], "labels": []}  # type: dict[str, list[Path]]
    for path in entries(root):
        name = _NAMES.fullmatch(path.name)
        if name and name[1] in _SPLITS[split]:
            there[name[2]].append(path)
    for what, paths in there.items():
        if len(paths) != 1:
            state = number_of(len(paths), "file") if paths else "no file"
            example = f"{_SPLITS[split][0]}-{what}-idx{3 if what == 'images' else 1}-ubyte"
            raise InputError(
                "idx.files_of_split",
                f"{root}: contains {state} of the {what} of split {split}, expected one, such as {example}",
            )
    return IdxPictures(there["images"][0], there["labels"][0], split)


def read_idx(path: Path, *, axes: int) -> np.ndarray:
    """Read an idx file of unsigned bytes with so many axes. Raises InputError that names the file for another."""
    data = read_bytes(path, what="an idx file")
    start = 4 + 4 * axes
    if len(data) < start or data[:2] != b"\0\0" or data[3] != axes:
        raise InputError("idx.malformed", f"{path}: not an idx file of {axes} axes; give an idx file of MNIST")
    if data[2] != _UNSIGNED_BYTES:
        raise InputError(
            "idx.dtype_unknown", f"{path}: contains numbers of type {data[2]}, expected unsigned bytes (type 8)"
        )
    shape = tuple(np.frombuffer(data[:start], dtype=">u4", offset=4).tolist())
    claimed, given = math.prod(shape), len(data) - start
    if given != claimed:
        remedy = "fetch the file again" if given < claimed else "repair its head"
        raise InputError(
            "idx.size_differs", f"{path}: has {given} bytes of content, but its header declares {claimed}; {remedy}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
