"""The cheapest way to cut a chain into stages below a limit of time, where devices have prices.

A plan whose stages and boundaries all stay below the limit uses no more devices of any type than there are. Let each
type have a price, such that all devices together cost 1: the plan then costs at most 1. Without the counts, the
cheapest stages are a shortest path over cuts,

    cheapest[b] = min over groups g of price(g) + cheapest[a],     a the first cut from which g reaches b in time

so where that costs more than 1, no plan is below the limit: a Lagrangian relaxation of the counts. Any prices prove it;
the best are found by cutting planes (Kelley, "The cutting-plane method for solving convex programs", 1960).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..cuts import Index
from .chain_search import Limit, _reach
from .like_nodes import JoinedNodes

_ROUNDS = 40  # of cutting planes
_MORE = 1e-9  # than all devices cost, beyond rounding


class Priced(NamedTuple):
    """The cheapest stages at some prices. A stage's group is −1 if it stands for unlisted ones."""

    prices: Array  # [T]: of a device
    value: float  # infinity where there are none, at any prices
    stages: list[tuple[int, int, int]]  # (group, first cut, last cut) in pipeline order
    counts: Array  # [T]: devices they use
    before: Array  # [K, S]: the price of what is before each cut, where a stage of each kind follows


@dataclass(frozen=True, eq=False)
class PricedStages:
    """The stages of a chain of cuts that stay below a limit, `seconds`."""

    joined: JoinedNodes
    seconds: float

    @cached_property
    def _limit(self) -> Limit:
        return Limit(self.joined.model, self.seconds)

    @cached_property
    def kind(self) -> Index:
        """The kind of each group as a sender and receiver, [G]; unlisted groups have one more."""
        return self._limit.kinds[0]

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Return whether a boundary at each cut stays below the limit, [kinds of sender, kinds of receiver, S]."""
        sets, number = self._limit.sets
        return np.pad(sets[number], ((0, 1), (0, 1), (0, 0)), constant_values=True)

    @cached_property
    def first(self) -> Index:
        """The first cut from which each group reaches each cut but the first in time, [G, S − 1]; that cut if none."""
        model = self.joined.model
        group, last = np.indices((len(model.groups), len(model.cuts) - 1)).reshape(2, -1)
        return _reach(model, group, last + 1, self.seconds).reshape(len(model.groups), -1)

    @cached_property
    def _cells(self) -> Index:
        """The place of each of those stages in a table [kinds, S, S], one past its end if there is none."""
        size, last = len(self.joined.model.cuts), np.arange(1, len(self.joined.model.cuts))
        cells = (self.kind[:, None] * size + self.first) * size + last
        return np.where(self.first < last, cells, len(self.allowed) * size * size)

    @cached_property
    def _fluids(self) -> list[tuple[int, Array]]:
        """For each range of unlisted groups: (devices at least, how many of each type a stage needs, [T, S, S]).

        Not a number if no number of them is enough.
        """
        model, found = self.joined.model, []
        weights = model.weights[None, :] - model.weights[:, None]
        work = model.times[: len(self.joined.available), None, :] - model.times[: len(self.joined.available), :, None]
        for fluid in self.joined.fluids:
            room = self.seconds - fluid.fixed - fluid.weight_rate * weights
            found.append((fluid.least, work / np.where(room > 0, room, np.nan)))
        return found

    def cheapest(self, prices: Array) -> Priced:
        """Return the cheapest stages at some prices."""
        size, kinds = len(self.joined.model.cuts), len(self.allowed)
        price = self.joined.counts @ prices
        dear_first = np.argsort(-price)
        table = np.full(kinds * size * size + 1, np.inf)
        table[self._cells[dear_first].ravel()] = np.repeat(price[dear_first], size - 1)  # the last one is kept
        costs = table[:-1].reshape(kinds, size, size)
        for least, needed in self._fluids:
            whole = np.maximum((prices[:, None, None] * needed).min(axis=0), least * prices.min())
            np.fmin(costs[-1], whole, out=costs[-1])
        after, before = self._shortest(costs)
        value = float(after[:, -1].min())
        stages, used = (
            self._walk(costs, after, before, prices, price) if np.isfinite(value) else ([], np.zeros(len(prices)))
        )
        return Priced(prices, value, stages, used, before)

    def _shortest(self, costs: Array) -> tuple[Array, Array]:
        """The price of what is before each cut where a stage of each kind ends there, and where one follows, [K, S]."""
        kinds, size, _ = costs.shape
        after, before, cheapest = (np.full((kinds, size), np.inf) for _ in range(3))
        before[:, 0] = cheapest[:, 0] = 0.0
        for last in range(1, size):
            # A stage may begin later than at the first cut from which it can: `cheapest` is of this cut and those on.
            after[:, last] = (cheapest[:, :last] + costs[:, :last, last]).min(axis=1)
            before[:, last] = np.where(self.allowed[:, :, last], after[:, last, None], np.inf).min(axis=0)
            np.minimum(cheapest[:, : last + 1], before[:, last, None], out=cheapest[:, : last + 1])
        return after, before

    def _walk(
        self, costs: Array, after: Array, before: Array, prices: Array, price: Array
    ) -> tuple[list[tuple[int, int, int]], Array]:
        """The stages of the cheapest path, and the devices of each type that it uses."""
        last, kind, stages, used = costs.shape[1] - 1, int(after[:, -1].argmin()), [], np.zeros(len(prices))
        while True:
            cheapest = np.minimum.accumulate(before[kind, :last][::-1])[::-1]
            reached = int((cheapest + costs[kind, :last, last]).argmin())
            first = reached + int(before[kind, reached:last].argmin())
            able = (self.kind == kind) & (self.first[:, last - 1] == reached)
            group = int(np.where(able, price, np.inf).argmin()) if able.any() else -1
            used = used + (self.joined.counts[group] if group >= 0 else self._fluid_counts(prices, reached, last))
            stages.append((group, first, last))
            if first == 0:
                return stages[::-1], used
            last = first
            kind = int(np.where(self.allowed[:, kind, last], after[:, last], np.inf).argmin())

    def _fluid_counts(self, prices: Array, first: int, last: int) -> Array:
        """Return the device counts per type of a stage's cheapest unlisted group."""
        options = []
        for least, needed in self._fluids:
            if np.isnan(needed[0, first, last]):
                continue
            priced_counts = prices * needed[:, first, last]
            kind, enough = int(priced_counts.argmin()), least * prices.min() >= priced_counts.min()
            kind = int(prices.argmin()) if enough else kind
            count = float(least) if enough else float(needed[kind, first, last])
            options.append((prices[kind] * count, kind, count))
        _, kind, count = min(options)
        counts: Array = np.eye(len(prices))[kind] * count
        return counts

    def ever_dearer(self) -> Iterator[Priced]:
        """Ask for the cheapest stages at ever better prices; the last is above 1 if no plan is below the limit.

        It ends where that cannot be shown.
        """
        return ever_dearer(self.cheapest, self.joined.available)


class AtPrices(Protocol):
    """Cheapest stages at some prices."""

    @property
    def prices(self) -> Array: ...
    @property
    def value(self) -> float: ...
    @property
    def counts(self) -> Array: ...


Found = TypeVar("Found", bound=AtPrices)


def too_dear(found: AtPrices) -> bool:
    """Return whether stages cost more than all devices, so that no plan is below the limit."""
    return found.value > 1 + _MORE


def ever_dearer(cheapest: Callable[[Array], Found], available: Index, prices: Array | None = None) -> Iterator[Found]:
    """Ask for what is `cheapest` at ever better prices, from `prices` on, until it is too dear.

    It ends where that cannot be shown. `available`: devices of each type.
    """
    prices = 1 / (len(available) * available) if prices is None else prices
    rows = list[Array]()
    for _ in range(_ROUNDS):
        cheapest_cuts = cheapest(prices)
        yield cheapest_cuts
        if too_dear(cheapest_cuts):
            return
        rows.append(cheapest_cuts.counts)
        if (cheapest_cuts.counts <= available).all():
            return
        best, prices = _best_prices(np.array(rows), available.astype(float))
        if best <= 1 + _MORE:
            return


def _best_prices(rows: Array, available: Array) -> tuple[float, Array]:
    """Prices at which the cheapest of some paths, which use these devices, is as dear as can be, and its price."""
    from scipy.optimize import linprog  # here, as few plans ask for it

    count, kinds = rows.shape
    answer = linprog(
        np.append(np.zeros(kinds), -1.0),
        A_ub=np.column_stack([-rows, np.ones(count)]),
        b_ub=np.zeros(count),
        A_eq=[np.append(available, 0.0)],
        b_eq=[1.0],
        bounds=[(0, None)] * kinds + [(None, None)],
        method="highs",
    )
    if answer.status != 0:
        return 0.0, np.zeros(kinds)
    prices = np.maximum(answer.x[:-1], 0.0)
    return float(-answer.fun), prices / (prices @ available)
