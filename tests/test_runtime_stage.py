"""What a stage keeps of a minibatch between its forward and its backward."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runtime_jobs import NORMED, UNET, FixedChoice, plan_of, settings, shapes
from scene_parts import in_threads
from torch.multiprocessing.reductions import StorageWeakRef

from sparsepipe import data
from sparsepipe.data import PointBatch
from sparsepipe.engines import engine
from sparsepipe.networks import network
from sparsepipe.networks.losses.base import Outcome, weighed
from sparsepipe.networks.losses.classes import CrossEntropy, Segmentation
from sparsepipe.profiling import measure
from sparsepipe.runtime.stages.base import Output, SplitSamples, each_part
from sparsepipe.runtime.stages.memory_limit import SegmentChoice
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
    """A U-Net in a V of two devices, stage after stage in one process, compared with one stage.

    Kernel maps that come along with what is kept change no bit.
    """
    clouds, cpu, native = shapes(tmp_path), torch.device("cpu"), engine("native")
    net, config = network(UNET, num_classes=3), settings(clouds, model=UNET, voxel_size=0.04, num_points=384)
    batch = data.load(clouds, split="train", voxel_size=0.04, num_points=384).batch([0, 6, 12])
    found = []
    for ranks, maps in (([[0]], True), ([[0], [1], [1], [0]], False), ([[0], [1], [1], [0]], True)):
        plan = plan_of(UNET, ranks, schedule="1f1b-v" if len(ranks) > 1 else "1f1b", recompute=recompute)
        stages = [NetworkStage(net, native, plan, k, config=config, device=cpu) for k in range(len(ranks))]
        queues, sent, gradients = defaultdict(lambda: LocalQueue(0)), [], {}

        def taken(k: int, neighbour: int, others, queues=queues):
            kept = [(other, queues[other, k]) for other in others]
            return JoinedSource(queues[neighbour, k], kept).take(0, timeout=1, action="")

        def put(packet, k: int, neighbour: int, queues=queues, sent=sent, ranks=ranks, maps=maps):
            sent.append(packet.num_bytes)
            for other, kept in [*packet.kept, (neighbour, packet)]:
                here = maps and ranks[k] == ranks[other]
                sets = (own if here else own._replace(manager=None) for own in kept.coordinate_sets)
                queues[k, other].put(replace(kept, coordinate_sets=tuple(sets)))

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
        assert torch.equal(found[1][name], found[2][name]), name
    profile = measure.profile(net, [batch], native, warmup=0, repeats=1, seed=config.seed)
    payloads = LayerTable.of(profile, [batch.size]).payloads(plan)[1:4]
    assert sent == [*(own[0] for own, _ in payloads), *(back[0] for _, back in reversed(payloads))]


def test_each_rank_that_shares_scenes_has_its_share_in_whatever_order_a_plan_lists_ranks():
    model, native = "minkunet14a-segmentation-narrow", engine("native")
    net, cpu = network(model, num_classes=3), torch.device("cpu")
    plan = plan_of(model, [[1, 0]], shares={0: (3, 1)})  # rank 1 has three quarters of the work
    shared = replace(plan, stages=(replace(plan.stages[0], sharding="space"),))
    coordinates = torch.cartesian_prod(torch.arange(1), torch.arange(64), torch.arange(16), torch.arange(1)).int()
    features, labels = torch.ones(len(coordinates), net.in_channels), torch.zeros(len(coordinates), dtype=torch.int64)
    batch = PointBatch(coordinates, features, labels, per_voxel=True)

    def num_voxels(group):
        options = {"config": settings(Path(), model=model), "device": cpu, "per_voxel": True, "scenes": group}
        stage = NetworkStage(net, native, shared, 0, **options)
        outputs = stage.forward(batch, Version(0, stage.parameters()), 0)[1]
        return len(native.features(stage.module.result(outputs)))

    first, second = in_threads(2, num_voxels)  # threads are numbered as ranks
    assert first + second == len(coordinates) and 2 * first < second


class InFloat64(Segmentation):
    """The cross entropy of voxels without the rounding of float32."""

    def __call__(self, output, target, *, samples, detailed=False, weights=None):
        mean = torch.nn.functional.cross_entropy(output, target)
        return weighed(mean, weights), Outcome(mean.item(), samples, len(target), 0)


def pass_through(plan, batch, group=None, *, model):
    """Return loss and gradients by weight of a minibatch, in float64: stages one after the other.

    `group`: of the stages that share scenes, whose other parts are in other threads; other stages run in each.
    """
    net, config, cpu = network(model, num_classes=3), settings(Path(), model=model), torch.device("cpu")
    loss = InFloat64(3) if batch.per_voxel else CrossEntropy(3)
    options = {"config": config, "device": cpu, "per_voxel": batch.per_voxel, "loss": loss}
    runners, flights, received = [], [], batch
    for k, stage in enumerate(plan.stages):
        scenes = group if stage.shares_scenes else None
        runner = NetworkStage(net, engine("native"), plan, k, scenes=scenes, **options)
        runners.append(runner)
        runner.module.double()
        flight, outputs = runner.forward(received, Version(0, dict(runner.module.named_parameters())), 0)
        flights.append(flight)
        if not runner.is_last:
            received, flight.outputs, flight.outputs_present = runner.pack_outputs(outputs, 0, batch.num_voxels)
    loss, outcome = runner.loss(outputs, batch.labels, samples=2)
    flight.outputs = Output.of(loss)
    packet, found = None, {}
    for k in reversed(range(len(runners))):
        runner, flight = runners[k], flights[k]
        if flight.received is not None:
            outputs = runner.run_again(flight)
            if runner.is_last:
                flight.outputs = Output.of(runner.loss(outputs, batch.labels, samples=2)[0])
        back = [None] if packet is None else runner.unpack_output_gradients(flight, packet)
        of_weights, of_inputs = runner.backward(flight, back)
        for name, gradient in zip(flight.version.tensors, of_weights, strict=True):
            if plan.stages[k].shares_scenes:
                group.sum(gradient)
            found[name] = gradient
        if k:
            packet = runner.pack_input_gradients(flight, of_inputs)
    return outcome.loss, found


@pytest.mark.parametrize(
    ("model", "cuts", "sharing", "recompute"),
    [
        ("minkunet14a-segmentation-narrow", (9, 60), {1}, False),
        ("minkunet14a-segmentation-narrow", (20, 50), {0, 2}, True),
        (NORMED, (6, -2), {1}, False),
    ],
)
def test_stages_that_share_scenes_next_to_others_compute_what_one_process_does(model, cuts, sharing, recompute):
    """At boundaries, parts are put together and taken apart: skips, coarse voxels, pooled rows; a part may be small."""
    generator = torch.Generator().manual_seed(len(cuts))
    flat = torch.randint(0, 24, (900, 2), generator=generator)
    rows = [torch.cat([torch.full((900, 1), sample), flat, flat.sum(1, keepdim=True) // 9], 1) for sample in (0, 1)]
    coordinates = torch.cat(rows).int().unique(dim=0)
    per_voxel = "segmentation" in model
    labels = torch.randint(0, 3, (len(coordinates) if per_voxel else 2,), generator=generator)
    features = torch.randn(len(coordinates), network(model, num_classes=3).in_channels, generator=generator)
    batch = PointBatch(coordinates, features, labels, per_voxel=per_voxel)
    object.__setattr__(batch, "features", features.double())  # minibatches are float32
    count = len(network(model, num_classes=3).rows)
    plan = plan_of(model, [[k] for k in range(len(cuts) + 1)], cuts=[cut % count for cut in cuts], recompute=recompute)
    stages = [
        replace(stage, ranks=(k, k + 10), shares=(2, 1), sharding="space") if k in sharing else stage
        for k, stage in enumerate(plan.stages)
    ]
    loss, gradients = pass_through(plan_of(model, [[0]]), batch, model=model)
    shared = replace(plan, stages=tuple(stages))
    shared.check(network(model, num_classes=3).graph())
    for part_loss, of_part in in_threads(2, lambda group: pass_through(shared, batch, group, model=model)):
        assert part_loss == pytest.approx(loss, rel=1e-9)
        assert of_part.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(of_part[name], gradient, rtol=0, atol=1e-9 * max(1, gradient.abs().max()))


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
                stage.limit(FixedChoice(SegmentChoice(((0, len(stage.module.table)),))))
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
