"""STL, binary or ascii: triangles, each with corners of its own.

trimesh's own reader leaves out a solid that is cut short, and what follows a word that is no number, in silence.
"""

from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import Mesh, decoded, miscounted, read_bytes
from .polygons import mesh_of
from .reading import AS_THEY_ARE, Reading
from .words import numbers_of

_WHAT = "an STL mesh"
_HEAD_BYTES = 84  # a title, and the number of triangles
_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_stl(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh:
    """Read an STL file: all triangles of all its solids, in their order.

    Raises InputError that names the file if it is truncated, longer than its count says, or malformed.
    """
    data = read_bytes(path, what=_WHAT)
    count = int.from_bytes(data[_HEAD_BYTES - 4 : _HEAD_BYTES], "little")
    expected = count * _TRIANGLE.itemsize
    held = len(data) - _HEAD_BYTES
    if held != expected and data.lstrip()[:5].lower() == b"solid" and b"\0" not in data:
        vertices = _ascii_corners(path, decoded(data))
    elif held < 0:
        raise InputError(
            "stl.malformed",
            f"{path}: {len(data)} bytes, expected 'solid' or a head of {_HEAD_BYTES} bytes: not {_WHAT}",
        )
    elif held != expected:
        numbers = f"{held} bytes after its head, expected {expected} for {count} triangles"
        raise miscounted(path, numbers, short=held < expected)
    elif not count:
        raise InputError("mesh.no_surface", f"{path}: 0 triangles, expected a surface to sample; remove the file")
    else:
        vertices = np.frombuffer(data, _TRIANGLE, offset=_HEAD_BYTES)["corners"].reshape(-1, 3).astype(np.float64)
    return mesh_of(
        path, vertices, np.arange(len(vertices)), np.full(len(vertices) // 3, 3, dtype=np.int64), reading=reading
    )


def _ascii_corners(path: Path, text: str) -> np.ndarray:
    """Return the corners of all triangles, one after the other: [3 F, 3]."""
    rows: list[tuple[int, bytes]] = []
    ended, open_solids = True, 0
    for number, line in enumerate(text.split("\n"), start=1):
        kind, *words = line.lower().split() or [""]
        open_solids += (kind == "solid") - (kind == "endsolid")
        if kind in ("facet", "endfacet"):
            if ended != (kind == "facet") or len(rows) % 3:
                raise InputError(
                    "stl.facet_malformed",
                    f"{path}:{number}: {line.strip()[:40]!r}, expected facets of three corners each; repair the file",
                )
            ended = kind == "endfacet"
        elif kind == "vertex":
            if len(words) != 3 or ended:
                raise InputError(
                    "stl.vertex_malformed",
                    f"{path}:{number}: {line.strip()[:60]!r}, expected 'vertex X Y Z' within a facet; repair the file",
                )
            rows.append((number, " ".join(words).encode()))
    if not ended or open_solids > 0:
        raise InputError(
            "stl.truncated", f"{path}: truncated: it ends within a solid, expected endsolid; fetch the file again"
        )
    if not rows:
        raise InputError("mesh.no_surface", f"{path}: 0 triangles, expected a surface to sample; remove the file")
    return numbers_of(path, rows, 3 * len(rows)).reshape(-1, 3)
