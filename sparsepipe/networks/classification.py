"""Networks that classify clouds, as tables of rows: MinkVGG, VGG, MinkResNet, MinkowskiPointNet, MinkowskiFCNN.

MinkVGG: SparsePipe's VGG family on sparse voxels. Convolutions 3x3x3, five 2x2x2 pools, a three-layer classifier.
Layers and widths: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
table 1, configurations A, B, D and E; a global max pool stands where the image networks flatten a 7x7 grid.

VGG on a dense grid: in three dimensions what SparsePipe compares MinkVGG with, in two VGG itself; laid out as MinkVGG,
the last grid flattened into the classifier.

MinkResNet: residual networks on sparse voxels, as MinkowskiEngine's examples lay them out. He et al., "Deep Residual
Learning for Image Recognition"; Choy et al., "4D Spatio-Temporal ConvNets", whose stem halves twice (a strided
convolution and a pool) and whose end is a convolution of stride 3 before the global max pool.

MinkowskiPointNet: PointNet without its transforms, on voxels: linear layers, a global max pool, a classifier.
Qi et al., "PointNet: Deep Learning on Point Sets" (2017), as MinkowskiEngine's example `pointnet` lays it out. Voxels
are distinguished by their features alone: with occupancy all are identical, take normals, colours or intensity.

MinkowskiFCNN: four levels of convolutions whose pooled features are read together at every voxel, then pooled.
MinkowskiEngine's example `classification_modelnet40`. There each point looks its voxel up at four strides at once;
here the coarser features are handed down from one level to the next, which gives every voxel the same.
"""

from typing import Any

from .rows import Network, TableBuilder, scaled

# depth -> how many convolutions in each of the five blocks
BLOCKS: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
CHANNELS = (64, 128, 256, 512, 512)
_VGG_CLASSIFIER = 4096
_DROPOUT = 0.5


def minkvgg(
    depth: int, *, name: str, num_classes: int, in_channels: int, batch_norm: bool, width: float = 1.0
) -> Network:
    """Build MinkVGG of a depth in 11, 13, 16, 19 with every width multiplied by `width`, as a chain of rows."""
    table = TableBuilder(in_channels)
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


def classifier(table: TableBuilder, *, num_classes: int, width: float) -> None:
    """Add VGG's head: two hidden layers with dropout, then one output a class."""
    hidden = scaled(_VGG_CLASSIFIER, width)
    for position in (1, 2):
        in_channels = table.channels[table.last]
        table.add(f"fc{position}", "linear", output_channels=hidden, in_channels=in_channels, out_channels=hidden)
        table.add(f"relu_fc{position}", "relu")
        table.add(f"dropout{position}", "dropout", probability=_DROPOUT)
    table.add("fc3", "linear", output_channels=num_classes, in_channels=hidden, out_channels=num_classes)


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
    table = TableBuilder(in_channels)
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


# depth -> blocks in each of the four levels, and whether they are bottlenecks
LEVELS: dict[int, tuple[tuple[int, ...], bool]] = {
    14: ((1, 1, 1, 1), False),
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
_RESNET_CHANNELS = (64, 128, 256, 512)


def minkresnet(depth: int, *, name: str, num_classes: int, in_channels: int, width: float = 1.0) -> Network:
    """Build MinkResNet of a depth in 14, 18, 34, 50, 101 with every width multiplied by `width`."""
    table = TableBuilder(in_channels)
    stem = scaled(_RESNET_CHANNELS[0], width)
    table.convolution("conv0", channels=stem, kernel_size=3, stride=2)
    table.add("norm0", "instance_norm", channels=stem)
    table.add("relu0", "relu")
    table.add("pool0", "max_pool", kernel_size=2, stride=2)
    counts, bottlenecks = LEVELS[depth]
    block = table.bottleneck if bottlenecks else table.basic_block
    for level, (count, channels) in enumerate(zip(counts, _RESNET_CHANNELS, strict=True), start=1):
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


_POINTNET_CHANNELS = (64, 64, 64, 128, 1024)
_POINTNET_CLASSIFIER = 512


def minkpointnet(*, name: str, num_classes: int, in_channels: int, width: float = 1.0) -> Network:
    """Build MinkowskiPointNet with every width multiplied by `width`, as a chain of rows."""
    table = TableBuilder(in_channels)
    for number, channels in enumerate(_POINTNET_CHANNELS, start=1):
        _pointnet_linear(table, number, scaled(channels, width))
    table.add("global_pool", "global_max_pool")
    _pointnet_linear(table, len(_POINTNET_CHANNELS) + 1, scaled(_POINTNET_CLASSIFIER, width))
    table.add("dropout", "dropout", probability=0.5)
    table.add("fc", "linear", in_channels=table.channels[table.last], out_channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def _pointnet_linear(table: TableBuilder, number: int, channels: int) -> None:
    table.add(
        f"linear{number}",
        "linear",
        output_channels=channels,
        in_channels=table.channels[table.last],
        out_channels=channels,
        bias=False,
    )
    table.add(f"bn{number}", "batch_norm", channels=channels)
    table.add(f"relu{number}", "relu")


_FCNN_CHANNELS = (32, 48, 64, 96, 128)  # of the linear layer, and of the four levels
_FCNN_EMBEDDING = 1024  # channels before the global pools
_FCNN_CLASSIFIER = (512, 256)


def minkfcnn(*, name: str, num_classes: int, in_channels: int, width: float = 1.0) -> Network:
    """Build MinkowskiFCNN with every width multiplied by `width`.

    1    input - linear1 -+                               +- cat1 - conv5 (/2) - conv6 (/2) - conv7 (/2) - both pools
                          | conv1, pool                   | 2
    2                     +------------------------- cat2 +
                          | conv2 (/2), pool              | 4
    8                     +-------------------- cat3 -----+
                          | conv3 (/2), pool              | 4
    32                    +-------------------------------+ conv4 (/2), pool, 4
    """
    table = TableBuilder(in_channels)
    first, *levels = (scaled(channels, width) for channels in _FCNN_CHANNELS)
    linear = _fcnn_linear(table, 1, first)
    pooled = [linear]
    for level, channels in enumerate(levels, start=1):
        _convolution(table, level, channels, stride=1 if level == 1 else 2)
        pooled.append(table.add(f"pool{level}", "max_pool", kernel_size=3, stride=2))
    features = pooled.pop()
    for level in range(len(pooled) - 1, -1, -1):
        finer, factor = pooled[level], 4 if level else 2  # a convolution and a pool lie between two levels
        up = table.add(f"up{level}", "unpool", features, finer, kernel_size=factor, stride=factor)
        if level:
            both = table.channels[finer] + table.channels[up]
            features = table.add(f"cat{level}", "concatenate", finer, up, output_channels=both)
    embedding = scaled(_FCNN_EMBEDDING, width)
    for level, divisor in enumerate((4, 2, 1), start=5):
        _convolution(table, level, max(1, embedding // divisor), stride=2)
    last = table.last
    table.add("global_max_pool", "global_max_pool", last)
    table.add("global_average_pool", "global_average_pool", last)
    table.add("cat", "concatenate", "global_max_pool", "global_average_pool", output_channels=2 * table.channels[last])
    _fcnn_linear(table, 2, scaled(_FCNN_CLASSIFIER[0], width))
    table.add("dropout", "dropout", probability=0.5)
    _fcnn_linear(table, 3, scaled(_FCNN_CLASSIFIER[1], width))
    table.add("fc", "linear", in_channels=table.channels[table.last], out_channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def _fcnn_linear(table: TableBuilder, number: int, channels: int) -> str:
    args: dict[str, Any] = {"in_channels": table.channels[table.last], "out_channels": channels, "bias": False}
    table.add(f"linear{number}", "linear", output_channels=channels, **args)
    return _activated(table, f"_linear{number}", channels)


def _convolution(table: TableBuilder, number: int, channels: int, *, stride: int) -> str:
    table.convolution(f"conv{number}", channels=channels, kernel_size=3, stride=stride)
    return _activated(table, f"{number}", channels)


def _activated(table: TableBuilder, tag: str, channels: int) -> str:
    table.add(f"bn{tag}", "batch_norm", channels=channels)
    return table.add(f"relu{tag}", "leaky_relu")
