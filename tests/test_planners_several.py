"""Splits of devices into pipelines, against brute force over all of them."""

import random
from dataclasses import replace
from itertools import product

import pytest
from coded import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Profile,
    partition,
)
from sparsepipe.planning import Problem, partition_pipelines, several
from sparsepipe.planning.several import split
from sparsepipe.values.replication import parse_rule


def network(num_layers, kinds, seed, *, parameter_bytes=1.0):
    """A chain whose layers' speeds differ from type to type by more than a factor."""
    random_numbers = random.Random(seed)
    graph = LayerGraph.chain(Layer(f"l{k}", "", parameter_bytes) for k in range(num_layers))
    sizes = [random_numbers.uniform(0.1, 3.0) for _ in range(num_layers)]
    costs = {
        kind: tuple(
            LayerCost((CostSample(1, f := speed * random_numbers.uniform(0.5, 2.0), 2 * f, size),)) for size in sizes
        )
        for kind, speed in kinds.items()
    }
    return Profile(graph, costs, origin={"batch_size": 4})


def cluster(*nodes, network=1.0, inside=10.0, memory=float("inf")):
    """Nodes of devices by type: cluster("aab", "b")."""
    made = [
        Node(f"n{k}", tuple(DeviceType(kind, memory) for kind in kinds), Link(inside)) for k, kinds in enumerate(nodes)
    ]
    return Cluster(tuple(made), Link(network))


def most_of_all_splits(profile, devices, num_pipelines, **settings):
    """Plan every way to hand each device to one of the pipelines."""
    rates, best = {}, 0.0

    def rate(ranks):
        if ranks not in rates:
            nodes = []
            for node in devices.nodes:
                own = [d.type for d in devices.devices if d.node is node and d.rank in ranks]
                nodes += [replace(node, device_types=tuple(own))] if own else []
            try:
                rates[ranks] = (
                    1 / partition(profile, Cluster(tuple(nodes), devices.network), **settings).estimate.period_seconds
                )
            except InputError:
                rates[ranks] = float("-inf")
        return rates[ranks]

    for owners in product(range(num_pipelines), repeat=len(devices.devices)):
        if set(owners) == set(range(num_pipelines)):
            parts = (frozenset(r for r, k in enumerate(owners) if k == part) for part in range(num_pipelines))
            best = max(best, sum(map(rate, parts)))
    return best


@settings(max_examples=12, deadline=None)
@example(("abc",), 3, "1f1b", 0.2, 3)  # whose rates come to another last bit in another order
@given(
    st.sampled_from([("aab",), ("ab", "ab"), ("aa", "bb"), ("abc",), ("aabb",), ("ab", "b", "a"), ("aaa",)]),
    st.integers(2, 3),
    st.sampled_from(["1f1b", "gpipe", "1f1b-flush"]),
    st.sampled_from([0.2, 5.0, float("inf")]),
    st.integers(0, 10**6),
)
def test_the_split_is_the_best_of_all(nodes, num_pipelines, schedule, network_bandwidth, seed):
    profile = network(4, {"a": 1.0, "b": 2.0, "c": 3.5}, seed)
    devices = cluster(*nodes, network=network_bandwidth)
    terms = {"schedule": schedule, "num_microbatches": 1 if schedule == "1f1b" else 4}
    found = partition_pipelines(profile, devices, num_pipelines, **terms).check(profile.graph, devices)
    most = most_of_all_splits(profile, devices, num_pipelines, **terms)
    assert found.minibatches_per_second == pytest.approx(most)
    assert found.estimate.gap == 0, "each of its plans is proven, and so is the split"


def test_memory_forbids_splits_that_would_be_faster():
    """A network of 8 bytes of weights, each kept three times, does not fit into one device of 20 bytes."""
    profile = network(4, {"a": 1.0}, 3, parameter_bytes=2.0)
    small = cluster("aaaa", memory=20.0)
    found = partition_pipelines(profile, small, 2, schedule="gpipe", num_microbatches=1)
    assert [len(plan.ranks) for plan in found.pipelines] == [2, 2]
    with raises("planner.no_plan", "memory"):
        partition_pipelines(profile, small, 3, schedule="gpipe", num_microbatches=1)


def test_a_setting_that_no_part_can_be_planned_with_is_told_as_of_one_pipeline():
    """Its line was all that was kept: the code said that no plan is possible, and the shell had names of Python."""
    with raises("objective.of_latency", "period_at_most") as caught:
        partition_pipelines(network(4, {"a": 1.0}, 3), cluster("aaaa"), 2, period_at_most=1.0)
    assert caught.value.written(lambda name, _: f"--{name}").startswith("--period_at_most")


def test_slow_links_keep_pipelines_within_their_nodes():
    profile = network(6, {"a": 1.0}, 5)
    found = partition_pipelines(profile, cluster("aa", "aa", network=0.01), 2, replication="quorum:grace=0.2")
    assert found.replication == parse_rule("quorum:grace=0.2")
    assert [sorted(plan.ranks) for plan in found.pipelines] == [[0, 1], [2, 3]]
    assert found.pipelines[1].stages[0].nodes == ("n1",) * len(found.pipelines[1].stages[0].ranks)


def test_the_bound_holds_where_not_all_splits_are_looked_at(monkeypatch):
    profile = network(5, {"a": 1.0, "b": 2.0}, 7)
    devices = cluster("aabb", "aabb")
    best = partition_pipelines(profile, devices, 2)
    assert best.estimate.gap is not None and not best.warnings
    short = partition_pipelines(profile, devices, 2, most_plans=1)
    assert any("possibly better splits" in text for text in short.warnings)
    for limit in (8, 30):
        monkeypatch.setattr(several, "MOST_PARTS", limit)
        coarse = partition_pipelines(profile, devices, 2)
        assert any("too many devices" in text for text in coarse.warnings)
        for found in (short, coarse):
            assert found.minibatches_per_second <= best.minibatches_per_second * (1 + 1e-9)
            assert 1 / found.estimate.lower_bound_seconds >= best.minibatches_per_second * (1 - 1e-9)
            assert sorted(found.ranks) == sorted(set(found.ranks))


@pytest.mark.slow
def test_hundreds_of_devices_are_split_by_blocks_and_nodes():
    profile = network(8, {"a": 1.0, "b": 2.0}, 11)
    for devices, count in ((cluster(*["aaaabbbb"] * 16), 4), (cluster("a" * 40 + "b" * 40), 5)):
        found = partition_pipelines(profile, devices, count, most_plans=3).check(profile.graph, devices)
        assert found.estimate.lower_bound_seconds is not None and found.estimate.gap < 1


def test_like_parts_are_planned_once():
    profile, devices, shapes = network(4, {"a": 1.0, "b": 2.0}, 2), cluster("ab", "ab", "ab"), []

    def plan_of(part):
        shapes.append(tuple(node.device_types for node in part.nodes))
        return partition(profile, part)

    found = split(Problem(profile, devices), 3, plan_of, bounded=False)
    assert len(shapes) == len(set(shapes)), "nodes are alike, whatever their names"
    for plan in found.plans:
        for stage in plan.stages:
            told = list(zip(stage.device_types, stage.nodes, strict=True))
            assert told == [(devices.devices[r].type.name, devices.devices[r].node.name) for r in stage.ranks]


def test_planners_that_prove_nothing_leave_no_bound():
    found = partition_pipelines(network(4, {"a": 1.0}, 1), cluster("aaa"), 2, planner="model-parallel")
    assert found.estimate.lower_bound_seconds is None and found.estimate.gap is None
    assert sorted(len(plan.ranks) for plan in found.pipelines) == [1, 2]


@pytest.mark.parametrize(
    ("count", "error"),
    [(1, ("number.below_least", "pipelines", "1", "2")), (5, ("planner.too_few_devices", "5 pipelines", "3 devices"))],
)
def test_a_wrong_number_of_pipelines_is_told(count, error):
    with raises(*error):
        partition_pipelines(network(4, {"a": 1.0}, 1), cluster("aaa"), count)


def test_samples_are_those_that_the_profile_tells():
    profile = network(4, {"a": 1.0}, 1)
    assert partition_pipelines(profile, cluster("aa"), 2).samples == 4
    untold = partition_pipelines(replace(profile, origin={}), cluster("aa"), 2)
    assert untold.samples is None and untold.counted == "minibatches"
