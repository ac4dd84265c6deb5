"""SpUNet: the U-Net on sparse voxels that Pointcept trains, a residual network of 34 layers with a decoder.

Graham et al., "3D Semantic Segmentation with Submanifold Sparse Convolutional Networks" (CVPR 2018); the widths are
those of Pointcept's SpUNet-v1m1, whose checkpoints load: see engines/pointcept.py. Unlike MinkUNet34C it widens on the
way down, in the strided convolutions, and its batch norms average over more minibatches.
"""

from .blocks import Table
from .rows import INPUT, Network, scaled

_STEM_CHANNELS = 32
_ENCODER, _DECODER = (32, 64, 128, 256), (96, 96, 128, 256)  # of each level, the finest first
_BLOCKS, _DECODER_BLOCKS = (2, 3, 4, 6), 2


def spunet(*, name: str, num_classes: int, in_channels: int, per_voxel: bool = False, width: float = 1.0) -> Network:
    """Build SpUNet34: classes for each voxel, or for each sample after the encoder, as Pointcept has them."""
    table = Table(in_channels, epsilon=1e-3, momentum=0.01)
    skips = [table.normalised("_stem", INPUT, channels=scaled(_STEM_CHANNELS, width), kernel_size=5, stride=1)]
    for level, (count, channels) in enumerate(zip(_BLOCKS, _ENCODER, strict=True)):
        table.normalised(f"_down{level}", channels=scaled(channels, width), kernel_size=2, stride=2)
        for position in range(count):
            table.basic_block(f"_enc{level}_{position}", channels=scaled(channels, width))
        skips.append(table.last)
    if not per_voxel:
        table.add("global_pool", "global_average_pool")
        table.classifier(num_classes, width=width)
        return Network(name, tuple(table.rows), in_channels, num_classes)
    skips.pop()  # the deepest level is where the decoder starts
    for level in reversed(range(len(_DECODER))):
        skip, channels = skips.pop(), scaled(_DECODER[level], width)
        kind = "transposed_convolution"
        table.normalised(f"_up{level}", table.last, skip, channels=channels, kind=kind, kernel_size=2, stride=2)
        both = channels + table.channels[skip]
        table.add(f"cat_up{level}", "concatenate", table.last, skip, output_channels=both)
        for position in range(_DECODER_BLOCKS):
            table.basic_block(f"_dec{level}_{position}", channels=channels)
    table.convolution("conv_final", channels=num_classes, kernel_size=1, stride=1, bias=True)
    return Network(name, tuple(table.rows), in_channels, num_classes)
