"""LAS and LAZ: clouds of airborne and terrestrial lidar, with classes, intensities and colours; laspy reads them."""

import io
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...util.host.imports import python_command, python_environment
from ...util.io.fields import complaint
from .base import COLOUR, INTENSITY, POSITION, Cloud, cloud_of, library_errors, read_bytes, too_large
from .reading import AS_THEY_ARE, Reading, check_claim

_BESIDE_BYTES = 256 * 2**20  # for threads, buffers and the file's own bytes
_COPIES = 6  # of the points, packed and not, while they are read and written
_SECONDS = 60  # and one more for each megabyte


def unpacked(path: Path, data: bytes, *, num_bytes: int) -> bytes:
    """Return LAZ `data` as LAS with points of `num_bytes`. Raises InputError that names the file if that fails."""
    allowed = _BESIDE_BYTES + _COPIES * (num_bytes + len(data))
    command = python_command("sparsepipe.data.formats.las", str(allowed))
    seconds = _SECONDS + num_bytes / 1e6
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, env=python_environment(), timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "laz.timeout",
            f"{path}: not unpacked within {seconds:.0f} s; convert it to LAS, or try again on a less busy machine",
        ) from None
    except OSError as error:
        raise InputError(
            "laz.not_startable",
            f"{path}: the process that decompresses LAZ cannot be started ({error.strerror}); try again",
        ) from None
    if done.returncode == -signal.SIGKILL:  # by the system, which ran out of memory
        raise too_large(path)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1][:200] if done.returncode == 1 and said else "decompression failed"
        raise InputError(
            "laz.unreadable", f"{path}: cannot be read as a LAZ point cloud ({reason}); fetch the file again"
        )
    return done.stdout


def main(allowed_bytes: int) -> int:
    """Unpack standard input to standard output; return the exit code."""
    import laspy

    data = sys.stdin.buffer.read()
    _limit_memory(allowed_bytes)
    try:
        found = laspy.read(io.BytesIO(data), laz_backend=laspy.LazBackend.Lazrs)
        out = io.BytesIO()
        found.write(out, do_compress=False)
    except Exception as error:  # laspy and the decompressor raise many kinds; the file is at fault in each
        print(complaint(error), file=sys.stderr)
        return 1
    sys.stdout.buffer.write(out.getbuffer())
    return 0


def _limit_memory(allowed_bytes: int) -> None:
    """Let this process take so much address space in addition to what it has, where the system can say and limit it."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + allowed_bytes
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    except (ImportError, OSError, ValueError):
        return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))


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
                f"{path}: truncated: its {num_evlrs} extended records exceed the file; fetch the file again",
            )
    if header_bytes + num_vlrs * _VLR_BYTES > start or start > len(data):
        raise InputError(
            "las.points_offset",
            f"{path}: points start at byte {start} after {num_vlrs} records, but the file has {len(data)} bytes; "
            "fetch the file again",
        )
    if not count:
        raise InputError("cloud.no_points", f"{path}: has no points, expected at least one; remove the file")
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
