"""Crops of scenes: a random one for each sample and epoch of training; in evaluation as many as cover the scene.

A crop is the part of a scene around a centre. In training the centre is a random point. In evaluation the scene is
divided into cells, and each cell with points gives a crop around its centre. With `overlap`, crops extend into the
neighbouring cells. Points in several crops get several votes (predicted_points.py).

    cuboid:size=4      a cube of that edge           column:size=4     the same, over the whole height: part of a room
    sphere:radius=2    points within that distance
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from ..errors import InputError
from ..util.io.options import split_options, typed, with_options, written_options
from .voxels import unique_rows

_MOST_CELLS = 2**16  # of a scene: more are crops of a few points each


@dataclass(frozen=True)
class Crop(ABC):
    """A kind of crop. `overlap` is the share of a crop outside its own cell, in evaluation."""

    name: ClassVar[str]
    first: ClassVar[str]  # the option that may be given without its name

    @property
    @abstractmethod
    def step(self) -> float:
        """Return the edge of a cell in metres."""

    @property
    @abstractmethod
    def axes(self) -> int:
        """Return how many axes the crop is limited along: 2 without the height."""

    @abstractmethod
    def _inside(self, offsets: np.ndarray) -> np.ndarray:
        """Return which of the points are in the crop: bool [P], from their offsets [P, axes] from its centre."""

    def random_rows(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """Return the rows of the points [P, 3] in a crop around a random one, which is among them."""
        centre = points[rng.integers(len(points)), : self.axes]
        return np.flatnonzero(self._inside(points[:, : self.axes] - centre))

    def cells(self, points: np.ndarray) -> np.ndarray:
        """Return the cells of a scene that have points: int64 [K, axes], in lexicographic order.

        Raises InputError if they are too many to be meant.
        """
        cells = unique_rows(self._cells_of(points))[0]
        if len(cells) > _MOST_CELLS:
            raise InputError(
                "crop.too_many",
                f"crop {self} divides a scene of {len(points)} points into {len(cells)} crops; use a larger crop",
                crop=str(self),
            )
        return cells

    def rows(self, points: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Return the rows of the points [P, 3] in the crop of a cell: all points of the cell are among them."""
        offsets = points[:, : self.axes] - points[:, : self.axes].min(axis=0) - (cell + 0.5) * self.step
        return np.flatnonzero(self._inside(offsets) | (self._cells_of(points) == cell).all(axis=1))

    def _cells_of(self, points: np.ndarray) -> np.ndarray:
        places = points[:, : self.axes]
        cells: np.ndarray = np.floor((places - places.min(axis=0)) / self.step).astype(np.int64)
        return cells

    def __str__(self) -> str:
        return written_options(self.name, self)


def _check(crop: str, length: str, value: object, overlap: object) -> None:
    for name, number, below in ((length, value, 1e6), ("overlap", overlap, 1.0)):
        real = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < below
        if not real or (name == length and number == 0):
            expected = "a length in metres above 0" if name == length else "a share from 0, below 1"
            raise InputError("crop.out_of_range", f"crop {crop}: {name} is {number!r}, expected {expected}", name=name)


@dataclass(frozen=True)
class Cuboid(Crop):
    """A cube of the edge `size`."""

    size: float
    overlap: float = 0.0
    name: ClassVar[str] = "cuboid"
    first: ClassVar[str] = "size"

    def __post_init__(self) -> None:
        _check(self.name, "size", self.size, self.overlap)

    @property
    def step(self) -> float:
        return self.size * (1 - self.overlap)

    @property
    def axes(self) -> int:
        return 3

    def _inside(self, offsets: np.ndarray) -> np.ndarray:
        inside: np.ndarray = (np.abs(offsets) <= self.size / 2).all(axis=1)
        return inside


@dataclass(frozen=True)
class Column(Cuboid):
    """A square of the edge `size` over the whole height, as rooms are cut into blocks."""

    name: ClassVar[str] = "column"

    @property
    def axes(self) -> int:
        return 2


@dataclass(frozen=True)
class Sphere(Crop):
    """The points within `radius`. A cell is the cube that the sphere holds."""

    radius: float
    overlap: float = 0.0
    name: ClassVar[str] = "sphere"
    first: ClassVar[str] = "radius"

    def __post_init__(self) -> None:
        _check(self.name, "radius", self.radius, self.overlap)

    @property
    def step(self) -> float:
        return 2 * self.radius / 3**0.5 * (1 - self.overlap)

    @property
    def axes(self) -> int:
        return 3

    def _inside(self, offsets: np.ndarray) -> np.ndarray:
        inside: np.ndarray = (offsets**2).sum(axis=1) <= self.radius**2
        return inside


CROPS: Mapping[str, type[Crop]] = {kind.name: kind for kind in (Cuboid, Column, Sphere)}


def named_crop(given: Crop | str | None) -> Crop | None:
    """Return the crop that text such as "sphere:radius=2,overlap=0.5" says, or the one given.

    Raises InputError that lists the kinds for an unknown one, and for options that it does not have.
    """
    if not isinstance(given, str):
        return given
    name = given.partition(":")[0].strip()
    if name not in CROPS:
        raise InputError("crop.unknown", f"unknown crop {name!r}, expected one of {', '.join(CROPS)}", given=given)
    _, options = split_options(given, "crop", first={name: CROPS[name].first})
    values: dict[str, Any] = {option: typed(value) for option, value in options.items()}
    return with_options(CROPS[name], values, f"crop {name}")
