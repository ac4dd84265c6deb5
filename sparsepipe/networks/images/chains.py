"""Networks on images whose modules follow one another: AlexNet, a small ConvNet for digits, SqueezeNet, VGG.

AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014): the single-tower version,
without response normalisation, that PyTorch users and PipeDream mean by the name. Initialised as torch's layers are.

ConvNet: three convolutions, each halved by a max pool, and a linear layer. On 5,000 digits of MNIST, 4,000 of them for
training, it is right in 97 to 98% of the others after eight epochs.

SqueezeNet: fire modules, each squeezing the channels by 1 x 1 convolutions before it expands them. Iandola et al.,
"SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB model size" (2016), table 1, and its authors'
version 1.1, which pools earlier and so needs 2.4 times less work.

VGG: blocks of 3 x 3 convolutions, each halved by a max pool, then three linear layers. Simonyan and Zisserman, "Very
Deep Convolutional Networks for Large-Scale Image Recognition" (2015), table 1. The same convolutions as a table of
rows, on grids made of clouds, are in sparsepipe/networks/classification.py.
"""

import torch
from torch import Tensor, nn

from ...errors import InputError
from ..classification import BLOCKS, CHANNELS
from ..rows import scaled


def check_size(network: str, image_size: int | tuple[int, int], *, least: int) -> None:
    """Raise InputError for images (a side, or height and width, in pixels) too small for a network's strides."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(height, width) < least:
        raise InputError(
            "images.too_small",
            f"{network} needs images of at least {least} x {least} pixels, but these have {height} x {width}; "
            "enlarge them, or use resnet18-32 or vgg16-images-32 for small images",
        )


_ALEXNET_GRID = 6  # cells along each side of what the classifier takes


class AlexNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(self, *, num_classes: int, in_channels: int, width: float) -> None:
        super().__init__()
        a, b, c, d = (scaled(channels, width) for channels in (64, 192, 384, 256))
        hidden = scaled(4096, width)
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, a, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(a, b, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(b, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, d, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(d, d, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(_ALEXNET_GRID)  # for other sizes than 224, where it changes nothing
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(d * _ALEXNET_GRID**2, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)).flatten(1))


def alexnet(
    *, num_classes: int = 1000, in_channels: int = 3, image_size: int | tuple[int, int] = 224, width: float = 1.0
) -> AlexNet:
    """Build AlexNet with every width multiplied by `width`. Raises InputError for images below 63 x 63."""
    check_size("alexnet", image_size, least=63)
    return AlexNet(num_classes=num_classes, in_channels=in_channels, width=width)


def _halved(in_channels: int, channels: int, kernel: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, channels, kernel, padding=kernel // 2),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


class ConvNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(self, *, num_classes: int, in_channels: int, size: tuple[int, int], width: float) -> None:
        super().__init__()
        a, b, c = (scaled(channels, width) for channels in (16, 32, 64))
        self.features = nn.Sequential(*_halved(in_channels, a, 5), *_halved(a, b, 5), *_halved(b, c, 3))
        cells = (size[0] // 8) * (size[1] // 8)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(c * cells, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def convnet(
    *, num_classes: int = 10, in_channels: int = 1, image_size: int | tuple[int, int] = 28, width: float = 1.0
) -> ConvNet:
    """Build the network for images of one size, every width multiplied by `width`. Raises InputError below 8 x 8."""
    check_size("mnist-convnet", image_size, least=8)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    return ConvNet(num_classes=num_classes, in_channels=in_channels, size=size, width=width)


_SQUEEZED = (16, 16, 32, 32, 48, 48, 64, 64)  # channels between the two halves of each fire module
_EXPANSION = 4  # each of a fire module's two branches gives so many times more
# version -> kernel and channels of the first convolution, the fire modules behind which a pool stands
_VERSIONS = {"1.0": (7, 96, (2, 6)), "1.1": (3, 64, (1, 3))}


class Fire(nn.Module):
    """1 x 1 convolution to `squeezed` channels, then 1 x 1 and 3 x 3 side by side, each to `expanded` channels."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(in_channels, squeezed, 1), nn.ReLU())
        self.narrow = nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.squeeze(x)
        return torch.cat([self.narrow(squeezed), self.wide(squeezed)], 1)


class SqueezeNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(self, version: str, *, num_classes: int, in_channels: int, width: float) -> None:
        super().__init__()
        kernel, channels, pooled = _VERSIONS[version]
        channels = scaled(channels, width)
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels, kernel, stride=2), nn.ReLU(), _pool()]
        for position, squeezed in enumerate(scaled(squeezed, width) for squeezed in _SQUEEZED):
            layers.append(Fire(channels, squeezed, _EXPANSION * squeezed))
            channels = 2 * _EXPANSION * squeezed
            if position in pooled:
                layers.append(_pool())
        self.features = nn.Sequential(*layers)
        last = nn.Conv2d(channels, num_classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(0.5), last, nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.kaiming_uniform_(module.weight)  # He et al. (2015), fan-in
                nn.init.zeros_(module.bias)
        nn.init.normal_(last.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images)).flatten(1)


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def squeezenet(
    version: str = "1.0",
    *,
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    width: float = 1.0,
) -> SqueezeNet:
    """Build SqueezeNet of a version in "1.0", "1.1", every width multiplied by `width`.

    Raises InputError for images below 21 x 21, of version 1.1 below 17 x 17.
    """
    check_size(f"squeezenet{version}", image_size, least=21 if version == "1.0" else 17)
    return SqueezeNet(version, num_classes=num_classes, in_channels=in_channels, width=width)


class VGG(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(
        self, depth: int, *, num_classes: int, in_channels: int, batch_norm: bool, grid: int, hidden: int, width: float
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = in_channels
        for count, channels in zip(BLOCKS[depth], (scaled(channels, width) for channels in CHANNELS), strict=True):
            for _ in range(count):
                norm = [nn.BatchNorm2d(channels)] if batch_norm else []
                layers += [nn.Conv2d(before, channels, 3, padding=1), *norm, nn.ReLU()]
                before = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(grid)  # for other sizes than 32 x grid, where it changes nothing
        self.classifier = nn.Sequential(
            nn.Linear(before * grid**2, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, num_classes),
        )
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)).flatten(1))


def _initialise(module: nn.Module) -> None:
    """Convolutions: normal of variance 2 / fan-out (He et al., 2015). Linear layers: torch's uniform default.

    The normal of deviation 0.01 that torchvision gives linear layers is meant for its widths: the signal of a narrow
    network would die out.
    """
    if isinstance(module, nn.Conv2d) and module.bias is not None:
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(module.bias)


def vgg(
    depth: int = 16,
    *,
    num_classes: int = 1000,
    in_channels: int = 3,
    image_size: int | tuple[int, int] = 224,
    batch_norm: bool = False,
    grid: int = 7,
    hidden: int = 4096,
    width: float = 1.0,
) -> VGG:
    """Build VGG of a depth in 11, 13, 16, 19, all convolutions' channels multiplied by `width`.

    `grid`: cells along each side of what the classifier takes, `hidden`: channels of its two hidden layers. Raises
    InputError for images below 32 x 32.
    """
    check_size(f"vgg{depth}", image_size, least=32)
    return VGG(
        depth,
        num_classes=num_classes,
        in_channels=in_channels,
        batch_norm=batch_norm,
        grid=grid,
        hidden=scaled(hidden, width),
        width=width,
    )
