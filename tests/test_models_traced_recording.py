"""Forwards that torch.fx and torch.export stumble over: one layer with the reason, and the process is as before."""

import pytest
import torch
import torch.nn.functional as functional
from coded import raises
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.traced import trace, verify
from sparsepipe.networks.traced.in_place import out_of_place
from sparsepipe.networks.traced.recording import CannotBeTraced
from sparsepipe.networks.traced.verification import differences, mean_square, run_cut


class Between(nn.Module):
    """Two layers with a function between them. Python that counts sends the whole on to torch.export."""

    def __init__(self, function, exported=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("rows", torch.rand(6))
        self.function, self.exported = function, exported

    def forward(self, x):
        if self.exported:
            x = sum((x for _ in range(x.shape[1])), torch.zeros(())) / x.shape[1]
        return self.last(self.function(self, self.first(x).sigmoid() * 0.5 + 0.3))


def still_works():
    """What a refused trace left behind, torch met in whatever came next."""
    found = []
    network = trace(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(4, 6), say=found.append)
    verify(network, torch.randn(3, 6), engine=PlainEngine())
    torch.func.vmap(lambda row: row * 2)(torch.ones(2, 2))
    return found == [] and len(network.rows) == 3


def same(module, example, *, within=0.0):
    said = []
    network = trace(module, example, say=said.append)
    for stages in (0, 2):
        for training in (True, False):
            found = differences(network, example, engine=PlainEngine(), stages=stages, training=training)
            assert max((each.relative for each in found), default=0.0) <= within
    return network, said


# Methods and what they are given; numbers above 1 as tensors.
CALLS = [(name, (2.0,)) for name in "add_ sub_ mul_ div_ pow_ fmod_ remainder_ hypot_ atan2_".split()]
CALLS += [(name, (2.0,)) for name in "floor_divide_ eq_ lt_ logical_and_ copysign_ xlogy_ nextafter_ copy_".split()]
CALLS += [(name, (0.5,)) for name in "add_ sub_ mul_ div_ pow_ fmod_ clamp_min_ fill_ floor_divide_ bernoulli_".split()]
CALLS += [(name, ()) for name in "abs_ neg_ sqrt_ exp_ log_ sigmoid_ tanh_ relu_ zero_ square_ t_ round_".split()]
CALLS += [
    ("lerp_", (2.0, 0.5)),
    ("lerp_", (2.0, 3.0)),
    ("addcmul_", (2.0, 3.0)),
    ("addcdiv_", (2.0, 3.0)),
    ("masked_fill_", (torch.tensor([True, False] * 3), 0.5)),
    ("index_fill_", (1, torch.tensor([0, 2]), 0.5)),
    ("index_add_", (0, torch.tensor([0]), torch.ones(1, 6))),
    ("index_put_", ((torch.tensor([0]),), torch.ones(6))),
    ("scatter_", (1, torch.zeros(4, 6, dtype=torch.int64), 0.5)),
    ("scatter_add_", (1, torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6))),
    ("scatter_reduce_", (1, torch.zeros(4, 6, dtype=torch.int64), torch.ones(4, 6), "sum")),
    ("polygamma_", (1,)),
    ("clamp_", (0.4, 0.6)),
    ("clamp_", (3.0, 2.0)),
    ("unsqueeze_", (0,)),
    ("transpose_", (0, 1)),
    ("squeeze_", ()),
    ("resize_", (2, 3)),
    ("normal_", (0.0, 1.0)),
    ("cumsum_", (0,)),
    ("renorm_", (2, 0, 0.5)),
    ("ldexp_", (2.0,)),
]


class Seen(TorchDispatchMode):
    """Notes the ATen operations that are called, with their arguments, before they change any."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = (args, kwargs or {})
        self.last = func, *pytree.tree_map_only(torch.Tensor, torch.clone, given)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "given"), CALLS, ids=[f"{name}{len(given)}" for name, given in CALLS])
def test_an_operation_in_place_has_one_that_gives_the_same(name, given):
    """PyG's degrees are raised by pow_ to a number: the exported one was taken for a number's power by a tensor."""
    h = torch.rand(4, 6) + 0.1
    given = [torch.full_like(h, each) if isinstance(each, float) and each > 1 else each for each in given]
    changed = h.clone()
    with Seen() as seen:
        torch.manual_seed(0)
        getattr(changed, name)(*given)
    calls = [("call_method", name, (h, *given), {}), ("call_function", *seen.last)]
    if hasattr(torch, name):
        calls.append(("call_function", getattr(torch, name), (h, *given), {}))
    for kind, changing, all_given, named in calls:
        try:
            target, args, kwargs, in_place = out_of_place(kind, changing, all_given, named)
        except CannotBeTraced as error:  # torch 2.9 writes the product of ldexp_ into out=
            assert error.code in ("module.works_in_place", "module.writes_into_out")
            continue
        before = args[0].clone()
        torch.manual_seed(0)
        found = getattr(args[0], target)(*args[1:]) if kind == "call_method" else target(*args, **kwargs)
        assert in_place and torch.equal(args[0], before)
        assert found.dtype == changed.dtype or name in ("eq_", "lt_", "logical_and_")
        assert torch.equal(found.to(changed.dtype), changed)


def power(net, h):
    h = h * 1
    degree = h.sum(1)
    degree.pow_(-0.5)
    degree.masked_fill_(degree == float("inf"), 0.0)
    found = degree[:, None] * h
    found.pow_(torch.full_like(h, 2.0))
    return found


def operators(net, h):
    other = h = h * 1
    h += 1
    h -= 0.1
    h /= torch.full_like(h, 2.0)
    h %= 1.7
    h **= torch.full_like(h, 2.0)
    return h + other


def copied(net, h):
    found = torch.zeros_like(h)
    found.copy_(h)
    return found


@pytest.mark.parametrize("exported", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize("function", [power, operators, copied])
def test_networks_that_work_in_place(function, exported):
    same(Between(function, exported), torch.randn(4, 6))


TRANSFORMS = {
    "vmap": lambda net, h: torch.func.vmap(lambda row: row * row.sum())(h),
    "vmap of a module": lambda net, h: torch.func.vmap(net.last)(h),
    "vmap with other values": lambda net, h: torch.func.vmap(lambda row: row + h.mean())(h),
    "grad": lambda net, h: torch.func.grad(lambda y: net.last(y).sum())(h),
    "jvp": lambda net, h: torch.func.jvp(torch.tanh, (h,), (torch.ones_like(h),))[1],
    "vjp": lambda net, h: torch.func.vjp(torch.tanh, h)[1](torch.ones_like(h))[0],
    "jacobian": lambda net, h: torch.func.vmap(torch.func.jacrev(torch.tanh))(h).sum(1),
    "hessian": lambda net, h: torch.func.vmap(torch.func.hessian(lambda row: row.tanh().sum()))(h).sum(1),
    "functionalize": lambda net, h: torch.func.functionalize(torch.tanh)(h),
}


@pytest.mark.parametrize("chosen", TRANSFORMS)
def test_transforms_of_torch_func_leave_the_process_as_it_was(chosen):
    """vmap was entered and never left, and grad crashed the process."""
    network, said = same(Between(TRANSFORMS[chosen]), torch.randn(4, 6))
    assert sum(row.kind not in ("buffer", "parameter") for row in network.rows) == 1 and "torch.func" in said[0]
    assert still_works()


def test_a_part_with_a_transform_is_one_layer_among_others():
    part = Between(TRANSFORMS["vmap"])
    network, said = same(nn.Sequential(nn.Linear(6, 6), part, nn.Linear(6, 6)), torch.randn(4, 6))
    assert [row.id for row in network.rows] == ["0", "1", "2"] and "torch.func" in said[0]
    assert still_works()


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())


@pytest.mark.filterwarnings("ignore")  # that torch.jit is on its way out
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda net: torch.jit.trace(net, torch.randn(4, 6))])
def test_compiled_modules_are_layers(compiled):
    """Their attributes are in C++: putting them back was a traceback, with the mode that they were in lost."""
    part = compiled(plain())
    before = {name: tensor.clone() for name, tensor in part.state_dict().items()}
    network, said = same(part, torch.randn(4, 6))
    assert len(network.rows) == 1 and "torch.jit" in said[0]
    network, said = same(nn.Sequential(nn.Linear(6, 6), part, nn.Linear(6, 6)), torch.randn(4, 6))
    assert [row.id for row in network.rows] == ["0", "1", "2"] and said == []
    assert part.training and all(torch.equal(before[name], tensor) for name, tensor in part.state_dict().items())


class Observer(nn.Module):
    """As quantization's: its buffers get their size in the first forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("least", torch.tensor([]))
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        least = x.detach().amin(0)
        if self.least.numel() == 0:
            self.least.resize_(least.shape)
            self.least.copy_(least)
        self.least.copy_(torch.minimum(self.least, least))
        return self.linear(x - self.least)


def test_buffers_may_be_resized_in_a_forward():
    for module in (Observer(), nn.Sequential(nn.Linear(6, 6), Observer(), nn.Linear(6, 6))):
        same(module, torch.randn(4, 6))
        assert {name: buffer.shape for name, buffer in module.named_buffers()}.popitem()[1] == (0,)


@pytest.mark.parametrize(
    "lookup",
    [
        nn.Embedding(10, 6, sparse=True),
        nn.EmbeddingBag(10, 6, sparse=True),
        nn.Sequential(nn.Embedding(10, 6, sparse=True), nn.Flatten(1, 2), nn.LazyLinear(6)),
    ],
)
def test_sparse_gradients_of_embeddings_are_dense_in_stages(lookup):
    module, words = nn.Sequential(lookup, nn.Linear(6, 6)), torch.randint(0, 10, (4, 3))
    module(words)
    same(module, words, within=1e-6)  # sums of a word's gradients come in another order


class Looked(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.table, self.out, self.function = nn.Parameter(torch.randn(10, 6)), nn.Linear(6, 2), function

    def forward(self, words):
        return self.out(self.function(words, self.table))


def counted(words, table):
    return functional.embedding(words, table, sparse=float(words.sum()) >= 0).sum(1)


def test_an_operation_without_a_derivative_is_told_in_a_line():
    network = trace(Between(lambda net, h: torch.floor_divide(h, 0.5) * h), torch.randn(4, 6))
    with raises("model.backward_raises", "floor_divide", kind="Between"):
        verify(network, torch.randn(4, 6), engine=PlainEngine())


def test_sparse_gradients_of_functions():
    words = torch.randint(0, 10, (4, 3))
    same(Looked(lambda words, table: functional.embedding(words, table, sparse=True).sum(1)), words, within=1e-6)
    same(Looked(lambda words, table: functional.embedding_bag(words, table, sparse=True)), words, within=1e-6)
    network = trace(Looked(counted), words)  # one layer, whose Python is as it was
    with raises("model.sparse_gradient", name="table"):
        verify(network, words, engine=PlainEngine())


class Handle:
    """A value as sparse libraries have it: an object around tensors. It looks at them as it is made."""

    def __init__(self, features, places):
        if float(features.sum()) == 0.5 or len(features) != len(places):
            raise ValueError("no such places")
        self.features, self.places = features, places


class Submanifold(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, handle):
        return Handle(self.linear(handle.features), handle.places)


class Handled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Submanifold(), Submanifold()

    def forward(self, x):
        return self.last(self.first(Handle(x, x[:, 0]))).features


def test_an_object_around_tensors_is_the_reason():
    """It was said that Python counts rows: it does so because an object is made, which no layer can take."""
    network, said = same(Handled(), torch.randn(4, 6))
    assert len(network.rows) == 1 and "Handle" in said[0]


class Cache:
    """As transformers': neither tensor nor a container of them."""


class Remembers(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x), "more": [{"cache": Cache()}]}


def test_entries_of_an_output_that_cannot_cross_are_left_out_by_name():
    """A language model with default settings was refused: its output has a cache, which no loss reads."""
    said = []
    network = trace(nn.Sequential(nn.Linear(6, 6), Remembers(6, 6)), torch.randn(4, 6), name="net", say=said.append)
    (line,) = said
    assert "more.0.cache (Cache)" in line
    verify(network, torch.randn(3, 6), engine=PlainEngine())
    found = run_cut(
        network, torch.randn(3, 6), engine=PlainEngine(), loss=mean_square, stages=[["0"], ["1"]], training=True
    )
    assert found.outputs[1] is None
