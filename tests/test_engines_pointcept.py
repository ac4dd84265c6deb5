"""Pointcept's checkpoints load by name, and give what its own modules give.

golden/pointcept.json has logits of Pointcept's classes (commit d74c646, spconv 2.3.8 and torch 2.13 on a CPU, no flash
attention, no shuffled orders), with weights and voxels as drawn here, at a quarter of the width.
"""

import json
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from coded import raises

from sparsepipe.data import PointBatch
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.pointcept import from_pointcept
from sparsepipe.networks import network
from sparsepipe.runtime.training_state.checkpoint_folders import INITIAL
from sparsepipe.runtime.training_state.initial_weights import InitialState, InitialWeights, StateNames, read_state

GOLDEN = Path(__file__).with_name("golden") / "pointcept.json"
CLASSES, FEATURES = 4, 6
ENCODER, DEPTHS = {"ptv3": (16, 16, 32, 64, 128), "litept": (18, 18, 36, 72, 126)}, (2, 2, 2, 6, 2)


def linear(name, entering, leaving):
    return {f"{name}.weight": (leaving, entering), f"{name}.bias": (leaving,)}


def norm(name, channels, *, batch=False):
    shapes = {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}
    statistics = {f"{name}.running_mean": (channels,), f"{name}.running_var": (channels,)}
    return shapes | (statistics | {f"{name}.num_batches_tracked": ()} if batch else {})


def convolution(name, entering, leaving, size, *, bias=False):
    return {f"{name}.weight": (leaving, size, size, size, entering)} | ({f"{name}.bias": (leaving,)} if bias else {})


def block(name, channels, *, cpe="cpe", attends=True):
    shapes = norm(f"{name}.norm0.0", channels)
    if cpe:
        shapes = convolution(f"{name}.{cpe}.0", channels, channels, 3, bias=True)
        shapes |= linear(f"{name}.{cpe}.1", channels, channels) | norm(f"{name}.{cpe}.2", channels)
    if attends:
        shapes |= norm(f"{name}.norm1.0", channels) | norm(f"{name}.norm2.0", channels)
        shapes |= linear(f"{name}.attn.qkv", channels, 3 * channels) | linear(f"{name}.attn.proj", channels, channels)
        shapes |= linear(f"{name}.mlp.0.fc1", channels, 4 * channels)
        shapes |= linear(f"{name}.mlp.0.fc2", 4 * channels, channels)
    return shapes


def transformer(kind, *, decodes):
    """Names and shapes of PointTransformerV3 and LitePT."""
    wide = ENCODER[kind]
    shapes = convolution("backbone.embedding.stem.conv", FEATURES, wide[0], 5)
    shapes |= norm("backbone.embedding.stem.norm", wide[0], batch=True)
    for level, channels in enumerate(wide):
        if level:
            shapes |= linear(f"backbone.enc.enc{level}.down.proj", wide[level - 1], channels)
            shapes |= norm(f"backbone.enc.enc{level}.down.norm.0", channels, batch=True)
        parts = {} if kind == "ptv3" else {"cpe": "conv" if level < 3 else "", "attends": level >= 3}
        for number in range(DEPTHS[level]):
            shapes |= block(f"backbone.enc.enc{level}.block{number}", channels, **parts)
    if not decodes:
        return shapes | classifier(wide[-1])
    for level in range(4):
        name, deep = f"backbone.dec.dec{level}", wide[level + 1]
        for path, entering in (("proj", deep), ("proj_skip", wide[level])):
            shapes |= linear(f"{name}.up.{path}.0", entering, wide[level])
            shapes |= norm(f"{name}.up.{path}.1", wide[level], batch=True)
        for number in range(2 if kind == "ptv3" else 0):
            shapes |= block(f"{name}.block{number}", wide[level])
    return shapes | linear("seg_head", wide[0], CLASSES)


def classifier(channels):
    shapes = linear("cls_head.0", channels, 64) | norm("cls_head.1", 64, batch=True)
    shapes |= linear("cls_head.4", 64, 32) | norm("cls_head.5", 32, batch=True)
    return shapes | linear("cls_head.8", 32, CLASSES)


def spunet():
    """Names and shapes of SpUNetBase."""
    down, up, shapes = (8, 8, 16, 32, 64), (24, 24, 32, 64, 64), {}

    def residual(name, entering, channels):
        shapes.update(convolution(f"{name}.conv1", entering, channels, 3) | norm(f"{name}.bn1", channels, batch=True))
        shapes.update(convolution(f"{name}.conv2", channels, channels, 3) | norm(f"{name}.bn2", channels, batch=True))
        if entering != channels:
            shapes.update(convolution(f"{name}.proj.0", entering, channels, 1))
            shapes.update(norm(f"{name}.proj.1", channels, batch=True))

    shapes |= convolution("backbone.conv_input.0", FEATURES, 8, 5) | norm("backbone.conv_input.1", 8, batch=True)
    for level, count in enumerate((2, 3, 4, 6)):
        shapes |= convolution(f"backbone.down.{level}.0", down[level], down[level + 1], 2)
        shapes |= norm(f"backbone.down.{level}.1", down[level + 1], batch=True)
        shapes |= convolution(f"backbone.up.{level}.0", up[level + 1], up[level], 2)
        shapes |= norm(f"backbone.up.{level}.1", up[level], batch=True)
        for number in range(count):
            residual(f"backbone.enc.{level}.block{number}", down[level + 1], down[level + 1])
        residual(f"backbone.dec.{level}.block0", up[level] + down[level], up[level])
        residual(f"backbone.dec.{level}.block1", up[level], up[level])
    return shapes | convolution("backbone.final", 24, CLASSES, 1, bias=True)


SHAPES = {
    "ptv3-segmentation-narrow": transformer("ptv3", decodes=True),
    "ptv3-narrow": transformer("ptv3", decodes=False),
    "litept-segmentation-narrow": transformer("litept", decodes=True),
    "spunet34-segmentation-narrow": spunet(),
}


def checkpoint(name):
    """Weights that every machine computes alike: sines of their places, scaled as a network's are."""
    state = {}
    for tensor_name, shape in SHAPES[name].items():
        count = torch.Size(shape).numel()
        waves = (torch.arange(count, dtype=torch.float64) * 1.7 + crc32(tensor_name.encode()) % 1000).sin()
        if not shape:
            state[tensor_name] = torch.tensor(3)
            continue
        if len(shape) > 1:
            waves *= (2 * shape[0] / count) ** 0.5  # of the numbers that are summed
        else:
            waves *= 0.2
            waves += tensor_name.endswith(("running_var", "weight"))
        state[tensor_name] = waves.float().view(shape)
    return state


def cloud():
    """Voxels of a folded surface, about 900, and their features."""
    first, second = torch.meshgrid(torch.arange(30), torch.arange(30), indexing="ij")
    height = (first.double() * 0.21).sin() * 6 + (second.double() * 0.17).cos() * 7 + 13
    coordinates = torch.stack([torch.zeros_like(first), first, second, height.round().long()], dim=-1).view(-1, 4)
    features = (torch.arange(len(coordinates) * FEATURES, dtype=torch.float64) * 0.9).sin().float().view(-1, FEATURES)
    return PointBatch(coordinates.int(), features, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("name", SHAPES)
def test_a_checkpoint_gives_what_pointcepts_modules_give(name):
    net, native = network(name, num_classes=CLASSES, in_channels=FEATURES), engine("native")
    module = Subnetwork(net, native)
    state = from_pointcept({f"module.{key}": tensor for key, tensor in checkpoint(name).items()}, net)
    module.load_state_dict(state)
    module.eval()
    with torch.no_grad():
        logits = native.features(module(module.enter(native.tensor(cloud())), minibatch=0)[net.outputs[0]])
    expected = torch.tensor(json.loads(GOLDEN.read_text())[name])
    torch.testing.assert_close(logits[:: max(1, len(logits) // 8)], expected, rtol=0, atol=1e-4)


def test_tensors_of_other_networks_keep_their_names():
    net = network("spunet34-segmentation-narrow", num_classes=CLASSES, in_channels=FEATURES)
    tensor = torch.zeros(2)
    assert from_pointcept({"module.backbone.other.weight": tensor}, net) == {"module.backbone.other.weight": tensor}
    renamed = from_pointcept({"conv_input.1.weight": tensor}, net)  # the backbone alone
    assert list(renamed) == ["bn_stem.bn.weight"]


def initial(folder, content, name):
    """What a run of a network has of a file."""
    torch.save(content, folder / "model_best.pth")
    InitialState(read_state(folder / "model_best.pth"), None).save(folder)
    net = network(name, num_classes=CLASSES, in_channels=FEATURES)
    names = StateNames.of_network(net, engine("native"))
    return InitialWeights(folder / INITIAL, net, names, allow_shape=False), net


@pytest.mark.parametrize("name", ["litept-segmentation-narrow", "spunet34-segmentation-narrow"])
def test_a_run_begins_from_a_file_of_pointcept(name, tmp_path):
    state = checkpoint(name)
    file = {"epoch": 3, "state_dict": state, "best_metric_value": np.float64(0.7), "scheduler": {"lr": np.float32(1)}}
    weights, net = initial(tmp_path, file, name)
    assert not weights.match.drawn and not weights.match.unused
    ids, expected = [row.id for row in net.rows], from_pointcept(state, net)
    for layers in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
        stage = Subnetwork(net, engine("native"), layers)
        weights.load_into(stage)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in stage.state_dict().items())


def test_files_of_both_names_and_kernels_of_other_axes_are_no_tracebacks(tmp_path):
    name = "spunet34-segmentation-narrow"
    weights, net = initial(
        tmp_path,
        (state := checkpoint(name)) | from_pointcept(state, network(name, num_classes=CLASSES, in_channels=FEATURES)),
        name,
    )
    assert not weights.match.drawn and len(weights.match.unused) == len(state)
    for shape in ((27, 6, 8), ()):
        with raises("initial.shapes_differ"):
            initial(tmp_path, {"backbone.conv_input.0.weight": torch.zeros(shape)}, name)
