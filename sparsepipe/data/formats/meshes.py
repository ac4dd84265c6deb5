"""Meshes in text and binary files: OBJ, OFF and STL."""

import re
import warnings
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import (
    COLOUR,
    INTENSITY,
    POSITION,
    Cloud,
    Mesh,
    check_measured,
    cloud_of,
    decoded,
    miscounted,
    parted,
    read_bytes,
    whole_labels,
    whole_number,
)
from .reading import AS_THEY_ARE, Reading


# Triangulate polygons of any number of corners; each triangle knows the polygon that it is a piece of
def mesh_of(
    path: Path,
    vertices: np.ndarray,
    corners: np.ndarray,
    counts: np.ndarray,
    *,
    reading: Reading,
    labels: np.ndarray | None = None,
    attributes: np.ndarray | None = None,
    names: tuple[str, ...] = (),
) -> Mesh:
    """Make a mesh of a file's polygons: `counts` [N] corners each, one after the other in `corners` (vertex numbers).

    Polygons of one or two corners have no surface and are left out, as are vertices that none uses, and, if that is
    declared, polygons with a corner that was not measured. `labels` [N] are the polygons' own. Of the vertices'
    `attributes` [V, C], called `names`, colours and intensity are kept.
    Raises InputError that names the file for a corner that is no vertex, for one that is not finite, and for no face.
    """
    outside = np.flatnonzero(~((corners >= 0) & (corners < len(vertices)) & (corners == np.floor(corners))))
    if len(outside):
        raise InputError(
            "mesh.vertex_unknown",
            f"{path}: a face refers to vertex {corners[outside[0]]:g}, outside the range 0 to {len(vertices) - 1}; "
            "repair or remove the file",
        )
    corners, counts = corners.astype(np.int64), counts.astype(np.int64)
    measured = np.isfinite(vertices).all(axis=1)
    owners = np.repeat(np.arange(len(counts)), counts)
    broken = np.bincount(owners, weights=~measured[corners], minlength=len(counts)) > 0
    if broken.any():
        used = np.unique(corners)
        check_measured(path, vertices[used], measured[used], reading, what="vertex")
        corners, counts = corners[~broken[owners]], np.where(broken, 0, counts)
    faces, polygons = triangles(vertices, corners, counts)
    if not len(faces):
        raise InputError(
            "mesh.no_surface", f"{path}: no face has three corners, so there is no surface to sample; remove the file"
        )
    if not measured.all():  # of the vertices that no face uses any more
        faces, vertices = (np.cumsum(measured) - 1)[faces], vertices[measured]
    kept = [names.index(name) for name in (*COLOUR, INTENSITY) if name in names]
    further = None
    if attributes is not None and kept:
        further = attributes[:, kept] if measured.all() else attributes[measured][:, kept]
    mesh = Mesh(
        *(vertices, faces, None, polygons, len(counts), int(broken.sum())),
        *(further, tuple(names[place] for place in kept)),
    )
    return mesh if labels is None else mesh.with_labels(whole_labels(path, labels, reading))


def triangles(vertices: np.ndarray, corners: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return triangles [F, 3] in the order of their polygons, and which polygon each is of: [F].

    A convex polygon is a fan around its first corner; one that is not has its ears clipped in the plane it lies in.
    """
    starts = np.cumsum(counts) - counts
    pieces = np.maximum(counts - 2, 0)
    polygons = np.repeat(np.arange(len(counts)), pieces)
    step = np.arange(len(polygons)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + 1
    places = starts[polygons][:, None] + np.stack([np.zeros_like(step), step, step + 1], axis=1)
    faces = corners[places]
    with np.errstate(over="ignore", invalid="ignore"):
        areas = _area_vectors(vertices, faces)
        whole = np.stack([np.bincount(polygons, weights=axis, minlength=len(counts)) for axis in areas.T], axis=1)
        folded = (areas * whole[polygons]).sum(axis=1) < -1e-12 * (whole[polygons] ** 2).sum(axis=1)
    concave = np.unique(polygons[folded])
    if not len(concave):
        return faces, polygons
    clipped = [_clipped(vertices, corners[starts[n] : starts[n] + counts[n]], whole[n]) for n in concave]
    kept = ~np.isin(polygons, concave)
    polygons = np.concatenate([polygons[kept], np.repeat(concave, [len(ears) for ears in clipped])])
    order = np.argsort(polygons, kind="stable")
    return np.concatenate([faces[kept], *clipped])[order], polygons[order]


def triangle_strips(corners: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the triangles of strips as polygons: corners and counts. -1 ends a strip; every other one is turned."""
    owners = np.repeat(np.arange(len(counts)), counts)
    begins = np.ones(len(corners), dtype=bool)
    begins[1:] = (owners[1:] != owners[:-1]) | (corners[:-1] == -1)
    place = np.arange(len(corners))
    since = place - np.maximum.accumulate(np.where(begins, place, 0))  # how far into its strip each corner is
    last = np.flatnonzero((since >= 2) & (corners != -1))
    faces = np.stack([corners[last - 2], corners[last - 1], corners[last]], axis=1)
    odd = since[last] % 2 == 1
    faces[odd] = faces[odd][:, [1, 0, 2]]
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (a != c)]  # strips are joined by triangles without a surface
    return faces.reshape(-1), np.full(len(faces), 3)


def _area_vectors(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Return each triangle's normal, twice as long as its area is large: [F, 3]."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return np.cross(b - a, c - a)


def _clipped(vertices: np.ndarray, corners: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Cut one polygon into triangles [F, 3] that face as its `normal` does."""
    import mapbox_earcut  # here: most files hold no polygon that needs it

    axis = int(np.argmax(np.abs(normal)))  # the plane of two coordinates in which it is seen largest
    flat = np.delete(vertices[corners], axis, axis=1)
    flat = np.ascontiguousarray(flat - flat[0])  # far from the origin little is left of the differences
    ears = mapbox_earcut.triangulate_float64(flat, np.array([len(corners)], dtype=np.uint32))
    if not len(ears):  # it crosses itself, or has no area: the fan is as good as any
        ears = np.array([(0, place, place + 1) for place in range(1, len(corners) - 1)])
    faces = corners[ears.reshape(-1, 3).astype(np.int64)]
    turned = (_area_vectors(vertices, faces) * normal).sum(axis=1) < 0
    faces[turned] = faces[turned][:, ::-1]
    return faces


def numbers_of(path: Path, rows: list[tuple[int, bytes]], expected: int) -> np.ndarray:
    """Return all `expected` numbers of pairs (line number, line), float64. Raises InputError that names a bad line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns of a word that is no number
            numbers = np.fromstring(b" ".join(line for _, line in rows), dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        numbers = None
    if numbers is not None and len(numbers) == expected:
        return numbers
    for number, line in rows:
        for word in line.split():
            try:
                float(word)
            except ValueError:
                raise InputError(
                    "text.not_numbers",
                    f"{path}:{number}: the row is {shown(line)}, expected only numbers; repair the file",
                ) from None
    return np.array([float(word) for _, line in rows for word in line.split()])  # forms that Python alone reads


def shown(line: bytes) -> str:
    """Return the beginning of a line, fit for a message."""
    return repr(line[:40].decode("latin-1").strip())


_WHAT = "an OBJ mesh"
_MAX_DIGITS = 18  # of a vertex number


def read_obj(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh | Cloud:
    """Read an OBJ file: a mesh of its polygons, or without any the cloud of its vertices.

    Raises InputError that names file and line for a vertex or a face that is none.
    """
    text = decoded(read_bytes(path, what=_WHAT))
    if "\0" in text:
        raise InputError(
            "obj.binary", f"{path}: holds binary data, expected {_WHAT}; rename it with the suffix of its format"
        )
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
                    f"{path}:{number}: face {line[:60].strip()!r}, expected at least 3 vertex numbers from 1; repair "
                    "the file",
                )
            corners += face
            counts.append(len(face))
    if not vertices:
        raise InputError("obj.no_vertices", f"{path}: has no line that begins with v; give {_WHAT}")
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
            "mesh.vertex_unknown",
            f"{path}: a face refers to vertex {max(corners) + 1}, but there are {len(vertices)}; repair the file",
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


# "OFF", "COFF" (colours), "NOFF" (normals), "STOFF" (texture) or combinations; some ModelNet files glue the counts on:
# "OFF490 518 0".
_KEYWORD = re.compile(r"^(?:ST)?C?N?OFF(?=[\s\d]|$)", re.IGNORECASE)
_WHAT_OFF = "an OFF mesh"


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
            "off.no_keyword", f"{path}:{number}: starts with {first[:20]!r}, expected OFF; this is not {_WHAT_OFF}"
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
    data = read_bytes(path, what=_WHAT_OFF)
    text = decoded(data)
    if "\0" in text:
        raise InputError("off.binary", f"{path}: holds binary data, expected the text form of OFF; convert the file")
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    found = [(number, line) for number, line in lines if line]
    if not found:
        raise InputError(
            "file.only_comments",
            f"{path}: contains only comments, expected {_WHAT_OFF}; fetch the file again or remove it",
        )
    return found


def _counts(path: Path, rows: list[tuple[int, str]]) -> tuple[int, int]:
    if not rows:
        raise InputError(
            "off.no_counts",
            f"{path}: truncated: ends after its first line, expected vertex and face counts; fetch the file again",
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
            f"{path}:{number}: has {num_vertices} vertices and {num_faces} faces, so there is no surface to sample; "
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
                "off.word_not_a_number",
                f"{path}:{number}: not {_WHAT_OFF}: {row[:40]!r} contains a word that is not a number",
            ) from None
    raise AssertionError("a word is no number in no row")


_WHAT_STL = "an STL mesh"
_HEAD_BYTES = 84  # a title, and the number of triangles
_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_stl(path: Path, reading: Reading = AS_THEY_ARE) -> Mesh:
    """Read an STL file: all triangles of all its solids, in their order.

    Raises InputError that names the file if it is truncated, longer than its count says, or malformed.
    """
    data = read_bytes(path, what=_WHAT_STL)
    count = int.from_bytes(data[_HEAD_BYTES - 4 : _HEAD_BYTES], "little")
    expected = count * _TRIANGLE.itemsize
    held = len(data) - _HEAD_BYTES
    if held != expected and data.lstrip()[:5].lower() == b"solid" and b"\0" not in data:
        vertices = _ascii_corners(path, decoded(data))
    elif held < 0:
        raise InputError(
            "stl.malformed",
            f"{path}: has {len(data)} bytes, expected 'solid' or a header of {_HEAD_BYTES} bytes: not {_WHAT_STL}",
        )
    elif held != expected:
        numbers = f"{held} bytes after its head, expected {expected} for {count} triangles"
        raise miscounted(path, numbers, short=held < expected)
    elif not count:
        raise InputError(
            "mesh.no_surface", f"{path}: has no triangles, so there is no surface to sample; remove the file"
        )
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
                    f"{path}:{number}: the line is {line.strip()[:40]!r}, expected facets with three corners each; "
                    "repair the file",
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
        raise InputError("stl.truncated", f"{path}: truncated: the last solid has no endsolid; fetch the file again")
    if not rows:
        raise InputError(
            "mesh.no_surface", f"{path}: has no triangles, so there is no surface to sample; remove the file"
        )
    return numbers_of(path, rows, 3 * len(rows)).reshape(-1, 3)
