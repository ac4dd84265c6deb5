"""Optimizers on every kind of weight: torch's own are the oracle."""

import json

import pytest
import torch
from coded import raises

from sparsepipe.runtime import OptimizerConfig
from sparsepipe.runtime.training_state.optimizer import Lion, Muon
from sparsepipe.runtime.training_state.parameter_groups import open_optimizer
from sparsepipe.runtime.worker.weight_update import clip, square_norm

KINDS = [torch.complex64, torch.complex128, torch.bfloat16, torch.float16, torch.float64, torch.float32]
REAL = KINDS[-2:]
DECAYED = {"learning_rate": 0.1, "weight_decay": 0.01}
THEIRS = {
    "sgd": ({}, torch.optim.SGD, {"momentum": 0.9}, KINDS),
    "sgd nesterov": ({"nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, REAL),
    "adam": ({}, torch.optim.Adam, {}, KINDS),
    "adamw": (
        {"betas": (0.8, 0.98), "eps": 1e-3},
        torch.optim.AdamW,
        {"betas": (0.8, 0.98), "eps": 1e-3},
        KINDS,
    ),
    "radam": ({}, torch.optim.RAdam, {}, REAL),
    "asgd": ({}, torch.optim.ASGD, {}, REAL),
    "rmsprop": (
        {"optimizer_args": '{"momentum": 0.5}'},
        torch.optim.RMSprop,
        {"momentum": 0.5},
        REAL,
    ),
    "torch.optim:NAdam": ({}, torch.optim.NAdam, {}, REAL),
}


def opened(name: str, weights: list[torch.Tensor], **settings):
    config = OptimizerConfig(optimizer=name, **DECAYED | settings)
    return open_optimizer(config, dict(zip("abcdefg", weights, strict=False)))


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, row in THEIRS.items() for kind in row[3]])
def test_weights_of_any_type_are_stepped_as_torch_does(name, kind):
    """The fused kernels take real numbers alone: a complex weight ended the run. Weights move in memory, as versions
    do, and one is reached by no gradient at first."""
    settings, theirs, arguments, _ = THEIRS[name]
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 2, dtype=kind, generator=draw), torch.randn(4, generator=draw), torch.ones(2)]
    known = [weight.clone().requires_grad_() for weight in weights]
    name = name.split()[0]
    ours, theirs = opened(name, weights, **settings), theirs(known, lr=0.1, weight_decay=0.01, **arguments)
    for step in range(4):
        if step == 2:  # resumed from what it saved
            again = opened(name, weights, **settings)
            again.load(["a", "b", "c"], {key: tensor.clone() for key, tensor in ours.state(["a", "b", "c"]).items()})
            ours = again
        gradients = [torch.randn(w.shape, dtype=w.dtype, generator=draw) for w in weights]
        given = [each.conj() if each.is_complex() else each for each in gradients]
        given[2] = None if step == 0 else given[2]
        weights = [weight.clone() for weight in weights]
        ours.step(weights, given, 0.1 / (1 + step))
        for weight, gradient in zip(known, given, strict=True):
            weight.grad = gradient if gradient is None else gradient.resolve_conj()
        theirs.param_groups[0]["lr"] = 0.1 / (1 + step)
        theirs.step()
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if kind.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    for weight, expected in zip(weights, known, strict=True):
        torch.testing.assert_close(weight, expected.detach(), **tolerance)


def test_lamb_steps_a_complex_weight_as_its_pairs_of_numbers():
    weight, gradient = torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    pairs = torch.view_as_real(weight.clone()).clone()
    opened("lamb", [weight]).step([weight], [gradient], 0.1)
    opened("lamb", [pairs]).step([pairs], [torch.view_as_real(gradient)], 0.1)
    torch.testing.assert_close(torch.view_as_real(weight), pairs)


def test_lion_steps_by_the_sign_of_its_mean():
    weight, mean = torch.tensor([1.0, -2.0]), torch.zeros(2)
    ours = Lion(weight_decay=0.1)
    for gradient in (torch.tensor([1.0, -1.0]), torch.tensor([-20.0, -1.0]), torch.tensor([0.5, 3.0])):
        expected = weight * (1 - 0.01 * 0.1) - 0.01 * torch.sign(0.9 * mean + 0.1 * gradient)
        mean = 0.99 * mean + 0.01 * gradient
        ours.step([weight], [gradient], 0.01)
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 4, 5)], ids=str)
def test_muon_steps_matrices_as_torch_does(shape):
    """A kernel of three axes is the matrix of its output channels, whichever axis these are."""
    draw = torch.Generator().manual_seed(0)
    weight, gradient = torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)
    known = torch.nn.Parameter(weight.reshape(shape[0], -1).clone())
    options = {"weight_decay": 0.1, "momentum": 0.95, "nesterov": True}
    theirs = torch.optim.Muon([known], lr=0.02, adjust_lr_fn="match_rms_adamw", **options)
    first, last = weight.clone(), weight.movedim(0, -1).contiguous()
    ours = [Muon(channels_last=[False], **options), Muon(channels_last=[True], **options)]
    for _ in range(2):
        known.grad = gradient.reshape(shape[0], -1)
        theirs.step()
        ours[0].step([first], [gradient], 0.02)
        ours[1].step([last], [gradient.movedim(0, -1)], 0.02)
    torch.testing.assert_close(first, known.detach().reshape(shape), rtol=2e-2, atol=2e-3)  # torch's is in bfloat16
    torch.testing.assert_close(last.movedim(-1, 0), first, rtol=1e-3, atol=1e-4)


GROUPS = {"*.bias": {"weight_decay": 0.0}, "head.*": {"learning_rate_factor": 10, "momentum": 0.5}, "x": {}}


def test_groups_are_those_of_torch():
    """Each weight has the settings of all patterns that match it, the later ones over the earlier."""
    shapes = {"body.weight": (3, 2), "body.bias": (3,), "head.weight": (2, 3), "head.bias": (2,)}
    known = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    weights = {name: weight.detach().clone() for name, weight in known.items()}
    config = OptimizerConfig(weight_decay=0.1, parameter_groups=json.dumps(GROUPS))
    groups = [
        {"params": [weight], "lr": 0.1 * (10 if "head" in name else 1), "weight_decay": 0.1 * ("bias" not in name)}
        | ({"momentum": 0.5} if "head" in name else {})
        for name, weight in known.items()
    ]
    theirs, state = torch.optim.SGD(groups, momentum=0.9), {}
    for step in range(3):
        if step != 1:
            ours = open_optimizer(config, weights)
        if step == 2:
            ours.load(list(weights), state)
        for weight in known.values():
            weight.grad = torch.randn(weight.shape)
        ours.step(list(weights.values()), [weight.grad for weight in known.values()], 0.1)
        theirs.step()
        state = ours.state(list(weights))
    for name, weight in known.items():
        torch.testing.assert_close(weights[name], weight.detach())


def test_matrices_alone_are_decayed_if_asked():
    config = OptimizerConfig(weight_decay=0.1, decay_matrices_only=True)
    assert [config.group_of("w", axes)[0].weight_decay for axes in (0, 1, 2, 3)] == [0, 0, 0.1, 0.1]


def test_muon_leaves_vectors_to_adamw():
    config = OptimizerConfig(optimizer="muon", parameter_groups='{"head.*": {"optimizer": "lion"}}')
    chosen = [config.group_of(*one)[0].optimizer for one in (("a", 2), ("b", 1), ("head.w", 2))]
    assert chosen == ["muon", "adamw", "lion"]


def test_a_class_of_the_users_own_keeps_tensors_numbers_and_values_of_its_group(tmp_path):
    (tmp_path / "opt.py").write_text(
        "import torch\n"
        "class Counting(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr, factor=1.0):\n"
        "        super().__init__(params, {'lr': lr, 'steps': 0, 'factor': factor})\n"
        "    @torch.no_grad()\n"
        "    def step(self):\n"
        "        for group in self.param_groups:\n"
        "            group['steps'] += 1\n"
        "            for p in group['params']:\n"
        "                kept = self.state[p]\n"
        "                kept['count'] = kept.get('count', 0) + 1\n"
        "                kept['ticks'] = kept.get('ticks', torch.zeros(2, dtype=torch.int64)) + 1\n"
        "                p.data = p - group['lr'] * group['steps'] * kept['count'] * float(kept['ticks'][0]) * p.grad\n"
    )
    name, settings = f"{tmp_path}/opt.py:Counting", {"weight_decay": 0.0}
    weight, gradient, state = torch.zeros(1), torch.ones(1), {}
    for _ in range(3):
        ours = opened(name, [weight], **settings)
        ours.load(["a"], state | {key.replace(":a", ":b"): tensor for key, tensor in state.items()})
        ours.step([weight], [gradient], 1.0)
        state = ours.state(["a"])
    assert float(weight) == -(1 + 8 + 27)
    with raises("optimizer.raises"):
        opened(name, [weight], weight_decay=0.1)  # it takes none
    with raises("checkpoint.other_optimizer"):
        opened("sgd", [weight]).load(["a"], state)


def test_the_norm_of_complex_gradients_counts_both_parts():
    gradients = [torch.tensor([3 + 4j]), torch.tensor([12.0])]
    assert square_norm(gradients, replicas=1).item() == pytest.approx(169)
    clip(gradients, 6.5, 13.0)
    assert gradients[0].item() == pytest.approx(1.5 + 2j) and gradients[1].item() == pytest.approx(6)
