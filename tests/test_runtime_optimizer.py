"""Optimizers on every kind of weight: torch's own are the oracle."""

import pytest
import torch

from sparsepipe.runtime.training_state.optimizer import optimizer
from sparsepipe.runtime.worker.weight_update import clip, square_norm

KINDS = [torch.complex64, torch.complex128, torch.bfloat16, torch.float16, torch.float64, torch.float32]
THEIRS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1, weight_decay=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", THEIRS)
def test_weights_of_any_type_are_stepped_as_torch_does(name, kind):
    """The fused kernels take real numbers alone: a complex weight ended the run."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 2, dtype=kind, generator=draw), torch.randn(4, generator=draw)]
    known = [weight.clone().requires_grad_() for weight in weights]
    ours, theirs = optimizer(name, momentum=0.9, weight_decay=0.01), THEIRS[name](known)
    for step in range(4):
        if step == 2:  # resumed from what it saved
            again = optimizer(name, momentum=0.9, weight_decay=0.01)
            again.load(["a", "b"], ours.state(["a", "b"]))
            ours = again
        gradients = [torch.randn(w.shape, dtype=w.dtype, generator=draw) for w in weights]
        given = [each.conj() if each.is_complex() else each for each in gradients]
        ours.step(weights, given, 0.1)
        for weight, gradient in zip(known, given, strict=True):
            weight.grad = gradient.resolve_conj()
        theirs.step()
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if kind.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    for weight, expected in zip(weights, known, strict=True):
        torch.testing.assert_close(weight, expected.detach(), **tolerance)


def test_lamb_steps_a_complex_weight_as_its_pairs_of_numbers():
    weight, gradient = torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    pairs = torch.view_as_real(weight.clone()).clone()
    optimizer("lamb", momentum=0.0, weight_decay=0.01).step([weight], [gradient], 0.1)
    optimizer("lamb", momentum=0.0, weight_decay=0.01).step([pairs], [torch.view_as_real(gradient)], 0.1)
    torch.testing.assert_close(torch.view_as_real(weight), pairs)


def test_the_norm_of_complex_gradients_counts_both_parts():
    gradients = [torch.tensor([3 + 4j]), torch.tensor([12.0])]
    assert square_norm(gradients, replicas=1).item() == pytest.approx(169)
    clip(gradients, 6.5, 13.0)
    assert gradients[0].item() == pytest.approx(1.5 + 2j) and gradients[1].item() == pytest.approx(6)
