"""PLY meshes and point clouds, ascii or binary: elements, properties and lists in any order, by their names."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ...errors import InputError
from .base import LABEL, POSITION, SAME, Cloud, Mesh, cloud_of, miscounted, parted, read_bytes, whole_number
from .meshes import mesh_of, numbers_of, shown, triangle_strips
from .reading import AS_THEY_ARE, Reading

Take = Callable[[np.ndarray, str], np.ndarray]  # the numbers at these places, of this type


@dataclass(frozen=True)
class Property:
    """A number of `type` (NumPy's, without its byte order); with a `count_type` a list of such numbers."""

    name: str
    type: str
    count_type: str | None = None


@dataclass(frozen=True)
class Element:
    """A table of the file: `count` rows of these properties."""

    name: str
    count: int
    properties: tuple[Property, ...]


@dataclass(frozen=True, eq=False)
class PlyLists:
    """Lists of different lengths: all `values` one after the other, `counts` [rows] of them in each."""

    values: np.ndarray
    counts: np.ndarray


Columns = dict[str, np.ndarray | PlyLists]


class _TooShort(Exception):
    """Row `args[0]` ends before its properties do."""


def read_ascii(path: Path, body: bytes, elements: tuple[Element, ...], *, first_line: int) -> dict[str, Columns]:
    """Return {element: its columns} of rows of text, a row a line. Raises InputError that names a wrong line."""
    lines = [(number, line) for number, line in enumerate(body.splitlines(), start=first_line) if line.strip()]
    elements = tuple(element for element in elements if element.properties)
    expected = sum(element.count for element in elements)
    if len(lines) != expected:
        raise miscounted(path, f"{len(lines)} rows, expected {_counts(elements)}", short=len(lines) < expected)
    found, done = {}, 0
    for element in elements:
        rows = lines[done : done + element.count]
        done += element.count
        widths = np.array([len(line.split()) for _, line in rows], dtype=np.int64)
        numbers = numbers_of(path, rows, int(widths.sum()))
        ends = np.cumsum(widths)
        try:
            columns, at = _walked(element, ends - widths, ends, lambda at, _: numbers[at], whole=False)  # noqa: B023
            wrong = np.flatnonzero(at != ends)
        except _TooShort as error:
            wrong = np.array(error.args)
        if len(wrong):
            number, line = rows[int(wrong[0])]
            raise InputError(
                "ply.row_malformed",
                f"{path}:{number}: {shown(line)}, expected the numbers of one {element.name}: "
                f"{' '.join(_described(each) for each in element.properties)[:200]}; repair or remove the file",
            )
        found[element.name] = columns
    return found


def read_binary(
    path: Path, data: bytes, elements: tuple[Element, ...], *, start: int, order: str
) -> dict[str, Columns]:
    """Return {element: its columns} of packed rows from byte `start`, in NumPy's byte `order`.

    Raises InputError if the rows do not end where the file does.
    """
    octets, found = np.frombuffer(data, dtype=np.uint8), {}
    numbers = f"{len(data) - start} bytes after the header, expected more for {_counts(elements)}"
    truncated = miscounted(path, numbers, short=True)

    def take(at: np.ndarray, type_: str) -> np.ndarray:
        dtype = np.dtype(order + type_)
        return octets[at[:, None] + np.arange(dtype.itemsize)].reshape(-1).view(dtype)

    for element in elements:
        if not element.properties:
            continue
        least = sum(np.dtype(each.count_type or each.type).itemsize for each in element.properties)
        if element.count * least > len(data) - start:
            raise truncated
        alike = _rows_alike(data, element, start=start, order=order)
        if alike is not None:
            found[element.name], start = alike
            continue
        starts = _row_starts(data, element, start=start, order=order)
        if starts is None:
            raise truncated
        try:
            columns, at = _walked(element, starts, np.full(len(starts), len(data)), take, whole=True)
        except _TooShort:
            raise truncated from None
        found[element.name] = columns
        start = int(at[-1]) if len(at) else start
    if data[start:].strip(b"\r\n"):
        raise miscounted(path, f"{len(data) - start} bytes are left after {_counts(elements)}", short=False)
    return found


def _walked(
    element: Element, at: np.ndarray, ends: np.ndarray, take: Take, *, whole: bool
) -> tuple[Columns, np.ndarray]:
    """Go through the properties of all rows at once, from the places `at` [rows]; return the columns and last places.

    Places count bytes, or numbers where each is one word (not `whole`). Raises _TooShort if a row ends within them.
    """

    def step(type_: str) -> int:
        return np.dtype(type_).itemsize if whole else 1

    def within(after: np.ndarray) -> None:
        beyond = np.flatnonzero(after > ends)
        if len(beyond):
            raise _TooShort(beyond[0])

    columns: Columns = {}
    for each in element.properties:
        first = each.count_type or each.type
        within(at + step(first))
        numbers = take(at, first)
        at = at + step(first)
        if each.count_type is None:
            columns[each.name] = numbers
            continue
        odd = np.flatnonzero(~((numbers >= 0) & (numbers == np.floor(numbers)) & (numbers <= ends)))
        if len(odd):
            raise _TooShort(odd[0])
        counts = numbers.astype(np.int64)
        within(at + counts * step(each.type))
        ramp = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        columns[each.name] = PlyLists(take(np.repeat(at, counts) + ramp * step(each.type), each.type), counts)
        at = at + counts * step(each.type)
    return columns, at


def _rows_alike(data: bytes, element: Element, *, start: int, order: str) -> tuple[Columns, int] | None:
    """Return the columns, and the byte after them, where all rows have lists as long as the first; else None."""
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    at = start
    for place, each in enumerate(element.properties):
        shape: tuple[int, ...] = ()
        if each.count_type is not None:
            count_type = np.dtype(order + each.count_type)
            if at + count_type.itemsize > len(data):
                return None
            length = int(np.frombuffer(data, count_type, count=1, offset=at)[0])
            if not 0 <= length <= len(data):
                return None
            fields.append((f"{place} count", order + each.count_type, ()))
            shape = (length,)
        fields.append((f"{place}", order + each.type, shape))
        at = start + sum(np.dtype(kind).itemsize * math.prod(shape) for _, kind, shape in fields)
        if at > len(data):
            return None
    dtype = np.dtype(fields)
    after = start + element.count * dtype.itemsize
    if after > len(data):
        return None
    table = np.frombuffer(data, dtype, count=element.count, offset=start)
    columns: Columns = {}
    for place, each in enumerate(element.properties):
        columns[each.name] = table[f"{place}"]
        if each.count_type is not None:
            counts = table[f"{place} count"]
            if len(counts) and (counts != counts[0]).any():
                return None
            columns[each.name] = PlyLists(table[f"{place}"].reshape(-1), counts.astype(np.int64))
    return columns, after


def _row_starts(data: bytes, element: Element, *, start: int, order: str) -> np.ndarray | None:
    """Return the byte at which each row begins; None if the file ends before the rows do."""
    starts = []
    steps = [  # of each property: bytes of the number, or of the list's length, and then of each of its items
        (np.dtype(each.count_type or each.type).itemsize, np.dtype(each.type).itemsize, each.count_type)
        for each in element.properties
    ]
    byte_order: Literal["big", "little"] = "big" if order == ">" else "little"
    for _ in range(element.count):
        starts.append(start)
        for num_bytes, item_bytes, count_type in steps:
            if count_type:
                count = int.from_bytes(data[start : start + num_bytes], byte_order, signed=count_type[0] == "i")
                start += max(count, 0) * item_bytes
            start += num_bytes
        if start > len(data):
            return None
    return np.array(starts, dtype=np.int64)


def _described(each: Property) -> str:
    return each.name if each.count_type is None else f"list {each.name}"


def _counts(elements: tuple[Element, ...]) -> str:
    return " + ".join(f"{element.count} {element.name}" for element in elements)[:200]


_WHAT = "a PLY file"
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2"},
    **{"int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8", "float32": "f4", "float64": "f8"},
}
_CORNERS = ("vertex_indices", "vertex_index")  # the lists that make a face
_STRIPS = "tristrips"


def read_ply(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh | Cloud:
    """Read a PLY file: a mesh if it has faces or strips of triangles, else a cloud of its vertices.

    A mesh's polygons become triangles of the same area, and take over the face's label if it has one; its vertices
    keep colours and intensity. A mesh whose vertices have labels, as ScanNet's, is read as the cloud of its vertices:
    these were labelled. A cloud keeps every further number of its vertices by name; lists among them are left out, as
    other elements are.
    Raises InputError that names the file if it is truncated, longer than its header says, malformed or empty.
    """
    data = read_bytes(path, what=_WHAT)
    header = _header(path, data)
    if header.encoding == "ascii":
        rows = read_ascii(path, data[header.num_bytes :], header.elements, first_line=header.num_lines + 1)
    else:
        rows = read_binary(path, data, header.elements, start=header.num_bytes, order=_ORDERS[header.encoding])
    columns = [(name, column) for name, column in rows["vertex"].items() if not isinstance(column, PlyLists)]
    if not any(element.count and element.name in ("face", _STRIPS) for element in header.elements):
        return cloud_of(path, columns, reading)
    faces, strips = rows.get("face", {}), rows.get(_STRIPS, {})
    points, attributes, names, labels = parted(path, columns, reading)
    if labels is not None and not _face_labels(faces, reading):
        return cloud_of(path, columns, reading)
    return _mesh(path, points, attributes, names, faces, strips, reading)


def _face_labels(faces: Columns, reading: Reading) -> list[np.ndarray]:
    renamed = dict(reading.renamed)
    meanings = {name: renamed.get(name, name).lower() for name in faces}
    return [np.asarray(faces[name]) for name, word in meanings.items() if SAME.get(word, word) == LABEL]


def _mesh(
    path: Path,
    points: np.ndarray,
    attributes: np.ndarray | None,
    names: tuple[str, ...],
    faces: Columns,
    strips: Columns,
    reading: Reading,
) -> Mesh:
    found = [lists for lists in (_corners(path, faces), _corners(path, strips)) if lists is not None]
    if len(found) == 2 or not faces:
        found[-1] = PlyLists(*triangle_strips(found[-1].values, found[-1].counts))
    labels = _face_labels(faces, reading)
    return mesh_of(
        path,
        points,
        np.concatenate([lists.values for lists in found]),
        np.concatenate([lists.counts for lists in found]),
        reading=reading,
        labels=labels[0] if labels and len(found) == 1 else None,
        attributes=attributes,
        names=names,
    )


def _corners(path: Path, columns: Columns) -> PlyLists | None:
    """Return the lists of vertex numbers among an element's columns; None if the file has no such element."""
    if not columns:
        return None
    for name in _CORNERS:
        if isinstance(lists := columns.get(name), PlyLists):
            return lists
    raise InputError(
        "ply.no_vertex_indices",
        f"{path}: faces have {' '.join(columns)}, expected a list vertex_indices or vertex_index; repair the file",
    )


@dataclass(frozen=True)
class _Header:
    encoding: str
    elements: tuple[Element, ...]
    num_bytes: int
    num_lines: int


def _header(path: Path, data: bytes) -> _Header:
    """Read the header line by line: a comment may hold any words, the one that ends it among them."""
    if not data.startswith(b"ply") or data[3:].lstrip(b" \t")[:1] not in (b"\r", b"\n"):
        raise InputError(
            "ply.no_header", f"{path}: does not start with a header from 'ply' to 'end_header', expected {_WHAT}"
        )
    rest = data[3:].lstrip(b" \t")
    end = b"\r" if rest[:1] == b"\r" and rest[:2] != b"\r\n" else b"\n"
    encoding, number, start = "", 0, 0
    tables: list[tuple[str, int, list[Property]]] = []
    while start < len(data):
        stop = data.find(end, start)
        stop = len(data) if stop < 0 else stop
        words = data[start:stop].decode("latin-1").split()
        number, start = number + 1, stop + 1
        if words == ["end_header"]:
            elements = tuple(Element(name, count, tuple(properties)) for name, count, properties in tables)
            return _checked(path, _Header(encoding, elements, start, number))
        if words[:1] == ["format"] and len(words) > 1:
            encoding = words[1]
        elif words[:1] == ["element"]:
            count = whole_number(words[2]) if len(words) == 3 else None
            if count is None:
                raise InputError(
                    "ply.element_malformed",
                    f"{path}:{number}: the line is {' '.join(words)[:40]!r}, expected 'element NAME COUNT'",
                )
            tables.append((words[1], count, []))
        elif words[:1] == ["property"]:
            found = _property(words)
            if found is None or not tables:
                raise InputError(
                    "ply.property_malformed",
                    f"{path}:{number}: the line is {' '.join(words)[:60]!r}, expected 'property TYPE NAME' or "
                    f"'property list COUNT-TYPE TYPE NAME' below an element, with types {', '.join(_TYPES)}",
                )
            tables[-1][2].append(found)
    raise InputError(
        "ply.no_header", f"{path}: does not start with a header from 'ply' to 'end_header', expected {_WHAT}"
    )


def _property(words: list[str]) -> Property | None:
    types = [_TYPES.get(word) for word in words[1:-1]]
    if len(words) == 3 and types[0]:
        return Property(words[2], types[0])
    if len(words) == 5 and words[1] == "list" and types[2] and types[1] and types[1][0] != "f":
        return Property(words[4], types[2], types[1])
    return None


def _checked(path: Path, header: _Header) -> _Header:
    if not header.encoding:
        raise InputError(
            "ply.no_format",
            f"{path}: the header has no format line, expected one such as 'format ascii 1.0'; repair the file",
        )
    if header.encoding not in _ORDERS:
        raise InputError(
            "ply.format_unknown", f"{path}: unknown format {header.encoding[:40]}, expected one of {', '.join(_ORDERS)}"
        )
    for names in ([e.name for e in header.elements], *([p.name for p in e.properties] for e in header.elements)):
        name, times = Counter(names).most_common(1)[0] if names else ("", 0)
        if times > 1:
            raise InputError(
                "ply.name_twice",
                f"{path}: the header names {name[:40]!r} twice, expected each name once; repair it",
            )
    vertex = next((element for element in header.elements if element.name == "vertex"), None)
    if vertex is None or not vertex.count:
        raise InputError(
            "cloud.no_points", f"{path}: its header declares no vertices, expected at least one; remove the file"
        )
    names = [p.name for p in vertex.properties if p.count_type is None]
    if not set(POSITION) <= {name.lower() for name in names}:
        raise InputError(
            "ply.no_coordinates",
            f"{path}: vertices have {' '.join(names)[:80] or 'nothing'}, expected x, y and z among them",
        )
    return header
