"""Layers that are the same in every engine: those on dense tensors, and functions of the rows of any tensor.

Several processes may share a dense grid. Each has a slab of it: cells that follow each other on the first spatial
axis. A layer with a kernel fetches the cells that its outputs need and other slabs have; its backward returns their
gradients. Slabs keep their region as grids get coarser, so that only cells at borders are sent:

    fine    |0 1 2 3 4|5 6 7 8 9|      a kernel of 3: one cell from each neighbour
    coarse  |0   1   2|  3   4  |      coarse cell 2 = fine cells 4 and 5: the slab of its first cell has it
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import InputError
from ..networks.batch_norm import Group, GroupBatchNorm
from .base import SceneGroup

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "gelu": functional.gelu,
}
_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AXIS = 2  # of a grid [B, C, size, ...]: the one that slabs divide
_UNEVEN = 1.05  # the widest slab over its share, before borders leave the multiples of a larger power of two


def dense_grid(coordinates: Tensor, features: Tensor, size: int) -> Tensor:
    """Lay rows [N, C] out on a grid [B, C, size, ...] at their coordinates [N, 1 + D], 0 where there is no voxel.

    A coordinate equal to `size`, a point on the unit cube's far face, goes to the last cell. Raises InputError for
    coordinates that lie farther out.
    """
    cells = _cells(coordinates, size)
    return _laid_out(cells, features, [int(cells[:, 0].max()) + 1, *[size] * (cells.shape[1] - 1)])


def _cells(coordinates: Tensor, size: int) -> Tensor:
    """Return the sample and the cell of each coordinate: int64 [N, 1 + D]."""
    places = coordinates[:, 1:]
    low, high = (int(places.min()), int(places.max())) if len(places) else (0, 0)
    if low < 0 or high > size:
        raise InputError(
            "dense.out_of_range",
            f"voxels {low}..{high} exceed the dense grid of {size}, expected 0..{size - 1}; use voxel size "
            f"{1 / size:g} and an augmentation within the unit cube, such as shapes-in-cube",
            low=low,
            high=high,
            size=size,
        )
    return torch.cat([coordinates[:, :1], places.clamp(max=size - 1)], dim=1).long()


def _laid_out(cells: Tensor, features: Tensor, shape: Sequence[int]) -> Tensor:
    grid = features.new_zeros(*shape, features.shape[1]).index_put(cells.unbind(dim=1), features)
    return grid.movedim(-1, 1).contiguous()


@dataclass(frozen=True, eq=False)
class Slab:
    """A process's part of a dense grid that several processes share."""

    features: Tensor  # [B, C, cells, ...]: none of the cells, possibly
    borders: tuple[int, ...]  # on the first spatial axis: part p has the cells from borders[p] to below borders[p + 1]
    group: SceneGroup

    @property
    def cells(self) -> range:
        return _parts(self.borders)[self.group.part]

    def replace(self, features: Tensor, borders: tuple[int, ...] | None = None) -> "Slab":
        return replace(self, features=features, borders=borders or self.borders)

    def on(self, borders: tuple[int, ...]) -> "Slab":
        """Return this part of the grid under other borders."""
        return self if borders == self.borders else self.replace(self._window(_parts(borders)), borders)

    def whole(self) -> Tensor:
        """Return the grid of all parts, [B, C, size, ...]. Its gradient is the sum of theirs."""
        edges = [0, 0] * (self.features.dim() - _AXIS - 1)
        cells, size = self.cells, self.borders[-1]
        return sum_over_parts(functional.pad(self.features, [*edges, cells.start, size - cells.stop]), self.group)

    def through(
        self,
        layer: Callable[[Tensor], Tensor],
        *,
        kernel_size: int,
        stride: int,
        padding: int = 0,
        dilation: int = 1,
    ) -> "Slab":
        """Return the output of a layer with a kernel, whose numbers on the first spatial axis are given.

        `layer` gets the cells that this part's outputs need, zeros of the padding included, and adds none there.
        """
        reach, size = dilation * (kernel_size - 1), self.borders[-1]
        num_outputs = max(0, (size + 2 * padding - reach - 1) // stride + 1)
        borders = (*(min(-(-border // stride), num_outputs) for border in self.borders[:-1]), num_outputs)
        windows = [
            range(part.start * stride - padding, (part.stop - 1) * stride - padding + reach + 1) if part else range(0)
            for part in _parts(borders)
        ]
        if windows[self.group.part]:
            return self.replace(layer(self._window(windows)), borders)
        # The layer runs on zeros, and its output is left out: so that the backward comes here as on other parts.
        output = layer(self._window(windows, at_least=reach + 1))
        return self.replace(output.narrow(_AXIS, 0, 0), borders)

    def _window(self, windows: Sequence[range], *, at_least: int = 0) -> Tensor:
        """Return the cells of a window, which each part has: zeros where the grid has none."""
        part, slabs = self.group.part, _parts(self.borders)
        if list(windows) == slabs and not at_least:
            return self.features
        cells = [[_shared(slab, window) for window in windows] for slab in slabs]  # of the part, for the part
        kept, first, start = cells[part][part], slabs[part].start, windows[part].start
        for number in range(len(slabs)):
            cells[number][number] = range(0)
        exchanges = any(any(of_part) for of_part in cells)  # known to all parts
        ours, theirs = cells[part], [of_part[part] for of_part in cells]

        def moved(
            tensor: Tensor, sent: Sequence[range], received: Sequence[range], origin: int, target: int, length: int
        ) -> Tensor:
            """Return cells that stay and cells received, of a tensor that begins at `origin`, as one at `target`."""
            total = tensor.new_zeros(*tensor.shape[:_AXIS], length, *tensor.shape[_AXIS + 1 :])
            _at(total, kept, target).copy_(_at(tensor, kept, origin))
            if exchanges:
                rows = torch.cat([_at(tensor, each, origin).movedim(_AXIS, 0) for each in sent])
                counts = [len(each) for each in received]
                rows = self.group.exchange(rows, [len(each) for each in sent], counts)
                for each, piece in zip(received, rows.split(counts), strict=True):
                    _at(total, each, target).add_(piece.movedim(0, _AXIS))
            return total

        length = max(at_least, len(windows[part]))
        fetch = partial(moved, sent=ours, received=theirs, origin=first, target=start, length=length)
        give_back = partial(moved, sent=theirs, received=ours, origin=start, target=first, length=len(slabs[part]))
        return _exchange_with_gradient(self.features, fetch, give_back)


def slab_of_grid(
    coordinates: Tensor,
    features: Tensor,
    size: int,
    *,
    shares: Sequence[float],
    num_samples: int,
    group: SceneGroup,
) -> Slab:
    """Lay the rows of all parts out on a grid as `dense_grid` does, of which each part has a slab.

    Args:
        coordinates: int32 [N, 1 + D] of this part's voxels, batch index first.
        features: [N, C] of them.
        size: Cells of the grid along each axis.
        shares: Share of the cells of each part.
        num_samples: Samples of the minibatch.
        group: The processes, one for each part.

    Raises:
        InputError: A coordinate lies outside the grid.
    """
    borders, part = _borders(size, shares), group.part
    first = _cells(coordinates, size)[:, 1].contiguous()
    owners = torch.bucketize(first, torch.tensor(borders[1:-1], device=first.device, dtype=first.dtype), right=True)
    order, sent = torch.argsort(owners, stable=True), torch.bincount(owners, minlength=len(shares)).tolist()
    coordinates, received = exchanged(coordinates.index_select(0, order), sent, group)
    there = partial(group.exchange, sent=sent, received=received)
    back = partial(group.exchange, sent=received, received=sent)
    rows = _exchange_with_gradient(features.index_select(0, order), there, back)
    # In one order, however voxels were divided: two that share a cell, at the far face, are laid out in turn.
    key = coordinates.new_zeros(len(coordinates), dtype=torch.int64)
    for axis in coordinates.unbind(dim=1):
        key = key * (size + 1) + axis
    order = torch.argsort(key)
    cells = _cells(coordinates.index_select(0, order), size)
    cells[:, 1] -= borders[part]
    shape = [num_samples, borders[part + 1] - borders[part], *[size] * (cells.shape[1] - 2)]
    return Slab(_laid_out(cells, rows.index_select(0, order), shape), borders, group)


def _borders(size: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divide cells by shares, at multiples of the largest power of two that leaves the parts even."""
    ends = [size * end / sum(shares) for end in itertools.accumulate(shares)]
    step = 1 << (size.bit_length() - 1)
    while True:
        borders = (0, *(min(size, step * round(end / step)) for end in ends[:-1]), size)
        widest = max(len(part) / share for part, share in zip(_parts(borders), shares, strict=True))
        if step == 1 or widest <= _UNEVEN * size / sum(shares):
            return borders
        step //= 2


def _parts(borders: Sequence[int]) -> list[range]:
    return [range(start, stop) for start, stop in itertools.pairwise(borders)]


def _shared(first: range, second: range) -> range:
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))


def exchanged(rows: Tensor, sent: Sequence[int], group: SceneGroup) -> tuple[Tensor, tuple[int, ...]]:
    """Send `sent[p]` rows to each part p; return those received, by part, and how many each part sent."""
    sizes = group.gather(torch.tensor(sent, device=rows.device))
    received = tuple(int(size[group.part]) for size in sizes)
    return group.exchange(rows, sent, received), received


def sum_over_parts(values: Tensor, group: Group) -> Tensor:
    """Return the sum of a tensor over all parts; its gradient is the sum of theirs."""

    def total(own: Tensor) -> Tensor:
        own = own.clone()
        group.sum(own)
        return own

    return _exchange_with_gradient(values, total, total)


def _exchange_with_gradient(
    tensor: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return what an exchange of all parts gives of a tensor; `back` does so of its gradient."""
    return _Exchange.apply(tensor, there, back)  # type: ignore[no-untyped-call, no-any-return]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.back = back
        return there(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


def _at(tensor: Tensor, cells: range, first: int) -> Tensor:
    """Return the view of some cells of a tensor whose cells begin with the number `first`."""
    return tensor.narrow(_AXIS, cells.start - first if cells else 0, len(cells))


class DenseConvolution(nn.modules.conv._ConvNd):
    """A convolution of grids or slabs; its state_dict is that of torch's own."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int,
        stride: int = 1,
        dilation: int = 1,
        padding: int = 0,
        bias: bool = False,
        dimension: int = 3,
    ) -> None:
        sizes, strides, paddings, dilations = (
            (number,) * dimension for number in (kernel_size, stride, padding, dilation)
        )
        super().__init__(
            in_channels, out_channels, sizes, strides, paddings, dilations, False, (0,) * dimension, 1, bias, "zeros"
        )
        self._paddings = paddings

    def forward(self, input: Tensor | Slab) -> Tensor | Slab:
        if isinstance(input, Tensor):
            return self._convolve(input, padding=self._paddings[0])
        return input.through(
            partial(self._convolve, padding=0),
            kernel_size=self.kernel_size[0],
            stride=self.stride[0],
            padding=self._paddings[0],
            dilation=self.dilation[0],
        )

    def _convolve(self, cells: Tensor, *, padding: int) -> Tensor:
        """Convolve cells [B, C, n, ...]. `padding`: along the first axis."""
        convolve, paddings = _CONVOLUTIONS[len(self.kernel_size)], (padding, *self._paddings[1:])
        return convolve(cells, self.weight, self.bias, self.stride, paddings, self.dilation)


class DenseBatchNorm(GroupBatchNorm):
    """Batch norm over the cells of a grid, or of all slabs."""

    def __init__(self, channels: int, *, dimension: int = 3) -> None:
        super().__init__(channels)

    def forward(self, input: Tensor | Slab, group: Group | None = None) -> Any:
        if isinstance(input, Tensor):
            return super().forward(input, group)
        return input.replace(super().forward(input.features, input.group))


class DenseMaxPool(nn.Module):
    """The maximum of the cells under each kernel."""

    def __init__(self, *, kernel_size: int, stride: int, dimension: int = 3) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.dimension = kernel_size, stride, dimension

    def forward(self, input: Tensor | Slab) -> Tensor | Slab:
        if isinstance(input, Tensor):
            return self._pool(input)
        return input.through(self._pool, kernel_size=self.kernel_size, stride=self.stride)

    def _pool(self, cells: Tensor) -> Tensor:
        return _MAX_POOLS[self.dimension](cells, self.kernel_size, self.stride)


class Flatten(nn.Module):
    """Lay each sample's grid out in a row; of slabs, every process gets the rows of whole grids."""

    def forward(self, input: Tensor | Slab) -> Tensor:
        return (input if isinstance(input, Tensor) else input.whole()).flatten(1)


DENSE_LAYERS: dict[str, Callable[..., nn.Module]] = {
    "dense_convolution": DenseConvolution,
    "dense_batch_norm": DenseBatchNorm,
    "dense_max_pool": DenseMaxPool,
    "flatten": Flatten,
}
