"""Runs that change their plan, simulated: each variant beside an oracle, and the loop that they share."""

import json

import pytest
from coded import raises
from dynamics_worlds import Told, cpus, network

from sparsepipe import partition, simulate
from sparsepipe.monitoring import Factors
from sparsepipe.monitoring.change_point import iteration_seconds, seconds_of, simulate_plans
from sparsepipe.monitoring.decision import Caution
from sparsepipe.monitoring.drift import Watch
from sparsepipe.monitoring.simulated import best_plans, check_replans, oracle_segments, simulate_replans, stretches
from sparsepipe.monitoring.variants import VARIANTS, variant
from sparsepipe.values.stragglers import Stragglers

HALF = "slow:rank=1,factor=2,from=100,to=300"


def run(name, spec, *, count=2, profile=None, minibatches=400, late=8, plan=None, **given):
    profile, cluster, stragglers = profile or network(24), cpus(count), Stragglers.parse(spec)
    plan = plan or partition(profile, cluster)
    return simulate_replans(
        plan,
        profile,
        cluster,
        [1.0] * minibatches,
        variant=variant(name),
        watcher=Told(stragglers, count, late=late),
        stragglers=stragglers,
        **given,
    )


def oracle(spec, *, count=2, profile=None, minibatches=400):
    profile, cluster = profile or network(24), cpus(count)
    plan, stragglers = partition(profile, cluster), Stragglers.parse(spec)
    return seconds_of(oracle_segments(plan, profile, cluster, [1.0] * minibatches, stragglers=stragglers))


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (HALF, 3),
        ("slow:rank=3,factor=2,from=100,to=300", 4),
        ("slow:rank=0,factor=1.5,from=50,to=350;slow:rank=1,factor=3,from=120,to=300", 2),
    ],
)
def test_live_comes_close_to_who_knew_it_all(spec, count):
    found, best = run("live", spec, count=count), oracle(spec, count=count)
    assert best <= run("never", spec, count=count).seconds * (1 + 1e-9)
    assert 0.9 <= best / found.seconds <= 1.0 + 1e-9
    assert found.changes and found.minibatches_per_second == pytest.approx(400 / found.seconds)


def test_variants_side_by_side():
    found = {name: run(name, HALF).minibatches_per_second for name in VARIANTS}
    assert min(found, key=found.get) == "never" and max(found, key=found.get) == "live"
    assert found["live"] > 1.15 * found["never"]
    assert found["predicted"] == found["measured"], "without a predictor"


def test_a_predictor_is_asked_about_the_layers_of_a_slow_rank():
    profile, asked = network(24), []

    def predict(rank):
        asked.append(rank)
        return [1.0] * 12 + [2.0] * 12  # the later half of the layers suffers alone

    found = run("predicted", HALF, profile=profile, predict=predict)
    assert (
        set(asked) == {1} and found.changes[0].decision.plan.stages[0].layers != found.segments[0].plan.stages[0].layers
    )


def test_nothing_changes_where_nothing_is_slow():
    for name in ("live", "measured"):  # DynPipe's planner may find other cuts for devices that are as they were
        assert not run(name, "jitter:p=0.2,seconds=0.1;seed=3").changes
    alone = run("live", "")
    trace = simulate(partition(network(24), cpus(2)), network(24), cpus(2), [1.0] * 400)
    assert alone.seconds == trace.makespan and not alone.decisions


def test_an_intruder_that_comes_and_goes_is_left_alone_after_a_few_moves():
    spec = ";".join(f"slow:rank=3,factor=2,from={k},to={k + 12}" for k in range(20, 236, 24))
    found = run("live", spec, count=4, minibatches=250)
    assert 1 <= len(found.changes) <= 5
    assert found.seconds < run("never", spec, count=4, minibatches=250).seconds


@pytest.mark.parametrize("first", [375, 388])
def test_a_change_late_in_a_run_pays_or_is_not_made(first):
    never, live = (run(name, f"slow:rank=1,factor=2,from={first}") for name in ("never", "live"))
    assert live.seconds <= never.seconds * (1 + 1e-9)
    if first >= 388:
        assert not live.changes


def test_a_plan_taken_back_is_the_one_before():
    found = run("live", HALF, count=4)
    first, last = found.segments[0].plan, found.segments[-1].plan
    assert len(found.changes) == 2
    assert [stage.layers for stage in last.stages] == [stage.layers for stage in first.stages]


@pytest.mark.parametrize("schedule", ["1f1b-flush", "2bw"])
def test_steps_stay_whole(schedule):
    profile, cluster = network(24), cpus(2)
    plan = partition(profile, cluster, schedule=schedule, num_microbatches=6)
    found = run("live", "slow:rank=1,factor=3,from=60", minibatches=240, plan=plan)
    assert found.changes and all(change.first_minibatch % 6 == 0 for change in found.changes)


def test_epochs_end_where_they_are_told_to():
    found = run("epoch", "slow:rank=1,factor=3,from=60", epoch_minibatches=70, minibatches=240)
    assert found.changes and all(change.first_minibatch % 70 == 0 for change in found.changes)
    with raises("number.below_least", "minibatches", "of an epoch"):
        run("epoch", "", epoch_minibatches=0)


def test_every_minibatch_is_trained_once_and_time_goes_on():
    found = run("live", HALF)
    forwards = [s for s in found.trace.spans if s.stage == 0 and s.kind == "forward"]
    assert sorted(span.minibatch for span in forwards) == list(range(400))
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        assert max(span.end for span in before.trace.spans) + after.pause_seconds == pytest.approx(after.begin)
        assert min(span.start for span in after.trace.spans) >= after.begin
    seconds = iteration_seconds(found.segments, 400)
    assert len(seconds) == 400 and sum(seconds) == pytest.approx(found.seconds, rel=0.01) and min(seconds) >= 0
    document = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(document)["replans"][0]["predicted_gain_seconds"] > 0


def test_parts_of_a_run_meet_the_stragglers_of_their_minibatches():
    later = Stragglers.parse(HALF).later(60).later(30)
    assert [later.extra_seconds(1, m, 1.0) for m in (9, 10, 209, 210)] == [0, 1, 1, 0]
    profile, cluster = network(8), cpus(2)
    plan, stragglers = partition(profile, cluster), Stragglers.parse("slow:rank=0,factor=5,from=30,to=40")
    whole = simulate(plan, profile, cluster, [1.0] * 60, stragglers=stragglers).makespan
    cut = simulate_plans([(0, plan), (25, plan)], profile, cluster, [1.0] * 60, stragglers=stragglers)
    ends = whole + 0.1 + 2 * sum(cost.samples[0].forward for cost in profile.costs["cpu"]) * 3
    assert whole + 0.1 <= seconds_of(cut) <= ends


def test_an_oracle_changes_where_devices_do_and_only_if_it_pays():
    profile, cluster = network(24), cpus(2)
    plan, stragglers = partition(profile, cluster), Stragglers.parse(HALF + ";stop:rank=0,at=5,seconds=3")
    parts = stretches(stragglers, 2, 400)
    assert [(part.first, part.end, part.factors.ranks) for part in parts] == [
        (0, 100, (1, 1)),
        (100, 300, (1, 2)),
        (300, 400, (1, 1)),
    ]
    assert [first for first, _ in best_plans(plan, profile, cluster, parts)] == [0, 100, 300]
    dear = Caution(other_seconds=1000.0)
    assert [first for first, _ in best_plans(plan, profile, cluster, parts, dear)] == [0]
    assert (
        len(
            stretches(
                Stragglers.parse(";".join(f"slow:rank=0,factor=2,from={k},to={k + 1}" for k in range(0, 300, 2))),
                2,
                400,
            )
        )
        == 64
    )
    assert stretches(Stragglers(), 2, 0) == () and stretches(Stragglers(), 1, 3)[0].factors == Factors.none(1)


def test_a_device_that_stands_almost_still_is_left_out_and_taken_back():
    """A run times it on work of its own meanwhile, see worker/targets.py; so do simulations."""
    profile, cluster = network(12), cpus(3)
    plan, stragglers = partition(profile, cluster), Stragglers.parse("slow:rank=2,factor=25,from=100,to=300")
    found = simulate_replans(
        plan,
        profile,
        cluster,
        [1.0] * 500,
        variant=variant("live"),
        watcher=Watch(profile, cluster, plan, simulated=True),
        stragglers=stragglers,
    )
    assert [2 in segment.plan.ranks for segment in found.segments] == [True, False, True]
    left, back = (change.first_minibatch for change in found.changes)
    assert 100 < left < 120 and 300 < back < 320
    never = seconds_of(simulate_plans([(0, plan)], profile, cluster, [1.0] * 500, stragglers=stragglers))
    assert found.seconds < never / 5


def test_what_cannot_be_simulated_is_told_in_a_line():
    with raises("replan.unknown", "never, epoch, measured, predicted, live"):
        variant("always")
    with raises("straggler.kill_not_simulated", "end no process"):
        check_replans(Stragglers.parse("kill:rank=1,at=3"), 2, 10)
    plan = partition(network(4), cpus(2))
    with raises("straggler.kill_not_simulated", "end no process"):
        simulate_plans([(0, plan)], network(4), cpus(2), [1.0] * 9, stragglers=Stragglers.parse("kill:rank=0,at=3"))
    with raises("straggler.rank_unknown", rank=7):
        check_replans(Stragglers.parse("slow:rank=7,factor=2"), 2, 10)
