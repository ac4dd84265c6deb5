"""Layers of both modes put together: what is returned as it is, operations of one mode alone, parts of any name."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
import torch.nn.functional as functional
from coded import raises
from torch import nn

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.base import direct_reads
from sparsepipe.networks.traced import trace, verify
from sparsepipe.networks.traced.verification import differences


def same_when_cut(module, example, *, stages=(0, 2)):
    """Trace a module; check that it is the same, to the bit, on other minibatches; return its network."""
    network = trace(module, example)
    draw = torch.Generator().manual_seed(1)
    for count, size, training in product(stages, (2, 5), (True, False)):
        other = torch.randn(size, *example.shape[1:], generator=draw)
        assert differences(network, other, engine=PlainEngine(), stages=count, training=training) == []
    return network


def ids(network):
    return [row.id for row in network.rows]


@dataclass
class Found:
    recon: torch.Tensor
    x: torch.Tensor


RETURNS = {
    "a tuple": lambda net, x, z: (z, x),
    "a dict in a list": lambda net, x, z: {"z": z, "more": [x, {"x": x}]},
    "a dataclass": lambda net, x, z: Found(z, x),
    "in evaluation": lambda net, x, z: z if net.training else (z, x),
    "alone in evaluation": lambda net, x, z: z if net.training else x,
    "views of it": lambda net, x, z: (z, x.flatten(1), x.detach(), x * 2),
    "a parameter": lambda net, x, z: (z, net.scale),
    "a layer's weight": lambda net, x, z: (z, net.first.weight),
    "a frozen weight": lambda net, x, z: (z, net.frozen.weight),
    "buffers": lambda net, x, z: (z, net.mean, net.unsaved),
    "what it makes itself": lambda net, x, z: (z, torch.zeros(2), net.plain),
}


class Returns(nn.Module):
    def __init__(self, chosen):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.frozen, self.last = nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 6)
        self.frozen.requires_grad_(False)
        self.scale, self.plain = nn.Parameter(torch.ones(6)), torch.ones(2)
        self.register_buffer("mean", torch.rand(3))
        self.register_buffer("unsaved", torch.rand(3), persistent=False)
        self.chosen = chosen

    def forward(self, x):
        return RETURNS[self.chosen](self, x, self.last(self.frozen(self.first(x))) * self.scale)


@pytest.mark.parametrize("chosen", RETURNS)
def test_what_no_layer_makes_can_be_returned(chosen):
    """A variational autoencoder returned its input: the last stage did not have it."""
    network = same_when_cut(Returns(chosen), torch.randn(4, 6))
    assert {"first", "frozen", "last"} <= set(ids(network))
    returned = chosen in ("a tuple", "a dict in a list", "a dataclass", "in evaluation", "alone in evaluation")
    if returned:
        assert direct_reads(network, (), last=True) == {"input"}
    assert len(set(ids(network))) == len(network.rows)


def test_a_network_that_only_returns_a_parameter_is_a_layer():
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return self.table

    assert len(same_when_cut(Only(), torch.randn(4, 6), stages=(1,)).rows) == 1


class Block(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.linear, self.mode = nn.Linear(6, 6), mode

    def forward(self, x):
        if self.training is self.mode:
            x = functional.relu(x)
        return functional.relu(self.linear(x))


def before(net, x):
    x = net.a(x)
    if net.training is net.mode:
        x = functional.relu(x)
    return net.c(functional.relu(net.b(x)))


def after(net, x):
    x = functional.relu(net.b(functional.relu(net.a(x))))
    return functional.relu(net.c(x)) if net.training is net.mode else net.c(x)


def shared(net, x):
    return net.a(net.block(net.block(net.block(x))))


def another_call(net, x):
    if net.training is net.mode:
        x = net.a(x)
    return net.a(net.b(x))


def other_order(net, x):
    return net.a(net.b(x)) if net.training is net.mode else net.b(net.a(x))


def other_branch_first(net, x):
    first, second = (net.a, net.b) if net.training is net.mode else (net.b, net.a)
    one, other = first(x), second(x)
    return net.c(one + other)


def paths_dropped(net, x):
    for part in (net.a, net.b, net.c):
        y = part(x)
        x = x + (y * torch.full_like(y[:, :1], 0.5) if net.training is net.mode else y)
    return x


ORDERS = [before, after, shared, another_call, other_order, other_branch_first, paths_dropped]


class Modes(nn.Module):
    def __init__(self, order, mode):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.block = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), Block(mode)
        self.order, self.mode = order, mode

    def forward(self, x):
        return self.order(self, x)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("order", ORDERS)
def test_an_operation_of_one_mode_alone_is_no_cycle(order, mode):
    """It shifted the count of every later use of the operation: "the graph has a cycle"."""
    network = same_when_cut(Modes(order, mode), torch.randn(4, 6))
    rows = {row.id: row for row in network.rows}
    if order in (before, after):
        lone = [row.id for row in network.rows if len(row.programs) == 1 and row.kind == "relu"]
        assert len(lone) == 1 and sum(row.kind == "relu" for row in network.rows) == (2 if order is before else 3)
        assert all(set(rows[part].programs) == {True, False} for part in "abc")
    if order is other_branch_first:
        assert all(set(rows[part].programs) == {True, False} for part in "abc")


def test_running_statistics_are_in_one_layer_of_both_modes():
    """In two layers, evaluation would read a copy that training never changes."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.other = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

        def forward(self, x):
            return self.other(self.norm(x)) if self.training else self.norm(self.other(x))

    network = same_when_cut(Normed(), torch.randn(4, 6), stages=(1,))
    assert [row.id for row in network.rows if "norm.running_mean" in row.keys] == ["Normed"]
    assert "different orders" in network.opaque[0]


class Twice(nn.Module):
    """Calls a norm a second time in one mode, with another layer between both."""

    def __init__(self, mode):
        super().__init__()
        self.norm, self.mix, self.mode = nn.BatchNorm1d(6), nn.Linear(6, 6), mode

    def forward(self, x):
        x = self.norm(x)
        return self.mix(self.norm(self.mix(x)) if self.training is self.mode else x)


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x):
        return self.mix(self.norm(x)), self.norm.running_mean


@pytest.mark.parametrize(
    "module", [Twice(True), Twice(False), Statistics()], ids=["training", "evaluation", "returned"]
)
def test_statistics_that_change_are_in_one_layer_and_compared_rightly(module):
    """Verification took the first call of a layer for its second, and a returned buffer for its later value."""
    example = torch.randn(4, 6)
    network = trace(module, example)
    verify(network, torch.randn(5, 6), engine=PlainEngine(), stages=2)
    assert sum("norm.running_mean" in row.keys for row in network.rows) == 1


@pytest.mark.parametrize("persistent", [True, False])
def test_a_sparse_buffer_is_no_part_of_a_checkpoint(persistent):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.register_buffer("adjacency", torch.eye(6).to_sparse(), persistent=persistent)

        def forward(self, x):
            return self.last(torch.sparse.mm(self.adjacency, self.mix(x).t()).t())

    if persistent:
        with raises("model.layout_unsupported", key="adjacency", layout="torch.sparse_coo"):
            trace(Graph(), torch.randn(4, 6))
    else:
        assert {"mix", "last"} <= set(ids(same_when_cut(Graph(), torch.randn(4, 6))))


@pytest.mark.parametrize(
    "name", "seed table network engine layer_ids result enter run_layer synchronise draws_by_layer".split()
)
def test_parts_have_any_name(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
            self.out = nn.Linear(6, 2)
            self.out.register_parameter(name, nn.Parameter(torch.ones(2)))

        def forward(self, x):
            return self.out(self._modules[name](x)) * self.out._parameters[name]

    network = same_when_cut(Named(), torch.randn(4, 6))
    assert {f"{name}.0.weight", f"{name}.1.running_var", f"out.{name}"} <= set(network.layer_of)
    stage = network.build(engine=PlainEngine())
    assert set(stage.state_dict()) == set(network.module.state_dict())
