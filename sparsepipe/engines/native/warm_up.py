"""Warm-up: run every convolution of a stage once before training, so that autotuning is done by then."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...networks.rows import INPUT, Row
from ..subnetwork import Subnetwork
from .coordinates import SparseTensor, Stride, times
from .layers import Convolution


def tensor_strides(rows: Sequence[Row], stride: Stride) -> dict[str, Stride]:
    """Return the tensor stride of every sparse tensor of a network whose input has `stride`."""
    strides = {INPUT: stride}
    for row in rows:
        if row.kind.startswith("global_") or row.kind == "dense_grid" or row.inputs[0] not in strides:
            continue  # dense from here on
        if "unpool" in row.kind or row.kind == "transposed_convolution":
            strides[row.id] = strides[row.inputs[1]]
        else:
            strides[row.id] = times(strides[row.inputs[0]], row.args.get("stride", 1))
    return strides


def rehearse(subnetwork: Subnetwork, tensor: SparseTensor, half: torch.dtype | None) -> int:
    """Run the convolutions of a part of a network, forward and backward, on random features over a minibatch's voxels.

    `tensor` is the whole network's input, `half` the type to multiply in under autocast, if any. No gradient is left
    behind. Returns how many ran.
    """
    strides, manager = tensor_strides(subnetwork.network.rows, tensor.tensor_stride), tensor.manager
    for stride in sorted(set(strides.values())):  # finest first: a coarser set is made of a finer one
        if stride not in manager:
            factors = [coarse // fine for coarse, fine in zip(stride, tensor.tensor_stride, strict=True)]
            manager.downsampled(tensor.tensor_stride, factors)
    count = 0
    for row in subnetwork.table:
        layer = subnetwork.get_submodule(row.id)
        if isinstance(layer, Convolution):
            inputs = [_random(strides[name], tensor, layer.kernel.shape[-2]) for name in row.inputs]
            inputs[0].features.requires_grad_(row.inputs[0] != INPUT)
            wanted = [leaf for leaf in (inputs[0].features, layer.kernel) if leaf.requires_grad]
            with torch.autocast(tensor.features.device.type, dtype=half, enabled=half is not None):
                output: Tensor = layer(*inputs).features
            torch.autograd.grad(output, wanted, torch.randn_like(output))
            count += 1
    return count


def _random(stride: Stride, like: SparseTensor, channels: int) -> SparseTensor:
    rows = torch.randn(len(like.manager.keys(stride)), channels, device=like.features.device)
    return SparseTensor(rows, stride, like.manager)
