"""What every way to store images offers: pictures by index, with their classes, and constants to normalise by.

Pictures are decoded, resized and cropped with Pillow, within bounds. Arrays are uint8 [H, W, C], rows from the top.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ....errors import InputError
from ....util.io.fields import complaint
from ...formats.base import check_regular, too_large, unreadable

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM")  # whatever a file is called: ImageNet has a PNG among its JPEGs
_MOST_PIXELS = 64 * 10**6  # a photograph's, of which three bytes each are 200 MB


def decoded(path: Path, least_side: int) -> np.ndarray:
    """Read a picture in colour (transparency left away), its shorter side resized to `least_side` pixels.

    As torchvision's Resize has it: bilinear, with antialiasing, the longer side rounded down. Raises InputError that
    names the file if it is no picture, is damaged, or would take more than 64 million pixels.
    """
    from PIL import Image  # here: a listing of data sets need not wait for it

    if not check_regular(path, what="a picture"):
        raise InputError("picture.empty", f"{path}: is empty, expected a picture; fetch the file again, or remove it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata; what is too large is refused below
            with Image.open(path, formats=_FORMATS) as image:
                _check_size(path, *image.size)
                width, height = _resized(*image.size, least_side)
                _check_size(path, width, height)
                image.draft("RGB", (width, height))  # a JPEG's decoder can halve it for nothing
                return np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR))
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise _too_large(path, "more") from None
    except MemoryError:
        raise too_large(path) from None
    except Exception as error:  # Pillow's decoders raise whatever they come across in a damaged file
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the decoder's
            raise unreadable(path, error, what="a picture") from None
        raise InputError(
            "picture.unreadable",
            f"{path}: cannot be read as a picture ({complaint(error)}); remove or replace the file",
        ) from None


def resized(picture: np.ndarray, height: int, width: int, box: tuple[int, int, int, int] | None = None) -> np.ndarray:
    """Resize a picture, or a box (top, left, height, width) of it, bilinearly."""
    from PIL import Image

    grey = picture.shape[2] == 1
    image = Image.fromarray(np.ascontiguousarray(picture[..., 0] if grey else picture))
    if box is not None:
        top, left, high, wide = box
        image = image.crop((left, top, left + wide, top + high))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[..., None] if grey else array


def fitted(picture: np.ndarray, least_side: int) -> np.ndarray:
    """Return a picture with its shorter side at `least_side` pixels."""
    height, width = picture.shape[:2]
    if min(height, width) == least_side:
        return picture
    width, height = _resized(width, height, least_side)
    return resized(picture, height, width)


def centre_crop(picture: np.ndarray, side: int) -> np.ndarray:
    """Cut the middle square of a picture that is at least as large."""
    top, left = (round((length - side) / 2) for length in picture.shape[:2])
    return picture[top : top + side, left : left + side]


def _resized(width: int, height: int, least_side: int) -> tuple[int, int]:
    """Return (width, height) with the shorter side at `least_side`."""
    if width <= height:
        return least_side, int(least_side * height / width)
    return int(least_side * width / height), least_side


def _check_size(path: Path, width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise _too_large(path, f"{width} x {height}")


def _too_large(path: Path, size: str) -> InputError:
    return InputError(
        "picture.too_large",
        f"{path}: the picture has {size} pixels, expected at most {_MOST_PIXELS}; remove it, or reduce its size",
    )


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
