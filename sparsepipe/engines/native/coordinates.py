"""Voxel coordinates as sorted 64-bit keys, and the coordinate sets and kernel maps of one minibatch."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError

Stride = tuple[int, ...]

# dimension -> bits per spatial axis; what is left of 63 bits holds the batch index:
#   | batch | axis 1 | ... | axis D |      order of keys = lexicographic order of (batch, axis 1, ..., axis D)
_AXIS_BITS = {1: 31, 2: 22, 3: 16, 4: 12}


@dataclass(frozen=True, slots=True)
class KernelMap:
    """Which input row meets which output row under which kernel offset.

    Pairs are grouped by offset, `counts[k]` of them for offset k, and within one offset both columns grow. The centre
    of an odd kernel that keeps its coordinates pairs every row with itself: it is named `identity` and holds no pairs.
    """

    in_rows: Tensor  # int64 [P]
    out_rows: Tensor  # int64 [P]
    counts: tuple[int, ...]
    num_in: int
    num_out: int
    identity: int | None = None

    def segments(self) -> list[tuple[int, Tensor, Tensor]]:
        """List (offset, input rows, output rows) of the offsets that hold pairs."""
        columns = zip(self.in_rows.split(self.counts), self.out_rows.split(self.counts), strict=True)
        return [(k, in_rows, out_rows) for k, (in_rows, out_rows) in enumerate(columns) if len(in_rows)]

    @property
    def num_pairs(self) -> int:
        return len(self.in_rows) + (self.num_out if self.identity is not None else 0)

    def transposed(self) -> "KernelMap":
        return KernelMap(self.out_rows, self.in_rows, self.counts, self.num_out, self.num_in, self.identity)


def pack(coordinates: Tensor) -> Tensor:
    """Pack integer coordinates [N, 1 + D] into int64 keys [N].

    An outer quarter of each axis stays free, so that a key plus a kernel offset never runs into the next axis.
    Raises InputError for a dimension other than 1 to 4 and for coordinates that do not fit.
    """
    dimension = coordinates.shape[1] - 1
    if dimension not in _AXIS_BITS:
        raise InputError(f"coordinates with {dimension} spatial axes: expected 1 to 4, after the batch index")
    bits = _AXIS_BITS[dimension]
    limit, samples = 3 << (bits - 3), 1 << (63 - bits * dimension)
    coordinates = coordinates.long()
    if len(coordinates):
        low, high = coordinates.amin(0).tolist(), coordinates.amax(0).tolist()
        if low[0] < 0 or high[0] >= samples:
            raise InputError(f"batch indices {low[0]}..{high[0]}: expected 0..{samples - 1} in {dimension} dimensions")
        if min(low[1:]) < -limit or max(high[1:]) >= limit:
            raise InputError(
                f"voxel coordinates {min(low[1:])}..{max(high[1:])}: expected {-limit}..{limit - 1} in {dimension} "
                "dimensions; use a larger voxel size or centre the cloud"
            )
    keys = coordinates[:, 0]
    for axis in range(1, dimension + 1):
        keys = (keys << bits) + (coordinates[:, axis] + (1 << (bits - 1)))
    return keys


def unpack(keys: Tensor, dimension: int) -> Tensor:
    """Return the int32 coordinates [N, 1 + D] of keys."""
    bits = _AXIS_BITS[dimension]
    columns = []
    for axis in range(dimension):
        columns.append(((keys >> (bits * (dimension - 1 - axis))) & ((1 << bits) - 1)) - (1 << (bits - 1)))
    return torch.stack([keys >> (bits * dimension), *columns], dim=1).int()


def batch_index(keys: Tensor, dimension: int) -> Tensor:
    return keys >> (_AXIS_BITS[dimension] * dimension)


def kernel_offsets(kernel_size: int, dimension: int) -> tuple[tuple[int, ...], ...]:
    """List a kernel's offsets as MinkowskiEngine does: first axis fastest, odd sizes centred, even ones from 0."""
    first = -(kernel_size // 2) if kernel_size % 2 else 0
    reach = range(first, first + kernel_size)
    return tuple(offset[::-1] for offset in itertools.product(reach, repeat=dimension))


def _key_step(step: tuple[int, ...]) -> int:
    """Return what must be added to a key to move by `step`: axes do not interfere inside the packable range."""
    bits = _AXIS_BITS[len(step)]
    return sum(amount << (bits * (len(step) - 1 - axis)) for axis, amount in enumerate(step))


class CoordinateManager:
    """The coordinate sets of one minibatch, by tensor stride, and the kernel maps between them, each built once."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._keys: dict[Stride, Tensor] = {}
        self._maps: dict[tuple[Stride, Stride, int, int], KernelMap] = {}
        self._coordinates: dict[Stride, Tensor] = {}
        self._sample_sizes: dict[Stride, tuple[int, ...]] = {}

    def insert(self, stride: Stride, keys: Tensor) -> None:
        """Add a coordinate set whose keys are sorted and distinct."""
        self._keys[stride] = keys

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

    def downsampled(self, stride: Stride, factor: int) -> Stride:
        """Make the set `factor` times coarser, floor(c / stride) * stride each once; return its tensor stride."""
        out_stride = tuple(step * factor for step in stride)
        if out_stride not in self._keys:
            coordinates = self.coordinates(stride).long()
            steps = torch.tensor((1, *out_stride), device=coordinates.device)
            coordinates = coordinates.div(steps, rounding_mode="floor") * steps
            self._keys[out_stride] = torch.unique(pack(coordinates))
        return out_stride

    def kernel_map(self, in_stride: Stride, out_stride: Stride, *, kernel_size: int, dilation: int = 1) -> KernelMap:
        """Pair rows by a kernel laid on the coordinates of `out_stride`, in steps of `in_stride` times `dilation`."""
        cached = (in_stride, out_stride, kernel_size, dilation)
        if cached not in self._maps:
            self._maps[cached] = self._build(in_stride, out_stride, kernel_size, dilation)
        return self._maps[cached]

    def _build(self, in_stride: Stride, out_stride: Stride, kernel_size: int, dilation: int) -> KernelMap:
        in_keys, out_keys = self._keys[in_stride], self._keys[out_stride]
        offsets = kernel_offsets(kernel_size, self.dimension)
        steps = [
            _key_step(tuple(o * s * dilation for o, s in zip(offset, in_stride, strict=True))) for offset in offsets
        ]
        if in_stride == out_stride and kernel_size % 2:
            return _centred_map(in_keys, steps)
        in_rows, out_rows, counts = _search(in_keys, out_keys, steps)
        return KernelMap(in_rows, out_rows, counts, len(in_keys), len(out_keys))


def _search(in_keys: Tensor, out_keys: Tensor, steps: list[int]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """For each step, pair every output key with the input key that lies one step away, where there is one."""
    wanted = out_keys + torch.tensor(steps, device=out_keys.device).unsqueeze(1)  # [K, M]
    place = torch.searchsorted(in_keys, wanted).clamp_(max=max(len(in_keys) - 1, 0))
    found = in_keys[place] == wanted
    _, out_rows = found.nonzero(as_tuple=True)  # by offset, then by output row
    return place[found], out_rows, tuple(found.sum(1).tolist())


def _centred_map(keys: Tensor, steps: list[int]) -> KernelMap:
    """Build the map of an odd kernel that keeps its coordinates: offset -k is offset k with the two columns swapped."""
    half = len(steps) // 2
    in_rows, out_rows, counts = _search(keys, keys, steps[:half])
    return KernelMap(
        torch.cat([in_rows, *reversed(out_rows.split(counts))]),
        torch.cat([out_rows, *reversed(in_rows.split(counts))]),
        (*counts, 0, *reversed(counts)),
        len(keys),
        len(keys),
        identity=half,
    )
