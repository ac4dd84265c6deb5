"""Scans as bare float32 rows (.bin): KITTI's x y z intensity and ScanNet's x y z red green blue."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, POSITION, Cloud, are_shares, cloud_of, read_bytes
from .columns import are_colours
from .reading import AS_THEY_ARE, Reading

KITTI = (*POSITION, INTENSITY)
SCANNET = (*POSITION, *COLOUR)
_WHAT = "a scan of float32 rows"


def read_scan(path: Path, reading: Reading = AS_THEY_ARE, *, columns: Sequence[str] | None = None) -> Cloud:
    """Read little-endian float32 rows of the columns that the folder declares, else of those given.

    Without any it is taken for KITTI's or ScanNet's, whichever fits: such a file says nothing of itself. It is KITTI's
    where rows of four begin in metres and end in an intensity from 0 to 1, ScanNet's where rows of six end in whole
    colours to 255, or in shares of 1. Raises InputError that names the file where its size is no whole number of rows,
    and one that asks for the columns where neither fits, or both do.
    """
    data = read_bytes(path, what=_WHAT)
    columns = reading.columns or columns
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
    kinds = ((KITTI, _is_kitti), (SCANNET, _is_scannet))
    fits = [columns for columns, is_it in kinds if is_it(_finite(data, len(columns)))]
    if len(fits) != 1:
        state = "fits both" if fits else "fits neither"
        raise InputError(
            f"{path}: {len(data)} bytes {state} of KITTI's rows (x y z, intensity 0 to 1) and ScanNet's (x y z, "
            'colours 0 to 255); it may be truncated, or name its columns in dataset.json, such as "columns": ["x", '
            '"y", "z", "intensity", "ring"]'
        )
    return fits[0]


def _finite(data: bytes, width: int) -> np.ndarray:
    """Return the rows of finite numbers [P, width]; none where the data are no whole number of rows."""
    if len(data) % (4 * width):
        return np.empty((0, width), dtype=np.float32)
    rows = _rows(data, width)
    return rows[np.isfinite(rows).all(axis=1)]


def _is_kitti(rows: np.ndarray) -> bool:
    """Whether rows of four are metres and shares of 1, not all whole as classes are, nor points of a unit cube."""
    return len(rows) > 0 and are_shares(rows[:, 3]) and bool(np.abs(rows[:, :3]).max() > 1)


def _is_scannet(rows: np.ndarray) -> bool:
    """Whether rows of six end in colours; not where all are whole, as voxels are, or all in the unit cube."""
    whole = (rows == np.floor(rows)).all()
    return len(rows) > 0 and not whole and bool(np.abs(rows).max() > 1) and are_colours(rows[:, 3:])
