"""What the tests of engines share: seeded random voxels, real voxels, rows matched by coordinates."""

from functools import cache

import torch

from sparsepipe import data
from sparsepipe.data import PointBatch
from sparsepipe.engines import CoordinateSet, Feature, Parts


def random_batch(num_samples=3, num_points=150, reach=6, *, channels=2, seed=0, dimension=3):
    """Seeded random voxels in [-reach, reach), negative coordinates included; samples differ in size."""
    generator = torch.Generator().manual_seed(seed)
    clouds = []
    for sample in range(num_samples):
        size = (num_points - 20 * sample, dimension)
        cloud = torch.randint(-reach, reach, size, generator=generator)
        clouds.append(torch.cat([torch.full((len(cloud), 1), sample), cloud], dim=1))
    coordinates = torch.cat(clouds).int().unique(dim=0)
    features = torch.randn(len(coordinates), channels, generator=generator)
    return PointBatch(coordinates, features, torch.arange(num_samples))


@cache
def real_batch(shared_data, *, num_samples=4, voxel_size=0.05):
    """Voxels of real shapes, one from each of `num_samples` classes; the feature is 1. Nobody changes them."""
    source = shared_data / "modelnet10-sample" / "ModelNet10"
    dataset = data.load(source, split="train", voxel_size=voxel_size, num_points=1024)
    return dataset.batch([k * len(dataset) // num_samples for k in range(num_samples)])


def sorted_rows(coordinates, *columns):
    """Return each tensor's rows in the lexicographic order of the coordinates, the coordinates first."""
    order = sorted(range(len(coordinates)), key=coordinates.tolist().__getitem__)
    return [tensor[order] for tensor in (coordinates, *columns)]


def leaf(engine, batch, *, stride=None, dtype=torch.float32, rows=None):
    """Return (sparse tensor, its features as a leaf that wants a gradient), rows in the engine's own order."""
    parts = engine.split({"x": engine.tensor(batch)})
    coordinate_set, feature = parts.coordinate_sets[0], parts.features["x"]
    if stride is not None:
        coordinates = coordinate_set.coordinates.clone()
        coordinates[:, 1:] *= torch.tensor(stride, dtype=torch.int32)
        coordinate_set = CoordinateSet(stride, coordinates)
    features = (feature.rows if rows is None else rows).to(dtype).clone().requires_grad_()
    joined = engine.join(Parts((coordinate_set,), {"x": Feature(features, 0)}))
    return joined["x"], features


def close(actual, expected, tolerance):
    """Assert equality within `tolerance` of the largest expected magnitude."""
    scale = max(float(expected.detach().abs().max()), 1e-12)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)
