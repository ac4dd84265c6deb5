"""Moves that do not pay: worlds in which a profile is wrong, ranks slow one another, or a run begins slowly."""

from dataclasses import replace
from functools import partial

import pytest
from drifting_runs import PROFILE, Noise, cluster_with, halves, sizes_of
from dynamics_worlds import cpus, followed, network

from sparsepipe import LayerCost, Plan, Stage, partition, simulate
from sparsepipe.monitoring import Factors
from sparsepipe.monitoring.decision import decide
from sparsepipe.monitoring.moves import Pace
from sparsepipe.monitoring.outcomes import MeasuredPace, Outcomes, Paces

NOISE = Noise(times=0.05, interrupted=0.01)
CLUSTER = cpus(2)
NETWORK = network(24)
HALVES = partition(NETWORK, CLUSTER)
VISIT = "slow:rank=1,factor=2,from=150,to=350"


def scaled(profile, factors):
    """A profile whose layers take so many times as long."""
    costs = zip(profile.costs["cpu"], factors, strict=True)
    times = ("forward", "backward")
    return replace(
        profile,
        costs={
            "cpu": tuple(
                LayerCost(tuple(replace(s, **{n: getattr(s, n) * f for n in times}) for s in cost.samples))
                for cost, f in costs
            )
        },
    )


def as_profiled(plan):
    return NETWORK


def contended(plan, *, slow):
    """Whatever is moved from the slow rank, all layers take as much longer: as if ranks shared what is scarce."""
    now, devices = Factors((1.0, slow)).scaled(NETWORK, CLUSTER)
    gained = Pace.of(HALVES, now, devices).seconds_per_minibatch / Pace.of(plan, now, devices).seconds_per_minibatch
    return scaled(NETWORK, [gained] * 24)


run = partial(followed, plan=HALVES, profile=NETWORK, cluster=CLUSTER, noise=NOISE)


def seconds(name, truth, spec, minibatches=500):
    return run(name, truth=truth, minibatches=minibatches, spec=spec)


@pytest.mark.parametrize(
    "spec",
    [
        "slow:rank=0,factor=1.8,from=0,to=20;slow:rank=0,factor=1.4,from=20,to=70;slow:rank=1,factor=1.25,from=0,to=40",
        "slow:rank=0,factor=1.8,from=0;slow:rank=1,factor=1.8,from=0",
        "slow:rank=0,factor=1.2,from=0",
    ],
    ids=["a slow beginning", "slow by the same factor", "a profile that is off"],
)
def test_what_all_ranks_have_in_common_or_passes_soon_moves_nothing(spec):
    _, replanner = seconds("live", as_profiled, spec, 300)
    assert not [minibatch for minibatch, made in replanner.decisions if made.changes]


def test_a_rank_that_is_much_slower_than_the_others_from_the_start_is_relieved():
    live, replanner = seconds("live", as_profiled, "slow:rank=1,factor=2,from=0", 300)
    never, _ = seconds("never", as_profiled, "slow:rank=1,factor=2,from=0", 300)
    first, *others = [minibatch for minibatch, made in replanner.decisions if made.changes]
    assert 40 <= first < 70 and not others and live < 0.85 * never


def test_a_profile_that_is_off_by_other_shares_for_other_layers_is_no_slow_device_until_it_lasted():
    def truth(plan):
        return scaled(NETWORK, [1.35] * 12 + [0.9] * 12)

    live, replanner = seconds("live", truth, "", 300)
    first, *others = [minibatch for minibatch, made in replanner.decisions if made.changes]
    assert 100 <= first < 130 and len(others) <= 1 and live < 0.95 * seconds("never", truth, "", 300)[0]


def test_a_move_that_gives_nothing_is_not_made_again():
    """Ranks that share a memory: the simulator sees a third to be gained, and nothing is."""
    visits, count = "slow:rank=1,factor=3,from=100,to=300;slow:rank=1,factor=3,from=400,to=550", 600
    truth = partial(contended, slow=3.0)
    live, replanner = seconds("live", truth, visits, count)
    never, _ = seconds("never", truth, visits, count)
    outcomes = replanner.outcomes.judged
    assert outcomes and outcomes[0].predicted > 0.2 and abs(outcomes[0].measured) < 0.06
    assert len([made for _, made in replanner.decisions if made.changes]) <= 3, "there, back, and no third time"
    assert live < 1.05 * never
    assert replanner.outcomes.trust(count) < 0.5


def test_a_move_that_costs_time_is_taken_back():
    """The other cut takes a quarter longer for everything, as where a cache is too small for it."""

    def truth(plan):
        return NETWORK if plan.stages == HALVES.stages else scaled(NETWORK, [2.0] * 24)

    live, replanner = seconds("live", truth, "slow:rank=1,factor=2,from=150", 600)
    never, _ = seconds("never", truth, "slow:rank=1,factor=2,from=150", 600)
    there, back, *others = [made for _, made in replanner.decisions if made.changes]
    assert there.simulated > 0.2 and replanner.outcomes.judged[0].measured < -0.2
    assert [s.layers for s in back.plan.stages] == [s.layers for s in HALVES.stages] and not others
    assert live < 1.06 * never


def test_a_move_that_pays_is_trusted_and_taken_back_when_the_intruder_is_gone():
    live, replanner = seconds("live", as_profiled, VISIT)
    never, _ = seconds("never", as_profiled, VISIT)
    there, back = [made for _, made in replanner.decisions if made.changes]
    assert back.plan.stages[0].layers == HALVES.stages[0].layers and live < 0.9 * never
    assert replanner.outcomes.trust(500) > 0.85
    assert replanner.outcomes.judged[0].measured == pytest.approx(there.simulated, abs=0.04)


@pytest.mark.parametrize("comes", [78, 94], ids=["while it fills", "while it is judged"])
def test_who_comes_just_after_a_change_is_not_taken_for_what_it_gave(comes):
    """The plan follows rank 0 from minibatch 75 on and is judged at 100. Once that ended all changes of a run."""
    spec = f"slow:rank=0,factor=1.6,from=60,to={comes};slow:rank=1,factor=2.5,from={comes}"
    live, replanner = seconds("live", as_profiled, spec, 250)
    never, _ = seconds("never", as_profiled, spec, 250)
    first, second, *others = [(minibatch, made) for minibatch, made in replanner.decisions if made.changes]
    assert first[0] == 73 and 95 < second[0] < 115 and not others and live < 0.8 * never
    assert len(second[1].plan.stages[0].layers) > 15 and replanner.outcomes.trust(250) > 0.9


def test_paces_do_not_depend_on_sizes():
    """Tenfold sizes; a rank that takes half as long again from the middle on is seen, and nothing before."""
    sizes = sizes_of(400)
    plan, cluster = halves(), cluster_with()
    paces = Paces(PROFILE, cluster, plan)
    paces.take(simulate(plan, PROFILE, cluster, sizes[:200]).spans, dict(enumerate(sizes[:200].tolist())))
    slow = simulate(plan, scaled(PROFILE, [1.5] * len(PROFILE.graph.layers)), cluster, sizes[200:])
    later = [span._replace(minibatch=span.minibatch + 200, end=span.end + 1e4) for span in slow.spans]
    paces.take(later, dict(enumerate(sizes[200:].tolist(), start=200)))
    first, second, third = (paces.of(*part, unit=1) for part in ((10, 100), (100, 195), (205, 395)))
    assert second.faster(first)[0] == pytest.approx(0, abs=3 * second.faster(first)[1])
    assert third.faster(first)[0] == pytest.approx(-0.5, abs=0.05) and 0 < third.error < 0.05 * third.ratio
    assert paces.of(10, 13, unit=1) is None and paces.of(500, 600, unit=1) is None


def test_a_pace_is_faster_by_a_share_with_an_error():
    share, error = MeasuredPace(0.75, 0.0).faster(MeasuredPace(1.0, 0.01))
    assert share == 0.25 and error == pytest.approx(0.75 * 0.01)


def test_nothing_known_believes_the_simulator():
    outcomes = Outcomes(NETWORK, CLUSTER, HALVES)
    assert outcomes.trust(0) == 1 and outcomes.believed(HALVES, 0.3, 100) == 0.3 and not outcomes.judging


def test_what_is_not_believed_is_not_done():
    slow = Factors((1.0, 2.0))
    told = decide(HALVES, NETWORK, CLUSTER, slow, minibatches_left=1000, believed=lambda plan, share: share * 0.1)
    assert not told.changes and "8%" in told.why and "simulated 33.3%" in told.why
    other = Plan((Stage(HALVES.stages[0].layers[:10], (0,)), Stage(HALVES.layers[10:], (1,))))
    known = decide(
        HALVES,
        NETWORK,
        CLUSTER,
        slow,
        minibatches_left=1000,
        known=(other,),
        believed=lambda plan, share: 0.2 if plan == other else 0.0,
    )
    assert known.changes and known.plan.stages[0].layers == other.stages[0].layers and "20.0% faster" in known.why
