"""MinkVGG: SparsePipe's VGG family on sparse voxels. Convolutions 3x3x3, five 2x2x2 pools, a three-layer classifier.

Layers and widths: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
table 1, configurations A, B, D and E; a global max pool stands where the image networks flatten a 7x7 grid.
"""

from .rows import INPUT, Network, Row, scaled

# depth -> how many convolutions in each of the five blocks
BLOCKS: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)
_CLASSIFIER_CHANNELS = 4096
_DROPOUT = 0.5


def minkvgg(
    depth: int, *, name: str, num_classes: int, in_channels: int, batch_norm: bool, width: float = 1.0
) -> Network:
    """Build MinkVGG of a depth in 11, 13, 16, 19 with every width multiplied by `width`, as a chain of rows."""
    rows: list[Row] = []

    def add(layer_id: str, kind: str, **args: object) -> None:
        rows.append(Row(layer_id, kind, (rows[-1].id if rows else INPUT,), args))

    channels = in_channels
    for block, (num_convolutions, block_channels) in enumerate(zip(BLOCKS[depth], _CHANNELS, strict=True), start=1):
        out_channels = scaled(block_channels, width)
        for position in range(1, num_convolutions + 1):
            tag = f"{block}_{position}"
            add(
                f"conv{tag}",
                "convolution",
                in_channels=channels,
                out_channels=out_channels,
                kernel_size=3,
                stride=1,
                bias=not batch_norm,  # batch norm would take a bias away again
            )
            if batch_norm:
                add(f"bn{tag}", "batch_norm", channels=out_channels)
            add(f"relu{tag}", "relu")
            channels = out_channels
        add(f"pool{block}", "max_pool", kernel_size=2, stride=2)
    add("global_pool", "global_max_pool")
    hidden = scaled(_CLASSIFIER_CHANNELS, width)
    for position, in_features in ((1, channels), (2, hidden)):
        add(f"fc{position}", "linear", in_channels=in_features, out_channels=hidden)
        add(f"relu_fc{position}", "relu")
        add(f"dropout{position}", "dropout", probability=_DROPOUT)
    add("fc3", "linear", in_channels=hidden, out_channels=num_classes)
    return Network(name, tuple(rows), in_channels, num_classes)
