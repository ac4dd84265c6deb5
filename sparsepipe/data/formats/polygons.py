"""Triangulate polygons of any number of corners; each triangle knows the polygon that it is a piece of."""

import warnings
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, Mesh, check_measured, whole_labels
from .reading import Reading


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
