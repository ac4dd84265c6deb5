"""Plans of least latency at a pace against brute force, over cuts, devices, orders and shares."""

import random
from itertools import combinations, pairwise, product
from math import gcd, inf, nextafter

import pytest
from coded import mentions, raises
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    partition,
)
from sparsepipe.planning import Problem
from sparsepipe.planning.exact.frontier_cuts import FrontierCuts, ListedCuts
from sparsepipe.planning.exact.latency_walks import CutSums, Walks, walk_latency_bound
from sparsepipe.planning.exact.min_latency import latency_bound
from sparsepipe.planning.exact.optimal import Optimal
from sparsepipe.planning.exact.search_space import merged

SIZE = 10.0


def down_sets(graph):
    """All down-sets as frozensets, by trying every subset."""
    count = len(graph.layers)
    subsets = (frozenset(c) for size in range(count + 1) for c in combinations(range(count), size))
    return [s for s in subsets if all(i in s for i, j in graph.edges if j in s)]


class BruteForce:
    """Every plan of a small problem, straight from the definitions."""

    def __init__(self, profile, cluster):
        self.profile, self.graph, self.cluster = profile, profile.graph, cluster
        self.devices, self.sets = cluster.devices, down_sets(profile.graph)

    def forward(self, layers, rank):
        return self.profile.time(tuple(layers), self.devices[rank].type.name, SIZE)[0]

    def payload(self, before):
        alive = {i for i, j in self.graph.edges if i in before and j not in before}
        first = self.devices[0].type.name
        return sum(self.profile.cost(i, first, SIZE).output_bytes for i in alive)

    def fits(self, before, layers, ranks):
        first = self.devices[0].type.name
        need = sum(self.graph.layers[k].parameter_bytes for k in layers) + self.payload(before)
        need += sum(self.profile.cost(k, first, SIZE).output_bytes for k in layers)
        return need <= min(self.devices[rank].type.memory_bytes for rank in ranks)

    def groups(self, free):
        """Every choice of free devices with every ratio of shares 1 … 4 of unlike types."""
        for size in range(1, len(free) + 1):
            for ranks in combinations(free, size):
                kinds = sorted({self.devices[rank].type.name for rank in ranks})
                for shares in product(range(1, 5), repeat=len(kinds)):
                    if gcd(*shares) == 1:
                        of = dict(zip(kinds, shares, strict=True))
                        yield ranks, tuple(of[self.devices[rank].type.name] for rank in ranks)

    def plans(self, before, free):
        """Every plan of the layers not in `before`: tuples of (layers before, layers, ranks, shares)."""
        if len(before) == len(self.graph.layers):
            yield ()
            return
        for after in self.sets:
            if before < after:
                layers = tuple(sorted(after - before))
                for ranks, shares in self.groups(free):
                    if self.fits(before, layers, ranks):
                        rest = tuple(rank for rank in free if rank not in ranks)
                        yield from (((before, layers, ranks, shares), *more) for more in self.plans(after, rest))

    def latency_and_period(self, plan):
        latency, period, sent_over = 0.0, 0.0, [0.0] * len(plan)
        for k, ((_, _, senders, _), (before, _, receivers, _)) in enumerate(pairwise(plan)):
            if len({self.devices[rank].node.name for rank in senders + receivers}) > 1:
                sent_over[k] += self.payload(before)
                sent_over[k + 1] += self.payload(before)
        for (_, layers, ranks, shares), over in zip(plan, sent_over, strict=True):
            each = [self.devices[rank].type.network_seconds_per_byte for rank in ranks]
            seconds = [self.forward(layers, rank) + own * over for rank, own in zip(ranks, each, strict=True)]
            latency += max(seconds)
            period = max(period, *(t * s / sum(shares) for t, s in zip(seconds, shares, strict=True)))
        for (_, _, senders, sent), (before, _, receivers, taken) in pairwise(plan):
            nodes = {self.devices[rank].node.name for rank in senders + receivers}
            link = self.devices[senders[0]].node.link if len(nodes) == 1 else self.cluster.network
            transfer = link.latency + self.payload(before) / link.bandwidth
            latency += transfer
            for ranks, shares in ((senders, sent), (receivers, taken)):
                load = {}
                for rank, share in zip(ranks, shares, strict=True):
                    port = rank if len(nodes) == 1 else self.devices[rank].node.name
                    load[port] = load.get(port, 0) + share
                period = max(period, transfer * max(load.values()) / sum(shares))
        return latency, period

    def points(self):
        """(latency, period) of every plan."""
        every = self.plans(frozenset(), tuple(range(len(self.devices))))
        return {self.latency_and_period(plan) for plan in every}


small = st.integers(1, 9)


@st.composite
def worlds(draw, max_layers=4, max_devices=3, *, memory=False):
    """A profile and a cluster: a chain, one with skips or branches, on one node or two of unlike devices."""
    count = draw(st.integers(1, max_layers))
    layers = [Layer(f"l{k}", parameter_bytes=draw(st.integers(0, 9))) for k in range(count)]
    trunk = [(draw(st.integers(0, k - 1)), k) for k in range(1, count)]
    extra = draw(st.lists(st.sampled_from(list(combinations(range(count), 2))), max_size=2)) if count > 1 else []
    chain = LayerGraph.chain(layers, skips=extra)
    graph = draw(st.sampled_from([chain, LayerGraph(tuple(layers), (*trunk, *extra))]))
    sizes = st.sampled_from([inf, 15, 30, 60]) if memory else st.just(inf)
    sending = st.sampled_from([0.0, 0.0, 0.3])
    names = "abc"[: draw(st.integers(1, 3))]
    types = [DeviceType(name, draw(sizes), network_seconds_per_byte=draw(sending)) for name in names]
    links = st.builds(Link, st.sampled_from([0.5, 1.0, 3.0, 10.0, inf]), st.sampled_from([0.0, 0.0, 0.5]))
    kinds = [draw(st.sampled_from(types)) for _ in range(draw(st.integers(1, max_devices)))]
    cut = draw(st.integers(0, len(kinds) - 1))
    halves = [half for half in (kinds[:cut], kinds[cut:]) if half]
    cluster = Cluster(tuple(Node(f"n{k}", tuple(half), draw(links)) for k, half in enumerate(halves)), draw(links))
    outputs = [draw(st.integers(0, 9)) for _ in layers]
    costs = {
        kind.name: tuple(
            LayerCost((CostSample(SIZE, draw(small), draw(small), output_bytes=out, saved_bytes=7),)) for out in outputs
        )
        for kind in cluster.device_types
    }
    return Profile(graph, costs, (SIZE,), update_rates=dict.fromkeys(costs, 0.5)), cluster


def check_against_brute_force(profile, cluster, pick):
    points = sorted(BruteForce(profile, cluster).points())
    problem = Problem(profile, cluster)
    if not points:
        with raises("planner.no_plan", "memory"):
            Optimal(objective="latency").plan(problem)
        return
    pace = points[int(pick * len(points)) % len(points)][1]  # just reached by a plan
    best = min(latency for latency, period in points if period <= pace * (1 + 1e-12))
    plan = Optimal(objective="latency", period_at_most=pace).plan(problem)
    plan.check(profile.graph, cluster)
    found = plan.estimate
    assert found.latency_seconds == pytest.approx(best, rel=1e-9) and found.gap == 0
    assert found.period_seconds <= pace * (1 + 1e-9)
    check_bounds(Problem(profile, cluster, forward_only=True), pace, best)
    for stage, expected in zip(plan.stages, found.stages, strict=True):
        assert expected.memory_bytes <= min(cluster.devices[rank].type.memory_bytes for rank in stage.ranks)
    shortest = min(period for _, period in points)
    with raises("planner.no_plan", "no plan has a forward period", "or less"):
        Optimal(objective="latency", period_at_most=shortest * 0.99).plan(problem)


def check_bounds(problem, pace, best):
    """No bound is above the best plan: of all cuts, of some taken together, of those that a limit of bytes leaves."""
    below, most = nextafter(pace * (1 + 1e-12), inf), best * (1 + 1e-9)
    low = latency_bound(problem, pace)
    assert low <= most
    for own in (problem, merged(problem)):
        walks = Walks.of(own)
        every = walks.sums(None, inf)
        frontier = CutSums.of_frontier(FrontierCuts.of(own, units=5, sums=walks.quantities), every.whole)
        for sums in (
            every.coarser(99, inf),
            every.coarser(2, inf),
            frontier.coarser(99, inf),
            frontier.coarser(2, inf),
        ):
            assert walks.least(sums, below) <= most
    for listed in (None, ListedCuts.of(problem)):
        for high in (best * 1.001, 2 * best, inf):
            assert walk_latency_bound(problem, listed, below, low=low, high=high) <= most


@settings(max_examples=16)
@given(worlds(), st.floats(0, 1))
def test_equals_brute_force(world, pick):
    check_against_brute_force(*world, pick)


@settings(max_examples=12)
@given(worlds(memory=True), st.floats(0, 1))
def test_equals_brute_force_within_memory(world, pick):
    check_against_brute_force(*world, pick)


def chain_of(seconds, bandwidth=1e9, *, counts=(1, 1)):
    """A chain of layers, [type][layer] forward seconds, on one node."""
    layers = [Layer(f"l{k}") for k in range(len(seconds[0]))]
    costs = {
        name: tuple(LayerCost((CostSample(SIZE, t, 2 * t, output_bytes=8.0),)) for t in own)
        for name, own in zip("ab", seconds, strict=False)
    }
    kinds = tuple(DeviceType(name) for name, count in zip("ab", counts, strict=False) for _ in range(count))
    return Profile(LayerGraph.chain(layers), costs, (SIZE,)), Cluster((Node("n", kinds, Link(bandwidth)),))


def test_the_faster_the_pace_the_more_devices_and_the_longer_the_way():
    """A fast device alone; beside a slow one, where that is not enough; and no plan beyond what both can do."""
    profile, cluster = chain_of([[1.0] * 8, [2.0] * 8])
    latencies = []
    for pace in (None, 8.0, 7.0, 6.0, 5.4):
        plan = partition(profile, cluster, objective="latency", period_at_most=pace)
        latencies.append(plan.estimate.latency_seconds)
        assert pace is None or plan.estimate.period_seconds <= pace
    assert latencies[:2] == [8.0, 8.0] and sorted(latencies) == latencies
    assert latencies[2] == pytest.approx(9.0, rel=1e-6), "one layer on the slow device"
    with raises("planner.no_plan", "the shortest is"):
        partition(profile, cluster, objective="latency", period_at_most=5.0)


def test_a_split_that_gains_nothing_is_none():
    """Sums of parts differ in their last digit."""
    profile, cluster = chain_of([[0.1 * k for k in range(1, 12)]], inf, counts=(4,))
    assert len(partition(profile, cluster, objective="latency").stages) == 1


@pytest.mark.slow
def test_many_layers_and_devices_are_proven_by_the_bound_where_not_all_is_searched():
    draw = random.Random(0)
    profile, cluster = chain_of([[draw.uniform(0.5, 1.5) for _ in range(400)] for _ in "ab"], 1e12, counts=(8, 8))
    seconds = [[cost.samples[0].forward for cost in own] for own in profile.costs.values()]
    plan = partition(profile, cluster, objective="latency", period_at_most=30.0)
    found = plan.estimate
    assert found.latency_lower_bound_seconds >= sum(map(min, *seconds)) * (1 - 1e-9)
    assert found.latency_seconds >= found.latency_lower_bound_seconds and found.period_seconds <= 30.0


def branches(count, deep, *, seed=0):
    """Branches between a first and a last layer, (deep + 1) ** count cuts, on a fast and a slow device; all seconds."""
    draw = random.Random(seed)
    layers, edges = [Layer("first"), Layer("last")], []
    for b in range(count):
        own = [0, *range(len(layers), len(layers) + deep), 1]
        layers += [Layer(f"b{b}l{k}") for k in range(deep)]
        edges += pairwise(own)
    seconds = [draw.uniform(0.5, 1.5) for _ in layers]
    sizes = [draw.choice([1.0, 4.0, 16.0]) for _ in layers]
    order = [0, *range(2, len(layers)), 1]
    place = {old: new for new, old in enumerate(order)}
    graph = LayerGraph(tuple(layers[k] for k in order), tuple((place[a], place[b]) for a, b in edges))
    costs = {
        name: tuple(LayerCost((CostSample(SIZE, factor * seconds[k], 0.0, output_bytes=sizes[k]),)) for k in order)
        for name, factor in (("a", 1.0), ("b", 2.5))
    }
    return Profile(graph, costs, (SIZE,)), sum(seconds)


@pytest.mark.slow
def test_cuts_too_many_to_list_are_searched_by_frontiers_and_bounded_by_their_sums():
    """Two million cuts. Along two orders of the layers the gap was .067."""
    profile, whole = branches(9, 4)
    cluster = Cluster((Node("n", (DeviceType("a"), DeviceType("b")), Link(8.0)),))
    found = partition(profile, cluster, objective="latency", period_at_most=0.8 * whole).estimate
    assert found.period_seconds <= 0.8 * whole and found.latency_lower_bound_seconds <= found.latency_seconds
    assert found.gap <= 0.01


def test_the_plan_file_keeps_the_latency(tmp_path):
    profile, cluster = chain_of([[1.0] * 4, [2.0] * 4])
    plan = partition(profile, cluster, objective="latency", period_at_most=3.5)
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    document = plan.to_json()
    assert document["gap"] == 0 and document["latency_seconds"] == document["latency_lower_bound_seconds"]
    assert mentions(partition(profile, cluster, objective="latency").summary(), "4,000 ms")
    assert "latency_seconds" not in partition(profile, cluster).to_json()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"objective": "speed"}, ("setting.not_a_choice", "period, latency")),
        ({"period_at_most": 1.0}, ("objective.of_latency", "objective='latency'")),
        ({"objective": "latency", "period_at_most": 0.0}, ("setting.out_of_range", "0.0")),
        ({"objective": "latency", "rescore": 3}, ("objective.not_of_latency", "rescore", "objective='latency'")),
        ({"objective": "latency", "recompute": True}, ("objective.no_recompute",)),
        ({"objective": "latency", "planner": "pipedream"}, ("planner.option_unknown", "optimal has")),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, error):
    profile, cluster = chain_of([[1.0] * 4, [2.0] * 4])
    with raises(*error):
        partition(profile, cluster, **options)
