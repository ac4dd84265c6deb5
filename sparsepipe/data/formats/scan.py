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
_OTHER_TYPES = {">f4": "big-endian float32", "<f8": "float64", ">f8": "big-endian float64", "<i4": "int32"}
_LEAST_LENGTH, _MOST_LENGTH = 1e-20, 1e9  # of a coordinate that is not 0, in any unit
_MOST_NONSENSE = 0.01  # of all coordinates
_MOST_WIDTH = 16  # columns that are thought of
_LEAST_ROWS = 16  # that speak for a width
_MOST_NUMBERS = 60_000  # that are looked at for it
_CLEAR, _CLEAR_OF_MULTIPLE = 0.25, 0.5  # by how much the logarithm must be less; two rows as one may differ a little


def read_scan(path: Path, reading: Reading = AS_THEY_ARE, *, columns: Sequence[str] | None = None) -> Cloud:
    """Read little-endian float32 rows of the columns that the folder declares, else of those given.

    Without any it is taken for KITTI's or ScanNet's, whichever fits: such a file says nothing of itself. It is KITTI's
    where rows of four begin in metres and end in an intensity from 0 to 1, ScanNet's where rows of six end in whole
    colours to 255, or in shares of 1. Raises InputError that names the file if its size is no whole number of rows, if
    its numbers are of another type, or speak for rows of another length than those declared, and one that asks for the
    columns if neither of the two fits, or both do.
    """
    data = read_bytes(path, what=_WHAT)
    columns = reading.columns or columns
    if columns is None:
        columns = _guessed_columns(path, data)
    row_bytes = 4 * len(columns)
    if len(data) % row_bytes:
        raise InputError(
            "scan.size_odd",
            f"{path}: {len(data)} bytes, expected a multiple of {row_bytes}: rows of {' '.join(columns)} as float32; "
            "the file has other columns, or is truncated",
            row_bytes=row_bytes,
        )
    rows = _rows(data, len(columns))
    _check_type(path, data, rows[:, [[name.lower() for name in columns].index(axis) for axis in POSITION]])
    _check_width(path, rows.reshape(-1), columns)
    return cloud_of(path, zip(columns, rows.T, strict=True), reading)


def _check_type(path: Path, data: bytes, points: np.ndarray) -> None:
    """Raise InputError if many of the coordinates are no lengths: nearly 0 or beyond all, as misread bits are."""
    share = _share_of_nonsense(points)
    if share <= _MOST_NONSENSE:
        return
    others = [dtype for dtype in _OTHER_TYPES if len(data) % np.dtype(dtype).itemsize == 0]
    likelier = [dtype for dtype in others if _share_of_nonsense(np.frombuffer(data, dtype)) <= _MOST_NONSENSE]
    bad = np.flatnonzero(_is_nonsense(points).any(axis=1))[0]
    kind = likelier[0] if likelier else "TYPE"
    raise InputError(
        "scan.not_float32",
        f"{path}: point {bad} is {points[bad].tolist()} as float32, and {share:.0%} of coordinates are as "
        f"implausible{f': its numbers are rather {_OTHER_TYPES[kind]}' if likelier else ''}; convert the file by "
        f"numpy.fromfile(NAME, '{kind}').astype('<f4').tofile(NAME)",
    )


def _is_nonsense(numbers: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        sizes = np.abs(numbers.astype(np.float64))
        return ((sizes > 0) & (sizes < _LEAST_LENGTH)) | (np.isfinite(sizes) & (sizes > _MOST_LENGTH))


def _share_of_nonsense(numbers: np.ndarray) -> float:
    return float(_is_nonsense(numbers).mean())


def _check_width(path: Path, numbers: np.ndarray, columns: Sequence[str]) -> None:
    """Raise InputError if rows of another length divide the numbers into columns that vary far less.

    Under the true length a column holds numbers of one kind; under another it mixes coordinates with intensities.
    """
    width = len(columns)
    spreads = {
        other: _spread(numbers[: _MOST_NUMBERS // other * other].reshape(-1, other))
        for other in range(len(POSITION), _MOST_WIDTH + 1)
        if len(numbers) % other == 0 and len(numbers) >= _LEAST_ROWS * other
    }
    if width not in spreads:
        return
    gains = {other: spreads[width] - spread for other, spread in spreads.items()}
    clear = [o for o, gain in gains.items() if gain > (_CLEAR_OF_MULTIPLE if o % width == 0 else _CLEAR)]
    if clear:
        likely = next(other for other in clear if gains[other] > max(gains.values()) - _CLEAR)
        raise InputError(
            "scan.row_length",
            f"{path}: its numbers repeat in rows of {likely}, but rows of {width} are declared: {' '.join(columns)}; "
            f'correct "columns" in dataset.json, where "_" stands for an unused column',
            likely=likely,
            width=width,
        )


def _spread(rows: np.ndarray) -> float:
    """Return the mean over columns of the logarithm of how much a column varies."""
    known = np.isfinite(rows)
    rows = np.where(known, rows, 0).astype(np.float64)
    counts = np.maximum(known.sum(axis=0), 1)
    means = rows.sum(axis=0) / counts
    varying = np.sqrt((np.where(known, rows - means, 0) ** 2).sum(axis=0) / counts)
    return float(np.log(np.maximum(varying, max(1e-4 * varying.max(), 1e-30))).mean())


def _rows(data: bytes, width: int) -> np.ndarray:
    return np.frombuffer(data, dtype="<f4").reshape(-1, width)


def _guessed_columns(path: Path, data: bytes) -> tuple[str, ...]:
    kinds = ((KITTI, _is_kitti), (SCANNET, _is_scannet))
    fits = [columns for columns, is_it in kinds if is_it(_finite(data, len(columns)))]
    if len(fits) != 1:
        state = "fits both" if fits else "fits neither"
        raise InputError(
            "scan.columns_undecided",
            f"{path}: {len(data)} bytes {state} of KITTI's rows (x y z, intensity 0 to 1) and ScanNet's (x y z, "
            'colours 0 to 255); it may be truncated, or name its columns in dataset.json, such as "columns": ["x", '
            '"y", "z", "intensity", "ring"]',
        )
    return fits[0]


def _finite(data: bytes, width: int) -> np.ndarray:
    """Return the rows of finite numbers [P, width]; none where the data are no whole number of rows."""
    if len(data) % (4 * width):
        return np.empty((0, width), dtype=np.float32)
    rows = _rows(data, width)
    finite: np.ndarray = rows[np.isfinite(rows).all(axis=1)]
    return finite


def _is_kitti(rows: np.ndarray) -> bool:
    """Return whether rows of four are metres and shares of 1, not all whole as classes are, nor points of a unit
    cube.
    """
    return len(rows) > 0 and are_shares(rows[:, 3]) and bool(np.abs(rows[:, :3]).max() > 1)


def _is_scannet(rows: np.ndarray) -> bool:
    """Return whether rows of six end in colours; not where all are whole, as voxels are, or all in the unit cube."""
    whole = (rows == np.floor(rows)).all()
    return len(rows) > 0 and not whole and bool(np.abs(rows).max() > 1) and are_colours(rows[:, 3:])
