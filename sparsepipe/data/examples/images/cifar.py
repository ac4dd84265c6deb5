"""CIFAR-10 and CIFAR-100 in their binary version: one or two bytes of label, then 32 x 32 pixels by colour.

https://www.cs.toronto.edu/~kriz/cifar.html states the format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ....errors import InputError
from ....util.io.files import read_text
from ...formats.base import check_regular, read_bytes
from .base import Style

_SIDE = 32
_PIXELS = 3 * _SIDE**2


@dataclass(frozen=True)
class CifarVariant:
    """Files by split, how many label bytes come before a picture (the last is the class), and the classes' names."""

    files: dict[str, tuple[str, ...]]
    label_bytes: int
    names_file: str
    num_classes: int
    style: Style


VARIANTS = (
    CifarVariant(
        {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)},
        1,
        "batches.meta.txt",
        10,
        Style((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _SIDE),
    ),
    CifarVariant(
        {"train": ("train.bin",), "test": ("test.bin",)},
        2,
        "fine_label_names.txt",
        100,
        Style((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), _SIDE),
    ),
)


@dataclass(frozen=True, eq=False)
class CifarPictures:
    """One split of a variant in a folder."""

    root: Path
    variant: CifarVariant
    split: str

    @property
    def style(self) -> Style:
        return self.variant.style

    @cached_property
    def files(self) -> Sequence[Path]:
        paths = tuple(self.root / name for name in self.variant.files[self.split])
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise InputError(
                "cifar.files_missing",
                f"{self.root}: {', '.join(missing)} is missing, expected all files of split {self.split}; fetch "
                "the data set again",
            )
        return paths

    @cached_property
    def classes(self) -> tuple[str, ...]:
        path, count = self.root / self.variant.names_file, self.variant.num_classes
        if not path.is_file():
            return tuple(str(label) for label in range(count))
        names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
        if len(names) != count:
            raise InputError(
                "cifar.class_count",
                f"{path}: has {len(names)} class names, expected {count}; correct or remove the file",
            )
        return names

    @cached_property
    def labels(self) -> tuple[int, ...]:
        labels = np.concatenate([rows[:, self.variant.label_bytes - 1] for rows in self._rows])
        if int(labels.max()) >= self.variant.num_classes:
            place = int(np.argmax(labels >= self.variant.num_classes))
            raise InputError(
                "cifar.label_out_of_range",
                f"{self.file(place)}: label {labels[place]}, expected 0 to {self.variant.num_classes - 1}; fetch the "
                "file again",
            )
        return tuple(labels.tolist())

    @cached_property
    def _rows(self) -> tuple[np.ndarray, ...]:
        """The records of each file: uint8 [S, label bytes + pixels]."""
        return tuple(self._read(path) for path in self.files)

    def _read(self, path: Path) -> np.ndarray:
        num_bytes, width = check_regular(path, what="a file of CIFAR"), self.variant.label_bytes + _PIXELS
        if not num_bytes or num_bytes % width:
            raise InputError(
                "cifar.size_odd", f"{path}: has {num_bytes} bytes, expected a multiple of {width}; fetch the file again"
            )
        return np.frombuffer(read_bytes(path, what="a file of CIFAR"), dtype=np.uint8).reshape(-1, width)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(rows) for rows in self._rows])

    def _place(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        return number, index - (int(self._ends[number - 1]) if number else 0)

    def name(self, index: int) -> str:
        return f"{self.split}/{index}"

    def file(self, index: int) -> Path:
        return self.files[self._place(index)[0]]

    def picture(self, index: int, least_side: int) -> np.ndarray:
        number, row = self._place(index)
        pixels = self._rows[number][row, self.variant.label_bytes :]
        return pixels.reshape(3, _SIDE, _SIDE).transpose(1, 2, 0)


def found(root: Path) -> bool:
    """Return whether a folder holds a file of a variant."""
    return _variant(root) is not None


def opened(root: Path, split: str) -> CifarPictures:
    """Open a split. Raises InputError if a file of it is missing."""
    variant = _variant(root)
    assert variant is not None
    pictures = CifarPictures(root, variant, split)
    _ = pictures.files
    return pictures


def _variant(root: Path) -> CifarVariant | None:
    return next(
        (variant for variant in VARIANTS if any((root / files[0]).is_file() for files in variant.files.values())), None
    )
