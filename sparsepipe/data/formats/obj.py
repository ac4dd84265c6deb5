"""Wavefront OBJ: vertices, with colours where MeshLab's and others' files have them, and polygons; nothing else of it.

trimesh's own reader cuts polygons into fans, which is wrong for concave ones, and orders faces by material: a list of
their labels would fit no more. Materials and pictures that a file names are never opened.
"""

from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, POSITION, Cloud, Mesh, cloud_of, decoded, parted, read_bytes
from .polygons import mesh_of
from .reading import AS_THEY_ARE, Reading
from .words import numbers_of

_WHAT = "an OBJ mesh"
_MAX_DIGITS = 18  # of a vertex number


def read_obj(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh | Cloud:
    """Read an OBJ file: a mesh of its polygons, or without any the cloud of its vertices.

    Raises InputError that names file and line for a vertex or a face that is none.
    """
    text = decoded(read_bytes(path, what=_WHAT))
    if "\0" in text:
        raise InputError("obj.binary", f"{path}: holds binary data, expected {_WHAT}; give it the suffix of its format")
    vertices: list[tuple[int, bytes]] = []
    width = 0
    corners: list[int] = []
    counts: list[int] = []
    for number, line in enumerate(text.replace("\\\r\n", " ").replace("\\\n", " ").split("\n"), start=1):
        kind, *words = line.partition("#")[0].split() or [""]
        if kind == "v":
            width = width or len(words)
            if len(words) != width or width not in (3, 4, 6, 7):
                expected = (
                    f"{width} numbers as the first has" if width in (3, 4, 6, 7) else "3 numbers, or 6 with a colour"
                )
                raise InputError(
                    "obj.vertex_malformed",
                    f"{path}:{number}: vertex {line[:60].strip()!r}, expected {expected}; repair the file",
                )
            vertices.append((number, " ".join(words).encode()))
        elif kind == "f":
            face = [corner for word in words if (corner := _corner(word, len(vertices))) is not None]
            if len(face) < max(len(words), 3):
                raise InputError(
                    "obj.face_malformed",
                    f"{path}:{number}: face {line[:60].strip()!r}, expected 3 or more vertices from 1; repair the file",
                )
            corners += face
            counts.append(len(face))
    if not vertices:
        raise InputError(
            "obj.no_vertices", f"{path}: no line that begins with v, expected vertices; this is not {_WHAT}"
        )
    rows = numbers_of(path, vertices, width * len(vertices)).reshape(len(vertices), width)
    columns = list(zip(POSITION, rows.T, strict=False))
    if width > 5:
        colours = rows[:, -3:]
        known = colours[np.isfinite(colours)]
        shares = reading.colour_max is None and len(known) and known.max() <= 1  # a pure red, too
        columns += zip(COLOUR, (colours * (255 if shares else 1)).T, strict=True)
    if not counts:
        return cloud_of(path, columns, reading)
    if max(corners) >= len(vertices):
        raise InputError(
            "mesh.vertex_unknown", f"{path}: a face names vertex {max(corners) + 1} of {len(vertices)}; repair the file"
        )
    points, attributes, names, _ = parted(path, columns, reading)
    return mesh_of(
        path, points, np.array(corners), np.array(counts), reading=reading, attributes=attributes, names=names
    )


def _corner(word: str, num_vertices: int) -> int | None:
    """Return the vertex, from 0, of a corner such as `7`, `7/1/3` or `-1` (the last one so far); None for another."""
    digits = word.partition("/")[0]
    if not digits.removeprefix("-").isdecimal() or len(digits) > _MAX_DIGITS:
        return None
    number = int(digits)
    place = number - 1 if number > 0 else num_vertices + number
    return place if number and place >= 0 else None
