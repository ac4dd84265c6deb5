"""Plans with cuts or devices given: the rest is the best there is, by brute force; what cannot be is said."""

from itertools import combinations, product

import pytest
from coded import raises

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.planning import Problem, partition
from sparsepipe.planning.by_hand import by_hand, with_cuts, with_groups

SECONDS = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0)
NUM_LAYERS = len(SECONDS)


def problem(schedule="1f1b"):
    layers = tuple(Layer(f"conv{k}", "", 1e6 * (k + 1)) for k in range(NUM_LAYERS))

    def costs(factor):
        samples = (CostSample(0, t * factor / 3, 2 * t * factor / 3, 2e8 / (k + 1)) for k, t in enumerate(SECONDS))
        return tuple(LayerCost((sample,)) for sample in samples)

    fast, slow = DeviceType("fast"), DeviceType("slow")
    cluster = Cluster((Node("a", (fast,) * 2, Link(1e9)), Node("b", (slow,) * 2, Link(1e9))), Link(2e8))
    return Problem(Profile(LayerGraph.chain(layers), {"fast": costs(1), "slow": costs(1.7)}), cluster, schedule)


def compute(plan):
    return max(stage.compute_seconds + stage.averaging_seconds for stage in plan.estimate.stages)


def test_devices_for_given_cuts_are_the_best_by_brute_force():
    given = problem()
    for ends in ((3,), (1, 5), (2, 4, 5)):
        number = len(ends) + 1
        every = [counts for counts in product(range(3), repeat=2) if any(counts)]
        groups = [g for g in product(every, repeat=number) if all(sum(c) <= 2 for c in zip(*g, strict=True))]
        best = min(compute(by_hand(given, ends, g)) for g in groups)
        assert compute(with_cuts(given, ends)) == pytest.approx(best)


@pytest.mark.parametrize("groups", [((1, 0), (0, 1)), ((2, 0), (0, 2)), ((0, 2), (1, 0), (1, 0)), ((1, 1), (1, 1))])
def test_cuts_for_given_devices_are_the_best_by_brute_force(groups):
    given = problem()
    every = combinations(range(1, NUM_LAYERS), len(groups) - 1)
    best = min(by_hand(given, ends, groups).estimate.period_seconds for ends in every)
    found = with_groups(given, groups)
    assert found.estimate.period_seconds == pytest.approx(best)
    assert found.planner == "by hand"


def test_nothing_by_hand_beats_the_optimum():
    given = problem()
    best = partition(given.profile, given.cluster).estimate.period_seconds
    assert with_groups(given, ((2, 0), (0, 2))).estimate.period_seconds >= best * (1 - 1e-12)
    assert with_cuts(given, (3,)).estimate.period_seconds >= best * (1 - 1e-12)


@pytest.mark.parametrize(
    ("ends", "groups", "error"),
    [
        ((3, 3), ((1, 0), (1, 0), (0, 1)), ("by_hand.cuts_misplaced",)),
        ((0,), ((1, 0), (0, 1)), ("by_hand.cuts_misplaced",)),
        ((3,), ((2, 0), (1, 0)), ("by_hand.too_many_devices", "3", "fast", "2")),
        ((3,), ((2, 0), (0, 0)), ("by_hand.stage_empty", "1")),
        ((3,), ((2, 0),), ("by_hand.group_count", "1 cut", "2 stages", "1")),
        ((3,), ((2,), (1,)), ("by_hand.count_malformed", "2")),
    ],
)
def test_what_cannot_be_is_said(ends, groups, error):
    with raises(*error):
        by_hand(problem(), ends, groups)


def test_more_stages_than_devices_or_layers_are_refused():
    with raises("by_hand.too_many_cuts", "5 stages", "4 devices"):
        with_cuts(problem(), (1, 2, 3, 4))
    with raises("planner.too_many_stages", "8 stages", "7 layers"):
        with_groups(Problem(problem().profile, Cluster.uniform(8, device_type="fast")), ((1,),) * 8)
