"""VGG on a dense grid: in three dimensions what SparsePipe compares MinkVGG with, in two VGG itself.

Simonyan and Zisserman, "Very Deep Convolutional Networks", table 1; laid out as MinkVGG, the last grid
flattened into the classifier.
"""

from .blocks import Table
from .minkvgg import BLOCKS, CHANNELS, classifier
from .rows import Network, scaled


def vgg(
    depth: int,
    *,
    name: str,
    num_classes: int,
    in_channels: int,
    size: int,
    dimension: int,
    batch_norm: bool = False,
    width: float = 1.0,
) -> Network:
    """Build VGG of a depth in 11, 13, 16, 19 on a grid of `size` cells along each of `dimension` axes, 32 or more."""
    table = Table(in_channels)
    table.add("grid", "dense_grid", size=size, dimension=dimension)
    for block, (count, channels) in enumerate(zip(BLOCKS[depth], CHANNELS, strict=True), start=1):
        for position in range(1, count + 1):
            tag = f"{block}_{position}"
            table.convolution(
                f"conv{tag}",
                channels=scaled(channels, width),
                kind="dense_convolution",
                kernel_size=3,
                stride=1,
                padding=1,
                bias=not batch_norm,
                dimension=dimension,
            )
            if batch_norm:
                table.add(f"bn{tag}", "dense_batch_norm", channels=table.channels[table.last], dimension=dimension)
            table.add(f"relu{tag}", "relu")
        table.add(f"pool{block}", "dense_max_pool", kernel_size=2, stride=2, dimension=dimension)
    cells = (size // 2 ** len(CHANNELS)) ** dimension
    table.add("flat", "flatten", output_channels=table.channels[table.last] * cells)
    classifier(table, num_classes=num_classes, width=width)
    return Network(name, tuple(table.rows), in_channels, num_classes)
