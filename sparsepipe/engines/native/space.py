"""One scene over several processes: each computes the voxels of a region, and fetches those around it.

    Regions          boxes with equal work that cover space: a voxel belongs to the box that holds its coordinate.
    PartManager      the coordinate sets of one region, and its kernel maps.
    PartMap          the pairs whose input lies in the region, and the halo: the pairs whose input lies in another.

A convolution adds up two convolutions: that of its region's voxels, and that of the halo, whose features other
processes send. Its backward returns the gradients of the halo. Each process holds a part of the loss, and the loss is
the sum of all parts: so gradients of weights are summed over the processes.

A coarse voxel belongs to the region that holds its corner. If region borders are multiples of all tensor strides, a
coarse voxel and its fine ones share a region; if not, the halo has those that do not. A halo holds each remote voxel
that has a pair once, and no other: fewer rows cannot give the same output.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...networks.rows import each_axis
from ..base import CoordinateSet, SceneGroup
from ..dense import exchanged, sum_over_parts
from .convolution import convolve, convolve_backward, convolve_forward
from .coordinates import CoordinateManager, Stride, pack, unpack
from .kernel_map import KernelMap, kernel_map, kernel_offsets

_MOST_SAMPLED = 2**16  # voxels whose pairs are counted to find where to cut
_ROW_PAIRS = 2.0  # work on a voxel besides its pairs, in pairs: norms, activations
_HALO_PAIRS = 2.0  # work to send a voxel and its gradient, in pairs
_UNEVEN = 1.05  # the largest part of work over its share, before borders leave the multiples of the coarsest stride
_FAR = 2**40  # beyond any coordinate


@dataclass(frozen=True)
class Regions:
    """Boxes that cover space, one a part: int64 [parts, 2, 1 + D], from the first corner to below the second."""

    boxes: Tensor
    shares: tuple[float, ...]  # of the work, by part

    def rows(self, coordinates: Tensor, part: int) -> Tensor:
        """Return which rows of `coordinates` [N, 1 + D] a part has: int64 [n]."""
        low, high = self.boxes[part].tolist()
        return _within(coordinates, low, high).nonzero().flatten()

    def nests(self, stride: Stride) -> bool:
        """Return whether every border is a multiple of a tensor stride, so that coarse voxels share their region."""
        borders = self.boxes[:, :, 1:]
        steps = torch.tensor(stride)
        return not bool(((borders.abs() < _FAR) & (borders % steps != 0)).any())

    @classmethod
    def of(
        cls,
        coordinates: Tensor,
        shares: Sequence[float],
        *,
        step: Stride,
        stride: Stride | None = None,
        nested: bool = False,
    ) -> "Regions":
        """Cut space by planes, one after the other, so that each part has its share of the kernel-map pairs.

        Args:
            coordinates: int32 [N, 1 + D] of all voxels, batch index first, sorted: the same on all processes.
            shares: Share of the work of each part.
            step: Borders are multiples of it, the coarsest tensor stride, unless parts were uneven then.
            stride: Tensor stride of the coordinates. None: 1 on each axis.
            nested: Borders are multiples of it even so.

        Returns:
            A box for each part; a box may hold no voxel.
        """
        if stride is not None and any(unit > 1 for unit in stride):
            units = torch.tensor((1, *stride), dtype=torch.int32, device=coordinates.device)
            steps = tuple(max(1, far // unit) for far, unit in zip(step, stride, strict=True))
            coarse = cls.of(coordinates.div(units, rounding_mode="floor"), shares, step=steps, nested=nested).boxes
            return cls(torch.where(coarse.abs() < _FAR, coarse * units.cpu(), coarse), tuple(shares))
        sampled, work = _sampled_work(coordinates)
        width = coordinates.shape[1]
        box = torch.tensor([[-_FAR] * width, [_FAR] * width])
        boxes: list[Tensor] = []
        all_shares = shares
        todo = [(box, sampled.long().cpu(), work.cpu(), tuple(shares))]
        while todo:
            box, places, weights, shares = todo.pop()
            if len(shares) == 1:
                boxes.append(box)
                continue
            half = len(shares) // 2
            axis, border = _border(places, weights, sum(shares[:half]) / sum(shares), (1, *step), nested)
            border = min(border, int(box[1, axis]))
            below, above = box.clone(), box.clone()
            below[1, axis] = above[0, axis] = border
            first = places[:, axis] < border
            todo.append((above, places[~first], weights[~first], shares[half:]))
            todo.append((below, places[first], weights[first], shares[:half]))
        return cls(torch.stack(boxes), tuple(all_shares))


def scene_parts(coordinates: Tensor, shares: Sequence[float], *, step: int = 1) -> Tensor:
    """Divide a scene among devices that share it: find the part of each voxel.

    A run under a plan with `sharding="space"` divides scenes in the same way. Each part has its share of the
    kernel-map pairs, which is its share of the work.

    Args:
        coordinates: Coordinates of the voxels, int32 [N, D], each voxel once.
        shares: Share of the work of each part, such as (1, 1).
        step: Coarsest tensor stride of the network, in voxels. Borders are multiples of it if the parts are even then.

    Returns:
        Number of the part of each voxel, int64 [N]. A part may have no voxel.

    Raises:
        InputError: The coordinates are too far from the origin, or have more than four axes.

    Example:
        >>> import torch
        >>> line = torch.arange(8, dtype=torch.int32)[:, None] * torch.tensor([[1, 0, 0]], dtype=torch.int32)
        >>> sp.engines.scene_parts(line, (1, 1)).tolist()
        [0, 0, 0, 0, 1, 1, 1, 1]

    See also:
        guides/one_scene_over_devices, `Stage`
    """
    placed = torch.nn.functional.pad(coordinates.int(), (1, 0))
    order = torch.sort(pack(placed)).indices
    regions = Regions.of(placed.index_select(0, order), shares, step=(step,) * coordinates.shape[1])
    parts = torch.zeros(len(placed), dtype=torch.int64, device=placed.device)
    for part in range(len(shares)):
        parts[regions.rows(placed, part)] = part
    return parts


def _sampled_work(coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """Return some of the voxels, at equal distances in row order, and the work on each, counted in pairs of 3^D."""
    keys, dimension = pack(coordinates), coordinates.shape[1] - 1
    every = max(1, len(keys) // _MOST_SAMPLED)
    sampled = keys[every // 2 :: every]
    at_origin = torch.zeros(1, 1 + dimension, dtype=torch.int32, device=keys.device)
    work = torch.full((len(sampled),), 1 + _ROW_PAIRS, dtype=torch.float64, device=keys.device)
    for offset in kernel_offsets((3,) * dimension):
        if any(offset):
            shift = torch.tensor([0, *offset], dtype=torch.int32, device=keys.device)
            wanted = sampled + (pack(at_origin + shift) - pack(at_origin))
            near = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
            work += keys.index_select(0, near) == wanted
    return coordinates[every // 2 :: every], work


def _border(places: Tensor, work: Tensor, share: float, step: Sequence[int], nested: bool) -> tuple[int, int]:
    """Return the axis and the plane below which a share of the work lies, of least cost with its halo."""
    if not len(places):
        return 0, _FAR  # the first half has all of it
    best = (float("inf"), 0, 0)
    fair, steps = float(work.sum()), list(step)
    while True:
        most = float("inf")
        for axis, unit in enumerate(steps):
            cells = places[:, axis].div(unit, rounding_mode="floor")
            first = int(cells.min())
            below = torch.bincount(cells - first, work).cumsum(0)
            load = torch.maximum(below / share, (fair - below) / (1 - share))
            layers = torch.bincount(cells - first).double() / unit  # voxels of one layer, about
            crossing = layers + torch.cat([layers[1:], layers.new_zeros(1)])
            crossing[-1] = 0
            cost = load + _HALO_PAIRS * crossing * (axis > 0)
            index = int(cost.argmin())
            if float(cost[index]) < best[0]:
                best = (float(cost[index]), axis, (first + index + 1) * unit)
                most = float(load[index])
        if nested or most <= _UNEVEN * fair or max(steps) == 1:
            return best[1], best[2]
        steps = [max(1, unit // 2) for unit in steps]


def _within(coordinates: Tensor, low: Sequence[int], high: Sequence[int]) -> Tensor:
    """Return which rows of `coordinates` [N, 1 + D] lie in a box: bool [N]."""
    inside = torch.ones(len(coordinates), dtype=torch.bool, device=coordinates.device)
    for axis, (least, most) in enumerate(zip(low, high, strict=True)):
        if least > _FAR // 2 or most < -_FAR // 2:
            return inside.zero_()
        if least > -_FAR // 2:
            inside &= coordinates[:, axis] >= least
        if most < _FAR // 2:
            inside &= coordinates[:, axis] < most
    return inside


@dataclass(frozen=True, eq=False)
class Halo:
    """Rows that a layer needs from other parts, and rows that it sends to them."""

    group: SceneGroup
    kernel_map: KernelMap  # from the halo's rows to those of this part's rows that have pairs with them
    keys: Tensor  # int64 [H] of its rows, which grow
    out_rows: Tensor  # int64 [kernel_map.num_out]: this part's
    order: Tensor  # int64 [H]: the received row that is each row of the halo
    received: tuple[int, ...]  # rows of each part
    sent_rows: Tensor  # int64 [S]: this part's, by the part that they are sent to
    sent: tuple[int, ...]

    def fetch(self, features: Tensor) -> Tensor:
        """Return the features of the halo, [H, C], of this part's features."""
        rows = features.index_select(0, self.sent_rows)
        return self.group.exchange(rows, self.sent, self.received).index_select(0, self.order)

    def give_back(self, gradient: Tensor, total: Tensor) -> None:
        """Send each gradient of the halo [H, C] to its part; add those received to `total`, part by part."""
        by_part = torch.empty_like(gradient).index_copy_(0, self.order, gradient)
        returned = self.group.exchange(by_part, self.received, self.sent)
        # Within a part's rows none occurs twice: so the sum has one order.
        for rows, gradients in zip(self.sent_rows.split(self.sent), returned.split(self.sent), strict=True):
            total.index_add_(0, rows, gradients)


@dataclass(frozen=True, eq=False)
class PartMap:
    """A kernel map of one part: the pairs within the part, and those with its halo, if there are any in the scene."""

    pairs_inside: KernelMap | None  # None: the engine searches them on its own
    halo: Halo | None
    in_keys: Tensor  # of this part's input rows

    @property
    def inside(self) -> KernelMap:
        assert self.pairs_inside is not None
        return self.pairs_inside

    @property
    def keys_with_halo(self) -> Tensor:
        """Keys of the rows of `with_halo`, int64 [N + H]."""
        return self.in_keys if self.halo is None else torch.cat([self.in_keys, self.halo.keys])[self._order]

    def with_halo(self, features: Tensor) -> Tensor:
        """Return the features of this part and its halo [N + H, C], in the order of keys: rows of `whole`."""
        if self.halo is None:
            return features
        fetched = _Fetch.apply(features, self.halo)  # type: ignore[no-untyped-call]
        return torch.cat([features, fetched]).index_select(0, self._order)

    @cached_property
    def _order(self) -> Tensor:
        assert self.halo is not None
        return torch.sort(torch.cat([self.in_keys, self.halo.keys])).indices

    @cached_property
    def whole(self) -> KernelMap:
        """All pairs as one kernel map, from the rows of `with_halo` to this part's."""
        if self.halo is None:
            return self.inside
        row_of = torch.empty_like(self._order)
        row_of[self._order] = torch.arange(len(row_of), device=row_of.device)
        inside, outside, num_out = self.inside.pairs, self.halo.kernel_map.pairs, self.inside.num_out
        counts = torch.tensor([inside.counts, outside.counts], device=row_of.device)
        offsets = torch.arange(counts.shape[1], device=row_of.device).repeat(2).repeat_interleave(counts.flatten())
        ins = torch.cat([row_of[inside.in_rows], row_of[len(self.in_keys) + outside.in_rows]])
        outs = torch.cat([inside.out_rows, self.halo.out_rows[outside.out_rows]])
        order = torch.sort(offsets * num_out + outs).indices
        return KernelMap(ins[order], outs[order], tuple(counts.sum(0).tolist()), len(row_of), num_out)


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, halo: Halo) -> Tensor:
        ctx.halo, ctx.num_rows = halo, len(features)
        return halo.fetch(features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.new_zeros(ctx.num_rows, gradient.shape[1])
        ctx.halo.give_back(gradient, total)
        return total, None


class _PartConvolution(torch.autograd.Function):
    """The convolution of one part. The backward of every part must run: halos go back in it."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel: Tensor, part_map: PartMap) -> Tensor:
        halo, matrices = part_map.halo, kernel.to(features.dtype)
        fetched = halo.fetch(features) if halo else features.new_empty(0, features.shape[1])
        output = convolve_forward(features, matrices, part_map.inside)
        if halo and len(halo.out_rows):
            output.index_add_(0, halo.out_rows, convolve_forward(fetched, matrices, halo.kernel_map))
        ctx.save_for_backward(features, kernel, fetched)
        ctx.part_map = part_map
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor, None]:
        features, kernel, fetched = ctx.saved_tensors
        inside, halo, wanted = ctx.part_map.inside, ctx.part_map.halo, ctx.needs_input_grad[0]
        grad_output = grad_output.contiguous()
        total, grad_kernel = convolve_backward(features, kernel, grad_output, inside, wanted)
        if halo is None:
            return total, grad_kernel, None
        gradient = torch.zeros_like(fetched)
        if len(halo.out_rows):
            reached = grad_output.index_select(0, halo.out_rows)
            of_halo, more = convolve_backward(fetched, kernel, reached, halo.kernel_map, wanted)
            grad_kernel = grad_kernel + more
            gradient = gradient if of_halo is None else of_halo
        if wanted:
            halo.give_back(gradient, total)
        return total, grad_kernel, None


def convolve_part(features: Tensor, kernel: Tensor, kernel_map: "KernelMap | PartMap") -> Tensor:
    """Convolve features [N_in, C_in], of a whole scene or of a part, with a kernel [K, C_in, C_out]."""
    if isinstance(kernel_map, KernelMap):
        return convolve(features, kernel, kernel_map)
    return convolve(features, kernel, kernel_map, function=_PartConvolution)


class _MaxOverParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, manager: "PartManager", stride: Stride) -> Tensor:
        sizes = manager.sample_sizes(stride)
        starts = itertools.accumulate(sizes, initial=0)
        maxima = rows.new_full((len(sizes), rows.shape[1]), -torch.inf)
        winners = torch.zeros(maxima.shape, dtype=torch.int64, device=rows.device)
        keys = torch.full(maxima.shape, torch.iinfo(torch.int64).max, device=rows.device)
        for sample, (start, size) in enumerate(zip(starts, sizes, strict=False)):
            if size:
                maxima[sample], winners[sample] = rows[start : start + size].max(dim=0)
                winners[sample] += start
                keys[sample] = manager.keys(stride).index_select(0, winners[sample])
        everywhere = torch.stack(manager.group.gather(maxima))
        most = everywhere.amax(dim=0)
        first = torch.stack(manager.group.gather(keys)).masked_fill_(everywhere < most, torch.iinfo(torch.int64).max)
        ctx.save_for_backward(winners, (first.amin(dim=0) == keys) & (maxima == most))
        ctx.group, ctx.num_rows = manager.group, len(rows)
        return most

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        winners, won = ctx.saved_tensors
        gradient = gradient.clone()
        ctx.group.sum(gradient)
        if not ctx.num_rows:
            return gradient.new_zeros(0, gradient.shape[1]), None, None
        total = gradient.new_zeros(ctx.num_rows, gradient.shape[1])
        return total.scatter_add_(0, winners, gradient * won), None, None


class _Everywhere(NamedTuple):
    """The voxels of all parts at one tensor stride, in the order of keys."""

    keys: Tensor  # int64 [N]
    rows: Tensor  # int64 [n]: which of them a part has
    order: Tensor  # int64 [N]: which is which of the rows that parts send, part by part
    sizes: tuple[int, ...]  # rows of each part


class PartManager(CoordinateManager):
    """The coordinate sets of one part of a minibatch's scenes. Building maps and sets is a step of all parts at once.

    `rows`, int64 [n]: which rows of the whole minibatch the part has at the input's tensor stride.
    """

    searches_pairs = True  # also those within the part

    def __init__(self, dimension: int, regions: Regions, group: SceneGroup, *, num_samples: int, rows: Tensor) -> None:
        super().__init__(dimension)
        self.regions, self.group, self.num_samples, self.rows = regions, group, num_samples, rows
        self._part_maps: dict[Any, PartMap] = {}
        self._everywhere: dict[Stride, _Everywhere] = {}
        self._totals: dict[Stride, Tensor] = {}

    def like(self, stride: Stride, keys: Tensor) -> "PartManager":
        """Return a manager of the same parts whose coordinate set is another one, such as a union."""
        manager = type(self)(self.dimension, self.regions, self.group, num_samples=self.num_samples, rows=self.rows)
        manager.insert(stride, keys)
        return manager

    def sample_sizes(self, stride: Stride) -> tuple[int, ...]:
        """Return the number of this part's voxels of each sample of the minibatch."""
        sizes = super().sample_sizes(stride)
        return (*sizes, *[0] * (self.num_samples - len(sizes)))

    def total_sizes(self, stride: Stride, like: Tensor) -> Tensor:
        """Return the number of voxels of each sample over all parts, [B, 1], in the type of `like`."""
        if stride not in self._totals:
            totals = torch.tensor(self.sample_sizes(stride), dtype=torch.float64, device=like.device)
            self.group.sum(totals)
            self._totals[stride] = totals.unsqueeze(1)
        return self._totals[stride].to(like.dtype)

    def sum_over_parts(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all parts; its gradient is the sum of theirs."""
        return sum_over_parts(values, self.group)

    def max_over_parts(self, rows: Tensor, stride: Stride) -> Tensor:
        """Return the maximum of each sample's rows over all parts, [B, C]; of equal rows the first voxel gave it."""
        return _MaxOverParts.apply(rows, self, stride)  # type: ignore[no-untyped-call, no-any-return]

    def numbers(self, stride: Stride) -> tuple[int, Tensor]:
        """Return how many voxels all parts have, and which of them, in the order of keys, each row is: int64 [n]."""
        everywhere = self.everywhere(stride)
        return len(everywhere.keys), everywhere.rows

    def everywhere(self, stride: Stride) -> "_Everywhere":
        """Return the voxels of all parts at a tensor stride. All parts come here the first time."""
        if stride not in self._everywhere:
            keys = self.keys(stride)
            received, sizes = self._exchanged([keys] * self.group.num_parts)
            everything, order = torch.sort(received)
            self._everywhere[stride] = _Everywhere(everything, torch.searchsorted(everything, keys), order, sizes)
        return self._everywhere[stride]

    def downsampled(self, stride: Stride, factor: int | Sequence[int]) -> Stride:
        known = set(self._keys)
        out_stride = super().downsampled(stride, factor)
        if out_stride not in known and not self.regions.nests(out_stride):
            coordinates = self.coordinates(out_stride)
            rows = [self.regions.rows(coordinates, part) for part in range(self.group.num_parts)]
            keys, _ = self._exchanged([self.keys(out_stride).index_select(0, own) for own in rows])
            self._keys[out_stride] = torch.unique(keys)
            del self._coordinates[out_stride]
        return out_stride

    def kernel_map(  # type: ignore[override]
        self,
        in_stride: Stride,
        out_stride: Stride,
        *,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
    ) -> PartMap:
        return self._part_map(in_stride, out_stride, kernel_size, dilation, upward=False)

    def upward_map(  # type: ignore[override]
        self,
        fine: Stride,
        coarse: Stride,
        *,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
    ) -> PartMap:
        return self._part_map(fine, coarse, kernel_size, dilation, upward=True)

    def _part_map(self, fine: Stride, coarse: Stride, kernel_size: Any, dilation: Any, *, upward: bool) -> PartMap:
        sizes, dilations = each_axis(kernel_size, self.dimension), each_axis(dilation, self.dimension)
        cached = fine, coarse, sizes, dilations, upward
        if cached not in self._part_maps:
            inside = None
            if self.searches_pairs:
                inside = super().kernel_map(fine, coarse, kernel_size=sizes, dilation=dilations)
            steps = [unit * times for unit, times in zip(fine, dilations, strict=True)]
            reaches = list(zip(*kernel_offsets(sizes), strict=True))
            low = [min(reach) * step for reach, step in zip(reaches, steps, strict=True)]
            high = [max(reach) * step for reach, step in zip(reaches, steps, strict=True)]
            # Kernels within a coarse voxel do not leave its region, if regions hold coarse voxels whole.
            tiles = min(low) == 0 and all(top < unit for top, unit in zip(high, coarse, strict=True))
            halo = None
            if (any(low) or any(high)) and not (tiles and self.regions.nests(coarse)):
                search = _search(fine, sizes, dilations, upward=upward)
                if upward:
                    halo = self._halo(coarse, fine, [-top for top in high], [-bottom for bottom in low], search)
                else:
                    halo = self._halo(fine, coarse, low, high, search)
            inside = inside.transposed if inside is not None and upward else inside
            self._part_maps[cached] = PartMap(inside, halo, self.keys(coarse if upward else fine))
        return self._part_maps[cached]

    def _halo(
        self,
        in_stride: Stride,
        out_stride: Stride,
        low: Sequence[int],
        high: Sequence[int],
        search: Callable[[Tensor, Tensor], KernelMap],
    ) -> Halo:
        """Find out what a layer needs of other parts. An input lies `low` to `high` from its output, on each axis."""
        part, boxes = self.group.part, self.regions.boxes.tolist()
        entering, leaving = self.coordinates(in_stride), self.coordinates(out_stride)
        near = [entering.new_empty(0, dtype=torch.int64)] * self.group.num_parts
        for other, (least, most) in enumerate(boxes):
            if other != part:
                start, stop = _moved(least, low), _moved(most, high)
                near[other] = _within(entering, start, stop).nonzero().flatten()
        offered = [self.keys(in_stride).index_select(0, rows) for rows in near]
        candidates, counts = self._exchanged(offered)
        keys, order = torch.sort(candidates)
        least, most = boxes[part]
        deep = _within(leaving, _moved(least, low, -1), _moved(most, high, -1))
        border = (~deep).nonzero().flatten()
        found = search(unpack(keys, self.dimension), leaving.index_select(0, border))
        in_used, in_rows = _numbered_anew(found.in_rows, len(keys))
        out_used, out_rows = _numbered_anew(found.out_rows, len(border))
        compact = KernelMap(in_rows, out_rows, found.counts, len(in_used), len(out_used))
        # Each part learns which of the voxels it offered are needed.
        needed = torch.zeros(len(keys), dtype=torch.int64, device=keys.device)
        needed[order[in_used]] = 1
        sizes = tuple(len(rows) for rows in near)
        asked = self.group.exchange(needed.to(torch.uint8).unsqueeze(1), counts, sizes).flatten().bool()
        sent = [rows[mask] for rows, mask in zip(near, asked.split(sizes), strict=True)]
        arrival = needed.cumsum(0) - 1  # among the rows that arrive, which are those needed, by part
        return Halo(
            self.group,
            compact,
            keys.index_select(0, in_used),
            border.index_select(0, out_used),
            arrival.index_select(0, order.index_select(0, in_used)),
            tuple(int(own.sum()) for own in needed.split(counts)),
            torch.cat(sent),
            tuple(map(len, sent)),
        )

    def _exchanged(self, keys: Sequence[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
        """Send keys to each part; return those received, by part, and how many each part sent."""
        rows, received = exchanged(torch.cat(list(keys)).unsqueeze(1), [len(own) for own in keys], self.group)
        return rows.flatten(), received

    @property
    def map_bytes(self) -> int:
        halos = [self._part_maps[key].halo for key in self._part_maps]
        return super().map_bytes + sum(
            each.kernel_map.in_rows.nbytes * 2 + each.keys.nbytes * 2 + each.sent_rows.nbytes for each in halos if each
        )


@dataclass(frozen=True, eq=False)
class PartRows:
    """The rows of a part among those of all parts, at one tensor stride. Gathering rows is a step of all parts."""

    manager: PartManager
    stride: Stride

    @property
    def num_rows(self) -> int:
        """Number of rows of all parts."""
        return len(self.manager.everywhere(self.stride).keys)

    def select(self, rows: Tensor) -> Tensor:
        """Return this part's rows [n, C] of those of all parts [N, C]."""
        return rows.index_select(0, self.manager.everywhere(self.stride).rows)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all parts [N, C], in the order of keys, of this part's [n, C]."""
        everywhere, group = self.manager.everywhere(self.stride), self.manager.group
        sent = torch.cat([rows] * group.num_parts)
        received = group.exchange(sent, [len(rows)] * group.num_parts, everywhere.sizes)
        return received.index_select(0, everywhere.order)


@dataclass(frozen=True, eq=False)
class Division:
    """The division of a minibatch of coordinate sets: the rows of each set that a part has."""

    regions: Regions
    group: SceneGroup
    num_samples: int
    rows: tuple[Tensor, ...]  # int64 [n] of each coordinate set

    @classmethod
    def of(
        cls,
        sets: Sequence[CoordinateSet],
        group: SceneGroup,
        *,
        shares: Sequence[float],
        step: Stride,
        regions: Regions | None = None,
    ) -> "Division":
        """Divide by the finest set, unless `regions` are known. All parts have the same sets of whole scenes."""
        finest = min(sets, key=lambda each: (each.tensor_stride, -len(each.coordinates)), default=None)
        if regions is None:
            nothing = torch.empty(0, 1 + len(step), dtype=torch.int32)
            coordinates, stride = (nothing, None) if finest is None else (finest.coordinates, finest.tensor_stride)
            regions = Regions.of(coordinates, shares, step=step, stride=stride)
        counts = [int(each.coordinates[:, 0].max()) + 1 for each in sets if len(each.coordinates)]
        rows = tuple(regions.rows(each.coordinates, group.part) for each in sets)
        return cls(regions, group, max(counts, default=0), rows)

    def manager(self, dimension: int, rows: Tensor) -> PartManager:
        """Return a manager of a part's coordinate sets, of which the finest has these rows of the whole."""
        return PartManager(dimension, self.regions, self.group, num_samples=self.num_samples, rows=rows)


def _search(
    fine: Stride, sizes: tuple[int, ...], dilations: tuple[int, ...], *, upward: bool
) -> Callable[[Tensor, Tensor], KernelMap]:
    """Return what pairs sorted coordinates of inputs with those of outputs, for a kernel laid on the coarse ones."""

    def search(entering: Tensor, leaving: Tensor) -> KernelMap:
        if upward:
            return kernel_map(leaving, entering, fine, kernel_size=sizes, dilation=dilations).transposed
        return kernel_map(entering, leaving, fine, kernel_size=sizes, dilation=dilations)

    return search


def _moved(corner: Sequence[int], reach: Sequence[int], sign: int = 1) -> list[int]:
    """Move a box's corner by the reach of a kernel on each axis but that of the batch."""
    return [corner[0], *(place + sign * far for place, far in zip(corner[1:], reach, strict=True))]


def _numbered_anew(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return which of `count` rows occur in `rows` [P], and `rows` with these numbered from 0."""
    occurs = torch.zeros(count, dtype=torch.bool, device=rows.device)
    occurs[rows] = True
    return occurs.nonzero().flatten(), (occurs.cumsum(0) - 1).index_select(0, rows)
