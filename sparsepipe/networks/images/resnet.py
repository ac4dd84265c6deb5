"""Residual networks and densely connected ones on images: ResNet, ResNeXt, DenseNet.

ResNet and ResNeXt: residual blocks in four levels, each level half as large and twice as wide as the one before.

He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, the stride of a bottleneck at its 3 x 3
convolution; Xie et al., "Aggregated Residual Transformations for Deep Neural Networks" (2017), whose 3 x 3 convolutions
are in groups. For images of 32 x 32 the first convolution is 3 x 3 and nothing is halved before the second level.

DenseNet: each layer reads all feature maps of its block and adds a few.

Huang et al., "Densely Connected Convolutional Networks" (2017), table 1, with bottlenecks and compression by half
(DenseNet-BC). The feature maps of a block are kept as one tensor, to which each layer appends its own.
"""

import torch
from torch import Tensor, nn

from ..classification import LEVELS
from ..rows import scaled
from .chains import check_size

_CHANNELS = (64, 128, 256, 512)
_EXPANSION = 4  # of a bottleneck


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); without a shortcut x itself is added."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + (x if self.shortcut is None else self.shortcut(x)))


def _normalised(
    in_channels: int, channels: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True
) -> list[nn.Module]:
    """A convolution that keeps the size but for its stride, batch norm and, unless told not to, ReLU."""
    convolution = nn.Conv2d(
        in_channels, channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(channels), *([nn.ReLU()] if relu else [])]


def _basic(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    """Two 3 x 3 convolutions."""
    return nn.Sequential(
        *_normalised(in_channels, channels, 3, stride=stride),
        *_normalised(channels, channels, 3, relu=False),
    )


def _bottleneck(in_channels: int, inner: int, out_channels: int, stride: int, groups: int) -> nn.Sequential:
    """1 x 1, 3 x 3, 1 x 1."""
    return nn.Sequential(
        *_normalised(in_channels, inner, 1),
        *_normalised(inner, inner, 3, stride=stride, groups=groups),
        *_normalised(inner, out_channels, 1, relu=False),
    )


class ResNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        in_channels: int,
        groups: int,
        group_channels: int,
        small_images: bool,
        width: float,
    ) -> None:
        super().__init__()
        counts, bottlenecks = LEVELS[depth]
        channels = scaled(_CHANNELS[0], width)
        if small_images:
            self.stem = nn.Sequential(*_normalised(in_channels, channels, 3))
        else:
            self.stem = nn.Sequential(
                *_normalised(in_channels, channels, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)
            )
        levels = []
        for level, (count, base) in enumerate(zip(counts, _CHANNELS, strict=True)):
            blocks = []
            for position in range(count):
                stride = 2 if level and not position else 1
                if bottlenecks:
                    inner = scaled(base * group_channels // 64, width) * groups
                    after = _EXPANSION * scaled(base, width)
                    branch = _bottleneck(channels, inner, after, stride, groups)
                else:
                    after = scaled(base, width)
                    branch = _basic(channels, after, stride)
                same = stride == 1 and channels == after
                shortcut = None if same else nn.Sequential(*_normalised(channels, after, 1, stride=stride, relu=False))
                blocks.append(Residual(branch, shortcut))
                channels = after
            levels.append(nn.Sequential(*blocks))
        self.levels = nn.Sequential(*levels)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al. (2015)
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.levels(self.stem(images))).flatten(1))


def resnet(
    depth: int = 50,
    *,
    num_classes: int = 1000,
    in_channels: int = 3,
    groups: int = 1,
    group_channels: int = 64,
    small_images: bool = False,
    width: float = 1.0,
) -> ResNet:
    """Build ResNet of a depth in 14, 18, 34, 50, 101, every width multiplied by `width`; of any image size.

    `groups`, `group_channels`: of the 3 x 3 convolutions of bottlenecks in the first level; (32, 4) is ResNeXt 32x4d.
    `small_images`: the first convolution for pictures of 32 x 32.
    """
    return ResNet(
        depth,
        num_classes=num_classes,
        in_channels=in_channels,
        groups=groups,
        group_channels=group_channels,
        small_images=small_images,
        width=width,
    )


_DENSE_BLOCKS = {121: (6, 12, 24, 16)}  # depth -> layers of each block
_DENSE_BOTTLENECK = 4  # a 1 x 1 convolution gives so many times the growth before the 3 x 3 one


def _normed(in_channels: int, channels: int, kernel: int) -> list[nn.Module]:
    """Batch norm, ReLU and a convolution that keeps the size, in this order."""
    convolution = nn.Conv2d(in_channels, channels, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(in_channels), nn.ReLU(), convolution]


class DenseLayer(nn.Module):
    """[B, C, H, W] -> [B, C + growth, H, W]: what it read, and behind it what it made of that."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        inner = _DENSE_BOTTLENECK * growth
        self.branch = nn.Sequential(*_normed(in_channels, inner, 1), *_normed(inner, growth, 3))

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
        for position, count in enumerate(_DENSE_BLOCKS[depth]):
            if position:
                blocks.append(nn.Sequential(*_normed(channels, channels // 2, 1), nn.AvgPool2d(2)))
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
