"""The loss scale against torch.amp.GradScaler."""

import random

import torch

from sparsepipe.runtime.training_state.optimizer import LossScale


def test_it_goes_as_torchs_own() -> None:
    chance = random.Random(0)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
    ours = LossScale(interval=5)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    factors = set()
    for _ in range(80):
        overflowed = chance.random() < 0.12
        theirs.scale(weight * (float("inf") if overflowed else 1.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(overflowed=overflowed)
        assert theirs.get_scale() == ours.factor
        factors.add(ours.factor)
    assert len(factors) > 3
