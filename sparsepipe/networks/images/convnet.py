"""A small convolutional network for digits: three convolutions, each halved by a max pool, and a linear layer.

On 5,000 digits of MNIST, 4,000 of them for training, it is right in 97 to 98% of the others after eight epochs.
"""

from torch import Tensor, nn

from ..rows import scaled
from .sizes import check_size


def _convolution(in_channels: int, channels: int, kernel: int) -> list[nn.Module]:
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
        self.features = nn.Sequential(*_convolution(in_channels, a, 5), *_convolution(a, b, 5), *_convolution(b, c, 3))
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
