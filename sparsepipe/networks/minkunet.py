"""MinkUNet: an encoder of four strides, a decoder back up to the input's voxels, skips between them.

Choy, Gwak and Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional Neural Networks", section 5, and
MinkowskiEngine's examples (`minkunet`), whose variants A to D differ in the decoder's widths.

SpUNet: Graham et al., "3D Semantic Segmentation with Submanifold Sparse Convolutional Networks" (CVPR 2018), with the
widths of Pointcept's SpUNet-v1m1, whose checkpoints load: see engines/pointcept.py. Unlike MinkUNet34C it widens on the
way down, in the strided convolutions, and its batch norms average over more minibatches.
"""

from typing import Any

from .rows import INPUT, Network, TableBuilder, scaled

_STEM_CHANNELS = 32
_ENCODER = (32, 64, 128, 256)
# depth -> blocks in each encoder and decoder level
BLOCKS: dict[int, tuple[int, ...]] = {
    14: (1, 1, 1, 1, 1, 1, 1, 1),
    18: (2, 2, 2, 2, 2, 2, 2, 2),
    34: (2, 3, 4, 6, 2, 2, 2, 2),
}
# (depth, variant) -> widths of the decoder; the reference has no 18C: it gets 14C's. It has no 34D either.
DECODERS: dict[tuple[int, str], tuple[int, ...]] = {
    (14, "a"): (128, 128, 96, 96),
    (14, "b"): (128, 128, 128, 128),
    (14, "c"): (192, 192, 128, 128),
    (14, "d"): (384, 384, 384, 384),
    (18, "a"): (128, 128, 96, 96),
    (18, "b"): (128, 128, 128, 128),
    (18, "c"): (192, 192, 128, 128),
    (18, "d"): (384, 384, 384, 384),
    (34, "a"): (256, 128, 64, 64),
    (34, "b"): (256, 128, 64, 32),
    (34, "c"): (256, 128, 96, 96),
}
_SPUNET_DECODER, _SPUNET_DECODER_BLOCKS = (96, 96, 128, 256), 2  # of each level, the finest first


def minkunet(
    depth: int,
    variant: str,
    *,
    name: str,
    num_classes: int,
    in_channels: int,
    per_voxel: bool = False,
    width: float = 1.0,
) -> Network:
    """Build MinkUNet; its head gives classes for each voxel, or for each sample after a global max pool.

        input                                                      classes
          | 5^3                                                       |
    1   stem --------------------------- skip ------------------- up4 + blocks
          | 2^3 / 2                                                   | 2^3 * 2
    2     +-- blocks1 ------------------ skip ----------- up3 + blocks
                | ...                                       |
    16                     +-- blocks4 --------- up1 + blocks
    """
    table = TableBuilder(in_channels)
    counts, decoder = BLOCKS[depth], DECODERS[depth, variant]
    skips = [table.normalised("0", INPUT, channels=scaled(_STEM_CHANNELS, width), kernel_size=5, stride=1)]
    for level, channels in enumerate(_ENCODER, start=1):
        table.normalised(f"{level}_down", channels=table.channels[table.last], kernel_size=2, stride=2)
        _blocks(table, level, counts[level - 1], scaled(channels, width))
        skips.append(table.last)
    skips.pop()  # the deepest level is not a skip: the decoder starts there
    for level, channels in enumerate(decoder, start=len(_ENCODER) + 1):
        skip, out_channels = skips.pop(), scaled(channels, width)
        up: dict[str, Any] = {"kind": "transposed_convolution", "kernel_size": 2, "stride": 2}
        table.normalised(f"{level}_up", table.last, skip, channels=out_channels, **up)
        both = table.channels[table.last] + table.channels[skip]
        table.add(f"cat{level}", "concatenate", table.last, skip, output_channels=both)
        _blocks(table, level, counts[level - 1], out_channels)
    if per_voxel:
        table.convolution("final", channels=num_classes, kernel_size=1, stride=1, bias=True)
    else:
        table.add("global_pool", "global_max_pool")
        table.add("fc", "linear", in_channels=table.channels[table.last], out_channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def _blocks(table: TableBuilder, level: int, count: int, channels: int) -> None:
    for position in range(1, count + 1):
        table.basic_block(f"{level}_{position}", channels=channels)


def spunet(*, name: str, num_classes: int, in_channels: int, per_voxel: bool = False, width: float = 1.0) -> Network:
    """Build SpUNet34: classes for each voxel, or for each sample after the encoder, as Pointcept has them."""
    table = TableBuilder(in_channels, epsilon=1e-3, momentum=0.01)
    skips = [table.normalised("_stem", INPUT, channels=scaled(_STEM_CHANNELS, width), kernel_size=5, stride=1)]
    for level, (count, channels) in enumerate(zip(BLOCKS[34][:4], _ENCODER, strict=True)):
        table.normalised(f"_down{level}", channels=scaled(channels, width), kernel_size=2, stride=2)
        for position in range(count):
            table.basic_block(f"_enc{level}_{position}", channels=scaled(channels, width))
        skips.append(table.last)
    if not per_voxel:
        table.add("global_pool", "global_average_pool")
        table.classifier(num_classes, width=width)
        return Network(name, tuple(table.rows), in_channels, num_classes)
    skips.pop()  # the deepest level is where the decoder starts
    for level in reversed(range(len(_SPUNET_DECODER))):
        skip, channels = skips.pop(), scaled(_SPUNET_DECODER[level], width)
        kind = "transposed_convolution"
        table.normalised(f"_up{level}", table.last, skip, channels=channels, kind=kind, kernel_size=2, stride=2)
        both = channels + table.channels[skip]
        table.add(f"cat_up{level}", "concatenate", table.last, skip, output_channels=both)
        for position in range(_SPUNET_DECODER_BLOCKS):
            table.basic_block(f"_dec{level}_{position}", channels=channels)
    table.convolution("conv_final", channels=num_classes, kernel_size=1, stride=1, bias=True)
    return Network(name, tuple(table.rows), in_channels, num_classes)
