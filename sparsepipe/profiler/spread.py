"""Which minibatches a network is measured on: from a quarter to twice the batch, and of small and large samples.

Costs are known where they were measured, so the sizes cover what training will meet: the 1st to the 99th percentile of
minibatches that are drawn at random from the samples at hand, and at least a factor of 8.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import PointBatch, Sample, collate
from ..runtime.workloads.opening import Dataset

PARTS = (0.25, 0.5, 1.0, 2.0)  # of a minibatch's samples
_SPAN = 8.0  # least factor between the smallest and the largest minibatch
_DRAWS = 1000  # minibatches drawn at random for the percentiles
_STEP = 2.0  # most between two sizes of whole minibatches
_APART = 1.1  # least between any two sizes: closer ones tell nothing new
_LEAST_VOXELS = 100  # of a cropped minibatch: with fewer, coarse layers may be left with one, which batch norm refuses


def spread(dataset: Dataset, sizes: dict[int, float], *, batch_size: int) -> tuple[Any, ...]:
    """Make minibatches of different sizes, smallest first, of the samples whose sizes are given by index.

    Parts of a minibatch have fewer samples; of point clouds also a part of each sample, cut off along its longest axis,
    if there are not enough samples. Minibatches of other examples have at least two samples, unless all have one: over
    a single sample batch norm cannot normalise.
    """
    order = sorted(sizes, key=lambda index: sizes[index])
    clouds = dataset.size_unit == "voxels"
    least = 1 if clouds else min(2, batch_size)
    made = [_part(dataset, order, part * batch_size, least=least, clouds=clouds) for part in PARTS]
    found = {batch.size: batch for batch in made}
    most = 2 * batch_size
    while max(found) < _SPAN * min(found) and most < 2 * _SPAN * batch_size:
        most *= 2
        larger = _part(dataset, order, most, least=least, clouds=clouds)
        found[larger.size] = larger
    for indices in _whole(order, [sizes[index] for index in order], batch_size):
        batch = dataset.batch(indices)
        if all(max(batch.size, size) >= _APART * min(batch.size, size) for size in found):
            found[batch.size] = batch
    return tuple(found[size] for size in sorted(found))


def _part(dataset: Dataset, order: Sequence[int], samples: float, *, least: int, clouds: bool) -> Any:
    """A minibatch of typical samples: of small, middling and large ones alike, again where there are too few."""
    count = max(least, round(samples))
    batch = dataset.batch([order[int((k + 0.5) * len(order) / count)] for k in range(count)])
    whole = not clouds or samples >= count or batch.size * samples / count < _LEAST_VOXELS
    return batch if whole else cropped(batch, samples / count)


def _whole(order: Sequence[int], sizes: Sequence[float], batch_size: int) -> list[Sequence[int]]:
    """Minibatches of similar samples, from the 1st to the 99th percentile of random ones, at most _STEP apart."""
    if len(order) <= batch_size:
        return []
    random = np.random.default_rng(0)
    drawn = np.array(sizes)[random.integers(len(sizes), size=(_DRAWS, batch_size))].sum(axis=1)
    low, high = np.quantile(drawn, (0.01, 0.99))
    sums = np.convolve(sizes, np.ones(batch_size), mode="valid")  # of each run of samples that are next in size
    steps = max(1, math.ceil(math.log(max(high / max(low, 1.0), 1.0), _STEP)))
    starts = {int(np.abs(sums - aim).argmin()) for aim in np.geomspace(max(low, 1.0), max(high, 1.0), steps + 1)}
    return [order[start : start + batch_size] for start in sorted(starts)]


def cropped(batch: PointBatch, share: float) -> PointBatch:
    """Keep a share of every sample's voxels: those at one end of its longest axis, as dense as before."""
    return collate([_cropped(sample, share) for sample in batch.samples()])


def _cropped(sample: Sample, share: float) -> Sample:
    extent = sample.coordinates.amax(dim=0) - sample.coordinates.amin(dim=0)
    along = sample.coordinates[:, int(extent.argmax())]
    kept = torch.argsort(along, stable=True)[: max(1, round(share * len(along)))].sort().values
    label = sample.label[kept] if isinstance(sample.label, Tensor) else sample.label
    return Sample(sample.coordinates[kept], sample.features[kept], label)
