"""Voxel coordinates as sorted 64-bit keys, and the coordinate manager of one minibatch."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...models.rows import each_axis
from .kernel_map import KernelMap, kernel_map, tiling_map

Stride = tuple[int, ...]

# dimension -> bits per spatial axis; what is left of 63 bits holds the batch index:
#   | batch | axis 1 | ... | axis D |      order of keys = lexicographic order of (batch, axis 1, ..., axis D)
_AXIS_BITS = {1: 31, 2: 22, 3: 16, 4: 12}
_STEPS = {1: 5760, 2: 5760, 3: 5760, 4: 240}  # voxels; samples move by these: usual tensor strides divide them


def times(stride: Stride, factor: int | Sequence[int]) -> Stride:
    """Return a tensor stride that is `factor` times as coarse, on all axes alike or on each by its own."""
    return tuple(step * own for step, own in zip(stride, each_axis(factor, len(stride)), strict=True))


def _limit(dimension: int) -> int:
    return 3 << (_AXIS_BITS[dimension] - 3)


def within_reach(coordinates: Tensor, limit: int | None = None) -> Tensor:
    """Return coordinates [N, 1 + D] with each sample moved near the origin, where any is too far from it to be packed.

    `limit` is how far the caller can reach where not as far as keys do.

    The order of voxels within a sample stays, and so does what a network whose tensor strides divide the step makes of
    them. What fits, and what `pack` refuses for another reason, is returned as it is.
    """
    dimension = coordinates.shape[1] - 1
    if dimension not in _AXIS_BITS or not len(coordinates):
        return coordinates
    limit, index = limit or _limit(dimension), coordinates[:, 0].long()
    low, high = (int(bound) for bound in torch.aminmax(coordinates[:, 1:]))
    if (-limit <= low and high < limit) or int(index.min()) < 0:
        return coordinates
    places = coordinates[:, 1:].long()
    rows = index[:, None].expand_as(places)
    bounds = places.new_zeros(int(index.max()) + 1, dimension)
    lows, highs = (bounds.scatter_reduce(0, rows, places, how, include_self=False) for how in ("amin", "amax"))
    step = _STEPS[dimension]
    origins = (lows + highs).div(2 * step, rounding_mode="floor") * step
    moved = (places - origins.index_select(0, index)).to(coordinates.dtype)
    return torch.cat([coordinates[:, :1], moved], dim=1)


def pack(coordinates: Tensor) -> Tensor:
    """Pack integer coordinates [N, 1 + D] into int64 keys [N].

    An outer quarter of each axis stays free, so that a key plus a kernel offset never runs into the next axis.
    Raises InputError for a dimension other than 1 to 4 and for coordinates that do not fit.
    """
    dimension = coordinates.shape[1] - 1
    if dimension not in _AXIS_BITS:
        raise InputError(f"coordinates with {dimension} spatial axes: expected 1 to 4, after the batch index")
    bits = _AXIS_BITS[dimension]
    limit, samples = _limit(dimension), 1 << (63 - bits * dimension)
    coordinates = coordinates.long()
    if len(coordinates):
        low, high = (bound.tolist() for bound in torch.aminmax(coordinates, dim=0))
        if low[0] < 0 or high[0] >= samples:
            raise InputError(f"batch indices {low[0]}..{high[0]}: expected 0..{samples - 1} in {dimension} dimensions")
        if min(low[1:]) < -limit or max(high[1:]) >= limit:
            raise InputError(
                f"voxel coordinates {min(low[1:])}..{max(high[1:])}: expected {-limit}..{limit - 1} in {dimension} "
                "dimensions; use a larger voxel size or cut the cloud into pieces"
            )
    keys = coordinates[:, 0]
    for axis in range(1, dimension + 1):
        keys = (keys << bits).add_(coordinates[:, axis])
    return keys.add_(sum(1 << (bits * (axis + 1) - 1) for axis in range(dimension)))


def unpack(keys: Tensor, dimension: int) -> Tensor:
    """Return the int32 coordinates [N, 1 + D] of keys."""
    bits = _AXIS_BITS[dimension]
    columns = []
    for axis in range(dimension):
        columns.append(((keys >> (bits * (dimension - 1 - axis))) & ((1 << bits) - 1)) - (1 << (bits - 1)))
    return torch.stack([keys >> (bits * dimension), *columns], dim=1).int()


def batch_index(keys: Tensor, dimension: int) -> Tensor:
    return keys >> (_AXIS_BITS[dimension] * dimension)


class CoordinateManager:
    """The coordinate sets of one minibatch, by tensor stride, and the kernel maps between them, each built once."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._keys: dict[Stride, Tensor] = {}
        self._maps: dict[tuple[Stride, Stride, tuple[int, ...], tuple[int, ...]], KernelMap] = {}
        self._coordinates: dict[Stride, Tensor] = {}
        self._floored_keys: dict[tuple[Stride, Stride], Tensor] = {}
        self._sample_sizes: dict[Stride, tuple[int, ...]] = {}

    def insert(self, stride: Stride, keys: Tensor, coordinates: Tensor | None = None) -> None:
        """Add a coordinate set whose keys are sorted and distinct, with its int32 coordinates where they are known."""
        self._keys[stride] = keys
        if coordinates is not None:
            self._coordinates[stride] = coordinates

    def __contains__(self, stride: Stride) -> bool:
        return stride in self._keys

    def keys(self, stride: Stride) -> Tensor:
        return self._keys[stride]

    def coordinates(self, stride: Stride) -> Tensor:
        """Return int32 coordinates [N, 1 + D] in row order."""
        if stride not in self._coordinates:
            self._coordinates[stride] = unpack(self._keys[stride], self.dimension)
        return self._coordinates[stride]

    def sample_sizes(self, stride: Stride) -> tuple[int, ...]:
        """Return the number of voxels of each sample. Rows are sorted, so a sample's rows are consecutive."""
        if stride not in self._sample_sizes:
            counts = torch.bincount(batch_index(self._keys[stride], self.dimension))
            self._sample_sizes[stride] = tuple(counts.tolist())
        return self._sample_sizes[stride]

    def downsampled(self, stride: Stride, factor: int | Sequence[int]) -> Stride:
        """Make the set `factor` times coarser, floor(c / stride) * stride each once; return its tensor stride."""
        out_stride = times(stride, factor)
        if out_stride not in self._keys:
            self._keys[out_stride] = torch.unique(self._floored(stride, out_stride))
        return out_stride

    def _floored(self, stride: Stride, out_stride: Stride) -> Tensor:
        """Return the key of floor(c / out_stride) * out_stride for each row of the set at `stride`."""
        if (stride, out_stride) not in self._floored_keys:
            coordinates = self.coordinates(stride)
            steps = torch.tensor((1, *out_stride), device=coordinates.device, dtype=torch.int32)
            self._floored_keys[stride, out_stride] = pack(coordinates.div(steps, rounding_mode="floor").mul_(steps))
        return self._floored_keys[stride, out_stride]

    def kernel_map(
        self,
        in_stride: Stride,
        out_stride: Stride,
        *,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
    ) -> KernelMap:
        """Pair rows by a kernel laid on the coordinates of `out_stride`, in steps of `in_stride` times `dilation`."""
        sizes, dilations = each_axis(kernel_size, self.dimension), each_axis(dilation, self.dimension)
        cached = (in_stride, out_stride, sizes, dilations)
        if cached not in self._maps:
            ends = self.coordinates(in_stride), self.coordinates(out_stride)
            from_0 = max(sizes) > 1 == max(dilations) and all(size == 1 or size % 2 == 0 for size in sizes)
            if from_0 and out_stride == times(in_stride, sizes) and len(ends[1]):
                parents = self._parents(in_stride, out_stride)
                self._maps[cached] = tiling_map(ends[0], parents, len(ends[1]), in_stride, sizes)
            else:
                self._maps[cached] = kernel_map(*ends, in_stride, kernel_size=sizes, dilation=dilations)
        return self._maps[cached]

    @property
    def map_bytes(self) -> int:
        """Bytes of keys and kernel maps, and of all that was derived from them, each storage once.

        Coordinates are left out: a profile has them in a figure of their own.
        """
        kept = _tensors_in([self._keys, self._floored_keys, self._maps], seen=set())
        storages = [tensor.untyped_storage() for tensor in kept]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _parents(self, stride: Stride, out_stride: Stride) -> Tensor:
        """Return the row at `out_stride` of each row at `stride`, -1 where it is not there."""
        keys, wanted = self._keys[out_stride], self._floored(stride, out_stride)
        rows = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        return torch.where(keys.index_select(0, rows) == wanted, rows, -1)


def _tensors_in(value: Any, *, seen: set[int]) -> Iterator[Tensor]:
    """Find every tensor in a value, in containers and in dataclasses, what they have cached included."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        parts: list[Any] = []
        if isinstance(value, dict):
            parts = list(value.values())
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        elif is_dataclass(value):
            parts = [getattr(value, field.name) for field in fields(value)]
            parts += getattr(value, "__dict__", {}).values()
        for part in parts:
            yield from _tensors_in(part, seen=seen)
