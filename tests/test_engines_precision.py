"""The native engine under bfloat16 autocast: error bounds, statistics and gradients in single precision."""

import pytest
import torch
import torch.nn.functional as functional
from engine_clouds import leaf, random_batch

from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.native import convolution, direct
from sparsepipe.networks import INPUT, Row, network

NATIVE = engine("native")
ROUNDING = 2.0**-8  # bfloat16 keeps 8 significant bits: rounding is off by at most 2^-8 of the value
HALF = torch.bfloat16


@pytest.mark.parametrize(("size", "channels"), [(3, (8, 16)), (3, (3, 5)), (2, (8, 8)), (3, (1, 8)), (1, (8, 8))])
@pytest.mark.parametrize("way", ["direct", "whole", "chunks"])
def test_convolution_stays_within_its_error_bound(size, channels, way, monkeypatch):
    """|half - single| <= 4 roundings, and a little of second order, of the sum of |x| |w|.

    One rounding each of the features, the kernel, every product's row and the output; all sums are in single precision,
    which adds 2^-24 a term. Every way to multiply holds it.
    """
    if way != "direct":
        monkeypatch.setattr(direct, "suits", lambda *_: False)
    monkeypatch.setattr(convolution, "_CACHE_BYTES", 0 if way == "chunks" else 2**23)
    batch = random_batch(channels=channels[0], reach=4)
    row = Row(
        "c", "convolution", (INPUT,), {"in_channels": channels[0], "out_channels": channels[1], "kernel_size": size}
    )
    layer = NATIVE.layer(row)
    torch.nn.init.normal_(layer.kernel, generator=torch.Generator().manual_seed(0))
    results, sizes = [], None
    for half in (False, True):
        x, features = leaf(NATIVE, batch)
        layer.zero_grad()
        with torch.autocast("cpu", HALF, enabled=half):
            output = layer(x).features
        assert output.dtype == (HALF if half else torch.float32)
        gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        output.backward(gradient.to(output.dtype))
        assert features.grad.dtype == layer.kernel.grad.dtype == torch.float32
        results.append([output.detach().float(), features.grad, layer.kernel.grad.clone()])
    x, features = leaf(NATIVE, batch)
    magnitude = x.replace(x.features.detach().abs().requires_grad_())
    absolute = NATIVE.layer(row)
    with torch.no_grad():
        absolute.kernel.copy_(layer.kernel.abs())
    output = absolute(magnitude).features
    sizes = [output.detach(), *torch.autograd.grad(output, [magnitude.features, absolute.kernel], gradient.abs())]
    for single, half, size_of_sum in zip(*results, sizes, strict=True):
        bound = 4.1 * ROUNDING * size_of_sum + 1e-6
        assert bool(((single - half).abs() <= bound).all())
    assert not torch.equal(results[0][0], results[1][0])


def test_statistics_of_norms_are_single_precision():
    """The running mean of rows near 100 with a small spread: sums in bfloat16 would be off by far more than this."""
    batch = random_batch(channels=4, reach=12, num_points=900)
    layer = NATIVE.layer(Row("n", "batch_norm", (INPUT,), {"channels": 4}))
    x = NATIVE.tensor(batch)
    rows = (100 + x.features).to(HALF)
    with torch.autocast("cpu", HALF):
        output = layer(x.replace(rows))
    assert layer.bn.running_mean.dtype == torch.float32
    torch.testing.assert_close(layer.bn.running_mean, 0.1 * rows.double().mean(0).float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.bn.running_var, (0.9 + 0.1 * rows.double().var(0)).float(), rtol=1e-4, atol=0)
    assert output.features.dtype == HALF
    instance = NATIVE.layer(Row("i", "instance_norm", (INPUT,), {"channels": 4}))
    with torch.autocast("cpu", HALF):
        normal = instance(x.replace(rows)).features
    assert float(normal.detach().float().std(0).sub(1).abs().max()) < 0.05


@pytest.mark.parametrize("name", ["minkvgg11bn-narrow", "minkunet14a-narrow"])
def test_networks_train_and_repeat(name):
    """Losses fall as in single precision, to within a few parts in a hundred, and the same seed gives the same bits."""
    batch = random_batch(channels=1, reach=12, num_points=300)
    net = network(name, num_classes=3)
    losses = {}
    for kind, half in (("single", False), ("half", True), ("again", True)):
        module = Subnetwork(net, NATIVE, seed=2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        losses[kind] = []
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", HALF, enabled=half):
                rows = NATIVE.rows(module({INPUT: NATIVE.tensor(batch)}, minibatch=0)[net.rows[-1].id])
                loss = functional.cross_entropy(rows.float(), batch.labels)
            loss.backward()
            assert all(p.grad is not None and p.grad.dtype == p.dtype == torch.float32 for p in module.parameters())
            optimizer.step()
            losses[kind].append(float(loss.detach()))
    assert losses["half"] == losses["again"]
    assert losses["half"][0] == pytest.approx(losses["single"][0], rel=0.05)
    assert losses["half"][-1] < losses["half"][0]


def test_a_backward_pass_inside_autocast_keeps_its_types():
    batch = random_batch(channels=8)
    layer = NATIVE.layer(Row("c", "convolution", (INPUT,), {"in_channels": 8, "out_channels": 8, "kernel_size": 3}))
    torch.nn.init.normal_(layer.kernel)
    gradients = []
    for inside in (False, True):
        x, features = leaf(NATIVE, batch)
        output = layer(x).features
        with torch.autocast("cpu", HALF, enabled=inside):
            output.backward(torch.ones_like(output))
        gradients.append(features.grad)
    assert torch.equal(*gradients)
