"""Kernel maps: for each offset of a convolution kernel, the pairs of input and output voxels that it connects."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as functional
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """For each row of a result the rows it is made of: those of row r are `rows[starts[r]:starts[r + 1]]`."""

    rows: Tensor  # int32 [P]
    starts: Tensor  # int32 [R + 1]

    def sum(self, table: Tensor, weights: Tensor | None = None) -> Tensor:
        """Add up each result row's rows of `table` [T, C], each times its weight: [R, C], 0 if there is none.

        Always in the same order, whatever the number of threads; half precision is summed in single.
        """
        return torch.embedding_bag(table.contiguous(), self.rows, self.starts, False, 0, False, weights, True)[0]

    def max(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Take the maximum of each result row's rows, channel by channel, 0 if there is none, and who gave it.

        Of equals the first one gave it. Returns [R, C] and int32 [R, C].
        """
        maxima = torch.embedding_bag(table.contiguous(), self.rows, self.starts, False, 2, False, None, True)
        return maxima[0], maxima[3]


@dataclass(frozen=True)
class Pairs:
    """All pairs of a kernel map, grouped by kernel offset: `counts[k]` of them for offset k."""

    in_rows: Tensor  # int64 [P]
    out_rows: Tensor  # int64 [P]
    counts: tuple[int, ...]
    num_out: int

    @cached_property
    def ends(self) -> Tensor:
        """int32 [K]: where each offset's pairs end."""
        return torch.tensor(self.counts, device=self.in_rows.device).cumsum(0).int()

    @cached_property
    def bags(self) -> Bags:
        """The pairs of each output row, by offset, named by their place here."""
        return bags(self.out_rows, self.num_out)


def bags(out_rows: Tensor, num_out: int) -> Bags:
    """Return for each of `num_out` rows the positions at which it occurs in `out_rows` [P]."""
    order = torch.sort(out_rows.to(torch.int16 if num_out <= 2**15 else torch.int32), stable=True).indices
    starts = torch.bincount(out_rows, minlength=num_out).cumsum(0)
    return Bags(order.int(), functional.pad(starts, (1, 0)).int())


def summed_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum numbers of a type: half precision in single."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


# A table of all cells of a minibatch's bounding box answers "which row is here?" faster than bisection where it is
# small. In larger boxes it has the cells of blocks that hold voxels alone, and another table tells which these are.
_TABLE_CELLS_PER_QUESTION = 2  # of either table
_BLOCK_BITS = 5  # a block has 2**5 cells, one after the other on the last axis
_TABLE_CELLS = 2**25  # of either, at most: 128 MiB


Offsets = tuple[tuple[int, ...], ...]
Search = Callable[[Offsets], Tensor]  # int32 [K, M]: the input row at each offset of each output voxel, -1: none

_Built = TypeVar("_Built")


class _built_once(Generic[_Built]):  # noqa: N801 - used like functools.cached_property
    """Compute a value from a kernel map at first access, and share it with all transposes.

    A map and its transpose that held each other would be garbage only the collector finds, megabytes a minibatch.
    """

    def __init__(self, build: Callable[["KernelMap"], _Built]) -> None:
        self._build, self._name, self.__doc__ = build, build.__name__, build.__doc__

    def __get__(self, kernel_map: "KernelMap", owner: type) -> _Built:
        built: dict[str, _Built] = kernel_map.built[0]
        if self._name not in built:
            built[self._name] = self._build(kernel_map)
        return built[self._name]


class Offset(NamedTuple):
    """The pairs of one kernel offset."""

    number: int
    in_rows: Tensor
    out_rows: Tensor


@dataclass(frozen=True)
class Chunk:
    """Some kernel offsets with their pairs, one after the other."""

    offsets: tuple[Offset, ...]
    num_out: int

    @cached_property
    def num_pairs(self) -> int:
        return sum(len(offset.out_rows) for offset in self.offsets)

    @cached_property
    def bags(self) -> Bags:
        """The pairs of each output row, named by their place here."""
        return bags(torch.cat([offset.out_rows for offset in self.offsets]), self.num_out)


@dataclass(frozen=True)
class KernelMap:
    """Pairs of input and output rows by kernel offset.

    Pairs are grouped by offset, `counts[k]` of them for offset k, and within one offset both columns grow. The centre
    of an odd kernel that keeps its coordinates pairs every row with itself: it is named `identity` and holds no pairs.
    """

    in_rows: Tensor  # int64 [P]
    out_rows: Tensor  # int64 [P]
    counts: tuple[int, ...]
    num_in: int
    num_out: int
    identity: int | None = None
    # What was derived from it, by name: this way round, and the other.
    built: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}), repr=False, compare=False)

    @property
    def num_pairs(self) -> int:
        return len(self.in_rows) + (self.num_out if self.identity is not None else 0)

    @property
    def transposed(self) -> "KernelMap":
        """The same pairs the other way round."""
        built = self.built[::-1]
        return KernelMap(self.out_rows, self.in_rows, self.counts, self.num_out, self.num_in, self.identity, built)

    @_built_once
    def pairs(self) -> Pairs:
        """Every pair, those of `identity` written out."""
        if self.identity is None:
            return Pairs(self.in_rows, self.out_rows, self.counts, self.num_out)
        same = torch.arange(self.num_out, device=self.in_rows.device)
        before = sum(self.counts[: self.identity])
        ins, outs = (torch.cat([rows[:before], same, rows[before:]]) for rows in (self.in_rows, self.out_rows))
        counts = list(self.counts)
        counts[self.identity] = self.num_out
        return Pairs(ins, outs, tuple(counts), self.num_out)

    @_built_once
    def inputs(self) -> Bags:
        """The input rows of each output row, by offset."""
        return Bags(self.pairs.in_rows.int().index_select(0, self.pairs.bags.rows), self.pairs.bags.starts)

    @_built_once
    def offsets(self) -> Bags:
        """The kernel offsets of each output row's pairs, in the order of `inputs`."""
        device = self.in_rows.device
        offsets = torch.arange(len(self.counts), dtype=torch.int32, device=device)
        offsets = offsets.repeat_interleave(torch.tensor(self.pairs.counts, device=device))
        return Bags(offsets.index_select(0, self.pairs.bags.rows), self.pairs.bags.starts)

    @_built_once
    def outputs_of_offsets(self) -> Bags:
        """The output rows of each kernel offset's pairs."""
        return Bags(self.pairs.out_rows.int(), self.starts.int())

    @_built_once
    def starts(self) -> Tensor:
        """int64 [K + 1]: where each kernel offset's `pairs` start, and where they end."""
        return torch.tensor([0, *itertools.accumulate(self.pairs.counts)], device=self.in_rows.device)

    @_built_once
    def _tiles(self) -> dict[int, Tensor]:
        return {}

    def tiles(self, num_rows: int) -> Tensor:
        """int64 [K, T + 1]: where each offset's `pairs` of each `num_rows` output rows start, and where they end."""
        if num_rows not in self._tiles:
            firsts, places = self._places()
            edges = torch.arange(0, self.num_out + num_rows, num_rows, device=places.device).clamp_(max=self.num_out)
            self._tiles[num_rows] = torch.searchsorted(places, firsts.unsqueeze(1) + edges)
        return self._tiles[num_rows]

    def _places(self) -> tuple[Tensor, Tensor]:
        """Return where rows of a table [K, N_out] start, and the position of each pair, both increasing."""
        counts = torch.tensor(self.pairs.counts, device=self.in_rows.device)
        firsts = torch.arange(len(counts), device=counts.device) * self.num_out
        return firsts, firsts.repeat_interleave(counts) + self.pairs.out_rows

    @_built_once
    def neighbours(self) -> Tensor:
        """int32 [K, N_out]: the input row of each output row under each kernel offset, -1 if there is none."""
        pairs, (_, places) = self.pairs, self._places()
        table = torch.full((len(pairs.counts) * self.num_out,), -1, dtype=torch.int32, device=places.device)
        return table.scatter_(0, places, pairs.in_rows.int()).view(len(pairs.counts), self.num_out)

    @_built_once
    def covers_outputs(self) -> bool:
        """Return whether every output row has an input row."""
        return not self.num_out or bool(self.pairs.out_rows.bincount(minlength=self.num_out).amin() > 0)

    @_built_once
    def pairs_outputs_once(self) -> bool:
        """Return whether every output row has exactly one pair, as those of a kernel no larger than its stride have."""
        return self.num_pairs == self.num_out and self.covers_outputs

    @_built_once
    def offsets_with_pairs(self) -> tuple[Offset, ...]:
        rows = zip(self.in_rows.split(self.counts), self.out_rows.split(self.counts), strict=True)
        return tuple(Offset(k, *row) for k, row in enumerate(rows) if self.counts[k])

    @_built_once
    def offsets_without_pairs(self) -> tuple[int, ...]:
        """List the offsets that pair no rows at all: what is learned there does not change."""
        return tuple(k for k, count in enumerate(self.counts) if not count and k != self.identity)

    @_built_once
    def _chunks(self) -> dict[int, tuple[Chunk, ...]]:
        return {}

    def chunks(self, num_rows: int) -> tuple[Chunk, ...]:
        """Group the offsets that have pairs so that each group has at most `num_rows` pairs, or one offset."""
        if num_rows not in self._chunks:
            groups: list[list[Offset]] = []
            size = 0
            for pair in self.offsets_with_pairs:
                if not groups or size + len(pair.in_rows) > num_rows:
                    groups.append([])
                    size = 0
                groups[-1].append(pair)
                size += len(pair.in_rows)
            self._chunks[num_rows] = tuple(Chunk(tuple(group), self.num_out) for group in groups)
        return self._chunks[num_rows]


def kernel_offsets(kernel_size: Sequence[int]) -> Offsets:
    """List a kernel's offsets as MinkowskiEngine does: first axis fastest, odd sizes centred, even ones from 0."""
    firsts = (-(size // 2) if size % 2 else 0 for size in kernel_size)
    reaches = [range(first, first + size) for first, size in zip(firsts, kernel_size, strict=True)]
    return tuple(offset[::-1] for offset in itertools.product(*reversed(reaches)))


def kernel_map(
    in_coordinates: Tensor,
    out_coordinates: Tensor,
    in_stride: tuple[int, ...],
    *,
    kernel_size: tuple[int, ...],
    dilation: tuple[int, ...],
    search: Search | None = None,
) -> KernelMap:
    """Pair rows by a kernel laid on each of `out_coordinates`, in steps of `in_stride` times `dilation`.

    Coordinates are int32 [N, 1 + D], batch index first, sorted and distinct, multiples of `in_stride`. Of an odd kernel
    that keeps its coordinates, the very tensor, half is searched: offset -k is offset k with its columns swapped.
    `search` finds the input rows, without it a table of the cells of the bounding box does.
    """
    offsets = kernel_offsets(kernel_size)
    num_in, num_out = len(in_coordinates), len(out_coordinates)

    def pairs_of(searched: Offsets) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        if not searched or not num_in or not num_out:
            none = in_coordinates.new_empty(0, dtype=torch.int64)
            return none, none, (0,) * len(searched)
        if search is not None:
            return _pairs(search(searched))
        return _pairs(rows_in_box(in_coordinates, out_coordinates, searched, in_stride=in_stride, dilation=dilation))

    if in_coordinates is not out_coordinates or any(size % 2 == 0 for size in kernel_size):
        in_rows, out_rows, counts = pairs_of(offsets)
        return KernelMap(in_rows, out_rows, counts, num_in, num_out)
    half = len(offsets) // 2
    in_rows, out_rows, counts = pairs_of(offsets[:half])
    return KernelMap(
        torch.cat([in_rows, *reversed(out_rows.split(counts))]),
        torch.cat([out_rows, *reversed(in_rows.split(counts))]),
        (*counts, 0, *reversed(counts)),
        num_in,
        num_out,
        identity=half,
    )


def tiling_map(
    in_coordinates: Tensor, parents: Tensor, num_out: int, step: tuple[int, ...], size: tuple[int, ...]
) -> KernelMap:
    """Pair every input row with the one output row, `parents` [N], whose kernel, as wide as its stride, holds it.

    `step` is the inputs' tensor stride; kernels start at 0 on every axis. Inputs without a parent, -1, are left out.
    """
    units = torch.tensor(step, device=in_coordinates.device)
    sizes = torch.tensor(size, device=in_coordinates.device)
    places = in_coordinates[:, 1:].div(units, rounding_mode="floor").remainder_(sizes)
    volume = math.prod(size)
    offsets = (places * torch.tensor([math.prod(size[:k]) for k in range(len(size))], device=places.device)).sum(dim=1)
    offsets = torch.where(parents >= 0, offsets, volume)
    order = torch.sort(offsets, stable=True).indices
    counts = torch.bincount(offsets, minlength=volume + 1)[:-1].tolist()
    order = order[: sum(counts)]
    return KernelMap(order, parents.index_select(0, order), tuple(counts), len(in_coordinates), num_out)


def rows_in_box(
    in_coordinates: Tensor,
    out_coordinates: Tensor,
    offsets: Offsets,
    *,
    in_stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Return for each offset and output voxel the row of the input voxel that lies there, -1 if there is none.

    Voxels become cell numbers of a box, in units of `in_stride`, that holds all inputs and all places looked at. So an
    offset is one number to add to a cell, and never runs into the next row of cells.
    """
    reach = (
        0,
        *(
            axis_stride * max(map(abs, steps))
            for axis_stride, steps in zip(dilation, zip(*offsets, strict=True), strict=True)
        ),
    )
    units = torch.tensor((1, *in_stride), device=in_coordinates.device)
    inputs = in_coordinates.div(units, rounding_mode="floor")
    outputs = inputs if out_coordinates is in_coordinates else out_coordinates.div(units, rounding_mode="floor")
    bounds = torch.stack([inputs.amin(0), outputs.amin(0), inputs.amax(0), outputs.amax(0)]).tolist()
    low = [min(ends) - far for *ends, far in zip(*bounds[:2], reach, strict=True)]
    high = [max(ends) + far for *ends, far in zip(*bounds[2:], reach, strict=True)]
    sizes = [top - bottom + 1 for bottom, top in zip(low, high, strict=True)]
    strides = [math.prod(sizes[position + 1 :]) for position in range(len(sizes))]
    weights = torch.tensor(strides, device=inputs.device)
    origin = sum(bottom * stride for bottom, stride in zip(low, strides, strict=True))
    kind = torch.int32 if math.prod(sizes) < 2**31 else torch.int64
    in_cells = _cells(inputs, weights, origin).to(kind)
    out_cells = in_cells if outputs is inputs else _cells(outputs, weights, origin).to(kind)
    along = [axis_stride * stride for axis_stride, stride in zip(dilation, strides[1:], strict=True)]
    steps = [sum(o * step for o, step in zip(offset, along, strict=True)) for offset in offsets]
    wanted = out_cells + torch.tensor(steps, dtype=out_cells.dtype, device=out_cells.device).unsqueeze(1)  # [K, M]
    return _look_up(in_cells, wanted, math.prod(sizes))


def _pairs(rows: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return input rows, output rows and the number of pairs by offset of a table [K, M], where -1 is none."""
    paired = rows >= 0
    pairs = paired.flatten().nonzero().flatten()  # by offset, then by output row
    counts = tuple(paired.sum(dim=1).tolist())
    starts = torch.arange(0, rows.numel(), rows.shape[1], device=pairs.device)
    out_rows = pairs - starts.repeat_interleave(torch.tensor(counts, device=pairs.device))
    return rows.flatten().index_select(0, pairs).long(), out_rows, counts


def _cells(places: Tensor, weights: Tensor, origin: int) -> Tensor:
    return (places * weights).sum(dim=1) - origin


def _look_up(cells: Tensor, wanted: Tensor, num_cells: int) -> Tensor:
    """Return each wanted cell's row, -1 if it has none: by tables, in large boxes by bisection.

    `cells` [N] grow, `wanted` is [K, M].
    """
    sought, most = wanted.flatten(), min(_TABLE_CELLS_PER_QUESTION * wanted.numel(), _TABLE_CELLS)
    if num_cells >> _BLOCK_BITS > most:
        rows = torch.searchsorted(cells, sought, out_int32=True).clamp_(max=len(cells) - 1)
        return rows.masked_fill_(cells.index_select(0, rows) != sought, -1).view(wanted.shape)
    if num_cells > most:
        cells, sought, num_cells = _within_blocks(cells, sought, num_cells)
    return _numbered(cells, num_cells).index_select(0, sought).view(wanted.shape)


def _within_blocks(cells: Tensor, sought: Tensor, num_cells: int) -> tuple[Tensor, Tensor, int]:
    """Number the cells of those blocks alone that hold some of `cells`, after a block that stands for all others."""
    blocks, block_of_cell = torch.unique_consecutive(cells >> _BLOCK_BITS, return_inverse=True)
    block_of = _numbered(blocks, (num_cells >> _BLOCK_BITS) + 1).add_(1)
    size, num_blocks = 2**_BLOCK_BITS, len(blocks) + 1
    within = block_of.index_select(0, sought >> _BLOCK_BITS).mul_(size).add_(sought & (size - 1))
    return block_of_cell.add_(1).mul_(size).add_(cells & (size - 1)), within, num_blocks * size


def _numbered(places: Tensor, count: int) -> Tensor:
    """int32 [count]: at each of `places` its number among them, at the others -1."""
    table = torch.full((count,), -1, dtype=torch.int32, device=places.device)
    return table.scatter_(0, places.long(), torch.arange(len(places), dtype=torch.int32, device=places.device))
