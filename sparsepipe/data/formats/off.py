"""OFF meshes as text, with the quirks that files in use have."""

import re
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, POSITION, Mesh, decoded, miscounted, parted, read_bytes, whole_number
from .polygons import mesh_of
from .reading import AS_THEY_ARE, Reading

# "OFF", "COFF" (colours), "NOFF" (normals), "STOFF" (texture) or combinations; some ModelNet files glue the counts on:
# "OFF490 518 0".
_KEYWORD = re.compile(r"^(?:ST)?C?N?OFF(?=[\s\d]|$)", re.IGNORECASE)
_WHAT = "an OFF mesh"


def read_off(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh:
    """Read an OFF mesh; polygons become triangles. The colours of a COFF's vertices are kept, others and normals not.

    Mends: counts glued to the keyword, no edge count, CRLF, comments, blank lines, a byte-order mark, lower case.
    Raises InputError that names file and line for everything else.
    """
    lines = _content_lines(path)
    number, first = lines[0]
    match = _KEYWORD.match(first)
    if match is None:
        raise InputError(
            "off.no_keyword", f"{path}:{number}: starts with {first[:20]!r}, expected OFF; this is not {_WHAT}"
        )
    glued = first[match.end() :].strip()
    rows = [(number, glued), *lines[1:]] if glued else lines[1:]
    num_vertices, num_faces = _counts(path, rows)
    rows = rows[1:]
    if len(rows) != num_vertices + num_faces:
        numbers = f"{len(rows)} rows, expected {num_vertices} vertices + {num_faces} faces, a row each"
        raise miscounted(path, numbers, short=len(rows) < num_vertices + num_faces)
    names = (*POSITION, *COLOUR) if match[0].upper() == "COFF" else POSITION
    columns = zip(names, _vertices(path, rows[:num_vertices], width=len(names)).T, strict=True)
    vertices, attributes, further, _ = parted(path, columns, reading)
    corners, counts = _faces(path, rows[num_vertices:])
    return mesh_of(path, vertices, corners, counts, reading=reading, attributes=attributes, names=further)


def _content_lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number, text) of every line that is left when comments and blank lines are gone."""
    data = read_bytes(path, what=_WHAT)
    text = decoded(data)
    if "\0" in text:
        raise InputError("off.binary", f"{path}: holds binary data, expected the text form of OFF; convert the file")
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    found = [(number, line) for number, line in lines if line]
    if not found:
        raise InputError(
            "file.only_comments", f"{path}: only comments, expected {_WHAT}; fetch the file again or remove it"
        )
    return found


def _counts(path: Path, rows: list[tuple[int, str]]) -> tuple[int, int]:
    if not rows:
        raise InputError(
            "off.no_counts",
            f"{path}: truncated: ends after its first line, expected vertex and face counts; fetch it again",
        )
    number, row = rows[0]
    words = row.split()
    counts = [count for word in words if (count := whole_number(word)) is not None]
    if len(words) not in (2, 3) or len(counts) < len(words):
        raise InputError(
            "off.counts_malformed",
            f"{path}:{number}: counts {row[:40]!r}, expected 'VERTICES FACES EDGES' as whole numbers",
        )
    num_vertices, num_faces = counts[:2]
    if num_vertices == 0 or num_faces == 0:
        raise InputError(
            "off.no_surface",
            f"{path}:{number}: {num_vertices} vertices and {num_faces} faces, expected a surface to sample; "
            "remove the file",
        )
    return num_vertices, num_faces


def _vertices(path: Path, rows: list[tuple[int, str]], *, width: int) -> np.ndarray:
    """Return the first `width` numbers of each row [V, width]; normals and texture coordinates may follow them."""
    words = [row.split()[:width] for _, row in rows]
    for (number, row), found in zip(rows, words, strict=True):
        if len(found) < width:
            raise InputError(
                "off.vertex_malformed",
                f"{path}:{number}: vertex {row[:40]!r}, expected {width} numbers; repair or remove the file",
            )
    return np.array(_floats(path, rows, words), dtype=np.float64).reshape(-1, width)


def _faces(path: Path, rows: list[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return all faces' corners one after the other, and how many each has; colours follow them in a row."""
    words, counts = [], []
    for number, row in rows:
        found = row.split()
        corners = whole_number(found[0])
        if corners is None or len(found) <= corners:
            raise InputError(
                "off.face_malformed", f"{path}:{number}: face {row[:40]!r}, expected a count and as many vertex indices"
            )
        words.append(found[1 : corners + 1])
        counts.append(corners)
    return np.array(_floats(path, rows, words), dtype=np.float64), np.array(counts, dtype=np.int64)


def _floats(path: Path, rows: list[tuple[int, str]], words: list[list[str]]) -> list[float]:
    try:
        return [float(word) for found in words for word in found]
    except ValueError:
        pass
    for (number, row), found in zip(rows, words, strict=True):
        try:
            [float(word) for word in found]
        except ValueError:
            raise InputError(
                "off.word_not_a_number", f"{path}:{number}: not {_WHAT}: {row[:40]!r} holds a word that is no number"
            ) from None
    raise AssertionError("a word is no number in no row")
