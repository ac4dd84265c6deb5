"""The native engine on a GPU: outputs, gradients and statistics are those of the CPU. Skipped aloud without one."""

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as functional
from engine_clouds import close, random_batch

from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.base import SeededDropout
from sparsepipe.engines.native.layers import Activation
from sparsepipe.networks import INPUT, network
from sparsepipe.runtime.stages.kept_tensors import HostMemory, MovedTensors

pytestmark = pytest.mark.gpu
NATIVE = engine("native")


def _smooth(rows):
    return 2 * (functional.softplus(rows) - math.log(2))  # the identity around 0: no gradient vanishes in the depth


def trained(name, device, *, half=False):
    """Return the output, the gradients and the buffers after one training pass of a network on a device.

    Activations are smooth: where a sum rounds to the other side of a ReLU's 0, gradients differ by a voxel's share.
    Nothing is dropped: generators differ between kinds of device.
    """
    net = network(name, num_classes=3)
    module = Subnetwork(net, NATIVE, seed=1).to(device)
    for layer in module.modules():
        if isinstance(layer, Activation):
            layer.function, layer.args = _smooth, {}
        if isinstance(layer, SeededDropout):
            layer.probability = 0
    batch = random_batch(channels=1, reach=12, num_points=400)
    batch.coordinates[:, 1:] += 12  # a dense grid begins at 0
    tensor = NATIVE.tensor(batch, device)
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
        output = NATIVE.features(module({INPUT: tensor}, minibatch=0)[net.rows[-1].id])
    labels = torch.arange(len(output), device=device) % 3
    functional.cross_entropy(output.float(), labels).backward()
    found = {"output": output.detach().float()} | {name: p.grad for name, p in module.named_parameters()}
    return {key: tensor.cpu().double() for key, tensor in (found | dict(module.named_buffers())).items()}


@pytest.mark.parametrize(
    "name", ["minkvgg11bn-narrow", "minkresnet14-narrow", "minkunet14a-segmentation-narrow", "vgg11-3d-narrow"]
)
def test_networks_equal_those_of_the_cpu(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's dense convolutions round to it there
    there, here = trained(name, "cuda"), trained(name, "cpu")
    assert there.keys() == here.keys()
    for key, expected in here.items():
        close(there[key], expected, 1e-3)


def test_bfloat16_stays_near_single_precision():
    half, single = (trained("minkvgg11bn-narrow", "cuda", half=half) for half in (True, False))
    close(half["output"], single["output"], 0.1)


def test_the_same_pass_gives_the_same_bits():
    first, second = (trained("minkvgg11bn-narrow", "cuda") for _ in range(2))
    assert torch.equal(first["output"], second["output"])


def test_tensors_that_move_to_the_host_come_back_with_their_bits():
    """Layers wide enough for copies to run beside the products; twice, as pinned memory is taken again."""
    gpu = torch.device("cuda:0")
    rows = torch.randn(8192, 1024, device=gpu, requires_grad=True)
    weights = [torch.randn(1024, 1024, device=gpu, requires_grad=True) for _ in range(12)]
    memory, found, kept = HostMemory(gpu), [], []
    for moves in (False, True, True):
        moved = MovedTensors(memory, engine("torch"), [rows, *weights])
        before = torch.cuda.memory_allocated(gpu)
        with moved.saving() if moves else nullcontext():
            output = rows
            for weight in weights:
                output = torch.tanh(output @ weight / 32)
            loss = (output * output).mean()
        kept.append(torch.cuda.memory_allocated(gpu) - before)
        found.append([output.detach().cpu(), *torch.autograd.grad(loss, [rows, *weights])])
        del output, loss, moved
        assert not memory.held_bytes
    assert kept[1] < 0.3 * kept[0] and memory.bytes_per_second > 1e8
    for other in found[1:]:
        assert all(torch.equal(one.cpu(), two.cpu()) for one, two in zip(found[0], other, strict=True))
