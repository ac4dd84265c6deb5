"""The cheapest way to cut a chain into stages on several nodes below a limit of time, where devices have prices.

As in priced_stages.py, but stages are told by where they are, not by their devices' types alone:

    on one node      neighbours that send to each other inside a node are a run, which uses no more than the node has;
                     all others get and send every minibatch through the node's port to the network
    over h nodes     the busiest node carries a share of 1/h of what the stage gets and sends at least, gradients are
                     averaged between h nodes, and h nodes hold the devices

        node 0: a ─ b ═══ network, every minibatch ═══ node 1: a ═══ network, a half each ═══ nodes 2, 3: a a

Groups on one node are listed. Of the others only h and the ratio of shares are: with R minibatches in a round,
R = Σ devices × share, a stage takes max over types of (share × seconds) and averages once in R minibatches, so that

    R ≥ (max share × seconds + averaging) / limit

and devices that make up R cost what the cheapest of all that do cost (a knapsack).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster, Node
from ...costs import Array, averaging_line
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import MAX_SHARE, DeviceGroups, device_classes
from .chain_search import Moves, _reach, all_moves
from .joined_nodes import best_link
from .stage_cost_tables import StageModel, default_model

MOST_CELLS = 4_000_000  # ways to spread a stage × cuts²
MOST_ON_NODES = 20_000  # groups on a node × what is used of it before
_ROUNDING = 1e-9
_SLOWER = 1e-6  # shares by which a type is this much slower, and none faster, are never chosen


@dataclass(frozen=True, eq=False)
class OnNodes:
    """Groups on nodes of each kind, once for all that the stages before in a run may use of the node: a row each."""

    models: list[StageModel]  # of a node of each kind alone
    kind: Index  # [V]: of node
    group: Index  # [V]: of the kind's model
    counts: Index  # [V, T]: devices
    source: Index  # [V]: what is used before, as a number over all kinds
    target: Index  # [V]: what is used then; growing
    fresh: NDArray[np.bool_]  # [V]: nothing is used before
    share: Array  # [V]: of what comes from the same node that the busier of both sides' devices carries, at least
    num_states: int

    @classmethod
    def of(cls, problem: Problem, cuts: Cuts, types: Sequence[str]) -> "OnNodes | None":
        """List them; None where there are more than MOST_ON_NODES."""
        kinds = {(node.link, *sorted(one.name for one in node.device_types)): node for node in problem.cluster.nodes}
        counted = [Counter(one.name for one in node.device_types).values() for node in kinds.values()]
        if sum(prod((n + 1) * (n + 2) // 2 for n in own) for own in counted) > MOST_ON_NODES:
            return None
        models, columns, states = list[StageModel](), list[tuple[NDArray[Any], ...]](), 0
        for number, node in enumerate(kinds.values()):
            model, counts, moves = _alone(problem, cuts, node)
            own = np.zeros((len(moves.group), len(types)), dtype=np.intp)
            own[:, [types.index(name) for name in model.groups.types]] = counts[moves.group]
            before, kind = moves.used[moves.source], np.full(len(own), number)
            share = np.maximum(model.groups.device_port[moves.group], 1 / np.maximum(before, 1))
            columns.append((kind, moves.group, own, moves.source + states, moves.target + states, before == 0, share))
            states += len(moves.used)
            models.append(model)
        parts = [np.concatenate(column) for column in zip(*columns, strict=True)]
        by_target = np.argsort(parts[4], kind="stable")
        kind, group, own, source, target, fresh, share = (part[by_target] for part in parts)
        return cls(models, kind, group, own, source, target, fresh, share, states)

    def first(self, seconds: float) -> Index:
        """The first cut from which each row's group reaches each cut but the first in time, [V, S − 1]."""
        size = len(self.models[0].cuts)
        found = np.zeros((len(self.kind), size - 1), dtype=np.intp)
        for number, model in enumerate(self.models):
            group, last = np.indices((len(model.groups), size - 1)).reshape(2, -1)
            own = self.kind == number
            found[own] = _reach(model, group, last + 1, seconds).reshape(len(model.groups), -1)[self.group[own]]
        return found

    def inside(self, seconds: float) -> NDArray[np.bool_]:
        """Whether what comes over the node's own link does so in time, [V, S]."""
        ports = np.stack([model.ports[0] for model in self.models])
        return ports[self.kind] * self.share[:, None] < seconds


@dataclass(frozen=True, eq=False)
class Spread:
    """Stages over several nodes: by a ratio of shares, and by numbers of nodes, of which some are taken together."""

    shares: Index  # [K, T]: 0 where a group has none of a type
    hosts: Index  # [B, 2]: the least and the most
    held: Index  # [B, T]: devices of each type that so many nodes have at most
    needs: Index  # [K, B, S, S]: minibatches of a round, at least

    @classmethod
    def of(cls, problem: Problem, whole: StageModel, shares: Index, hosts: Index, seconds: float) -> "Spread":
        """`whole` has the seconds of all types before each cut."""
        types, inside, network = whole.groups.types, best_link(problem.cluster), problem.cluster.network
        kinds = [[one.name for one in node.device_types] for node in problem.cluster.nodes]
        sizes = np.array([[own.count(name) for name in types] for own in kinds])
        held = np.cumsum(-np.sort(-sizes, axis=0), axis=0)[hosts[:, 1] - 1]
        outside, link = (1 / network.bandwidth, network.latency), (1 / inside.bandwidth, inside.latency)
        update = np.array([problem.table.update_rates[name] for name in types])
        work = whole.times[:, None, :] - whole.times[:, :, None]
        weights = whole.weights[None, :] - whole.weights[:, None]
        port = whole.ports[-1] / seconds * (1 - _ROUNDING)  # the inverse of the share that a node may carry at most
        port[[0, -1]] = 0.0
        port = np.maximum(port[:, None], port[None, :])
        fewest, most = hosts[:, :1, None].astype(float), hosts[:, 1:, None]
        every = []
        for own in shares:
            present = own > 0
            longest = (own[present, None, None] * work[present]).max(axis=0) + update[present].max() * weights
            on_a_node: Array = np.ones((len(hosts), *weights.shape))
            for _ in range(2):  # the devices that are needed anyway tell how many of them a node has
                each, once = averaging_line(on_a_node, fewest, link, outside)
                needed = np.ceil((longest + each * weights + once) / seconds * (1 - _ROUNDING))
                on_a_node = np.maximum(np.ceil(np.ceil(needed / own.max()) / most), 1.0)
            # The busiest of h nodes carries ⌈R / h⌉ minibatches of a round.
            needed = np.maximum(needed, np.ceil(port * np.ceil(needed / most) * (1 - _ROUNDING)))
            needed = np.maximum(needed, fewest * own[present].min())  # each node has a device
            every.append(np.minimum(needed, held[-1] @ own + 1).astype(np.intp))
        return cls(shares, hosts, held, np.stack(every))

    def costs(self, prices: Array) -> tuple[Array, Index, list["Cover"]]:
        """(the least price of a stage from cut to cut on so many nodes, by which ratio, [B, S, S]; their covers)."""
        least = np.full(self.needs.shape[1:], np.inf)
        which, covers = np.zeros(least.shape, dtype=np.intp), list[Cover]()
        buckets = np.arange(len(self.hosts))[:, None, None]
        for number, (own, needed) in enumerate(zip(self.shares, self.needs, strict=True)):
            covers.append(Cover.of(own, self.held, prices))
            price = covers[-1].price[buckets, needed]
            better = price < least
            least[better], which[better] = price[better], number
        return least, which, covers


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


class Placed(NamedTuple):
    """The cheapest stages at some prices."""

    prices: Array  # [T]: of a device
    value: float  # infinity where there are none
    counts: Array  # [T]: devices that they use


@dataclass(frozen=True, eq=False)
class PlacedStages:
    """The stages of a chain of cuts that stay below a limit."""

    nodes: OnNodes
    spread: Spread
    network: Array  # [S]: seconds of what crosses each cut over the network, by one port
    seconds: float

    @cached_property
    def _first(self) -> Index:
        return self.nodes.first(self.seconds)

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        return self.nodes.inside(self.seconds)

    @cached_property
    def _fewest(self) -> Index:
        """The number of the fewest nodes over which both sides of each cut may be spread, [S]; −1: one node each."""
        most = self.spread.hosts[:, 1]
        fewest: Index = (self.network[:, None] / most >= self.seconds).sum(axis=1)
        return np.where(self.network < self.seconds, -1, fewest)

    def cheapest(self, prices: Array) -> Placed:
        """Return the cheapest stages at some prices."""
        search = _Search(self, prices)
        return search.walked()


class _Search:
    """One look: the least price of what is before each cut, by where the last stage is and where the next."""

    def __init__(self, stages: PlacedStages, prices: Array) -> None:
        nodes, size = stages.nodes, len(stages.network)
        self.stages, self.prices, self.end = stages, prices, size - 1
        self.price = nodes.counts @ prices
        self.costs, self.which, self.covers = stages.spread.costs(prices)
        self.on_node = np.full((nodes.num_states, size), np.inf)  # where what is used of the node is so much
        self.over = np.full((len(self.costs), size), np.inf)  # where a stage over so many nodes ends
        self.before_row = np.full((len(nodes.kind), size), np.inf)  # where a row's stage begins
        self.before_over = np.full(self.over.shape, np.inf)
        self.before_row[nodes.fresh, 0] = self.before_over[:, 0] = 0.0
        self._fill()

    def _fill(self) -> None:
        nodes, first, fewest = self.stages.nodes, self.stages._first, self.stages._fewest
        starts = np.flatnonzero(np.diff(nodes.target, prepend=-1))
        target, rows = nodes.target[starts], np.arange(len(nodes.kind))
        nearest = self.before_row.copy()  # the least of each cut and those after it
        for last in range(1, self.end + 1):
            begin = first[:, last - 1]
            value = np.where(begin < last, nearest[rows, np.minimum(begin, last - 1)] + self.price, np.inf)
            self.on_node[target, last] = np.minimum.reduceat(value, starts)
            self.over[:, last] = (self.before_over[:, :last] + self.costs[:, :last, last]).min(axis=1)
            if last == self.end:
                return
            inside = self.stages._inside[:, last]
            own = np.where(inside & ~nodes.fresh, self.on_node[nodes.source, last], np.inf)
            few = int(fewest[last])
            spread = self.over[max(few, 0) :, last].min(initial=np.inf)
            if few < 0:  # a single node's port carries all
                spread = min(spread, self.on_node[:, last].min())
                own = np.where(nodes.fresh, spread, own)
            self.before_row[:, last] = own
            self.before_over[max(few, 0) :, last] = spread
            np.minimum(nearest[:, : last + 1], own[:, None], out=nearest[:, : last + 1])

    def walked(self) -> Placed:
        """The value, and the devices of the stages from the end to the start."""
        value = float(min(self.on_node[:, -1].min(), self.over[:, -1].min(initial=np.inf)))
        used = np.zeros(len(self.prices))
        if not np.isfinite(value):
            return Placed(self.prices, value, used)
        nodes, spread, last, state = self.stages.nodes, self.stages.spread, self.end, -1
        while last:
            if state < 0:  # any stage whose bytes the network carries in time
                few = -1 if last == self.end else int(self.stages._fewest[last])
                over = self.over[max(few, 0) :, last]
                if few < 0 and self.on_node[:, last].min() <= over.min(initial=np.inf):
                    state = int(self.on_node[:, last].argmin())
                else:
                    bucket = int(over.argmin()) + max(few, 0)
                    first = int((self.before_over[bucket, :last] + self.costs[bucket, :last, last]).argmin())
                    number = int(self.which[bucket, first, last])
                    needed = int(spread.needs[number, bucket, first, last])
                    used += self.covers[number].devices(bucket, needed, len(used))
                    last = first
                    continue
            rows = np.flatnonzero(nodes.target == state)
            ways = [self._begin(row, last) for row in rows.tolist()]
            _, last, row = min(ways)
            used += nodes.counts[row]
            state = -1 if nodes.fresh[row] else int(nodes.source[row])
        return Placed(self.prices, value, used)

    def _begin(self, row: int, last: int) -> tuple[float, int, int]:
        """(price of a row's stage that ends at a cut and of what is before it, where it begins, the row)."""
        first = int(self.stages._first[row, last - 1])
        if first >= last:
            return np.inf, last, row
        begin = first + int(self.before_row[row, first:last].argmin())
        return float(self.before_row[row, begin] + self.price[row]), begin, row


@dataclass(frozen=True, eq=False)
class Placements:
    """What does not depend on the limit: groups on nodes, ratios of shares, numbers of nodes."""

    problem: Problem
    whole: StageModel  # with the seconds of all types before each cut
    nodes: OnNodes
    shares: Index
    hosts: Index

    @classmethod
    def of(cls, problem: Problem, cuts: Cuts) -> "Placements | None":
        """`cuts`: all cuts of a chain. None where there is too much to look at."""
        classes = device_classes(problem.cluster)
        whole = default_model(problem, cuts, DeviceGroups.of(problem, classes, np.eye(len(classes), dtype=np.intp)))
        shares = ratios(np.array([problem.total_seconds(name) for name in whole.groups.types]))
        hosts = numbers_of_nodes(len(problem.cluster.nodes))
        if len(shares) * len(hosts) * len(cuts) ** 2 > MOST_CELLS:
            return None
        nodes = OnNodes.of(problem, cuts, whole.groups.types)
        return cls(problem, whole, nodes, shares, hosts) if nodes else None

    @property
    def types(self) -> tuple[str, ...]:
        return self.whole.groups.types

    @property
    def available(self) -> Index:
        """Devices of each type, [T]."""
        return np.array([sum(one.type.name == name for one in self.problem.cluster.devices) for name in self.types])

    def stages(self, seconds: float) -> PlacedStages:
        """Those that stay below a limit."""
        spread = Spread.of(self.problem, self.whole, self.shares, self.hosts, seconds)
        return PlacedStages(self.nodes, spread, self.whole.ports[-1], seconds)


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


def _alone(problem: Problem, cuts: Cuts, node: Node) -> tuple[StageModel, Index, Moves]:
    """(the model of groups on one node, their devices of each of the model's types, moves by them)."""
    one = replace(problem, cluster=Cluster((node,), problem.cluster.network))
    classes = device_classes(one.cluster)
    counts, moves = all_moves([len(own.ranks) for own in classes], np.ones(len(classes)))
    return default_model(one, cuts, DeviceGroups.of(one, classes, counts)), counts, moves
