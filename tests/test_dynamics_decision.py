"""Decisions: what changes hands, what a change costs and gains as the simulator says, and when it is left alone."""

import json
import time
from dataclasses import replace

import pytest
from coded import raises
from dynamics_worlds import cpus, network
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import Link, Plan, Profile, Stage, partition
from sparsepipe.monitoring import Factors
from sparsepipe.monitoring.change_point import seconds_of, simulate_plans
from sparsepipe.monitoring.decision import Caution, decide
from sparsepipe.monitoring.moves import Pace, largest_payload, moves_between, nearest, transfer_seconds
from sparsepipe.values.cluster import Cluster, DeviceType, Node


def sizes(plan):
    return [len(stage.layers) for stage in plan.stages]


def cut(profile, *counts, ranks=None):
    """A plan with so many layers in each stage."""
    ids, first, stages = [layer.id for layer in profile.graph.layers], 0, []
    for k, count in enumerate(counts):
        own = ranks[k] if ranks else (k,)
        stages.append(Stage(tuple(ids[first : first + count]), own, (), ("cpu",) * len(own), ("local",) * len(own)))
        first += count
    return Plan(tuple(stages))


def test_what_changes_hands_travels_once_from_one_that_has_it():
    profile = network(6, parameter_bytes=10)
    (move,) = moves_between(cut(profile, 3, 3), cut(profile, 2, 4), profile, cpus(2))
    assert (move.source, move.target, move.layers, move.num_bytes) == (0, 1, ("l2",), 20.0), "momentum travels too"
    assert not moves_between(cut(profile, 3, 3), cut(profile, 3, 3), profile, cpus(2))
    wider = cut(profile, 3, 3, ranks=[(0, 2), (1,)])
    assert [
        (m.source, m.target, len(m.layers)) for m in moves_between(cut(profile, 3, 3), wider, profile, cpus(3))
    ] == [(0, 2, 3)]
    narrower = cut(profile, 6, ranks=[(1,)])
    moves = moves_between(wider, narrower, profile, cpus(3))
    assert {move.source for move in moves} == {0, 2}, "two that have it share the sending"
    assert sorted(id for move in moves for id in move.layers) == ["l0", "l1", "l2"]


def test_state_comes_from_the_own_node_where_it_can():
    profile, kind = network(4), DeviceType("cpu")
    cluster = Cluster((Node("a", (kind,) * 2, Link(1e9)), Node("b", (kind,) * 2, Link(1e9))), Link(1e6))
    before = cut(profile, 2, 2, ranks=[(0, 2), (1,)])
    after = cut(profile, 2, 2, ranks=[(3,), (1,)])
    (move,) = moves_between(before, after, profile, cluster)
    assert (move.source, move.target) == (2, 3)
    assert transfer_seconds([move], cluster) == pytest.approx(move.num_bytes / 1e9)


def test_transfers_of_different_ranks_are_at_once_and_of_one_in_turn():
    profile = network(8, parameter_bytes=5e8)
    before, after = cut(profile, 4, 4, ranks=[(0,), (1,)]), cut(profile, 4, 4, ranks=[(2,), (3,)])
    moves = moves_between(before, after, profile, cpus(4))
    assert transfer_seconds(moves, cpus(4)) == pytest.approx(4.0)
    gathered = moves_between(before, cut(profile, 8, ranks=[(2,)]), profile, cpus(4))
    assert transfer_seconds(gathered, cpus(4)) == pytest.approx(8.0)


def test_short_transfers_tell_of_delays_and_not_of_bandwidth():
    profile, slow = network(4, parameter_bytes=1e8), Factors((1.0, 1.0), {(0, 1): 100.0})
    moves = moves_between(cut(profile, 2, 2), cut(profile, 1, 3), profile, cpus(2))  # 0.2 s on its link
    seconds = [transfer_seconds(moves, cpus(2), slow, seen_bytes=size) for size in (1e5, 1e7)]
    assert seconds == pytest.approx([0.2 + 99 * 1e-4, 100 * 0.2])
    assert transfer_seconds(moves, cpus(2), Factors.none(2), seen_bytes=1e5) == pytest.approx(0.2)
    assert largest_payload(cut(profile, 2, 2), profile) == 1e5 and largest_payload(cut(profile, 4), profile) == 0


def test_devices_that_are_alike_are_exchanged_so_that_little_moves():
    profile = network(9)
    plan = cut(profile, 3, 3, 3)
    turned = cut(profile, 3, 3, 3, ranks=[(2,), (0,), (1,)])
    assert nearest(plan, turned, profile, cpus(3)) == plan
    kinds = (DeviceType("cpu"), DeviceType("gpu"), DeviceType("cpu"))
    unlike = Cluster((Node("local", kinds, Link(1e9)),), Link(1e9))
    found = nearest(plan, turned, profile, unlike)
    assert [stage.ranks for stage in found.stages] == [(0,), (2,), (1,)], "a cpu may not stand in for a gpu"
    left_out = cut(profile, 5, 4, ranks=[(1,), (2,)])
    assert nearest(plan, left_out, profile, cpus(3)).stages[0].ranks == (0,), "that is left out which moves most"


def test_a_slow_device_gets_less_to_do():
    profile, cluster = network(12), cpus(2)
    plan = partition(profile, cluster)
    assert sizes(plan) == [6, 6]
    found = decide(plan, profile, cluster, Factors((1.0, 2.0)), minibatches_left=1000)
    assert found.changes and sorted(sizes(found.plan)) == [4, 8]
    slow = next(stage for stage in found.plan.stages if stage.ranks == (1,))
    assert len(slow.layers) == 4 and slow.device_types == ("cpu",), "a plan names what devices are, not how they are"
    assert found.plan.check(profile.graph, cluster) and "33.3% faster" in found.why
    assert 0 < found.cost_seconds < found.gain_seconds == pytest.approx(1000 * 0.12, rel=0.01)
    assert found.moved_bytes == sum(move.num_bytes for move in found.moves) > 0
    json.dumps(found.to_json(), allow_nan=False)


def test_a_slow_link_is_seen():
    """On a link a thousand times as slow one device is faster than two."""
    profile, cluster = network(12), cpus(2, bandwidth=1e7)
    plan = partition(profile, cluster)
    assert len(plan.ranks) == 2
    found = decide(plan, profile, cluster, Factors((1.0, 1.0), {(0, 1): 1000.0}), minibatches_left=20_000)
    assert found.changes and len(found.plan.ranks) == 1


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 1.02), (1.03, 1.0)])
def test_what_measurements_cannot_tell_moves_nothing(factors):
    profile, cluster = network(300), cpus(2)
    plan = partition(profile, cluster)
    found = decide(plan, profile, cluster, Factors(factors), minibatches_left=10**6)
    assert not found.changes and found.plan == plan and not found.moves and found.why


def test_a_change_that_does_not_pay_is_not_made():
    profile, cluster = network(12), cpus(2)
    plan = partition(profile, cluster)
    some = (0, 1, 2, 5, 10, 50, 500)
    left = {n: decide(plan, profile, cluster, Factors((1.0, 2.0)), minibatches_left=n) for n in some}
    made = [found.changes for found in left.values()]
    assert made == sorted(made) and not any(made[:3]) and all(made[-3:])
    for found in left.values():
        assert found.changes == (found.gain_seconds > 1.5 * found.cost_seconds)
    dear = Caution(other_seconds=100.0)
    assert not decide(plan, profile, cluster, Factors((1.0, 2.0)), minibatches_left=500, caution=dear).changes


def test_gains_are_in_proportion_to_what_a_minibatch_takes_as_measured():
    profile, cluster = network(12), cpus(2)
    plan = partition(profile, cluster)
    expected, measured = (
        decide(plan, profile, cluster, Factors((1.0, 2.0)), minibatches_left=100, seconds_per_minibatch=seconds)
        for seconds in (None, 3.6)
    )
    assert measured.gain_seconds == pytest.approx(10 * expected.gain_seconds)


def test_what_the_plan_says_beside_its_stages_stays():
    profile, cluster = network(12), cpus(2)
    plan = replace(partition(profile, cluster), weights="vertical-sync", accumulation=2)
    found = decide(plan, profile, cluster, Factors((1.0, 3.0)), minibatches_left=1000)
    assert found.changes and (found.plan.weights, found.plan.accumulation) == ("vertical-sync", 2)


def test_stages_in_a_v_move_to_the_faster_device_and_stay_a_v():
    profile, cluster = network(12), cpus(2)
    plan = partition(profile, cluster, planner="model-parallel", schedule="zbv", num_microbatches=4)
    found = decide(plan, profile, cluster, Factors((1.0, 2.0)), minibatches_left=1000)
    layers = [sum(len(found.plan.stages[k].layers) for k in found.plan.stages_of(rank)) for rank in (0, 1)]
    assert found.changes and found.plan.schedule == "zbv" and layers[0] > layers[1]
    assert sorted(found.plan.positions) == [(0, 3), (1, 2)]


def test_a_plan_for_other_devices_is_refused_in_a_line():
    profile = network(12)
    plan = partition(profile, cpus(2))
    with raises("factors.rank_count", "3 ranks", "2 devices"):
        decide(plan, profile, cpus(2), Factors.none(3), minibatches_left=10)
    with raises("plan.violations", "the plan cannot run"):
        decide(plan, profile, cpus(1), Factors.none(1), minibatches_left=10)


layers = st.lists(st.integers(1, 9).map(lambda k: k / 100), min_size=4, max_size=10)
slowness = st.lists(st.sampled_from([1.0, 1.0, 1.3, 2.0, 4.0]), min_size=4, max_size=4)
schedules = st.sampled_from(["1f1b", "1f1b-flush", "gpipe"])


@fuzzed(16)
@given(layers, slowness, st.integers(2, 4), schedules, st.integers(20, 400))
def test_the_gain_less_the_cost_is_what_simulating_both_gives(seconds, slow, count, schedule, left):
    """Within the tail of a pipeline, which rounds of replicas and unlike stages fill and drain differently."""
    profile, cluster = network(seconds=seconds), cpus(count)
    plan = partition(profile, cluster, schedule=schedule)
    factors = Factors(tuple(slow[:count]))
    unit = plan.num_microbatches if plan.updates_by_step else 1
    before, left = 12 * unit, left // unit * unit or unit
    found = decide(plan, profile, cluster, factors, minibatches_left=left)
    now, devices = factors.scaled(profile, cluster)
    kinds = {device.rank: device.type.name for device in devices.devices}
    then, after = (
        replace(one, stages=tuple(replace(s, device_types=tuple(kinds[r] for r in s.ranks)) for s in one.stages))
        for one in (plan, found.plan)
    )
    total = [1.0] * (before + left)
    stayed = seconds_of(simulate_plans([(0, then)], now, devices, total))
    if not found.changes:
        assert found.plan == plan
        return
    moved = seconds_of(simulate_plans([(0, then), (before, after)], now, devices, total))
    tail = 4 * max(Pace.of(one, now, devices).seconds_per_minibatch * len(one.ranks) for one in (then, after))
    assert stayed - moved == pytest.approx(found.gain_seconds - found.cost_seconds, abs=tail + 0.02 * stayed)
    assert moved < stayed + tail


@fuzzed(12)
@given(layers, slowness, st.integers(2, 4))
def test_who_has_decided_does_not_change_their_mind(seconds, slow, count):
    """Asked again with the same devices, or nearly, the new plan stays."""
    profile, cluster = network(seconds=seconds), cpus(count)
    plan, factors = partition(profile, cluster), Factors(tuple(slow[:count]))
    found = decide(plan, profile, cluster, factors, minibatches_left=10_000)
    again = decide(found.plan, profile, cluster, factors, minibatches_left=10_000, known=(plan,))
    assert not again.changes, again.why


@pytest.mark.slow
def test_eight_unlike_devices_are_answered_soon(shared_reference):
    """In a second on a machine that does nothing else: a limit that load cannot exceed is asserted."""
    path = shared_reference / "profiles/minkvgg/minkvgg_v0.02_b64_RTX/graph.txt"
    profile, cluster = Profile.load(path, device_type="cpu"), cpus(8)
    plan = partition(profile, cluster)
    start = time.process_time()
    found = decide(plan, profile, cluster, Factors(tuple(1 + 0.3 * k for k in range(8))), minibatches_left=1000)
    assert found.changes and time.process_time() - start < 10
