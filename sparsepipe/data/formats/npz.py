"""Point clouds as NumPy archives (.npz): arrays by name, never pickled objects."""

import io
import zipfile
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, LABEL, NORMAL, POSITION, Cloud, cloud_of, one_line, read_bytes
from .reading import AS_THEY_ARE, Reading

_WHAT = "a NumPy archive"
_POINTS = ("points", "xyz", "pos", "position", "positions", "coordinates", "coords")
_FURTHER = {  # array: its columns
    **dict.fromkeys(("normals", "normal"), NORMAL),
    **dict.fromkeys(("colours", "colors", "rgb"), COLOUR),
    **dict.fromkeys(("intensity", "intensities"), (INTENSITY,)),
    **dict.fromkeys(("labels", "label", "segment"), (LABEL,)),
}


def read_npz(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read `points` [P, 3] and, where there, `normals`, `colours`, `intensity` and `labels`, each with P rows.

    Other spellings in use (`xyz`, `pos`, `rgb`, ...) are known; further arrays are left alone. Raises InputError that
    names the file and the array for a damaged archive, pickled objects, or rows that do not match.
    """
    content = io.BytesIO(read_bytes(path, what=_WHAT))
    if not zipfile.is_zipfile(content):
        raise InputError(f"{path}: not {_WHAT}, or cut short; fetch the file again")
    try:
        with zipfile.ZipFile(content) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            known = next((name for name in _POINTS if name in names), None)
            arrays = {name: _member(archive, names[name]) for name in names if name == known or name in _FURTHER}
    except Exception as error:  # zipfile, its decompressors and numpy raise many kinds; the file is at fault in each
        raise InputError(f"{path}: not {_WHAT} that can be read ({one_line(error)}); fetch the file again") from None
    if known is None:
        raise InputError(f"{path}: holds {', '.join(sorted(names)) or 'nothing'}, expected an array 'points' [P, 3]")
    points = arrays.pop(known)
    columns = dict(zip(POSITION, _columns(path, known, points, 3, None), strict=True))
    for name, array in arrays.items():
        wanted = _FURTHER[name]
        columns |= dict(zip(wanted, _columns(path, name, array, len(wanted), len(points)), strict=True))
    return cloud_of(path, columns.items(), reading)


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return one array of an archive. Raises whatever zipfile and numpy do where it is damaged or holds objects.

    The member is read whole, which holds it to its checksum: numpy would stop where the array's own header says.
    """
    content = archive.read(name)
    if not content.startswith(np.lib.format.MAGIC_PREFIX):
        raise ValueError(f"member {name.removesuffix('.npy')!r} is no array")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _columns(path: Path, name: str, array: np.ndarray, width: int, rows: int | None) -> np.ndarray:
    """Return the array's columns [width, P]."""
    if width == 1 and array.ndim == 1:
        array = array[:, None]
    numeric = np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_
    if not numeric or array.ndim != 2 or array.shape[1] != width or rows not in (None, len(array)) or not len(array):
        wanted = f"[{'P' if rows is None else rows}, {width}] with P >= 1" if rows is None else f"[{rows}, {width}]"
        raise InputError(
            f"{path}: array {name!r} is {array.dtype} {list(array.shape)}, expected numbers {wanted}; repair the file"
        )
    return array.T
