"""Stages cut anywhere equal the whole network: outputs, gradients, statistics, dropout; parts travel unchanged."""

import gc
import itertools

import pytest
import torch
from coded import raises
from engine_clouds import close, random_batch
from runtime_jobs import branching_order
from torch.func import functional_call

from sparsepipe.engines import Feature, Parts, Subnetwork, engine
from sparsepipe.networks import INPUT, Network, Row, network

NET = network("minkvgg11bn-narrow", num_classes=5)
IDS = [row.id for row in NET.rows]


def branching():
    """A small residual table: the input of `left` skips over it, and a stride crosses the middle."""
    channels = {"in_channels": 3, "out_channels": 3, "kernel_size": 3}
    return Network(
        "branching",
        (
            Row("first", "convolution", (INPUT,), channels | {"in_channels": 1}),
            Row("bn", "batch_norm", ("first",), {"channels": 3}),
            Row("pool", "max_pool", ("bn",), {"kernel_size": 2, "stride": 2}),
            Row("drop", "dropout", ("pool",), {"probability": 0.3}),
            Row("second", "convolution", ("drop",), channels),
            Row("global", "global_max_pool", ("second",)),
            Row("fc", "linear", ("global",), {"in_channels": 3, "out_channels": 2}),
        ),
        1,
        2,
    )


def loss_of(rows):
    return (rows * torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).reshape(rows.shape)).sum()


def relay(net, chosen, groups, batch, *, minibatch, seed=7, dtype=torch.float32):
    """Run the groups of layers as stages that share nothing but parts; return output rows and the stages' modules."""
    stages = [Subnetwork(net, chosen, ids, seed=seed).to(dtype) for ids in groups]
    tensor = chosen.tensor(batch)
    alive = {INPUT: chosen.replace(tensor, chosen.features(tensor).to(dtype))}
    crossings = []
    done = set()
    for stage, ids in zip(stages, groups, strict=True):
        done |= set(ids)
        needed = {name for row in net.rows if row.id not in done for name in row.inputs} or {net.rows[-1].id}
        alive = stage(alive, minibatch=minibatch, keep=needed)
        if len(done) < len(net.rows):
            sent = chosen.split(alive)
            arrived = {
                name: Feature(feature.rows.detach().clone().requires_grad_(), feature.coordinate_set)
                for name, feature in sent.features.items()
            }
            crossings.append((sent, arrived))
            sets = tuple(one._replace(coordinates=one.coordinates.clone()) for one in sent.coordinate_sets)
            alive = chosen.join(Parts(sets, arrived))
    rows = chosen.features(alive[net.rows[-1].id])
    loss_of(rows).backward()
    for sent, arrived in reversed(crossings):
        names = [name for name, feature in sent.features.items() if feature.rows.requires_grad]
        torch.autograd.backward([sent.features[n].rows for n in names], [arrived[n].rows.grad for n in names])
    return rows.detach(), stages


@pytest.mark.parametrize("cuts", [(1, 20), (12, 13, 14)])
def test_stages_equal_the_whole_network(chosen, cuts):
    batch = random_batch(channels=1, reach=40, num_points=200)
    whole, (one,) = relay(NET, chosen, [IDS], batch, minibatch=3)
    bounds = [0, *cuts, len(IDS)]
    rows, stages = relay(NET, chosen, [IDS[a:b] for a, b in zip(bounds, bounds[1:], strict=False)], batch, minibatch=3)
    close(rows, whole, 1e-6)
    states = {name: value for stage in stages for name, value in stage.state_dict().items()}
    assert set(states) == set(one.state_dict())
    for name, value in one.state_dict().items():
        close(states[name].double(), value.double(), 1e-6)
    gradients = {name: p.grad for stage in stages for name, p in stage.named_parameters()}
    for name, parameter in one.named_parameters():
        close(gradients[name], parameter.grad, 1e-5)


def test_stages_share_coordinates_of_skips(chosen):
    """Cuts through every skip of a U-Net, in double precision (see test_engines)."""
    net = network("minkunet14a-narrow", num_classes=5)
    batch = random_batch(channels=1, reach=20, num_points=300)
    ids = [row.id for row in net.rows]
    whole, (one,) = relay(net, chosen, [ids], batch, minibatch=3, dtype=torch.float64)
    bounds = [0, len(ids) // 5, len(ids) // 3, len(ids) // 2, len(ids) * 3 // 4, len(ids)]
    groups = [ids[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    rows, stages = relay(net, chosen, groups, batch, minibatch=3, dtype=torch.float64)
    close(rows, whole, 1e-10)
    for stage in stages:
        for parameter, value in stage.named_parameters():
            close(value.grad, one.get_parameter(parameter).grad, 1e-10)


@pytest.mark.parametrize("name", ["minkunet14a-narrow", "minkresnet14-narrow"])
def test_branches_may_lie_in_other_stages(chosen, name):
    """Stages of layers that are not neighbours in the table: a shortcut here, what it goes round there."""
    net, batch = network(name, num_classes=5), random_batch(channels=1, reach=20, num_points=300)
    place = {row.id: k for k, row in enumerate(net.rows)}
    order = branching_order(net.rows, 0)
    groups = [order[first : first + 6] for first in range(0, len(order), 6)]
    assert any(max(place[id] for id in one) > min(place[id] for id in two) for one, two in itertools.pairwise(groups))
    whole, (one,) = relay(net, chosen, [list(place)], batch, minibatch=3, dtype=torch.float64)
    rows, stages = relay(net, chosen, groups, batch, minibatch=3, dtype=torch.float64)
    close(rows, whole, 1e-10)
    for stage in stages:
        for parameter, value in stage.named_parameters():
            close(value.grad, one.get_parameter(parameter).grad, 1e-10)


def test_a_cut_of_single_layers_equals_the_whole(chosen):
    net, batch = branching(), random_batch(channels=1)
    ids = [row.id for row in net.rows]
    whole, (one,) = relay(net, chosen, [ids], batch, minibatch=1)
    rows, stages = relay(net, chosen, [[id] for id in ids], batch, minibatch=1)
    close(rows, whole, 1e-6)
    for stage in stages:
        for name, parameter in stage.named_parameters():
            close(parameter.grad, one.get_parameter(name).grad, 1e-5)


def test_join_then_split_is_the_identity(chosen):
    module = Subnetwork(NET, chosen, IDS[:8])
    tensors = module({INPUT: chosen.tensor(random_batch(channels=1))}, minibatch=0)
    parts = chosen.split(tensors)
    assert [s.tensor_stride for s in parts.coordinate_sets] == [(1, 1, 1), (2, 2, 2), (4, 4, 4)]
    again = chosen.split(chosen.join(parts))
    for one, two in zip(parts.coordinate_sets, again.coordinate_sets, strict=True):
        assert one.tensor_stride == two.tensor_stride
        assert one.coordinates.dtype == torch.int32
        assert torch.equal(one.coordinates, two.coordinates)
    for name, feature in parts.features.items():
        assert again.features[name].rows is feature.rows  # the very leaf that was sent in
        assert again.features[name].coordinate_set == feature.coordinate_set


def test_parameters_depend_on_seed_and_layer_alone(chosen):
    whole = Subnetwork(NET, chosen, seed=3).state_dict()
    part = Subnetwork(NET, chosen, IDS[20:], seed=3).state_dict()
    other = Subnetwork(NET, chosen, IDS[20:], seed=4).state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in part.items())
    assert not torch.equal(part["fc1.linear.weight"], other["fc1.linear.weight"])
    native = Subnetwork(NET, engine("native"), seed=3).state_dict()
    assert all(torch.equal(value, native[name]) for name, value in whole.items())


def test_dropout_masks_depend_on_the_minibatch_and_repeat(chosen):
    tail = Subnetwork(NET, chosen, ["dropout1"], seed=1)
    rows = torch.ones(6, 400)
    first, again, next_one = (tail({"relu_fc1": rows}, minibatch=m)["dropout1"] for m in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, next_one)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert 0.45 < float((first > 0).float().mean()) < 0.55
    assert torch.equal(tail.eval()({"relu_fc1": rows}, minibatch=4)["dropout1"], rows)


def test_functional_call_takes_versioned_leaves(chosen):
    module = Subnetwork(NET, chosen, IDS[:7])
    version = {name: p.detach().clone().mul_(2).requires_grad_() for name, p in module.named_parameters()}
    batch = random_batch(channels=1)
    tensors = functional_call(module, version, ({INPUT: chosen.tensor(batch)},), {"minibatch": 0, "keep": {IDS[6]}})
    chosen.features(tensors[IDS[6]]).square().sum().backward()
    assert all(value.grad is not None for value in version.values())
    assert all(p.grad is None for p in module.parameters())


def test_keep_lets_go_of_the_rest(chosen):
    module = Subnetwork(NET, chosen, IDS[:3])
    alive = {INPUT: chosen.tensor(random_batch(channels=1))}
    assert set(module(alive, minibatch=0)) == {INPUT, "conv1_1", "bn1_1", "relu1_1"}
    assert set(module(alive, minibatch=0, keep=("relu1_1",))) == {"relu1_1"}
    assert set(module(alive, minibatch=0, keep=("relu1_1", INPUT))) == {INPUT, "relu1_1"}


def test_batch_norm_uses_the_minibatch_in_training_and_running_statistics_after(chosen):
    row = Row("bn", "batch_norm", (INPUT,), {"channels": 2})
    module = Subnetwork(Network("bn", (row,), 2, 2), chosen)
    x = chosen.tensor(random_batch())
    rows = chosen.features(module({INPUT: x}, minibatch=0)["bn"])
    torch.testing.assert_close(rows.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(module.get_buffer("bn.bn.running_mean"), 0.1 * chosen.features(x).mean(0))
    module.eval()
    before = module.get_buffer("bn.bn.running_mean").clone()
    module({INPUT: x}, minibatch=1)
    assert torch.equal(module.get_buffer("bn.bn.running_mean"), before)


def test_what_is_missing_is_named(chosen):
    with raises("plan.layer_unknown", "conv9_9", name="minkvgg11bn-narrow"):
        Subnetwork(NET, chosen, ["conv1_1", "conv9_9"])
    with raises("layer.input_missing", "the output of 'conv1_1'", layer="bn1_1"):
        Subnetwork(NET, chosen, ["bn1_1"])({}, minibatch=0)


def test_a_training_step_leaves_nothing_to_the_garbage_collector(chosen):
    """What a minibatch made goes with its last reference: cycles would keep its kernel maps until a collection."""
    net = network("minkunet14a-narrow", num_classes=5)
    module, batch = Subnetwork(net, chosen), random_batch(channels=1)

    def step():
        outputs = module({INPUT: chosen.tensor(batch)}, minibatch=0, keep={net.rows[-1].id})
        loss_of(chosen.features(outputs[net.rows[-1].id])).backward()

    step()  # what is made once stays
    gc.collect()
    gc.disable()
    try:
        step()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [type(found).__name__ for found in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert "Tensor" not in kept and "KernelMap" not in kept
