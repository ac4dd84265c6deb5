"""MinkResNet: residual networks on sparse voxels, as MinkowskiEngine's examples lay them out, for classification.

He et al., "Deep Residual Learning for Image Recognition"; Choy et al., "4D Spatio-Temporal ConvNets", whose stem
halves twice (a strided convolution and a pool) and whose end is a convolution of stride 3 before the global max pool.
"""

from .blocks import Table
from .rows import Network, scaled

# depth -> blocks in each of the four levels, and whether they are bottlenecks
LEVELS: dict[int, tuple[tuple[int, ...], bool]] = {
    14: ((1, 1, 1, 1), False),
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
_CHANNELS = (64, 128, 256, 512)


def minkresnet(depth: int, *, name: str, num_classes: int, in_channels: int, width: float = 1.0) -> Network:
    """Build MinkResNet of a depth in 14, 18, 34, 50, 101 with every width multiplied by `width`."""
    table = Table(in_channels)
    stem = scaled(_CHANNELS[0], width)
    table.convolution("conv0", channels=stem, kernel_size=3, stride=2)
    table.add("norm0", "instance_norm", channels=stem)
    table.add("relu0", "relu")
    table.add("pool0", "max_pool", kernel_size=2, stride=2)
    counts, bottlenecks = LEVELS[depth]
    block = table.bottleneck if bottlenecks else table.basic_block
    for level, (count, channels) in enumerate(zip(counts, _CHANNELS, strict=True), start=1):
        for position in range(1, count + 1):
            block(f"{level}_{position}", channels=scaled(channels, width), stride=2 if position == 1 else 1)
    last = table.channels[table.last]
    table.add("dropout5", "dropout", probability=0.5)
    table.convolution("conv5", channels=last, kernel_size=3, stride=3)
    table.add("norm5", "instance_norm", channels=last)
    table.add("gelu5", "gelu")
    table.add("global_pool", "global_max_pool")
    table.add("fc", "linear", in_channels=last, out_channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)
