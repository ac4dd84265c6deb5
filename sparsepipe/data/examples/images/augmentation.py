"""Ways to change a training picture from epoch to epoch: a picture in, a square of the network's size out."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.random import Generator

from ....errors import InputError
from .decoding import centre_crop, resized

_PARTS = 8  # a shift is by an eighth of the side at most: 4 of CIFAR's 32 pixels, as is usual
_AREA = (0.08, 1.0)  # of a picture that a random crop keeps, as GoogLeNet was trained (Szegedy et al., CVPR 2015)
_ASPECT = (3 / 4, 4 / 3)
_TRIES = 10

# (uint8 [H, W, C] of H and W from `side`, side, draws) → uint8 [side, side, C]
Change = Callable[[np.ndarray, int, Generator], np.ndarray]


def resized_crop(picture: np.ndarray, side: int, draw: Generator) -> np.ndarray:
    """Cut a box of a random area and aspect, resize it to the square, mirror it every other time."""
    height, width = picture.shape[:2]
    for _ in range(_TRIES):
        area = height * width * draw.uniform(*_AREA)
        aspect = math.exp(draw.uniform(math.log(_ASPECT[0]), math.log(_ASPECT[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top, left = int(draw.integers(height - high + 1)), int(draw.integers(width - wide + 1))
            return _mirrored(resized(picture, side, side, (top, left, high, wide)), draw)
    return _mirrored(centre_crop(picture, side), draw)


def shift(picture: np.ndarray, side: int, draw: Generator) -> np.ndarray:
    """Move the picture by an eighth of its side at most; what comes in is black."""
    picture, border = centre_crop(picture, side), side // _PARTS
    wider = np.zeros((side + 2 * border, side + 2 * border, picture.shape[2]), dtype=np.uint8)
    wider[border : border + side, border : border + side] = picture
    top, left = draw.integers(2 * border + 1, size=2).tolist()
    return wider[top : top + side, left : left + side]


def shift_flip(picture: np.ndarray, side: int, draw: Generator) -> np.ndarray:
    """Move the picture, and mirror it every other time."""
    return _mirrored(shift(picture, side, draw), draw)


AUGMENTATIONS: Mapping[str, Change] = {"resized-crop": resized_crop, "shift": shift, "shift-flip": shift_flip}


def named_augmentation(name: str | None) -> Change | None:
    """Return an augmentation by name, None for None. Raises InputError that lists the names."""
    if name is None:
        return None
    if name not in AUGMENTATIONS:
        raise InputError(f"augmentation {name!r} given, expected one of {', '.join(AUGMENTATIONS)} for images")
    return AUGMENTATIONS[name]


def _mirrored(picture: np.ndarray, draw: Generator) -> np.ndarray:
    return picture[:, ::-1] if draw.random() < 0.5 else picture
