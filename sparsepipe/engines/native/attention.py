"""Attention among the voxels of windows of a curve, and the rotation of queries and keys by the positions of voxels.

Wu et al., "Point Transformer V3: Simpler, Faster, Stronger" (2024); Yue et al., "LitePT: Lighter Yet Stronger Point
Transformer" (2025), whose PointROPE is the rotation. Products and softmax are torch's scaled_dot_product_attention.
"""

import random
from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from ...errors import InputError
from ...networks.rows import CURVES
from .coordinates import SparseTensor
from .serialisation import Windows


def windowed_attention(qkv: Tensor, windows: Windows, num_heads: int) -> Tensor:
    """Attend among the rows of each window.

    Args:
        qkv: [N, 3 * C], queries, keys and values, each by head.
        windows: Those of N rows.
        num_heads: Heads, which divide C.

    Returns:
        [N, C]: the result of each row in its main window.
    """
    channels = qkv.shape[1] // 3
    gathered = qkv.index_select(0, windows.rows)  # a row is used twice at most: its gradient has no order of summing
    num_full_rows = windows.num_full * windows.size
    parts = []
    for rows, count, mask in (
        (gathered[:num_full_rows], windows.num_full, None),
        (gathered[num_full_rows:], windows.num_small, windows.present),
    ):
        if count:
            by_head = rows.view(count, -1, 3, num_heads, channels // num_heads).permute(2, 0, 3, 1, 4)
            present = None if mask is None else mask[:, None, None, :]
            queries, keys, values = by_head.unbind(0)
            attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=present)
            parts.append(attended.transpose(1, 2).reshape(-1, channels))
    return torch.cat(parts).index_select(0, windows.slots)


def rotated(qk: Tensor, places: Tensor, base: float) -> Tensor:
    """Rotate pairs of the channels of each head by angles that grow with the voxel's place along each axis.

    The product of a query and a key then depends on the offset of their voxels, not on their positions.

    Args:
        qk: [N, A, H, C], queries and keys by head; C is a multiple of twice the number of axes.
        places: [N, D], where the voxels lie.
        base: The slowest of C / 2D rotations turns almost this many times slower than the fastest, of 1 radian a step.

    Returns:
        [N, A, H, C], in the type of `qk`.
    """
    num_axes = places.shape[1]
    pairs = qk.to(torch.promote_types(qk.dtype, torch.float32)).unflatten(-1, (num_axes, 2, -1))
    speeds = base ** -(torch.arange(pairs.shape[-1], device=qk.device, dtype=pairs.dtype) / pairs.shape[-1])
    angles = (places.to(pairs.dtype).unsqueeze(-1) * speeds)[:, None, None]  # [N, 1, 1, D, C / 2D]
    cosines, sines = angles.cos(), angles.sin()
    first, second = pairs.unbind(dim=-2)
    turned = torch.stack([first * cosines - second * sines, second * cosines + first * sines], dim=-2)
    return turned.flatten(-3).to(qk.dtype)


class SerialisedAttention(nn.Module):
    """Multi-head attention within windows of one of several curves through the voxels of each sample.

    In training, layers with the same seed shuffle the curves alike, so layers of different `position` use different
    curves. In evaluation, a layer uses the curve at its position.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int,
        patch_size: int,
        curves: Sequence[str],
        position: int = 0,
        level: str = "",
        rotation: float = 0.0,
        dimension: int = 3,
    ) -> None:
        super().__init__()
        parts = heads * (2 * dimension if rotation else 1)
        if channels % parts:
            raise InputError(
                "layer.heads_uneven",
                f"attention has {channels} channels and {heads} heads, expected a multiple of {parts} "
                f"channels{f', as each head rotates pairs of channels for {dimension} axes' if rotation else ''}",
                channels=channels,
                heads=heads,
            )
        if unknown := [curve for curve in curves if curve not in CURVES]:
            raise InputError(
                "layer.curve_unknown",
                f"unknown attention curve {unknown[0]!r}, expected some of {', '.join(CURVES)}",
                curve=unknown[0],
            )
        self.heads, self.patch_size, self.rotation = heads, patch_size, rotation
        self.curves, self.position = tuple(curves), position % len(curves)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, tensor: SparseTensor, *, seed: int) -> SparseTensor:
        curves = self.curves
        if self.training:
            curves = tuple(random.Random(seed).sample(curves, len(curves)))
        windows = tensor.manager.windows(tensor.tensor_stride, curves[self.position], self.patch_size)
        qkv = self.qkv(tensor.features)
        if self.rotation:
            by_head = qkv.unflatten(1, (3, self.heads, -1))
            places = tensor.manager.places(tensor.tensor_stride)[0]
            turned = rotated(by_head[:, :2], places, self.rotation)
            qkv = torch.cat([turned, by_head[:, 2:]], dim=1).flatten(1)
        return tensor.replace(self.proj(windowed_attention(qkv, windows, self.heads)))
