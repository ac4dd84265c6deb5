"""The change-point test on plain numbers: what it finds, how soon, and what it leaves alone."""

import math

import numpy as np
import pytest

from sparsepipe.monitoring import change_point
from sparsepipe.monitoring.change_point import AT_ONCE, LEARNED, PASSED_OVER, ChangePoint

SEEDS = range(8)


def changes_in(values):
    test = ChangePoint()
    found = [change for value in values if (change := test.add(float(value))) is not None]
    return found, test


def noise(count, *, sigma=0.1, seed=0, outliers=0.0):
    random = np.random.default_rng(seed)
    values = random.normal(0, sigma, count)
    return values + (random.random(count) < outliers) * random.exponential(1.0, count)


@pytest.mark.parametrize(("sigma", "outliers"), [(0.01, 0.0), (0.1, 0.0), (0.1, 0.1), (0.2, 0.05)])
def test_noise_is_no_change(sigma, outliers):
    assert not [c for seed in SEEDS for c in changes_in(noise(1500, sigma=sigma, seed=seed, outliers=outliers))[0]]


@pytest.mark.parametrize(("factor", "within"), [(2.0, 10), (0.5, 10), (1.3, 40), (1 / 1.3, 40), (10.0, 10)])
def test_a_change_is_found_soon_and_dated(factor, within):
    for seed in SEEDS:
        values = noise(300, seed=seed)
        values[150:] += math.log(factor)
        (change,), test = changes_in(values)
        assert 150 + AT_ONCE - 1 <= change.found < 150 + within
        assert abs(change.began - 150) <= 6
        assert change.before == pytest.approx(0, abs=0.06)
        assert test.level == pytest.approx(math.log(factor), abs=0.06)


@pytest.mark.parametrize("length", range(1, AT_ONCE))
@pytest.mark.parametrize("height", [0.8, 3.0, 1e3, -3.0])
def test_whatever_is_shorter_is_a_spike(length, height):
    values = noise(400, sigma=0.05)
    for place in range(60, 400, 40):
        values[place : place + length] += height
    found, test = changes_in(values)
    assert not found and test.spikes == 9


def test_its_end_is_a_change_too():
    for seed in SEEDS:
        values = noise(400, seed=seed)
        values[100:250] += math.log(1.5)
        (slower, faster), test = changes_in(values)
        assert slower.after > slower.before and faster.after < faster.before
        assert 250 <= faster.found < 275 and test.level == pytest.approx(slower.before, abs=0.05)


def test_a_first_level_that_nobody_expected_is_a_change_from_the_beginning():
    (change,), test = changes_in(noise(100) + math.log(2))
    assert (change.began, change.found, change.before) == (0, PASSED_OVER + LEARNED - 1, 0.0)
    assert not changes_in(noise(100) + math.log(1.1))[0], "a profile may be off by so much"


@pytest.mark.parametrize("begin", range(PASSED_OVER, 36, 3))
def test_a_change_of_which_little_was_learned_before_is_found(begin):
    """Once the first slow values became the median of the few before them: nobody was told of the change."""
    for seed in SEEDS:
        values = noise(60, seed=seed)
        values[begin:] += math.log(2.5)
        changes, test = changes_in(values)
        assert changes and changes[0].found < max(begin, PASSED_OVER + LEARNED) + 10
        assert test.level == pytest.approx(math.log(2.5), abs=0.15)


def test_warming_up_is_no_drift():
    values = noise(100)
    values[:PASSED_OVER] += 2.0
    assert not changes_in(values)[0]


def test_what_is_learned_anew_is_a_change_only_where_it_is_another_level():
    for jump, count in ((math.log(1.15), 0), (math.log(2), 1)):
        test = ChangePoint()
        found = [test.add(value) for value in noise(100)]
        test.restart()
        found += [test.add(value + jump) for value in noise(100, seed=1)]
        assert len([change for change in found if change]) == count
        assert test.level == pytest.approx(jump, abs=0.06)


def test_a_slow_ramp_is_not_taken_for_usual():
    """A percent every minibatch: the reference does not creep along."""
    values = noise(400)
    values[200:260] += np.linspace(0, 0.6, 60)
    values[260:] += 0.6
    found, test = changes_in(values)
    assert found and test.level == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize("fault", [{"AT_ONCE": 1}, {"_ALLOWANCE": 0.02}, {"_EXPONENT": 1.0, "AT_ONCE": 2}])
def test_planted_faults_are_seen(fault, monkeypatch):
    """Steps that are not clipped, a smaller allowance, a low threshold: spikes and noise would be changes."""
    for name, value in fault.items():
        monkeypatch.setattr(change_point, name, value)
    spiked = noise(400)
    for place in range(60, 400, 40):
        spiked[place : place + 5] += 3.0
    quiet = [noise(1500, seed=seed) for seed in SEEDS]
    assert [change for values in (spiked, *quiet) for change in changes_in(values)[0]]
