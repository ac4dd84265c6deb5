"""Stages over several nodes: how many devices each takes below a limit, by the ratio of their shares.

Which nodes is left open, only how many. With R minibatches in a round, R = Σ devices × share, a stage takes max over
types of (share × seconds) and averages once in R minibatches, so that

    R ≥ (max share × seconds + averaging) / limit

and the busiest of h nodes carries ⌈R / h⌉ of them at least. Devices that make up R are counted (`vectors`), or cost
what the cheapest of all that do cost, a knapsack (`Cover`).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import gcd

import numpy as np

from ...costs import Array, averaging_line
from ..base import Problem
from ..cuts import Index
from ..device_groups import MAX_SHARE
from .joined_nodes import best_link
from .stage_cost_tables import StageModel

_ROUNDING = 1e-9
_SLOWER = 1e-6  # shares by which a type is this much slower, and none faster, are never chosen


@dataclass(frozen=True, eq=False)
class Ways:
    """Ratios of shares, and numbers of nodes, of which some are taken together."""

    shares: Index  # [K, T]: 0 where a group has none of a type
    hosts: Index  # [B, 2]: the least and the most
    held: Index  # [B, T]: devices of each type that so many nodes have at most

    @classmethod
    def of(cls, problem: Problem, types: tuple[str, ...]) -> "Ways":
        nodes = [[one.name for one in node.device_types] for node in problem.cluster.nodes]
        sizes = np.array([[own.count(name) for name in types] for own in nodes])
        hosts = numbers_of_nodes(len(nodes))
        held = np.cumsum(-np.sort(-sizes, axis=0), axis=0)[hosts[:, 1] - 1]
        return cls(ratios(np.array([problem.total_seconds(name) for name in types])), hosts, held)

    def rounds(self, problem: Problem, whole: StageModel, first: Index, last: Index, seconds: float) -> Index:
        """Minibatches of a round of each stage from a cut to a cut at least, [K, B, P].

        `whole` has the seconds of all types before each cut. More than all devices make up where none are enough.
        """
        inside, network, end = best_link(problem.cluster), problem.cluster.network, len(whole.cuts) - 1
        outside, link = (1 / network.bandwidth, network.latency), (1 / inside.bandwidth, inside.latency)
        update = np.array([problem.table.update_rates[name] for name in whole.groups.types])
        times, weights = whole.begins or (whole.times, whole.weights)
        work = np.maximum(whole.times[:, last] - times[:, first], 0.0)
        weights = np.maximum(whole.weights[last] - weights[first], 0.0)
        crossing = np.maximum(whole.ports[-1, first] * (first > 0), whole.ports[-1, last] * (last < end))
        port = crossing / seconds * (1 - _ROUNDING)  # the inverse of the share that a node may carry at most
        fewest, most = self.hosts[:, :1].astype(float), self.hosts[:, 1:]
        too_few = crossing / most >= seconds
        every = []
        for own in self.shares:
            present, none = own > 0, int(self.held[-1] @ own) + 1
            longest = (own[present, None] * work[present]).max(axis=0) + update[present].max() * weights
            on_a_node: Array = np.ones((len(self.hosts), len(first)))
            for _ in range(2):  # the devices that are needed anyway tell how many of them a node has
                each, once = averaging_line(on_a_node, fewest, link, outside)
                needed = np.ceil((longest + each * weights + once) / seconds * (1 - _ROUNDING))
                on_a_node = np.maximum(np.ceil(np.ceil(needed / own.max()) / most), 1.0)
            needed = np.maximum(needed, np.ceil(port * np.ceil(needed / most) * (1 - _ROUNDING)))
            needed = np.maximum(needed, fewest * own[present].min())  # each node has a device
            every.append(np.where(too_few, none, np.minimum(needed, none)).astype(np.int32))
        return np.stack(every)

    def covers(self, prices: Array) -> list["Cover"]:
        """The cheapest devices by each ratio."""
        return [Cover.of(own, self.held, prices) for own in self.shares]

    @cached_property
    def _vectors(self) -> dict[tuple[int, int, int], Index]:
        return {}

    def vectors(self, ratio: int, bucket: int, needed: int) -> Index:
        """Devices of each type that make up a round of `needed` minibatches, one less of any too few, [N, T]."""
        key = ratio, bucket, needed
        if key not in self._vectors:
            self._vectors[key] = _making_up(self.shares[ratio], self.held[bucket], needed)
        return self._vectors[key]


def _making_up(shares: Index, held: Index, needed: int) -> Index:
    kinds = np.flatnonzero(shares)
    *others, last = kinds.tolist()
    grids = np.meshgrid(*(np.arange(1, held[kind] + 1) for kind in others), indexing="ij")
    found = np.zeros((grids[0].size if grids else 1, len(shares)), dtype=np.intp)
    for kind, grid in zip(others, grids, strict=True):
        found[:, kind] = grid.ravel()
    found[:, last] = np.maximum(-(-(needed - found @ shares) // shares[last]), 1)
    excess = found @ shares - needed
    spare = ((found[:, kinds] > 1) & (excess[:, None] >= shares[kinds])).any(axis=1)
    return found[(found[:, last] <= held[last]) & (held[kinds] > 0).all() & ~spare]


@dataclass(frozen=True, eq=False)
class Cover:
    """The cheapest devices that make up rounds of R minibatches at least, by a ratio of shares, on numbers of nodes."""

    price: Array  # [B, most + 2]: by R; the last one has none
    _exactly: Index  # [B, most + 2]: the minibatches of a round of them
    _counts: list[tuple[int, int, Index]]  # (type, share, how many of them in a round of R [B, most + 2]), last first

    @classmethod
    def of(cls, shares: Index, held: Index, prices: Array) -> "Cover":
        kinds, most = np.flatnonzero(shares), int(held[-1] @ shares)
        exact = np.full((len(held), most + 2), np.inf)
        exact[:, 0] = 0.0
        counts = list[tuple[int, int, Index]]()
        for kind in kinds.tolist():
            own, share = np.full_like(exact, np.inf), int(shares[kind])
            taken = np.zeros(exact.shape, dtype=np.intp)
            for count in range(1, int(held[-1, kind]) + 1):
                before = np.where(held[:, kind, None] >= count, exact[:, : most + 1 - count * share], np.inf)
                price = before + count * prices[kind]
                better = price < own[:, count * share : most + 1]
                own[:, count * share : most + 1][better] = price[better]
                taken[:, count * share : most + 1][better] = count
            exact = own
            counts.insert(0, (kind, share, taken))
        # Of rounds of R and more, the cheapest.
        back = exact[:, ::-1]
        price = np.minimum.accumulate(back, axis=1)
        place = np.maximum.accumulate(np.where(back <= price, np.arange(most + 2), 0), axis=1)
        return cls(price[:, ::-1], (most + 1 - place)[:, ::-1], counts)

    def devices(self, bucket: int, needed: int, num_types: int) -> Array:
        """How many of each type the price is of, [T]."""
        found = np.zeros(num_types)
        left = int(self._exactly[bucket, needed])
        for kind, share, taken in self._counts:
            found[kind] = taken[bucket, left]
            left -= share * int(taken[bucket, left])
        return found


def ratios(totals: Array) -> Index:
    """Return the ratios of shares that groups of several types may have, [K, T]; `totals`: seconds of each type.

    Others are slower whatever the numbers of devices (device_groups.py takes the best pace).
    """
    found = []
    for mix in product((False, True), repeat=len(totals)):
        kinds = np.flatnonzero(mix)
        options = [one for one in product(range(1, MAX_SHARE + 1), repeat=len(kinds)) if len(one) and gcd(*one) == 1]
        if not options:
            continue
        shares = np.array(options)
        pace = shares / (shares * totals[kinds]).max(axis=1, keepdims=True)
        better = (pace[None] >= pace[:, None] * (1 - 1e-13)).all(axis=2)
        better &= (pace[None] > pace[:, None] * (1 + _SLOWER)).any(axis=2)
        for own in shares[~better.any(axis=1)]:
            row = np.zeros(len(totals), dtype=np.intp)
            row[kinds] = own
            found.append(row)
    return np.array(found)


def numbers_of_nodes(count: int) -> Index:
    """Return (least, most) of each: up to 8 alone, then some together, [B, 2]."""
    found, least = list[tuple[int, int]](), 2
    while least <= count:
        most = min(count, least + least // 8)
        found.append((least, most))
        least = most + 1
    return np.array(found, dtype=np.intp).reshape(-1, 2)
