"""Decisions of the replication rules: 10,000 random contributions of each, with stops, deaths and joins; by hand."""

import random
from collections import Counter

import pytest
from coded import raises
from replication_worlds import World

from sparsepipe.values.replication import RULES, parse_rule

OPTIONS = {
    "all-reduce": ["all-reduce"],
    "partial-reduce": [
        "partial-reduce",
        "partial-reduce:wait=0.01,rounds=3",
        "partial-reduce:wait=0",
        "partial-reduce:wait=0.005,least_wait=0.005,most_wait=0.005,rounds=1",
        "partial-reduce:rounds=2",
    ],
    "ad-psgd": ["ad-psgd"],
    "wsp": ["wsp", "wsp:bound=0", "wsp:bound=1,scale=1"],
    "local-sgd": ["local-sgd"],
    "diloco": ["diloco"],
    "quorum": [
        "quorum",
        "quorum:quorum=1,grace=0.01",
        "quorum:quorum=2,grace=0",
        "quorum:grace=0.02,adaptive=true",
        "quorum:grace=1",
    ],
}
SIZES = (2, 3, 4, 5, 8, 9, 13)
MEANS = [given for name in ("all-reduce", "partial-reduce", "ad-psgd", "local-sgd") for given in OPTIONS[name]]


def test_every_rule_is_tried():
    assert OPTIONS.keys() == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_what_must_hold_of_ten_thousand_random_contributions(name):
    happened = Counter()
    worlds = [(given, size, late) for given in OPTIONS[name] for size in SIZES for late in (False, True)]
    each = 10_000 // len(worlds) + 1
    for place, (given, size, late) in enumerate(worlds):
        world = World(parse_rule(given), size, seed=place, late=late, equal_samples=place % 3 == 0)
        world.run(each)
        before = {(p, number) for p, number in world.waiting.items()}
        world.faults = False
        world.run(50 * size)
        assert not before & {(p, number) for p, number in world.waiting.items()}, "decided while all go on"
        world.end()
        happened += world.happened
    assert happened["contributions"] >= 10_000
    assert min(happened["stops"], happened["deaths"], happened["joins"]) > 50


@pytest.mark.parametrize("given", [given for options in OPTIONS.values() for given in options])
def test_decisions_depend_on_times_and_not_on_who_asks_how_often(given):
    """A coordinator that sees to a deadline late decides what a simulator does, which is never late."""
    world = World(parse_rule(given), 5, seed=1, faults=False).run(500)
    groups = world.rule.groups(5, seed=1)
    decided = []
    for what, pipeline, now, samples in world.calls:
        if what == "contribute":
            decided += groups.contribute(pipeline, now=now, samples=samples)
    decided += groups.expire(now=world.now)  # the world ended before it did this
    assert decided[: len(world.merges)] == world.merges and len(decided) <= len(world.merges) + 1


@pytest.mark.parametrize("given", MEANS)
@pytest.mark.parametrize("size", [2, 5, 9, 40])
def test_averages_keep_the_mean_and_bring_all_together(given, size):
    world = World(parse_rule(given), size, seed=2, faults=False).run(60 * size)
    values = [random.Random(3).uniform(-1, 1) for _ in range(size)]
    mean = sum(values) / size
    for merge in world.merges:
        members = [*merge.members, *([] if merge.partner is None else [merge.partner])]
        average = sum(weight * values[m] for weight, m in zip(merge.weights, members, strict=True))
        for member in members:
            values[member] = average
    assert sum(values) / size == pytest.approx(mean, abs=1e-12)
    assert max(abs(value - mean) for value in values) < 0.02


@pytest.mark.parametrize("given", ["partial-reduce", "quorum:grace=0.01", "all-reduce", "local-sgd", "diloco"])
def test_all_who_are_ready_together_are_one_merge_of_equal_weights(given):
    groups = parse_rule(given).groups(4)
    for step in range(100):
        decided = [groups.contribute(pipeline, now=step, samples=8) for pipeline in (2, 0, 3, 1)]
        assert decided[:3] == [[], [], []]
        (merge,) = decided[3]
        assert (merge.number, merge.members, merge.contributions) == (step, (0, 1, 2, 3), (step,) * 4)
        assert merge.weights == (0.25,) * 4
        assert groups.next_deadline() is None


@pytest.mark.parametrize("name", [*(name for name in RULES if name != "partial-reduce"), "partial-reduce:wait=1"])
def test_one_that_left_or_waits_cannot_contribute(name):
    groups = parse_rule(name).groups(3)
    groups.leave(1, now=0)
    with raises("replication.not_a_member", pipeline=1):
        groups.contribute(1, now=1, samples=1)
    with raises("replication.pipeline_unknown", "2", pipeline=3):
        groups.join(3, now=1)
    assert groups.leave(1, now=2) == []
    if not groups.contribute(0, now=3, samples=1):
        with raises("replication.contributes_twice", pipeline=0):
            groups.contribute(0, now=3, samples=1)


@pytest.mark.parametrize("name", ["all-reduce", "local-sgd", "diloco"])
def test_one_that_dies_is_waited_for_no_more_and_one_that_joins_is(name):
    groups = parse_rule(name).groups(3)
    assert groups.contribute(0, now=0, samples=1) == groups.contribute(2, now=1, samples=1) == []
    (merge,) = groups.leave(1, now=2)
    assert merge.members == (0, 2)
    assert groups.contribute(0, now=3, samples=1) == []
    assert groups.join(1, now=4) == groups.contribute(2, now=5, samples=1) == []
    (merge,) = groups.contribute(1, now=6, samples=1)
    assert (merge.members, merge.contributions) == ((0, 1, 2), (1, 0, 1))


def test_partial_reduce_waits_as_sdpipe_does():
    """SDPipe: 1 ms at first; twice as long after a group of one, to 10 ms, else 0.9 times, to 0.01 ms."""
    groups = parse_rule("partial-reduce:wait=0.001,rounds=1000").groups(4)

    def alone(pipeline, now):
        assert groups.contribute(pipeline, now=now, samples=1) == []
        budget = groups.next_deadline() - now
        assert [merge.members for merge in groups.expire(now=now + budget)] == [(pipeline,)]
        return budget

    for pipeline, arrival in ((2, 0.0), (0, 0.0005), (3, 0.0009)):
        assert groups.contribute(pipeline, now=arrival, samples=1) == []
        assert groups.next_deadline() == 0.001  # the first one's, who joins it does not matter
    assert groups.expire(now=0.00099) == []
    (merge,) = groups.expire(now=0.001)
    assert merge.members == (0, 2, 3) and not merge.forced
    expected = [0.0009 * 2**k for k in range(4)] + [0.01] * 3
    assert [alone(0, now) for now in range(1, 8)] == pytest.approx(expected)
    for now in range(8, 100):
        for pipeline in range(4):
            decided = groups.contribute(pipeline, now=now, samples=1)
        assert len(decided) == 1
    assert groups.contribute(1, now=100, samples=1) == []
    assert groups.next_deadline() - 100 == pytest.approx(1e-5)


@pytest.mark.parametrize(("rule", "share"), [("", 0.5), (":overlap=false", 0.05), (":patience=0.2", 0.2)])
def test_partial_reduce_waits_a_share_of_a_pipelines_own_pace(rule, share):
    groups = parse_rule(f"partial-reduce{rule}").groups(2)
    assert groups.contribute(0, now=0.0, samples=1) == [] and groups.next_deadline() == 0.0  # its pace is not known yet
    assert [merge.members for merge in groups.expire(now=0.0)] == [(0,)]
    for now, pace in ((4.0, 4.0), (5.0, 1.0), (15.0, 10.0)):
        assert groups.contribute(0, now=now, samples=1) == []
        assert groups.next_deadline() == pytest.approx(now + share * pace)
        groups.expire(now=now + share * pace)


def test_partial_reduce_forces_two_halves_together():
    """0 with 1 and 2 with 3, for ever: in the last of ten rounds somebody waits for one of the other half."""
    groups = parse_rule("partial-reduce:wait=0.01,rounds=10").groups(4)
    merges = []
    for step in range(40):
        for pipeline in (0, 1) if step % 2 == 0 else (2, 3):
            merges += groups.contribute(pipeline, now=step, samples=1)
        deadline = groups.next_deadline()
        if deadline is None:
            break
        merges += groups.expire(now=deadline)
    assert [merge.members for merge in merges] == [(0, 1), (2, 3)] * 8 + [(0, 1)]  # 34 of at most 40 contributions
    assert groups.expire(now=10**6) == []  # 2 and 3 wait, however long
    (merge,) = groups.contribute(1, now=10**6, samples=1)
    assert merge.forced and merge.members == (1, 2, 3)
    assert groups.contribute(0, now=10**6, samples=1) == [] and groups.next_deadline() is not None


def test_partners_at_random_are_any_and_are_those_of_the_seed():
    def partners(seed):
        groups = parse_rule("ad-psgd").groups(5, seed=seed)
        return [groups.contribute(p, now=step, samples=1)[0].partner for step in range(400) for p in range(5)]

    counts = Counter(zip([0, 1, 2, 3, 4] * 400, partners(0), strict=True))
    assert len(counts) == 20 and all(60 < count < 140 for count in counts.values())  # 100 each, deviation 9
    assert partners(0) == partners(0) != partners(1)


def test_waves_are_bound_to_the_slowest():
    groups = parse_rule("wsp:bound=2").groups(3)
    for wave in range(3):
        assert groups.may_begin(0)
        (merge,) = groups.contribute(0, now=wave, samples=1)
        assert merge.weights == (1 / 3, 1 - 1 / 3)
    assert not groups.may_begin(0) and groups.may_begin(1) and groups.may_begin(2)
    groups.contribute(1, now=4, samples=1)
    assert not groups.may_begin(0)  # 2 is still at the beginning
    groups.leave(2, now=5)
    assert groups.may_begin(0)  # two ahead of 1
    groups.join(2, now=6)
    assert groups.may_begin(0) and groups.may_begin(2)  # 2 begins where the slowest is
    groups.contribute(0, now=7, samples=1)
    groups.contribute(1, now=8, samples=1)
    assert not groups.may_begin(0)


def test_a_bound_of_zero_is_bulk_synchronous():
    groups = parse_rule("wsp:bound=0").groups(3)
    for step in range(5):
        for pipeline in range(3):
            assert groups.may_begin(pipeline)
            groups.contribute(pipeline, now=step, samples=1)
            assert groups.may_begin(pipeline) == (pipeline == 2)


def test_a_quorum_waits_its_grace_and_counts_samples():
    groups = parse_rule("quorum:quorum=2,grace=0.5").groups(4)
    assert groups.contribute(3, now=0, samples=30) == [] and groups.next_deadline() is None
    assert groups.contribute(0, now=10, samples=10) == [] and groups.next_deadline() == 10.5
    assert groups.contribute(1, now=10.5, samples=40) == []  # just in time
    (merge,) = groups.contribute(2, now=10.6, samples=8)
    assert (merge.members, merge.weights) == ((0, 1, 3), (0.125, 0.5, 0.375))
    assert groups.leave(0, now=11) == [] and groups.next_deadline() is None
    assert groups.contribute(1, now=12, samples=0) == [] and groups.next_deadline() == 12.5
    (merge,) = groups.contribute(3, now=12.1, samples=24)  # all that live
    assert merge.weights == (0, 0.25, 0.75)


def test_a_window_whose_quorum_is_lost_opens_again():
    groups = parse_rule("quorum:quorum=2,grace=1").groups(4)
    groups.contribute(0, now=0, samples=1)
    groups.contribute(1, now=0.5, samples=1)
    assert groups.next_deadline() == 1.5
    assert groups.leave(1, now=1) == [] and groups.next_deadline() is None
    groups.contribute(2, now=7, samples=1)
    assert groups.next_deadline() == 8


def test_a_merge_of_no_samples_counts_all_alike():
    groups = parse_rule("quorum").groups(2)
    groups.contribute(0, now=0, samples=0)
    (merge,) = groups.contribute(1, now=0, samples=0)
    assert merge.weights == (0.5, 0.5)


def test_an_adaptive_window_does_not_wait_for_those_who_cannot_come_in_it():
    groups = parse_rule("quorum:quorum=2,grace=0.5,adaptive=true").groups(3)
    for now in (0, 1):  # 2 comes only every ten seconds
        groups.contribute(0, now=now, samples=1)
        assert groups.contribute(1, now=now, samples=1) == []  # nothing is known of 2: it may come
        assert [merge.members for merge in groups.expire(now=now + 0.5)] == [(0, 1)]
    for now in (2, 12):
        groups.contribute(0, now=now, samples=1)
        assert groups.contribute(1, now=now, samples=1) == []
        (merge,) = groups.contribute(2, now=now + 0.2, samples=1)
        assert merge.members == (0, 1, 2)
    groups.contribute(0, now=13, samples=1)
    (merge,) = groups.contribute(1, now=13, samples=1)  # 2 is expected at 22.2
    assert merge.members == (0, 1)
    groups.contribute(0, now=22, samples=1)
    assert groups.contribute(1, now=22, samples=1) == []
    assert groups.next_deadline() == 22.5
