"""Data augmentation of point clouds: drawn again for each sample and epoch, the same for the same seed."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from ..errors import InputError
from .formats import Cloud
from .formats.base import COLOUR, NORMAL
from .voxels import unique_rows

_CORNERS = np.array(list(np.ndindex(2, 2, 2)))  # of a grid cell
_LATER = ("flip", "colour_jitter", "colour_drop", "mix")  # settings that earlier versions had not
_NEIGHBOURS = np.array(list(np.ndindex(3, 3, 3))) - 1  # of a grid point, itself among them


@dataclass(frozen=True)
class Augmentation:
    """Configure random changes of clouds; none by default. Lengths are cube sides, or metres for scans.

    Attributes:
        rotation: Turn about the z axis, at most so many degrees either way.
        tilt: Turn about a random horizontal axis, in degrees, likewise.
        scale: Smallest and largest factor.
        jitter: Standard deviation of each coordinate, cut at three of it.
        dropout: Largest share of points left out.
        elastic: Pairs (spacing, magnitude) of smooth random displacements, one after another (as for scans in Choy et
            al., 4D Spatio-Temporal ConvNets, CVPR 2019).
        in_cube: Whether what left the unit cube is shrunk and moved back, as dense grids need, which end there.
        flip: Probability of a mirror image, along x and along y.
        colour_jitter: Standard deviation of each colour, as a share of full brightness.
        colour_drop: Probability that a cloud loses its colours.
        mix: Probability that another cloud of the split, changed too, is put on top (Nekrasov et al., Mix3D, 3DV 2021);
            for classes of points alone.

    Raises:
        InputError: A setting out of its range.

    Example:
        >>> changes = sp.data.Augmentation(rotation=45, scale=(0.9, 1.1), flip=0.5)
        >>> sp.data.Augmentation.from_json(changes.to_json()) == changes
        True

    See also:
        guides/scenes, `data.load`
    """

    rotation: float = 0.0
    tilt: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    jitter: float = 0.0
    dropout: float = 0.0
    elastic: tuple[tuple[float, float], ...] = ()
    in_cube: bool = False
    flip: float = 0.0
    colour_jitter: float = 0.0
    colour_drop: float = 0.0
    mix: float = 0.0

    def __post_init__(self) -> None:
        bounds: dict[str, float] = {"rotation": 180, "tilt": 180, "jitter": math.inf, "dropout": 1}
        for name, most in (bounds | dict.fromkeys(_LATER, 1)).items():
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= most or (name == "dropout" and value == 1):
                bound = "at least 0" if most == math.inf else f"from 0 to {most}"
                raise InputError(
                    "augmentation.out_of_range",
                    f"{name} {value!r} given, expected a number {bound}{', below 1' * (name == 'dropout')}",
                )
        if not _is_pair(self.scale) or not 0 < self.scale[0] <= self.scale[1]:
            raise InputError(
                "augmentation.scale_malformed",
                f"scale {self.scale!r} given, expected a pair of factors (smallest, largest) above 0",
            )
        if not isinstance(self.elastic, tuple) or not all(_is_pair(e) and e[0] > 0 and e[1] >= 0 for e in self.elastic):
            raise InputError(
                "augmentation.elastic_malformed",
                f"elastic {self.elastic!r} given, expected pairs (spacing, magnitude), spacing above 0",
            )
        if not isinstance(self.in_cube, bool):
            raise InputError(
                "augmentation.in_cube_malformed", f"in_cube {self.in_cube!r} given, expected true or false"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON. Settings of later versions are included only if they change something."""
        return {name: value for name, value in asdict(self).items() if value or name not in _LATER}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Augmentation":
        """Read the output of `to_json`. Raises InputError for an unknown setting."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise InputError(
                "augmentation.option_unknown",
                f"unknown augmentation {unknown[0]!r}, expected some of {', '.join(sorted(known))}",
            )
        return cls(**{name: _as_tuple(value) for name, value in document.items()})

    def apply(self, cloud: Cloud, *, seed: int) -> Cloud:
        """Return the changed cloud. Labels and attributes stay with their points; normals are rotated."""
        rng = np.random.default_rng(seed)
        cloud = self._thinned(cloud, rng)
        points = cloud.points
        for spacing, magnitude in self.elastic:
            points = points + magnitude * _smooth_field(points, spacing, rng)
        turn = self._rotation(rng)
        if self.flip:
            turn = turn @ np.diag([*np.where(rng.random(2) < self.flip, -1.0, 1.0), 1.0])
        centre = (points.min(axis=0) + points.max(axis=0)) / 2
        points = (points - centre) @ turn.T * rng.uniform(*self.scale) + centre
        if self.jitter:
            points = points + self.jitter * rng.standard_normal(points.shape).clip(-3, 3)
        if self.in_cube:
            points = into_cube(points)
        return self._recoloured(Cloud(points, _turned(cloud, turn), cloud.names, cloud.labels), rng)

    def _recoloured(self, cloud: Cloud, rng: Generator) -> Cloud:
        """Change the colours of a cloud that has some."""
        if not (self.colour_jitter or self.colour_drop) or cloud.attributes is None:
            return cloud
        places = [place for place, name in enumerate(cloud.names) if name in COLOUR]
        attributes = cloud.attributes.copy()
        if self.colour_jitter:
            noise = 255 * self.colour_jitter * rng.standard_normal((len(cloud), len(places)))
            attributes[:, places] = (attributes[:, places] + noise).clip(0, 255)
        if rng.random() < self.colour_drop:
            attributes[:, places] = 0
        return replace(cloud, attributes=attributes)

    def _thinned(self, cloud: Cloud, rng: Generator) -> Cloud:
        """Leave a random share of points out, never all."""
        if not self.dropout:
            return cloud
        kept = rng.random(len(cloud)) >= rng.uniform(0, self.dropout)
        kept[rng.integers(len(cloud))] = True
        return cloud.take(np.flatnonzero(kept))

    def _rotation(self, rng: Generator) -> np.ndarray:
        """Draw a turn about z followed by a tilt about a horizontal axis: float64 [3, 3]."""
        heading, tilt = np.deg2rad([rng.uniform(-self.rotation, self.rotation), rng.uniform(-self.tilt, self.tilt)])
        axis = rng.uniform(0, 2 * np.pi)
        return _about_z(axis) @ _about_x(tilt) @ _about_z(-axis) @ _about_z(heading)


def named_augmentation(given: "Augmentation | str | None") -> Augmentation | None:
    """Return the augmentation that a name stands for, or several joined by "+", or the one given.

    A later name decides what an earlier one sets, too. Raises InputError that lists the names.
    """
    if not isinstance(given, str):
        return given
    names = [name.strip() for name in given.split("+")]
    if unknown := [name for name in names if name not in AUGMENTATIONS]:
        raise InputError(
            "augmentation.unknown",
            f"unknown augmentation {unknown[0]!r}, expected one of {', '.join(AUGMENTATIONS)}, or several joined by +",
            given=given,
        )
    usual = Augmentation()
    changes = [{item.name: getattr(AUGMENTATIONS[name], item.name) for item in fields(usual)} for name in names]
    chosen = {key: value for each in changes for key, value in each.items() if value != getattr(usual, key)}
    return Augmentation(**chosen)


def is_combination(text: str) -> bool:
    """Return whether text is several names of augmentations of clouds, such as "scans+flip"."""
    return "+" in text and all(name.strip() in AUGMENTATIONS for name in text.split("+"))


def turned_about_z(cloud: Cloud, degrees: float) -> Cloud:
    """Return the cloud turned about the upright axis through its middle; normals turn with it."""
    turn = _about_z(math.radians(degrees))
    centre = (cloud.points.min(axis=0) + cloud.points.max(axis=0)) / 2
    return replace(cloud, points=(cloud.points - centre) @ turn.T + centre, attributes=_turned(cloud, turn))


def into_cube(points: np.ndarray) -> np.ndarray:
    """Scale a cloud longer than the unit cube down to it, then move it into the cube by the shortest way."""
    low = points.min(axis=0)
    points = low + (points - low) / max(1, np.ptp(points, axis=0).max())
    points = points - low.clip(max=0) - (points.max(axis=0) - 1).clip(min=0)
    return points.clip(0, 1)  # of what rounding leaves outside


def _turned(cloud: Cloud, turn: np.ndarray) -> np.ndarray | None:
    if cloud.attributes is None or not set(NORMAL) <= set(cloud.names):
        return cloud.attributes
    places = [cloud.names.index(name) for name in NORMAL]
    attributes = cloud.attributes.copy()
    attributes[:, places] = attributes[:, places] @ turn.T
    return attributes


def _smooth_field(points: np.ndarray, spacing: float, rng: Generator) -> np.ndarray:
    """Return random displacements [P, 3] of about unit size that change smoothly over `spacing`.

    Normal noise on a grid, each grid point with its 26 neighbours' added, brought back to unit deviation and
    interpolated linearly. Only grid points near the cloud are made: scans fill little of their box.
    """
    position = (points - points.min(axis=0)) / spacing
    if position.max() > 2**20:
        raise InputError(
            "augmentation.spacing_too_small",
            f"elastic spacing {spacing} is below a millionth of the cloud's extent; use a larger one",
            spacing=spacing,
        )
    cell = np.floor(position).astype(np.int64)
    share = (position - cell)[:, None]
    weights = np.where(_CORNERS, share, 1 - share).prod(axis=2)  # [P, 8]
    nodes, corner = unique_rows((cell[:, None] + _CORNERS).reshape(-1, 3))
    sources, neighbour = unique_rows((nodes[:, None] + _NEIGHBOURS).reshape(-1, 3))
    noise = rng.standard_normal((len(sources), 3))
    smooth = noise[neighbour].reshape(len(nodes), len(_NEIGHBOURS), 3).sum(axis=1) / math.sqrt(len(_NEIGHBOURS))
    return (weights[..., None] * smooth[corner].reshape(len(points), len(_CORNERS), 3)).sum(axis=1)


def _about_z(angle: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def _about_x(angle: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_number(v) and math.isfinite(v) for v in value)


def _as_tuple(value: object) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, (list, tuple)) else value


OF_IMAGES = ("resized-crop", "shift", "shift-flip")  # examples/images/dataset.py has what they do
_ELASTIC = ((0.2, 0.4), (0.8, 1.6))
AUGMENTATIONS = {  # by name: what is usual for objects and for scans, and for objects on a dense grid
    "shapes": Augmentation(rotation=180, scale=(0.8, 1.25), jitter=0.005, dropout=0.3),
    "scans": Augmentation(rotation=180, tilt=3, scale=(0.9, 1.1), dropout=0.2, elastic=_ELASTIC),
    "shapes-in-cube": Augmentation(rotation=180, scale=(0.64, 1.0), jitter=0.005, dropout=0.3, in_cube=True),
    "rotate-z": Augmentation(rotation=180),  # one change each, to be joined by "+"
    "tilt": Augmentation(tilt=3),
    "scale": Augmentation(scale=(0.9, 1.1)),
    "flip": Augmentation(flip=0.5),
    "jitter": Augmentation(jitter=0.005),
    "dropout": Augmentation(dropout=0.2),
    "elastic": Augmentation(elastic=_ELASTIC),
    "colour-jitter": Augmentation(colour_jitter=0.05),
    "colour-drop": Augmentation(colour_drop=0.2),
    "mix3d": Augmentation(mix=0.8),
}
