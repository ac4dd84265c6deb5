"""PLY meshes and point clouds, ascii or binary: trimesh reads them once the rows agree with the header."""

import io
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import POSITION, Cloud, Mesh, check_finite, cloud_of, one_line, read_bytes, whole_number
from .reading import AS_THEY_ARE, Reading

_WHAT = "a PLY file"
_ENCODINGS = ("ascii", "binary_little_endian", "binary_big_endian")


def read_ply(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh | Cloud:
    """Read a PLY file: a mesh where it has faces, else a cloud with every further number of its vertices by name.

    Polygons become triangles. Raises InputError that names the file where it is truncated, longer than its header
    says, malformed, empty or not finite.
    """
    from trimesh.exchange.ply import load_ply  # here: a listing of data sets need not wait for it

    data = read_bytes(path, what=_WHAT)
    elements, body, encoding = _check_header(path, data)
    if encoding == "ascii":
        found, expected = sum(1 for line in body.splitlines() if line.strip()), sum(elements.values())
        if found != expected:
            state = "truncated" if found < expected else "longer than its header says"
            counts = " + ".join(f"{count} {name}" for name, count in elements.items())
            raise InputError(f"{path}: {state}: {found} rows, expected {counts}; fetch the file again")
    try:
        read = load_ply(io.BytesIO(data), skip_materials=True)
        raw = read["metadata"]["_ply_raw"]["vertex"]
        columns = {name: np.asarray(raw["data"][name]).reshape(-1) for name in raw["properties"]}
        if elements.get("face"):
            vertices, faces = np.asarray(read["vertices"], np.float64), np.asarray(read["faces"], np.int64)
            vertices, faces = vertices.reshape(-1, 3), faces.reshape(-1, 3)
    except Exception as error:  # trimesh and numpy raise many kinds; the file is at fault in each
        counts = " + ".join(f"{count} {name}" for name, count in elements.items())
        raise InputError(
            f"{path}: not {_WHAT} of {counts} ({one_line(error)}), as its header says; fetch the file again"
        ) from None
    if not elements.get("face"):
        return cloud_of(path, columns.items(), reading)
    check_finite(path, vertices, what="vertex")
    outside = faces[(faces < 0) | (faces >= len(vertices))]
    if len(outside):
        raise InputError(
            f"{path}: a face names vertex {outside[0]}, expected 0 to {len(vertices) - 1}; repair or remove the file"
        )
    return Mesh(vertices, faces)


def _check_header(path: Path, data: bytes) -> tuple[dict[str, int], bytes, str]:
    """Return how many rows each element has, the bytes after the header, and the encoding."""
    head, marker, body = data.partition(b"end_header")
    lines = [line.split() for line in head.decode("latin-1").splitlines()]
    if not lines or lines[0] != ["ply"] or not marker:
        raise InputError(f"{path}: does not start with a header from 'ply' to 'end_header', expected {_WHAT}")
    encoding = next((words[1] for words in lines if words[:1] == ["format"] and len(words) > 1), None)
    if encoding not in _ENCODINGS:
        raise InputError(f"{path}: format {encoding}, expected one of {', '.join(_ENCODINGS)}")
    elements: dict[str, int] = {}
    properties = []  # of the vertices
    for number, words in enumerate(lines, start=1):
        if words[:1] == ["element"]:
            count = whole_number(words[2]) if len(words) == 3 else None
            if count is None:
                raise InputError(f"{path}:{number}: {' '.join(words)[:40]!r}, expected 'element NAME COUNT'")
            elements[words[1]] = count
        if words[:1] == ["property"] and list(elements) == ["vertex"]:
            properties.append(words[-1])
    if not elements.get("vertex"):
        raise InputError(f"{path}: no vertex in its header, expected at least one; remove the file")
    if not set(POSITION) <= set(properties):
        raise InputError(f"{path}: vertices of {' '.join(properties) or 'nothing'}, expected x, y and z among them")
    return elements, body.partition(b"\n")[2], encoding
