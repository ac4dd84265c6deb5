"""The settings that turn a cloud into a sample: number of points, features, voxel size.

Points are drawn from a mesh or a cloud, seeded: the same file, seed and number give the same points.

An `Address` says where the voxels of one sample lie in its file, and which of them each of the file's points is in.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..util.io.fields import given_integer, given_number
from .augmentation import Augmentation
from .crops import Crop
from .formats import Cloud, Mesh, Reading
from .formats.base import COLOUR, INTENSITY, NORMAL, check_measured
from .voxels import mean_in_voxels

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


OCCUPANCY = "occupancy"
ALL = "all"  # of a cloud's points
FEATURES: dict[str, tuple[str, ...]] = {  # name: the columns of a cloud it stands for
    OCCUPANCY: (),
    "normals": NORMAL,
    "colours": COLOUR,
    INTENSITY: (INTENSITY,),
}


@dataclass(frozen=True)
class Recipe:
    """The settings that decide a sample's voxels, and so the key under which it is cached.

    `num_points` is the most points that are taken of a cloud, drawn by `seed`, and the number sampled from a mesh.
    "all", or None, takes every point of a cloud and samples MESH_POINTS from a mesh. `features` are of FEATURES:
    `occupancy` is 1 in every voxel, the others are means over a voxel's points, colours scaled to 0 to 1. `crop`: the
    part of a scene that a sample is. `views`: how many times an evaluated cloud comes, turned a step further about z.
    Raises InputError for a setting out of its range.
    """

    voxel_size: float
    num_points: int | str | None = ALL
    seed: int = 0
    features: tuple[str, ...] = (OCCUPANCY,)
    augmentation: Augmentation | None = None
    crop: Crop | None = None
    views: int = 1

    def __post_init__(self) -> None:
        given_number(self.voxel_size, "voxel size")
        if not (math.isfinite(self.voxel_size) and self.voxel_size > 0):
            raise InputError(
                "voxels.size_out_of_range",
                f"voxel size {self.voxel_size} given, expected a positive number such as 0.02",
            )
        if self.num_points is None:  # as records wrote it
            object.__setattr__(self, "num_points", ALL)
        if self.most_points is not None:
            given_integer(self.most_points, "points a sample:")
        given_integer(self.seed, "seed")
        if self.most_points is not None and self.most_points < 1:
            raise InputError(
                "recipe.num_points", f"{self.num_points} points per sample given, expected at least 1, or {ALL!r}"
            )
        if self.seed < 0:
            raise InputError("seed.negative", f"seed {self.seed} given, expected 0 or more")
        given_integer(self.views, "views", least=1)
        unknown = [name for name in self.features if name not in FEATURES]
        if unknown or not self.features or len(set(self.features)) != len(self.features):
            given = ", ".join(unknown or self.features) or "none"
            text = f"{{features}} {given} given, expected some of {', '.join(FEATURES)}, each once"
            raise InputError("recipe.features_malformed", text, setting="features")

    @property
    def in_channels(self) -> int:
        """Count the columns of a sample's features."""
        return sum(max(1, len(FEATURES[name])) for name in self.features)

    @property
    def most_points(self) -> int | None:
        """The most points that are taken of a cloud, None for all."""
        return None if self.num_points == ALL else self.num_points  # type: ignore[return-value]  # a number is left

    def facts(self) -> dict[str, object]:
        """Return the settings, ready for JSON, with the points of a mesh if no number was asked for.

        Crop and views only if they change something: digests of earlier versions stay.
        """
        settings = asdict(replace(self, augmentation=None, crop=None)) | {"features": list(self.features)}
        settings["augmentation"] = None if self.augmentation is None else self.augmentation.to_json()
        settings["crop"] = None if self.crop is None else str(self.crop)
        for name, without in (("crop", None), ("views", 1)):
            if settings[name] == without:
                del settings[name]
        return settings | ({"mesh_points": MESH_POINTS} if self.most_points is None else {})

    def measured(self, cloud: Cloud, path: Path, reading: Reading) -> Cloud:
        """Return the points of which all these features were measured.

        Raises InputError that names the file if some lack one and it is not declared that they are left out.
        """
        wanted = [column for name in self.features for column in FEATURES[name]]
        places = _places(cloud.names, wanted)
        if not wanted or places is None or cloud.attributes is None:
            return cloud
        rows = cloud.attributes[:, places]
        measured = np.isfinite(rows).all(axis=1)
        if measured.all():
            return cloud
        check_measured(path, rows, measured, reading, what=f"{', '.join(wanted)} of point")
        return cloud.take(measured)

    def voxel_features(self, cloud: Cloud, index: np.ndarray, num_voxels: int) -> np.ndarray:
        """Return each voxel's features, float32 [V, C]. Raises InputError if the cloud lacks one of them."""
        columns = [self._columns(cloud, name, index, num_voxels) for name in self.features]
        return np.concatenate(columns, axis=1)

    def _columns(self, cloud: Cloud, name: str, index: np.ndarray, num_voxels: int) -> np.ndarray:
        if name == OCCUPANCY:
            return np.ones((num_voxels, 1), dtype=np.float32)
        places = _places(cloud.names, FEATURES[name])
        if cloud.attributes is None or places is None:
            raise InputError(
                "recipe.feature_missing",
                f"has no feature {name}, only {', '.join(cloud.names) or 'points'}; choose other features",
            )
        scale = 255 if FEATURES[name] == COLOUR else 1
        return mean_in_voxels(cloud.attributes[:, places] / scale, index, num_voxels)


def _places(names: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    return [names.index(name) for name in wanted] if set(wanted) <= set(names) else None


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
