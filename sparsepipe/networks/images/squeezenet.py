"""SqueezeNet: fire modules, each squeezing the channels by 1 x 1 convolutions before it expands them.

Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB model size" (2016), table 1,
and its authors' version 1.1, which pools earlier and so needs 2.4 times less work.
"""

import torch
from torch import Tensor, nn

from ..rows import scaled
from .sizes import check_size

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
