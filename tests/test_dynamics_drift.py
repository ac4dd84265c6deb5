"""Drift of ranks and links, on simulated runs whose sizes vary tenfold: laws of detection, and what is no drift."""

import math
import random

import pytest
from coded import mentions, raises
from drifting_runs import LINK, MEASURED, PROFILE, Noise, Piece, as_measured, cluster_with, drifting, halves

from sparsepipe import Cluster, DeviceType, Link, Node, Plan, Profile, Stage, simulate
from sparsepipe.monitoring import Alarm, Watch
from sparsepipe.monitoring.drift import Series
from sparsepipe.monitoring.factors import LeftOutWork, left_out_of
from sparsepipe.monitoring.predictions import Expected

SEEDS = (0, 1, 2)
SLOW, USUAL = 150, 60  # minibatches of a run before the change, and after it


def watched(run, plan=None, *, simulated=True, cluster=None):
    spans, sizes = run
    watch = Watch(PROFILE, cluster or cluster_with(), plan or halves(), simulated=simulated)
    watch.see(spans, sizes)
    return watch


@pytest.mark.parametrize(("factor", "within"), [(2.0, 10), (1.3, 40)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_slow_device_is_found(factor, within, rank):
    for seed in SEEDS:
        slow = Piece(SLOW, f"slow:rank={rank},factor={factor}")
        watch = watched(drifting(Piece(SLOW), slow, Piece(USUAL), seed=seed))
        slower, back = watch.alarms
        assert (slower.rank, slower.link, slower.slower, slower.recovered) == (rank, None, True, False)
        assert slower.minibatch < SLOW + within and abs(slower.began - SLOW) <= 5
        assert slower.factor == pytest.approx(factor, rel=0.15) and slower.before == pytest.approx(1, rel=0.1)
        assert (back.rank, back.recovered) == (rank, True) and 2 * SLOW <= back.minibatch < 2 * SLOW + within
        assert not watch.factors.changed, "a device that is back is as usual"
        assert [one.changed for one in watch.standings if one.rank is not None] == [False, False]


def test_factors_are_those_of_the_devices_now():
    watch = watched(drifting(Piece(SLOW), Piece(SLOW, "slow:rank=1,factor=2")))
    assert watch.factors.ranks[0] == 1 and watch.factors.ranks[1] == pytest.approx(2, rel=0.1)
    profile, cluster = watch.factors.scaled(PROFILE, cluster_with())
    assert cluster.devices[1].type.name.startswith("cpu ×")
    assert sum(profile.time(range(5), cluster.devices[1].type.name)) > 1.8 * sum(profile.time(range(5), "cpu"))


@pytest.mark.slow
def test_ten_thousand_minibatches_raise_no_alarm():
    """Sizes over a tenfold range, told with an error of 5%; times with one of 8%, 2% of them interrupted."""
    spans, sizes = drifting(Piece(10_000))
    assert max(sizes.values()) > 10 * min(sizes.values())
    watch = watched((spans, sizes))
    assert not watch.alarms and all(one.minibatches >= 10_000 for one in watch.standings)
    blind = watched((spans[:8000], dict.fromkeys(sizes, 4000.0)))
    assert max(one.noise for one in blind.standings) > 5 * max(one.noise for one in watch.standings), (
        "without its size a large cloud looks slow"
    )


def test_large_clouds_are_no_slow_device():
    """Their sizes grow from the first minibatch to the last."""
    spans, sizes = drifting(Piece(300))
    assert not watched((spans, sizes)).alarms
    ordered = sorted(sizes, key=sizes.__getitem__)
    place = {number: k for k, number in enumerate(ordered)}
    moved = [span._replace(minibatch=place[span.minibatch]) for span in spans]
    assert not watched((moved, {place[number]: size for number, size in sizes.items()})).alarms
    assert watched((moved, dict.fromkeys(sizes, 4000.0))).alarms, "who looks at times alone calls it slow"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_spike_is_no_lasting_change(length):
    for seed in SEEDS:
        at = range(40, 200, 20)
        spikes = ";".join(f"slow:rank=1,factor=8,from={m},to={m + length}" for m in at)
        watch = watched(drifting(Piece(200, spikes), seed=seed, noise=Noise(interrupted=0)))
        assert not watch.alarms
        assert next(one.spikes for one in watch.standings if one.rank == 1) >= len(at) - 1


@pytest.mark.parametrize("simulated", [True, False])
def test_a_slow_link_is_no_slow_device(simulated):
    """In a run a transfer is seen where somebody waits for it: a link thirty times as slow holds everybody up."""
    times, within = (5, 10) if simulated else (30, 25)
    for seed in SEEDS:
        spans, sizes = drifting(Piece(SLOW), Piece(SLOW, link_factor=times), Piece(USUAL), seed=seed)
        watch = watched((spans if simulated else as_measured(spans), sizes), simulated=simulated)
        slower, *_, back = watch.alarms
        assert {alarm.link for alarm in watch.alarms} == {(0, 1)}
        assert SLOW < slower.minibatch < SLOW + within and slower.factor == pytest.approx(times, rel=0.3)
        assert not back.slower and 2 * SLOW <= back.minibatch < 2 * SLOW + 2 * within
        assert watch.factors.ranks == (1.0, 1.0)


def test_a_slow_link_changes_the_links_factor_alone():
    factors = watched(drifting(Piece(SLOW), Piece(SLOW, link_factor=5))).factors
    assert factors.ranks == (1.0, 1.0) and factors.link(1, 0) == pytest.approx(5, rel=0.2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slow_device_is_no_slow_link(rank):
    """What waits for a busy receiver is there long before it is taken."""
    for seed in SEEDS:
        spans, sizes = drifting(Piece(SLOW), Piece(SLOW, f"slow:rank={rank},factor=3"), seed=seed)
        watch = watched((as_measured(spans), sizes), simulated=False)
        assert [(alarm.rank, alarm.link) for alarm in watch.alarms] == [(rank, None)]


def test_a_link_that_is_much_faster_than_the_work_is_never_slow():
    """Fifty times the microseconds of memory that two processes share hold nobody up."""
    spans, sizes = drifting(Piece(SLOW), Piece(SLOW, link_factor=1.5))
    fast = cluster_with(Link(1e12, 0.0))
    quick = [
        span._replace(end=span.start + 1e-6 * (1 + 50 * (span.minibatch >= SLOW)))
        for span in spans
        if span.kind == "send"
    ]
    others = [span for span in spans if span.kind != "send"]
    assert not watched((others + quick, sizes), cluster=fast).alarms


LAYERS = [layer.id for layer in PROFILE.graph.layers]
THIRDS = (tuple(LAYERS[:8]), tuple(LAYERS[8:20]), tuple(LAYERS[20:]))
PLANS = {
    "replicated": Plan((Stage(THIRDS[0], (0, 1)), Stage(THIRDS[1] + THIRDS[2], (2,)))),
    "gpipe": halves("gpipe", num_microbatches=4),
    "split backward": halves("zero-bubble", num_microbatches=4),
    "recomputing": Plan((Stage(THIRDS[0] + THIRDS[1], (0,), recompute=True), Stage(THIRDS[2], (1,)))),
    "interleaved": Plan(
        (
            Stage(THIRDS[0], (0,)),
            Stage(tuple(LAYERS[8:12]), (1,)),
            Stage(tuple(LAYERS[12:20]), (0,)),
            Stage(THIRDS[2], (1,)),
        ),
        "interleaved-zero-bubble",
        num_microbatches=4,
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_is_watched(name):
    plan = PLANS[name]
    slow, usual = (Piece(SLOW + 2, text) for text in ("slow:rank=1,factor=2", ""))
    cluster = cluster_with(devices=len(plan.ranks))
    watch = watched(drifting(usual, slow, plan=plan), plan, cluster=cluster)
    assert [(alarm.rank, round(alarm.factor)) for alarm in watch.alarms] == [(1, 2)]
    stages = {rank: plan.stages_of(rank) for rank in plan.ranks}
    for one in watch.standings:
        if one.rank is not None:
            replicas = len(plan.stages[stages[one.rank][0]].ranks)
            assert one.minibatches == 2 * usual.minibatches / replicas, "each is counted once, with all its stages"


def test_rows_may_come_in_any_order_of_ranks_and_sizes_late():
    spans, sizes = drifting(Piece(SLOW), Piece(SLOW, "slow:rank=1,factor=2"))
    whole = watched((spans, sizes))
    watch = Watch(PROFILE, cluster_with(), halves(), simulated=True)
    for rank in (1, 0):
        watch.see([span for span in spans if span.rank == rank], {})
    assert not watch.alarms and not watch.standings
    watch.see([], sizes)
    assert [(a.rank, a.minibatch) for a in watch.alarms] == [(a.rank, a.minibatch) for a in whole.alarms]
    assert watch.factors == whole.factors


def test_what_was_done_again_after_a_crash_counts_once():
    spans, sizes = drifting(Piece(200))
    again = [span for span in spans if span.minibatch >= 150]
    cut = [span for span in spans if span.kind != "backward" or span.minibatch < 190]
    watch = watched((cut + again, sizes))
    assert not watch.alarms and watch.standings[0].minibatches == 190 + 50


def test_it_follows_a_new_plan():
    """What is known of the devices stays; what is usual for other layers is learned anew."""
    other = Plan((Stage(tuple(LAYERS[:20]), (0,)), Stage(tuple(LAYERS[20:]), (1,))))
    slow = "slow:rank=1,factor=2"
    first, sizes = drifting(Piece(SLOW), Piece(USUAL, slow))
    more, more_sizes = drifting(Piece(SLOW, slow), Piece(USUAL), plan=other, seed=1)
    begin = SLOW + USUAL
    moved = [span._replace(minibatch=span.minibatch + begin) for span in more]
    watch = watched((first, sizes))
    watch.follow(other, first_minibatch=begin)
    watch.see(moved, {number + begin: size for number, size in more_sizes.items()})
    assert [(alarm.rank, alarm.recovered) for alarm in watch.alarms] == [(1, False), (1, True)]
    forgotten = watched((first, sizes))
    forgotten.see(moved, {number + begin: size for number, size in more_sizes.items()})
    assert len(forgotten.alarms) > 2, "times of other layers, held against those of before, look like drift"


def test_a_device_that_is_slow_from_the_beginning():
    (alarm,) = watched(drifting(Piece(60, "slow:rank=1,factor=1.6"))).alarms
    assert (alarm.rank, alarm.began) == (1, 0) and alarm.factor == pytest.approx(1.6, rel=0.1)
    assert alarm.before == 1


def test_alarms_are_sentences_and_rows():
    slow = Alarm(125, 120, 2.04, 1.0, rank=1, seconds=12.5)
    assert mentions(str(slow), "rank 1", 2, "minibatch 120", 1)
    assert mentions(str(Alarm(14, 0, 1.6, 1.0, rank=1)), "rank 1", "1.6", "minibatch 0")
    assert slow.to_json()["rank"] == 1 and "link" not in slow.to_json()
    link = Alarm(125, 120, 1.0, 5.0, link=(0, 1), recovered=True)
    assert mentions(str(link), "ranks 0", 1, 1)
    assert link.to_json()["link"] == [0, 1]


def test_what_crosses_to_another_host_is_expected_to_take_what_a_simulation_has():
    """Sockets between hosts carry less of a ReLU's output than devices of one host do: expected was the latter."""
    profile = Profile.load(MEASURED)
    kind = DeviceType(profile.device_types[0])
    cluster = Cluster((Node("a", (kind,) * 2, LINK), Node("b", (kind,), LINK)), LINK)
    layers = [layer.id for layer in profile.graph.layers]
    cuts = ((0, 8), (8, 16), (16, len(layers)))
    plan = Plan(tuple(Stage(tuple(layers[a:b]), (rank,)) for rank, (a, b) in enumerate(cuts)))
    size = float(profile.typical_sizes[0])
    expected, seen = Expected(profile, cluster, plan), set()
    for span in simulate(plan, profile, cluster, [size] * 4).spans:
        if span.kind == "send":
            forwards = "F" in span.name
            cut = span.stage + 1 if forwards else span.stage
            found = expected.transfer_seconds(size, span.rank, span.peer, forwards=forwards, cut=cut)
            assert found == pytest.approx(span.seconds, rel=1e-9)
            seen.add((forwards, cut))
    assert seen == {(forwards, cut) for forwards in (True, False) for cut in (1, 2)}
    crossing = expected.of(size).bytes
    assert crossing[True, 2, True] < 0.9 * crossing[True, 2, False], "else the two were not to be told apart"


def test_a_plan_of_another_network_is_refused():
    with raises("plan.violations", "the plan cannot run"):
        Watch(PROFILE, cluster_with(), Plan((Stage(("other",), (0,)),)))
    with raises("profile.no_device_type", device_type="gpu"):
        watched(drifting(Piece(20)), cluster=Cluster.uniform(2, device_type="gpu"))


@pytest.mark.parametrize(("work", "factors"), [(0.01, [2.0, 1.0]), (0.05, [2.0, 4.0, 1.0])])
def test_a_rank_that_the_plan_leaves_out_is_held_against_its_first_times(work, factors):
    """Whatever its piece of work takes: when it was left out it was twice as slow as its profile says."""
    spans, sizes = drifting(Piece(SLOW), Piece(20, "slow:rank=1,factor=2"))
    watch, noise = watched((spans, sizes)), random.Random(0)
    first = max(sizes) + 1
    watch.follow(Plan((Stage(halves().layers, (0,)),)), first_minibatch=first)
    assert len(watch.alarms) == 1 and watch.factors.ranks[1] == pytest.approx(2, rel=0.15)
    for place, factor in enumerate(factors):
        numbers = range(first + place * 30, first + (place + 1) * 30)
        times = [LeftOutWork(1, m, work * factor * math.exp(noise.gauss(0, 0.05)), float(m)) for m in numbers]
        watch.see([], {}, times)
        assert watch.factors.ranks[1] == pytest.approx(factor, rel=0.15)
    last = watch.alarms[-1]
    assert (last.rank, last.recovered) == (1, True) and 0 <= last.minibatch - (first + (len(factors) - 1) * 30) < 12
    assert len(watch.alarms) == len(factors)


def test_times_of_ranks_left_out_that_tell_nothing_are_passed_over():
    rows = [
        {"event": "left_out", "rank": 1, "minibatch": 3, "seconds": 2.0, "probe_seconds": 0.01},
        {"event": "left_out", "rank": 1, "minibatch": 3, "seconds": 2.0, "probe_seconds": 0.0},
        {"event": "left_out", "rank": 1, "probe_seconds": 0.01},
        {"event": "step", "minibatch": 3, "seconds": 2.0},
    ]
    assert left_out_of(rows) == [LeftOutWork(1, 3, 0.01, 2.0)]


@pytest.mark.parametrize(("beyond", "alarms"), [(1.0, True), (8.0, False)])
def test_beyond_the_measured_sizes_a_time_counts_by_what_the_profile_is_sure_of(beyond, alarms):
    """Minibatches of eight times the largest measured size that take 1.3 times as long: the law may be off by 30 %."""
    series = Series(rank=0)
    law = Expected(PROFILE, cluster_with(devices=1), Plan((Stage(tuple(x.id for x in PROFILE.graph.layers), (0,)),)))
    times = law.of(15000.0 * beyond)
    raised = [
        series.add(m, factor, 1.0, unnoticed=0.0, seconds=float(m), uncertainty=times.uncertainty)
        for m, factor in enumerate([1.0] * 40 + [1.3] * 200)
    ]
    assert any(raised) == alarms
    assert (times.uncertainty > 0.25) == (beyond > 1)
