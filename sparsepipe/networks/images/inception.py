"""Inception v3: branches of different kernels side by side, large kernels split into rows and columns.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2016), table 1 and figures 5 to 10; an
auxiliary classifier behind the last 17 x 17 grid, in training alone.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..rows import scaled
from .chains import check_size

_EPSILON = 0.001  # of batch norms
_LEAST, _LEAST_AUXILIARY = 75, 299  # pixels along each side


class InceptionOutputs(NamedTuple):
    """Outputs of Inception v3 in training: logits [B, num_classes] of its classifier and of the auxiliary one."""

    logits: Tensor
    auxiliary_logits: Tensor


class Branches(nn.Module):
    """Runs several modules on the same input and concatenates their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _convolution(
    in_channels: int, channels: int, kernel: int | tuple[int, int], *, stride: int = 1, padded: bool = True
) -> nn.Sequential:
    """Convolution, batch norm, ReLU; padded: so that stride 1 keeps the size."""
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (rows // 2, columns // 2) if padded else 0
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(channels, eps=_EPSILON),
        nn.ReLU(),
    )


def _pooled(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _convolution(in_channels, channels, 1))


_Widths = Callable[[int], int]


def _grid_35(w: _Widths, in_channels: int, pooled: int) -> tuple[nn.Module, int]:
    """Figure 5; returns the module and the number of its output channels."""
    branches = Branches(
        _convolution(in_channels, w(64), 1),
        nn.Sequential(_convolution(in_channels, w(48), 1), _convolution(w(48), w(64), 5)),
        nn.Sequential(
            _convolution(in_channels, w(64), 1), _convolution(w(64), w(96), 3), _convolution(w(96), w(96), 3)
        ),
        _pooled(in_channels, w(pooled)),
    )
    return branches, w(64) + w(64) + w(96) + w(pooled)


def _to_17(w: _Widths, in_channels: int) -> tuple[nn.Module, int]:
    """Figure 10: half the size, without a representational bottleneck."""
    branches = Branches(
        _convolution(in_channels, w(384), 3, stride=2, padded=False),
        nn.Sequential(
            _convolution(in_channels, w(64), 1),
            _convolution(w(64), w(96), 3),
            _convolution(w(96), w(96), 3, stride=2, padded=False),
        ),
        nn.MaxPool2d(3, stride=2),
    )
    return branches, w(384) + w(96) + in_channels


def _grid_17(w: _Widths, in_channels: int, inner: int) -> tuple[nn.Module, int]:
    """Figure 6: 7 x 7 as 1 x 7 and 7 x 1, once and twice."""
    n = w(inner)
    branches = Branches(
        _convolution(in_channels, w(192), 1),
        nn.Sequential(_convolution(in_channels, n, 1), _convolution(n, n, (1, 7)), _convolution(n, w(192), (7, 1))),
        nn.Sequential(
            _convolution(in_channels, n, 1),
            _convolution(n, n, (7, 1)),
            _convolution(n, n, (1, 7)),
            _convolution(n, n, (7, 1)),
            _convolution(n, w(192), (1, 7)),
        ),
        _pooled(in_channels, w(192)),
    )
    return branches, 4 * w(192)


def _to_8(w: _Widths, in_channels: int) -> tuple[nn.Module, int]:
    n = w(192)
    branches = Branches(
        nn.Sequential(_convolution(in_channels, n, 1), _convolution(n, w(320), 3, stride=2, padded=False)),
        nn.Sequential(
            _convolution(in_channels, n, 1),
            _convolution(n, n, (1, 7)),
            _convolution(n, n, (7, 1)),
            _convolution(n, n, 3, stride=2, padded=False),
        ),
        nn.MaxPool2d(3, stride=2),
    )
    return branches, w(320) + n + in_channels


def _grid_8(w: _Widths, in_channels: int) -> tuple[nn.Module, int]:
    """Figure 7: the last kernels side by side, not one behind the other."""
    n = w(384)
    branches = Branches(
        _convolution(in_channels, w(320), 1),
        nn.Sequential(_convolution(in_channels, n, 1), _rows_and_columns(n)),
        nn.Sequential(_convolution(in_channels, w(448), 1), _convolution(w(448), n, 3), _rows_and_columns(n)),
        _pooled(in_channels, w(192)),
    )
    return branches, w(320) + 4 * n + w(192)


def _rows_and_columns(channels: int) -> Branches:
    return Branches(_convolution(channels, channels, (1, 3)), _convolution(channels, channels, (3, 1)))


def _auxiliary(w: _Widths, in_channels: int, num_classes: int) -> nn.Sequential:
    """Section 4: what is learned from the 17 x 17 grid regularises the layers before it."""
    return nn.Sequential(
        nn.AvgPool2d(5, stride=3),
        _convolution(in_channels, w(128), 1),
        _convolution(w(128), w(768), 5, padded=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(w(768), num_classes),
    )


class InceptionV3(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]; in training InceptionOutputs, unless told not to."""

    def __init__(self, *, num_classes: int, in_channels: int, auxiliary: bool, width: float) -> None:
        super().__init__()

        def w(channels: int) -> int:
            return scaled(channels, width)

        self.stem = nn.Sequential(
            _convolution(in_channels, w(32), 3, stride=2, padded=False),
            _convolution(w(32), w(32), 3, padded=False),
            _convolution(w(32), w(64), 3),
            nn.MaxPool2d(3, stride=2),
            _convolution(w(64), w(80), 1),
            _convolution(w(80), w(192), 3, padded=False),
            nn.MaxPool2d(3, stride=2),
        )
        channels = w(192)
        to_17, to_8 = [], []
        grids: tuple[Callable[[int], tuple[nn.Module, int]], ...] = (
            *(partial(_grid_35, w, pooled=pooled) for pooled in (32, 64, 64)),
            partial(_to_17, w),
            *(partial(_grid_17, w, inner=inner) for inner in (128, 160, 160, 192)),
        )
        for make in grids:
            module, channels = make(channels)
            to_17.append(module)
        self.auxiliary = _auxiliary(w, channels, num_classes) if auxiliary else None
        for make in (partial(_to_8, w), partial(_grid_8, w), partial(_grid_8, w)):
            module, channels = make(channels)
            to_8.append(module)
        self.to_17, self.to_8 = nn.Sequential(*to_17), nn.Sequential(*to_8)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(channels, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        """Normal of deviation 0.1, cut off at 2; of the auxiliary classifier's last layers 0.01 and 0.001."""
        deviations: dict[nn.Module, float] = {}
        if self.auxiliary is not None:
            deviations = {self.auxiliary[2][0]: 0.01, self.auxiliary[-1]: 0.001}  # type: ignore[index]
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=deviations.get(module, 0.1), a=-2, b=2)

    def forward(self, images: Tensor) -> Tensor | InceptionOutputs:
        grid = self.to_17(self.stem(images))
        logits: Tensor = self.classifier(self.dropout(self.pool(self.to_8(grid))).flatten(1))
        if self.auxiliary is not None and self.training:
            return InceptionOutputs(logits, self.auxiliary(grid))
        return logits


def inception(
    *,
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 299,
    auxiliary: bool = True,
    width: float = 1.0,
) -> InceptionV3:
    """Build Inception v3, every width multiplied by `width`; `auxiliary`: with the second classifier.

    Raises InputError for images below 299 x 299, without the auxiliary classifier below 75 x 75.
    """
    check_size("inception_v3", image_size, least=_LEAST_AUXILIARY if auxiliary else _LEAST)
    return InceptionV3(num_classes=num_classes, in_channels=in_channels, auxiliary=auxiliary, width=width)
