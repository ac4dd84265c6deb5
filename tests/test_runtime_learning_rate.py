"""Learning rates at the moments where their formulas are plain numbers."""

import json

import pytest
import torch
from coded import raises

from sparsepipe.runtime.config import OptimizerConfig
from sparsepipe.runtime.learning_rate import LR_SCHEDULES, LearningRate


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
        (LearningRate(2.0, "milestones", decay=0.5, args={"epochs": [3, 4]}), {29: 2.0, 30: 1.0, 39: 1.0, 40: 0.5}),
        (
            LearningRate(2.0, "cosine-restarts", decay_epochs=2, args={"growth": 2, "least": 0.5}),
            {0: 2.0, 10: 1.5, 20: 2.0, 40: 1.5, 60: 2.0},
        ),
    ],
)
def test_rates_are_their_formulas(rate: LearningRate, expected: dict[int, float]) -> None:
    assert {m: _at(rate, m) for m in expected} == pytest.approx(expected)


def test_settings_take_every_schedule() -> None:
    for name in LR_SCHEDULES:
        args = {"epochs": [3]} if name == "milestones" else {}
        settings = {"learning_rate_schedule": name, "schedule_args": json.dumps(args)}
        rate = OptimizerConfig(learning_rate=2.0, warmup_minibatches=4, **settings).rate
        assert rate == LearningRate(2.0, name, 4, args=args)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("milestones", {}),
        ("milestones", {"epochs": 3}),
        ("plateau", {"patience": "long"}),
        ("plateau", {"rise": 0.5}),
        ("one-cycle", {"rise": 2}),
        ("cosine-restarts", {"growth": 0.5}),
        ("constant", {"epochs": [3]}),
    ],
)
def test_arguments_that_a_schedule_does_not_take_are_refused(name: str, args: dict) -> None:
    with raises("setting.schedule_argument"):
        OptimizerConfig(learning_rate_schedule=name, schedule_args=json.dumps(args))


def test_one_cycle_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2.0, total_steps=100)
    for minibatch in range(100):
        assert _at(LearningRate(2.0, "one-cycle"), minibatch) == pytest.approx(theirs.get_last_lr()[0])
        if minibatch < 99:
            optimizer.step()
            theirs.step()


def test_plateau_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    losses = torch.tensor([3, 2, 2.5, 2, 1, 1, 1, 1, 1, 1.5, 0.5, 0.6, 0.7]).tolist()
    ours = LearningRate(2.0, "plateau", decay=0.5, args={"patience": 1})
    for count, loss in enumerate(losses, 1):
        theirs.step(loss)
        rate = ours.at(10 * count, epoch_minibatches=10, total_minibatches=130, losses=losses[:count])
        assert rate == theirs.get_last_lr()[0]


def test_a_function_of_the_users_own_gives_the_factor(tmp_path) -> None:
    (tmp_path / "rate.py").write_text(
        "def linear(minibatch, epoch_minibatches, total_minibatches, end=0.0):\n"
        "    return 1 - (1 - end) * minibatch / total_minibatches\n"
    )
    name = f"{tmp_path}/rate.py:linear"
    rate = OptimizerConfig(learning_rate=2.0, learning_rate_schedule=name, schedule_args='{"end": 0.5}').rate
    assert [_at(rate, m) for m in (0, 50, 100)] == [2.0, 1.5, 1.0]
    with raises("schedule.no_factor"):
        _at(LearningRate(2.0, name, args={"end": -9}), 50)
    with raises("schedule.raises"):
        _at(LearningRate(2.0, name, args={"start": 1}), 50)
