"""First values are drawn as MinkowskiEngine's examples and torch draw theirs: the same spread, the same bounds."""

import math
import warnings

import pytest
import torch
from torch import nn

from sparsepipe.engines import Subnetwork, engine
from sparsepipe.networks import INPUT, Network, Row

NATIVE = engine("native")
CHANNELS = {"in_channels": 48, "out_channels": 320}
SPARSE = {
    "3": ("convolution", {"kernel_size": 3, "bias": True}),
    "2 / 2": ("convolution", {"kernel_size": 2, "stride": 2, "bias": True}),
    "1": ("convolution", {"kernel_size": 1, "bias": True}),
    "1 / 2": ("convolution", {"kernel_size": 1, "stride": 2, "bias": True}),
    "transposed": ("transposed_convolution", {"kernel_size": 2, "stride": 2, "bias": True}),
}


def drawn(row):
    """Return the parameters that a network of one row starts with, by name."""
    module = Subnetwork(Network("one", (row,), 1, 1), NATIVE, seed=5)
    return {name.rpartition(".")[2]: parameter.detach() for name, parameter in module.named_parameters()}


def equally_spread(ours, theirs):
    """Assert one shape, one deviation, one kind of distribution: the largest of a uniform one is its bound."""
    assert ours.shape == theirs.shape
    assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.03 if len(ours) > 1 else 0.1)
    reaches = [float(values.abs().max() / values.std()) for values in (ours, theirs)]
    if reaches[1] < 2:  # uniform: the square root of 3
        assert float(ours.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.02)
    else:
        assert min(reaches) > 3.5
    assert abs(float(ours.mean())) < 5 * float(theirs.std()) / math.sqrt(ours.numel())


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_convolutions_start_as_in_minkowskis_examples(minkowski, name):
    """Its resnet.py, and minkunet.py after it, draw every MinkowskiConvolution's kernel anew, and nothing else."""
    import MinkowskiEngine as ME

    kind, args = SPARSE[name]
    layer = {"convolution": ME.MinkowskiConvolution, "transposed_convolution": ME.MinkowskiConvolutionTranspose}[kind]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = layer(**CHANNELS, **args, dimension=3)
    if isinstance(theirs, ME.MinkowskiConvolution):
        ME.utils.kaiming_normal_(theirs.kernel, mode="fan_out", nonlinearity="relu")
    ours = drawn(Row("c", kind, (INPUT,), CHANNELS | args))
    equally_spread(ours["kernel"], theirs.kernel.detach())
    equally_spread(ours["bias"], theirs.bias.detach())


@pytest.mark.parametrize(
    ("name", "deviation", "bias"),
    [
        ("3", math.sqrt(2 / (27 * 320)), 1 / math.sqrt(27 * 48)),
        ("2 / 2", math.sqrt(2 / (8 * 320)), 1 / math.sqrt(8 * 48)),
        ("1", math.sqrt(2 / 48), 1 / math.sqrt(48)),  # of one matrix it is the input channels: a mistake of the library
        ("1 / 2", math.sqrt(2 / 320), 1 / math.sqrt(48)),
        ("transposed", 1 / math.sqrt(3 * 8 * 320), 1 / math.sqrt(8 * 320)),
    ],
)
def test_scales_of_sparse_convolutions(name, deviation, bias):
    kind, args = SPARSE[name]
    ours = drawn(Row("c", kind, (INPUT,), CHANNELS | args))
    assert float(ours["kernel"].std()) == pytest.approx(deviation, rel=0.02)
    assert 0.98 * bias < float(ours["bias"].abs().max()) <= bias


@pytest.mark.parametrize("dimension", [2, 3])
def test_dense_convolutions_start_as_torchvisions_vgg(dimension):
    args = CHANNELS | {"kernel_size": 3, "bias": True, "dimension": dimension}
    ours = drawn(Row("c", "dense_convolution", (INPUT,), args))
    theirs = torch.empty(320, 48, *[3] * dimension)
    nn.init.kaiming_normal_(theirs, mode="fan_out", nonlinearity="relu", generator=torch.Generator().manual_seed(0))
    equally_spread(ours["weight"], theirs)
    assert not ours["bias"].any()


def test_linear_layers_and_norms_start_as_torchs():
    ours = drawn(Row("l", "linear", (INPUT,), CHANNELS))
    torch.manual_seed(0)
    theirs = nn.Linear(*CHANNELS.values())
    equally_spread(ours["weight"], theirs.weight.detach())
    assert float(ours["bias"].abs().max()) == pytest.approx(float(theirs.bias.detach().abs().max()), rel=0.02)
    for kind in ("batch_norm", "instance_norm", "dense_batch_norm"):
        norm = drawn(Row("n", kind, (INPUT,), {"channels": 7}))
        assert set(norm["weight"].flatten().tolist()) == {1.0} and set(norm["bias"].flatten().tolist()) == {0.0}
