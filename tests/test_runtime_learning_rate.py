"""Learning rates at the moments where their formulas are plain numbers."""

import pytest

from sparsepipe.runtime.config import OptimizerConfig
from sparsepipe.runtime.training_state.learning_rate import LR_SCHEDULES, LearningRate


def _at(rate: LearningRate, minibatch: int) -> float:
    return rate.at(minibatch, epoch_minibatches=10, total_minibatches=100)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (LearningRate(2.0), {0: 2.0, 99: 2.0}),
        (LearningRate(2.0, "step", decay=0.5, decay_epochs=3), {29: 2.0, 30: 1.0, 59: 1.0, 60: 0.5}),
        (LearningRate(2.0, "exponential", decay=0.25, decay_epochs=2), {0: 2.0, 10: 1.0, 20: 0.5}),
        (LearningRate(2.0, "polynomial", decay=2.0), {0: 2.0, 50: 0.5, 100: 0.0}),
        (LearningRate(2.0, "cosine"), {0: 2.0, 50: 1.0, 100: 0.0}),
        (LearningRate(2.0, warmup=4), {0: 0.5, 1: 1.0, 3: 2.0, 4: 2.0}),
        (LearningRate(2.0, "cosine", warmup=20), {0: 0.1, 19: 2.0, 20: 2.0, 60: 1.0, 100: 0.0}),
    ],
)
def test_rates_are_their_formulas(rate: LearningRate, expected: dict[int, float]) -> None:
    assert {m: _at(rate, m) for m in expected} == pytest.approx(expected)


def test_settings_take_every_schedule() -> None:
    for name in LR_SCHEDULES:
        rate = OptimizerConfig(learning_rate=2.0, learning_rate_schedule=name, warmup_minibatches=4).rate
        assert rate == LearningRate(2.0, name, 4)
