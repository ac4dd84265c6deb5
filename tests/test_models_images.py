"""Networks on images: published parameter counts, shapes, initial weights, PipeDream's published profiles."""

import subprocess
import sys
from importlib import import_module

import pytest
import torch
from coded import raises
from torch import nn

from sparsepipe.networks import MODULE_NETWORKS, NETWORKS
from sparsepipe.networks.images import IMAGE_NETWORKS
from sparsepipe.networks.images.inception import InceptionOutputs

# torchvision's documentation; NASNet-A mobile and ResNeXt-101 32x4d: pretrainedmodels 0.7.4. With 1000 classes.
PUBLISHED = {
    "alexnet": 61_100_840,
    "vgg16-images": 138_357_544,
    "squeezenet1.0": 1_248_424,
    "squeezenet1.1": 1_235_496,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnext50": 25_028_904,
    "resnext101": 44_177_704,
    "densenet121": 7_978_856,
    "inception_v3": 27_161_264,
    "nasnetamobile": 5_289_978,
}


def built(name: str, **args: object) -> nn.Module:
    chosen = IMAGE_NETWORKS[name]
    builder = getattr(import_module(f"sparsepipe.networks.{chosen.home}"), chosen.function)
    return builder(**{**chosen.args, **args})


def on_meta(name: str, **args: object) -> nn.Module:
    with torch.device("meta"):  # shapes without memory
        return built(name, **args)


def size_of(name: str) -> int:
    return int(IMAGE_NETWORKS[name].takes.split()[-1])


def test_their_names_bring_no_torch_and_are_no_tables():
    code = "import sys, sparsepipe.networks as m; assert m.MODULE_NETWORKS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not MODULE_NETWORKS.keys() & NETWORKS.keys()
    assert IMAGE_NETWORKS.items() <= MODULE_NETWORKS.items()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    assert sum(parameter.numel() for parameter in on_meta(name).parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_logits_for_images_of_the_size_they_are_made_for(name):
    size = size_of(name)
    network = on_meta(name, num_classes=7, in_channels=2)
    images = torch.empty(3, 2, size, size, device="meta")
    assert network.eval()(images).shape == (3, 7)
    outputs = network.train()(images)
    if isinstance(outputs, InceptionOutputs):
        assert [tuple(logits.shape) for logits in outputs] == [(3, 7), (3, 7)]
    else:
        assert outputs.shape == (3, 7)


@pytest.mark.parametrize(
    ("name", "least", "args"),
    [
        ("alexnet", 63, {}),
        ("vgg16-images", 32, {}),
        ("squeezenet1.0", 21, {}),
        ("squeezenet1.1", 17, {}),
        ("densenet121", 29, {}),
        ("inception_v3", 299, {}),
        ("inception_v3", 75, {"auxiliary": False}),
        ("mnist-convnet", 8, {}),
    ],
)
def test_images_are_large_enough_or_refused(name, least, args):
    """The least size leaves something at the end; one pixel less would end in an error of torch's, or is not needed."""
    network = on_meta(name, image_size=least, **args)
    channels = network.get_parameter(next(iter(network.state_dict()))).shape[1]
    network(torch.empty(2, channels, least, least, device="meta"))
    with pytest.raises((RuntimeError, ValueError)):
        network(torch.empty(2, channels, least - 1, least - 1, device="meta"))
    with raises("images.too_small", least, least, least - 1):
        built(name, image_size=(least - 1, 400), **args)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_a_gradient_reaches_every_parameter(name):
    torch.manual_seed(0)
    size = {"inception_v3": 299, "alexnet": 96, "mnist-convnet": 28}.get(name, 32)
    fewer = {"cells": 1} if name == "nasnetamobile" else {}
    network = built(name, num_classes=3, width=0.125, in_channels=1, **fewer)
    outputs = network(torch.randn(2, 1, size, size))
    total = sum(logits.square().sum() for logits in (outputs if isinstance(outputs, tuple) else (outputs,)))
    total.backward()
    without = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert not without


@pytest.mark.parametrize(
    ("name", "args", "path", "deviation"),
    [  # of a weight's normal or uniform distribution, as the file of the network says
        ("vgg16-images-32", {"hidden": 8}, "features.28.weight", (2 / (512 * 9)) ** 0.5),  # fan-out
        ("resnet50-32", {"width": 0.5}, "levels.3.0.branch.0.weight", (2 / 256) ** 0.5),  # fan-out; fan-in is 512
        ("densenet121", {}, "blocks.0.0.branch.2.weight", (2 / 64) ** 0.5),  # fan-in; fan-out is 128
        ("squeezenet1.1", {}, "features.3.wide.0.weight", (2 / (16 * 9)) ** 0.5),  # fan-in
        ("squeezenet1.1", {}, "classifier.1.weight", 0.01),
        ("inception_v3", {"width": 0.25}, "stem.5.0.weight", 0.1),
        ("inception_v3", {"width": 0.25}, "auxiliary.2.0.weight", 0.01),
        ("inception_v3", {"width": 0.25}, "auxiliary.5.weight", 0.001),
        (
            "alexnet",
            {"width": 0.25},
            "features.6.weight",
            (1 / (3 * 48 * 9)) ** 0.5,
        ),  # uniform, within 1 / sqrt(fan-in)
    ],
)
def test_initial_weights_are_drawn_as_documented(name, args, path, deviation):
    torch.manual_seed(0)
    network = built(name, num_classes=100, **args)
    weight = network.get_parameter(path).detach()
    assert float(weight.std()) == pytest.approx(deviation, rel=0.03)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(bool((norm.weight == 1).all() and (norm.bias == 0).all()) for norm in norms)
