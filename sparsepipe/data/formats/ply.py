"""PLY meshes and point clouds, ascii or binary: elements, properties and lists in any order, by their names."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import LABEL, POSITION, SAME, Cloud, Mesh, cloud_of, parted, read_bytes, whole_number
from .ply_rows import Element, Property, Ragged, read_ascii, read_binary
from .polygons import mesh_of, triangle_strips
from .reading import AS_THEY_ARE, Reading

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
    """Read a PLY file: a mesh where it has faces or strips of triangles, else a cloud of its vertices.

    A mesh's polygons become triangles of the same area, and take over the face's label where it has one; its vertices
    keep colours and intensity. A mesh whose vertices have labels, as ScanNet's, is read as the cloud of its vertices:
    these were labelled. A cloud keeps every further number of its vertices by name; lists among them are left out, as
    other elements are.
    Raises InputError that names the file where it is truncated, longer than its header says, malformed or empty.
    """
    data = read_bytes(path, what=_WHAT)
    header = _header(path, data)
    if header.encoding == "ascii":
        rows = read_ascii(path, data[header.num_bytes :], header.elements, first_line=header.num_lines + 1)
    else:
        rows = read_binary(path, data, header.elements, start=header.num_bytes, order=_ORDERS[header.encoding])
    columns = [(name, column) for name, column in rows["vertex"].items() if not isinstance(column, Ragged)]
    if not any(element.count and element.name in ("face", _STRIPS) for element in header.elements):
        return cloud_of(path, columns, reading)
    faces, strips = rows.get("face", {}), rows.get(_STRIPS, {})
    points, attributes, names, labels = parted(path, columns, reading)
    if labels is not None and not _face_labels(faces, reading):
        return cloud_of(path, columns, reading)
    return _mesh(path, points, attributes, names, faces, strips, reading)


def _face_labels(faces: dict, reading: Reading) -> list[np.ndarray]:
    renamed = dict(reading.renamed)
    meanings = {name: renamed.get(name, name).lower() for name in faces}
    return [np.asarray(faces[name]) for name, word in meanings.items() if SAME.get(word, word) == LABEL]


def _mesh(
    path: Path,
    points: np.ndarray,
    attributes: np.ndarray | None,
    names: tuple[str, ...],
    faces: dict,
    strips: dict,
    reading: Reading,
) -> Mesh:
    found = [lists for lists in (_corners(path, faces), _corners(path, strips)) if lists is not None]
    if len(found) == 2 or not faces:
        found[-1] = Ragged(*triangle_strips(found[-1].values, found[-1].counts))
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


def _corners(path: Path, columns: dict) -> Ragged | None:
    """Return the lists of vertex numbers among an element's columns; None where the file has no such element."""
    if not columns:
        return None
    for name in _CORNERS:
        if isinstance(columns.get(name), Ragged):
            return columns[name]
    raise InputError(
        f"{path}: faces of {' '.join(columns)}, expected a list vertex_indices or vertex_index; repair the file"
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
        raise InputError(f"{path}: does not start with a header from 'ply' to 'end_header', expected {_WHAT}")
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
                raise InputError(f"{path}:{number}: {' '.join(words)[:40]!r}, expected 'element NAME COUNT'")
            tables.append((words[1], count, []))
        elif words[:1] == ["property"]:
            found = _property(words)
            if found is None or not tables:
                raise InputError(
                    f"{path}:{number}: {' '.join(words)[:60]!r}, expected 'property TYPE NAME' or 'property list "
                    f"COUNT-TYPE TYPE NAME' below an element, of {', '.join(_TYPES)}"
                )
            tables[-1][2].append(found)
    raise InputError(f"{path}: does not start with a header from 'ply' to 'end_header', expected {_WHAT}")


def _property(words: list[str]) -> Property | None:
    types = [_TYPES.get(word) for word in words[1:-1]]
    if len(words) == 3 and types[0]:
        return Property(words[2], types[0])
    if len(words) == 5 and words[1] == "list" and types[2] and types[1] and types[1][0] != "f":
        return Property(words[4], types[2], types[1])
    return None


def _checked(path: Path, header: _Header) -> _Header:
    if not header.encoding:
        raise InputError(f"{path}: no format line in its header, expected such as 'format ascii 1.0'; repair the file")
    if header.encoding not in _ORDERS:
        raise InputError(f"{path}: format {header.encoding[:40]}, expected one of {', '.join(_ORDERS)}")
    for names in ([e.name for e in header.elements], *([p.name for p in e.properties] for e in header.elements)):
        name, times = Counter(names).most_common(1)[0] if names else ("", 0)
        if times > 1:
            raise InputError(f"{path}: {name[:40]!r} is named twice in its header, expected each name once; repair it")
    vertex = next((element for element in header.elements if element.name == "vertex"), None)
    if vertex is None or not vertex.count:
        raise InputError(f"{path}: no vertex in its header, expected at least one; remove the file")
    names = [p.name for p in vertex.properties if p.count_type is None]
    if not set(POSITION) <= {name.lower() for name in names}:
        raise InputError(f"{path}: vertices of {' '.join(names)[:80] or 'nothing'}, expected x, y and z among them")
    return header
