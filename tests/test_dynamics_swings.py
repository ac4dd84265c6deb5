"""A machine whose own pace swings moves nothing; an intruder on the same machine does, soon."""

import math

import numpy as np
import pytest
from drifting_runs import Noise
from dynamics_worlds import cpus, followed, network

from sparsepipe import partition
from sparsepipe.monitoring import Factors, Watch
from sparsepipe.monitoring.decision import decide
from sparsepipe.monitoring.drift import Swings

CLUSTER, NETWORK = cpus(2), network(24)
HALVES = partition(NETWORK, CLUSTER)
NOISE = Noise(times=0.08, interrupted=0.01)
STEP, COUNT = 10, 600  # minibatches from one level to the next, of a run


def swings(size, *, alike, seed, lasts=30):
    """Stragglers of two ranks whose pace goes up and down by `size` for some `lasts` minibatches, for a whole run."""
    random, keeps = np.random.default_rng(seed), math.exp(-STEP / lasts)
    levels = np.zeros((COUNT // STEP, 1 if alike else 2))
    for k in range(1, len(levels)):
        levels[k] = keeps * levels[k - 1] + math.sqrt(1 - keeps**2) * random.normal(0, size / 1.5, levels.shape[1])
    factors = np.exp(np.clip(levels, -size, size) + size)  # as slow as usual, or slower
    return ";".join(
        f"slow:rank={rank},factor={factors[k, rank % factors.shape[1]]:.4f},from={STEP * k},to={STEP * k + STEP}"
        for k in range(len(levels))
        for rank in range(2)
    )


def run(name, spec):
    return followed(name, HALVES, NETWORK, CLUSTER, lambda plan: NETWORK, minibatches=COUNT, spec=spec, noise=NOISE)


def moves(replanner):
    return [(minibatch, made) for minibatch, made in replanner.decisions if made.changes]


@pytest.mark.parametrize(("size", "alike", "seed"), [(0.3, True, 0), (0.15, False, 1)])
def test_a_machine_whose_own_pace_swings_moves_nothing(size, alike, seed):
    _, replanner = run("live", swings(size, alike=alike, seed=seed))
    assert not moves(replanner), [made.why for _, made in moves(replanner)]


def test_an_intruder_on_such_a_machine_is_answered_soon_and_left_when_it_is_gone():
    """It takes half of a processor from minibatch 200 to 400."""
    spec = swings(0.15, alike=False, seed=1) + ";slow:rank=1,factor=2,from=200,to=400"
    live, replanner = run("live", spec)
    there, *refined, back = (minibatch for minibatch, _ in moves(replanner))
    assert 206 <= there <= 220 and 406 <= back <= 430 and len(refined) <= 1
    assert live < 0.93 * run("never", spec)[0]


def test_what_swings_is_told_from_what_changes_once():
    """Blocks of ten at ±s differ by 2 s or nothing; a single change of level is one difference among many."""
    swinging, changing = Swings(), Swings()
    for k in range(400):
        swinging.add(0.2 if k // 10 % 2 else -0.2)
        changing.add(0.7 if k > 205 else 0.0)
    assert swinging.size == pytest.approx(0.4 / (0.6745 * math.sqrt(2))) and changing.size == 0
    assert Swings().size == 0.1, "nothing is known yet"
    white = Swings()
    for value in np.random.default_rng(0).normal(0, 0.1, 4000):
        white.add(value)
    assert white.size == pytest.approx(0.1 * math.sqrt(math.pi / 2 / 10), rel=0.35)


def test_a_change_counts_for_the_least_that_it_gains_in_any_way_that_devices_may_be():
    """Rank 1 takes 1.5 times as long; rank 0 may take 1.6 times its profile's time all along: then it is slower."""
    slow, given = Factors((1.0, 1.5)), {"minibatches_left": 10_000}
    sure = decide(HALVES, NETWORK, CLUSTER, slow, **given)
    assert sure.changes and sure.share == sure.simulated
    told = decide(HALVES, NETWORK, CLUSTER, slow, also=(Factors((1.0, 1.35)),), **given)
    assert told.changes and "at worst" in told.why and told.share <= sure.share
    assert not decide(HALVES, NETWORK, CLUSTER, slow, also=(Factors((1.6, 1.5)),), **given).changes


def test_a_watch_says_how_sure_its_factors_are():
    watch = Watch(NETWORK, CLUSTER, HALVES, simulated=True)
    assert watch.also(Factors((1.0, 2.0)))[0] == watch.factors == Factors.none(2), "of ranks that were never seen"
