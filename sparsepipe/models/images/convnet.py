"""A small convolutional network for digits: two convolutions and two linear layers."""

from torch import Tensor, nn

from ..rows import scaled
from .sizes import check_size


class ConvNet(nn.Module):
    """Images [B, in_channels, H, W] -> logits [B, num_classes]."""

    def __init__(self, *, num_classes: int, in_channels: int, size: tuple[int, int], width: float) -> None:
        super().__init__()
        a, b, hidden = (scaled(channels, width) for channels in (16, 32, 128))
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, a, 3, padding=1),
            nn.BatchNorm2d(a),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(a, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(b * (size[0] // 4) * (size[1] // 4), hidden),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def convnet(
    *, num_classes: int = 10, in_channels: int = 1, image_size: int | tuple[int, int] = 28, width: float = 1.0
) -> ConvNet:
    """Build the network for images of one size, 4 x 4 or more; every width multiplied by `width`."""
    check_size("mnist-convnet", image_size, least=4)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    return ConvNet(num_classes=num_classes, in_channels=in_channels, size=size, width=width)
