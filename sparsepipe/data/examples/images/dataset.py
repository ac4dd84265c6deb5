"""Images as minibatches: inputs float32 [B, C, S, S], normalised by channel, targets the classes, int64 [B]."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

from ....errors import InputError
from ....util.derived import sample_seed
from ....util.io.fields import given_integer
from ....util.io.files import name_text
from ...augmentation import OF_IMAGES
from ...folder import check_indices, look_at, named_digest
from ..base import ExampleBatch
from .base import Pictures, centre_crop, fitted, resized

_PARTS = 8  # a shift is by an eighth of the side at most: 4 of CIFAR's 32 pixels, as is usual
_AREA = (0.08, 1.0)  # of a picture that a random crop keeps, as GoogLeNet was trained (Szegedy et al., CVPR 2015)
_ASPECT = (3 / 4, 4 / 3)
_TRIES = 10
# (uint8 [H, W, C] of H and W from `side`, side, draws) → uint8 [side, side, C]
Change = Callable[[np.ndarray, int, Generator], np.ndarray]

_LARGEST_SIDE = 4096


@dataclass(frozen=True, eq=False)
class ImageExamples:
    """One split. A picture's shorter side is brought to the style's margin times the network's, then the middle cut.

    So a photograph is evaluated as is usual (256 pixels for 224), and small pictures (MNIST, CIFAR) are used whole. An
    `augmentation` (a name of AUGMENTATIONS) takes the place of the cut in split train.
    """

    pictures: Pictures
    root: Path
    split: str
    seed: int = 0
    augmentation: str | None = None
    image_size: int = 0  # pixels of a side; 0: the usual one

    def __post_init__(self) -> None:
        given_integer(self.image_size, "image_size", least=0)
        if self.image_size > _LARGEST_SIDE:
            raise InputError(
                "images.size_too_large", f"image_size {self.image_size} given, expected at most {_LARGEST_SIDE}"
            )
        named_augmentation(self.augmentation)
        _ = self.labels

    @property
    def targets_are_labels(self) -> bool:
        """A picture's class is known without reading it."""
        return True

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def side(self) -> int:
        return self.image_size or self.pictures.style.image_size

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(name_text, self.pictures.classes))

    @property
    def labels(self) -> tuple[int, ...]:
        return self.pictures.labels

    @property
    def synthetic(self) -> bool:
        return False

    @property
    def size_unit(self) -> str:
        return "samples"

    @property
    def loss(self) -> str:
        return "classes"

    @property
    def facts(self) -> Mapping[str, Any]:
        channels = len(self.pictures.style.mean)
        return {"num_classes": len(self.classes), "in_channels": channels, "image_size": self.side}

    @cached_property
    def origin(self) -> dict[str, Any]:
        style = self.pictures.style
        return {
            "name": name_text(self.root.name),
            "split": self.split,
            "samples": len(self),
            "classes": list(self.classes),
            "synthetic": self.synthetic,
            "seed": self.seed,
            "image_size": self.side,
            "mean": list(style.mean),
            "deviation": list(style.deviation),
            "augmentation": self._augmentation,
            **named_digest(self.pictures.files, self.root),
        }

    @property
    def _augmentation(self) -> str | None:
        return self.augmentation if self.split == "train" else None

    def name(self, index: int) -> str:
        return name_text(self.pictures.name(index))

    def look(self) -> None:
        """Check that all files exist, without reading them."""
        look_at(self.pictures.files, self.split)

    def sample_sizes(self) -> Sequence[int]:
        return (1,) * len(self)

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
        """Read pictures as one minibatch. Raises InputError that names a file that cannot be read."""
        check_indices(indices, len(self), self.split)
        squares = np.stack([self._square(index, epoch) for index in indices])
        # `contiguous` would leave pictures of one channel in channels-last order, for which a pool copies its input.
        channels_first = torch.from_numpy(squares).permute(0, 3, 1, 2)
        inputs = channels_first.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        target = torch.tensor([self.labels[index] for index in indices], dtype=torch.int64)
        return ExampleBatch(self._normalised(inputs), target, len(indices), len(indices))

    def _square(self, index: int, epoch: int) -> np.ndarray:
        least_side = round(self.pictures.style.margin * self.side)
        picture = fitted(self.pictures.picture(index, least_side), least_side)
        change = named_augmentation(self._augmentation)
        if change is None:
            return centre_crop(picture, self.side)
        seed = sample_seed(self.seed, f"{self.pictures.name(index)}:{epoch}")
        return change(picture, self.side, np.random.default_rng(seed))

    def _normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """Bring values 0 to 255 to a mean of 0 and a deviation of 1, by the constants of the kind."""
        style = self.pictures.style
        mean, deviation = (torch.tensor(values).view(1, -1, 1, 1) for values in (style.mean, style.deviation))
        return pixels.div_(255).sub_(mean).div_(deviation)


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


AUGMENTATIONS: Mapping[str, Change] = dict(zip(OF_IMAGES, (resized_crop, shift, shift_flip), strict=True))


def named_augmentation(name: str | None) -> Change | None:
    """Return an augmentation by name, None for None. Raises InputError that lists the names."""
    if name is None:
        return None
    if name not in AUGMENTATIONS:
        raise InputError(
            "augmentation.unknown",
            f"unknown augmentation {name!r} for images, expected one of {', '.join(AUGMENTATIONS)}",
        )
    return AUGMENTATIONS[name]


def _mirrored(picture: np.ndarray, draw: Generator) -> np.ndarray:
    return picture[:, ::-1] if draw.random() < 0.5 else picture
