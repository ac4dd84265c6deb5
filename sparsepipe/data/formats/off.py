"""OFF meshes: trimesh reads them; their quirks are mended, and their counts checked, before it sees them."""

import io
import re
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import Mesh, check_finite, one_line, read_bytes, whole_number
from .reading import AS_THEY_ARE, Reading

# "OFF", "COFF" (colours), "NOFF" (normals), "STOFF" (texture) or combinations; some ModelNet files glue the counts on:
# "OFF490 518 0".
_KEYWORD = re.compile(r"^(?:ST)?C?N?OFF(?=[\s\d]|$)", re.IGNORECASE)
_WHAT = "an OFF mesh"


def read_off(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh:
    """Read an OFF mesh; polygons become triangles, colours and normals are dropped.

    Mends: counts glued to the keyword, no edge count, CRLF, comments, blank lines, a byte-order mark, lower case.
    Raises InputError that names file and line for everything else.
    """
    import trimesh  # here: a listing of data sets need not wait for it

    lines = _content_lines(path)
    number, first = lines[0]
    match = _KEYWORD.match(first)
    if match is None:
        raise InputError(f"{path}:{number}: starts with {first[:20]!r}, expected OFF; this is not {_WHAT}")
    glued = first[match.end() :].strip()
    rows = [(number, glued), *lines[1:]] if glued else lines[1:]
    num_vertices, num_faces = _counts(path, rows)
    rows = rows[1:]
    if len(rows) != num_vertices + num_faces:
        state = "truncated" if len(rows) < num_vertices + num_faces else "longer than its header says"
        raise InputError(
            f"{path}: {state}: {len(rows)} rows, expected {num_vertices} vertices + {num_faces} faces; "
            "fetch the file again"
        )
    vertices, faces = rows[:num_vertices], _faces(path, rows[num_vertices:])
    for number, row in vertices:
        if len(row.split()) < 3:
            raise InputError(f"{path}:{number}: vertex {row[:40]!r}, expected 3 numbers; repair or remove the file")
    text = "\n".join(["OFF", f"{num_vertices} {len(faces)} 0", *(row for _, row in vertices), *faces, ""])
    try:
        # process=False: vertices stay as they are, none merged
        mesh = trimesh.load_mesh(io.StringIO(text), file_type="off", process=False)
        vertices, faces = np.asarray(mesh.vertices, dtype=np.float64), np.asarray(mesh.faces, dtype=np.int64)
    except (ValueError, IndexError, OverflowError) as error:
        raise InputError(f"{path}: not {_WHAT} ({one_line(error)}); repair or remove the file") from None
    check_finite(path, vertices, what="vertex")
    return Mesh(vertices, faces)


def _content_lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number, text) of every line that is left when comments and blank lines are gone."""
    data = read_bytes(path, what=_WHAT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # comments in the author's own encoding; numbers read the same
    if "\0" in text:
        raise InputError(f"{path}: holds binary data, expected the text form of OFF; convert the file")
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    found = [(number, line) for number, line in lines if line]
    if not found:
        raise InputError(f"{path}: only comments, expected {_WHAT}; fetch the file again or remove it")
    return found


def _counts(path: Path, rows: list[tuple[int, str]]) -> tuple[int, int]:
    if not rows:
        raise InputError(
            f"{path}: truncated: ends after its first line, expected vertex and face counts; fetch it again"
        )
    number, row = rows[0]
    counts = [whole_number(word) for word in row.split()]
    if len(counts) not in (2, 3) or None in counts:
        raise InputError(f"{path}:{number}: counts {row[:40]!r}, expected 'VERTICES FACES EDGES' as whole numbers")
    num_vertices, num_faces = counts[:2]
    if num_vertices == 0 or num_faces == 0:
        raise InputError(
            f"{path}:{number}: {num_vertices} vertices and {num_faces} faces, expected a surface to sample; "
            "remove the file"
        )
    return num_vertices, num_faces


def _faces(path: Path, rows: list[tuple[int, str]]) -> list[str]:
    """Check each face row against its own count. Faces of one or two corners have no surface and are left out."""
    faces = []
    for number, row in rows:
        words = row.split()
        corners = whole_number(words[0])
        if corners is None or len(words) <= corners:
            raise InputError(f"{path}:{number}: face {row[:40]!r}, expected a count and as many vertex indices")
        if corners >= 3:
            faces.append(row)
    if not faces:
        raise InputError(f"{path}: no face has three corners, expected a surface to sample; remove the file")
    return faces
