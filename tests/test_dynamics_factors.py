"""Devices and links as they are now, as planners see them."""

import pytest
from coded import raises

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
    Plan,
    Profile,
    Stage,
    partition,
    simulate,
)
from sparsepipe.monitoring import Factors
from sparsepipe.values.profile import StepOverhead

GRAPH = LayerGraph.from_ids([Layer(name, name, 1e6) for name in "abcd"], [("a", "b"), ("b", "c"), ("c", "d")])
COST = LayerCost((CostSample(100, 0.01, 0.02, 1e6, forward_spread=0.001), CostSample(1000, 0.1, 0.2, 1e7)))
PROFILE = Profile(
    GRAPH, {"cpu": (COST,) * 4}, (100.0, 1000.0), {}, {"cpu": 1e-9}, {"cpu": StepOverhead(1e-3, 2e-3, 3e-3)}
)
CPU = DeviceType("cpu", 1e9)
TWO_NODES = Cluster((Node("a", (CPU, CPU), Link(1e9, 1e-6)), Node("b", (CPU, CPU), Link(1e9, 1e-6))), Link(1e8, 1e-4))


def test_a_slow_rank_is_a_device_type_of_its_own():
    profile, cluster = Factors((1.0, 2.0, 1.0, 2.001)).scaled(PROFILE, TWO_NODES)
    assert [device.type for device in cluster.devices] == [CPU, DeviceType("cpu ×2", 1e9)] * 2
    for size in (100, 400, 5000):
        for name in ("forward", "backward", "forward_spread"):
            slow, own = (getattr(profile.cost(2, kind, size), name) for kind in ("cpu ×2", "cpu"))
            assert slow == pytest.approx(2 * own)
        assert profile.cost(2, "cpu ×2", size).output_bytes == profile.cost(2, "cpu", size).output_bytes
    assert profile.update_rates == {"cpu": 1e-9, "cpu ×2": 2e-9}
    assert profile.step_overheads["cpu ×2"] == StepOverhead(2e-3, 4e-3, 6e-3)
    assert profile.sizes == PROFILE.sizes and profile.warnings == PROFILE.warnings


def test_nothing_changed_changes_nothing():
    assert Factors.none(4).scaled(PROFILE, TWO_NODES) == (PROFILE, TWO_NODES)
    assert not Factors.none(4).changed and Factors((1.0, 1.1)).changed and Factors((1.0, 1.0), {(0, 1): 2.0}).changed


def test_the_slowest_pair_counts_for_the_links_it_shares():
    _, cluster = Factors((1.0,) * 4, {(0, 1): 4.0, (1, 2): 10.0, (0, 2): 2.0}).scaled(PROFILE, TWO_NODES)
    assert cluster.link(0, 1) == Link(2.5e8, 4e-6)
    assert cluster.link(2, 3) == Link(1e9, 1e-6)
    assert cluster.link(0, 3) == Link(1e7, 1e-3)


def test_a_link_is_faster_only_where_all_pairs_are():
    quick = {(0, 2): 0.5, (0, 3): 0.5, (1, 2): 0.25}
    _, cluster = Factors((1.0,) * 4, quick).scaled(PROFILE, TWO_NODES)
    assert cluster.network == TWO_NODES.network
    _, cluster = Factors((1.0,) * 4, {**quick, (1, 3): 0.5}).scaled(PROFILE, TWO_NODES)
    assert cluster.network == Link(2e8, 5e-5)


def test_planners_and_simulator_take_it():
    """A device that takes three times as long gets a quarter of the work, where it had half."""
    cluster = Cluster.uniform(2, device_type="cpu")
    slow, now = Factors((1.0, 3.0)).scaled(PROFILE, cluster)
    plan = Plan((Stage(("a", "b"), (0,)), Stage(("c", "d"), (1,))))
    before, after = (simulate(plan, one, two, [1000.0] * 20).makespan for one, two in ((PROFILE, cluster), (slow, now)))
    assert after > 2.5 * before
    better = partition(slow, now, planner="optimal")
    assert simulate(better, slow, now, [1000.0] * 20).makespan < 0.7 * after


def test_json_round_trip():
    factors = Factors((1.0, 2.5), {(0, 1): 3.0})
    assert Factors.from_json(factors.to_json()) == factors
    assert factors.link(1, 0) == 3.0 and factors.link(0, 1) == 3.0 and Factors((1.0, 1.0)).link(0, 1) == 1.0


GOOD = Factors((1.0, 2.0), {(0, 1): 3.0}).to_json()


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "expected an object with format"),
        ({**GOOD, "format": "sparsepipe-plan-1"}, "expected an object with format"),
        ({**GOOD, "ranks": "1, 2"}, "expected a list of numbers"),
        ({**GOOD, "ranks": []}, "rank factors are missing"),
        ({**GOOD, "ranks": [1, "2"]}, "factor of rank 1 is '2'"),
        ({**GOOD, "ranks": [1, True]}, "factor of rank 1 is True"),
        ({**GOOD, "ranks": [1, float("nan")]}, "factor of rank 1 is nan"),
        ({**GOOD, "ranks": [1, 0]}, "a factor from 0.01 to 1e"),
        ({**GOOD, "links": [[0, 1]]}, "expected a list of [rank, rank, factor]"),
        ({**GOOD, "links": [[1, 0, 2]]}, "the lower first"),
        ({**GOOD, "links": [[0, 2, 2]]}, "expected two of the 2 ranks"),
        ({**GOOD, "links": [[0, 1, -2]]}, "finite number, 0 or more"),
    ],
)
def test_damaged_factors_are_refused_in_one_line(document, told):
    with pytest.raises(InputError) as error:
        Factors.from_json(document)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_other_devices_are_refused():
    with raises("factors.rank_count", "2 ranks", "4 devices"):
        Factors((1.0, 2.0)).scaled(PROFILE, TWO_NODES)
    with raises("profile.no_device_type", device_type="gpu"):
        Factors((2.0,)).scaled(PROFILE, Cluster.uniform(1, device_type="gpu"))
