"""Statements that cannot be recorded are one layer each: the rest of a network is cut, and equals the module."""

import inspect
import random

import pytest
import torch
from torch import nn

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.traced import trace
from sparsepipe.networks.traced.recording import own_draws
from sparsepipe.networks.traced.verification import differences, mean_square, run_cut


class Blocks(nn.Module):
    """Four blocks and a head; what happens between them, tests say."""

    def __init__(self, width=6):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4))
        self.head, self.gain = nn.Linear(width, 2), nn.Parameter(torch.tensor(1.5))
        self.register_buffer("limit", torch.tensor(0.2))


class Checks(Blocks):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            assert x.isfinite().all(), "finite"
        if x.numel() and x.abs().max() > 100:
            raise ValueError("too large")
        return self.head(x)


class Decides(Blocks):
    """Reads a parameter and a buffer itself, sets one variable in one branch alone."""

    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x))
        if x.abs().max() > self.limit:
            scale = self.gain / float(x.detach().abs().max())
            x = x * scale
        return self.head(self.blocks[3](self.blocks[2](x)))


class CountsRows(Blocks):
    def forward(self, x):
        x = self.blocks[0](x)
        rows = []
        for i in range(len(x)):
            rows.append(self.blocks[1](x[i]) / (i + 1))
        x = torch.stack(rows)
        return self.head(self.blocks[3](self.blocks[2](x)))


class WritesParts(Blocks):
    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x)) + 0.1
        x[x > 0.5] = 0.5
        x[:, :1] = self.gain
        return self.head(self.blocks[3](self.blocks[2](x)))


class LeavesEarly(Blocks):
    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x))
        if x.abs().max() < 0.1:
            return self.head(x), x
        x = self.blocks[2](x)
        return self.head(self.blocks[3](x)), x


class Skips(Blocks):
    def forward(self, x):
        for i, block in enumerate(self.blocks):
            if x.sum() > 3 + i:
                continue
            x = x + block(x)
        return self.head(x)


class HardExperts(Blocks):
    """Some experts get no rows, so that their gradient is zero."""

    def forward(self, x):
        chosen = (x[:, 0] > 0).long()
        y = torch.zeros_like(x)
        for i, block in enumerate(self.blocks):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                y[rows] = block(x[rows])
        return self.head(y)


class Method(Blocks):
    def forward(self, x):
        return self.head(self.features(x, scale=2.0))

    def features(self, x, *, scale):
        x = self.blocks[1](self.blocks[0](x))
        x = self.limited(x, scale) if x.max() > 0.3 else x
        return self.blocks[3](self.blocks[2](x))

    def limited(self, x, scale):
        return self.gain * x.clamp(max=float(self.limit)) * scale


class OneLargePart(nn.Module):
    """What cannot be recorded is in the part that has most parameters."""

    def __init__(self):
        super().__init__()
        self.stem, self.trunk = nn.Linear(6, 6), Decides()

    def forward(self, x):
        return {"logits": self.trunk(torch.relu(self.stem(x)))}


class CountsMinibatches(Blocks):
    """A buffer counts, and later statements read it: both are in one layer."""

    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x))
        if self.training:
            self.limit += 1
        x = self.blocks[2](x) / (1 + self.limit)
        return self.head(self.blocks[3](x))


class CallsLocal(Blocks):
    """Statements that cannot be recorded call functions of the forward."""

    def forward(self, x):
        def limited(x, most=0.3):
            return x.clamp(max=float(self.limit)) if top(x) > most else x

        def top(x):
            return float(x.detach().max())

        x = self.blocks[1](self.blocks[0](x))
        x = limited(x)
        return self.head(limited(self.blocks[3](self.blocks[2](x))))


class NormInside(Blocks):
    """A statement calls a batch norm, whose statistics are a stage's own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x))
        if x.isfinite().all():
            x = self.norm(x)
        return self.head(self.blocks[3](self.blocks[2](x)))


KINDS = [
    *(Checks, Decides, CountsRows, WritesParts, LeavesEarly, Skips, HardExperts, Method, OneLargePart, NormInside),
    *(CountsMinibatches, CallsLocal),
]


def samples(count):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(count)).double()


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_cut_around_a_statement(kind):
    torch.manual_seed(0)
    module, said = kind().double(), []
    network = trace(module, samples(4), name="net", say=said.append)
    assert len(network.rows) >= 4 and "" not in network.opaque_paths
    assert all(f"{__name__}.py:" in line for line in said) and said
    for count in (2, 3, 5, 8):
        for training in (True, False):
            for stages in (0, 2):
                found = differences(network, samples(count), engine=PlainEngine(), stages=stages, training=training)
                assert not found, (count, training, stages)
    saved = set(module.state_dict())
    held = [network.build([row.id], engine=PlainEngine()).state_dict() for row in network.rows]
    assert set().union(*held) == saved


def test_the_line_names_the_statement_and_its_cause():
    module = Decides().double()
    said = []
    trace(module, samples(4), name="net.py:build", say=said.append)
    (line,) = said
    assert "`if x.abs().max() > self.limit:`" in line


class PerSample(Blocks):
    """Joins what a loop over rows makes; the list before it and the scale's rows are no cause."""

    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.rand(2))

    def forward(self, x):
        x = self.blocks[0](x)
        total = sum(scale * x for scale in self.scales)
        rows = []
        for row in total:
            rows.append(row.tanh())
        x = torch.stack(rows)
        return self.head(self.blocks[1](x))


def test_the_line_is_that_of_the_cause_if_other_statements_join_it():
    said = []
    network = trace(PerSample().double(), samples(4), name="net.py:build", say=said.append)
    (line,) = said
    cause = inspect.getsource(PerSample.forward).splitlines()[4].strip()
    assert (cause in line, "TraceError" in line) == (True, False)
    assert differences(network, samples(3), engine=PlainEngine(), stages=0) == []


class Counts(Blocks):
    """A statement that counts minibatches would count on each stage's own."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        x = self.blocks[0](x)
        self.calls += 1
        x = x * self.calls
        return self.head(self.blocks[1](x))


def test_a_statement_that_changes_an_attribute_is_none():
    network = trace(Counts().double(), samples(4))
    assert network.opaque_paths == {""}


class Expands(Blocks):
    """Compares a size of 1 with the number of samples: with one sample Python decides otherwise, to the same end."""

    def forward(self, x):
        shift = torch.arange(6, dtype=x.dtype)[None]
        if shift.shape[0] != x.shape[0]:
            shift = shift.expand(x.shape[0], -1)
        return self.head(self.blocks[1](self.blocks[0](x + shift)))


def test_one_sample_is_taken_if_the_other_answer_leads_to_the_same():
    network = trace(Expands().double(), samples(4))
    assert len(network.rows) >= 3
    assert not differences(network, samples(1), engine=PlainEngine(), stages=2)


class Replaces(Blocks):
    """A buffer gets another tensor: a statement of its own would keep that to itself."""

    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x))
        if self.training:
            self.limit = 0.9 * self.limit + 0.1 * x.detach().mean()
        return self.head(self.blocks[3](self.blocks[2](x - self.limit)))


def test_a_buffer_that_is_replaced_is_kept():
    network = trace(Replaces().double(), samples(4))
    assert len(network.rows) >= 4
    for training in (True, False):
        assert not differences(network, samples(3), engine=PlainEngine(), training=training)


class Depth(Blocks):
    def forward(self, x):
        for block in self.blocks:
            if random.random() < 0.5:
                x = block(x)
        return self.head(x)


def test_what_python_draws_in_a_statement_does_not_depend_on_the_cut():
    torch.manual_seed(0)
    network = trace(Depth().double(), samples(4))
    ids = [row.id for row in network.rows]
    options = {"engine": PlainEngine(), "loss": mean_square, "training": True, "seeded": True}
    outputs = {}
    for minibatch in range(6):
        whole = run_cut(network, samples(3), stages=[ids], minibatch=minibatch, **options)
        with own_draws():
            random.seed(minibatch + 1000)
            cut = run_cut(network, samples(3), stages=[[id] for id in ids], minibatch=minibatch, **options)
        assert torch.equal(whole.outputs[0], cut.outputs[0])
        outputs[minibatch] = whole.outputs[0]
    assert not all(torch.equal(outputs[0], each) for each in outputs.values())
