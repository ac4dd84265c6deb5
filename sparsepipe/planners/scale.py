"""Estimate a minibatch's voxels at another batch size or voxel size than the profile's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

from ..profile import Profile

SURFACE = 2.0  # voxels of a surface grow with the square of 1 / voxel size, those of a solid with the cube


@dataclass(frozen=True)
class Scale:
    """Voxels of a minibatch in proportion to those profiled. `measured`: voxel size → mean voxels of one sample."""

    batch_size: int
    voxel_size: float
    measured: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Profile, measured: Mapping[float, float] | None = None) -> "Scale | None":
        """None where the profile does not say how it was made, or its costs do not depend on voxels."""
        data = profile.origin.get("data")
        told = data if isinstance(data, Mapping) else profile.origin
        batch_size, voxel_size = profile.batch_size, told.get("voxel_size")
        sparse = any(len(cost.samples) > 1 for cost in next(iter(profile.costs.values())))
        if not (sparse and batch_size and voxel_size):
            return None
        return cls(batch_size, float(voxel_size), dict(measured or {}))

    def factor(self, batch_size: int, voxel_size: float) -> float:
        """How many times as many voxels a minibatch has."""
        return batch_size / self.batch_size * self._of_sample(voxel_size) / self._of_sample(self.voxel_size)

    @property
    def law(self) -> str:
        """Where the dependence on the voxel size comes from."""
        return "as counted on this data" if len(self.measured) > 1 else "taken for a surface: size⁻²"

    def _of_sample(self, voxel_size: float) -> float:
        """Straight lines between the measured sizes on logarithmic axes, prolonged; a surface's law without any."""
        sizes = sorted(self.measured)
        if len(sizes) < 2:
            return voxel_size**-SURFACE
        upper = next((k for k, size in enumerate(sizes) if size >= voxel_size), len(sizes) - 1)
        a, b = sizes[max(upper, 1) - 1], sizes[max(upper, 1)]
        slope = log(self.measured[b] / self.measured[a]) / log(b / a)
        return self.measured[a] * exp(slope * log(voxel_size / a))
