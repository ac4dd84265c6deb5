"""The settings that turn a cloud into a sample: number of points, features, voxel size."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..util.io.fields import given_integer, given_number
from .augmentation import Augmentation
from .crops import Crop
from .formats import Cloud, Reading
from .formats.base import COLOUR, INTENSITY, NORMAL, check_measured
from .sampling import MESH_POINTS
from .voxels import mean_in_voxels

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
