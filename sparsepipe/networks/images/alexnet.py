"""AlexNet: five convolutions and three linear layers.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014): the single-tower version, without
response normalisation, that PyTorch users and PipeDream mean by the name. Initialised as torch's layers are.
"""

from torch import Tensor, nn

from ..rows import scaled
from .sizes import check_size

_GRID = 6  # cells along each side of what the classifier takes


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
        self.pool = nn.AdaptiveAvgPool2d(_GRID)  # for other sizes than 224, where it changes nothing
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(d * _GRID**2, hidden),
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
