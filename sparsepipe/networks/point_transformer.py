"""Point Transformer V3 and LitePT: attention along curves through the voxels, between sparse convolutions.

Wu et al., "Point Transformer V3: Simpler, Faster, Stronger" (CVPR 2024), and Yue et al., "LitePT: Lighter Yet Stronger
Point Transformer" (CVPR 2026), which convolves at fine strides alone and attends at coarse ones alone. Widths, depths
and the layers' order are those of Pointcept's configurations, whose checkpoints load: see engines/pointcept.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .rows import CURVES, INPUT, Network, TableBuilder, scaled

_NORM = {"epsilon": 1e-3, "momentum": 0.01}
_EXPANSION = 4  # of the two linear layers after an attention


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths and depths by level, level 0 at stride 1; the decoder has one level less.

    Args:
        head_channels: Channels of a head; a level's channels are as many times its heads.
        heads, decoder_heads: Heads of each level.
        depths, decoder_depths: Blocks of each level.
        convolves, attends: Whether the encoder's blocks have a convolution, and attention. The decoder's have both.
        rotation: Base of the rotation of queries and keys by position; 0: none.
    """

    head_channels: int
    heads: tuple[int, ...]
    decoder_heads: tuple[int, ...]
    depths: tuple[int, ...]
    decoder_depths: tuple[int, ...]
    convolves: tuple[bool, ...]
    attends: tuple[bool, ...]
    rotation: float = 0.0


SHAPES: dict[str, Shape] = {
    "ptv3": Shape(16, (2, 4, 8, 16, 32), (4, 4, 8, 16), (2, 2, 2, 6, 2), (2, 2, 2, 2), (True,) * 5, (True,) * 5),
    "litept": Shape(
        18,  # 3 axes times 3 pairs of channels to rotate
        (2, 4, 8, 14, 28),
        (4, 4, 8, 14),
        (2, 2, 2, 6, 2),
        (0, 0, 0, 0),
        (True, True, True, False, False),
        (False, False, False, True, True),
        rotation=100.0,
    ),
}


def point_transformer(
    shape: str,
    *,
    name: str,
    num_classes: int,
    in_channels: int,
    per_voxel: bool = False,
    width: float = 1.0,
    patch_size: int = 1024,
    drop_path: float = 0.3,
) -> Network:
    """Build a network of one of `SHAPES`: classes for each voxel, or for each sample after the encoder.

        input ─ stem 5^3 ─ blocks ─────────── skip ───────────── add ─ blocks ─ classes of each voxel
                             │ max 2^3 / 2                        │ copy 2^3 * 2
                           blocks ─────────── skip ───── add ─ blocks
                             │ ...                        │ ...
                           blocks ────────────────────────┴ mean of each sample ─ classifier

    Args:
        shape: One of `SHAPES`.
        per_voxel: Whether there is a decoder and a class for each voxel.
        width: Multiplier of the number of heads, at least one is left.
        patch_size: Voxels that attend to each other.
        drop_path: Probability to drop a voxel's branch in the last block of the encoder, and of the decoder's end; it
            grows from 0 by equal steps.
    """
    table, sizes = TableBuilder(in_channels, **_NORM), SHAPES[shape]
    heads, decoder_heads = ([scaled(count, width) for count in level] for level in (sizes.heads, sizes.decoder_heads))
    table.convolution("stem_conv", INPUT, channels=sizes.head_channels * heads[0], kernel_size=5, stride=1)
    _activated(table, "stem")
    blocks = _Blocks(table, sizes, patch_size)
    drops, skips = _increasing(drop_path, sizes.depths), []
    for level, count in enumerate(heads):
        if level:
            skips.append(table.last)
            table.linear(f"enc{level}_down_proj", channels=sizes.head_channels * count)
            table.add(f"enc{level}_down_pool", "max_pool", kernel_size=2, stride=2)
            _activated(table, f"enc{level}_down")
        for position, drop in enumerate(drops[level]):
            blocks.add(
                f"enc{level}_block{position}",
                heads=count,
                position=position,
                level=level,
                drop=drop,
                convolves=sizes.convolves[level],
                attends=sizes.attends[level],
            )
    if not per_voxel:
        table.add("global_pool", "global_average_pool")
        table.classifier(num_classes, width=width)
        return Network(name, tuple(table.rows), in_channels, num_classes)
    drops = _increasing(drop_path, sizes.decoder_depths)
    for level in reversed(range(len(decoder_heads))):
        channels = sizes.head_channels * decoder_heads[level]
        table.linear(f"dec{level}_up_proj", channels=channels)
        deep = _activated(table, f"dec{level}_up")
        table.linear(f"dec{level}_skip_proj", skips.pop(), channels=channels)
        skip = _activated(table, f"dec{level}_skip")
        table.add(f"dec{level}_up_copy", "unpool", deep, skip, kernel_size=2, stride=2)
        table.add(f"dec{level}_add", "add", skip, table.last)
        for position, drop in enumerate(reversed(drops[level])):
            name_of_block = f"dec{level}_block{position}"
            blocks.add(
                name_of_block,
                heads=decoder_heads[level],
                position=position,
                level=level,
                drop=drop,
                convolved=None if position else skip,  # in Pointcept's, without what came up: so its weights expect it
            )
    table.linear("head", channels=num_classes)
    return Network(name, tuple(table.rows), in_channels, num_classes)


def _increasing(most: float, depths: Sequence[int]) -> list[list[float]]:
    """Return equal steps from 0 to `most`, one for each block of each level."""
    steps = max(1, sum(depths) - 1)
    firsts = [sum(depths[:level]) for level in range(len(depths))]
    return [
        [most * block / steps for block in range(first, first + depth)]
        for first, depth in zip(firsts, depths, strict=True)
    ]


def _activated(table: TableBuilder, tag: str) -> str:
    table.add(f"{tag}_norm", "batch_norm", channels=table.channels[table.last], **table.norm)
    return table.add(f"{tag}_gelu", "gelu")


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Adds blocks to a table: a convolution that tells voxels where they are, attention, two linear layers."""

    table: TableBuilder
    sizes: Shape
    patch_size: int

    def add(
        self,
        tag: str,
        *,
        heads: int,
        position: int,
        level: int,
        drop: float,
        convolved: str | None = None,
        convolves: bool = True,
        attends: bool = True,
    ) -> None:
        table, channels = self.table, self.sizes.head_channels * heads
        if convolves:
            entry = table.last
            table.convolution(
                f"{tag}_cpe_conv", convolved or entry, channels=channels, kernel_size=3, stride=1, bias=True
            )
            table.linear(f"{tag}_cpe_linear", channels=channels)
            table.add(f"{tag}_cpe_norm", "layer_norm", channels=channels)
            table.add(f"{tag}_cpe_add", "add", entry, table.last)
        else:
            table.add(f"{tag}_norm0", "layer_norm", channels=channels)
        if not attends:
            return
        entry = table.last
        table.add(f"{tag}_norm1", "layer_norm", channels=channels)
        table.add(
            f"{tag}_attention",
            "serialised_attention",
            channels=channels,
            heads=heads,
            patch_size=self.patch_size,
            curves=CURVES,
            position=position,
            level=f"level{level}",
            rotation=self.sizes.rotation,
        )
        entry = self._added(f"{tag}_attention", entry, drop)
        table.add(f"{tag}_norm2", "layer_norm", channels=channels)
        table.linear(f"{tag}_mlp_fc1", channels=_EXPANSION * channels)
        table.add(f"{tag}_mlp_gelu", "gelu")
        table.linear(f"{tag}_mlp_fc2", channels=channels)
        self._added(f"{tag}_mlp", entry, drop)

    def _added(self, tag: str, entry: str, drop: float) -> str:
        """Add what was made to what it was made of."""
        if drop:
            self.table.add(f"{tag}_drop", "drop_path", probability=drop)
        return self.table.add(f"{tag}_add", "add", entry, self.table.last)
