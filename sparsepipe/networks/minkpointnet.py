"""MinkowskiPointNet: PointNet without its transforms, on voxels: linear layers, a global max pool, a classifier.

Qi et al., "PointNet: Deep Learning on Point Sets" (2017), as MinkowskiEngine's example `pointnet` lays it out. Voxels
are distinguished by their features alone: with occupancy all are identical, take normals, colours or intensity.
"""

from .blocks import Table
from .rows import Network, scaled

_CHANNELS = (64, 64, 64, 128, 1024)
_CLASSIFIER = 512


def minkpointnet(*, name: str, num_classes: int, in_channels: int, width: float = 1.0) -> Network:
    """Build MinkowskiPointNet with every width multiplied by `width`, as a chain of rows."""
    table = Table(in_channels)
    for number, channels in enumerate(_CHANNELS, start=1):
        _linear(table, number, scaled(channels, width))
    table.add("global_pool", "global_max_pool")
    _linear(table, len(_CHANNELS) + 1, scaled(_CLASSIFIER, width))
    table.add("dropout", "dropout", probability=0.5)
    table.add("fc", "linear", in_channels=table.channels[table.last], out_channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def _linear(table: Table, number: int, channels: int) -> None:
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
