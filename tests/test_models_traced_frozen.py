"""What a recording takes from its own minibatch is noticed: such modules stay Python; buffers change as in torch."""

import copy
import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from coded import raises
from torch import nn

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.traced import trace, verify
from sparsepipe.networks.traced.verification import differences

COMPILED = str(Path(__file__).with_name("compiled_functions.py"))  # not imported: torch warns of its old functions


class Middle(nn.Module):
    """A module in the middle of a network, whose forward and attributes a test says."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.function(self, self.linear(x))


def network_of(function, **attributes):
    torch.manual_seed(0)
    middle = Middle(function, **attributes)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), middle, nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()


def samples(count, *, width=4):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).double()


def counted(self, x):
    self.calls += 1
    return x / self.calls


def counted_in_a_dict(self, x):
    self.counts["calls"] = self.counts.get("calls", 0) + 1
    return x if self.counts["calls"] < 100 else 2 * x


def grown(self, x):
    self.history.append(0)
    return x * len(self.history)


def annealed(self, x):
    self.drop.p = min(0.5, self.drop.p + 0.01)
    return self.drop(x)


def averaged(self, x):
    self.average = 0.9 * self.average + 0.1 * x.detach().abs().mean()
    return x / self.average


def with_the_last(self, x):
    last, self.last = self.last, x.detach()
    return x if last is None or last.shape != x.shape else x + last


def from_a_list(self, x):
    found = []
    for row in x.unbind(0):
        found.append(2 * row)
    return torch.stack(found)


def by_lengths(self, x):
    lengths = torch.ones_like(x[:, 0]).long()
    return torch.cat([2 * part for part in torch.split(x, lengths.tolist())])


STAY_PYTHON = {
    "a counter": (counted, {"calls": 0}),
    "a counter in a dict": (counted_in_a_dict, {"counts": {}}),
    "a list that grows": (grown, {"history": []}),
    "an annealed dropout": (annealed, {"drop": nn.Dropout(0.1)}),
    "a running statistic": (averaged, {"average": torch.tensor(1.0)}),
    "the minibatch before": (with_the_last, {"last": None}),
    "Python's random": (lambda self, x: 2 * x if random.random() < 0.5 else x.sin(), {}),
    "numpy's random": (lambda self, x: x * float(np.random.rand()), {}),
    "a generator": (lambda self, x: 2 * x if self.draws.random() < 0.5 else x, {"draws": random.Random(0)}),
    "numpy's generator": (lambda self, x: x * self.draws.random(), {"draws": np.random.default_rng(0)}),
    "torch's random in Python": (lambda self, x: x * torch.empty(1).uniform_().item(), {}),
    "a branch by a drawn number": (lambda self, x: 2 * x if torch.rand(1).item() < 0.5 else x.sin(), {}),
    "a loop over samples": (from_a_list, {}),
    "lengths": (by_lengths, {}),
    "rows in a list": (lambda self, x: torch.stack([2 * row for row in x]), {}),
    "whether there is one sample": (lambda self, x: 2 * x if x.shape[0] > 1 else x.sin(), {}),
    "a mask in a list": (lambda self, x: x * torch.tensor([1.0] * x.shape[0])[:, None], {}),
}


@pytest.mark.parametrize("name", STAY_PYTHON)
def test_a_module_that_does_something_else_each_time_stays_python(name):
    function, attributes = STAY_PYTHON[name]
    network = trace(network_of(function, **copy.deepcopy(attributes)), samples(2))
    assert network.opaque_paths == {"2"}
    assert [row.id for row in network.rows] == ["0", "1", "2", "3", "4", "5"]
    for count in (1, 2, 3, 5):
        assert differences(network, samples(count), engine=PlainEngine(), stages=0) == []


def made_once(self, x):
    if self.shift is None:
        self.shift = torch.arange(4.0)
    return x + self.shift


def kept_for_a_look(self, x):
    self.seen = x
    return 2 * x


ARE_CUT = {
    "halves": (lambda self, x: torch.cat(list(reversed(x.chunk(2, 1))), 1), {}),
    "a loop over channels": (lambda self, x: torch.stack([column.sin() for column in x.unbind(1)], 1), {}),
    "sizes": (lambda self, x: x + torch.zeros(x.shape[0], 1) + x[: x.shape[0] // 2].sum(), {}),
    "noise": (lambda self, x: x * torch.rand(1).item() + torch.randn_like(x), {}),
    "a tensor made once": (made_once, {"shift": None}),
    "a tensor that nobody reads": (kept_for_a_look, {"seen": None}),
}


@pytest.mark.parametrize("name", ARE_CUT)
def test_what_is_the_same_in_every_minibatch_is_cut(name):
    function, attributes = ARE_CUT[name]
    network = trace(network_of(function, **attributes), samples(2))
    assert network.opaque == () and "2.linear" in [row.id for row in network.rows]
    for count in (2, 3, 5):
        assert differences(network, samples(count), engine=PlainEngine(), stages=0) == []


class Root(nn.Module):
    """Decides in its own forward, which torch.export records if torch.fx does not."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 4), nn.Linear(4, 2), function

    def forward(self, x):
        return self.b(self.function(self.a(x)))


@pytest.mark.parametrize("asked", [lambda x: torch.is_grad_enabled(), lambda x: x.requires_grad], ids=["mode", "value"])
@pytest.mark.parametrize("whole", [False, True])
def test_evaluation_is_recorded_as_a_run_evaluates(asked, whole):
    if whole:
        module = Root(lambda x: 2 * x if asked(x) else x.sin()).double()
    else:
        module = network_of(lambda self, x: 2 * x if asked(x) else x.sin())
    inputs, network = samples(3), trace(module, samples(2))
    assert network.opaque_paths == ({""} if whole else {"2"})
    stage = network.build(engine=PlainEngine()).eval()
    with torch.no_grad():
        assert torch.equal(stage.result(stage(stage.enter(inputs), minibatch=0)), module.eval()(inputs))
    assert differences(network, inputs, engine=PlainEngine(), stages=0) == []


def test_a_hook_on_a_gradient_trains_as_part_of_a_layer():
    """In evaluation, without gradients, torch refuses it: that phase is there if it is asked for."""
    module = network_of(lambda self, x: (x.register_hook(lambda gradient: 3 * gradient), x)[1])
    with raises("module.raises", "the forward of Sequential", kind="RuntimeError"):
        trace(module, samples(2))
    network = trace(module, samples(2), phases=(True,))
    assert (network.opaque_paths, network.phases) == ({"2"}, (True,))
    assert differences(network, samples(3), engine=PlainEngine(), stages=0) == []


def test_a_network_that_export_records_is_compared_on_one_sample():
    network = trace(Root(lambda x: x if x.shape[0] > 1 else 2 * x).double(), samples(2))
    assert network.opaque_paths == {""}
    assert differences(network, samples(1), engine=PlainEngine(), stages=0) == []


def test_a_loop_over_a_length_that_changes_later_is_refused():
    module = network_of(lambda self, x: torch.stack([step.sin() for step in x.unbind(1)], 1))
    network = trace(module, torch.randn(2, 5, 4).double())
    stage = network.build(engine=PlainEngine())
    with raises("module.decides_by_size", "Sequential.2"):
        stage(stage.enter(torch.randn(2, 7, 4).double()), minibatch=0)


counts = {"calls": 0}


class OfAll(nn.Linear):
    """Counts where each instance and each process does; what the count changes comes later than any trace."""

    calls = 0

    def __init__(self, count):
        super().__init__(4, 4)
        self.count, self.steps = count, iter([1.0] * 1000)

    def forward(self, x):
        if self.count == "a class":
            type(self).calls += 1
        elif self.count == "a global":
            counts["calls"] += 1
        elif self.count == "an iterator":
            x = x * next(self.steps)
        return super().forward(x if max(counts["calls"], self.calls) < 1000 else 2 * x)


@pytest.mark.parametrize(
    ("count", "name"),
    [("a class", "OfAll.calls"), ("a global", "counts"), ("an iterator", "OfAll.steps")],
)
def test_what_python_counts_outside_of_modules_is_refused_by_name(count, name):
    with raises("module.changes_attribute", name):
        trace(nn.Sequential(OfAll(count), nn.Linear(4, 2)).double(), samples(2))
    assert trace(nn.Sequential(OfAll(""), nn.Linear(4, 2)).double(), samples(2)).opaque == ()


@pytest.mark.parametrize("make", [lambda: nn.Parameter(torch.ones(4).double()), lambda: nn.Linear(4, 4).double()])
def test_parameters_that_a_forward_makes_are_refused_by_name(make):
    def function(self, x):
        if self.own is None:
            self.own = make()
        return x * getattr(self.own, "bias", self.own)

    module = network_of(function, own=None)
    with raises("module.makes_parameters", "2.own"):
        trace(module, samples(2))
    assert module[2].own is None and len(list(module.parameters())) == 8


class Hooked(nn.Module):
    """Reads what a hook kept."""

    def __init__(self, keep):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.kept = {}
        self.a.register_forward_hook(lambda module, args, output: self.kept.__setitem__("a", keep(output)))

    def forward(self, x):
        return self.c(torch.relu(self.b(self.a(x) + self.kept["a"].mean(0))))


@pytest.mark.parametrize("keep", [lambda value: value, torch.Tensor.detach], ids=["whole", "detached"])
def test_an_activation_that_a_hook_keeps_is_that_of_each_minibatch(keep):
    network = trace(Hooked(keep).double(), samples(2))
    for count in (3, 5):
        assert differences(network, samples(count), engine=PlainEngine(), stages=0) == []


class Follows(nn.Module):
    """A copy of a layer follows its weights, as BYOL's: stages would not, and the user's module changed with it."""

    def __init__(self):
        super().__init__()
        self.a, self.copy, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        self.copy.weight.data = self.copy.weight.data.lerp(self.a.weight.data, 0.5)
        return self.b(self.a(x) + self.copy(x).detach())


class Adversary(nn.Module):
    """The loss of a generator has no gradient for its judge, whose parameters are frozen for one call of it."""

    def __init__(self):
        super().__init__()
        self.makes, self.judges = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x):
        made = self.makes(x)
        loss = self.judges(x).square().mean() + self.judges(made.detach()).exp().mean()
        self.judges.requires_grad_(False)
        loss = loss - self.judges(made).mean()
        self.judges.requires_grad_(True)
        return loss


def test_parts_that_a_forward_freezes_for_a_call_are_no_layers():
    """They were, and got the gradients that the forward kept from them."""
    said = []
    network = trace(Adversary().double(), samples(4), name="net", say=said.append)
    assert network.opaque_paths == {""} and "requires_grad of judges.0" in said[0]
    assert differences(network, samples(3), engine=PlainEngine(), stages=0) == []


def test_weights_that_a_forward_changes_are_as_they_were():
    module = Follows().double()
    before = module.copy.weight.detach().clone()
    with raises("module.changes_weights", "copy.weight"):
        trace(module, samples(4))
    assert torch.equal(module.copy.weight, before)


class PerSample(nn.Linear):
    def forward(self, x):
        return list(super().forward(x).unbind(0))


class Boxes(nn.Linear):
    def forward(self, x):
        return SimpleNamespace(scores=super().forward(x))


def by_the_clock(self, x, *, clock=[0.0]):  # noqa: B006 - as a module's global would be
    clock[0] += 0.25
    return x * clock[0]


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (PerSample(4, 2).double(), ("module.return_count", "2", "3")),
        (Boxes(4, 2).double(), ("module.returns_object", "SimpleNamespace")),
        (
            network_of(by_the_clock),
            ("model.not_traceable", "2 (Middle"),
        ),
    ],
)
def test_what_no_stage_can_do_is_refused_by_name(module, error):
    with raises(*error):
        trace(module, samples(2), name="net")


def test_another_minibatch_shows_what_the_examples_own_does_not():
    """Lengths of sequences, which the example with one sample more does not change."""
    module = network_of(lambda self, x: x + self.linear(torch.stack([row.tanh() for row in x.unbind(1)], 1)))
    longer = torch.randn(3, 7, 4).double()
    assert trace(module, torch.randn(2, 5, 4).double()).opaque_paths == set()
    network = trace(module, torch.randn(2, 5, 4).double(), another=longer)
    assert network.opaque_paths == {"2"}
    assert differences(network, torch.randn(2, 9, 4).double(), engine=PlainEngine(), stages=0) == []


def test_verify_finds_what_shows_in_the_second_of_two_minibatches():
    module = network_of(lambda self, x: x * self.factor, factor=2.0)
    network = trace(module, samples(2))
    verify(network, samples(3), engine=PlainEngine())
    module[2].function = lambda self, x: counted(self, x) * self.factor
    module[2].calls = 0
    with raises("model.stages_differ", "training"):
        verify(network, samples(3), engine=PlainEngine())


def test_tracing_leaves_generators_and_lists_as_they_were():
    draws, history = random.Random(1), []

    def function(self, x):
        self.history.append(self.draws.random() + random.random() + np.random.rand())
        return x * self.history[-1]

    module = network_of(function, draws=draws, history=history)
    before = draws.getstate(), random.getstate(), np.random.get_state()[1].tolist()
    trace(module, samples(2))
    assert (draws.getstate(), random.getstate(), np.random.get_state()[1].tolist()) == before
    assert module[2].history is history == []


class Averages(nn.Module):
    """Assigns buffers in its own forward: one that later layers read, one that none does."""

    def __init__(self, place):
        super().__init__()
        self.a, self.b, self.c, self.place = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), place
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        x = torch.tanh(self.a(x))
        if self.training and self.place == "first":
            self.ema = 0.9 * self.ema + 0.1 * x.detach().mean(0)
            self.count = self.count + 1
        y = self.c(torch.relu(self.b(x - self.ema)))
        if self.training and self.place == "last":
            self.ema = 0.9 * self.ema + 0.1 * y.detach().mean()
            self.count = self.count + 2
        return y


@pytest.mark.parametrize("place", ["first", "last"])
def test_buffers_that_are_assigned_are_updated_wherever_the_cut_is(place):
    torch.manual_seed(0)
    module = Averages(place).double()
    network = trace(module, samples(2))
    ids = [row.id for row in network.rows]
    assert network.opaque == () and len(ids) > 5
    for at in range(1, len(ids)):
        plain = copy.deepcopy(module).train()
        stages = [network.build(ids[a:b], engine=PlainEngine()) for a, b in pairwise((0, at, len(ids)))]
        for minibatch, count in enumerate((3, 2, 5)):
            expected = plain(samples(count))
            alive = stages[0].enter(samples(count))
            for stage in stages:
                given = stage({name: value.detach().clone() for name, value in alive.items()}, minibatch=minibatch)
                alive = {name: given[name] for name in network.alive(ids[:at])}
            assert torch.equal(stage.result(given), expected)
        buffers = {name: buffer for stage in stages for name, buffer in stage.named_buffers()}
        assert torch.equal(buffers["ema"], plain.ema) and torch.equal(buffers["count"], plain.count)
        assert plain.ema.abs().max() > 0
        assert set(buffers) == {"ema", "count"}
    assert differences(network, samples(3), engine=PlainEngine(), stages=0) == []


class OnePhase(nn.Module):
    def __init__(self, training):
        super().__init__()
        self.a, self.b, self.phase = nn.Linear(4, 4), nn.Linear(4, 2), training

    def forward(self, x):
        if self.training is not self.phase:
            raise NotImplementedError("not in this phase")
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize("training", [True, False])
def test_a_phase_that_is_not_used_need_not_run(training):
    module = OnePhase(training).double()
    network = trace(module, samples(2), phases=(training,))
    assert network.phases == (training,)
    verify(network, samples(3), engine=PlainEngine(), stages=0)
    with raises("module.raises", kind="NotImplementedError"):
        trace(module, samples(2), phases=(True, False))
    with raises("module.no_layers"):
        stage = network.build(engine=PlainEngine()).train(not training)
        stage(stage.enter(samples(2)), minibatch=0)


def _of_compiled():
    """Trace in a process of its own, which a function in C may end."""
    done = subprocess.run([sys.executable, COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_compiled_functions_are_layers_or_parts_of_one():
    """They took a stand-in for a tensor, and read its memory: the process ended without a word."""
    found = _of_compiled()
    assert len(found) == 10
    assert [unequal for _, _, unequal in found] == [[]] * len(found)
    layers = {name: ids for name, ids, _ in found}
    assert layers["scripted"] == ["0", "1", "2.linear", "2.ScriptFunction", "3"]
    assert layers["autograd, bound early"] == ["0", "1", "2.linear", "2.Doubled", "3"]
    assert layers["custom operation"] == ["0", "1", "2.linear", "2.sine", "3"]
    assert layers["storage"] == layers["numpy"] == ["0", "1", "2", "3"]
