"""Where the voxels of one sample lie in its file, and which of them each of the file's points is in."""

from dataclasses import dataclass

import numpy as np

from .formats import Cloud, Mesh

NOT_USED = -1  # of a point that is in no voxel of its sample


@dataclass(frozen=True, eq=False)
class Address:
    """The voxels of one sample: `coordinates` int32 [V, D], and the row of these of each of the file's points.

    The middle of voxel c is at `origin` + (c + 0.5) * `edge`, in the file's own units. `voxel_of` int64 [P] has
    NOT_USED for points that were not drawn or not measured, and for all vertices of a mesh, whose points are sampled.
    """

    coordinates: np.ndarray
    origin: np.ndarray
    edge: float
    voxel_of: np.ndarray


def number_of_points(content: Mesh | Cloud) -> int:
    """Return how many points a file has, those that were not measured among them; of a mesh, vertices."""
    if isinstance(content, Mesh):
        return len(content.vertices)
    return len(content) if content.measured is None else len(content.measured)
