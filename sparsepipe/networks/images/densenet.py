"""DenseNet: each layer reads all feature maps of its block and adds a few.

Huang et al., "Densely Connected Convolutional Networks" (2017), table 1, with bottlenecks and compression by half
(DenseNet-BC). The feature maps of a block are kept as one tensor, to which each layer appends its own.
"""

import torch
from torch import Tensor, nn

from ..rows import scaled
from .sizes import check_size

_BLOCKS = {121: (6, 12, 24, 16)}  # depth -> layers of each block
_BOTTLENECK = 4  # a 1 x 1 convolution gives so many times the growth before the 3 x 3 one


def _convolution(in_channels: int, channels: int, kernel: int) -> list[nn.Module]:
    """Batch norm, ReLU and a convolution that keeps the size, in this order."""
    convolution = nn.Conv2d(in_channels, channels, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(in_channels), nn.ReLU(), convolution]


class DenseLayer(nn.Module):
    """[B, C, H, W] -> [B, C + growth, H, W]: what it read, and behind it what it made of that."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        inner = _BOTTLENECK * growth
        self.branch = nn.Sequential(*_convolution(in_channels, inner, 1), *_convolution(inner, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], 1)


class DenseNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(self, depth: int, *, num_classes: int, in_channels: int, growth: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        for position, count in enumerate(_BLOCKS[depth]):
            if position:
                blocks.append(nn.Sequential(*_convolution(channels, channels // 2, 1), nn.AvgPool2d(2)))
                channels //= 2
            blocks.append(nn.Sequential(*(DenseLayer(channels + k * growth, growth) for k in range(count))))
            channels += count * growth
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)  # He et al. (2015), fan-in
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.relu(self.norm(self.blocks(self.stem(images))))).flatten(1))


def densenet(
    depth: int = 121,
    *,
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    growth: int = 32,
    width: float = 1.0,
) -> DenseNet:
    """Build DenseNet of depth 121; `growth`: feature maps that a layer adds, multiplied by `width`.

    Raises InputError for images below 29 x 29.
    """
    check_size(f"densenet{depth}", image_size, least=29)
    return DenseNet(depth, num_classes=num_classes, in_channels=in_channels, growth=scaled(growth, width))
