"""PCD point clouds, ascii, binary or compressed: pypcd4 reads them once their sizes agree with their header."""

import io
import warnings
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import Cloud, cloud_of, read_bytes, whole_number
from .reading import AS_THEY_ARE, Reading

_WHAT = "a PCD point cloud"
_ENCODINGS = ("ascii", "binary", "binary_compressed")
_REQUIRED = ("FIELDS", "SIZE", "TYPE", "POINTS", "DATA")
_DROPPED = ("rgb", "rgba", "_")
_KEYS = ("VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")


def read_pcd(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read a PCD v0.7 file: x, y, z and every further number of its points by name, normals and labels among them.

    Colours packed into one number, fields of several numbers and padding are dropped.

    Raises InputError that names the file where it is truncated, longer than its header says, malformed or not finite.
    """
    from pypcd4 import PointCloud  # here: a listing of data sets need not wait for it

    data = read_bytes(path, what=_WHAT)
    header, body = _split_header(path, data)
    num_points, row_bytes, encoding = _check_header(path, header)
    body = _check_body(path, body, encoding=encoding, num_points=num_points, row_bytes=row_bytes)
    head = "".join(f"{key} {' '.join(words)}\n" for key, words in header.items() if key in _KEYS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of rows it could not read
            read = PointCloud.from_fileobj(io.BufferedReader(io.BytesIO(head.encode() + body)))
            single = zip(header["FIELDS"], header["COUNT"], strict=True)
            names = [name for name, count in single if count == "1" and name not in _DROPPED]
            columns = {name: np.atleast_1d(read.pc_data[name]) for name in names}
    except Exception as error:  # pypcd4 and what it stands on raise many kinds; the file is at fault in each
        raise InputError(f"{path}: not {_WHAT} ({' '.join(str(error).split())[:200]}); fetch it again") from None
    found = len(columns["x"])
    if found != num_points:
        raise InputError(f"{path}: truncated: {found} points, expected {num_points}; fetch the file again")
    return cloud_of(path, columns.items(), reading)


def _split_header(path: Path, data: bytes) -> tuple[dict[str, list[str]], bytes]:
    """Part the header, as {"FIELDS": ["x", "y", "z"], ...} ending with DATA, from the bytes after it."""
    header: dict[str, list[str]] = {}
    start = 0
    while start < len(data) and "DATA" not in header:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = data[start:end].decode("ascii", errors="replace").partition("#")[0].split()
        if line:
            header[line[0].upper()] = line[1:]
        start = end + 1
        if len(header) > 32:
            break
    missing = [key for key in _REQUIRED if not header.get(key)]
    if missing:
        raise InputError(f"{path}: header has no {', '.join(missing)}, expected {_WHAT}; fetch the file again")
    data_line = header.pop("DATA")
    header.setdefault("COUNT", ["1"] * len(header["FIELDS"]))  # optional in older writers
    if "WIDTH" not in header:
        header |= {"WIDTH": header["POINTS"], "HEIGHT": ["1"]}
    return header | {"DATA": data_line}, data[start:]


def _check_header(path: Path, header: dict[str, list[str]]) -> tuple[int, int, str]:
    """Return the number of points, the bytes of each and the encoding."""
    fields = header["FIELDS"]
    if not {"x", "y", "z"} <= set(fields):
        raise InputError(f"{path}: FIELDS {' '.join(fields)}, expected x y z among them")
    for key in ("SIZE", "TYPE", "COUNT"):
        if len(header[key]) != len(fields):
            raise InputError(
                f"{path}: {key} has {len(header[key])} entries, expected {len(fields)}: one for each field"
            )
    sizes, counts = ([whole_number(word) for word in header[key]] for key in ("SIZE", "COUNT"))
    shape = [whole_number(" ".join(header.get(key, ["1"]))) for key in ("POINTS", "WIDTH", "HEIGHT")]
    if None in (*sizes, *counts, *shape):
        raise InputError(f"{path}: SIZE, COUNT, WIDTH, HEIGHT or POINTS is not a whole number; fetch the file again")
    (num_points, width, height), encoding = shape, header["DATA"][0].lower()
    if num_points == 0:
        raise InputError(f"{path}: 0 points, expected at least one; remove the file")
    if width * height != num_points:
        raise InputError(
            f"{path}: WIDTH {width} times HEIGHT {height} is {width * height}, expected {num_points}, as POINTS says; "
            "fetch the file again"
        )
    if encoding not in _ENCODINGS:
        raise InputError(f"{path}: DATA {encoding}, expected one of {', '.join(_ENCODINGS)}")
    header["DATA"] = [encoding]
    return num_points, sum(size * count for size, count in zip(sizes, counts, strict=True)), encoding


def _check_body(path: Path, body: bytes, *, encoding: str, num_points: int, row_bytes: int) -> bytes:
    """Return the body as pypcd4 takes it. Raises InputError where its size is not what the header says."""
    found, expected = len(body), num_points * row_bytes
    if encoding == "ascii":
        lines = [b" ".join(line.split()) for line in body.splitlines() if line.strip()]
        if len(lines) != num_points:
            state = "truncated" if len(lines) < num_points else "longer than its header says"
            raise InputError(f"{path}: {state}: {len(lines)} rows, expected {num_points} points; fetch the file again")
        return b"\n".join(lines) + b"\n"
    if encoding == "binary_compressed":
        # two uint32 lead: compressed and uncompressed bytes. The second must be what the header promises.
        if found < 8:
            raise InputError(f"{path}: truncated: {found} bytes after the header; fetch the file again")
        compressed, uncompressed = (int(size) for size in np.frombuffer(body[:8], dtype="<u4"))
        if uncompressed != expected:
            raise InputError(
                f"{path}: unpacks to {uncompressed} bytes, expected {expected} for {num_points} points; fetch it again"
            )
        expected = compressed + 8
    if found < expected:
        raise InputError(
            f"{path}: truncated: {found} bytes after the header, expected {expected} for {num_points} points; "
            "fetch it again"
        )
    if body[expected:].strip(b"\0\r\n "):  # older PCL leaves up to a page of zeros behind the points
        raise InputError(
            f"{path}: longer than its header says: {found} bytes, expected {expected} for {num_points} points; "
            "fetch it again"
        )
    return body[:expected]
