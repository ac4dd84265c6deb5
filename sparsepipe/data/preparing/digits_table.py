"""Handwritten digits from a table (784 pixels and the digit in each row) to idx files, as MNIST itself has them."""

import gzip
import io
import zlib
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...util.io.fields import complaint
from ...util.io.files import write_atomic

_SIDE = 28
_MOST_BYTES = 64 * 2**20  # of the table, unpacked
EVERY = 5  # digits of each class: the last of so many is for testing


def digits_from_table(files: Path, out: Path) -> None:
    """Write the idx files of MNIST to `out` from the one table in `files`; every fifth digit of each class is test.

    Raises InputError if the table is not of such rows.
    """
    path = next(iter(sorted(files.rglob("*.csv.gz"))))
    images, labels = _read(path)
    test = held_out(labels)
    for name, rows in (("train", ~test), ("t10k", test)):
        write_atomic(out / f"{name}-images-idx3-ubyte", idx_bytes(images[rows]))
        write_atomic(out / f"{name}-labels-idx1-ubyte", idx_bytes(labels[rows]))


def held_out(labels: np.ndarray) -> np.ndarray:
    """Say of each sample whether it is for testing: the last of every five of its class, in their order."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[EVERY - 1 :: EVERY]] = True
    return test


def idx_bytes(array: np.ndarray) -> bytes:
    """Write unsigned bytes in the idx format: two zeros, 8 for their type, how many axes, their lengths, the bytes."""
    head = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + head + np.ascontiguousarray(array, dtype=np.uint8).tobytes()


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with gzip.open(path) as file:
            content = file.read(_MOST_BYTES)
        table = np.loadtxt(io.BytesIO(content), delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the decompressor's
            raise
        raise InputError(
            "digits.malformed", f"{path}: not a table of digits ({complaint(error)}); fetch the file again"
        ) from None
    if table.shape[1] != _SIDE**2 + 1:
        raise InputError(
            "digits.column_count",
            f"{path}: has {table.shape[1]} columns, expected {_SIDE**2} pixels and the digit; fetch the file again",
        )
    return table[:, :-1].astype(np.uint8).reshape(-1, _SIDE, _SIDE), table[:, -1].astype(np.uint8)
