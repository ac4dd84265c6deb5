"""Seeded points of a surface or a cloud: the same file, seed and number give the same points."""

import hashlib

import numpy as np

from ..errors import InputError
from .formats import Cloud, Mesh


def sample_points(content: Mesh | Cloud, num_points: int, *, seed: int) -> np.ndarray:
    """Draw `num_points` points, float64 [P, 3]: of a mesh uniformly by area, of a cloud without repetition.

    A cloud of fewer points gives all it has. Raises InputError for a mesh without area.
    """
    if num_points < 1:
        raise InputError(f"{num_points} points asked for, expected at least 1")
    if isinstance(content, Mesh):
        return sample_surface(content, num_points, seed=seed)
    if len(content.points) <= num_points:
        return content.points
    chosen = np.random.default_rng(seed).choice(len(content.points), size=num_points, replace=False)
    return content.points[np.sort(chosen)]


def sample_surface(mesh: Mesh, num_points: int, *, seed: int) -> np.ndarray:
    """Draw `num_points` points uniformly by area from the surface of `mesh`, float64 [P, 3]."""
    import trimesh

    surface = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    area = float(surface.area)
    if not (np.isfinite(area) and area > 0):
        raise InputError(f"the mesh has an area of {area} over {len(mesh.faces)} faces, expected a surface; remove it")
    points, _ = trimesh.sample.sample_surface(surface, num_points, seed=seed)
    return np.asarray(points, dtype=np.float64)


def derived_seed(seed: int, name: str) -> int:
    """Derive a sample's own seed from the run's and its name, so that neither order nor split changes its points."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8])
