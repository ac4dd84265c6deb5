"""The law of traced networks: cut anywhere, a module gives the same numbers, gradients and buffers, to the last bit."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import cycle

import pytest
import torch
import traced_orders
from coded import mentions, raises
from torch import nn
from traced_zoo import EXACT, ZOO, build, engine, missing

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.base import layer_by_layer
from sparsepipe.networks.images.resnet import resnet
from sparsepipe.networks.traced import trace, verify
from sparsepipe.networks.traced.building import build_module
from sparsepipe.networks.traced.verification import differences, mean_square, run_cut

CANNOT_BE_CUT = {"root decides"}


@cache
def traced(name):
    """Trace a network of the zoo once."""
    if why := missing(name):
        pytest.skip(why)
    module, inputs = build(name)
    return trace(module, inputs, name=name), inputs


@pytest.mark.parametrize("name", ZOO)
def test_cut_anywhere_it_is_the_same_network(name):
    network, inputs = traced(name)
    for stages, training in ((0, True), (0, False), (3, True)):  # 0: every layer its own stage
        found = differences(network, inputs, engine=engine(name), stages=stages, training=training)
        # MinkowskiEngine adds up in an order of its own each time
        assert found == [] if name in EXACT else max((each.relative for each in found), default=0) < 1e-12
    assert (len(network.rows) > 3) == (name not in CANNOT_BE_CUT)


@pytest.mark.parametrize("name", ["noise", "both dropouts", "recurrent", "vit", "checkpointed"])
def test_what_is_drawn_does_not_depend_on_the_cut(name):
    network, inputs = traced(name)
    options = {"engine": PlainEngine(), "loss": mean_square, "training": True, "seeded": True}
    ids = [row.id for row in network.rows]
    whole = run_cut(network, inputs, stages=[ids], minibatch=3, **options)
    again = run_cut(network, inputs, stages=[[id] for id in ids], minibatch=3, **options)
    other = run_cut(network, inputs, stages=[ids], minibatch=4, **options)
    leaves = torch.utils._pytree.tree_leaves
    assert all(map(torch.equal, leaves(whole.outputs), leaves(again.outputs)))
    assert not all(map(torch.equal, leaves(whole.outputs), leaves(other.outputs)))


@pytest.mark.parametrize("name", [name for name in ZOO if not missing(name)])
def test_stages_have_the_modules_names_and_no_others(name):
    network, _ = traced(name)
    saved = dict(network.module.state_dict())
    canonical = {id(tensor) for tensor in network.module.state_dict(keep_vars=True).values()}
    found = {}
    for row in network.rows:
        found.update(network.build([row.id], engine=PlainEngine()).state_dict())
    assert set(found) <= set(saved)
    named = network.module.state_dict(keep_vars=True)
    assert {id(named[key]) for key in found} == canonical, "every tensor of the module is in a layer"
    for key, tensor in found.items():
        assert torch.equal(tensor, saved[key])
    trained = sum(p.numel() for p in network.module.parameters() if p.requires_grad)
    assert sum(row.num_parameters for row in network.rows) == trained


def test_rounding_is_no_difference():
    """A translator was refused: in another place of memory its LSTMs round the last digit otherwise."""
    draw = torch.Generator().manual_seed(0)
    module = build_module("gnmt-small", {}, {"vocabulary_size": 50}, seed=0)
    words = {name: torch.randint(3, 50, (2, size), generator=draw) for name, size in (("source", 24), ("target", 20))}
    assert len(trace(module, {**words, "source_mask": torch.ones(2, 24, dtype=torch.bool)}).rows) > 20


def test_the_module_stays_as_it_is():
    for name in ("norms", "in place"):
        module, inputs = build(name)
        module.train()
        next(module.children()).eval()
        modes = [part.training for part in module.modules()]
        before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        flags = [getattr(part, "inplace", None) for part in module.modules()]
        random = torch.get_rng_state()
        trace(module, inputs)
        assert torch.equal(random, torch.get_rng_state())
        assert modes == [part.training for part in module.modules()]
        assert flags == [getattr(part, "inplace", None) for part in module.modules()]
        assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())
        assert set(before) == set(module.state_dict())


def test_what_cannot_be_looked_into_is_said_in_a_line_each():
    said = []
    module, inputs = build("writes views")
    network = trace(module, inputs, name="net.py:build", say=said.append)
    assert said == list(network.opaque)
    assert [mentions(line, "net.py:build", "writer (Writer)") for line in said] == [True]
    module, inputs = build("root decides")
    (line,) = trace(module, inputs, name="net.py:build").opaque
    assert "traced_zoo.py:" in line and "`return self.b(x) if" in line and "\n" not in line


class Raises(nn.Linear):
    def forward(self, x):
        raise ValueError("no such\nthing")


class Says(nn.Linear):
    def forward(self, x):
        return "a string"


class Keeps(nn.Linear):
    def forward(self, x):
        return x


class Reader(nn.Module):
    """Without gradients torch runs its LSTM by another kernel, which rounds otherwise in the seventh digit."""

    def __init__(self):
        super().__init__()
        self.read, self.tell = nn.LSTM(64, 64, num_layers=2, batch_first=True), nn.Linear(64, 500)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.3, 0.3)

    def forward(self, x):
        return self.tell(self.read(x)[0])


def test_an_lstm_that_rounds_differently_without_gradients_is_the_same_network():
    torch.manual_seed(0)
    module, inputs = Reader(), torch.randn(4, 16, 64)
    expected = module(inputs)
    with torch.no_grad():
        assert not torch.allclose(module(inputs), expected, rtol=1e-5, atol=1e-7)
    network = trace(module, inputs)
    assert [row.id for row in network.rows] == ["read", "tell"] and not network.opaque


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (Raises(2, 2), ("module.raises", "net: the forward of Raises", "ValueError", "no such thing")),
        (Says(2, 2), ("module.returns_object", "net: the forward of Says", "str")),
        (nn.ReLU(), ("model.no_parameters", "net", "ReLU")),
        (Keeps(2, 2), ("model.nothing_to_train", "net", "Keeps")),
        ("exported", ("module.train_fails", "net", "True", "raises Not")),
        ("a string", ("model.not_a_module", "net", "str")),
    ],
)
def test_what_is_no_network_is_refused_in_a_line(module, error):
    if module == "exported":  # here: torch.export takes two seconds of whoever only collects tests
        module = torch.export.export(nn.Linear(2, 2), (torch.zeros(2, 2),)).module()
    with raises(*error) as caught:
        trace(module, torch.randn(2, 2), name="net")
    assert "\n" not in str(caught.value)


def test_verify_tells_a_kink_from_another_network():
    """Sparse sums come in another order from one pass to the next: MinkowskiEngine's did so at a ReLU whose input was
    0 but for that, and the network was refused."""
    module, inputs = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), torch.ones(2, 3)
    weights = [weight.detach().clone() for weight in module.parameters()]
    zero, roundings = module(inputs).sum().detach(), cycle((1e-7, 1e-7, -1e-7, -1e-7))  # whole twice, cut twice

    def loss(output):
        return (output.sum() - zero + next(roundings)).relu()

    network = trace(module, inputs)
    off = max(difference.relative for difference in differences(network, inputs, engine=PlainEngine(), loss=loss))
    assert off == 1, "one pass has the gradient, the other has none"
    verify(network, inputs, engine=PlainEngine(), loss=loss)
    assert all(map(torch.equal, module.parameters(), weights)), "its weights are what they were"


def test_verify_names_the_first_layer_that_differs():
    module, inputs = build("resnet")
    network = trace(module, inputs, name="net")
    verify(network, inputs, engine=PlainEngine())

    class Careless(PlainEngine):
        """Loses a little where a boundary is."""

        def join(self, parts):
            return {name: rows * (1 + 1e-6) for name, rows in super().join(parts).items()}

    ids = [row.id for row in network.rows]
    cut = ids.index("layer1.conv2")
    with raises("model.stages_differ", "training", "value layer1.conv2", layer="layer1.conv2"):
        verify(network, inputs, engine=Careless(), stages=[ids[:cut], ids[cut:]])


def test_the_comparison_can_fail_by_a_gradient():
    """A stage that does not hand its gradient back leaves those before it without."""
    network, inputs = traced("plain")
    network = replace(network, differentiable=frozenset())
    found = differences(network, inputs, engine=PlainEngine())
    assert found and {difference.what.split(" of ")[0] for difference in found} == {"gradient"}


def test_other_sizes_than_the_examples_are_the_same_network():
    for name in ("gpt", "resnet", "vit", "late masks", "recurrent"):
        network, inputs = traced(name)
        larger = torch.utils._pytree.tree_map(lambda tensor: torch.cat([tensor, tensor]), inputs)
        assert differences(network, larger, engine=PlainEngine(), stages=0) == []
    network, inputs = traced("gpt")
    assert differences(network, inputs[:, :4], engine=PlainEngine(), stages=0) == []


def test_a_size_that_decided_is_checked():
    module, inputs = build("shapes")
    network = trace(module, inputs, name="net")
    assert differences(network, inputs[:, :, :, :4], engine=PlainEngine(), stages=2) == []
    stage = network.build(engine=PlainEngine())
    with raises("module.decides_by_size", "Shapes"):
        stage(stage.enter(inputs[:, :, :6]), minibatch=0)


def test_masks_and_sizes_of_inputs_are_not_sent():
    """What is made of inputs alone, each stage makes itself."""
    network, inputs = traced("late masks")
    assert network.inputs == network.direct_inputs == ("input:ids", "input:kinds", "input:keep")
    ids = [row.id for row in network.rows]
    for cut in range(1, len(ids)):
        assert len(network.alive(ids[:cut])) <= 3
        assert not set(network.alive(ids[:cut])) & set(network.inputs)


def test_a_tied_weight_is_a_layer_of_its_own():
    network, inputs = traced("tied language model")
    first = network.rows[0]
    assert (first.id, first.kind, first.inputs, first.outputs) == ("embed.weight", "parameter", (), ("embed.weight",))
    assert [row.id for row in network.rows if "embed.weight" in row.inputs] == ["embed", "out"]
    assert "embed.weight" in network.alive([row.id for row in network.rows[:4]])
    assert "embed.weight" in network.differentiable


def test_a_head_that_trains_alone_is_missing_in_evaluation():
    network, inputs = traced("inception")
    ids = [row.id for row in network.rows]
    behind = ids[: ids.index("aux") + 1]
    assert "aux" in network.alive(behind, training=True)
    assert "aux" not in network.alive(behind, training=False)
    stage = network.build(engine=PlainEngine()).eval()
    given = stage(stage.enter(inputs), minibatch=0)
    assert "aux" not in given
    assert isinstance(stage.result(given), torch.Tensor)
    assert type(stage.train().result(stage(stage.enter(inputs), minibatch=0))).__name__ == "Heads"


def test_frozen_parts_are_no_trained_parameters():
    network, inputs = traced("frozen")
    rows = {row.id: row for row in network.rows}
    assert rows["trunk.0"].num_parameters == 0
    assert not {"trunk.0", "trunk.2", "mul:0"} & network.differentiable
    assert {"tuned.weight", "head"} <= network.differentiable


def test_rectified_values():
    network, _ = traced("plain")
    assert network.rectified == {"1", "2", "3"}  # ReLU, max pool behind it, flatten of that
    network, _ = traced("resnet")
    assert network.rectified == {"layer1.relu", "layer1.relu-2", "layer2.relu", "layer2.relu-2"}


def test_a_layer_says_what_it_misses():
    network, _ = traced("plain")
    stage = network.build(["1"], engine=PlainEngine())
    with raises("layer.input_missing", "0", "input", layer="1"):
        stage({"input": torch.zeros(1)}, minibatch=0)
    with raises("plan.layer_unknown", "nothing"):
        network.build(["nothing"], engine=PlainEngine())


def test_layers_one_by_one_let_go_of_what_is_not_read_again():
    network, inputs = traced("dense")
    stage = network.build(engine=PlainEngine())
    tensors = stage.enter(inputs)
    most = 0
    for _ in layer_by_layer(stage, tensors, minibatch=0, keep=network.outputs):
        most = max(most, len(tensors))
    assert set(tensors) == set(network.outputs)
    assert most < len(network.rows)


def test_plain_arguments_are_those_of_the_example():
    network, inputs = traced("tied language model")
    stage = network.build(engine=PlainEngine())
    assert set(stage.enter({"bias": inputs["bias"]})) == {"input:bias"}
    with raises("example.argument_differs", "3.0", "2.0", name="input:scale"):
        stage.enter({**inputs, "scale": 3.0})
    with raises("example.argument_unknown", name="input:other"):
        stage.enter({"other": torch.zeros(1)})


class Halves:
    """Two processes with the same rows, as seen by one."""

    def gather(self, own):
        return [own, own]

    def sum(self, own):
        own *= 2


def test_batch_norms_share_their_statistics():
    network, inputs = traced("resnet")
    stage = network.build(engine=PlainEngine())
    again = network.build(engine=PlainEngine())
    assert again.synchronise(Halves()) == 5
    first = stage(stage.enter(inputs), minibatch=0)["fc"]
    torch.testing.assert_close(again(again.enter(inputs), minibatch=0)["fc"], first)
    variances = (dict(each.named_buffers())["layer1.bn1.running_var"] for each in (stage, again))
    alone, shared = variances
    rows = 3 * 6 * 6
    unbiased = rows / (rows - 1), 2 * rows / (2 * rows - 1)
    torch.testing.assert_close((alone - 0.9) / unbiased[0], (shared - 0.9) / unbiased[1])
    assert again.synchronise(None) == 5


def test_a_graph_has_the_layers_and_their_bytes():
    network, _ = traced("resnet")
    graph = network.graph()
    assert [layer.id for layer in graph.layers] == [row.id for row in network.rows]
    assert sum(layer.parameter_bytes for layer in graph.layers) == 8 * sum(
        p.numel() for p in network.module.parameters()
    )
    add = graph.index["layer1.add"]
    assert {graph.layers[i].id for i in graph.inputs[add]} == {"conv", "layer1.bn2"}


def test_known_networks_have_the_layers_that_pipedream_counts():
    """ResNet-50: 53 convolutions and batch norms, 49 ReLUs, 16 additions, two pools, a flatten, a linear layer."""
    module = resnet(50, num_classes=3, width=0.05)
    network = trace(module, torch.randn(2, 3, 32, 32))
    kinds = Counter(row.kind for row in network.rows)
    assert len(network.rows) == 175
    assert (kinds["Conv2d"], kinds["BatchNorm2d"], kinds["ReLU"], kinds["add"]) == (53, 53, 49, 16)


@pytest.mark.slow
def test_every_process_finds_the_same_order() -> None:
    """Replicas average what they have in order: names in the order of a set's hashes mixed variances with means.

    Another process has other hashes than this one, whose own are drawn unless the environment says which.
    """
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, traced_orders.__file__]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    elsewhere = json.loads(done.stdout)
    assert elsewhere.pop("mnist-convnet") == traced_orders.order(traced_orders.convnet(), "mnist-convnet")
    assert list(elsewhere) == traced_orders.NAMES
    for name, found in elsewhere.items():
        assert found == traced_orders.order(traced(name)[0], name), name
