"""What a stage keeps of a minibatch between its forward and its backward."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from runtime_jobs import NORMED, UNET, plan_of, settings, shapes
from test_recomputation import FixedSegments
from torch.multiprocessing.reductions import StorageWeakRef

from sparsepipe import data
from sparsepipe.engines import engine
from sparsepipe.networks import network
from sparsepipe.networks.losses.base import Outcome, weighed
from sparsepipe.profiling import measure
from sparsepipe.runtime.stages.base import Output, SplitSamples, each_part
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.weights import Version
from sparsepipe.runtime.transport.channel import JoinedSource, LocalQueue
from sparsepipe.runtime.transport.packet import decode, encode
from sparsepipe.values.costs import LayerTable


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


def test_packets_through_sockets_have_the_bytes_that_a_profile_tells(tmp_path) -> None:
    """Behind a convolution, a batch norm, a ReLU and a pool; gradients are a loss's here and random numbers there.

    A max pool's are zero but where the maxima were, and a ReLU's output gets none where it is zero.
    """
    clouds, cpu, native = shapes(tmp_path), torch.device("cpu"), engine("native")
    net, config = network(NORMED, num_classes=3), settings(clouds, model=NORMED, voxel_size=0.04, num_points=384)
    batch = data.load(clouds, split="train", voxel_size=0.04, num_points=384).batch([0, 6, 12])
    profile = measure.profile(net, [batch], native, warmup=0, repeats=1, seed=config.seed)
    table, shares = LayerTable.of(profile, [batch.size]), []
    for cut in (1, 2, 3, 4):
        plan = plan_of(NORMED, [[0], [1]], schedule="1f1b", cuts=(cut,))
        first, second = (
            NetworkStage(net, native, plan, stage, config=config, device=cpu, compression=("lossless", "lossless"))
            for stage in (0, 1)
        )
        flight, outputs = first.forward(batch, Version(0, first.parameters()), 0)
        there = first.pack_outputs(outputs, 0, batch.size).packet
        arrived, results = second.forward(there, Version(0, second.parameters()), 0)
        loss, _ = second.loss(results, batch.target, samples=len(batch))
        weights = list(second.parameters().values())
        found = torch.autograd.grad(loss, [*weights, *arrived.leaves])[len(weights) :]
        back = second.pack_input_gradients(arrived, found)
        before = range(cut)
        plain, told = table.payload(before), table.payload(before, between_hosts=True)
        assert there.num_bytes < plain[0]
        keys = sum(len(encode(replace(there, slots=(), coordinate_sets=(own,)))[1]) for own in there.coordinate_sets)
        coordinates = sum(own.coordinates.nbytes for own in there.coordinate_sets)
        assert there.num_bytes - coordinates + (coordinates if cut < 4 else keys) == told[0], (
            "an input's are counted plain"
        )
        assert back.num_bytes == pytest.approx(told[1][0], rel=0.03)
        shares.append(float(told[1][0] / plain[1][0]))
    assert shares[0] > 0.8 and max(shares[1:3]) < 0.4 < shares[3], shares


@pytest.mark.parametrize("recompute", [False, True])
def test_what_a_device_keeps_for_a_later_stage_is_not_sent_and_gets_its_gradients(recompute: bool, tmp_path) -> None:
    """A U-Net in a V of two devices, stage after stage in one process, compared with one stage."""
    clouds, cpu, native = shapes(tmp_path), torch.device("cpu"), engine("native")
    net, config = network(UNET, num_classes=3), settings(clouds, model=UNET, voxel_size=0.04, num_points=384)
    batch = data.load(clouds, split="train", voxel_size=0.04, num_points=384).batch([0, 6, 12])
    found = []
    for ranks in ([[0]], [[0], [1], [1], [0]]):
        plan = plan_of(UNET, ranks, schedule="1f1b-v" if len(ranks) > 1 else "1f1b", recompute=recompute)
        stages = [NetworkStage(net, native, plan, k, config=config, device=cpu) for k in range(len(ranks))]
        queues, sent, gradients = defaultdict(lambda: LocalQueue(0)), [], {}

        def taken(k: int, neighbour: int, others, queues=queues):
            kept = [(other, queues[other, k]) for other in others]
            return JoinedSource(queues[neighbour, k], kept).take(0, timeout=1, action="")

        def put(packet, k: int, neighbour: int, queues=queues, sent=sent):
            sent.append(packet.num_bytes)
            for other, kept in [*packet.kept, (neighbour, packet)]:
                queues[k, other].put(kept)

        flights = []
        for k, stage in enumerate(stages):
            received = taken(k, k - 1, stage.kept_from) if k else batch
            flight, outputs = stage.forward(received, Version(0, stage.parameters()), 0)
            flights.append(flight)
            if not stage.is_last:
                packet, flight.outputs, flight.outputs_present = stage.pack_outputs(outputs, 0, batch.size)
                put(packet, k, k + 1)
        for k, stage in reversed([*enumerate(stages)]):
            if recompute:
                outputs = stage.run_again(flights[k])
            back = [None]
            if stage.is_last:
                flights[k].outputs = Output.of(stage.loss(outputs, batch.target, samples=len(batch))[0])
            else:
                back = stage.unpack_output_gradients(flights[k], taken(k, k + 1, stage.kept_for))
            weights, leaves = stage.backward(flights[k], back)
            gradients |= dict(zip(stage.parameters(), weights, strict=True))
            if k:
                put(stage.pack_input_gradients(flights[k], leaves), k, k - 1)
        found.append(gradients)
    assert [stage.kept_for for stage in stages] == [(3,), (), (), ()]
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    profile = measure.profile(net, [batch], native, warmup=0, repeats=1, seed=config.seed)
    payloads = LayerTable.of(profile, [batch.size]).payloads(plan)[1:4]
    assert sent == [*(own[0] for own, _ in payloads), *(back[0] for _, back in reversed(payloads))]


class Cosines:
    """A mean over samples in double precision."""

    items, num_details, counts_correct = None, 0, False

    def __call__(self, output, target, *, samples, detailed=False, weights=None):
        mean = (output * torch.arange(output.shape[1]).cos()).sum() / samples
        return weighed(mean, weights), Outcome(float(mean.detach()), samples, samples)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_split_minibatch_has_the_gradients_of_the_whole_one(recompute: bool, tmp_path) -> None:
    """In double precision, through a V of two devices with skip connections; batch norms keep their statistics."""
    clouds, cpu, native = shapes(tmp_path), torch.device("cpu"), engine("native")
    net = network(UNET, num_classes=3)
    config = settings(clouds, model=UNET, voxel_size=0.06, num_points=256, freeze=("*running_mean",))
    dataset = data.load(clouds, split="train", voxel_size=0.06, num_points=256)
    plan = plan_of(UNET, [[0], [1], [1], [0]], schedule="1f1b-v", recompute=recompute)
    found = []
    for parts in ([[0, 6, 12, 1]], [[6, 1], [0], [12]]):
        stages = [NetworkStage(net, native, plan, k, config=config, device=cpu, loss=Cosines()) for k in range(4)]
        batches = [dataset.batch(part) for part in parts]
        for batch in batches:
            object.__setattr__(batch, "features", batch.features.double())
        received = SplitSamples(tuple(batches)) if len(batches) > 1 else batches[0]
        flights, packets, kept, gradients, returned = [], [], {}, {}, None
        for k, stage in enumerate(stages):
            stage.module.double()
            if len(parts) > 1 and not recompute:
                stage.limit(FixedSegments(((0, len(stage.module.table)),)))
            if k:
                received = replace(packets[-1], kept=tuple((other, kept[other, k]) for other in stage.kept_from))
            flight, outputs = stage.forward(received, Version(0, stage.parameters()), 0)
            flights.append(flight)
            if not stage.is_last:
                packed = stage.pack_outputs(outputs, 0, flight.size, flight.part_sizes)
                packet, flight.outputs, flight.outputs_present = packed
                kept |= {(k, other): staying for other, staying in packet.kept}
                packets.append(decode(*encode(packet)))
        for k, stage in reversed([*enumerate(stages)]):
            if recompute:
                outputs = stage.run_again(flights[k])
            back = [None]
            if stage.is_last:
                judged = [
                    stage.loss(own, None, samples=len(part), weights=(len(part) / 4,))[0]
                    for own, part in zip(each_part(outputs), parts, strict=True)
                ]
                flights[k].outputs = Output.of(torch.stack(judged).sum())
            else:
                given = tuple((other, kept[other, k]) for other in stage.kept_for)
                back = stage.unpack_output_gradients(flights[k], replace(returned, kept=given))
            weights, leaves = stage.backward(flights[k], back)
            gradients |= dict(zip(stage.parameters(), weights, strict=True))
            if k:
                returned = stage.pack_input_gradients(flights[k], leaves)
                kept |= {(k, other): staying for other, staying in returned.kept}
        found.append(gradients)
    assert flights[0].part_sizes == tuple(batch.size for batch in batches)
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-12, atol=1e-12)
        assert gradient.abs().sum() > 0, name
