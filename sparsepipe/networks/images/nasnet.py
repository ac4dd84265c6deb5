"""NASNet-A: two cells found by search, one that keeps the size and one that halves it, stacked.

Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition" (2018), figure 4 and appendix A.1;
"mobile" is 4 @ 1056: four normal cells between reductions, 1056 channels before the classifier. Strided layers are
padded on both sides, as PipeDream's and most of PyTorch's versions do, not as TensorFlow pads.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..rows import scaled

_STEM_CHANNELS = 32
_CHANNELS = 44  # of the layers in the first normal cells: 1056 / 24
_EPSILON = 0.001  # of batch norms


def _separable(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """ReLU, depthwise and pointwise convolution, batch norm: twice, the stride in the first."""
    layers: list[nn.Module] = []
    for before, step in ((in_channels, stride), (channels, 1)):
        layers += [
            nn.ReLU(),
            nn.Conv2d(before, before, kernel, stride=step, padding=kernel // 2, groups=before, bias=False),
            nn.Conv2d(before, channels, 1, bias=False),
            nn.BatchNorm2d(channels, eps=_EPSILON),
        ]
    return nn.Sequential(*layers)


def _projection(in_channels: int, channels: int) -> nn.Sequential:
    """ReLU, 1 x 1 convolution, batch norm."""
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(in_channels, channels, 1, bias=False), nn.BatchNorm2d(channels, eps=_EPSILON)
    )


def _average(stride: int = 1) -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride=stride, padding=1, count_include_pad=False)


def _maximum() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, padding=1)


class FactorizedReduction(nn.Module):
    """Half the size by two 1 x 1 convolutions: one of the even pixels, one of the odd ones, side by side."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.relu = nn.ReLU()
        self.even = nn.Sequential(nn.AvgPool2d(1, stride=2), nn.Conv2d(in_channels, half, 1, bias=False))
        self.odd = nn.Sequential(nn.AvgPool2d(1, stride=2), nn.Conv2d(in_channels, channels - half, 1, bias=False))
        self.norm = nn.BatchNorm2d(channels, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        shifted = F.pad(x, (-1, 1, -1, 1))  # by one pixel up and to the left; zeros come in
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))


class NormalCell(nn.Module):
    """Figure 4, left: keeps the size and gives 6 * channels. `previous` is what the cell before the last gave."""

    def __init__(self, previous: nn.Module, current: nn.Module, channels: int) -> None:
        super().__init__()
        n = channels
        self.previous, self.current = previous, current
        self.current_5, self.previous_3 = _separable(n, n, 5), _separable(n, n, 3)
        self.previous_5, self.previous_3_again = _separable(n, n, 5), _separable(n, n, 3)
        self.current_average = _average()
        self.previous_average, self.previous_average_again = _average(), _average()
        self.current_3 = _separable(n, n, 3)

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        p, c = self.previous(previous), self.current(current)
        return torch.cat(
            [
                p,
                self.current_5(c) + self.previous_3(p),
                self.previous_5(p) + self.previous_3_again(p),
                self.current_average(c) + p,
                self.previous_average(p) + self.previous_average_again(p),
                self.current_3(c) + c,
            ],
            1,
        )


class ReductionCell(nn.Module):
    """Figure 4, right: halves the size and gives 4 * channels.

    `previous`: what turns the input before the last into `previous_channels`; None if it is taken as it is.
    """

    def __init__(
        self, previous: nn.Module | None, current: nn.Module, channels: int, *, previous_channels: int | None = None
    ) -> None:
        super().__init__()
        n, p = channels, previous_channels or channels
        self.previous, self.current = previous, current
        self.current_5, self.previous_7 = _separable(n, n, 5, 2), _separable(p, n, 7, 2)
        self.current_maximum, self.previous_7_again = _maximum(), _separable(p, n, 7, 2)
        self.current_average, self.previous_5 = _average(2), _separable(p, n, 5, 2)
        self.average = _average()
        self.reduced_3, self.current_maximum_again = _separable(n, n, 3), _maximum()

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        p = previous if self.previous is None else self.previous(previous)
        c = self.current(current)
        first = self.current_5(c) + self.previous_7(p)
        second = self.current_maximum(c) + self.previous_7_again(p)
        return torch.cat(
            [
                second,
                self.current_average(c) + self.previous_5(p),
                self.average(first) + second,
                self.reduced_3(first) + self.current_maximum_again(c),
            ],
            1,
        )


class NASNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(self, *, num_classes: int, in_channels: int, cells: int, width: float) -> None:
        super().__init__()
        stem, n = scaled(_STEM_CHANNELS, width), scaled(_CHANNELS, width)
        quarter, half = max(1, n // 4), max(2, n // 2)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, stem, 3, stride=2, bias=False), nn.BatchNorm2d(stem, eps=_EPSILON)
        )
        stacked: list[nn.Module] = [
            ReductionCell(None, _projection(stem, quarter), quarter, previous_channels=stem),
            ReductionCell(FactorizedReduction(stem, half), _projection(4 * quarter, half), half),
        ]
        previous, current = 4 * quarter, 4 * half  # channels of what the last two cells gave
        for level in range(3):
            channels = n * 2**level
            if level:
                reduction = ReductionCell(_projection(previous, channels), _projection(current, channels), channels)
                stacked.append(reduction)
                previous, current = current, 4 * channels
            for position in range(cells):
                enter = _projection if position else FactorizedReduction  # `previous` is twice as large there
                stacked.append(NormalCell(enter(previous, channels), _projection(current, channels), channels))
                previous, current = current, 6 * channels
        self.cells = nn.ModuleList(stacked)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(current, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        previous = current = self.stem(images)
        for cell in self.cells:
            previous, current = current, cell(previous, current)
        return self.classifier(self.dropout(self.pool(self.relu(current)).flatten(1)))


def nasnet(*, num_classes: int = 1000, in_channels: int = 3, cells: int = 4, width: float = 1.0) -> NASNet:
    """Build NASNet-A mobile, every width multiplied by `width`; `cells`: normal cells in each of the three levels."""
    return NASNet(num_classes=num_classes, in_channels=in_channels, cells=cells, width=width)
