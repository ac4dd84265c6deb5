"""Draw points from a mesh or a cloud, seeded: the same file, seed and number give the same points."""

import numpy as np

from ..errors import InputError
from .formats import Cloud, Mesh
from .formats.base import NORMAL

_MOST_OF_A_MESH = 10**7  # points, which take about a gigabyte while they are drawn


def sample_points(content: Mesh | Cloud, num_points: int | None, *, seed: int) -> Cloud:
    """Draw `num_points` points with their attributes and labels: of a mesh by area, of a cloud without repetition.

    A cloud of fewer points gives all it has, and None all there are. Raises InputError for a mesh without area, or
    without a number.
    """
    if num_points is not None and num_points < 1:
        raise InputError(f"{num_points} points asked for, expected at least 1")
    if isinstance(content, Mesh):
        if num_points is None:
            raise InputError("all points of a mesh asked for, which has none of its own; give their number")
        if num_points > _MOST_OF_A_MESH:
            raise InputError(f"{num_points} points of a mesh asked for, expected {_MOST_OF_A_MESH} at most")
        return sample_surface(content, num_points, seed=seed)
    if num_points is None or len(content) <= num_points:
        return content
    chosen = np.random.default_rng(seed).choice(len(content), size=num_points, replace=False)
    return content.take(np.sort(chosen))


def sample_surface(mesh: Mesh, num_points: int, *, seed: int) -> Cloud:
    """Draw `num_points` points uniformly by area from `mesh`, with the normal and label of the face each lies on."""
    import trimesh  # here: a listing of data sets need not wait for it

    surface = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    area = float(surface.area)
    if not (np.isfinite(area) and area > 0):
        raise InputError(f"the mesh has an area of {area} over {len(mesh.faces)} faces, expected a surface; remove it")
    points, faces = trimesh.sample.sample_surface(surface, num_points, seed=seed)
    sides = np.diff(mesh.vertices[mesh.faces[faces]], axis=1)  # [P, 2, 3]
    normals = np.cross(sides[:, 0], sides[:, 1])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    labels = None if mesh.labels is None else mesh.labels[faces]
    return Cloud(np.asarray(points, dtype=np.float64), normals.astype(np.float32), NORMAL, labels)
