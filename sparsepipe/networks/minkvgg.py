"""MinkVGG: SparsePipe's VGG family on sparse voxels. Convolutions 3x3x3, five 2x2x2 pools, a three-layer classifier.

Layers and widths: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
table 1, configurations A, B, D and E; a global max pool stands where the image networks flatten a 7x7 grid.
"""

from typing import Any

from .blocks import Table
from .rows import Network, scaled

# depth -> how many convolutions in each of the five blocks
BLOCKS: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
CHANNELS = (64, 128, 256, 512, 512)
_CLASSIFIER_CHANNELS = 4096
_DROPOUT = 0.5


def minkvgg(
    depth: int, *, name: str, num_classes: int, in_channels: int, batch_norm: bool, width: float = 1.0
) -> Network:
    """Build MinkVGG of a depth in 11, 13, 16, 19 with every width multiplied by `width`, as a chain of rows."""
    table = Table(in_channels)
    for block, (count, channels) in enumerate(zip(BLOCKS[depth], CHANNELS, strict=True), start=1):
        for position in range(1, count + 1):
            shape: dict[str, Any] = {"channels": scaled(channels, width), "kernel_size": 3, "stride": 1}
            if batch_norm:
                table.normalised(f"{block}_{position}", **shape)
            else:
                table.convolution(f"conv{block}_{position}", **shape, bias=True)
                table.add(f"relu{block}_{position}", "relu")
        table.add(f"pool{block}", "max_pool", kernel_size=2, stride=2)
    table.add("global_pool", "global_max_pool")
    classifier(table, num_classes=num_classes, width=width)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def classifier(table: Table, *, num_classes: int, width: float) -> None:
    """Add VGG's head: two hidden layers with dropout, then one output a class."""
    hidden = scaled(_CLASSIFIER_CHANNELS, width)
    for position in (1, 2):
        in_channels = table.channels[table.last]
        table.add(f"fc{position}", "linear", output_channels=hidden, in_channels=in_channels, out_channels=hidden)
        table.add(f"relu_fc{position}", "relu")
        table.add(f"dropout{position}", "dropout", probability=_DROPOUT)
    table.add("fc3", "linear", output_channels=num_classes, in_channels=hidden, out_channels=num_classes)
