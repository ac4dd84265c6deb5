"""Samplers: the order in which an epoch visits the samples, and how they are dealt into minibatches."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.random import Generator

from ..errors import InputError
from ..io.fields import given_integer
from .minibatch_sizes import KEEP, sizes

Minibatches = tuple[tuple[int, ...], ...]


def minibatches(
    num_samples: int, *, batch_size: int, seed: int = 0, epoch: int = 0, shuffle: bool = True, last: str = KEEP
) -> Minibatches:
    """Deal sample indices into minibatches: each sample once, the last minibatch as `sizes` says.

    The order depends on `seed` and `epoch` alone, so every process can compute it for itself.
    """
    rng = _checked(num_samples, batch_size, seed, epoch)
    order = rng.permutation(num_samples) if shuffle else np.arange(num_samples)
    return _cut(order, sizes(num_samples, batch_size, last=last))


def voxel_balanced_minibatches(
    voxel_counts: Sequence[int], *, batch_size: int, seed: int = 0, epoch: int = 0, window: int = 16, last: str = KEEP
) -> Minibatches:
    """Deal samples so that minibatches hold about equally many voxels, and replicas so get equal work.

    Each sample comes once; all minibatches have `batch_size` samples but the last, see `sizes`. A shuffled
    epoch is cut into windows of so many minibatches; within one, samples are dealt by size, rank by rank, the largest
    of a rank to the minibatch with the fewest voxels yet, then exchanged between the richest and the poorest. Totals of
    a window never differ by more than its samples do. A larger window evens out more, a smaller one mixes more from
    epoch to epoch.
    """
    counts = np.asarray(voxel_counts, dtype=np.int64)
    rng = _checked(len(counts), batch_size, seed, epoch)
    given_integer(window, "window")
    if window < 1:
        raise InputError("order.window_below_one", f"window {window} given, expected at least 1 minibatch")
    order = rng.permutation(len(counts))
    whole = len(counts) // batch_size * batch_size
    dealt: list[tuple[int, ...]] = []
    for start in range(0, whole, window * batch_size):
        dealt += _dealt_evenly(order[start : min(start + window * batch_size, whole)], counts, batch_size, rng)
    return _with_rest(dealt, order[whole:], sizes(len(counts), batch_size, last=last))


def bucketed_minibatches(
    sample_sizes: Sequence[int], *, batch_size: int, seed: int = 0, epoch: int = 0, window: int = 100, last: str = KEEP
) -> Minibatches:
    """Deal samples so that those of a minibatch are of like size, and little of it is padding.

    Each sample comes once; all minibatches have `batch_size` samples but the last, see `sizes`. A shuffled epoch is cut
    into windows of so many minibatches; within one, samples are sorted by size, equals by lot, and cut to minibatches,
    whose order is then drawn over the whole epoch. A larger window pads less, a smaller one mixes more from epoch to
    epoch. What is left for the last minibatch is drawn from all sizes.
    """
    counts = np.asarray(sample_sizes, dtype=np.int64)
    rng = _checked(len(counts), batch_size, seed, epoch)
    given_integer(window, "window", least=1)
    order = rng.permutation(len(counts))
    whole = len(counts) // batch_size * batch_size
    dealt: list[tuple[int, ...]] = []
    for start in range(0, whole, window * batch_size):
        inside = order[start : min(start + window * batch_size, whole)]
        rows = inside[np.argsort(counts[inside], kind="stable")].reshape(-1, batch_size)
        dealt += [tuple(row) for row in rows.tolist()]
    drawn = [dealt[place] for place in rng.permutation(len(dealt))]
    return _with_rest(drawn, order[whole:], sizes(len(counts), batch_size, last=last))


def class_balanced_minibatches(
    labels: Sequence[int], *, batch_size: int, seed: int = 0, epoch: int = 0, last: str = KEEP
) -> Minibatches:
    """Draw minibatches in which classes are equally frequent: within one, no class has two samples more than another.

    An epoch has as many samples as the data, so those of small classes come several times and those of large ones not
    always; no sample of a class comes twice more than another of it. Raises InputError without labels.
    """
    rng = _checked(len(labels), batch_size, seed, epoch)
    members = [np.flatnonzero(np.asarray(labels) == label) for label in np.unique(labels)]
    drawn = np.zeros(len(members), dtype=np.int64)  # samples of each class so far
    shares = []
    for size in sizes(len(labels), batch_size, last=last):
        share = np.full(len(members), size // len(members))
        neediest = np.lexsort((rng.random(len(members)), drawn))  # by samples so far, equals by lot
        share[neediest[: size % len(members)]] += 1
        drawn += share
        shares.append(share)
    queues = [iter(_repeated(rows, count, rng)) for rows, count in zip(members, drawn.tolist(), strict=True)]
    return tuple(
        tuple(rng.permutation([next(queues[place]) for place in np.repeat(np.arange(len(members)), share)]).tolist())
        for share in shares
    )


def _with_rest(dealt: list[tuple[int, ...]], rest: np.ndarray, own: Sequence[int]) -> Minibatches:
    """Do with the samples left over what `own`, the sizes of an epoch's minibatches, says: keep, merge or drop them."""
    left = tuple(rest.tolist())
    if len(own) > len(dealt):
        return (*dealt, left)
    if dealt and own[-1] > len(dealt[-1]):
        return (*dealt[:-1], dealt[-1] + left)
    return tuple(dealt)


def _dealt_evenly(samples: np.ndarray, counts: np.ndarray, batch_size: int, rng: Generator) -> list[tuple[int, ...]]:
    """Deal samples, a multiple of `batch_size`, by size: the largest left to whom has the fewest voxels, in ranks."""
    ranks = samples[np.argsort(-counts[samples], kind="stable")].reshape(batch_size, -1)
    totals = np.zeros(ranks.shape[1], dtype=np.int64)
    dealt = np.empty_like(ranks)
    for place, rank in enumerate(ranks):
        poorest = np.argsort(totals, kind="stable")
        dealt[place, poorest] = rank
        totals[poorest] += counts[rank]
    _exchange(dealt, counts, totals)
    order = rng.permutation(ranks.shape[1])  # of the window's minibatches; within each the large do not come first
    return [tuple(rng.permutation(dealt[:, column]).tolist()) for column in order]


def _exchange(dealt: np.ndarray, counts: np.ndarray, totals: np.ndarray) -> None:
    """Swap samples between the richest and the poorest minibatch (columns of `dealt`) as long as it evens them out.

    The richest never gets richer nor the poorest poorer, so the totals' range only shrinks.
    """
    for _ in range(8 * dealt.shape[1]):
        rich, poor = int(totals.argmax()), int(totals.argmin())
        gap = totals[rich] - totals[poor]
        moved = counts[dealt[:, rich], None] - counts[None, dealt[:, poor]]  # voxels that each swap would move
        place = int(np.abs(2 * moved - gap).argmin())
        giver, taker = divmod(place, dealt.shape[0])
        change = moved[giver, taker]
        if not 0 < change < gap:
            return
        dealt[giver, rich], dealt[taker, poor] = dealt[taker, poor], dealt[giver, rich]
        totals[rich] -= change
        totals[poor] += change


def _repeated(rows: np.ndarray, count: int, rng: Generator) -> list[int]:
    """Return `count` of the rows: all of them shuffled, then all again, until there are enough."""
    rounds = -(-count // len(rows))
    return list(np.concatenate([rng.permutation(rows) for _ in range(rounds)] or [rows[:0]])[:count].tolist())


def _cut(order: np.ndarray, counts: Sequence[int]) -> Minibatches:
    ends = accumulate(counts)
    return tuple(tuple(order[end - count : end].tolist()) for end, count in zip(ends, counts, strict=True))


def _checked(num_samples: int, batch_size: int, seed: int, epoch: int) -> Generator:
    """Return the generator of an epoch. Raises InputError for a number out of its range."""
    for name, value, least in (("samples", num_samples, 1), ("batch size", batch_size, 1), ("epoch", epoch, 0)):
        given_integer(value, name, least=least)
    given_integer(seed, "seed")
    if seed < 0:
        raise InputError("seed.negative", f"seed {seed} given, expected 0 or more")
    return np.random.default_rng((seed, epoch))
