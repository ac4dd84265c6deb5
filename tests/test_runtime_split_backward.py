"""A backward in two halves gives the gradients of one in one go, and computes nothing twice."""

from collections.abc import Sequence

import pytest
import torch
from engine_clouds import random_batch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sparsepipe.engines import engine
from sparsepipe.engines.native import convolution
from sparsepipe.engines.native.layers import Convolution
from sparsepipe.runtime.stages.network_stage import split_backward


def _views(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.view_as(weight) for name, weight in module.named_parameters()}


def _edges(outputs: Sequence[torch.Tensor]) -> list[GradientEdge]:
    return [get_gradient_edge(output) for output in outputs]


class _Net(nn.Module):
    """Convolutions with and without bias, batch norm, a skip, a bias of its own, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bias = nn.Parameter(torch.randn(4, 1, 1))
        self.linear, self.last = nn.Linear(4 * 25, 6), nn.Linear(6, 2, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.norm(self.first(x)))
        skip = hidden + self.second(hidden) + self.bias
        return self.last(torch.relu(self.linear(skip.flatten(1)))), skip


def test_both_halves_together_are_the_backward() -> None:
    torch.manual_seed(0)
    net, leaf = _Net(), torch.randn(2, 3, 5, 5, requires_grad=True)
    arrived, weights = leaf.view_as(leaf), _views(net)
    outputs = torch.func.functional_call(net, weights, (arrived,))
    given = [torch.randn_like(output) for output in outputs]
    expected = torch.autograd.grad(outputs, [arrived, *weights.values()], given, retain_graph=True)
    features, later = split_backward(_edges(outputs), given, tuple(weights.values()), [arrived])
    names = [name for name, gradient in zip(weights, later.found, strict=True) if gradient is None]
    assert names == ["first.weight", "first.bias", "second.weight", "linear.weight", "linear.bias", "last.weight"]
    assert torch.equal(features[0], expected[0])
    for name, gradient, whole in zip(weights, later.compute(), expected[1:], strict=True):
        assert torch.equal(gradient, whole), name


def test_a_weight_used_twice_has_both_shares() -> None:
    leaf, weight = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    arrived, view = leaf.view_as(leaf), weight.view_as(weight)
    output = torch.relu(arrived @ view) @ view
    expected = torch.autograd.grad(output, [arrived, view], torch.ones_like(output), retain_graph=True)
    (features,), later = split_backward(_edges([output]), [torch.ones_like(output)], [view], [arrived])
    assert torch.equal(features, expected[0]) and torch.equal(later.compute()[0], expected[1])


def test_without_anything_that_arrived_the_first_half_does_all() -> None:
    weight, unused = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    views = [weight.view_as(weight), unused.view_as(unused)]
    output = torch.ones(2, 3) @ views[0]
    features, later = split_backward(_edges([output]), [torch.ones_like(output)], views, [])
    assert features == [] and later.found[0] is not None
    gradients = later.compute()
    assert torch.equal(gradients[0], torch.full((3, 3), 2.0)) and gradients[1] is None


def test_a_sparse_convolution_computes_each_gradient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    native, layer = engine("native"), Convolution(3, 4, kernel_size=3)
    nn.init.normal_(layer.kernel)
    tensor = native.tensor(random_batch(channels=3))
    leaf = tensor.features.clone().requires_grad_()
    arrived, weights = leaf.view_as(leaf), _views(layer)
    output = native.features(torch.func.functional_call(layer, weights, (native.replace(tensor, arrived),)))
    given = [torch.randn_like(output)]
    expected = torch.autograd.grad([output], [arrived, *weights.values()], given, retain_graph=True)
    asked = []
    whole = convolution._backward
    monkeypatch.setattr(convolution, "_backward", lambda *given: asked.append(given[-1]) or whole(*given))
    (features,), later = split_backward(_edges([output]), given, tuple(weights.values()), [arrived])
    assert not asked, "the first half has nothing to do with the kernel"
    (kernel,) = later.compute()
    assert asked == [False], "the second nothing with the features"
    torch.testing.assert_close(features, expected[0])
    torch.testing.assert_close(kernel, expected[1])
