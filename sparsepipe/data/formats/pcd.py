"""PCD point clouds, ascii, binary or compressed, with the fields that PCL's tools write."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, Cloud, cloud_of, library_errors, miscounted, read_bytes, whole_number
from .meshes import numbers_of, shown
from .reading import AS_THEY_ARE, Reading, check_claim

_WHAT = "a PCD point cloud"
_ENCODINGS = ("ascii", "binary", "binary_compressed")
_REQUIRED = ("FIELDS", "SIZE", "TYPE", "POINTS", "DATA")
_KINDS = {("F", 4), ("F", 8), *((kind, size) for kind in "IU" for size in (1, 2, 4, 8))}
_PACKED = ("rgb", "rgba")  # three or four bytes of colour in one number


@dataclass(frozen=True)
class _Field:
    """A field of a point: `count` numbers of `size` bytes each."""

    name: str
    type: str
    size: int
    count: int

    @property
    def num_bytes(self) -> int:
        return self.size * self.count


def read_pcd(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read a PCD v0.7 file: x, y, z and every further number of its points by name, normals and labels among them.

    Colours packed into one number become red, green and blue. Fields of several numbers and padding are dropped.

    Raises InputError that names the file if it is truncated, longer than its header says or malformed.
    """
    data = read_bytes(path, what=_WHAT)
    header, body, num_lines = _split_header(path, data)
    fields, num_points, encoding = _check_header(path, header)
    if encoding == "ascii":
        columns = _ascii_columns(path, body, fields, num_points=num_points, first_line=num_lines + 1)
    else:
        columns = _binary_columns(path, body, fields, num_points=num_points, encoding=encoding)
    found: list[tuple[str, np.ndarray]] = []
    for field, column in columns:
        if field.name.lower() in _PACKED and field.size == 4:
            found += zip(COLOUR, _unpacked(column, field, as_text=encoding == "ascii"), strict=True)
        else:
            found.append((field.name, column))
    return cloud_of(path, found, reading)


def _unpacked(column: np.ndarray, field: _Field, *, as_text: bool) -> list[np.ndarray]:
    """Return red, green and blue, 0 to 255, of 0xRRGGBB: the bits of a float, or whole numbers where text has those."""
    known = np.isfinite(column)
    whole = bool(((column[known] == np.floor(column[known])) & (column[known] >= 0)).all())
    if field.type == "F" and not (as_text and whole):
        with np.errstate(over="ignore", invalid="ignore"):
            bits = column.astype(np.float32).view(np.uint32)
        known = known | (not as_text)  # the bits of a colour may be those of NaN
    else:
        known = known & (column >= -(2**31)) & (column < 2**32)  # of 32 bits, which may be read as below 0
        bits = np.where(known, column, 0).astype(np.int64)
    return [np.where(known, (bits >> shift) & 0xFF, np.nan) for shift in (16, 8, 0)]


def _split_header(path: Path, data: bytes) -> tuple[dict[str, list[str]], bytes, int]:
    """Part the header, as {"FIELDS": ["x", "y", "z"], ...}, from the bytes after it; count its lines."""
    header: dict[str, list[str]] = {}
    start = num_lines = 0
    newline = b"\n" if b"\n" in data else b"\r"  # old Macs
    while start < len(data) and "DATA" not in header:
        end = data.find(newline, start)
        end = len(data) if end < 0 else end
        line = data[start:end].decode("ascii", errors="replace").partition("#")[0].split()
        if line:
            header[line[0].upper()] = line[1:]
        start, num_lines = end + 1, num_lines + 1
        if len(header) > 32:
            break
    missing = [key for key in _REQUIRED if not header.get(key)]
    if missing:
        raise InputError(
            "pcd.header_incomplete",
            f"{path}: the header has no {', '.join(missing)}, expected {_WHAT}; fetch the file again",
        )
    data_line = header.pop("DATA")
    header.setdefault("COUNT", ["1"] * len(header["FIELDS"]))  # optional in older writers
    if "WIDTH" not in header:
        header |= {"WIDTH": header["POINTS"], "HEIGHT": ["1"]}
    return header | {"DATA": data_line}, data[start:], num_lines


def _check_header(path: Path, header: dict[str, list[str]]) -> tuple[list[_Field], int, str]:
    """Return the fields of a point, the number of points and the encoding."""
    names = header["FIELDS"]
    if not {"x", "y", "z"} <= {name.lower() for name in names}:
        raise InputError(
            "pcd.no_coordinates", f"{path}: FIELDS are {' '.join(names)[:200]}, expected x, y and z among them"
        )
    for key in ("SIZE", "TYPE", "COUNT"):
        if len(header[key]) != len(names):
            raise InputError(
                "pcd.field_count",
                f"{path}: {key} has {len(header[key])} entries, expected {len(names)}, one per field",
            )
    shape = [" ".join(header.get(key, ["1"])) for key in ("POINTS", "WIDTH", "HEIGHT")]
    words = [*header["SIZE"], *header["COUNT"], *shape]
    numbers = [number for word in words if (number := whole_number(word)) is not None]
    if len(numbers) < len(words):
        raise InputError(
            "pcd.header_not_a_number",
            f"{path}: SIZE, COUNT, WIDTH, HEIGHT or POINTS is not a whole number; repair its header",
        )
    (num_points, width, height), encoding = numbers[-3:], header["DATA"][0].lower()
    if num_points == 0:
        raise InputError("cloud.no_points", f"{path}: has no points, expected at least one; remove the file")
    if width * height != num_points:
        raise InputError(
            "pcd.size_differs",
            f"{path}: WIDTH {width} times HEIGHT {height} is {width * height}, but POINTS is {num_points}; repair "
            "the header",
        )
    if encoding not in _ENCODINGS:
        raise InputError(
            "pcd.encoding_unknown", f"{path}: unknown DATA {encoding[:40]}, expected one of {', '.join(_ENCODINGS)}"
        )
    types = [word.upper() for word in header["TYPE"]]
    fields = [_Field(*each) for each in zip(names, types, numbers, numbers[len(names) :], strict=False)]
    for field in fields:
        if field.name != "_" and (field.type, field.size) not in _KINDS:
            raise InputError(
                "pcd.field_type_unknown",
                f"{path}: field {field.name[:40]} has TYPE {field.type[:9]} and SIZE {field.size}, expected F of 4 "
                f"or 8 bytes, or I or U of 1, 2, 4 or 8 bytes; give {_WHAT}",
            )
    return fields, num_points, encoding


Columns = list[tuple[_Field, np.ndarray]]  # of fields of one number


def _ascii_columns(path: Path, body: bytes, fields: list[_Field], *, num_points: int, first_line: int) -> Columns:
    lines = [(number, line) for number, line in enumerate(body.splitlines(), start=first_line) if line.strip()]
    if len(lines) != num_points:
        raise miscounted(path, f"{len(lines)} rows, expected {num_points} points", short=len(lines) < num_points)
    width = sum(field.count for field in fields)
    for number, line in lines:
        if len(line.split()) != width:
            raise InputError(
                "pcd.row_malformed",
                f"{path}:{number}: {shown(line)}, expected {width} numbers: not {_WHAT}; fetch the file again",
            )
    table = numbers_of(path, lines, width * num_points).reshape(num_points, width)
    columns, place = [], 0
    for field in fields:
        if field.count == 1 and field.name != "_":
            columns.append((field, table[:, place]))
        place += field.count
    return columns


def _binary_columns(path: Path, body: bytes, fields: list[_Field], *, num_points: int, encoding: str) -> Columns:
    """Return the fields point by point (binary), or one after the other for all points (binary_compressed)."""
    row_bytes = sum(field.num_bytes for field in fields)
    expected = num_points * row_bytes
    if encoding == "binary":
        body = _checked(path, body, expected, num_points)
    else:
        body = _decompressed(path, body, expected, num_points)
    columns, place = [], 0
    for field in fields:
        if field.count == 1 and field.name != "_":
            dtype = np.dtype(f"<{field.type.lower()}{field.size}")
            start, step = (place, row_bytes) if encoding == "binary" else (place * num_points, field.size)
            columns.append((field, np.ndarray(num_points, dtype, buffer=body, offset=start, strides=step)))
        place += field.num_bytes
    return columns


def _decompressed(path: Path, body: bytes, expected: int, num_points: int) -> bytes:
    import lzf  # here: few files need it

    # two uint32 lead: compressed and uncompressed bytes. The second must be what the header promises.
    if len(body) < 8:
        raise InputError(
            "file.truncated", f"{path}: truncated: {len(body)} bytes after the header; fetch the file again"
        )
    packed, unpacked = (int(size) for size in np.frombuffer(body[:8], dtype="<u4"))
    if unpacked != expected:
        raise InputError(
            "pcd.unpacked_size",
            f"{path}: unpacks to {unpacked} bytes, expected {expected} for {num_points} points; fetch the file again",
        )
    check_claim(path, expected, num_bytes=len(body), what="its header", packed=True)
    content = _checked(path, body, packed + 8, num_points)[8:]
    with library_errors(path, what=_WHAT):
        found: bytes | None = lzf.decompress(content, unpacked)
    if found is None or len(found) != unpacked:
        raise InputError(
            "pcd.not_unpackable", f"{path}: not {_WHAT}: its points cannot be decompressed; fetch the file again"
        )
    return found


def _checked(path: Path, body: bytes, expected: int, num_points: int) -> bytes:
    """Return the bytes expected. Raises InputError if there are fewer, or more than padding behind them."""
    if len(body) < expected:
        numbers = f"{len(body)} bytes after the header, expected {expected} for {num_points} points"
        raise miscounted(path, numbers, short=True)
    if body[expected:].strip(b"\0\r\n "):  # older PCL leaves up to a page of zeros behind the points
        numbers = f"{len(body)} bytes, expected {expected} for {num_points} points"
        raise miscounted(path, numbers, short=False)
    return body[:expected]
