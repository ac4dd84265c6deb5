"""What a stage keeps of a minibatch between its forward and its backward."""

import pytest
import torch
from runtime_jobs import NORMED, plan_of, settings, shapes
from torch.multiprocessing.reductions import StorageWeakRef

from sparsepipe import data
from sparsepipe.engines import engine
from sparsepipe.models import network
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.weights import Version


@pytest.mark.parametrize(("cut", "kept"), [(2, False), (3, True), (4, False), (5, False)])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_was_sent_is_let_go_unless_the_backward_reads_it(cut: int, kept: bool, recompute: bool, tmp_path) -> None:
    """The cuts are behind bn1_1, relu1_1, pool1 and conv2_1 of a network of convolution, norm, ReLU and pool.

    A ReLU's backward reads what it put out; native's convolution, norm and pool have no use for it.
    """
    clouds = shapes(tmp_path)
    config = settings(clouds, model=NORMED, voxel_size=0.04, num_points=384)
    plan = plan_of(NORMED, [[0], [1]], schedule="1f1b", cuts=(cut,), recompute=recompute)
    runner = NetworkStage(
        network(NORMED, num_classes=3), engine("native"), plan, 0, config=config, device=torch.device("cpu")
    )
    batch = data.load(clouds, split="train", voxel_size=0.04, num_points=384).batch([0, 6, 12])
    flight, outputs = runner.forward(batch, Version(0, dict(runner.module.named_parameters())), 0)
    packet, flight.outputs, flight.outputs_present = runner.pack_outputs(outputs, 0, batch.num_voxels)
    shape, sent = packet.slots[0].rows.shape, StorageWeakRef(packet.slots[0].rows.untyped_storage())
    del packet, outputs
    assert sent.expired() == (recompute or not kept)
    if recompute:
        assert flight.outputs == ()
        runner.run_again(flight)
    (output,) = flight.outputs
    assert output.shape == shape
    weights, _ = runner.backward(flight, [torch.ones(shape)])
    assert all(gradient.abs().sum() > 0 for gradient in weights)
