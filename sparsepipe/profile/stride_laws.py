"""Bytes that sparse layers keep, by the voxels at their own stride.

A number of voxels at the input does not tell how many are at coarser strides, nor how many neighbours they have: two
flat clouds have more coarse voxels than a dense one of as many. So there are two laws, one after the other:

    voxels at a stride, v    by voxels at the input, times how many more large minibatches of the data have there
    bytes of a layer         a v + b w + c v log(v / w), none negative, with w the voxels at the next coarser stride:
                             the more of them are in one coarse voxel, the more pairs are in their kernel maps
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .layer_cost import KEPT_FIELDS, LayerCost
from .size_laws import SECONDS, Array, SizeLaws, non_negative

COORDINATE_BYTES = 16  # one voxel at the network's input: batch index and three coordinates, int32 each
MEMORY_QUANTILE = 0.99  # of minibatches: memory must do for the large ones, time for the mean one


def voxels_by_stride(layers: Sequence[LayerCost]) -> tuple[Array, list[int | None]]:
    """(voxels of a minibatch at each stride, [strides, samples], the input's first; the stride of each layer's output).

    A layer's stride is that of whose voxels its output has a whole number of bytes each, in every sample; None of those
    whose output does not depend on voxels. Where no layer makes coordinates all are the input's.
    """
    made = {tuple(sample.coordinate_bytes / COORDINATE_BYTES for sample in cost.samples) for cost in layers}
    sets = [counts for counts in made if all(counts)]
    inputs = [sample.size for sample in max(layers, key=lambda cost: len(cost.samples)).stretched]
    counts = np.array([inputs, *sorted((own for own in sets if len(own) == len(inputs)), key=sum, reverse=True)])
    if len(counts) == 1:
        return counts, [0] * len(layers)
    output = [[sample.output_bytes for sample in cost.samples] for cost in layers]
    output = [row if len(row) == len(inputs) else [0.0] * len(inputs) for row in output]
    each = np.array(output)[:, None] / counts  # [layers, strides, samples]
    whole = (each > 0) & (np.abs(each - each.round()) < 1e-6) & (np.abs(each - each[..., :1]) < 1e-6)
    levels = [int(row.argmax()) if row.any() else None for row in whole.all(axis=2)]
    return counts, levels


@dataclass(frozen=True, eq=False)
class StrideLaws:
    """The laws of layers that were measured at the same sizes, whatever their costs are stretched by."""

    by_input: SizeLaws  # voxels at each stride but the input's
    more: Array  # times as many of them in large minibatches, [strides - 1, 1]
    levels: list[int | None]  # the stride of each layer's output
    rows: NDArray[np.intp]  # the layers that have laws
    own: NDArray[np.intp]  # of each field and layer, [fields · rows]: the stride that explains its bytes best
    fine: Array  # bytes for each voxel at that stride in large minibatches, [fields · rows, 1]
    coarse: Array  # and for each at the next coarser one

    @classmethod
    def fit(cls, costs: Sequence[LayerCost], typical: Array) -> "StrideLaws | None":
        """Fit the laws; None for layers that are all at one stride.

        `typical`: voxels at each stride of typical minibatches, [minibatches, strides]. Raises InputError where the
        layers have another number of strides.
        """
        plain = [LayerCost(cost.samples) for cost in costs]
        counts, levels = voxels_by_stride(plain)
        if len(counts) != typical.shape[1]:
            raise InputError(
                "profile.strides_malformed",
                f"voxels_by_stride tells {typical.shape[1]} of {len(counts)} strides that the layers have",
            )
        if len(counts) == 1:
            return None
        rows = np.array([k for k, cost in enumerate(plain) if len(cost.samples) == counts.shape[1]])
        table = [[[getattr(one, name) for one in plain[k].samples] for k in rows] for name in KEPT_FIELDS]
        values = np.array(table, dtype=float).reshape(-1, counts.shape[1])
        weights = 1 / np.maximum(values, np.maximum(1e-3 * values.max(axis=1, keepdims=True), 1.0))
        weights *= np.sqrt(counts[0])  # shapes of more samples are surer
        some = np.flatnonzero(values.any(axis=1))  # the others keep nothing
        columns = np.array([[v, w, v * _crowding(v, w)] for v, w in pairwise(counts)]).transpose(1, 0, 2)
        shape = (3, len(columns[0]), len(some), counts.shape[1])
        columns = np.broadcast_to(columns[:, :, None], shape).reshape(3, -1, shape[-1])
        every, weight = (np.broadcast_to(one[some], shape[1:]).reshape(-1, shape[-1]) for one in (values, weights))
        factors = non_negative(list(columns), every, weight)
        off = ((np.einsum("crs,cr->rs", columns, factors) - every) * weight).reshape(shape[1:])
        own = np.zeros(len(values), dtype=np.intp)  # of strides that explain as much, the finest
        own[some] = np.sqrt((off**2).mean(axis=2)).round(3).argmin(axis=0)
        a, b, c = found = np.zeros((3, len(values)))
        found[:, some] = np.take_along_axis(factors.reshape(shape[:3]), own[None, None, some], axis=1)[:, 0]
        by_input = SizeLaws.fit(counts[0], counts[1:], np.zeros_like(counts[1:]), power=SECONDS)
        large = np.quantile(typical, MEMORY_QUANTILE, axis=0)
        fine = a + c * _crowding(large[:-1], large[1:])[own]
        return cls(by_input, large[1:, None] / by_input.at(large[:1]), levels, rows, own, fine[:, None], b[:, None])

    def at(self, sizes: Array, costs: Sequence[LayerCost]) -> dict[str, Array]:
        """Evaluate the bytes kept of large minibatches of `sizes` [V]: field → [rows, V]; `costs` as stretched."""
        stretches = dict(zip(reversed(self.levels), (cost.stretch for cost in reversed(costs)), strict=True))
        own = np.array([[stretches.get(k, 1.0)] for k in range(1, len(self.more) + 1)])
        voxels = np.vstack([sizes, self.by_input.at(sizes / own) * self.more])
        found = self.fine * voxels[self.own] + self.coarse * voxels[self.own + 1]
        return dict(zip(KEPT_FIELDS, found.reshape(len(KEPT_FIELDS), len(self.rows), -1), strict=True))


def _crowding(fine: Array, coarse: Array) -> Array:
    """How many voxels are in one coarse voxel, as a logarithm."""
    return np.log(np.maximum(fine / coarse, 1.0))
