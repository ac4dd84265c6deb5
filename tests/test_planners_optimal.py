"""The optimal planner against brute force, published optima and its own certificate."""

import random
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from math import ceil, inf, log2
from unittest import mock

import pytest
from chain_problems import random_problem
from coded import mentions, raises
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe import Cluster, CostSample, DeviceType, InputError, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.planning import Problem, partition
from sparsepipe.planning.exact import min_period, network_time
from sparsepipe.planning.exact.graph_search import StageEnds, over_sets
from sparsepipe.planning.exact.memory_limits import memory_rule
from sparsepipe.planning.exact.optimal import Optimal
from sparsepipe.planning.exact.search_space import Rules, spaces
from sparsepipe.planning.forecast import forecast
from sparsepipe.util.io.quantities import SIZE
from sparsepipe.values.costs import depth
from sparsepipe.values.profile import MEMORY_FIELDS, StepOverhead

# --- brute force: every sequence of down-sets, every choice of devices, straight from the definitions -----------------


def down_sets(graph):
    """All down-sets as frozensets, by trying every subset."""
    count = len(graph.layers)
    subsets = (frozenset(c) for size in range(count + 1) for c in combinations(range(count), size))
    return [s for s in subsets if all(i in s for i, j in graph.edges if j in s)]


def best_shares(kinds, totals):
    """Shares 1 … 4 of each type that keep the best pace over the whole network, the shortest round among equals."""
    present = sorted(set(kinds))

    def pace(shares):
        of = dict(zip(present, shares, strict=True))
        return max(of[k] * totals[k] for k in present) / sum(of[k] for k in kinds)

    options = sorted(product(range(1, 5), repeat=len(present)), key=sum)
    least = min(map(pace, options))
    chosen = next(o for o in options if pace(o) <= least * (1 + 1e-12))
    of = dict(zip(present, chosen, strict=True))
    return tuple(of[k] for k in kinds)


class BruteForce:
    """Every plan of a small problem under the default cost model (DESIGN.md, Costs of a plan)."""

    def __init__(self, problem):
        self.problem, self.graph, self.cluster = problem, problem.graph, problem.cluster
        self.typical, self.high = problem.size, problem.profile.size(0.99)
        self.totals = {
            k.name: self.time(tuple(range(len(self.graph.layers))), k.name) for k in self.cluster.device_types
        }
        self.sets = down_sets(self.graph)
        self.sparse = any(
            s.coordinate_bytes for c in problem.profile.costs.values() for layer in c for s in layer.samples
        )
        for name in ("time", "size", "payload", "shares", "stage", "boundary", "fits", "groups", "plans"):
            setattr(self, name, cache(getattr(self, name)))

    def time(self, layers, kind):
        forward, backward = self.problem.profile.time(layers, kind, self.typical)
        return forward + backward

    def size(self, layer, field, voxels):
        return max(getattr(self.problem.profile.cost(layer, k.name, voxels), field) for k in self.cluster.device_types)

    def owner(self, layer):
        if self.size(layer, "coordinate_bytes", self.high) or self.size(layer, "coordinate_bytes", self.typical):
            return layer
        return self.owner(self.graph.inputs[layer][0]) if self.graph.inputs[layer] else None

    def payload(self, before, voxels, between_hosts=False):
        def sent(layer, what, plain):
            coded = self.size(layer, f"coded_{what}_bytes", voxels) if between_hosts else 0
            return min(coded, self.size(layer, plain, voxels)) if coded else self.size(layer, plain, voxels)

        alive = {i for i, j in self.graph.edges if i in before and j not in before}
        coordinates = 0.0
        for owner in {self.owner(i) for i in alive}:
            if owner is not None:
                coordinates += sent(owner, "coordinate", "coordinate_bytes")
            elif self.sparse:
                coordinates += 16 * voxels
        forward, backward = (sum(sent(i, what, "output_bytes") for i in alive) for what in ("output", "gradient"))
        return forward + coordinates, backward

    def node(self, rank):
        return self.cluster.devices[rank].node.name

    def kinds(self, ranks):
        return [self.cluster.devices[r].type.name for r in ranks]

    def shares(self, ranks):
        return best_shares(self.kinds(ranks), self.totals)

    def times(self, layers, ranks, sent):
        """Seconds of a minibatch on each replica, which sends and receives so many bytes over the network."""
        kinds = [self.cluster.devices[rank].type for rank in ranks]
        return [self.time(layers, kind.name) + sent * kind.network_seconds_per_byte for kind in kinds]

    def over_network(self, plan):
        """Bytes that each stage sends and receives over the network in a minibatch, both ways."""
        found = [0.0] * len(plan)
        for k, (a, b) in enumerate(zip(plan, plan[1:], strict=False)):
            if len({self.node(rank) for rank in a[2] + b[2]}) > 1:
                crossing = sum(self.payload(b[0], self.typical, True))
                found[k] += crossing
                found[k + 1] += crossing
        return found

    def stage(self, layers, ranks, sent):
        """(compute, averaging and update, latency) of one stage."""
        kinds, shares, times = self.kinds(ranks), self.shares(ranks), self.times(layers, ranks, sent)
        compute = max(s * t for s, t in zip(shares, times, strict=True)) / sum(shares)
        weights = sum(self.graph.layers[k].parameter_bytes for k in layers)
        once = weights * max(self.problem.profile.update_rates.get(kind, 0.0) for kind in kinds)
        once += self.averaging(ranks, weights)
        rounds = self.problem.num_microbatches if self.problem.synchronous else sum(shares)
        return compute, once / rounds, max(times)

    def averaging(self, ranks, weights):
        """Rings within hosts, one between a rank of each, and a tree back: the slowest message of each, by number."""
        hosts = {}
        for rank in ranks:
            hosts.setdefault(self.node(rank), []).append(rank)
        most = max(map(len, hosts.values()))
        own = [self.cluster.devices[own[0]].node.link for own in hosts.values() if len(own) > 1]
        inside = Link(min((x.bandwidth for x in own), default=inf), max((x.latency for x in own), default=0.0))
        seconds = 2 * (most - 1) * inside.transfer_time(weights / most)
        seconds += 2 * (len(hosts) - 1) * self.cluster.network.transfer_time(weights / len(hosts))
        if len(hosts) > 1:
            seconds += ceil(log2(most)) * inside.transfer_time(weights)
        return seconds

    def boundary(self, before, senders, receivers):
        """(busiest port per minibatch, transfer forwards plus backwards)."""
        nodes = {self.node(r) for r in senders + receivers}
        link = self.cluster.devices[senders[0]].node.link if len(nodes) == 1 else self.cluster.network
        busiest = 0.0
        for ranks in (senders, receivers):
            shares, load = self.shares(ranks), {}
            for rank, share in zip(ranks, shares, strict=True):
                port = rank if len(nodes) == 1 else self.node(rank)
                load[port] = load.get(port, 0) + share
            busiest = max(busiest, max(load.values()) / sum(shares))
        payload = self.payload(before, self.typical, len(nodes) > 1)
        forward, backward = (link.latency + size / link.bandwidth for size in payload)
        return busiest * max(forward, backward), forward + backward

    def fits(self, before, layers, ranks, behind):
        versions, minibatches = depth(self.problem.schedule, self.problem.num_microbatches, self.shares(ranks), behind)
        weights = sum(self.graph.layers[k].parameter_bytes for k in layers)
        saved, working = self.minibatch(layers)
        need = weights * (versions + 1) + (minibatches - 1) * saved + working
        need += minibatches * self.payload(before, self.high)[0]
        return need <= min(self.cluster.devices[r].type.memory_bytes for r in ranks)

    def minibatch(self, layers):
        """Bytes of a minibatch in a stage: (kept, at most while it is at work)."""

        def of(name, own):
            return sum(self.size(k, name, self.high) for k in own)

        layers = sorted(layers)
        weights = [self.graph.layers[k].parameter_bytes for k in layers]
        given = [k for k in layers if self.graph.inputs[k] and not set(self.graph.inputs[k]) & set(layers)]
        every = [k for k, _ in enumerate(self.graph.layers)]
        if not of("forward_temporary_bytes", every) + of("backward_temporary_bytes", every):
            saved = of("saved_bytes", layers) + of("coordinate_bytes", layers)
            return saved, saved + sum(weights)
        moments, sent = [], {i for i, j in self.graph.edges if i in layers and j not in layers}
        for place, k in enumerate(layers):
            so_far, later = layers[: place + 1], layers[place + 1 :]
            kept = of("saved_bytes", so_far) - of("saved_input_bytes", set(so_far) & set(given))
            moments.append(kept + of("forward_temporary_bytes", [k]))
            kept += of("kernel_map_bytes", later) + sum(weights[place:])
            kept += of("output_bytes", sent & set(later))
            moments.append(kept + of("backward_left_bytes", later) + of("backward_temporary_bytes", [k]))
        saved = of("saved_bytes", layers) - of("saved_input_bytes", given)
        return saved, max(*moments, saved, sum(weights))

    def groups(self, free):
        """Every choice of free devices, like devices taken in rank order."""
        found = {}
        for size in range(1, len(free) + 1):
            for ranks in combinations(free, size):
                key = tuple(sorted((self.node(r), self.cluster.devices[r].type.name) for r in ranks))
                found.setdefault(key, ranks)
        return list(found.values())

    def plans(self, before, free):
        """Every plan of the layers not yet in `before`, each a tuple of (layers before, layers, ranks)."""
        if len(before) == len(self.graph.layers):
            return [()]
        return [
            ((before, tuple(sorted(after - before)), ranks), *rest)
            for after in self.sets
            if before < after
            for ranks in self.groups(free)
            for rest in self.plans(after, tuple(r for r in free if r not in ranks))
        ]

    def period(self, plan):
        """The period of a plan, None where it does not fit into memory."""
        behind = sum(len(ranks) for _, _, ranks in plan)
        for before, layers, ranks in plan:
            behind -= len(ranks)
            if not self.fits(before, layers, ranks, behind):
                return None
        over = self.over_network(plan)
        stages = [self.stage(layers, ranks, sent) for (_, layers, ranks), sent in zip(plan, over, strict=True)]
        boundaries = [self.boundary(b[0], a[2], b[2]) for a, b in zip(plan, plan[1:], strict=False)]
        if not self.problem.synchronous:
            return max([c + a for c, a, _ in stages] + [port for port, _ in boundaries])
        count = self.problem.num_microbatches
        if self.problem.schedule == "sequential":
            shares = self.shares(plan[0][2])
            total = sum(latency for _, _, latency in stages) + sum(both for _, both in boundaries)
            return max([total * max(shares) / sum(shares)] + [c + a for c, a, _ in stages])
        limits = [(count - 1) * port for port, _ in boundaries]
        for (_, layers, ranks), sent, (_, once, latency) in zip(plan, over, stages, strict=True):
            shares = self.shares(ranks)
            turns = [ceil(count * share / sum(shares)) for share in shares]
            busiest = max(n * t for n, t in zip(turns, self.times(layers, ranks, sent), strict=True))
            limits.append(busiest + once * count - latency)
        longest = max(limits)
        return (sum(x for _, _, x in stages) + sum(both for _, both in boundaries) + longest) / count

    def best(self, most_stages=inf):
        plans = self.plans(frozenset(), tuple(range(len(self.cluster.devices))))
        periods = (self.period(plan) for plan in plans if len(plan) <= most_stages)
        return min((p for p in periods if p is not None), default=inf)


# --- small problems

small = st.integers(1, 9)
NO_TIME = st.just(0.0)  # that sending takes


@st.composite
def graphs(draw, max_layers=5):
    """Chains, chains with skips, and graphs with branches."""
    count = draw(st.integers(1, max_layers))
    layers = [Layer(f"l{k}", parameter_bytes=draw(st.integers(0, 9))) for k in range(count)]
    shape = draw(st.sampled_from(["chain", "skips", "branches"]))
    if shape == "chain":
        return LayerGraph.chain(layers)
    pairs = list(combinations(range(count), 2))
    extra = draw(st.lists(st.sampled_from(pairs), max_size=3)) if pairs else []
    if shape == "skips":
        return LayerGraph.chain(layers, skips=extra)
    trunk = [(draw(st.integers(0, k - 1)), k) for k in range(1, count)]
    return LayerGraph(tuple(layers), (*trunk, *extra))


@st.composite
def clusters(draw, max_devices=4, *, memory=False, sending=NO_TIME):
    """One node or two, one to four types; `sending`: what a byte over the network takes of a device's time."""
    sizes = st.sampled_from([inf, inf, 60, 120, 250, 500]) if memory else st.just(inf)
    types = [
        DeviceType(name, draw(sizes), network_seconds_per_byte=draw(sending))
        for name in "abcd"[: draw(st.integers(1, 4))]
    ]
    links = st.builds(Link, st.sampled_from([0.5, 1.0, 3.0, 10.0, inf]), st.sampled_from([0.0, 0.0, 0.5]))
    count = draw(st.integers(1, max_devices))
    kinds = [draw(st.sampled_from(types)) for _ in range(count)]
    cut = draw(st.integers(0, count - 1))
    halves = [half for half in (kinds[:cut], kinds[cut:]) if half]
    return Cluster(tuple(Node(f"n{k}", tuple(half), draw(links)) for k, half in enumerate(halves)), draw(links))


@st.composite
def problems(draw, *, max_layers=5, max_devices=4, memory=False, schedule="1f1b", num_microbatches=1, sending=NO_TIME):
    graph, cluster = draw(graphs(max_layers)), draw(clusters(max_devices, memory=memory, sending=sending))
    sparse = draw(st.booleans())
    sizes = [
        {
            "output_bytes": draw(st.integers(0, 9)),
            "saved_bytes": draw(small),
            "coordinate_bytes": draw(st.sampled_from([0, 0, 4])) if sparse else 0,
            "coded_output_bytes": draw(st.sampled_from([0, 0, 1, 3])),  # of all types: what is sent is the same
            "coded_gradient_bytes": draw(st.sampled_from([0, 0, 2])),
            "coded_coordinate_bytes": draw(st.sampled_from([0, 1])) if sparse else 0,
        }
        for _ in graph.layers
    ]
    if memory and draw(st.booleans()):
        parts = st.sampled_from([0, 0, 1, 4])
        for own in sizes:
            own |= {name: draw(parts) for name in MEMORY_FIELDS}
            own["output_bytes"] *= draw(st.sampled_from([1, 1, 8]))  # a larger stage may send less, and need less
            own["saved_bytes"] += own["kernel_map_bytes"] + own["saved_input_bytes"]
    costs = {}
    for kind in cluster.device_types:
        costs[kind.name] = tuple(
            LayerCost(
                tuple(
                    CostSample(v, draw(small) * v / 10, draw(small) * v / 10, **{k: x * v / 10 for k, x in s.items()})
                    for v in (10, 20)
                )
            )
            for s in sizes
        )
    rates = {name: draw(st.sampled_from([0.0, 0.1, 0.5])) for name in costs if draw(st.booleans())}
    profile = Profile(graph, costs, (10.0, 14.0, 20.0), update_rates=rates)
    return Problem(profile, cluster, schedule, num_microbatches)


def check_against_brute_force(problem, most_stages=None):
    best = BruteForce(problem).best(most_stages or inf)
    if best == inf:
        with pytest.raises(InputError, match="memory"):
            Optimal(most_stages=most_stages).plan(problem)
        return
    plan = Optimal(most_stages=most_stages).plan(problem)
    assert len(plan.stages) <= (most_stages or inf)
    plan.check(problem.graph, problem.cluster)
    assert plan.estimate.period_seconds == pytest.approx(best, rel=1e-9)
    assert plan.estimate.lower_bound_seconds == pytest.approx(best, rel=1e-9)
    assert plan.estimate.gap == 0
    for stage, expected in zip(plan.stages, plan.estimate.stages, strict=True):
        assert expected.memory_bytes <= min(problem.cluster.devices[r].type.memory_bytes for r in stage.ranks)


@settings(max_examples=48)
@given(problems())
def test_equals_brute_force(problem):
    check_against_brute_force(problem)


@settings(max_examples=32)
@given(problems(memory=True), st.integers(1, 4))
def test_plans_of_few_stages_equal_brute_force(problem, most_stages):
    check_against_brute_force(problem, most_stages)


@settings(max_examples=12)
@given(problems(max_layers=4, schedule="1f1b-flush", num_microbatches=3), st.integers(1, 3))
def test_steps_of_few_stages_equal_brute_force(problem, most_stages):
    check_against_brute_force(problem, most_stages)


@settings(max_examples=32)
@given(problems(max_layers=4, max_devices=5))
def test_leaving_out_useless_moves_loses_nothing(problem):
    """A plan was missed where a group can hold no layer from the best cut of the others, but one from a later cut."""
    with mock.patch.multiple(min_period, WORTH_PRUNING=0, PRUNABLE=inf):
        check_against_brute_force(problem)


@settings(max_examples=32)
@given(problems(max_layers=4, memory=True))
def test_equals_brute_force_within_memory(problem):
    check_against_brute_force(problem)


@settings(max_examples=32)
@given(problems(max_layers=5, memory=True))
def test_the_places_where_stages_fit_are_those_where_their_need_is_within_the_limit(problem):
    """A stage with a layer more may need less: where it sends less, fewer gradients come back for it."""
    space = next(spaces(problem, Rules()))
    rule, cuts = memory_rule(problem, space.model, space.moves), space.model.cuts
    for chain, spans in zip(cuts.chains, rule.places(cuts), strict=True):
        for case, move in enumerate(rule.cases[0]):
            for cut in range(len(cuts)):
                found = {k for begin, end in spans for k in range(begin_at(begin, case, cut), end[case, cut] + 1)}
                after = {k for k, last in enumerate(chain.tolist()) if cuts.follows[cut, last]}
                assert found == {k for k in after if rule.need(move, cut, int(chain[k])) <= rule.limit[move]}


def begin_at(begin, case, cut):
    return begin[case, cut] if begin.ndim == 2 else begin[cut]


@settings(max_examples=12)
@given(problems(max_layers=3, max_devices=5))
def test_equals_brute_force_on_more_devices(problem):
    check_against_brute_force(problem)


@settings(max_examples=24)
@given(st.data(), st.sampled_from(["1f1b-flush", "gpipe", "sequential"]), st.integers(1, 6))
def test_step_time_equals_brute_force(data, schedule, num_microbatches):
    check_against_brute_force(
        data.draw(problems(max_layers=4, memory=True, schedule=schedule, num_microbatches=num_microbatches))
    )


SENDING = st.sampled_from([0.0, 0.05, 0.2, 1.0])


@settings(max_examples=24)
@given(problems(max_layers=4, memory=True, sending=SENDING))
def test_time_of_sending_is_planned_for_as_brute_force_does(problem):
    check_against_brute_force(problem)


@settings(max_examples=16)
@given(st.data(), st.sampled_from(["1f1b-flush", "gpipe", "sequential"]), st.integers(1, 6))
def test_step_time_with_that_of_sending_equals_brute_force(data, schedule, num_microbatches):
    asked = {"schedule": schedule, "num_microbatches": num_microbatches, "sending": SENDING}
    check_against_brute_force(data.draw(problems(max_layers=4, max_devices=3, memory=True, **asked)))


@settings(max_examples=16)
@given(problems(max_layers=4, sending=SENDING))
def test_where_time_of_sending_is_too_much_to_search_the_best_is_between_plan_and_bound(problem):
    best = BruteForce(problem).best()
    with mock.patch.object(network_time, "STEP_BUDGET", 150):
        found = Optimal().plan(problem).estimate
    assert found.lower_bound_seconds <= best * (1 + 1e-9) <= found.period_seconds * (1 + 2e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_that_keeps_every_cut_finds_nothing_better(seed):
    """`over_sets` has none of the short cuts of the search along chains."""
    problem = random_problem(random.Random(seed))
    with mock.patch.multiple(min_period, WORTH_PRUNING=0, PRUNABLE=inf):
        plan = Optimal().plan(problem)
    assert plan.estimate.gap == 0
    space = next(spaces(problem, Rules()))
    assert over_sets(StageEnds(space.model), space.moves, plan.estimate.period_seconds * (1 - 1e-9)) is None


def test_where_nothing_fits_the_least_memory_that_would_do_is_named():
    """The least is found by halving, to the byte: with it there is a plan, with a byte less there is none."""
    rng = random.Random(3)
    base = random_problem(rng)
    saved = {
        kind: tuple(LayerCost((replace(c.samples[0], saved_bytes=1000.0 * (k % 4)),)) for k, c in enumerate(costs))
        for kind, costs in base.profile.costs.items()
    }
    layers = tuple(replace(layer, parameter_bytes=500.0 * (k % 3)) for k, layer in enumerate(base.graph.layers))
    profile = Profile(LayerGraph(layers, base.graph.edges), saved)

    def cluster(memory):
        kinds = [tuple(DeviceType(kind.name, memory) for kind in node.device_types) for node in base.cluster.nodes]
        nodes = tuple(replace(node, device_types=own) for node, own in zip(base.cluster.nodes, kinds, strict=True))
        return Cluster(nodes, base.cluster.network)

    with raises("planner.no_plan") as caught:
        partition(profile, cluster(100.0))
    too_little, least = 100, 100_000
    while least - too_little > 1:
        middle = (too_little + least) // 2
        try:
            partition(profile, cluster(middle)).check(profile.graph, cluster(middle))
            least = middle
        except InputError as error:
            assert str(error) == str(caught.value).replace("100 B", SIZE.shown(middle))
            too_little = middle
    assert mentions(str(caught.value), SIZE.enough(least)) and "bytes" not in str(caught.value)


def test_a_type_without_profile_is_refused():
    problem = random_problem(random.Random(0))
    with raises("profile.no_device_type", device_type="unknown"):
        partition(problem.profile, Cluster.uniform(2, device_type="unknown"))


def test_more_devices_than_layers_stay_unused_and_are_counted():
    graph = LayerGraph.chain([Layer("only", "", 100.0)])
    profile = Profile(graph, {"d": (LayerCost((CostSample(0, 1, 1, 1),)),)})
    plan = partition(profile, Cluster.uniform(4, device_type="d", link=Link(1.0)))
    assert len(plan.ranks) == 1
    assert mentions(plan.warnings[0], 3, "4 devices")


def test_simulating_the_best_plans_found_takes_the_fastest():
    problem = random_problem(random.Random(5))
    plans = [partition(problem.profile, problem.cluster, rescore=count) for count in (1, 4)]
    assert all(plan.estimate.lower_bound_seconds == plans[0].estimate.period_seconds for plan in plans)
    rates = [forecast(plan, problem.profile, problem.cluster, [1.0] * 200).minibatches_per_second for plan in plans]
    assert rates[1] >= rates[0] * 0.99


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_clusters_too_large_to_search_are_planned_with_a_gap(schedule):
    """Eight nodes of eight devices have 45^8 moves; what is searched instead says how far from the best it can be."""
    rng = random.Random(0)
    layers = [Layer(f"l{k}", "", rng.uniform(0, 1e6)) for k in range(24)]
    cost = tuple(LayerCost((CostSample(0, rng.uniform(1, 5) * 1e-3, 0.01, 1e5),)) for _ in layers)
    profile = Profile(LayerGraph.chain(layers), {"d": cost})
    nodes = tuple(Node(f"n{k}", (DeviceType("d"),) * 8, Link(1e10, 1e-5)) for k in range(8))
    cluster = Cluster(nodes, Link(1e9, 5e-5))
    plan = partition(profile, cluster, schedule=schedule).check(profile.graph, cluster)
    assert 0 <= plan.estimate.gap < 0.2
    assert plan.estimate.lower_bound_seconds >= plan.estimate.single_device_seconds / 64 * (1 - 1e-9)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"planner": "best"}, ("setting.not_a_choice", "best")),
        ({"cost_model": "mine"}, ("setting.not_a_choice", "mine")),
        ({"planner": "pipedream", "rescore": 2}, ("planner.option_unknown", "pipedream", "rescore")),
        (
            {"stages_per_device": 2},
            ("planner.option_unknown", "optimal", "'stages_per_device' (model-parallel has", "cost_m"),
        ),
        ({"planner": "data-parallel", "laps": 2}, ("planner.option_unknown", "data-parallel", "laps", "none")),
        ({"schedule": "zigzag"}, ("setting.not_a_choice", "zigzag")),
        ({"num_microbatches": 0}, ("setting.not_whole", "0")),
        ({"rescore": 0}, ("setting.not_whole", "0")),
        ({"planner": "pipedream", "activation_compression_ratio": 0.0}, ("setting.out_of_range", "0.0")),
    ],
)
def test_wrong_options_are_refused(options, error):
    profile = random_problem(random.Random(0)).profile
    with raises(*error):
        partition(profile, Cluster.uniform(2, device_type="a"), **options)


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-flush"])
def test_no_plan_is_slower_than_data_parallelism_where_later_stages_read_minibatches_again(schedule):
    """BERT's were: the search, which leaves reading out, took three stages for faster than one, at 1.1 of its time."""
    graph = LayerGraph.chain([Layer(f"l{k}", "", 1e6) for k in range(6)])
    took = []
    for reading in (0.0, 0.01, 0.03):
        costs = tuple(LayerCost((CostSample(1.0, 0.004, 0.008, 1e3),)) for _ in graph.layers)
        overheads = {"gpu": StepOverhead(0.0, 0.0, reading)}
        profile = Profile(graph, {"gpu": costs}, (1.0,), step_overheads=overheads, sample_readers=("l3",))
        cluster = Cluster.uniform(3, device_type="gpu", link=Link(1e9, 1e-5))
        given = {"schedule": schedule, "num_microbatches": 4} if schedule == "1f1b-flush" else {"schedule": schedule}
        best = partition(profile, cluster, **given)
        alike = partition(profile, cluster, planner="data-parallel", **given)
        assert best.estimate.period_seconds <= alike.estimate.period_seconds
        assert best.estimate.lower_bound_seconds <= best.estimate.period_seconds and best.planner == "optimal"
        took.append((len(best.stages), best.estimate.period_seconds))
    assert schedule != "1f1b" or took[0][0] > took[1][0] == 1, "reading again makes one stage the faster"
    assert took == sorted(took, key=lambda one: one[1])
