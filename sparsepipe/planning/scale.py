"""Costs at another batch size or voxel size than the profile's.

More samples are more of everything. Finer voxels are not: each layer has the voxels of its own tensor stride. Those at
stride s of voxels of size v are the voxels of size s·v, so the strides of a network count a cloud at several sizes:

    stride             1      2      4      8      16
    voxel size         v      2v     4v     8v     16v      coordinates that the layers make, as profiled
    at voxels of 2v           1      2      4      8        the same counts, one stride on
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, log

import numpy as np

from ..util.derived import remembered
from ..values.costs import Array
from ..values.profile import LayerCost, Profile, voxels_by_stride

SURFACE = 2.0  # voxels of a surface grow with the square of 1 / voxel size, those of a solid with the cube


@dataclass(frozen=True)
class Scale:
    """Voxels of a minibatch in proportion to those profiled. `measured`: voxel size → mean voxels of one sample."""

    batch_size: int
    voxel_size: float
    measured: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Profile, measured: Mapping[float, float] | None = None) -> "Scale | None":
        """None if the profile does not say how it was made, or its costs do not depend on voxels."""
        data = profile.origin.get("data")
        origin = data if isinstance(data, Mapping) else profile.origin
        batch_size, voxel_size = profile.batch_size, origin.get("voxel_size")
        sparse = any(len(cost.samples) > 1 for cost in next(iter(profile.costs.values())))
        if not (sparse and batch_size and voxel_size):
            return None
        return cls(batch_size, float(voxel_size), dict(measured or {}))

    def factor(self, batch_size: int, voxel_size: float) -> float:
        """Return the factor on the number of voxels of a minibatch."""
        return batch_size / self.batch_size * self._of_sample(voxel_size) / self._of_sample(self.voxel_size)

    def scaled(self, profile: Profile, batch_size: int, voxel_size: float) -> Profile:
        """The profile whose minibatches have `batch_size` samples, in voxels of `voxel_size`.

        Each layer costs what its law says of a minibatch with as many voxels at the layer's own stride.
        """
        factor = self.factor(batch_size, voxel_size)
        sizes = tuple(size * factor for size in profile.typical_sizes)
        if voxel_size == self.voxel_size:
            return replace(profile, sizes=sizes)
        finer = factor * self.batch_size / batch_size  # times as many voxels of a sample
        costs = {}
        for name, layers in profile.costs.items():
            # With the costs, so that no others have their id.
            with_strides = partial(lambda own: (own, *voxels_by_stride(own)), layers)
            _, counts, levels = remembered(profile.graph.kept, "strides", id(layers), with_strides)
            samples = self.batch_size * counts[0].mean() / profile.size()  # no stride has fewer voxels
            grown = [finer, *(self._grown(counts, samples, stride, voxel_size) for stride in range(1, len(counts)))]
            shifts = [finer / (1.0 if level is None else grown[level]) for level in levels]
            costs[name] = tuple(
                LayerCost(cost.samples, cost.stretch * shift) for cost, shift in zip(layers, shifts, strict=True)
            )
        return replace(profile, costs=costs, sizes=sizes)

    def _grown(self, counts: Array, samples: float, stride: int, voxel_size: float) -> float:
        """Return the factor on a sample's voxels at the `stride`-th stride, by the counts of the strides."""
        known = np.log(counts.mean(axis=1))
        here = known[0] - log(self._of_sample(self.voxel_size))
        curve = {size: here + log(self._of_sample(size)) for size in self.measured}
        curve |= {self.voxel_size * 2**k: float(known_size) for k, known_size in enumerate(known)}
        sizes, size = sorted(curve), voxel_size * 2**stride
        if size < sizes[0]:  # finer than any that was counted
            there = here + log(self._of_sample(size))
        else:
            upper = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
            a, b = sizes[upper - 1], sizes[upper]
            there = curve[a] + log(size / a) / log(b / a) * (curve[b] - curve[a])
            there = max(there, min(log(samples), known[-1]))
        return exp(there - known[stride])

    @property
    def law(self) -> str:
        """Return the source of the dependence on the voxel size."""
        return "as counted on this data" if len(self.measured) > 1 else "taken for a surface: size⁻²"

    def _of_sample(self, voxel_size: float) -> float:
        """Straight lines between the measured sizes on logarithmic axes, prolonged; a surface's law without any."""
        sizes = sorted(self.measured)
        if len(sizes) < 2:
            return float(voxel_size**-SURFACE)
        upper = next((k for k, size in enumerate(sizes) if size >= voxel_size), len(sizes) - 1)
        a, b = sizes[max(upper, 1) - 1], sizes[max(upper, 1)]
        slope = log(self.measured[b] / self.measured[a]) / log(b / a)
        return self.measured[a] * exp(slope * log(voxel_size / a))


Scaled = tuple[Scale, int, float]  # with a batch size and a voxel size
