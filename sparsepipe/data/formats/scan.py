"""Scans as bare float32 rows (.bin): KITTI's x y z intensity and ScanNet's x y z red green blue."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, POSITION, Cloud, cloud_of, read_bytes
from .reading import AS_THEY_ARE, Reading

KITTI = (*POSITION, INTENSITY)
SCANNET = (*POSITION, *COLOUR)
_WHAT = "a scan of float32 rows"


def read_scan(path: Path, reading: Reading = AS_THEY_ARE, *, columns: Sequence[str] | None = None) -> Cloud:
    """Read little-endian float32 rows of the given columns; without any, as KITTI or ScanNet, whichever fits.

    Such a file says nothing of itself. It is KITTI's where rows of four end in an intensity from 0 to 1, ScanNet's
    where rows of six end in colours from 0 to 255. Raises InputError that names the file where its size is no whole
    number of rows, or where neither fits.
    """
    data = read_bytes(path, what=_WHAT)
    columns = columns or reading.columns
    if columns is None:
        columns = _guessed_columns(path, data)
    row_bytes = 4 * len(columns)
    if len(data) % row_bytes:
        raise InputError(
            f"{path}: {len(data)} bytes, expected a multiple of {row_bytes}: rows of {' '.join(columns)} as float32; "
            "it may be truncated, fetch it again"
        )
    return cloud_of(path, zip(columns, _rows(data, len(columns)).T, strict=True), reading)


def _rows(data: bytes, width: int) -> np.ndarray:
    return np.frombuffer(data, dtype="<f4").reshape(-1, width)


def _guessed_columns(path: Path, data: bytes) -> tuple[str, ...]:
    fits = []
    for columns, largest in ((KITTI, 1), (SCANNET, 255)):
        if len(data) % (4 * len(columns)) == 0:
            further = _rows(data, len(columns))[:, 3:]
            if ((further >= 0) & (further <= largest)).all():  # False for NaN too
                fits.append(columns)
    if len(fits) != 1:
        state = "fits both" if fits else "fits neither"
        raise InputError(
            f"{path}: {len(data)} bytes {state} of KITTI's rows (x y z, intensity 0 to 1) and ScanNet's "
            "(x y z, colours 0 to 255); it may be truncated, or convert it to PLY"
        )
    return fits[0]
