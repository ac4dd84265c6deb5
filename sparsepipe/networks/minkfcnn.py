"""MinkowskiFCNN: four levels of convolutions whose pooled features are read together at every voxel, then pooled.

MinkowskiEngine's example `classification_modelnet40`. There each point looks its voxel up at four strides at once;
here the coarser features are handed down from one level to the next, which gives every voxel the same.
"""

from typing import Any

from .blocks import Table
from .rows import Network, scaled

_CHANNELS = (32, 48, 64, 96, 128)  # of the linear layer, and of the four levels
_EMBEDDING = 1024  # channels before the global pools
_CLASSIFIER = (512, 256)


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
    table = Table(in_channels)
    first, *levels = (scaled(channels, width) for channels in _CHANNELS)
    linear = _linear(table, 1, first)
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
    embedding = scaled(_EMBEDDING, width)
    for level, divisor in enumerate((4, 2, 1), start=5):
        _convolution(table, level, max(1, embedding // divisor), stride=2)
    last = table.last
    table.add("global_max_pool", "global_max_pool", last)
    table.add("global_average_pool", "global_average_pool", last)
    table.add("cat", "concatenate", "global_max_pool", "global_average_pool", output_channels=2 * table.channels[last])
    _linear(table, 2, scaled(_CLASSIFIER[0], width))
    table.add("dropout", "dropout", probability=0.5)
    _linear(table, 3, scaled(_CLASSIFIER[1], width))
    table.add("fc", "linear", in_channels=table.channels[table.last], out_channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def _linear(table: Table, number: int, channels: int) -> str:
    args: dict[str, Any] = {"in_channels": table.channels[table.last], "out_channels": channels, "bias": False}
    table.add(f"linear{number}", "linear", output_channels=channels, **args)
    return _activated(table, f"_linear{number}", channels)


def _convolution(table: Table, number: int, channels: int, *, stride: int) -> str:
    table.convolution(f"conv{number}", channels=channels, kernel_size=3, stride=stride)
    return _activated(table, f"{number}", channels)


def _activated(table: Table, tag: str, channels: int) -> str:
    table.add(f"bn{tag}", "batch_norm", channels=channels)
    return table.add(f"relu{tag}", "leaky_relu")
