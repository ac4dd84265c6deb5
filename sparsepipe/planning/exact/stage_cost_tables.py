"""The cost models as arrays for a search: seconds of any stage on any group, and of any boundary between two."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...values.cluster import Link
from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import COMES, GOES, DeviceGroups


@dataclass(frozen=True, eq=False)
class StageModel:
    """Tables from which a search takes the seconds of any stage on any group, and of any boundary between two.

    A stage of group g from cut a to cut b takes the max over types t of
        rates[g, t] × (times[t, b] − times[t, a]) + weight_rates[g] × (weights[b] − weights[a]) + fixed[g]
    and a boundary at cut c that uses link l takes port[l, c] × the larger port share of the two groups. If groups name
    their ends, times[t, b] − times[t, a] has network[t, a] more if what comes crosses the network, and
    network[t, b] if what goes does: then a stage that holds more may take less.
    """

    cuts: Cuts
    groups: DeviceGroups
    times: Array  # [T, S] seconds of the layers before each cut, forward and backward
    rates: Array  # [G, T]
    weights: Array  # [S] parameter bytes before each cut
    weight_rates: Array  # [G]
    fixed: Array  # [G]
    ports: Array  # [links, S]: one link a node, then the network
    device_port: Array  # [G]
    network_port: Array  # [G]
    prices: Array  # [T]: any positive numbers; they set how tight `work` bounds are
    work: Array  # [S]: a device of type t does at most prices[t] of it per second
    begins: tuple[Array, Array] | None = None  # `times` and `weights` where a stage begins, if not those where one ends
    # [T, S] seconds of its own time that a device takes to send or receive what crosses a cut; None: none, or left out
    network: Array | None = None

    def seconds(self, group: int | Index, first: int | Index, last: int | Index) -> Array:
        """Seconds of the stage from cut `first` to cut `last`; arrays broadcast."""
        group, first, last = np.broadcast_arrays(group, first, last)
        spans = self.rates.T[:, group] * self.spans(group, first, last)
        weights = self.weight_rates[group] * (self.weights[last] - self.weights[first])
        return spans.max(axis=0) + weights + self.fixed[group]

    def spans(self, group: int | Index, first: int | Index, last: int | Index) -> Array:
        """Seconds that each type takes for a minibatch of a stage, [T, …], with what it sends and receives."""
        spans: Array = self.times[:, last] - self.times[:, first]
        if self.network is not None and self.groups.ends is not None:
            ends = self.groups.ends[group]
            spans = spans + (ends & COMES > 0) * self.network[:, first] + (ends & GOES > 0) * self.network[:, last]
        return spans

    def every_span(self, group: int, kind: int) -> Array:
        """`spans` of one type from every cut (row) to every cut (column), [S, S]."""
        times = self.times[kind]
        spans: Array = times[None, :] - times[:, None]
        if self.network is not None and self.groups.ends is not None:
            ends, crossing = int(self.groups.ends[group]), self.network[kind]
            spans = spans + (ends & COMES > 0) * crossing[:, None] + (ends & GOES > 0) * crossing[None, :]
        return spans

    def every(self, group: int) -> Array:
        """Seconds of a stage on a group from every cut (row) to every cut (column), [S, S]; most are no stages."""
        spans = np.zeros((len(self.cuts), len(self.cuts)))
        for kind, rate in enumerate(self.rates[group]):
            if rate:
                np.maximum(spans, rate * self.every_span(group, kind), out=spans)
        weights = self.weight_rates[group] * (self.weights[None, :] - self.weights[:, None])
        return spans + weights + self.fixed[group]

    @property
    def size(self) -> int:
        """Number of cuts, the start and the end among them."""
        return int(self.times.shape[1])

    def along(self, cuts: Index) -> "StageModel":
        """These cuts alone."""
        return replace(
            self,
            cuts=replace(self.cuts, masks=tuple(self.cuts.masks[cut] for cut in cuts), complete=False),
            times=self.times[:, cuts],
            weights=self.weights[cuts],
            ports=self.ports[:, cuts],
            work=self.work[cuts],
            network=None if self.network is None else self.network[:, cuts],
        )

    def in_a_row(self, order: Index) -> "StageModel":
        """All cuts as if they were a chain, for bounds: in an order in which those that a cut holds are before it.

        A stage may go from any cut to any after it, whether or not the one holds the other, and takes no longer than it
        does: what is done where it begins is the most of all cuts up to there, if it ends the least of those from
        there on.
        """
        row = self.along(order)
        sums = np.concatenate([row.times, row.weights[None]])
        return row.with_ranges(sums, sums)

    def with_ranges(self, least: Array, most: Array) -> "StageModel":
        """`in_a_row` of cuts before which these are the least and the most seconds, and weights, [types + 1, S]."""
        least = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1]
        most = np.maximum.accumulate(most, axis=1)
        none = np.zeros(least.shape[1])  # what is left at a cut is not known of those after it
        begins = most[:-1], most[-1]
        return replace(self, times=least[:-1], weights=least[-1], begins=begins, work=none, network=None)

    @cached_property
    def row_order(self) -> Index:
        """The cuts by the work before them; rounded, so that among equals those that others hold stay in front."""
        work = self.times.sum(axis=0)
        return np.argsort(np.round(work / max(float(work[-1]), 1e-300), 12), kind="stable")

    def reversed(self) -> "StageModel":
        """The network from its end to its start."""
        times, weights = self.begins or (self.times, self.weights)
        begins = times[:, -1:] - self.times[:, ::-1], weights[-1] - self.weights[::-1]
        return replace(
            self,
            times=times[:, -1:] - times[:, ::-1],
            weights=weights[-1] - weights[::-1],
            begins=self.begins and begins,
            ports=self.ports[:, ::-1],
            work=self.work[-1] - self.work[::-1],
            network=None,  # what takes that time too takes no less
        )

    @cached_property
    def shares(self) -> tuple[tuple[Array, Index], tuple[Array, Index]]:
        """Port shares of devices, and of nodes on the network: (those that differ, the one of each group) of either."""
        return (
            np.unique(self.device_port, return_inverse=True),
            np.unique(self.network_port, return_inverse=True),
        )

    def link(self, sender: int, receiver: int) -> int:
        """The link between two groups: the node's own where both sit on it."""
        a, b = self.groups.placement[sender], self.groups.placement[receiver]
        return int(a) if a == b else len(self.ports) - 1

    def boundary(self, sender: int, receiver: int, cut: int) -> float:
        link = self.link(sender, receiver)
        share = self.network_port if link == len(self.ports) - 1 else self.device_port
        return float(self.ports[link, cut] * max(share[sender], share[receiver]))

    def period(self, path: Sequence[tuple[int, int, int]]) -> float:
        """Seconds per minibatch of stages (group, first cut, last cut) in pipeline order."""
        stages = [float(self.seconds(*stage)) for stage in path]
        between = [self.boundary(a[0], b[0], a[2]) for a, b in zip(path, path[1:], strict=False)]
        return max([*stages, *between])


def default_model(problem: Problem, cuts: Cuts, groups: DeviceGroups) -> StageModel:
    """The default cost model (estimate.py) as arrays."""
    table, network = problem.table, problem.cluster.network
    seconds = np.stack([table.seconds[name][:, 0] for name in groups.types])
    if problem.recompute:
        seconds = seconds + np.stack([table.forward[name][:, 0] for name in groups.types])
    each, once = groups.averaging(network)
    minibatches = problem.num_microbatches if problem.synchronous else groups.rounds  # of an update
    update = np.array([table.update_rates[name] for name in groups.types])
    slowest = np.where(groups.shares > 0, update, 0.0).max(axis=1)
    averages = (not problem.forward_only) / minibatches  # inference averages nothing
    crossing = [
        (link, forward if problem.forward_only else np.maximum(forward, backward))
        for link, forward, backward in crossings(problem, cuts, groups)
    ]
    return StageModel(
        cuts,
        groups,
        cuts.total(seconds),
        groups.shares / groups.rounds[:, None],
        cuts.total(table.parameter_bytes),
        averages * each + slowest / minibatches,
        averages * once,
        np.stack([link.latency + busiest / link.bandwidth for link, busiest in crossing]),
        groups.device_port,
        groups.network_port,
        *_work(cuts, seconds),
        network=None if groups.ends is None else _network(problem, cuts, groups),
    )


def _network(problem: Problem, cuts: Cuts, groups: DeviceGroups) -> Array:
    """Seconds of each type's own time for what crosses each cut between hosts, both ways, [T, S]; none at both ends."""
    of_type = {device_class.type.name: device_class.type.network_seconds_per_byte for device_class in groups.classes}
    forward, backward = cuts.payloads(problem.table, between_hosts=True)
    crossing = forward[:, 0] if problem.forward_only else forward[:, 0] + backward[:, 0]
    inner = np.arange(len(cuts)) % (len(cuts) - 1) > 0
    return np.array([[of_type[name]] for name in groups.types]) * (crossing * inner)


def crossings(problem: Problem, cuts: Cuts, groups: DeviceGroups) -> Iterator[tuple[Link, Array, Array]]:
    """Yield each node's link and the network, with the bytes that cross it at each cut forwards and backwards, [S]."""
    inside = [(node.link, problem.easier) for node in groups.nodes]
    for link, between_hosts in [*inside, (problem.cluster.network, True)]:
        forward, backward = cuts.payloads(problem.table, between_hosts=between_hosts)
        yield link, forward[:, 0], backward[:, 0]


def published_model(problem: Problem, cuts: Cuts, groups: DeviceGroups, ratio: float | None) -> StageModel:
    """SparsePipe's published cost model without its faults (sparsepipe.py): even shares, pace of the slowest type.

    The slowest type is judged on the whole network; transfers cost 2 × bytes / bandwidth whatever the replication, and
    nothing if no activation compression `ratio` is given.
    """
    first = problem.cluster.devices[0].type.name
    of_first = problem.profile.costs_at(first, [problem.size])["output_bytes"][:, 0].tolist()
    seconds = np.stack([problem.table.seconds[name][:, 0] for name in groups.types])
    slow_to_fast = np.argsort(-seconds.sum(axis=1), kind="stable")
    slowest = slow_to_fast[(groups.shares[:, slow_to_fast] > 0).argmax(axis=1)]
    rates = np.zeros(groups.shares.shape)
    rates[np.arange(len(groups)), slowest] = 1 / groups.sizes
    per_byte = groups.ring_seconds(problem.cluster.network)
    weight_rates = 2 * (groups.sizes - 1) * per_byte / groups.sizes / groups.sizes
    times, weights = cuts.total(seconds), cuts.total(problem.table.parameter_bytes)
    if groups.num_by_server:
        times, rates, weight_rates = _by_server(problem, groups, slow_to_fast, times, rates, weights, weight_rates)
    out = 2 * published_output(problem, cuts, of_first)
    links = [*(node.link for node in groups.nodes), problem.cluster.network]
    ports = np.stack([out / link.bandwidth / ratio if ratio else np.zeros(len(cuts)) for link in links])
    ones = np.ones(len(groups))
    none = np.zeros(len(groups))
    work = _work(cuts, seconds)
    return StageModel(cuts, groups, times, rates, weights, weight_rates, none, ports, ones, ones, *work)


def _by_server(
    problem: Problem,
    groups: DeviceGroups,
    slow_to_fast: Index,
    times: Array,
    rates: Array,
    weights: Array,
    weight_rates: Array,
) -> tuple[Array, Array, Array]:
    """Groups of whole servers: each takes the same share and averages within itself, then servers average together.

    (max over servers of (slowest type + 2(m−1)P/(b₁m))/m + 2(u−1)P/(b₂u)) / servers, m devices each, u in all.
    One more row of times for each server holds its slowest type and its own averaging.
    """
    own_times, own_rates = [], np.zeros((len(groups), len(groups.nodes)))
    for k, node in enumerate(groups.nodes):
        kinds = {groups.types.index(kind.name) for kind in node.device_types}
        slowest = next(t for t in slow_to_fast.tolist() if t in kinds)
        count = len(node.device_types)
        own_times.append(times[slowest] + 2 * (count - 1) * weights / (node.link.bandwidth * count))
        for group in range(len(groups) - groups.num_by_server, len(groups)):
            servers = int((groups.on_node[group] > 0).sum())
            own_rates[group, k] = (groups.on_node[group, k] > 0) / count / servers
            rates[group] = 0.0
            devices = groups.sizes[group]
            weight_rates[group] = 2 * (devices - 1) / (problem.cluster.network.bandwidth * devices) / servers
    return np.concatenate([times, own_times]), np.concatenate([rates, own_rates], axis=1), weight_rates


def published_output(problem: Problem, cuts: Cuts, output: Sequence[float]) -> Array:
    """Bytes that leave each cut as the published model counts them: over its augmented antichain, [S]."""
    graph, layers = problem.graph, cuts.layers
    ancestors: dict[int, set[int]] = {}
    for layer in layers:
        direct = [p for p in graph.inputs[layer] if p not in cuts.inputs]
        ancestors[layer] = set(direct).union(*(ancestors[p] for p in direct))
    output_bytes = []
    for cut in range(len(cuts)):
        members = cuts.between(0, cut)
        below = set().union(*(ancestors[k] for k in members))
        counted: set[int] = set()
        for top in set(members) - below:
            inside = ancestors[top] | {top}
            counted.add(top)
            counted.update(p for p in ancestors[top] if not inside.issuperset(graph.consumers[p]))
        output_bytes.append(sum(output[k] for k in counted))
    return np.array(output_bytes)


def _work(cuts: Cuts, seconds: Array) -> tuple[Array, Array]:
    """Prices of a second on each type, and the work before each cut at the cheapest type that each layer could have.

    Whatever the stages and shares, a layer's minibatches are spread over devices, so the seconds that the devices of a
    plan spend, at these prices, cover the work: sum of prices × period ≥ work. Both cost models keep this bound for
    prices in inverse proportion to the time of the whole network, where a slower type has a lower price.
    """
    totals = np.maximum(seconds.sum(axis=1), 1e-300)
    prices = totals.min() / totals
    return prices, cuts.total((prices[:, None] * seconds).min(axis=0))
