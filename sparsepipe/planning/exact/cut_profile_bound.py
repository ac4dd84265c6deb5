"""A lower bound of every plan's period where cuts can be listed, but not searched: only their sums are kept.

A cut is kept as three numbers: the work before it, the bytes of weights before it, and what crosses it. A stage from a
cut to any that has more before it is allowed, whether or not the one holds the other, as long as the difference of the
sums fits into the period; a boundary is allowed where what crosses it does. A plan of a period is then a walk over such
cuts, so that if there is no walk there is no plan:

    most[u, m]   of the cuts that u devices can lead up to, and a stage of m may begin at, the most that an m-th part of
                 the work and its averaging come to; the walk's next stage covers one period more

Cuts that are identical are taken together, with the smaller of their sums where a walk arrives and the larger where
it leaves, which allows more and makes the search of some hundred thousand cuts one of some thousand.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from .frontier_cuts import FrontierCuts
from .halving import largest_refused
from .listed_cuts import ListedCuts

SECONDS = 4.0  # of the processor, after which the bound that is proven by then counts
_TOLERANCE = 5e-4
_WORK_BINS, _WEIGHT_BINS = 20_000, 100  # of all work and weights
_CROSSING_BINS = 0.01  # as a share of what crosses
_OTHER_BINS = 4  # of work, for what other types take more or less


@dataclass(frozen=True, eq=False)
class CutProfile:
    """Of each kind of cut the least and the most work and bytes of weights before it, and the least that crosses it."""

    low: Array  # [K, Q]: seconds of work, bytes of weights, seconds on other types, as `seconds_and_weights`
    high: Array
    crossing: Array  # [K]: bytes
    whole: Array  # [Q]

    @classmethod
    def of(cls, listed: ListedCuts) -> "CutProfile":
        """Take identical cuts together."""
        sums = listed.sums.T
        return cls(sums, sums, listed.crossing, sums[-1]).coarser(_WORK_BINS, _WEIGHT_BINS)

    def coarser(self, work_bins: int, weight_bins: int) -> "CutProfile":
        """Distinguish at most so many amounts of work and of weights: identical cuts are taken together."""
        whole, crossing = self.whole, self.crossing
        work = np.floor(self.low[:, 0] / max(whole[0], 1e-300) * work_bins)
        weight = np.floor(self.low[:, 1] / max(whole[1], 1e-300) * weight_bins)
        sent = np.floor(np.log1p(crossing) / np.log1p(_CROSSING_BINS))
        kind = (work * (weight_bins + 1) + weight) * (sent.max(initial=0.0) + 1) + sent
        for other in range(2, len(whole)):  # on other types the same work may be less than on average, or more
            share = self.low[:, other] / max(whole[other], 1e-300) - self.low[:, 0] / max(whole[0], 1e-300)
            _, kind = np.unique(kind, return_inverse=True)
            bin_of_share = np.floor(share * work_bins / _OTHER_BINS)
            kind = kind * (np.ptp(bin_of_share) + 1) + bin_of_share - bin_of_share.min()
        return self._together(kind)

    def by_work(self) -> "CutProfile":
        """Take all cuts of an amount of work together, in order; they are those of `of`."""
        return self._together(np.floor(self.low[:, 0] / max(self.whole[0], 1e-300) * _WORK_BINS))

    def _together(self, kind: Array) -> "CutProfile":
        """Take the cuts of each kind together, in the order of the kinds."""
        _, which = np.unique(kind, return_inverse=True)
        count, sums = int(which.max()) + 1, len(self.whole)
        low, high = np.full((count, sums), np.inf), np.zeros((count, sums))
        least = np.full(count, np.inf)
        np.minimum.at(low, which, self.low)
        np.maximum.at(high, which, self.high)
        np.minimum.at(least, which, self.crossing)
        return CutProfile(low, high, least, self.whole)

    @classmethod
    def of_frontier(cls, frontier: FrontierCuts) -> "CutProfile":
        """Return the entries of each amount of work; `frontier` has sums, and contains all cuts of relevant plans."""
        count = len(frontier.sums) // 2
        low, high = frontier.sums[:count].T, -frontier.sums[count:].T
        return cls(low, high, np.maximum(frontier.crossing - frontier.ties, 0.0), high[-1])

    def bound(self, rates: Iterable[tuple[float, float]], link: tuple[float, float], low: float, high: float) -> float:
        """Return a bound of the period, from `low`, which is one, to `high`.

        `rates` has for 1, 2, … devices the share of its work and the seconds of a byte of weights of a stage on so
        many; `link` the latency and the seconds of a byte.
        """
        walks, until = _Walks(self, np.array([*rates]), link), time.process_time() + SECONDS
        return largest_refused(lambda one: not walks.exist(one), low, high, tolerance=_TOLERANCE, until=until)


class _Walks:
    """The sums of a profile on each number of devices, sorted once."""

    def __init__(self, cuts: CutProfile, rates: Array, link: tuple[float, float]) -> None:
        self.begin = cuts.high[:, :2] @ rates.T  # [K, m]: the most that has been done before a stage that begins here
        self.end = cuts.low[:, :2] @ rates.T  # the least that must be done to end here
        self.order = np.argsort(self.end, axis=0, kind="stable")
        self.seconds = link[0] + cuts.crossing * link[1]
        self.all = cuts.whole[:2] @ rates.T
        self.num_devices = len(rates)

    def exist(self, period: float) -> bool:
        """Return whether stages and boundaries that each take less than `period` lead from the start to the end."""
        most = np.full((self.num_devices + 1, self.num_devices), -np.inf)
        most[0] = 0.0
        tables = self._tables(period)
        for used in range(self.num_devices):
            for m in range(self.num_devices - used):  # a stage of m + 1 devices
                reach = most[used, m] + period
                if reach == -np.inf:
                    continue
                if self.all[m] < reach:
                    return True
                ends, follow = tables[m]
                last_end = int(np.searchsorted(ends, reach, side="left")) - 1
                if last_end >= 0:
                    np.maximum(most[used + m + 1], follow[:, last_end], out=most[used + m + 1])
        return False

    def _tables(self, period: float) -> list[tuple[Array, Array]]:
        """For each m: the sums at which its stages end, in order; and of all up to each, the most for the next."""
        count = self.num_devices
        parts: NDArray[np.intp] = np.floor(self.seconds / period).astype(np.intp) + 1  # devices a side needs, at least
        tables = []
        for m in range(count):
            order = self.order[:, m]
            order = order[parts[order] <= m + 1]
            follow = np.where(parts[order] <= np.arange(1, count + 1)[:, None], self.begin[order].T, -np.inf)
            tables.append((self.end[order, m], np.maximum.accumulate(follow, axis=1)))
        return tables
