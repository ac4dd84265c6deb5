"""LAS and LAZ: clouds of airborne and terrestrial lidar, with classes, intensities and colours; laspy reads them."""

import io
import struct
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, POSITION, Cloud, cloud_of, library_errors, read_bytes
from .bounded import check_claim
from .laz import unpacked
from .reading import AS_THEY_ARE, Reading

_WHAT = "a LAS point cloud"
_FURTHER = (*COLOUR, "nir", "return_number", "number_of_returns")
_SMALLEST_HEADER = 227  # bytes, of LAS 1.0 to 1.2
_HEADER_1_4 = 375
_COUNTS = 107  # where the header counts points: all, and those of the first five returns
_PACKED = 0x80  # in the point format: LAZ
_VLR_BYTES, _EVLR_BYTES = 54, 60  # at least, of a record of variable length


def read_las(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read a LAS or LAZ file: coordinates with scale and offset applied in float64, intensity, colours, returns.

    A point's label is its classification, 0 (never classified) and 1 (unclassified) among them: `ignore` leaves them
    out. Colours of 16 bits become 0 to 255. Further dimensions of the file's own are kept by name, if they are
    numbers. Raises InputError that names the file if it is truncated or malformed, or claims more than it holds.
    """
    data = read_bytes(path, what=_WHAT)
    import laspy  # here: a listing of data sets need not wait for it

    packed_bytes = _check_header(path, data)
    if packed_bytes:
        data = unpacked(path, data, num_bytes=packed_bytes)
        _check_header(path, data)
    # damaged scales are found as points that are not finite
    with library_errors(path, what=_WHAT), np.errstate(all="ignore"):
        found = laspy.read(io.BytesIO(data))
        columns = [(name, np.asarray(getattr(found, name), dtype=np.float64)) for name in POSITION]
        columns += [(INTENSITY, np.asarray(found.intensity)), ("classification", np.asarray(found.classification))]
        names = set(found.point_format.dimension_names)
        own = [name for name in found.point_format.extra_dimension_names if name not in (*_FURTHER, INTENSITY)]
        further = [(name, np.asarray(found[name])) for name in (*(n for n in _FURTHER if n in names), *own)]
    columns += [(name, column) for name, column in further if column.ndim == 1 and column.dtype.kind in "biuf"]
    return cloud_of(path, columns, reading)


def claimed_points(path: Path) -> dict[str, int]:
    """Return the points that a LAS file's own header counts: "all", and those of "return 1" to "return 5" it has.

    Of LAS 1.0 to 1.3, if these counts have 32 bits; later ones may leave them at 0. Raises InputError as a reader.
    """
    data = read_bytes(path, what=_WHAT)
    _check_header(path, data)
    count, *returns = struct.unpack_from("<6I", data, _COUNTS)
    return {"all": count} | {f"return {k}": points for k, points in enumerate(returns, start=1) if points}


def _check_header(path: Path, data: bytes) -> int:
    """Return how many bytes a LAZ file's points unpack to, 0 for LAS.

    Raises InputError if the counts of the header, which laspy believes, go beyond the file.
    """
    if not data.startswith(b"LASF"):
        raise InputError(
            "las.no_signature", f"{path}: does not start with 'LASF', expected {_WHAT}; fetch the file again"
        )
    if len(data) < _SMALLEST_HEADER:
        raise InputError(
            "las.header_short", f"{path}: truncated: {len(data)} bytes, expected a header of {_SMALLEST_HEADER} or more"
        )
    minor = data[25]
    header_bytes, start, num_vlrs, kind, row_bytes, count = struct.unpack_from("<HIIBHI", data, 94)
    if minor >= 4 and len(data) >= _HEADER_1_4:
        evlr_start, num_evlrs, count_1_4 = struct.unpack_from("<QIQ", data, 235)
        count = count_1_4 or count
        if num_evlrs and evlr_start + num_evlrs * _EVLR_BYTES > len(data):
            raise InputError(
                "las.records_short",
                f"{path}: truncated: its {num_evlrs} extended records go beyond it; fetch the file again",
            )
    if header_bytes + num_vlrs * _VLR_BYTES > start or start > len(data):
        raise InputError(
            "las.points_offset",
            f"{path}: points from byte {start} after {num_vlrs} records, in {len(data)} bytes; fetch the file again",
        )
    if not count:
        raise InputError("cloud.no_points", f"{path}: 0 points, expected at least one; remove the file")
    expected, held = count * row_bytes, len(data) - start
    if kind & _PACKED:
        check_claim(path, expected, num_bytes=len(data), what=f"its header of {count} points", packed=True)
        return int(expected)
    if not row_bytes or expected > held:
        raise InputError(
            "las.points_short",
            f"{path}: truncated: {held} bytes after the header, expected {expected} for {count} points; "
            "fetch the file again",
        )
    return 0
