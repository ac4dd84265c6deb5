"""Costs of sparse layers by the voxels at their own stride: bytes kept, and how dense typical minibatches are.

A number of voxels at the input does not tell how many are at coarser strides, nor how many neighbours they have: two
flat clouds have more coarse voxels than a dense one of as many. So there are two laws, one after the other:

    voxels at a stride, v    by voxels at the input, times how many more large minibatches of the data have there
    bytes of a layer         a v + b w + c pairs, none negative, with w the voxels at the next coarser stride
    pairs of a kernel map    v + d v log(v / w): each voxel meets itself, and the more neighbours, the more of them are
                             in one coarse voxel

Layers without a kernel map have v log(v / w) for their pairs: what other layers' maps leave to them.

Seconds keep their law by the voxels at the input. A layer takes the seconds of an input `density` times as large, as
typical minibatches have so many times the voxels at its stride that the measured ones have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .layer_cost import KEPT_FIELDS, LayerCost
from .size_laws import SECONDS, Array, SizeLaws, non_negative

LARGE_FIELDS = (*KEPT_FIELDS, "output_bytes", "coordinate_bytes")
COORDINATE_BYTES = 16  # one voxel at the network's input: batch index and three coordinates, int32 each
MEMORY_QUANTILE = 0.99  # of minibatches: memory must do for the large ones, time for the mean one


def voxels_by_stride(layers: Sequence[LayerCost]) -> tuple[Array, list[int | None]]:
    """(voxels of a minibatch at each stride, [strides, samples], the input's first; the stride of each layer's output).

    A layer's stride is that of whose voxels its output has a whole number of bytes each, in every sample; None of those
    whose output does not depend on voxels. If no layer makes coordinates all are the input's.
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
    paired: Array  # and for each at the stride whose voxels its kernel map pairs
    constant: Array  # and for each minibatch
    pairs: "_PairLaws"  # of each row
    densities: list[float]  # of each layer: see `_densities`

    @classmethod
    def fit(cls, costs: Sequence[LayerCost], typical: Array) -> "StrideLaws | None":
        """Fit the laws; None for layers that are all at one stride.

        `typical`: voxels at each stride of typical minibatches, [minibatches, strides]. Raises InputError if the
        layers have another number of strides.
        """
        plain = [LayerCost(cost.samples) for cost in costs]
        counts, levels = voxels_by_stride(plain)
        if len(counts) != typical.shape[1]:
            raise InputError(
                "profile.strides_malformed",
                f"voxels_by_stride has {typical.shape[1]} strides, but the layers have {len(counts)}",
            )
        if len(counts) == 1:
            return None
        rows = np.array([k for k, cost in enumerate(plain) if len(cost.samples) == counts.shape[1]])
        table = [[[getattr(one, name) for one in plain[k].samples] for k in rows] for name in LARGE_FIELDS]
        values = np.array(table, dtype=float).reshape(-1, counts.shape[1])
        weights = 1 / np.maximum(values, np.maximum(1e-3 * values.max(axis=1, keepdims=True), 1.0))
        weights *= np.sqrt(counts[0])  # shapes of more samples are surer
        some = np.flatnonzero(values.any(axis=1))  # the others keep nothing
        of_pairs = _PairLaws.fit(counts, [levels[k] for k in rows], [plain[k] for k in rows])
        has_map = np.tile(of_pairs.known, len(LARGE_FIELDS))
        columns = np.array([[v, w, v * _crowding(v, w), np.ones_like(v)] for v, w in pairwise(counts)])
        columns = columns.transpose(1, 0, 2)
        shape = (4, len(columns[0]), len(some), counts.shape[1])
        columns = np.broadcast_to(columns[:, :, None], shape).copy()
        columns[2][:, has_map[some]] = of_pairs.measured[some[has_map[some]] % len(rows)]
        columns = columns.reshape(4, -1, shape[-1])
        every, weight = (np.broadcast_to(one[some], shape[1:]).reshape(-1, shape[-1]) for one in (values, weights))
        factors = non_negative(list(columns), every, weight)
        off = ((np.einsum("crs,cr->rs", columns, factors) - every) * weight).reshape(shape[1:])
        class_of_layer = np.zeros(len(values), dtype=np.intp)  # of strides that explain as much, the finest
        class_of_layer[some] = np.sqrt((off**2).mean(axis=2)).round(3).argmin(axis=0)
        a, b, c, constant = coefficients = np.zeros((4, len(values)))
        coefficients[:, some] = np.take_along_axis(
            factors.reshape(shape[:3]), class_of_layer[None, None, some], axis=1
        )[:, 0]
        by_input = SizeLaws.fit(counts[0], counts[1:], np.zeros_like(counts[1:]), power=SECONDS)
        large = np.quantile(typical, MEMORY_QUANTILE, axis=0)
        crowding = _crowding(large[:-1], large[1:])
        more = large[1:, None] / by_input.at(large[:1])
        fine = a + np.where(has_map, 0.0, c) * crowding[class_of_layer]
        paired = np.where(has_map, c * np.tile(of_pairs.each(crowding), len(LARGE_FIELDS)), 0.0)
        per_minibatch = (fine[:, None], b[:, None], paired[:, None], constant[:, None])
        by_stride = _densities(by_input, typical)
        densities = [1.0 if level is None else by_stride[level] for level in levels]
        return cls(by_input, more, levels, rows, class_of_layer, *per_minibatch, of_pairs, densities)

    def at(self, sizes: Array, costs: Sequence[LayerCost]) -> dict[str, Array]:
        """Evaluate the bytes kept of large minibatches of `sizes` [V]: field → [rows, V]; `costs` as stretched."""
        stretches = dict(zip(reversed(self.levels), (cost.stretch for cost in reversed(costs)), strict=True))
        stretch_columns = np.array([[stretches.get(k, 1.0)] for k in range(1, len(self.more) + 1)])
        voxels = np.vstack([sizes, self.by_input.at(sizes / stretch_columns) * self.more])
        values = self.fine * voxels[self.own] + self.coarse * voxels[self.own + 1] + self.constant
        values += self.paired * np.tile(voxels[self.pairs.levels], (len(LARGE_FIELDS), 1))
        return dict(zip(LARGE_FIELDS, values.reshape(len(LARGE_FIELDS), len(self.rows), -1), strict=True))


def _densities(by_input: SizeLaws, typical: Array) -> list[float]:
    """Mean over typical minibatches of (voxels at a stride / voxels there by the measured law), [strides].

    They are shrunk towards 1 by their standard error, and are 1 if that explains the difference or a single minibatch
    has none. The law's own error does not count: laws of seconds, fitted to the same samples, have it too.
    """
    ratios = typical[:, 1:].T / by_input.at(typical[:, 0])
    densities = np.ones(typical.shape[1])
    if len(typical) > 1:
        more = ratios.mean(axis=1) - 1
        squared_error = ratios.var(axis=1, ddof=1) / len(typical)
        densities[1:] += more * np.maximum(1 - squared_error / np.maximum(more**2, 1e-300), 0.0)
    by_stride: list[float] = densities.tolist()
    return by_stride


@dataclass(frozen=True, eq=False)
class _PairLaws:
    """The pairs in each layer's kernel map, by the voxels at the stride that they pair."""

    measured: Array  # [rows, samples]
    levels: NDArray[np.intp]  # [rows]
    first: Array  # [rows]: of each voxel
    crowded: Array  # [rows]: and times the crowding of voxels

    @property
    def known(self) -> NDArray[np.bool_]:
        return self.first > 0

    @classmethod
    def fit(cls, counts: Array, levels: Sequence[int | None], costs: Sequence[LayerCost]) -> "_PairLaws":
        """Fit the laws; `levels`: the stride of each output, which that of its kernel map is, or the one before.

        The coarsest stride has no crowding: its voxels have as many pairs each as all of them have together.
        """
        measured = np.array([[sample.kernel_map_pairs for sample in cost.samples] for cost in costs])
        found, first, crowded = np.zeros(len(costs), dtype=np.intp), np.zeros(len(costs)), np.zeros(len(costs))
        for row, (pairs, level) in enumerate(zip(measured, levels, strict=True)):
            if level is None or not pairs.all():
                continue
            fits = [(_pairs_of_voxels(counts, pairs, at), at) for at in (level, level - 1) if at >= 0]
            (off, *law), at = fits[0]
            if len(fits) > 1 and fits[1][0][0] < off / 2:
                (off, *law), at = fits[1]
            found[row], (first[row], crowded[row]) = at, law
        return cls(measured, found, first, crowded)

    def each(self, crowding: Array) -> Array:
        """Pairs of a voxel at each row's stride, [rows]; `crowding` of voxels at each stride but the coarsest."""
        values: Array = self.first + self.crowded * np.append(crowding, 0.0)[self.levels]
        return values


def _pairs_of_voxels(counts: Array, pairs: Array, level: int) -> tuple[float, float, float]:
    """(by what share a law of pairs is off, pairs of each voxel at a stride, and times the crowding)."""
    each, weight = pairs / counts[level], counts[0] / counts[0].sum()
    if level == len(counts) - 1:
        first, crowded, crowding = float(weight @ each), 0.0, np.zeros_like(each)
    else:
        crowding = _crowding(counts[level], counts[level + 1])
        first, crowded = 1.0, max(float(weight @ (crowding * (each - 1)) / max(weight @ crowding**2, 1e-300)), 0.0)
    off = (first + crowded * crowding) / each - 1
    return float(np.sqrt(weight @ off**2)), first, crowded


def _crowding(fine: Array, coarse: Array) -> Array:
    """Return the logarithm of the number of voxels in one coarse voxel."""
    return np.log(np.maximum(fine / coarse, 1.0))
