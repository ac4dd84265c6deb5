"""Point clouds in NumPy arrays (.npy) and archives (.npz), by usual array names; pickled objects are refused."""

import io
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, LABEL, NORMAL, POSITION, Cloud, cloud_of, library_errors, read_bytes, stem_of
from .bounded import check_claim
from .columns import ask, guessed_columns
from .reading import AS_THEY_ARE, LEFT_OUT, Reading

_WHAT = "a NumPy archive"
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


def read_npz(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read `points` [P, 3] and, if there, `normals`, `colours`, `intensity` and `labels`, each with P rows.

    Other spellings in use (`coord`, `xyz`, `color`, `segment`, ...) are known; further arrays are left alone. Points of
    more columns, and the unnamed `arr_0`, are read as `read_npy` does. Raises InputError that names the file and the
    array for a damaged archive, pickled objects, rows that do not match, or two arrays of one meaning.
    """
    data = read_bytes(path, what=_WHAT)
    content = io.BytesIO(data)
    if not zipfile.is_zipfile(content):
        raise InputError("npz.malformed", f"{path}: not {_WHAT}, or truncated; fetch the file again")
    renamed = dict(reading.renamed)
    with library_errors(path, what=_WHAT), zipfile.ZipFile(content) as archive:
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
