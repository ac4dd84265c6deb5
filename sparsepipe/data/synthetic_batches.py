"""Minibatches of voxels scattered at random, for whoever needs something to compute on and no data set."""

import torch

from .batch import PointBatch


def scattered_batch(num_points: int, *, seed: int) -> PointBatch:
    """Return one cloud of about `num_points` voxels in a cube that they fill to a tenth, one feature each."""
    generator = torch.Generator().manual_seed(seed)
    side = max(2, round((10 * num_points) ** (1 / 3)))
    places = torch.randperm(side**3, generator=generator)[:num_points].sort().values
    axes = [torch.zeros_like(places), places // side**2, places // side % side, places % side]
    coordinates = torch.stack(axes, dim=1).to(torch.int32)
    features = torch.rand(len(places), 1, generator=generator)
    return PointBatch(coordinates, features, torch.zeros(1, dtype=torch.int64))
