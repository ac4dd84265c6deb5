"""Voxel coordinates as sorted 64-bit keys, and the coordinate manager of one minibatch."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...data.reach import AXIS_BITS, check_within, reach
from ...errors import InputError
from ...networks.rows import each_axis
from .kernel_map import KernelMap, Offsets, Search, kernel_map, rows_in_box, tiling_map
from .serialisation import Windows, curve_order, places_in_samples, windows
from .tuning import fastest, hash_tables

Stride = tuple[int, ...]


def times(stride: Stride, factor: int | Sequence[int]) -> Stride:
    """Return a tensor stride that is `factor` times as coarse, on all axes equally or on each by its own."""
    return tuple(step * axis_stride for step, axis_stride in zip(stride, each_axis(factor, len(stride)), strict=True))


def pack(coordinates: Tensor) -> Tensor:
    """Pack integer coordinates [N, 1 + D] into int64 keys [N].

        | batch | axis 1 | ... | axis D |      order of keys = lexicographic order of (batch, axis 1, ..., axis D)

    Raises InputError for a dimension other than 1 to 4 and for coordinates that do not fit.
    """
    dimension = coordinates.shape[1] - 1
    limit, bits = reach("native", dimension), AXIS_BITS[dimension]
    samples = 1 << (63 - bits * dimension)
    coordinates = coordinates.long()
    if len(coordinates):
        low, high = (int(bound) for bound in torch.aminmax(coordinates[:, 0]))
        if low < 0 or high >= samples:
            raise InputError(
                "batch.index_out_of_range",
                f"batch indices range from {low} to {high}, expected 0 to {samples - 1} in {dimension} dimensions",
            )
        check_within(coordinates, limit)
    keys = coordinates[:, 0]
    for axis in range(1, dimension + 1):
        keys = (keys << bits).add_(coordinates[:, axis])
    return keys.add_(sum(1 << (bits * (axis + 1) - 1) for axis in range(dimension)))


def unpack(keys: Tensor, dimension: int) -> Tensor:
    """Return the int32 coordinates [N, 1 + D] of keys."""
    bits = AXIS_BITS[dimension]
    columns = []
    for axis in range(dimension):
        columns.append(((keys >> (bits * (dimension - 1 - axis))) & ((1 << bits) - 1)) - (1 << (bits - 1)))
    return torch.stack([keys >> (bits * dimension), *columns], dim=1).int()


def batch_index(keys: Tensor, dimension: int) -> Tensor:
    return keys >> (AXIS_BITS[dimension] * dimension)


class CoordinateManager:
    """The coordinate sets of one minibatch, by tensor stride, with kernel maps and windows, each built once."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._keys: dict[Stride, Tensor] = {}
        self._maps: dict[tuple[Stride, Stride, tuple[int, ...], tuple[int, ...]], KernelMap] = {}
        self._coordinates: dict[Stride, Tensor] = {}
        self._floored_keys: dict[tuple[Stride, Stride], Tensor] = {}
        self._sample_sizes: dict[Stride, tuple[int, ...]] = {}
        self._places: dict[Stride, tuple[Tensor, Tensor]] = {}
        self._windows: dict[tuple[Stride, str, int], Windows] = {}

    def insert(self, stride: Stride, keys: Tensor, coordinates: Tensor | None = None) -> None:
        """Add a coordinate set whose keys are sorted and distinct, with its int32 coordinates where they are known."""
        self._keys[stride] = keys
        if coordinates is not None:
            self._coordinates[stride] = coordinates

    def share(self, stride: Stride, coordinates: Tensor, other: "CoordinateManager") -> bool:
        """Add the set of `other` at a stride if it has these coordinates; return whether it has them.

        What `other` has made of sets that both have, such as kernel maps, comes along. The tensors are the same.
        """
        if stride not in other or not torch.equal(other.coordinates(stride), coordinates):
            return False
        self._keys[stride] = other._keys[stride]
        both = {step for step, keys in self._keys.items() if other._keys.get(step) is keys}
        self._coordinates |= {step: other.coordinates(step) for step in both}
        self._sample_sizes |= {step: sizes for step, sizes in other._sample_sizes.items() if step in both}
        self._places |= {step: places for step, places in other._places.items() if step in both}
        self._floored_keys |= {key: keys for key, keys in other._floored_keys.items() if key[0] in both}
        self._windows |= {key: made for key, made in other._windows.items() if key[0] in both}
        self._maps |= {key: made for key, made in other._maps.items() if both.issuperset(key[:2])}
        return True

    def like(self, stride: Stride, keys: Tensor) -> "CoordinateManager":
        """Return a manager of another coordinate set, such as a union."""
        manager = CoordinateManager(self.dimension)
        manager.insert(stride, keys)
        return manager

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

    def places(self, stride: Stride) -> tuple[Tensor, Tensor]:
        """Return how far each voxel lies from its sample's corner, and the farthest: see `places_in_samples`."""
        if stride not in self._places:
            num_samples = len(self.sample_sizes(stride))
            self._places[stride] = places_in_samples(self.coordinates(stride), stride, num_samples)
        return self._places[stride]

    def windows(self, stride: Stride, curve: str, size: int) -> Windows:
        """Return the windows of `size` voxels that follow each other on a curve through each sample."""
        if (stride, curve, size) not in self._windows:
            order = curve_order(self.coordinates(stride), *self.places(stride), curve)
            self._windows[stride, curve, size] = windows(order, self.sample_sizes(stride), size)
        return self._windows[stride, curve, size]

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
            entering, leaving = self.coordinates(in_stride), self.coordinates(out_stride)
            from_0 = max(sizes) > 1 == max(dilations) and all(size == 1 or size % 2 == 0 for size in sizes)
            if from_0 and out_stride == times(in_stride, sizes) and len(leaving):
                parents = self._parents(in_stride, out_stride)
                self._maps[cached] = tiling_map(entering, parents, len(leaving), in_stride, sizes)
            else:
                search = self._hashed_search(in_stride, out_stride, dilations)
                self._maps[cached] = kernel_map(
                    entering, leaving, in_stride, kernel_size=sizes, dilation=dilations, search=search
                )
        return self._maps[cached]

    def _hashed_search(self, in_stride: Stride, out_stride: Stride, dilations: tuple[int, ...]) -> Search | None:
        """Return how rows are found where a hash table can be had: by it or by the box, as is faster on the device."""
        keys, wanted = self._keys[in_stride], self._keys[out_stride]
        tables = hash_tables(keys)
        if tables is None:
            return None
        bits, units = AXIS_BITS[self.dimension], times(in_stride, dilations)
        weights = [unit << (bits * (self.dimension - 1 - axis)) for axis, unit in enumerate(units)]

        def search(offsets: Offsets) -> Tensor:
            entering, leaving = self.coordinates(in_stride), self.coordinates(out_stride)
            in_box = partial(rows_in_box, entering, leaving, offsets, in_stride=in_stride, dilation=dilations)
            farthest = max(unit * abs(step) for offset in offsets for unit, step in zip(units, offset, strict=True))
            if farthest >= 1 << (bits - 2):
                return in_box()  # a key plus such a step could be the key of a voxel elsewhere
            steps = [sum(map(operator.mul, offset, weights)) for offset in offsets]
            hashed = partial(tables.rows_at, keys, wanted, steps)
            ways: dict[str, Callable[[], Tensor]] = {"box": in_box, "hash table": hashed}
            return fastest("kernel map", len(wanted) * len(offsets), ways, keys.device)

        return search

    def upward_map(
        self,
        fine: Stride,
        coarse: Stride,
        *,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
    ) -> KernelMap:
        """Return the map from `coarse` to `fine`: that of the layer down, with its two columns swapped."""
        return self.kernel_map(fine, coarse, kernel_size=kernel_size, dilation=dilation).transposed

    @property
    def map_bytes(self) -> int:
        """Bytes of kernel maps and windows, and of all that was derived from them, each storage once.

        Coordinates and their keys are left out: they are let go with the manager, maps when a backward is done.
        """
        cached_tensors = _tensors_in([self._maps, self._windows], seen=set())
        storages = [tensor.untyped_storage() for tensor in cached_tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _parents(self, stride: Stride, out_stride: Stride) -> Tensor:
        """Return the row at `out_stride` of each row at `stride`, -1 where it does not exist."""
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


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    features: Tensor  # [N, C], rows in the order of the coordinate set's sorted keys
    tensor_stride: Stride
    manager: CoordinateManager

    @property
    def coordinates(self) -> Tensor:
        """int32 [N, 1 + D], batch index first, in row order."""
        return self.manager.coordinates(self.tensor_stride)

    def shares_voxels(self, other: object) -> bool:
        """Return whether `other` is a sparse tensor whose rows lie on the same voxels."""
        if not isinstance(other, SparseTensor) or other.manager is not self.manager:
            return False
        return other.tensor_stride == self.tensor_stride

    def replace(self, features: Tensor, tensor_stride: Stride | None = None) -> "SparseTensor":
        return replace(self, features=features, tensor_stride=tensor_stride or self.tensor_stride)
