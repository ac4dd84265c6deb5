"""Samplers: the order in which an epoch visits the samples, and how they are dealt into minibatches."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import InputError
from ..util.io.fields import given_integer
from .minibatch_sizes import KEEP, sizes

Minibatches = tuple[tuple[int, ...], ...]
Sizes = NDArray[np.float64]
StageSeconds = Callable[[Sizes], NDArray[np.float64]]  # sizes of minibatches -> seconds [minibatches, stages]
SHUFFLE, SNAKE, PLANNED = ORDERS = ("shuffle", "snake", "planned")  # how an epoch's minibatches follow each other
_SNAKE_WINDOW = 32
_PACKED_WINDOW = 16  # minibatches whose samples are packed together
_REACH = 80  # positions by which a move of `_near_random` goes
_SWEEPS = 16
_FARTHEST = 3  # windows by which a minibatch leaves its random position, at most
_UNIT = 1024  # that costs are rounded to: a mean minibatch
_PRICE = 0.004  # of a move by one position, in costs of a mean minibatch, times the root of (stages - 1)


def minibatches(
    num_samples: int, *, batch_size: int, seed: int = 0, epoch: int = 0, shuffle: bool = True, last: str = KEEP
) -> Minibatches:
    """Compose minibatches of sample indices: each sample once, the last minibatch as in `sizes`.

    The order depends only on `seed` and `epoch`, so every process can compute it by itself.
    """
    rng = _checked(num_samples, batch_size, seed, epoch)
    order = rng.permutation(num_samples) if shuffle else np.arange(num_samples)
    return _cut(order, sizes(num_samples, batch_size, last=last))


def compose(
    sizes: Sequence[float],
    *,
    batch_size: int | None = None,
    budget: float | None = None,
    order: str = SHUFFLE,
    seed: int = 0,
    epoch: int = 0,
    last: str = KEEP,
    window: int | None = None,
    stages: int | StageSeconds = 1,
    step: int = 1,
) -> Minibatches:
    """Compose the minibatches of an epoch from the sizes of all samples, and order them. Each sample occurs once.

    A minibatch has `batch_size` samples, or as many as a `budget` of size holds. With a budget, the samples of a window
    of a shuffled epoch are packed into as few minibatches as possible, of about equal size. Every epoch has the same
    number of minibatches. The result depends only on the arguments, so every process can compute it by itself.

    - `shuffle`: random order; with `batch_size` that of `minibatches`.
    - `snake`: the minibatches of `shuffle`, sorted within windows by size, alternately up and down.
    - `planned`: samples are distributed over minibatches of similar size within windows. The order balances two costs:
      a difference of size between neighbours makes stages wait, and a minibatch that moves away from its random
      position makes the order less random. With a single stage, or with equal sizes, the order is random. With `step`
      above 1, each step gets minibatches of similar size, and the order of the steps is random.

    Args:
        sizes: Size of each sample, such as its number of voxels; above 0.
        batch_size: Number of samples per minibatch. Give exactly one of `batch_size` and `budget`.
        budget: Maximum sum of the sizes in a minibatch, in the same unit.
        order: One of `ORDERS`.
        seed: Random seed of all epochs.
        epoch: Number of the epoch, from 0.
        last: Treatment of a last minibatch with fewer than `batch_size` samples, see `sizes`. It stays the last one.
        window: Number of minibatches among which samples and minibatches are exchanged. Default: 32 for `snake`; for
            `planned` more with more stages.
        stages: Stages of the pipeline, for `planned`: with fewer stages, minibatches stay nearer to a random order.
            Their number if costs are proportional to size; else a function that returns the seconds of each stage,
            [minibatches, stages], from the sizes of minibatches.
        step: Minibatches per synchronous step, over all microbatches, replicas and pipelines.

    Returns:
        The sample indices of each minibatch.

    Raises:
        InputError: A size that is not above 0, or a sample above the budget.

    Example:
        >>> sp.data.compose([5, 1, 1, 1, 4], budget=6, order="snake")
        ((3, 4), (0, 1), (2,))

    See also:
        guides/scenes_of_varying_size
    """
    given = _checked_sizes(sizes, budget, batch_size)
    if order not in ORDERS:
        raise InputError("order.unknown", f"order {order!r} given, expected one of {', '.join(ORDERS)}", order=order)
    for name, value in (("window", window), ("stages", stages), ("step", step)):
        given_integer(1 if value is None or callable(value) else value, name, least=1)
    depth = _depth(stages(given)) if callable(stages) else float(stages)
    span = window or (_SNAKE_WINDOW if order == SNAKE else min(18 + round(2 * depth), _REACH // 2))
    span = -(-span // step) * step
    rng = _checked(len(given), batch_size or 1, seed, epoch)
    rest: Minibatches = ()
    if batch_size is None:
        assert budget is not None
        composed = _packed(given, budget, rng.permutation(len(given)), _packed_count(given.tobytes(), budget, seed))
    elif order == PLANNED and batch_size > 1:
        dealt = voxel_balanced_minibatches(
            given, batch_size=batch_size, seed=seed, epoch=epoch, window=min(span, 16), last=last
        )
        composed = list(dealt)
    else:
        composed = list(minibatches(len(given), batch_size=batch_size, seed=seed, epoch=epoch, last=last))
    if batch_size is not None and len(composed[-1]) != batch_size:
        composed, rest = composed[:-1], (composed[-1],)
    if order == SHUFFLE or not composed:
        return (*composed, *rest)
    totals = np.array([given[list(samples)].sum() for samples in composed])
    if order == SNAKE:
        places = _snake(totals, span)
    else:
        seconds = stages(totals).sum(axis=1) if callable(stages) else totals
        # Whole numbers add up to the same on every machine, and so all processes find the same order.
        costs = np.rint(_UNIT * seconds / seconds.mean())
        places = _like_steps(costs, span, step) if step > 1 else _near_random(costs, span, depth)
    return (*(composed[place] for place in places.tolist()), *rest)


def voxel_balanced_minibatches(
    voxel_counts: Sequence[int] | Sizes,
    *,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    window: int = 16,
    last: str = KEEP,
) -> Minibatches:
    """Compose minibatches with similar numbers of voxels, so that replicas get equal work.

    Each sample occurs once. All minibatches have `batch_size` samples except the last one (see `sizes`). A shuffled
    epoch is cut into windows of `window` minibatches. Within a window, samples are distributed by size, the largest to
    the minibatch with the fewest voxels, and then exchanged between the largest and the smallest minibatch. The totals
    of a window differ by at most the difference of two of its samples. A larger window balances better, a smaller one
    mixes more from epoch to epoch.
    """
    counts = np.asarray(voxel_counts)
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
    """Compose minibatches of samples of similar size, so that little of a minibatch is padding.

    Each sample occurs once. All minibatches have `batch_size` samples except the last one (see `sizes`). A shuffled
    epoch is cut into windows of `window` minibatches. Within a window, samples are sorted by size (equal ones at
    random) and cut into minibatches; the order of all minibatches is then drawn at random. A larger window pads less, a
    smaller one mixes more from epoch to epoch. The samples of the last, smaller minibatch are drawn from all sizes.
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
    """Compose minibatches with equal class frequencies: the counts of two classes differ by at most one.

    An epoch has as many samples as the data set. Samples of small classes therefore occur several times, and some
    samples of large classes do not occur. Counts of two samples of one class differ by at most one. Raises InputError
    without labels.
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


def _checked_sizes(sizes: Sequence[float], budget: float | None, batch_size: int | None) -> Sizes:
    if (budget is None) == (batch_size is None):
        raise InputError(
            "order.budget_or_batch_size", "batch size and minibatch budget exclude each other; give exactly one of them"
        )
    given = np.asarray(sizes, dtype=np.float64)
    if given.ndim != 1 or not len(given):
        raise InputError(
            "order.sizes_malformed", "sizes are malformed: expected one size per sample, such as [4096, 2048]"
        )
    if bad := np.flatnonzero(~(np.isfinite(given) & (given > 0))).tolist():
        raise InputError(
            "order.size_not_positive",
            f"sample {bad[0]} has size {given[bad[0]]:g}, expected a number above 0; remove the sample",
            sample=bad[0],
        )
    if budget is not None and not budget >= (most := float(given.max())):
        sample = int(given.argmax())
        raise InputError(
            "order.sample_above_budget",
            f"sample {sample} has size {most:g}, above the budget of {budget:g}; raise the budget to at least {most:g}",
            sample=sample,
        )
    return given


def _pack(samples: NDArray[np.intp], sizes: Sizes, count: int) -> tuple[list[list[int]], float]:
    """Deal samples to `count` minibatches, the largest left to the smallest one yet; and the largest's size."""
    smallest = [(0.0, number) for number in range(count)]
    heapify(smallest)
    packed: list[list[int]] = [[] for _ in range(count)]
    for sample in samples[np.argsort(-sizes[samples], kind="stable")].tolist():
        total, number = smallest[0]
        packed[number].append(sample)
        heapreplace(smallest, (total + float(sizes[sample]), number))
    return packed, max(smallest)[0]


def _windows(sizes: Sizes, budget: float, order: NDArray[np.intp]) -> list[list[list[int]]]:
    """Pack the samples of each window of an epoch into the fewest minibatches that `_pack` can fill."""
    length = max(1, int(_PACKED_WINDOW * budget / sizes.mean()))
    windows = []
    for start in range(0, len(order), length):
        samples = order[start : start + length]
        for count in range(max(1, int(sizes[samples].sum() / budget)), len(samples) + 1):
            packed, most = _pack(samples, sizes, count)
            if most <= budget or count == len(samples):
                break
        windows.append(packed)
    return windows


@lru_cache(maxsize=8)
def _packed_count(sizes: bytes, budget: float, seed: int) -> int:
    """Return the minibatches of each epoch: as many as the first epochs need, and as the samples sorted by size do."""
    given = np.frombuffer(sizes)
    counts = [len(_first_fit(given, budget, np.arange(len(given))))]
    for epoch in range(3):
        order = np.random.default_rng((seed, epoch)).permutation(len(given))
        counts.append(sum(map(len, _windows(given, budget, order))))
    return max(counts)


def _first_fit(sizes: Sizes, budget: float, order: NDArray[np.intp]) -> list[list[int]]:
    """Pack all samples, the largest first, each into the first minibatch that has room."""
    room: list[float] = []
    packed: list[list[int]] = []
    for sample in order[np.argsort(-sizes[order], kind="stable")].tolist():
        size = float(sizes[sample])
        number = next((number for number, left in enumerate(room) if size <= left), None)
        if number is None:
            number = len(room)
            room.append(budget)
            packed.append([])
        room[number] -= size
        packed[number].append(sample)
    return packed


def _packed(sizes: Sizes, budget: float, order: NDArray[np.intp], count: int) -> list[tuple[int, ...]]:
    """Pack an epoch, in its random order, into exactly `count` minibatches that stay within the budget."""
    windows = _windows(sizes, budget, order)
    packed = [samples for window in windows for samples in window]
    if len(packed) > count:  # rare: `_packed_count` has seen other epochs
        packed = _first_fit(sizes, budget, order)
    home = np.empty(len(order), dtype=np.intp)
    home[order] = np.arange(len(order))
    while len(packed) < count:  # halve the fullest
        fullest = max((p for p in range(len(packed)) if len(packed[p]) > 1), key=lambda p: sizes[packed[p]].sum())
        halves, _ = _pack(np.array(packed[fullest]), sizes, 2)
        packed[fullest : fullest + 1] = halves
    packed.sort(key=lambda samples: float(home[samples].mean()))
    return [tuple(sorted(samples, key=home.__getitem__)) for samples in packed]


def _snake(totals: Sizes, window: int) -> NDArray[np.intp]:
    """Sort within windows, up and down in turn."""
    places = []
    for number, start in enumerate(range(0, len(totals), window)):
        inside = start + np.argsort(totals[start : start + window], kind="stable")
        places.append(inside[::-1] if number % 2 else inside)
    return np.concatenate(places)


def _like_steps(costs: Sizes, window: int, step: int) -> NDArray[np.intp]:
    """Give each synchronous step minibatches of like cost; small ones first and last, which fill and drain pipelines.

    Within windows minibatches are sorted and cut to steps. Steps follow each other as their minibatches did.
    """
    window, steps = max(window, 8 * step), []
    for start in range(0, len(costs), window):
        inside = start + np.argsort(costs[start : start + window], kind="stable")
        cut = [inside[first : first + step] for first in range(0, len(inside), step)]
        steps += sorted(cut, key=lambda members: (len(members) < step, float(members.mean())))
    return np.concatenate([np.concatenate([members[::2], members[1::2][::-1]]) for members in steps])


def _depth(stage_seconds: NDArray[np.float64]) -> float:
    """Return how many stages as slow as the slowest all are together: faster ones have time to wait."""
    means = stage_seconds.mean(axis=0)
    return float(means.sum() / means.max())


def _near_random(costs: Sizes, window: int, depth: float) -> NDArray[np.intp]:
    """Return an order in which neighbours cost about the same, near the random one that is given.

    Stages of an asynchronous pipeline work on neighbours at the same time, and wait for the largest: the time lost
    grows with the sum of the differences between neighbours, and with the number of stages. Minimise

        sum of |c[i+1] - c[i]|  +  price * sum of |position - random position|,    c: costs, 0 outside of the epoch

    from windows sorted up and down on: move runs of 1, 2 or 4 minibatches to where the sum falls most, as long as it
    falls. None goes farther than `_FARTHEST` windows from its random position.
    """
    if depth <= 1 or costs.min() == costs.max():
        return np.arange(len(costs))
    places = _snake(costs, window)
    price = float(np.rint(_UNIT * _UNIT * _PRICE / np.sqrt(depth - 1))) / _UNIT
    count, farthest = len(places), _FARTHEST * window
    for _ in range(_SWEEPS):
        moves = []
        for back in (False, True):
            at = count - 1 - places[::-1] if back else places
            values = costs[places[::-1] if back else places]
            for length in (1, 2, 4):
                change = _changes(values, at, price, length, farthest)
                reach = change.argmin(axis=1)
                best = change[np.arange(len(change)), reach]
                for first in np.flatnonzero(best < 0).tolist():
                    end = first + length + int(reach[first]) + 1
                    moved = (count - end, count - first, length) if back else (first, end, -length)
                    moves.append((float(best[first]), *moved))
        if not moves:
            break
        busy = np.zeros(count + 2, dtype=bool)
        for _, first, end, shift in sorted(moves):
            rolled = np.roll(places[first:end], shift)
            near = np.abs(rolled - np.arange(first, end)).max() <= farthest
            if near and not busy[first : end + 2].any():  # a move changes what those beside it are worth
                busy[first : end + 2] = True
                places[first:end] = rolled
    return places


def _changes(costs: Sizes, at: NDArray[np.intp], price: float, length: int, farthest: int) -> NDArray[np.float64]:
    """Return by how much the sum of `_near_random` changes when a run moves right: [first of the run, positions - 1].

    `at`: random positions of the minibatches at each position, from which a run goes `farthest` positions at most.
    """
    count = len(costs)
    runs = count - length
    if runs < 1:
        return np.zeros((1, 1))
    padded = np.concatenate([[0.0], costs, np.zeros(_REACH + 1)])
    first = np.arange(runs)[:, None]
    positions = np.arange(1, _REACH + 1)[None]
    last = first + length - 1
    target = last + positions  # the run comes to lie after it
    inside = np.minimum(target, count - 1)
    before, begin, end, after = padded[first], padded[first + 1], padded[last + 1], padded[last + 2]
    left, right = padded[inside + 1], padded[inside + 2]
    change = np.abs(before - after) + np.abs(left - begin) + np.abs(end - right)
    change -= np.abs(before - begin) + np.abs(end - after) + np.abs(left - right)
    position = np.arange(count)
    passed = np.abs(position - length - at) - np.abs(position - at)  # those passed move left by the run's length
    total = np.concatenate([[0], np.cumsum(passed)])
    moved = total[inside + 1] - total[last + 1]
    for offset in range(length):
        row = first + offset
        away = np.abs(row + positions - at[row])
        moved = moved + away - np.abs(row - at[row])
        change[away > farthest] = np.inf
    change[target >= count] = np.inf
    changes: NDArray[np.float64] = change + price * moved
    return changes


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
    totals = np.zeros(ranks.shape[1], dtype=counts.dtype)
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
