"""What sending and receiving between hosts takes of a device's own time: as if its layers took so much longer."""

import random
from dataclasses import replace
from itertools import pairwise
from math import lcm
from unittest import mock

import pytest

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, simulate
from sparsepipe.planning import Problem, partition
from sparsepipe.planning.by_hand import by_hand, with_groups
from sparsepipe.planning.device_groups import device_classes
from sparsepipe.planning.estimate import estimate, forward_estimate
from sparsepipe.planning.exact import network_time, search_space
from sparsepipe.planning.exact.min_latency import least_latency
from sparsepipe.planning.forecast import forecast
from sparsepipe.planning.simulator.simulation import durations
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads.replay import Replay, SleptStage
from sparsepipe.values.costs import share_elsewhere
from sparsepipe.values.plan import Stage

SCHEDULES = ("1f1b", "gpipe", "1f1b-flush", "sequential", "zero-bubble")
EACH, NETWORK = 0.25, Link(8.0, 0.125)


def chain(rng, count):
    layers = LayerGraph.chain([Layer(f"l{k}", "", float(rng.randint(0, 4))) for k in range(count)])
    costs = tuple(
        LayerCost((CostSample(1, rng.randint(1, 9), rng.randint(1, 9), float(rng.randint(0, 9))),))
        for _ in range(count)
    )
    return Profile(layers, {"cpu": costs}, (1.0,))


def hosts(*sizes, each=EACH, link=NETWORK):
    kind = DeviceType("cpu", network_seconds_per_byte=each)
    return Cluster(tuple(Node(f"n{k}", (kind,) * size, Link(32.0)) for k, size in enumerate(sizes)), link)


def as_layers(profile, cluster, plan):
    """The profile with the time of sending and receiving in the layers beside the cuts, and devices that have none."""
    index, costs = profile.graph.index, [cost.samples[0] for cost in profile.costs["cpu"]]
    name = {rank: cluster.devices[rank].node.name for rank in plan.ranks}
    for a, b in pairwise(plan.stages):
        if name[a.ranks[0]] != name[b.ranks[0]]:
            crossing = costs[index[a.layers[-1]]].output_bytes * EACH
            for place in (index[a.layers[-1]], index[b.layers[0]]):
                sample = costs[place]
                costs[place] = replace(sample, forward=sample.forward + crossing, backward=sample.backward + crossing)
    nodes = (replace(node, device_types=(DeviceType("cpu"),) * len(node.device_types)) for node in cluster.nodes)
    told = tuple(LayerCost((sample,)) for sample in costs)
    return replace(profile, costs={"cpu": told}), Cluster(tuple(nodes), cluster.network)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_simulator_and_estimate_count_it_as_time_of_the_layers_beside_a_cut(seed, schedule):
    rng = random.Random(seed)
    profile, cluster = chain(rng, 6), hosts(*rng.choice([(1, 1, 1), (2, 1), (1, 2)]))
    problem = Problem(profile, cluster, schedule, 4)
    counts = [tuple(int(column == rank) for column in range(3)) for rank in range(3)]
    if len(device_classes(cluster)) == 2:
        first = len(cluster.nodes[0].device_types)
        counts = [(1, 0)] * first + [(0, 1)] * (3 - first)
    plan = by_hand(problem, sorted(rng.sample(range(1, 6), 2)), counts)
    longer, free = as_layers(profile, cluster, plan)
    traces = [simulate(plan, *one, [1.0] * 8) for one in ((profile, cluster), (longer, free), (profile, free))]
    busy = [[one.busy(rank) for rank in one.ranks] for one in traces]
    assert busy[0] == pytest.approx(busy[1]) and sum(busy[0]) > sum(busy[2])
    if schedule != "zero-bubble":  # there a layer's backward is two parts, and what is sent goes with the first alone
        assert traces[0].spans == traces[1].spans
        expected = estimate(plan, Problem(longer, free, schedule, 4)).period_seconds
        assert plan.estimate.period_seconds == pytest.approx(expected)
    told = Problem(profile, cluster, schedule, 4, forward_only=True), Problem(longer, free, schedule, forward_only=True)
    found = [forward_estimate(plan, one) for one in told]
    assert found[0].latency_seconds == found[1].latency_seconds and found[0].period_seconds == found[1].period_seconds


def test_a_processor_that_sends_is_no_slower_within_a_host_and_busy_where_transfers_are_free():
    rng = random.Random(1)
    profile, cluster = chain(rng, 4), hosts(1, 1)
    plan = by_hand(Problem(profile, cluster), [2], [(1, 0), (0, 1)])
    one = hosts(2)
    spans = simulate(plan, profile, one, [1.0] * 6).spans
    assert spans == simulate(plan, profile, hosts(2, each=0.0), [1.0] * 6).spans
    found = forecast(plan, profile, cluster, [1.0] * 6)
    bubble = found.bubble.imbalance + found.bubble.dependency + found.bubble.communication
    assert bubble == pytest.approx(found.trace.bubble_fraction)


def test_a_replay_sleeps_as_long_as_the_simulator_says(tmp_path):
    rng = random.Random(2)
    profile, cluster = chain(rng, 4), hosts(1, 2)
    plan = by_hand(Problem(profile, cluster), [1, 3], [(0, 1), (1, 0), (0, 1)])
    config = RunConfig("four layers", "nothing", engine="replay", minibatches=3, batch_size=1, threads=1)
    workload = Replay(tmp_path, config, profile, cluster)
    seconds, *_ = durations(plan, profile, cluster, [1.0])
    for s, stage in enumerate(plan.stages):
        (rank,) = stage.ranks
        slept = SleptStage(workload, plan, s, rank, workload.links)
        assert [slept.seconds.forward.tolist(), slept.seconds.backward.tolist()] == list(seconds[rank][s][:2])


@pytest.mark.parametrize("seed", range(5))
def test_the_share_that_comes_from_elsewhere_is_that_of_the_minibatches(seed):
    rng = random.Random(seed)
    cluster = hosts(3, 2, 3)
    ranks = rng.sample(range(8), 6)
    own, other = (Stage(("x",), tuple(some), tuple(rng.randint(1, 4) for _ in some)) for some in (ranks[:3], ranks[3:]))
    for rank in own.ranks:
        name = cluster.devices[rank].node.name
        met = [other.replica(m) for m in range(lcm(own.round, other.round)) if own.replica(m) == rank]
        expected = sum(cluster.devices[peer].node.name != name for peer in met) / len(met)
        assert share_elsewhere(cluster, own, rank, other) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_cuts_for_given_devices_and_least_latency_are_the_best_of_all(seed):
    rng = random.Random(seed)
    profile, cluster = chain(rng, 6), hosts(1, 1, 1)
    problem, groups = Problem(profile, cluster), [(0, 1, 0), (1, 0, 0), (0, 0, 1)]
    every = [by_hand(problem, [a, b], groups).estimate for b in range(2, 6) for a in range(1, b)]
    best = min(one.period_seconds for one in every)
    assert with_groups(problem, groups).estimate.period_seconds == best
    inference = replace(problem, forward_only=True)
    plans = [by_hand(problem, [a, b], groups) for b in range(2, 6) for a in range(1, b)]
    plans += [by_hand(problem, [a], groups[:2]) for a in range(1, 6)] + [by_hand(problem, [], groups[:1])]
    told = sorted((forward_estimate(plan, inference) for plan in plans), key=lambda one: one.period_seconds)
    for pace in (told[0].period_seconds * 1.2, told[len(told) // 2].period_seconds):
        one_device_each = min(one.latency_seconds for one in told if one.period_seconds <= pace)
        found = least_latency(problem, pace, "optimal").estimate
        assert found.latency_seconds <= one_device_each * (1 + 1e-9) and found.period_seconds <= pace * (1 + 1e-9)
        assert found.latency_lower_bound_seconds == found.latency_seconds


def test_a_plan_moves_its_cut_to_where_less_is_sent():
    """Layers of 1 s each way; 8 bytes cross in the middle, 1 beside it: to send them takes more than a layer."""
    sizes = (9.0, 1.0, 8.0, 1.0, 9.0, 0.0)
    costs = tuple(LayerCost((CostSample(1, 1.0, 1.0, size),)) for size in sizes)
    layers = LayerGraph.chain([Layer(f"l{k}", parameter_bytes=1e6) for k in range(6)])  # replicas would average
    profile, fast = Profile(layers, {"cpu": costs}, (1.0,)), Link(1e3)
    plans = [partition(profile, hosts(1, 1, each=each, link=fast)) for each in (0.0, EACH)]
    assert len(plans[0].stages[0].layers) == 3 and len(plans[1].stages[0].layers) in (2, 4)
    assert plans[0].estimate.period_seconds == 6.0 and plans[1].estimate.period_seconds == 8.0 + 2 * EACH
    assert plans[1].estimate.gap == 0


def test_many_hosts_of_one_device_are_planned_near_the_best_plan_without_that_time():
    """They are planned as one node that they are alike, whose classes of devices were taken for those of the hosts."""
    rng = random.Random(0)
    graph = LayerGraph.chain([Layer(f"l{k}", "", rng.uniform(0, 4e6)) for k in range(24)])
    costs = {
        kind: tuple(
            LayerCost((CostSample(0, slow * rng.uniform(1, 5) * 1e-2, slow * 2e-2, rng.uniform(1e5, 2e6)),))
            for _ in graph.layers
        )
        for kind, slow in (("a", 1.0), ("b", 1.7))
    }
    profile, clusters = Profile(graph, costs), []
    for each in (0.0, 3e-9):
        nodes = (Node(f"n{k}", (DeviceType("ab"[k % 2], network_seconds_per_byte=each),)) for k in range(14))
        clusters.append(Cluster(tuple(nodes), Link(1.25e8, 5e-5)))
    with mock.patch.object(search_space, "_swapped_moves", return_value=None):
        free = partition(profile, clusters[0])
        with mock.patch.object(network_time, "STEP_BUDGET", 100_000):
            found = partition(profile, clusters[1]).check(graph, clusters[1]).estimate
    told = estimate(free, Problem(profile, clusters[1])).period_seconds
    assert found.lower_bound_seconds == pytest.approx(free.estimate.lower_bound_seconds)
    assert found.lower_bound_seconds <= found.period_seconds <= told * (1 + 1e-9)
