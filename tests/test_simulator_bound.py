"""The lower bound for any order of minibatches, against brute force over all orders and closed forms."""

import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulator import pipeline, runs

from sparsepipe import Cluster, DeviceType, Layer, LayerGraph, Link, Node, Plan, Stage, lower_bound, simulate
from sparsepipe.planning.forecast import forecast
from sparsepipe.values.profile import CostSample, LayerCost, Profile
from sparsepipe.values.replication import parse_rule
from sparsepipe.values.schedule_rules import SCHEDULE_RULES

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def least(plan, profile, cluster, sizes):
    """The makespan of the best order, by trying them all."""
    return min(simulate(plan, profile, cluster, list(order)).makespan for order in set(permutations(sizes)))


def lognormal(cv, count, seed=0):
    spread = np.log1p(cv**2)
    return np.random.default_rng(seed).lognormal(-spread / 2, spread**0.5, count).tolist()


@settings(max_examples=60)
@given(runs(), SIZES)
def test_no_order_beats_the_bound(run, sizes):
    plan, profile, cluster, _ = run
    assert lower_bound(plan, profile, cluster, sizes) <= least(plan, profile, cluster, sizes) * (1 + 1e-9)


@pytest.mark.parametrize("schedule", sorted(SCHEDULE_RULES))
def test_no_order_beats_the_bound_under_any_schedule_on_heterogeneous_devices(schedule):
    """Two stages on each device where the schedule allows it, costs that grow by other laws in each layer."""
    rng, rules = random.Random(schedule), SCHEDULE_RULES[schedule]
    laps = 2 if rules.interleaves else 1
    for _ in range(4):
        count = 2 * laps
        graph = LayerGraph.chain(Layer(f"l{k}", "", rng.uniform(0, 2)) for k in range(count))
        costs = {}
        for kind in "ab":
            rows = [[rng.uniform(1, 5) for _ in range(3)] for _ in range(count)]
            costs[kind] = tuple(
                LayerCost((CostSample(1, f, b, o), CostSample(9, f * rng.uniform(2, 9), b * 5, o * 9)))
                for f, b, o in rows
            )
        rates = {"a": 0.1, "b": 0.3}
        profile = Profile(graph, costs, (1.0,), update_rates=rates)
        cluster = Cluster((Node("n", (DeviceType("a"), DeviceType("b")), Link(rng.choice([2.0, 1e9]))),), Link(1.0))
        places = [rules.position(k, 2) for k in range(count)]
        plan = Plan(tuple(Stage((f"l{k}",), (place,)) for k, place in enumerate(places)), schedule, num_microbatches=2)
        sizes = [rng.uniform(1, 9) for _ in range(4)]
        assert lower_bound(plan, profile, cluster, sizes) <= least(plan, profile, cluster, sizes) * (1 + 1e-9)


def test_no_order_beats_the_bound_of_pipelines_that_average():
    for rule in ("all-reduce", "partial-reduce", "local-sgd:every=2"):
        plan, profile, cluster = pipeline([1.0, 2.0], [2.0, 3.0], parameter_bytes=1.0)
        several = Plan.alike(plan, 2, parse_rule(rule), samples=1)
        cluster = Cluster.uniform(4, device_type="d", link=Link(1.0))
        sizes = [1, 5, 2, 2, 7]
        assert lower_bound(several, profile, cluster, sizes) <= least(several, profile, cluster, sizes)


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-flush", "gpipe", "sequential"])
def test_equal_minibatches_in_equal_stages_take_what_the_bound_says(schedule):
    plan, profile, cluster = pipeline([1.0] * 4, [2.0] * 4, schedule=schedule, num_microbatches=8)
    assert lower_bound(plan, profile, cluster, [3] * 16) == pytest.approx(
        simulate(plan, profile, cluster, [3] * 16).makespan
    )


@settings(max_examples=20)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=40), st.integers(1, 4))
def test_data_parallelism_of_sorted_minibatches_takes_what_the_bound_says(sizes, replicas):
    """Rounds of like minibatches are the best there are: the bound is exact but for a round that is not whole."""
    plan, profile, cluster = pipeline([1.0], [2.0], replicas=(replicas,))
    whole = sizes * replicas
    best = simulate(plan, profile, cluster, sorted(whole)).makespan
    assert best == pytest.approx(lower_bound(plan, profile, cluster, whole))


@pytest.mark.parametrize(("stages", "far"), [(2, 1.01), (4, 1.03), (8, 1.05)])
def test_the_bound_is_near_what_a_sorted_epoch_takes(stages, far):
    plan, profile, cluster = pipeline([1.0] * stages, [2.0] * stages)
    sizes = lognormal(0.5, 512)
    shuffled, best = (simulate(plan, profile, cluster, order).makespan for order in (sizes, sorted(sizes)))
    bound = lower_bound(plan, profile, cluster, sizes)
    assert bound <= best <= far * bound < shuffled


def test_a_transfer_that_limits_is_in_the_bound():
    plan, profile, cluster = pipeline([1.0, 1.0], [1.0, 1.0], [50.0])
    sizes = [1, 2, 3, 4] * 4
    assert lower_bound(plan, profile, cluster, sizes) > 50 * sum(sizes)


def test_nothing_to_do_takes_nothing():
    assert lower_bound(*pipeline([1.0], [2.0]), []) == 0


@settings(max_examples=30)
@given(runs(), SIZES)
def test_what_is_lost_to_sizes_is_part_of_the_bubble(run, sizes):
    plan, profile, cluster, _ = run
    found = forecast(plan, profile, cluster, sizes)
    parts = found.bubble
    assert parts.imbalance + parts.dependency + parts.communication + parts.sizes == pytest.approx(
        found.trace.bubble_fraction, abs=1e-9
    )
    assert found.lower_bound_seconds <= found.trace.makespan * (1 + 1e-9)
    balanced = simulate(plan, profile.averaged(sizes), cluster, [1.0] * len(sizes)).makespan
    assert found.balanced_seconds == pytest.approx(balanced)


def test_equal_minibatches_lose_nothing_to_sizes():
    found = forecast(*pipeline([1.0] * 3, [2.0] * 3, [0.5, 0.5]), [4] * 12)
    assert found.bubble.sizes == 0 and found.balanced_seconds == found.trace.makespan


def test_an_average_minibatch_costs_the_mean_in_every_layer():
    _, profile, _ = pipeline([1.0, 2.0], [2.0, 3.0], [5.0])
    sized = replace(profile, sizes=(2.0, 6.0))
    mean = sized.averaged([2.0, 6.0, 10.0])
    assert mean.cost(1, "d", 777.0).forward == pytest.approx(12.0)
    assert mean.cost(0, "d", 0.0).output_bytes == pytest.approx(30.0)
