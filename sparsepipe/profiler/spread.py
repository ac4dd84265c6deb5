"""Which minibatches a network is measured on: some of few, of middling and of many voxels, tokens or samples."""

from collections.abc import Callable, Sequence
from typing import Any

from .. import data
from ..data.batch import PointBatch
from ..runtime.workloads.opening import Dataset


def spread_batches(typical: Sequence[PointBatch], *, batch_size: int) -> tuple[PointBatch, ...]:
    """Choose up to three minibatches of `batch_size` samples: those of fewest, middling and most voxels.

    The number of samples stays what training uses: the classifier's cost depends on it. Where samples do not give
    three different voxel counts that way, halves and quarters of the largest minibatch step in.
    """
    samples = sorted((sample for batch in typical for sample in batch.samples()), key=len)
    return _spread(samples, batch_size, data.collate)


def spread_examples(dataset: Dataset, indices: Sequence[int], *, batch_size: int) -> tuple[Any, ...]:
    """The same of examples, by their sizes: minibatches of those samples of a data set whose indices are given.

    None has a single sample, unless all have: over that batch norm cannot normalise.
    """
    sizes = dataset.sample_sizes()
    return _spread(sorted(indices, key=lambda index: sizes[index]), batch_size, dataset.batch, least=2)


def _spread(
    samples: Sequence[Any], batch_size: int, made: Callable[[Sequence[Any]], Any], *, least: int = 1
) -> tuple[Any, ...]:
    """`samples` are sorted by size, `made` makes a minibatch of some of them: of `least` where it is a part of one."""
    starts = (0, (len(samples) - batch_size) // 2, len(samples) - batch_size)
    chosen = {batch.size: batch for batch in (made(samples[s : s + batch_size]) for s in starts)}
    for parts in (2, 4):
        if len(chosen) < 3 and batch_size >= parts * least:
            part = made(samples[-(batch_size // parts) :])
            chosen.setdefault(part.size, part)
    return tuple(chosen[count] for count in sorted(chosen))
