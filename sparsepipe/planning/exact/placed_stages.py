"""The cheapest way to cut a chain into stages on several nodes below a limit of time, where devices have prices.

As in priced_stages.py, but what is between two boundaries that the network carries is identified by where it is, not by
the devices' types alone: stages that follow one another on one node, or one over several.

    node 0: a ─ b ═══ network, every minibatch ═══ node 1: a ═══ network, a half each ═══ nodes 2, 3: a a

Each such part of the network, from a cut to a cut, is a span.

Stages that follow one another on one node: what they use of it, and how far they get from each cut below a limit.

Neighbours on a node send to each other by its own link. A state is what such stages use of a node together; of each
state the farthest cut counts, as what reaches it reaches all before it.

Stages over several nodes: how many devices each takes below a limit, by the ratio of their shares.

Which nodes is left open, only how many. With R minibatches in a round, R = Σ devices × share, a stage takes max over
types of (share × seconds) and averages once in R minibatches, so that

    R ≥ (max share × seconds + averaging) / limit

and the busiest of h nodes carries ⌈R / h⌉ of them at least. Devices that make up R are counted (`vectors`), or cost
what the cheapest of all that do cost, a knapsack (`Cover`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...values.cluster import Cluster, Node
from ...values.costs import Array, averaging_line
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import MAX_SHARE, DeviceGroups, device_classes
from .chain_search import Moves, _reach, all_moves
from .like_nodes import best_link
from .stage_cost_tables import StageModel, default_model

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
        nodes = [[device_type.name for device_type in node.device_types] for node in problem.cluster.nodes]
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
        for share in self.shares:
            present, none = share > 0, int(self.held[-1] @ share) + 1
            longest = (share[present, None] * work[present]).max(axis=0) + update[present].max() * weights
            on_a_node: Array = np.ones((len(self.hosts), len(first)))
            for _ in range(2):  # the devices that are needed anyway tell how many of them a node has
                each, once = averaging_line(on_a_node, fewest, link, outside)
                needed = np.ceil((longest + each * weights + once) / seconds * (1 - _ROUNDING))
                on_a_node = np.maximum(np.ceil(np.ceil(needed / share.max()) / most), 1.0)
            needed = np.maximum(needed, np.ceil(port * np.ceil(needed / most) * (1 - _ROUNDING)))
            needed = np.maximum(needed, fewest * share[present].min())  # each node has a device
            every.append(np.where(too_few, none, np.minimum(needed, none)).astype(np.int32))
        return np.stack(every)

    def covers(self, prices: Array) -> list["Cover"]:
        """The cheapest devices by each ratio."""
        return [Cover.of(share, self.held, prices) for share in self.shares]

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
    combinations = np.zeros((grids[0].size if grids else 1, len(shares)), dtype=np.intp)
    for kind, grid in zip(others, grids, strict=True):
        combinations[:, kind] = grid.ravel()
    combinations[:, last] = np.maximum(-(-(needed - combinations @ shares) // shares[last]), 1)
    excess = combinations @ shares - needed
    spare = ((combinations[:, kinds] > 1) & (excess[:, None] >= shares[kinds])).any(axis=1)
    return combinations[(combinations[:, last] <= held[last]) & (held[kinds] > 0).all() & ~spare]


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
            exact_values, share = np.full_like(exact, np.inf), int(shares[kind])
            taken = np.zeros(exact.shape, dtype=np.intp)
            for count in range(1, int(held[-1, kind]) + 1):
                before = np.where(held[:, kind, None] >= count, exact[:, : most + 1 - count * share], np.inf)
                price = before + count * prices[kind]
                better = price < exact_values[:, count * share : most + 1]
                exact_values[:, count * share : most + 1][better] = price[better]
                taken[:, count * share : most + 1][better] = count
            exact = exact_values
            counts.insert(0, (kind, share, taken))
        # Of rounds of R and more, the cheapest.
        back = exact[:, ::-1]
        price = np.minimum.accumulate(back, axis=1)
        best_share = np.maximum.accumulate(np.where(back <= price, np.arange(most + 2), 0), axis=1)
        return cls(price[:, ::-1], (most + 1 - best_share)[:, ::-1], counts)

    def devices(self, bucket: int, needed: int, num_types: int) -> Array:
        """Return the priced number of devices of each type, [T]."""
        counts_by_type = np.zeros(num_types)
        left = int(self._exactly[bucket, needed])
        for kind, share, taken in self._counts:
            counts_by_type[kind] = taken[bucket, left]
            left -= share * int(taken[bucket, left])
        return counts_by_type


def ratios(totals: Array) -> Index:
    """Return the ratios of shares that groups of several types may have, [K, T]; `totals`: seconds of each type.

    Others are slower whatever the numbers of devices (device_groups.py takes the best pace).
    """
    share_ratios = []
    for mix in product((False, True), repeat=len(totals)):
        kinds = np.flatnonzero(mix)
        options = [
            ratio for ratio in product(range(1, MAX_SHARE + 1), repeat=len(kinds)) if len(ratio) and gcd(*ratio) == 1
        ]
        if not options:
            continue
        shares = np.array(options)
        pace = shares / (shares * totals[kinds]).max(axis=1, keepdims=True)
        better = (pace[None] >= pace[:, None] * (1 - 1e-13)).all(axis=2)
        better &= (pace[None] > pace[:, None] * (1 + _SLOWER)).any(axis=2)
        for ratio_shares in shares[~better.any(axis=1)]:
            row = np.zeros(len(totals), dtype=np.intp)
            row[kinds] = ratio_shares
            share_ratios.append(row)
    return np.array(share_ratios)


def numbers_of_nodes(count: int) -> Index:
    """Return (least, most) of each: up to 8 alone, then some together, [B, 2]."""
    numbers, least = list[tuple[int, int]](), 2
    while least <= count:
        most = min(count, least + least // 8)
        numbers.append((least, most))
        least = most + 1
    return np.array(numbers, dtype=np.intp).reshape(-1, 2)


MOST_ROWS = 20_000  # groups on a node × what is used of it before


@dataclass(frozen=True, eq=False)
class NodeRuns:
    """Groups on nodes of each kind, a row for all that stages before on the same node may use of it."""

    models: list[StageModel]  # of a node of each kind alone
    kind: Index  # [V]: of node
    group: Index  # [V]: of the kind's model
    source: Index  # [V]: the state before, as a number over all kinds
    target: Index  # [V]: the state then, growing
    share: Array  # [V]: of what comes from the same node that the busier of both sides' devices carries, at least
    used: Index  # [U, T]: devices of each state

    @classmethod
    def of(cls, problem: Problem, cuts: Cuts, order: Index, types: Sequence[str]) -> "NodeRuns | None":
        """`cuts`, in an `order` in which they are a chain or taken for one; None with more than MOST_ROWS rows."""
        kinds = {
            (node.link, *sorted(device_type.name for device_type in node.device_types)): node
            for node in problem.cluster.nodes
        }
        counted = [Counter(device_type.name for device_type in node.device_types).values() for node in kinds.values()]
        if sum(prod((n + 1) * (n + 2) // 2 for n in node_counts) for node_counts in counted) > MOST_ROWS:
            return None
        models, rows, states = list[StageModel](), list[tuple[NDArray[Any], ...]](), list[Index]()
        for number, node in enumerate(kinds.values()):
            model, counts, moves = _alone(problem, cuts, node)
            used = np.zeros((len(moves.used), len(types)), dtype=np.intp)
            used[1:, [types.index(name) for name in model.groups.types]] = counts
            first = sum(map(len, states))
            before, kind = moves.used[moves.source], np.full(len(moves.group), number)
            share = np.maximum(model.groups.device_port[moves.group], 1 / np.maximum(before, 1))
            rows.append((kind, moves.group, moves.source + first, moves.target + first, share))
            states.append(used)
            models.append(model if cuts.is_chain else model.in_a_row(order))
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
        by_target = np.argsort(columns[3], kind="stable")
        kind, group, source, target, share = (column[by_target] for column in columns)
        return cls(models, kind, group, source, target, share, np.concatenate(states))

    def reached(self, seconds: float) -> Index:
        """The last cut that each state gets to from each cut, [U, S], that cut itself if it does not get on."""
        size = len(self.models[0].cuts)
        cuts, last, allowed = np.arange(size), self._last(seconds), self._allowed_until(seconds)
        reached_cuts = np.tile(cuts, (len(self.used), 1))
        fresh = self.used[self.source].sum(axis=1) == 0
        bounds = [*np.flatnonzero(np.diff(self.target, prepend=-1)).tolist(), len(self.target)]
        for start, stop in pairwise(bounds):
            rows = np.arange(start, stop)
            ends = np.take_along_axis(allowed[rows], reached_cuts[self.source[rows]], axis=1)
            begins = np.where(fresh[rows, None], cuts, ends)
            reached = np.take_along_axis(last[rows], np.maximum(begins, 0), axis=1)
            able = fresh[rows, None] | (begins > cuts)
            targets = self.target[start]
            reached_cuts[targets] = np.maximum(reached_cuts[targets], np.where(able, reached, cuts).max(axis=0))
        return reached_cuts

    def _last(self, seconds: float) -> Index:
        """The last cut to which each row's group computes from each cut in time, [V, S]; that cut where it cannot."""
        size = len(self.models[0].cuts)
        last_cut = np.zeros((len(self.kind), size), dtype=np.intp)
        for number, model in enumerate(self.models):
            group, last = np.indices((len(model.groups), size - 1)).reshape(2, -1)
            first = _reach(model, group, last + 1, seconds).reshape(len(model.groups), size - 1)
            begun = np.bincount((np.arange(len(first))[:, None] * size + first).ravel(), minlength=len(first) * size)
            of_kind = self.kind == number
            last_cut[of_kind] = begun.reshape(-1, size).cumsum(axis=1)[self.group[of_kind]]
        return last_cut

    def _allowed_until(self, seconds: float) -> Index:
        """The last cut up to each whose boundary the node's own link carries in time, [V, S]; −1: none."""
        ports = np.stack([model.ports[0] for model in self.models])
        inside = ports[self.kind] * self.share[:, None] < seconds
        inside[:, 0] = False
        return np.maximum.accumulate(np.where(inside, np.arange(inside.shape[1]), -1), axis=1)


def _alone(problem: Problem, cuts: Cuts, node: Node) -> tuple[StageModel, Index, Moves]:
    """(the model of groups on one node, their devices of each of the model's types, moves by them)."""
    alone_problem = replace(problem, cluster=Cluster((node,), problem.cluster.network))
    classes = device_classes(alone_problem.cluster)
    counts, moves = all_moves([len(device_class.ranks) for device_class in classes], np.ones(len(classes)))
    return default_model(alone_problem, cuts, DeviceGroups.of(alone_problem, classes, counts)), counts, moves


MOST_CELLS = 16_000_000  # ways to spread a stage × cuts²


class Placed(NamedTuple):
    """The cheapest spans at some prices."""

    prices: Array  # [T]: of a device
    value: float  # infinity where there are none
    counts: Array  # [T]: devices that they use
    before: Array  # [S]: the price of what is before each cut
    after: Array  # [S]: and of what is after it


@dataclass(frozen=True, eq=False)
class Placements:
    """Data that does not depend on the limit: groups on nodes, ratios of shares, numbers of nodes."""

    problem: Problem
    whole: StageModel  # with the seconds of all types before each cut
    nodes: NodeRuns
    ways: Ways

    @classmethod
    def of(cls, problem: Problem, cuts: Cuts) -> "Placements | None":
        """`cuts`: all there are; None if there is too much to look at.

        Those of a network with branches are taken for a chain, in which stages take no longer.
        """
        classes = device_classes(problem.cluster)
        whole = default_model(problem, cuts, DeviceGroups.of(problem, classes, np.eye(len(classes), dtype=np.intp)))
        order = whole.row_order
        whole = whole if cuts.is_chain else whole.in_a_row(order)
        ways = Ways.of(problem, whole.groups.types)
        if len(ways.shares) * len(ways.hosts) * len(cuts) ** 2 > MOST_CELLS:
            return None
        nodes = NodeRuns.of(problem, cuts, order, whole.groups.types)
        return cls(problem, whole, nodes, ways) if nodes else None

    @property
    def types(self) -> tuple[str, ...]:
        return self.whole.groups.types

    @property
    def available(self) -> Index:
        """Devices of each type, [T]."""
        return np.array(
            [sum(device.type.name == name for device in self.problem.cluster.devices) for name in self.types]
        )

    def stages(self, seconds: float) -> "PlacedStages":
        """Return the stages below a limit."""
        first, last = np.triu_indices(len(self.whole.cuts), 1)
        rounds = self.ways.rounds(self.problem, self.whole, first, last, seconds)
        return PlacedStages(self, seconds, first, last, rounds)


@dataclass(frozen=True, eq=False)
class PlacedStages:
    """The spans of a chain of cuts whose stages stay below a limit."""

    placements: Placements
    seconds: float
    first: Index  # [P]: the cut at which each span begins
    last: Index  # [P]
    rounds: Index  # [K, B, P]: minibatches of a round of one stage, by ratio and numbers of nodes

    @cached_property
    def _reached(self) -> Index:
        """The last cut that each state of a node gets to from each cut, [U, S]; no further than it is."""
        return self.placements.nodes.reached(self.seconds)

    @cached_property
    def _alone(self) -> NDArray[np.bool_]:
        """Return whether one node's port carries what crosses both ends of each span, [P]."""
        carried = self.placements.whole.ports[-1] < self.seconds
        carried[[0, -1]] = True
        return carried[self.first] & carried[self.last]

    def cheapest(self, prices: Array) -> Placed:
        """Return the cheapest spans at some prices."""
        covers, size = self.placements.ways.covers(prices), len(self.placements.whole.cuts)
        run, spread = self._run_prices(prices), self._spread_prices(covers)
        table = np.full((size, size), np.inf)
        table[self.first, self.last] = np.minimum(run, spread.min(axis=(0, 1), initial=np.inf))
        before, after = np.full(size, np.inf), np.full(size, np.inf)
        before[0] = after[-1] = 0.0
        for cut in range(1, size):
            before[cut] = (before[:cut] + table[:cut, cut]).min()
            after[-1 - cut] = (after[size - cut :] + table[-1 - cut, size - cut :]).min()
        used, last = np.zeros(len(prices)), size - 1
        while np.isfinite(before[-1]) and last:
            first = int((before[:last] + table[:last, last]).argmin())
            (span,) = np.flatnonzero((self.first == first) & (self.last == last))
            used += self._devices(int(span), prices, run[span], spread[:, :, span], covers)
            last = first
        return Placed(prices, float(before[-1]), used, before, after)

    def _run_prices(self, prices: Array) -> Array:
        """The least price of stages that follow one another on one node, [P]."""
        states, size = self.placements.nodes.used @ prices, len(self.placements.whole.cuts)
        least = np.full((size, size), np.inf)
        begins = np.broadcast_to(np.arange(size), self._reached.shape)
        np.minimum.at(least, (begins, self._reached), np.broadcast_to(states[:, None], begins.shape))
        least = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1]  # what gets further gets here
        return np.where(self._alone, least[self.first, self.last], np.inf)

    def _spread_prices(self, covers: Sequence[Cover]) -> Array:
        """The least price of one stage, by ratio and numbers of nodes, [K, B, P]."""
        buckets = np.arange(self.rounds.shape[1])[:, None]
        return np.stack([cover.price[buckets, own] for cover, own in zip(covers, self.rounds, strict=True)])

    def _devices(self, span: int, prices: Array, run: float, spread: Array, covers: Sequence[Cover]) -> Array:
        """The devices that the price of a span is of, [T]."""
        if run <= spread.min(initial=np.inf):
            used = self._on_a_node(span)
            cheapest: Array = used[(used @ prices).argmin()].astype(float)
            return cheapest
        ratio, bucket = np.unravel_index(spread.argmin(), spread.shape)
        return covers[int(ratio)].devices(int(bucket), int(self.rounds[ratio, bucket, span]), len(prices))

    def _on_a_node(self, span: int) -> Index:
        """Return the devices of a node that suffice for a span, [N, T]."""
        if not self._alone[span]:
            return np.zeros((0, len(self.placements.types)), dtype=np.intp)
        return self.placements.nodes.used[self._reached[:, self.first[span]] >= self.last[span]]

    def options(self, span: int) -> tuple[Index, Index]:
        """(devices of each type that are enough for a span, [N, T], over how many nodes at most, [N])."""
        alone, ways = self._on_a_node(span), self.placements.ways
        option_groups, hosts = [alone], [np.ones(len(alone), dtype=np.intp)]
        for ratio, needed in enumerate(self.rounds[:, :, span].tolist()):
            fewest = np.inf
            for bucket in reversed(range(len(needed))):  # more nodes hold what fewer do
                if needed[bucket] < fewest:
                    fewest = needed[bucket]
                    option_groups.append(ways.vectors(ratio, bucket, fewest))
                    hosts.append(np.full(len(option_groups[-1]), ways.hosts[bucket, 1]))
        return np.concatenate(option_groups), np.concatenate(hosts)
