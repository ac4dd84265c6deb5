"""Point clouds in arrays: NumPy's .npy and .npz, and scans as bare float32 rows (.bin, as KITTI's are)."""

import io
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import (
    COLOUR,
    INTENSITY,
    LABEL,
    NORMAL,
    POSITION,
    Cloud,
    are_shares,
    cloud_of,
    library_errors,
    read_bytes,
    stem_of,
)
from .columns import are_colours, ask, guessed_columns
from .reading import AS_THEY_ARE, LEFT_OUT, Reading, check_claim

_ARRAYS = "a NumPy archive"
_ARRAY = "a NumPy array"
_POINTS = (
    *("points", "point", "coord", "coords", "coordinates", "xyz", "pos", "position", "positions"),
    *("arr_0", "data", "cloud", "pointcloud", "point_cloud", "pc"),
)
_FURTHER = {  # array: its columns
    **dict.fromkeys(("normals", "normal"), NORMAL),
    **dict.fromkeys(("colours", "colour", "colors", "color", "rgb"), COLOUR),
    **dict.fromkeys(("intensity", "intensities", "strength"), (INTENSITY,)),
    **dict.fromkeys(("labels", "label", "segment", "segments", "semantic_label", "semantic_labels"), (LABEL,)),
}
_MOST_COLUMNS = 16
Columns = list[tuple[str, np.ndarray]]


# Point clouds in NumPy arrays (.npy) and archives (.npz), by usual array names; pickled objects are refused
def read_npz(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read `points` [P, 3] and, if there, `normals`, `colours`, `intensity` and `labels`, each with P rows.

    Other spellings in use (`coord`, `xyz`, `color`, `segment`, ...) are known; further arrays are left alone. Points of
    more columns, and the unnamed `arr_0`, are read as `read_npy` does. Raises InputError that names the file and the
    array for a damaged archive, pickled objects, rows that do not match, or two arrays of one meaning.
    """
    data = read_bytes(path, what=_ARRAYS)
    content = io.BytesIO(data)
    if not zipfile.is_zipfile(content):
        raise InputError("npz.malformed", f"{path}: not {_ARRAYS}, or truncated; fetch the file again")
    renamed = dict(reading.renamed)
    with library_errors(path, what=_ARRAYS), zipfile.ZipFile(content) as archive:
        names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = {name: info for name, info in names.items() if _known(renamed.get(name, name))}
        claimed = sum(info.file_size for info in wanted.values())
        check_claim(path, claimed, num_bytes=len(data), what=", ".join(wanted), packed=True)
        arrays = {name: _member(archive, info) for name, info in wanted.items()}
    points = [name for name in arrays if renamed.get(name, name).lower() in _POINTS]
    if not points:
        listed = ", ".join(sorted(names))[:200] or "nothing"
        raise InputError("npz.no_points", f"{path}: contains {listed}, expected an array 'points' [P, 3]")
    for other in points[1:]:
        if not np.array_equal(arrays[other], arrays[points[0]]):
            raise InputError(
                "npz.points_twice",
                f"{path}: arrays {points[0]!r} and {other!r} may both contain the points; exclude one in dataset.json, "
                f'such as "columns": {{"{other}": "{LEFT_OUT}"}}',
            )
    columns = _table(path, points[0], arrays[points[0]], reading)
    rows = len(arrays[points[0]])
    for name, array in arrays.items():
        if name not in points:
            meaning = _FURTHER[renamed.get(name, name).lower()]
            columns += zip(meaning, columns_of(path, name, array, width=len(meaning), rows=rows), strict=True)
    return cloud_of(path, columns, reading)


def read_npy(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read one array [P, C]: x, y, z first; its columns are those the folder declares, or named by a structured array.

    Else they are identified by their numbers, as those of text are. Raises InputError that names the file if it is
    damaged, of objects, or one of a cloud's several files, and one that asks for names if they are ambiguous.
    """
    name = stem_of(path)
    if name.lower() in _FURTHER:
        raise InputError(
            "npz.one_of_several",
            f"{path}: contains only one of a cloud's arrays; store all of them in one file by "
            f"numpy.savez('NAME.npz', coord=…, {name}=…), or lay scenes out as SPLIT/SCENE/{{coord,{name}}}.npy",
        )
    return cloud_of(path, _table(path, name, array_in(path), reading), reading)


def array_in(path: Path) -> np.ndarray:
    """Return the one array of an .npy file. Raises InputError that names the file if it is damaged, or of objects."""
    data = read_bytes(path, what=_ARRAY)
    with library_errors(path, what=_ARRAY):
        return array_of(data)


def array_of(content: bytes) -> np.ndarray:
    """Return the array of an .npy file's bytes. Raises what numpy does, or ValueError if its size is another."""
    if not content.startswith(np.lib.format.MAGIC_PREFIX):
        raise ValueError("it lacks the file signature")
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(stream)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"it contains {dtype}, not numbers")
    claimed, held = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
    if claimed != held or min(shape, default=0) < 0:
        raise ValueError(f"its header declares {claimed} bytes, but {held} follow")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _known(name: str) -> bool:
    return name.lower() in _POINTS or name.lower() in _FURTHER


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Return one array of an archive. Raises whatever zipfile and numpy do if it is damaged or holds objects.

    The member is read whole, which holds it to its checksum: numpy would stop where the array's own header says.
    """
    try:
        return array_of(archive.read(info))
    except ValueError as error:
        raise ValueError(f"member {info.filename.removesuffix('.npy')!r} is not an array: {error}") from None


def _table(path: Path, name: str, array: np.ndarray, reading: Reading) -> Columns:
    """Return the named columns of an array of points [P, C], or of a structured one [P]."""
    if array.dtype.names and array.ndim == 1 and len(array):
        named = [(each, array[each]) for each in array.dtype.names]
        return [(each, column) for each, column in named if column.ndim == 1 and column.dtype.kind in "biuf"]
    if array.ndim != 2 or array.shape[1] == 3 or array.shape[1] < 3 or not _is_numeric(array) or not len(array):
        return list(zip(POSITION, columns_of(path, name, array, width=3), strict=True))
    if len(array) < array.shape[1] and array.shape[1] > _MOST_COLUMNS:
        raise InputError(
            "npz.transposed",
            f"{path}: array {name!r} has shape {list(array.shape)}, expected one row per point [P, C]; store the "
            "transposed array",
            name=name,
        )
    if reading.columns is not None and len(reading.columns) != array.shape[1]:
        raise ask(path, array.shape[1], f"where dataset.json names {len(reading.columns)}")
    names: Iterable[str] = reading.columns or guessed_columns(path, array.astype(np.float64))
    return list(zip(names, array.T, strict=True))


def columns_of(path: Path, name: str, array: np.ndarray, *, width: int, rows: int | None = None) -> np.ndarray:
    """Return the columns [width, P] of an array [P, width]. Raises InputError if it has another shape, or `rows`."""
    if width == 1 and array.ndim == 1:
        array = array[:, None]
    numeric = _is_numeric(array)
    if not numeric or array.ndim != 2 or array.shape[1] != width or rows not in (None, len(array)) or not len(array):
        wanted = f"[{'P' if rows is None else rows}, {width}] with P >= 1" if rows is None else f"[{rows}, {width}]"
        raise InputError(
            "npz.array_malformed",
            f"{path}: array {name!r} has type and shape {array.dtype} {list(array.shape)}, expected numbers "
            f"{wanted}; repair the file",
        )
    return array.T


def _is_numeric(array: np.ndarray) -> bool:
    return array.dtype.kind in "biuf"


KITTI = (*POSITION, INTENSITY)
SCANNET = (*POSITION, *COLOUR)
_ROWS = "a scan of float32 rows"
_OTHER_TYPES = {">f4": "big-endian float32", "<f8": "float64", ">f8": "big-endian float64", "<i4": "int32"}
_LEAST_LENGTH, _MOST_LENGTH = 1e-20, 1e9  # of a coordinate that is not 0, in any unit
_MOST_NONSENSE = 0.01  # of all coordinates
_MOST_WIDTH = 16  # columns that are thought of
_LEAST_ROWS = 16  # that speak for a width
_MOST_NUMBERS = 60_000  # that are looked at for it
_CLEAR, _CLEAR_OF_MULTIPLE = 0.25, 0.5  # by how much the logarithm must be less; two rows as one may differ a little


# Scans as bare float32 rows (.bin): KITTI's x y z intensity and ScanNet's x y z red green blue
def read_scan(path: Path, reading: Reading = AS_THEY_ARE, *, columns: Sequence[str] | None = None) -> Cloud:
    """Read little-endian float32 rows of the columns that the folder declares, else of those given.

    Without any it is taken for KITTI's or ScanNet's, whichever fits: such a file says nothing of itself. It is KITTI's
    where rows of four begin in metres and end in an intensity from 0 to 1, ScanNet's where rows of six end in whole
    colours to 255, or in shares of 1. Raises InputError that names the file if its size is no whole number of rows, if
    its numbers are of another type, or speak for rows of another length than those declared, and one that asks for the
    columns if neither of the two fits, or both do.
    """
    data = read_bytes(path, what=_ROWS)
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
