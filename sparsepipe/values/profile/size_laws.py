"""Laws of size: how seconds and bytes grow with a minibatch, fitted to what was measured at a few sizes.

Between the smallest and the largest measured size a law is a non-negative combination of its drivers,

    law(x) = constant + slope · x + square · x²        (x: size at the input of the network; x² for attention alone)

where attention's x² is that of as many samples as a batch has: minibatches with fewer samples, which are longer then,
were measured with more.

bent only so far that it meets each measured point within its spread. Beyond, it is proportional to the size.

No law falls, and none grows faster than a power of the size: x for seconds, so that throughput does not fall with
larger minibatches. Functions of this kind stay such under minimum, maximum and non-negative sums, which is why bending
keeps both properties. Points that contradict them are noisy: all points of their row give way by the same factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SECONDS, BYTES, ATTENTION = 1.0, float(np.log2(2.5)), 2.0  # powers of the size that quantities grow with at most
_SMALLEST = 1e-9  # stands for a size of 0, which has no logarithm
_LEAST = 1e-60  # less seconds or bytes count as 0: the fourth power of what divides by them has no number
_NOISE = {SECONDS: 0.02, BYTES: 0.002, ATTENTION: 0.02}  # least standard deviation of a point, as a share of it
_WILD = 1.5  # factor by which a point contradicts most others before it is left out
_CURVED = 0.05  # share of the squares at the largest size from which on a layer counts as attention
_DOUBLING = 0.1  # share by which proportion is off for each doubling beyond the measured range, as measured: 0 to 19%


@dataclass(frozen=True, eq=False)
class SizeLaws:
    """Laws of several quantities that were measured at the same sizes: one row each.

    `least` and `most` are what a law keeps to at each measured size: the point, less and more its spread.
    """

    sizes: Array  # [S], growing
    power: float  # of the size, with which the values grow at most
    values: Array  # [rows, S], as measured
    spreads: Array  # [rows, S], in the unit of the values
    left_out: NDArray[np.bool_]  # [rows, S]: points that contradict most others
    constants: Array  # [rows]
    slopes: Array  # [rows]
    squares: Array  # [rows]
    least: Array  # [rows, S]
    most: Array  # [rows, S]

    @classmethod
    def fit(
        cls,
        sizes: Array,
        values: Array,
        spreads: Array,
        *,
        power: float = SECONDS,
        drivers: Sequence[tuple[Array, Array, Array]] = (),
        samples: Array | None = None,
    ) -> "SizeLaws":
        """Fit the laws of `values` [rows, S], whose `spreads` are in the same unit, at growing `sizes` [S].

        By non-negative least squares over the points, weighted by their spread, shrunk towards proportion as far as the
        points do not need more. `power`: of the size, with which the values grow at most. `drivers`: further quantities
        that drive the values: what they were [rows, S], and the constants and slopes [rows] of their own laws.
        `samples`: how many each measured minibatch had, as a share of those that the laws are for [S].
        """
        x = np.maximum(sizes, _SMALLEST)
        values = np.where(values < _LEAST, 0.0, values)
        if power == ATTENTION and samples is not None and len(x) > 2:
            values = _of_whole_batches(x, values, spreads, samples)
        wild = _wild(x, values, spreads, power)
        positive = values > 0
        known = positive & ~wild & (positive | wild).all(axis=1, keepdims=True)
        least = np.where(known, np.maximum(values - spreads, 0.0), 0.0)
        most = np.where(known, values + spreads, np.inf)
        factor = _contradiction(x, least, most, power)
        typical = np.median(values / x, axis=1, keepdims=True) * x
        scale = np.where(known, values, np.maximum(values, typical))
        scale = np.where(scale > 0, scale, 1.0)
        share = np.hypot(_NOISE[power], np.log(factor))
        weights = np.where(wild, 0.0, 1 / np.hypot(spreads / 2, scale * share[:, None]))  # medians are surer
        extra = [driver for driver in drivers if driver[0].any()] if len(x) >= 3 + len(drivers) else []
        columns = [np.broadcast_to(x**2, values.shape)] if power == ATTENTION and len(x) > 2 else []
        columns += [law for law, _, _ in extra]
        coefficients = _shrunk(x, values, weights, columns)
        constants, slopes, squares = (
            coefficients[0],
            coefficients[1],
            coefficients[2] if len(columns) > len(extra) else 0 * coefficients[0],
        )
        for law, (_, of_driver, slope) in zip(coefficients[len(coefficients) - len(extra) :], extra, strict=True):
            constants, slopes = constants + law * of_driver, slopes + law * slope
        if power == ATTENTION:
            whole = constants + slopes * x[-1] + squares * x[-1] ** 2
            squares = np.where(squares * x[-1] ** 2 > _CURVED * whole, squares, 0.0)
            factor = np.where(squares > 0, factor, _contradiction(x, least, most, SECONDS))
        least, most = least / factor[:, None], most * factor[:, None]
        return cls(x, power, values, spreads, wild, constants, slopes, squares, least, most)

    @property
    def measured(self) -> tuple[float, float]:
        """The smallest and the largest size that was measured."""
        low = float(self.sizes[0])
        return 0.0 if low <= _SMALLEST else low, float(self.sizes[-1])

    @property
    def holds_everywhere(self) -> bool:
        """Return whether the only size is 0, which says that the values do not depend on size."""
        return self.measured[1] <= _SMALLEST

    def at(self, sizes: Array) -> Array:
        """Evaluate all laws at each of `sizes` [sizes], or [rows, sizes], 0 or more: [rows, sizes]."""
        inside = np.full_like(sizes, _SMALLEST) if self.holds_everywhere else np.clip(sizes, *self.measured)
        values = self._base(inside)
        if len(rows := self._bent):
            values[rows] = self._between_bounds(rows, values[rows], inside if inside.ndim == 1 else inside[rows])
        if not self.holds_everywhere and (sizes != inside).any():
            values *= self._beyond(sizes, inside)
        return values

    def uncertainty(self, sizes: Array) -> Array:
        """Share by which each law may be off at `sizes`, as `at` takes them, about one standard deviation.

        Beyond the measured range it grows with every doubling, and by how far the law's drivers are from proportion.
        """
        inside = np.clip(sizes, *self.measured)
        if self.holds_everywhere:
            return np.broadcast_to(self._residuals[:, None], (len(self.slopes), sizes.shape[-1]))
        doublings = np.abs(np.log2(np.maximum(sizes, _SMALLEST) / np.maximum(inside, _SMALLEST)))
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.abs(self._base(sizes) / self._base(inside) / self._beyond(sizes, inside) - 1)
        apart = np.where(doublings > 0, np.minimum(np.nan_to_num(apart, posinf=1.0), 1.0), 0.0)
        return np.minimum(np.hypot(self._residuals[:, None], _DOUBLING * doublings) + apart, 1.0)

    @cached_property
    def _residuals(self) -> Array:
        """Share by which the points lie around their law, with half of their own spread: [rows]."""
        known = (self.values > 0) & ~self.left_out
        values = np.where(known, self.values, 1.0)
        ratio = np.where(known, self.at(self.sizes), 1.0) / values
        share = np.hypot(self.spreads / 2 / values, np.log(np.where(ratio > 0, ratio, np.e)))
        share = np.where(known, share, 0.0)
        return np.minimum(np.sqrt((share**2).sum(axis=1) / np.maximum(known.sum(axis=1), 1)), 1.0)

    def _base(self, sizes: Array) -> Array:
        values: Array = self.constants[:, None] + self.slopes[:, None] * sizes
        return values + self.squares[:, None] * sizes**2 if self.squares.any() else values

    def _beyond(self, sizes: Array, inside: Array) -> Array:
        """Times as much as at the nearest measured size: in proportion; of attention as its law has it."""
        ratio = np.divide(sizes, inside, out=np.ones_like(inside), where=inside > 0)
        ratio = np.broadcast_to(ratio, (len(self.slopes), sizes.shape[-1]))
        if not self.squares.any():
            return ratio
        return np.where(self.squares[:, None] > 0, self._base(sizes) / np.maximum(self._base(inside), 1e-300), ratio)

    @cached_property
    def _bent(self) -> NDArray[np.intp]:
        """The rows whose drivers alone do not meet every point."""
        base = self._base(self.sizes)
        return np.flatnonzero(((base < self.least) | (base > self.most)).any(axis=1))

    def _between_bounds(self, rows: NDArray[np.intp], found: Array, sizes: Array) -> Array:
        """Bring values of laws to the most, and the least, that laws which meet all points may be at `sizes`."""
        curved = self.squares[rows, None] > 0 if self.squares.any() else None
        for points, limit, bound in (
            (self.most[rows], np.maximum, np.minimum),
            (self.least[rows], np.minimum, np.maximum),
        ):
            for k, size in enumerate(self.sizes):
                grown = limit(sizes / size, 1.0)
                if self.power == BYTES:
                    grown = grown**BYTES
                elif curved is not None:
                    grown = np.where(curved, grown**2, grown)
                found = bound(found, points[:, k, None] * grown)
        return found


def _of_whole_batches(x: Array, values: Array, spreads: Array, samples: Array) -> Array:
    """Return the cost of minibatches of the measured sizes that contain a whole batch of samples.

    Attention compares a sample's positions with each other: x² shared among the samples.
    """
    weights = np.where(
        values > 0, 1 / np.hypot(spreads / 2, np.where(values > 0, _NOISE[ATTENTION] * values, 1.0)), 0.0
    )
    squares = _shrunk(x, values, weights, [np.broadcast_to(x**2 / samples, values.shape)])[2]
    found: Array = np.maximum(values + squares[:, None] * (x**2 - x**2 / samples), 0.0)
    return found


def _wild(x: Array, values: Array, spreads: Array, power: float) -> NDArray[np.bool_]:
    """Return the points that contradict most others, by more than _WILD and their spreads: [rows, S].

    Of two points no one knows which; nor of as many that contradict each other as agree.
    """
    count = len(x)
    if count < 3:
        return np.zeros(values.shape, dtype=bool)
    smallest = np.maximum(values.max(axis=1, keepdims=True) * 1e-6, 1e-300)  # zeros are far away from all others
    low, high = np.maximum(values - spreads, smallest), np.maximum(values + spreads, smallest)
    votes = np.zeros(values.shape, dtype=np.intp)
    for i, j in combinations(range(count), 2):
        falls = low[:, i] > _WILD * high[:, j]
        leaps = low[:, j] > _WILD * high[:, i] * (x[j] / x[i]) ** power
        votes[:, i] += falls | leaps
        votes[:, j] += falls | leaps
    wild = votes > (count - 1) / 2
    wild[2 * wild.sum(axis=1) >= count] = False
    return wild


def _contradiction(x: Array, least: Array, most: Array, power: float) -> Array:
    """The factor by which points give way, so that a law which grows with this power meets them all: [rows]."""
    worst = np.ones(len(least))
    for i, j in combinations(range(len(x)), 2):
        for low, may in ((least[:, i], most[:, j]), (least[:, j], most[:, i] * (x[j] / x[i]) ** power)):
            np.maximum(worst, np.divide(low, may, out=np.ones_like(worst), where=may > 0), out=worst)
    return np.sqrt(worst)


def _shrunk(x: Array, values: Array, weights: Array, columns: Sequence[Array]) -> Array:
    """Non-negative factors of a constant, of `x` and of further `columns` [rows, S]: [drivers, rows].

    They are shrunk towards proportion as James and Stein's estimator is: what other drivers explain of the points
    counts as far as it is more than chance explains.
    """
    free, proportional, left = _line(x, values, weights)
    if columns:
        free = non_negative([np.ones_like(values), np.broadcast_to(x, values.shape), *columns], values, weights)
    rest = values - free[0][:, None] - free[1][:, None] * x
    for factors, column in zip(free[2:], columns, strict=True):
        rest = rest - factors[:, None] * column
    squares = ((rest * weights) ** 2).sum(axis=1)
    spare = np.maximum((weights > 0).sum(axis=1) - 2, 1)
    gain = (left - squares) / np.maximum(squares / spare, 1.0)
    trust = np.where(gain > 2, 1 - 2 / np.maximum(gain, 2), 0.0)
    shrunk = trust * free
    shrunk[1] += (1 - trust) * proportional
    return shrunk


def _line(x: Array, values: Array, weights: Array) -> tuple[Array, Array, Array]:
    """The best line of non-negative factors, [2, rows]; the best slope of a proportion, and what that leaves over."""
    unit = x / x[-1]
    w = weights**2
    ones, first, second = w.sum(axis=1), (w * unit).sum(axis=1), (w * unit**2).sum(axis=1)
    level, moment = (w * values).sum(axis=1), (w * values * unit).sum(axis=1)
    proportional = moment / second
    left = ((weights * (values - proportional[:, None] * unit)) ** 2).sum(axis=1)
    determinant = ones * second * (1 + 1e-12) - first**2
    constant = (level * second - moment * first) / determinant
    slope = (moment * ones - level * first) / determinant
    falling = slope < 0
    constant, slope = np.where(falling, level / ones, constant), np.where(falling, 0.0, slope)
    through_zero = constant < 0
    constant, slope = np.where(through_zero, 0.0, constant), np.where(through_zero, proportional, slope)
    return np.stack([constant, slope / x[-1]]), proportional / x[-1], left


def non_negative(columns: Sequence[Array], values: Array, weights: Array) -> Array:
    """Non-negative least squares of every row, [columns, rows]: the best of all subsets whose factors are."""
    weighted, target = np.stack(columns, axis=2) * weights[:, :, None], values * weights
    norms = np.maximum(np.sqrt((weighted**2).sum(axis=1)), 1e-300)
    unit = weighted / norms[:, None, :]
    gram, right = np.einsum("rsd,rse->rde", unit, unit), np.einsum("rsd,rs->rd", unit, target)
    gram += 1e-9 * np.eye(len(columns))
    best, solution = np.zeros(len(target)), np.zeros((len(target), len(columns)))
    for size in range(1, len(columns) + 1):
        for chosen in map(list, combinations(range(len(columns)), size)):
            factors = np.linalg.solve(gram[:, chosen][:, :, chosen], right[:, chosen, None])[:, :, 0]
            explained = (factors * right[:, chosen]).sum(axis=1)  # of the target's square
            better = (factors >= 0).all(axis=1) & (explained > best * (1 + 1e-12))
            best = np.where(better, explained, best)
            solution[better] = 0.0
            solution[np.ix_(better, chosen)] = factors[better]
    return (solution / norms).T
