"""Samplers of one's own: which samples an epoch visits, and in what order, where that is not each of them once.

`weighted` draws as many samples as there are, with repetition, by the data set's weights, or each class as often. A
function `sampler(num_samples, seed, epoch)` of the user's returns the indices of an epoch; so does the `sampler` of a
user's data set, as torch's samplers. Every process draws for itself: the same, by seed and epoch. Classes can be
weighed in the loss instead (`class_weights`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from math import ceil
from typing import Any, Protocol

import numpy as np

from ..errors import CODE_FAILURES, InputError
from ..util.io.fields import complaint
from ..util.io.functions import UserFunction, is_function
from .labels import IGNORED
from .minibatch_sizes import KEEP, sizes
from .order import Minibatches

WEIGHTED = "weighted"
SAMPLERS = (WEIGHTED,)


class Drawable(Protocol):
    """Offer what samplers need to know of a split."""

    @property
    def labels(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...


def draw(
    sampler: str, samples: Drawable, *, weights: Sequence[float] | None = None, seed: int = 0, epoch: int = 0
) -> tuple[int, ...]:
    """Return the samples of an epoch, in order: some may come several times, some not at all.

    Args:
        sampler: "weighted", or a function by its name, as `path/data.py:sampler`.
        samples: The split.
        weights: Of each sample, for "weighted"; None: such that each class is drawn as often.
        seed: Of all epochs.
        epoch: Number of the epoch, from 0.

    Raises:
        InputError: An unknown sampler, weights that are none, and indices that no sample has.
    """
    count = len(samples)
    if sampler == WEIGHTED:
        chances = _by_class(samples) if weights is None else _checked(weights, count)
        drawn = np.random.default_rng((seed, epoch)).choice(count, size=count, p=chances / chances.sum())
        return tuple(drawn.tolist())
    if not is_function(sampler):
        raise InputError(
            "sampler.unknown", f"unknown sampler {sampler!r}, expected {WEIGHTED}, or your own as path/data.py:sampler"
        )
    from .examples.streams import with_generators  # here: it brings torch

    function = UserFunction.parse(sampler)
    chosen = function.load()

    def drawn_again() -> tuple[int, ...]:
        indices = with_generators(f"sampler:{epoch}", seed, lambda: chosen(num_samples=count, seed=seed, epoch=epoch))
        return checked_indices(indices, count, sampler)

    try:
        return repeated(drawn_again, sampler)
    except InputError:
        raise
    except CODE_FAILURES as error:  # whatever the user's code raises
        raise InputError(
            "sampler.raises",
            f"{function}: raises {type(error).__name__} ({complaint(error)}) when called as "
            f"sampler(num_samples={count}, seed={seed}, epoch={epoch})",
        ) from error


def repeated(run: Callable[[], tuple[int, ...]], sampler: str) -> tuple[int, ...]:
    """Return what a sampler draws for an epoch. Raises InputError if it draws others when it is asked again.

    Every process draws for itself: inputs and targets of one minibatch would then be of different samples.
    """
    drawn = run()
    if run() != drawn:
        raise InputError(
            "sampler.not_repeatable",
            f"{sampler}: returns other samples when an epoch is drawn again; use the global random generators, or "
            "derive the draw from seed and epoch",
        )
    return drawn


def checked_indices(drawn: Iterable[int], count: int, sampler: str) -> tuple[int, ...]:
    """Return the indices that a sampler gave. Raises InputError if one is no sample's, or there is none."""
    try:
        indices = tuple(int(index) for index in drawn)
    except (TypeError, ValueError):
        raise InputError(
            "sampler.not_indices",
            f"{sampler}: returns a {type(drawn).__name__}, expected sample indices for an epoch",
        ) from None
    bad = next((index for index in indices if not 0 <= index < count), None)
    if bad is not None or not indices:
        what = f"sample {bad}" if indices else "no sample"
        raise InputError("sampler.sample_unknown", f"{sampler}: returns {what}, expected indices from 0 to {count - 1}")
    return indices


def dealt(indices: Sequence[int], *, batch_size: int, last: str = KEEP) -> Minibatches:
    """Deal the samples of an epoch, in order, into minibatches: the last one as `sizes` says.

    >>> dealt([3, 3, 0, 2, 1], batch_size=2)
    ((3, 3), (0, 2), (1,))
    """
    counts = sizes(len(indices), batch_size, last=last)
    ends = accumulate(counts)
    return tuple(tuple(indices[end - count : end]) for end, count in zip(ends, counts, strict=True))


def substituted(
    minibatches: Minibatches, left_out: Collection[int], *, num_samples: int, seed: int = 0, epoch: int = 0
) -> Minibatches:
    """Put other samples of a split in the place of some, drawn at random by seed and epoch.

    Minibatches keep their number of samples, so that an epoch has as many minibatches whatever is left out. None comes
    twice in a minibatch, unless fewer than it holds are left.

    >>> substituted(((0, 1), (2, 3)), [1, 3], num_samples=4)
    ((0, 2), (2, 0))
    """
    away = frozenset(left_out)
    staying = [sample for sample in range(num_samples) if sample not in away]
    random = np.random.default_rng((seed, epoch))

    def fitting(samples: Sequence[int]) -> tuple[int, ...]:
        rest, count = set(samples) - away, sum(sample in away for sample in samples)
        others = [sample for sample in staying if sample not in rest] or staying if count else []
        drawn = iter(random.choice(others, count, replace=count > len(others)).tolist() if count else [])
        return tuple(next(drawn) if sample in away else sample for sample in samples)

    return tuple(map(fitting, minibatches))


def split_by_size(samples: Sequence[int], sizes: Sequence[float], most: float) -> Minibatches:
    """Split a minibatch into the fewest parts of `most` each that dealing the largest samples first finds.

    `sizes`: of the samples, in their order, which they keep within a part. A larger sample has a part to itself. If it
    fits, a part of one sample gets the smallest of another part: batch norm cannot normalise a single voxel.

    >>> split_by_size((4, 7, 1, 2), (30, 80, 50, 20), 100)
    ((4, 1), (7, 2))
    """
    largest_first = sorted(range(len(samples)), key=lambda place: -sizes[place])
    count = min(len(samples), max(1, ceil(sum(sizes) / most)))
    while True:
        totals = [0.0] * count
        parts: list[list[int]] = [[] for _ in range(count)]
        for place in largest_first:
            lightest = totals.index(min(totals))
            totals[lightest] += sizes[place]
            parts[lightest].append(place)
        if max(totals) <= most or count == len(samples):
            for single in (part for part in parts if len(part) == 1):
                spare = [(sizes[part[-1]], k) for k, part in enumerate(parts) if len(part) > 2]
                if spare and sizes[single[0]] + min(spare)[0] <= most:
                    single.append(parts[min(spare)[1]].pop())
            return tuple(tuple(samples[place] for place in sorted(part)) for part in sorted(parts, key=min))
        count += 1


def class_weights(samples: Any, num_classes: int) -> list[float]:
    """Return weights by which each class counts as much in the loss: the mean count over a class's own; 0 without any.

    A split whose samples have one class each is counted by its labels; another is read, once.
    Raises InputError for targets that are no classes.
    """
    counts = np.zeros(num_classes, dtype=np.int64)
    if samples.targets_are_labels:
        counts += np.bincount(samples.labels, minlength=num_classes)
    for index in () if samples.targets_are_labels else range(len(samples)):
        target = samples.batch([index]).target
        known = None if isinstance(target, dict | tuple | list) or target.is_floating_point() else target.reshape(-1)
        known = None if known is None else known[known != IGNORED].numpy()
        if known is None or (len(known) and not 0 <= known.min() <= known.max() < num_classes):
            raise InputError(
                "loss.class_weights_malformed",
                f"class_weights balanced: the target {samples.name(index)} does not hold classes from 0 to "
                f"{num_classes - 1}; give a weight per class",
            )
        counts += np.bincount(known, minlength=num_classes)
    there = counts > 0
    mean = counts.sum() / max(there.sum(), 1)
    return [float(mean / count) if count else 0.0 for count in counts.tolist()]


def _by_class(samples: Drawable) -> np.ndarray:
    """Return chances by which each class is drawn as often as any other."""
    labels = np.array(samples.labels)
    classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    del classes
    chances: np.ndarray = 1.0 / counts[places.reshape(-1)]
    return chances


def _checked(weights: Sequence[float], count: int) -> np.ndarray:
    try:
        chances = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        chances = np.empty(0)
    if chances.shape != (count,) or not np.isfinite(chances).all() or chances.min() < 0 or not chances.sum() > 0:
        raise InputError(
            "sampler.weights_malformed",
            f"weights have shape {list(chances.shape)} for {count} samples, expected one number of 0 or more per "
            "sample, at least one above 0",
        )
    return chances
