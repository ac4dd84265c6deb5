"""Draw points from a mesh or a cloud, seeded: the same file, seed and number give the same points."""

import numpy as np

from ..errors import InputError
from .formats import Cloud, Mesh
from .formats.base import NORMAL

MESH_POINTS = 1024  # of a mesh, which has no points of its own to take all of
_MOST_OF_A_MESH = 10**7  # points, which take about a gigabyte while they are drawn


def sample_points(content: Mesh | Cloud, num_points: int | None, *, seed: int) -> Cloud:
    """Draw `num_points` points with their attributes and labels: of a mesh by area, of a cloud without repetition.

    A cloud of fewer points gives all it has. None takes all points of a cloud, and MESH_POINTS of a mesh.
    Raises InputError for a mesh without area.
    """
    if num_points is not None and num_points < 1:
        raise InputError("recipe.num_points", f"{num_points} points requested, expected at least 1")
    if isinstance(content, Mesh):
        num_points = MESH_POINTS if num_points is None else num_points
        if num_points > _MOST_OF_A_MESH:
            raise InputError(
                "sampling.too_many_points",
                f"{num_points} points per mesh requested, expected at most {_MOST_OF_A_MESH}",
                num_points=num_points,
            )
        return sample_surface(content, num_points, seed=seed)
    if num_points is None or len(content) <= num_points:
        return content
    chosen = np.random.default_rng(seed).choice(len(content), size=num_points, replace=False)
    return content.take(np.sort(chosen))


def sample_surface(mesh: Mesh, num_points: int, *, seed: int) -> Cloud:
    """Draw `num_points` points uniformly by area from `mesh`, with the normal and label of the face each lies on.

    Attributes of vertices are interpolated linearly within the face.
    They are those of trimesh.sample.sample_surface, to the bit, which takes most of a second to import in each process.
    """
    corners = mesh.vertices[mesh.faces]  # [F, 3, 3]
    across = _across(corners)
    areas = np.sqrt((across**2).sum(axis=1)) / 2
    area = float(areas.sum())
    if not (np.isfinite(area) and area > 0):
        raise InputError(
            "mesh.no_area",
            f"the {len(mesh.faces)} faces of the mesh have a total area of {area}, expected more than 0; remove the "
            "file",
            area=area,
        )
    random, up_to = np.random.default_rng(seed), np.cumsum(areas)
    faces = np.searchsorted(up_to, random.random(num_points) * up_to[-1])
    # Two sides of the face, each to a share: beyond the third side lies the other half of a parallelogram, turned back.
    shares = random.random((num_points, 2, 1))
    shares[shares.sum(axis=1).reshape(-1) > 1] -= 1
    first = corners[faces, 0]
    shares = np.abs(shares)
    points = ((corners[faces, 1:] - first[:, None]) * shares).sum(axis=1) + first
    normals = across[faces] / np.linalg.norm(across[faces], axis=1, keepdims=True)
    labels = None if mesh.labels is None else mesh.labels[faces]
    if mesh.attributes is None:
        return Cloud(points, normals.astype(np.float32), NORMAL, labels)
    weights = np.concatenate([1 - shares.sum(axis=1, keepdims=True), shares], axis=1)  # [num_points, 3, 1]
    further = (mesh.attributes[mesh.faces[faces]] * weights).sum(axis=1)
    return Cloud(points, np.column_stack([normals, further]).astype(np.float32), (*NORMAL, *mesh.names), labels)


def _across(corners: np.ndarray) -> np.ndarray:
    """Return the cross product of two sides of each triangle, from its corners [F, 3, 3]: [F, 3]."""
    sides = np.diff(corners, axis=1)
    return np.cross(sides[:, 0], sides[:, 1])
