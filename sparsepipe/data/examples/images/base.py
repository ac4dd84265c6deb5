"""What every way to store images offers: pictures by index, with their classes, and constants to normalise by."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Style:
    """Preprocessing of a kind of images. `mean` and `deviation` refer to channels with values from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    image_size: int  # pixels of a side, unless asked otherwise
    margin: float = 1.0  # a picture's shorter side before the middle is cut, over the side of what is cut


class Pictures(Protocol):
    """One split of a set of images."""

    @property
    def style(self) -> Style: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> tuple[int, ...]: ...

    @property
    def files(self) -> Sequence[Path]:
        """All files of the split."""
        ...

    def name(self, index: int) -> str:
        """A picture's name inside the data set, the same on every machine: it decides how the picture is augmented."""
        ...

    def file(self, index: int) -> Path:
        """The file that holds a picture."""
        ...

    def picture(self, index: int, least_side: int) -> np.ndarray:
        """Read one: uint8 [H, W, C]; what has a file of its own is decoded to a shorter side of `least_side` pixels.

        Raises InputError that names a file that cannot be read.
        """
        ...
