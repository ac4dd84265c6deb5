"""Pipelines simulated together: laws that any rule keeps, closed forms, and the simulator of one plan."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from coded import raises
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
    Stage,
    simulate,
)
from sparsepipe.planning.simulator import simulate_pipelines
from sparsepipe.planning.simulator.exchange import Exchange, Routes
from sparsepipe.planning.simulator.together import Together
from sparsepipe.values.costs import MergeCosts
from sparsepipe.values.replication import RULES, parse_rule
from sparsepipe.values.replication.base import Merge
from sparsepipe.values.stragglers import Stragglers

FREE = Link()
NEVER_WAIT = ("partial-reduce", "ad-psgd", "local-sgd:every=2", "diloco:every=3", "quorum")
WAIT = ("all-reduce", "partial-reduce:overlap=false", "local-sgd:every=2,overlap=false", "diloco:overlap=false,every=1")


def network(num_layers, *, forward=1.0, parameter_bytes=1000.0, output_bytes=0.0, speeds=None):
    """Layers alike; a backward takes twice as long as a forward. Seconds grow with a minibatch's size."""
    graph = LayerGraph.chain(Layer(f"l{k}", "", parameter_bytes) for k in range(num_layers))
    costs = {
        kind: tuple(
            LayerCost(tuple(CostSample(n, n * forward * speed, 2 * n * forward * speed, output_bytes) for n in (1, 2)))
            for _ in range(num_layers)
        )
        for kind, speed in (speeds or {"d": 1.0}).items()
    }
    return Profile(graph, costs)


def like_pipelines(num_pipelines, num_stages, rule, *, link=FREE, **settings):
    """One layer a stage, one device each. Returns (pipelines, cluster)."""
    plans = tuple(
        Plan(tuple(Stage((f"l{s}",), (k * num_stages + s,)) for s in range(num_stages)), **settings)
        for k in range(num_pipelines)
    )
    cluster = Cluster.uniform(num_pipelines * num_stages, device_type="d", link=link)
    return Plan.together(plans, parse_rule(rule)), cluster


def in_order(spans):
    return sorted(spans)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "1f1b-flush", "zero-bubble", "sequential"])
@pytest.mark.parametrize("sizes", [[1.0] * 12, [1.0, 2.0, 1.5] * 4])
def test_one_pipeline_without_a_rule_is_the_simulation_of_its_plan(schedule, sizes):
    stages = (Stage(("l0", "l1"), (0, 1), (2, 1)), Stage(("l2",), (2,)), Stage(("l3",), (3, 4)))
    plan = Plan(stages, schedule, num_microbatches=4 if schedule not in ("1f1b", "sequential") else 1)
    profile = replace(network(4, output_bytes=3.0), update_rates={"d": 1e-4})
    cluster = Cluster.uniform(5, device_type="d", link=Link(10.0, 0.01))
    stragglers = Stragglers.parse("jitter:p=0.3,seconds=0.5;slow:rank=2,factor=2")
    for delays in (None, stragglers):
        alone = Together([plan], profile, cluster, sizes, rule=None, stragglers=delays)
        alone.run([0.0])
        expected = simulate(plan, profile, cluster, sizes, stragglers=delays)
        assert in_order(alone.members[0].spans()) == in_order(expected.spans)


@pytest.mark.parametrize("rule", NEVER_WAIT)
def test_pipelines_that_never_wait_train_as_fast_as_all_of_them_alone(rule):
    pipelines, cluster = like_pipelines(4, 2, rule, link=Link(1e5, 1e-3))
    for spec in ("", "slow:rank=1,factor=4", "jitter:p=0.2,seconds=2"):
        found = simulate_pipelines(pipelines, network(2), cluster, [1] * 160, stragglers=Stragglers.parse(spec))
        assert found.sum_of_paces == pytest.approx(found.own_pace, rel=1e-9)
        for one in found.pipelines:
            assert one.lost_seconds["group"] == one.lost_seconds["exchange"] == sum(one.waited_for) == 0


def test_one_of_four_that_is_four_times_as_slow_makes_all_reduce_a_quarter():
    pipelines, cluster = like_pipelines(4, 2, "all-reduce", link=Link(1e6))
    slow = Stragglers.parse("slow:rank=1,factor=4")
    found = simulate_pipelines(pipelines, network(2), cluster, [1] * 200, stragglers=slow)
    shares = [one.samples_per_second / one.own_pace for one in found.pipelines]
    assert shares[0] == pytest.approx(1, abs=0.01) and shares[1:] == pytest.approx([0.25] * 3, abs=0.01)
    for one in found.pipelines[1:]:
        assert one.waited_for[0] == pytest.approx(9 * one.minibatches, rel=0.05), "3 s of its own, 12 of the other's"
        assert sum(one.waited_for) == pytest.approx(one.lost_seconds["group"])
    for other in NEVER_WAIT:
        free = simulate_pipelines(
            replace(pipelines, replication=parse_rule(other)), network(2), cluster, [1] * 200, stragglers=slow
        )
        assert free.sum_of_paces > 3 * found.sum_of_paces


@pytest.mark.parametrize("num_pipelines", [2, 3, 5])
def test_the_period_of_all_reduce_is_work_and_exchange(num_pipelines):
    """Of one stage, 3 s of work: (n − 1)/n of 1000 bytes go out and as many come back, each way with its latency."""
    pipelines, cluster = like_pipelines(num_pipelines, 1, "all-reduce", link=Link(100.0, 0.25))
    found = simulate_pipelines(pipelines, network(1), cluster, [1] * 10 * num_pipelines)
    exchange = 2 * (0.25 + (num_pipelines - 1) / num_pipelines * 1000 / 100)
    assert found.trace.makespan == pytest.approx(10 * (3 + exchange))
    assert found.group_sizes == {num_pipelines: 10} and found.staleness == {0: 10 * num_pipelines}
    assert found.bytes == pytest.approx(10 * 2 * (num_pipelines - 1) * 1000)
    for one in found.pipelines:
        assert one.lost_seconds["exchange"] == pytest.approx(10 * exchange) and one.lost_seconds["group"] == 0
        assert one.own_pace == pytest.approx(1 / 3)


def held_up(pipelines, cluster, profile, minibatches, spec=""):
    return simulate_pipelines(pipelines, profile, cluster, [1] * minibatches, stragglers=Stragglers.parse(spec))


@pytest.mark.parametrize("spec", ["stop:rank=1,at={0},seconds=6", "slow:rank=1,factor=3,from={0},to={1}"])
def test_what_holds_all_reduce_up_once_costs_its_seconds_wherever_it_comes(spec):
    """10 · (work + exchange) + 6 s, of every pipeline. Rates of the middle half were those of nobody slow otherwise."""
    pipelines, cluster = like_pipelines(3, 1, "all-reduce", link=Link(100.0, 0.25))
    exchange = 2 * (0.25 + 2 / 3 * 1000 / 100)
    for at in range(10):
        found = held_up(pipelines, cluster, network(1), 30, spec.format(at, at + 1))
        for k, one in enumerate(found.pipelines):
            assert one.samples_per_second == pytest.approx(10 / (10 * (3 + exchange) + 6)), (at, k)
            assert one.own_pace == pytest.approx(10 / (30 + 6 * (k == 1))), (at, k)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("rule", ["all-reduce", "quorum"])
def test_a_stop_costs_about_the_same_wherever_it_comes(num_stages, rule):
    """Of 40 minibatches. All wait for it, or its pipeline alone trains fewer; filling and emptying hide a little."""
    pipelines, cluster = like_pipelines(3, num_stages, rule)
    seconds = held_up(pipelines, cluster, network(num_stages), 120).trace.makespan
    expected = 120 / (seconds + (60 if rule == "all-reduce" else 20))
    for rank in {0, num_stages - 1}:
        for at in (0, 9, 20, 24):
            found = held_up(pipelines, cluster, network(num_stages), 120, f"stop:rank={rank},at={at},seconds=60")
            assert found.sum_of_paces == pytest.approx(expected, rel=0.05), (rank, at)
    if rule == "all-reduce":  # under other rules its pipeline has no such minibatch
        found = held_up(pipelines, cluster, network(num_stages), 120, "stop:rank=0,at=39,seconds=60")
        assert found.sum_of_paces == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("rule", [*WAIT, "wsp:every=1,bound=2", "wsp:every=2,bound=8", "quorum:overlap=false"])
@pytest.mark.parametrize(
    "spec", ["slow:rank=0,factor=5", "stop:rank=1,at=2,seconds=20", "stop:rank=1,at=11,seconds=20"]
)
def test_what_waiting_takes_of_a_pace_are_the_seconds_waited(rule, spec):
    """Of one stage, where no wait is hidden. Who was too far ahead until all was handed out seemed to lose nothing."""
    pipelines, cluster = like_pipelines(3, 1, rule, link=Link(500.0))
    found = held_up(pipelines, cluster, network(1), 36, spec)
    for one in found.pipelines:
        waited = sum(one.lost_seconds[cause] for cause in ("group", "exchange", "bound"))
        assert 1 - one.samples_per_second / one.own_pace == pytest.approx(waited / one.seconds, abs=1e-9)
        assert waited <= one.seconds <= found.trace.makespan


def test_a_wait_budget_is_waited_for_and_counted():
    """Nobody else comes within 0.5 s of the quick one's updates, every 3 s; the other needs 300 s for one."""
    pipelines, cluster = like_pipelines(2, 1, "partial-reduce:wait=0.5,most_wait=0.5,rounds=1000,overlap=false")
    slow = Stragglers.parse("slow:rank=0,factor=100")
    found = simulate_pipelines(pipelines, network(1), cluster, [1] * 21, stragglers=slow)
    quick = found.pipelines[1]
    assert quick.waited_for_time == pytest.approx(0.5 * quick.minibatches)
    assert quick.samples_per_second == pytest.approx(1 / 3.5)
    assert found.group_sizes == {1: 21}, "the slow one's too, at the end"


def test_a_bound_holds_up_who_is_too_far_ahead():
    """Waves of one update, and at most 2 ahead of one that takes 10 times as long: after 3 it may take no more, and has
    2 that it took ahead. From then on it takes 3 when the slow one has made as many updates, every 90 s.

    At 1350 s the slow one has taken 48, two of them ahead, and the quick one its 50th; the last two are the slow one's,
    at 1380 and 1410 s.
    """
    pipelines, cluster = like_pipelines(2, 1, "wsp:every=1,bound=2")
    slow = Stragglers.parse("slow:rank=0,factor=10")
    found = simulate_pipelines(pipelines, network(1), cluster, [1] * 100, stragglers=slow)
    quick = found.pipelines[1]
    assert [one.minibatches for one in found.pipelines] == [50, 50]
    assert quick.samples_per_second == pytest.approx(50 / 1410)
    assert (quick.waited_for[0], quick.waited_for_end) == pytest.approx((1350 - 47 * 3, 1410 - 1359))
    assert quick.lost_seconds["bound"] == pytest.approx(1410 - 50 * 3)


@pytest.mark.parametrize(("minibatches", "waited"), [(8, (0, 0, 0)), (9, (0, 0, 27)), (11, (70, 0, 0))])
def test_a_bound_costs_two_stages_nothing_while_the_last_one_trains(minibatches, waited):
    """Each takes three at once, the quick one a fourth at 1 s. It wants a fifth at 6 s; its last stage trains until 13.

    The slow one takes its fourth at 10 s: where that is the last of all, nothing is left to wait for. It takes a fifth
    at 40 s, as it begins its third. It is not held up by time, which this rule does not know. Else its fourth wave, at
    83 s, lets the quick one go on.
    """
    pipelines, cluster = like_pipelines(2, 2, "wsp:every=1,bound=0")
    quick = held_up(pipelines, cluster, network(2), minibatches, "slow:rank=0,factor=10").pipelines[1]
    assert (quick.waited_for[0], quick.waited_for_time, quick.waited_for_end) == pytest.approx(waited)
    assert quick.lost_seconds["bound"] == pytest.approx(sum(waited))
    if minibatches == 9:  # all that it lost: by itself it needs 15 s for four, with the wait 42
        assert (quick.seconds, quick.minibatches / quick.own_pace) == pytest.approx((42, 15))


@pytest.mark.parametrize("spec", ["", "stop:rank=0,at=0,seconds=60", "stop:rank=0,at=4,seconds=60"])
def test_a_pipeline_keeps_what_its_loader_has_read_ahead(spec):
    """One that stops has the minibatch that it stops at and two more; the other takes all the others meanwhile."""
    pipelines, cluster = like_pipelines(2, 1, "partial-reduce")
    found = held_up(pipelines, cluster, network(1), 20, spec)
    at = int(spec.partition("at=")[2].partition(",")[0] or 7)
    assert len(found.taken[0]) == at + 3 and len(found.taken[1]) == 20 - at - 3
    # Each is given one before anybody reads ahead, and they take turns.
    assert [own[:3] for own in found.taken] == [(0, 2, 4), (1, 3, 5)]


@pytest.mark.parametrize("minibatches", [22, 23, 25])
def test_less_than_a_unit_goes_to_who_is_empty(minibatches):
    """Of one whose updates are of four minibatches, and one whose are of one: it takes what is left, as long as the
    other trains its last whole unit. Alone, each empties before it takes it."""
    plans = Plan((Stage(("l0",), (0,)),), "gpipe", num_microbatches=4), Plan((Stage(("l0",), (1,)),))
    pipelines, cluster = Plan.together(plans, parse_rule("quorum")), Cluster.uniform(2, device_type="d")
    found = held_up(pipelines, cluster, network(1), minibatches)
    assert len(found.taken[0]) % 4 == 0 and sum(map(len, found.taken)) == minibatches
    alone = Plan.together((plans[0], replace(plans[0], stages=(Stage(("l0",), (1,)),))), parse_rule("quorum"))
    found = held_up(alone, cluster, network(1), minibatches)
    (own,) = (own for own in found.taken if len(own) % 4)
    assert own[len(own) // 4 * 4 :] == tuple(range(minibatches // 4 * 4, minibatches))


def test_a_result_that_is_long_on_its_way_is_taken_later():
    """Weights of 1000 bytes take 2 · 5 s at 100 bytes/s; an update comes every 3 s: the fourth after has it."""
    pipelines, cluster = like_pipelines(2, 1, "local-sgd:every=1", link=Link(100.0))
    found = simulate_pipelines(pipelines, network(1), cluster, [1] * 60)
    assert set(found.staleness) == {4}
    assert found.sum_of_paces == pytest.approx(2 / 3)
    assert found.samples_per_second == pytest.approx(59 / 87), "by the clock: the first two are done after 3 s"
    assert found.group_sizes[2] == pytest.approx(30 / 4, abs=1)


@pytest.mark.parametrize("every", [4, 8])
def test_what_is_contributed_and_never_merged_is_no_average_of_one(every):
    """One is too slow to contribute before the others are through: their contributions counted as averages of one."""
    pipelines, cluster = like_pipelines(3, 1, f"local-sgd:every={every}")
    slow = Stragglers.parse("slow:rank=0,factor=30")
    found = simulate_pipelines(pipelines, network(1), cluster, [1] * 30, stragglers=slow)
    assert found.pipelines[0].minibatches < every and not found.group_sizes and not found.staleness


def test_groups_depend_on_when_pipelines_start():
    """Alike, they are always ready together; half a minibatch apart they never are, unless they wait."""
    pipelines, cluster = like_pipelines(2, 1, "partial-reduce:wait=0.1,rounds=1000")
    assert simulate_pipelines(pipelines, network(1), cluster, [1] * 40).group_sizes == {2: 20}
    apart = simulate_pipelines(pipelines, network(1), cluster, [1] * 40, starts=[0.0, 1.5])
    assert apart.group_sizes == {1: 39}, "who ends last waits for nobody then: what it contributes is in no average"
    assert [one.seconds for one in apart.pipelines] == [60, 60] and apart.trace.makespan == 61.5
    waits = replace(pipelines, replication=parse_rule("partial-reduce:wait=2,rounds=1000,overlap=false"))
    assert simulate_pipelines(waits, network(1), cluster, [1] * 40, starts=[0.0, 1.5]).group_sizes == {2: 20}
    with raises("simulation.start_count", "1", "2 pipelines"):
        simulate_pipelines(pipelines, network(1), cluster, [1] * 40, starts=[1.0])


def test_fewer_bits_are_fewer_bytes():
    sent = {}
    for bits in (32, 8):
        pipelines, cluster = like_pipelines(2, 2, f"diloco:every=2,bits={bits}")
        sent[bits] = simulate_pipelines(pipelines, network(2), cluster, [1] * 20).bytes
    assert sent[32] == 4 * sent[8] > 0


def test_unlike_cuts_exchange_what_they_have_in_common():
    """Pipeline 0 is cut after a layer, pipeline 1 after two: of 3 layers each byte goes out and back in both."""
    first = Plan((Stage(("l0",), (0,)), Stage(("l1", "l2"), (1,))))
    second = Plan((Stage(("l0", "l1"), (2,)), Stage(("l2",), (3,))))
    pipelines = Plan.together((first, second), parse_rule("all-reduce"))
    cluster = Cluster.uniform(4, device_type="d", link=Link(1000.0))
    found = simulate_pipelines(pipelines, network(3), cluster, [1] * 40)
    assert found.bytes == pytest.approx(20 * 2 * 3000)
    assert found.group_sizes == {2: 20}


def test_quick_pipelines_take_more():
    """Unlike devices: one pipeline twice as fast trains twice as many."""
    big, tiny = DeviceType("big"), DeviceType("tiny")
    cluster = Cluster((Node("n", (big, big, tiny, tiny)),))
    plans = tuple(Plan((Stage(("l0",), (2 * k,)), Stage(("l1",), (2 * k + 1,)))) for k in range(2))
    profile = network(2, speeds={"big": 1.0, "tiny": 2.0})
    plan = Plan.together(plans, parse_rule("quorum"))
    found = simulate_pipelines(plan, profile, cluster, [1] * 90)
    assert [one.minibatches for one in found.pipelines] == pytest.approx([60, 30], abs=2)
    assert simulate(plan, profile, cluster, [1] * 90) == found.trace
    with raises("option.of_one_pipeline", "epoch_minibatches"):
        simulate(plan, profile, cluster, [1] * 90, epoch_minibatches=9)


RULES_TO_TRY = (*NEVER_WAIT, *WAIT, "wsp:every=1,bound=1", "quorum:overlap=false", "ad-psgd:every=2,overlap=false")


def drawn_pipelines(draw, num_pipelines, rule):
    """Cuts, replicas, schedules and links by chance. Returns (pipelines, profile, cluster)."""
    plans, first = [], 0
    for _ in range(num_pipelines):
        cuts = [0, *sorted(draw.sample(range(1, 5), draw.randint(0, 2))), 5]
        stages = []
        for a, b in zip(cuts, cuts[1:], strict=False):
            count = 1 if rule == "all-reduce" else draw.choice([1, 1, 2])  # else most do not go together
            stages.append(Stage(tuple(f"l{k}" for k in range(a, b)), tuple(range(first, first + count))))
            first += count
        schedule = draw.choice(["1f1b", "gpipe", "1f1b-flush", "zero-bubble"])
        plans.append(Plan(tuple(stages), schedule, num_microbatches=1 if schedule == "1f1b" else draw.randint(1, 4)))
    link = Link(draw.choice([50.0, 1e4, float("inf")]), draw.choice([0.0, 0.1]))
    cluster = Cluster.uniform(first, device_type="d", link=link)
    profile = replace(network(5, output_bytes=1.0), update_rates={"d": draw.choice([0.0, 1e-4])})
    return Plan.together(tuple(plans), parse_rule(rule)), profile, cluster


@pytest.mark.slow
@settings(max_examples=24, deadline=None)
@given(st.data(), st.sampled_from(RULES_TO_TRY), st.integers(2, 4), st.integers(0, 10**6))
def test_laws_of_any_pipelines_and_rules(data, rule, num_pipelines, seed):
    """Each minibatch once; ranks do one thing at a time; nobody is faster than alone; merges add up."""
    draw = random.Random(seed)
    pipelines, profile, cluster = drawn_pipelines(draw, num_pipelines, rule)
    plans = pipelines.pipelines
    sizes = [draw.choice([1.0, 1.7]) for _ in range(data.draw(st.integers(1, 60)))]
    delays = Stragglers.parse(draw.choice(["", "jitter:p=0.2,seconds=1", "slow:rank=0,factor=3"]))
    found = simulate_pipelines(pipelines, profile, cluster, sizes, stragglers=delays, seed=seed)
    assert found == simulate_pipelines(pipelines, profile, cluster, sizes, stragglers=delays, seed=seed)
    assert sorted(number for taken in found.taken for number in taken) == list(range(len(sizes)))
    assert [one.minibatches for one in found.pipelines] == list(map(len, found.taken))
    works = [span for span in found.trace.spans if span.kind not in ("send",)]
    for rank in cluster.devices:
        own = sorted((span.start, span.end) for span in works if span.rank == rank.rank)
        assert all(b >= a - 1e-9 for (_, a), (b, _) in zip(own, own[1:], strict=False)), "one thing at a time"
    forwards = Counter(
        (s.rank in plans[k].ranks, s.stage, s.minibatch)
        for k in range(num_pipelines)
        for s in found.trace.spans
        if s.kind == "forward" and s.rank in plans[k].ranks
    )
    assert set(forwards.values()) <= {1}
    taken_at = [
        max(
            (s.start for s in found.trace.spans if (s.stage, s.kind) == (0, "forward") and s.rank in plan.ranks),
            default=0,
        )
        for plan in plans
    ]  # the last of each pipeline's
    for one, latest in zip(found.pipelines, taken_at, strict=True):
        waited = one.lost_seconds["group"] + one.lost_seconds["bound"]
        assert sum(one.waited_for) + one.waited_for_time + one.waited_for_end == pytest.approx(waited, abs=1e-6)
        assert min(one.lost_seconds.values()) >= 0
        if rule in NEVER_WAIT and one.minibatches:
            alone = one.minibatches / one.own_pace * (pipelines.samples or 1)
            # Until all minibatches are taken, a stage may stand at a forward that does not come: alone it would know.
            end_is_known = max(taken_at) - latest
            assert alone * (1 - 1e-6) <= one.seconds <= (alone + end_is_known) * (1 + 1e-6)
    assert all(1 <= size <= num_pipelines for size in found.group_sizes)
    assert sum(found.staleness.values()) <= sum(found.group_sizes.values()) * num_pipelines


def test_every_rule_is_tried():
    assert {rule.partition(":")[0] for rule in RULES_TO_TRY} == set(RULES)


def test_stragglers_that_cannot_be_simulated_are_told():
    pipelines, cluster = like_pipelines(2, 2, "quorum")
    with raises("straggler.rank_unknown", rank=9):
        simulate_pipelines(
            pipelines, network(2), cluster, [1] * 20, stragglers=Stragglers.parse("slow:rank=9,factor=2")
        )
    kill = Stragglers.parse("kill:rank=1,at=3")
    with raises("straggler.kill_not_simulated", name="all-reduce"):
        simulate_pipelines(
            replace(pipelines, replication=parse_rule("all-reduce")), network(2), cluster, [1] * 20, stragglers=kill
        )
    with raises("number.malformed", "restart_seconds"):
        simulate_pipelines(pipelines, network(2), cluster, [1] * 20, restart_seconds=-1)


def test_stragglers_may_be_given_as_launch_takes_them():
    """As text: that ended in an AttributeError."""
    pipelines, cluster = like_pipelines(2, 2, "quorum")
    text = "slow:rank=1,factor=3;jitter:p=0.2,seconds=0.5;seed=4"
    given = [pipelines, network(2), cluster, [1] * 20]
    assert simulate_pipelines(*given, stragglers=text) == simulate_pipelines(*given, stragglers=Stragglers.parse(text))
    plan = pipelines.local(0)
    alone = [simulate(plan, *given[1:], stragglers=how) for how in (text, Stragglers.parse(text), None)]
    assert alone[0] == alone[1] != alone[2] and alone[0].held_up
    with raises("straggler.rank_unknown", rank=9):
        simulate(plan, *given[1:], stragglers="slow:rank=9,factor=2")


@pytest.mark.parametrize(
    ("stages", "settings"),
    [
        ((Stage(("l0",), (0, 1)), Stage(("l1",), (2,))), {}),
        ((Stage(("l0",), (0, 1)), Stage(("l1",), (2,))), {"schedule": "gpipe", "num_microbatches": 3}),
    ],
)
def test_gradients_of_parts_of_a_unit_cannot_be_averaged(stages, settings):
    """A stage that steps more often than another, or steps within a round of the replicas."""
    plans = Plan(stages, **settings), Plan((Stage(("l0", "l1"), (3,)),), **settings)
    cluster = Cluster.uniform(4, device_type="d")
    with raises("schedule.units_differ", name="all-reduce") as error:
        simulate_pipelines(Plan.together(plans, parse_rule("all-reduce")), network(2), cluster, [1] * 9)
    assert "pipeline 0" in str(error.value) and "\n" not in str(error.value)
    assert simulate_pipelines(
        Plan.together(plans, parse_rule("partial-reduce")), network(2), cluster, [1] * 9
    ).group_sizes


OF_WEIGHTS = [rule for rule in RULES_TO_TRY if rule != "all-reduce"]


@pytest.mark.parametrize("rule", OF_WEIGHTS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("rank", "at"), [(0, 0), (3, 7), (4, 12), (2, 30)])
def test_a_pipeline_that_is_killed_does_not_stop_the_others(rule, schedule, rank, at):
    """Each minibatch is done once, and only those in flight are begun twice; nobody is killed twice."""
    settings = {} if schedule == "1f1b" else {"num_microbatches": 3}
    pipelines, cluster = like_pipelines(3, 2, rule, link=Link(1e4), schedule=schedule, **settings)
    kill = Stragglers.parse(f"kill:rank={rank},at={at}")
    found = simulate_pipelines(pipelines, network(2), cluster, [1] * 120, stragglers=kill, restart_seconds=20.0, seed=1)
    assert sorted(number for taken in found.taken for number in taken) == list(range(120))
    begun = Counter(s.minibatch for s in found.trace.spans if s.kind == "forward" and s.stage == 0)
    again = [minibatch for minibatch, count in begun.items() if count > 1]
    assert set(begun) == set(range(120)) and max(begun.values()) <= 2 and len(again) <= 6
    own = [s for s in found.trace.spans if s.rank == rank]
    gaps = sorted(((b.start - a.end, a.end) for a, b in zip(own, own[1:], strict=False)), reverse=True)
    died = sorted(own)[0].start if at == 0 and rank == 0 else gaps[0][1]
    back = [s.start for s in own if s.start > died + 19.9]
    assert back and min(back) == pytest.approx(died + 20.0, abs=12), "it is back as soon as it can"
    if rule in NEVER_WAIT:
        for k, one in enumerate(found.pipelines):
            assert one.samples_per_second >= (0.9 if k != rank // 2 else 0.0) * one.own_pace


@pytest.mark.parametrize("rule", OF_WEIGHTS)
def test_two_deaths_lose_nothing(rule):
    """Of any two ranks of any pipelines, perhaps of one, when there is hardly anything left, or in a life after."""
    for seed in range(8):
        draw = random.Random(seed)
        pipelines, profile, cluster = drawn_pipelines(draw, draw.randint(2, 4), rule)
        kills = [f"kill:rank={draw.choice(pipelines.ranks)},at={draw.randint(0, 20)}" for _ in range(2)]
        told = Stragglers.parse(
            ";".join([*kills, draw.choice(["jitter:p=0.2,seconds=9", "stop:rank=0,at=3,seconds=200"])])
        )
        count, gone = draw.randint(1, 60), draw.choice([0.0, 5.0, 100.0])
        found = simulate_pipelines(pipelines, profile, cluster, [1] * count, stragglers=told, restart_seconds=gone)
        assert sorted(number for taken in found.taken for number in taken) == list(range(count))


def test_a_death_at_the_end_leaves_nothing_undone():
    """The others had nothing more to take: they take what the dead one had, as in a run, and do not wait for it."""
    pipelines, cluster = like_pipelines(2, 2, "partial-reduce")
    kill = Stragglers.parse("kill:rank=1,at=19;stop:rank=0,at=19,seconds=30")
    found = simulate_pipelines(pipelines, network(2), cluster, [1] * 40, stragglers=kill, restart_seconds=100.0)
    assert sorted(number for taken in found.taken for number in taken) == list(range(40))
    assert [len(own) for own in found.taken] == [19, 21]
    assert found.trace.makespan < 150


def test_replicas_wait_for_one_that_is_held_up():
    """Two replicas of one stage: their gradients are averaged every two minibatches, at the slow one's pace."""
    plan, cluster = Plan((Stage(("l0",), (0, 1)),)), Cluster.uniform(2, device_type="d")
    slow = simulate(plan, network(1), cluster, [1] * 10, stragglers=Stragglers.parse("slow:rank=1,factor=4"))
    assert simulate(plan, network(1), cluster, [1] * 10).makespan == 15
    assert slow.makespan == 60
    assert simulate(plan, network(1), cluster, [1] * 10, stragglers=Stragglers()) == simulate(
        plan, network(1), cluster, [1] * 10
    )


@given(st.data())
@settings(max_examples=16, deadline=None)
def test_a_result_is_there_once_every_part_of_it_was_reduced(data) -> None:
    """Beside the definition, for pipelines cut at different places, whose stages come in any order."""
    cuts = data.draw(st.lists(st.sets(st.integers(1, 4), max_size=3), min_size=2, max_size=4), label="cuts")
    ranks, plans = itertools.count(), []
    for own in cuts:
        bounds = list(itertools.pairwise([0, *sorted(own), 5]))
        plans.append(Plan(tuple(Stage(tuple(f"l{s}" for s in range(*b)), (next(ranks),)) for b in bounds)))
    cluster = Cluster.uniform(next(ranks), device_type="d", link=Link(bandwidth=1000.0, latency=0.1))
    sizes = MergeCosts(plans, cluster, network(5).graph)
    members = tuple(range(len(plans)))
    partner = members[-1] if data.draw(st.booleans(), label="partner") else None
    contributors = members if partner is None else members[:-1]
    merge = Merge(0, contributors, (0,) * len(contributors), (1.0,) * len(contributors), partner=partner)
    exchange = Exchange(merge, 2.0, None, Routes(sizes, members))
    coming = data.draw(st.permutations([place for k in contributors for place in sizes.stages(k)]), label="order")
    times = sorted(data.draw(st.lists(st.floats(0, 9), min_size=len(coming), max_size=len(coming)), label="times"))
    known = [exchange.come(place, now) for place, now in zip(coming, times, strict=True)]
    ready = {place: max(2.0, now) for place, now in zip(coming, times, strict=True)}
    ready |= dict.fromkeys(sizes.stages(partner), 2.0) if partner is not None else {}
    around = {place: [place, *sizes.peers(place, members)] for place in ready}
    reduced = {one: max(ready[own] + sizes.seconds(own, members) for own in around[one]) for one in ready}
    for one in ready:
        assert exchange.results[one] == max(map(reduced.get, around[one])) + sizes.seconds(one, members)
        needed = {own for other in around[one] for own in around[other]}
        assert ready[exchange.last_ready(one)] == max(map(ready.get, needed)) and exchange.last_ready(one) in needed
        last = max((coming.index(own) for own in needed if own in coming), default=None)
        assert last is None or one in known[last]
    assert exchange.complete and exchange.bytes == pytest.approx(2 * 1000.0 * 5 * (len(members) - 1))
