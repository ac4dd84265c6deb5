"""VGG on images: blocks of 3 x 3 convolutions, each halved by a max pool, then three linear layers.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2015), table 1. The same
convolutions as a table of rows, on grids made of clouds, are in sparsepipe/networks/vgg.py.
"""

from torch import Tensor, nn

from ..minkvgg import BLOCKS, CHANNELS
from ..rows import scaled
from .sizes import check_size


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
