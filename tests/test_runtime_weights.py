"""Optimizers step like torch's own; weight versions live exactly as long as somebody uses them."""

import pytest
import torch

from sparsepipe.runtime.optimizer import SGD
from sparsepipe.runtime.weights import Weights

SHAPES = ((3, 4), (5,), ())


def _tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sgd_is_torchs(in_place: bool, momentum: float, weight_decay: float) -> None:
    settings = {"momentum": momentum, "weight_decay": weight_decay}
    ours, theirs = SGD(learning_rate=0.1, **settings), [tensor.clone() for tensor in _tensors(0)]
    reference = torch.optim.SGD(theirs, lr=0.1, foreach=False, **settings)
    weights = _tensors(0)
    for step in range(1, 5):
        gradients = _tensors(step)
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = gradient.clone()
        reference.step()
        old = weights
        weights = ours.step(weights, gradients, in_place=in_place)
        assert all((a is b) == in_place for a, b in zip(weights, old, strict=True))
        for a, b in zip(weights, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_sgd_goes_on_from_its_state() -> None:
    names = ["a", "b", "c"]
    first, second = (SGD(learning_rate=0.1, momentum=0.9, weight_decay=0.0) for _ in range(2))
    weights = first.step(_tensors(0), _tensors(1), in_place=False)
    second.load(names, first.state(names))
    for a, b in zip(
        first.step(weights, _tensors(2), in_place=False), second.step(weights, _tensors(2), in_place=False), strict=True
    ):
        assert torch.equal(a, b)


def _weights() -> Weights:
    plain = SGD(learning_rate=1.0, momentum=0.0, weight_decay=0.0)
    return Weights({"w": torch.tensor([1.0])}, plain)


def test_a_minibatch_in_flight_keeps_its_version() -> None:
    """What PipeDream calls weight stashing: the backward meets the weights of its forward."""
    weights = _weights()
    version = weights.acquire()
    out = version.tensors["w"] * 3
    weights.update([torch.tensor([1.0])])
    assert weights.newest is not version
    assert weights.newest.tensors["w"].item() == 0.0
    assert torch.autograd.grad(out, version.tensors["w"])[0].item() == 3.0
    weights.release(version)
    assert not version.tensors, "let go as soon as nobody uses it"


def test_no_copy_is_made_where_nobody_holds_the_old_weights() -> None:
    weights = _weights()
    memory = weights.newest.tensors["w"].data_ptr()
    for _ in range(3):
        weights.release(weights.acquire())
        weights.update([torch.tensor([1.0])])
    assert weights.newest.tensors["w"].data_ptr() == memory
    assert weights.newest.index == 3 and weights.newest.tensors["w"].item() == -2.0
    assert weights.most_versions == 1


def test_versions_are_no_more_than_minibatches_in_flight_need() -> None:
    weights = _weights()
    flying = []
    for _ in range(10):
        flying.append(weights.acquire())
        if len(flying) > 3:
            weights.release(flying.pop(0))
        weights.update([torch.tensor([0.5])])
    assert weights.most_versions == 4


def test_a_round_without_minibatches_brings_zeros() -> None:
    weights = _weights()
    weights.accumulate([torch.tensor([1.0])])
    weights.accumulate([torch.tensor([2.0])])
    assert float(weights.take_gradients()[0]) == 3.0
    assert float(weights.take_gradients()[0]) == 0.0
