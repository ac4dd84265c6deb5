"""The profiler: sizes have closed forms, a sweep computes a step's gradients, every second is its layer's."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from coded import mentions, raises
from engine_clouds import close, random_batch

from sparsepipe.data import Sample, collate
from sparsepipe.engines import Subnetwork, engine, subnetwork
from sparsepipe.engines.native import direct
from sparsepipe.engines.native.coordinates import CoordinateManager, pack
from sparsepipe.networks import INPUT, Network, Row, network
from sparsepipe.networks.losses import CrossEntropy
from sparsepipe.profiling import layer_timer, measure, of_model
from sparsepipe.runtime.training_state.optimizer import SGD
from sparsepipe.values.profile import Profile, StepOverhead

NET = network("minkvgg11bn-narrow", num_classes=5)
TIME_LAYERS = layer_timer.time_layers  # before a test puts another in its place
CPU = torch.device("cpu")
WAYS = ("forward", "backward")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """What else the machine does while the tests run is none of theirs."""
    monkeypatch.setattr(layer_timer, "waited_share", lambda before, after: 0.0)


def batches(*points):
    return [random_batch(channels=1, reach=20, num_points=count, seed=count) for count in points]


def test_sizes_have_closed_forms(chosen):
    found = batches(300, 100, 200)
    one = measure.profile(NET, found, chosen, warmup=1, repeats=2, device_type="here")
    counts = sorted(batch.num_voxels for batch in found)
    assert one.sizes == tuple(counts)
    assert one.device_types == ("here",)
    assert one.graph == NET.graph()
    for batch, position in zip(sorted(found, key=lambda b: b.num_voxels), range(3), strict=True):
        cost = {row.id: one.costs["here"][k].samples[position] for k, row in enumerate(NET.rows)}
        coarse = {(0, *(c[0], *(v // 2 for v in c[1:]))) for c in batch.coordinates.tolist()}
        assert {sample.size for sample in cost.values()} == {batch.num_voxels}
        assert cost["conv1_1"].output_bytes == batch.num_voxels * 16 * 4
        assert cost["conv1_1"].coordinate_bytes == 0  # they are the input's
        assert cost["pool1"].coordinate_bytes == len(coarse) * 4 * 4
        assert cost["pool1"].output_bytes == len(coarse) * 16 * 4
        assert cost["conv2_1"].coordinate_bytes == 0
        assert cost["fc1"].output_bytes == len(batch) * 1024 * 4
        assert cost["fc3"].output_bytes == len(batch) * 5 * 4
        manager = CoordinateManager(3)
        manager.insert((1, 1, 1), pack(batch.coordinates).sort().values)
        assert manager.map_bytes == 0  # keys are no map
        pairs = manager.kernel_map((1, 1, 1), (1, 1, 1), kernel_size=3).num_pairs
        assert manager.map_bytes == (pairs - batch.num_voxels) * 16  # rows that meet themselves need none
        assert cost["conv1_1"].kernel_map_pairs == pairs
        assert cost["pool1"].kernel_map_pairs == batch.num_voxels  # kernel 2, stride 2: each voxel has one parent
        assert cost["relu1_1"].kernel_map_pairs == cost["fc1"].kernel_map_pairs == 0
        assert cost["relu1_1"].saved_bytes == cost["relu1_1"].output_bytes
        if chosen.name == "minkowski":
            assert cost["pool1"].saved_bytes > cost["pool1"].output_bytes  # which row gave each maximum, int32
            maps = cost["conv2_1"].saved_bytes - cost["pool1"].output_bytes  # past autograd: its input, its kernel map
            listed = 8 * cost["conv2_1"].kernel_map_pairs  # two rows a pair, uint32
            assert listed <= maps < listed + 27 * 400
        else:
            count = cost["conv2_1"].kernel_map_pairs
            maps = cost["conv2_1"].saved_bytes - cost["pool1"].output_bytes
            listed = 16 * (count - len(coarse)) + 16 * count  # and all pairs once more, those with themselves too
            if direct.lanes():  # where the pairs of each tile of output rows start
                blocks = -(-32 // direct.columns_at_a_time(direct.lanes()))  # its 32 output channels
                assert maps == listed + 8 * 27 * (-(-len(coarse) // direct._tile_rows(len(coarse), blocks)) + 1)
            else:  # as this map is small, their order and where each output row's start
                assert maps == listed + 4 * count + 4 * (len(coarse) + 1) + 4 * 27
        assert all(sample.forward > 0 for sample in cost.values())
        assert all(sample.backward > 0 for sample in cost.values())


def test_a_sweep_computes_the_gradients_of_a_whole_step(chosen):
    for net in (NET, network("minkunet14a-narrow", num_classes=5)):  # the second has tensors with two consumers
        batch = batches(150)[0]
        module = Subnetwork(net, chosen, seed=2)
        layer_timer.whole_step(module, batch, device=CPU)
        whole = {name: p.grad.clone() for name, p in module.named_parameters()}
        layer_timer.time_layers(module, batch, device=CPU)
        for name, parameter in module.named_parameters():
            close(parameter.grad, whole[name], 1e-4)


def test_sizes_of_a_unet():
    net = network("minkunet14a-narrow", num_classes=5)
    (batch,) = batches(200)
    one = measure.profile(net, [batch], engine("native"), warmup=0, repeats=9)
    cost = {row.id: one.costs["cpu"][k].samples[0] for k, row in enumerate(net.rows)}
    assert {id for id, sample in cost.items() if sample.coordinate_bytes} == {f"conv{k}_down" for k in (1, 2, 3, 4)}
    for down, up in ((4, 5), (3, 6), (2, 7), (1, 8)):
        assert cost[f"conv{up}_up"].kernel_map_pairs == cost[f"conv{down}_down"].kernel_map_pairs > 0
        assert cost[f"conv{up}_up"].kernel_map_seconds == cost[f"conv{down}_down"].kernel_map_seconds
    assert cost["conv7_1_2"].kernel_map_seconds == cost["conv1_1_1"].kernel_map_seconds
    assert 0 < cost["conv0"].kernel_map_seconds < cost["conv0"].forward
    assert not any(sample.kernel_map_seconds for id, sample in cost.items() if "conv" not in id or "short" in id)
    assert cost["conv1_down"].kernel_map_pairs == batch.num_voxels  # kernel 2, stride 2: each voxel has one parent
    channels = {"conv8_up": 24, "cat8": 24 + 8, "relu8_1": 24}
    assert {id: cost[id].output_bytes for id in channels} == {
        id: batch.num_voxels * c * 4 for id, c in channels.items()
    }


# Layers by the pairs that brute force counts: from the voxels at one tensor stride to those at another, by a kernel.
MAPS = {
    ("convolution", "sum_pool"): (1, 1, 3),
    ("max_pool", "unpool"): (1, 2, 3),  # kernels that overlap
    ("average_pool", "transposed_convolution"): (2, 4, 2),
}


def test_every_layer_with_a_kernel_map_counts_its_pairs(chosen):
    rows = (
        Row("convolution", "convolution", (INPUT,), {"in_channels": 1, "out_channels": 2, "kernel_size": 3}),
        Row("sum_pool", "sum_pool", ("convolution",), {"kernel_size": 3, "stride": 1}),
        Row("max_pool", "max_pool", ("sum_pool",), {"kernel_size": 3, "stride": 2}),
        Row("average_pool", "average_pool", ("max_pool",), {"kernel_size": 2, "stride": 2}),
        Row(
            "transposed_convolution",
            "transposed_convolution",
            ("average_pool", "max_pool"),
            {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": 2},
        ),
        Row("unpool", "unpool", ("transposed_convolution", "sum_pool"), {"kernel_size": 3, "stride": 2}),
        Row("global_pool", "global_max_pool", ("unpool",)),
        Row("fc", "linear", ("global_pool",), {"in_channels": 2, "out_channels": 2}),
    )
    (batch,) = batches(200)
    one = measure.profile(Network("all-maps", rows, 1, 2), [batch], chosen, warmup=0, repeats=9)
    cost = {row.id: one.costs["cpu"][k].samples[0] for k, row in enumerate(rows)}
    fine = {tuple(voxel) for voxel in batch.coordinates.tolist()}
    for ids, (near, far, size) in MAPS.items():
        source, target = ({(b, *(v // step * step for v in place)) for b, *place in fine} for step in (near, far))
        reach = range(-(size // 2), size // 2 + 1) if size % 2 else range(size)
        pairs = sum(
            (b, *(v + near * k for v, k in zip(place, offset, strict=True))) in source
            for b, *place in target
            for offset in itertools.product(reach, repeat=3)
        )
        assert {id: cost[id].kernel_map_pairs for id in ids} == dict.fromkeys(ids, pairs)
        assert len({cost[id].kernel_map_seconds for id in ids}) == 1 and cost[ids[0]].kernel_map_seconds > 0
    assert cost["global_pool"].kernel_map_pairs == cost["fc"].kernel_map_pairs == 0


class Later(torch.autograd.Function):
    """Passes rows on, and their gradient after so many seconds of a clock that nothing else moves."""

    @staticmethod
    def forward(ctx, rows, now, seconds):
        ctx.now, ctx.seconds = now, seconds
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.now[0] += ctx.seconds
        return gradient, None, None


@pytest.fixture
def told_clock(monkeypatch):
    """A clock that only work moves: a forward takes 1 second more for each layer, its backward twice as long.

    To begin a backward takes 5 seconds, an update 7.
    """
    now = [0.0]

    class Told(Subnetwork):
        def run_layer(self, row, tensors, *, minibatch):
            seconds = 1 + self.table.index(row)
            now[0] += seconds
            output = super().run_layer(row, tensors, minibatch=minibatch)[row.id]
            slow = Later.apply(self.engine.features(output), now, 2 * seconds)
            return {row.id: self.engine.replace(output, slow)}

    backward, step = torch.autograd.backward, SGD.step

    def told_backward(*args):
        now[0] += 5
        backward(*args)

    def told_step(*args):
        now[0] += 7
        step(*args)

    monkeypatch.setattr(layer_timer, "moment", lambda device: now[0])
    monkeypatch.setattr(subnetwork, "Subnetwork", Told)
    monkeypatch.setattr(torch.autograd, "backward", told_backward)
    monkeypatch.setattr(SGD, "step", told_step)
    return now


@pytest.mark.parametrize("name", ["minkvgg11bn-narrow", "minkresnet14-narrow", "minkunet14a-narrow"])
def test_every_second_is_of_the_layer_that_took_it(name, chosen, told_clock):
    """With shortcuts and skips too, whose tensors have several consumers: all of a step's seconds, each once."""
    net = network(name, num_classes=5)
    one = measure.profile(net, batches(60), chosen, warmup=0, repeats=1)
    for position, cost in enumerate(one.costs["cpu"]):
        assert cost.samples[0].forward == 1 + position
        begun = 5 if position == len(net.rows) - 1 else 0
        assert cost.samples[0].backward == 2 * (1 + position) + begun
    assert one.origin["layers_over_whole"] == 1
    assert one.update_rates == {"cpu": 7 / sum(layer.parameter_bytes for layer in one.graph.layers)}


def test_layers_without_a_backward_and_those_that_pass_their_input_on(chosen, told_clock):
    """A pool of the input needs no gradient, an output that nobody reads gets none; a dropout of 0 is its input."""
    rows = (
        Row("pool", "max_pool", (INPUT,), {"kernel_size": 2, "stride": 2}),
        Row("conv", "convolution", ("pool",), {"in_channels": 1, "out_channels": 2, "kernel_size": 3}),
        Row("unread", "convolution", ("pool",), {"in_channels": 1, "out_channels": 2, "kernel_size": 3}),
        Row("dropout", "dropout", ("conv",), {"probability": 0.0}),
        Row("global_pool", "global_max_pool", ("dropout",)),
        Row("fc", "linear", ("global_pool",), {"in_channels": 2, "out_channels": 2}),
    )

    class Told(subnetwork.Subnetwork):
        def run_layer(self, row, tensors, *, minibatch):
            if row.id in ("pool", "dropout"):
                return Subnetwork.run_layer(self, row, tensors, minibatch=minibatch)
            return super().run_layer(row, tensors, minibatch=minibatch)

    found = layer_timer.time_layers(Told(Network("odd", rows, 1, 2), chosen), batches(60)[0], device=CPU)
    assert found.forward == {"pool": 0, "conv": 2, "unread": 3, "dropout": 0, "global_pool": 5, "fc": 6}
    assert found.backward == {"pool": 0, "conv": 4, "unread": 0, "dropout": 0, "global_pool": 10, "fc": 12 + 5}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["minkvgg11bn-narrow", "minkunet14a-narrow"])
def test_on_a_gpu_every_layer_takes_time(name):
    """Its own stream tells the time there."""
    found = measure.profile(network(name, num_classes=5), batches(200), engine("native"), device="cuda")
    (costs,) = found.costs.values()
    assert all(cost.samples[0].forward > 0 and cost.samples[0].backward > 0 for cost in costs)
    assert found.origin["layers_over_whole"] > 0 and all(rate > 0 for rate in found.update_rates.values())


def test_times_are_medians_of_the_repeats(told_clock, monkeypatch):
    passes = []

    def counted(*args, **kwargs):
        found = TIME_LAYERS(*args, **kwargs)
        if len(passes) == 1:  # one repeat out of three is disturbed
            found = replace(found, **{way: {k: v + 100 for k, v in getattr(found, way).items()} for way in WAYS})
        passes.append(found)
        return found

    monkeypatch.setattr(layer_timer, "time_layers", counted)
    one = measure.profile(NET, batches(60), engine("native"), warmup=0, repeats=3)
    assert one.origin["repeats"] == [len(passes)] == [3]
    for position, cost in enumerate(one.costs["cpu"]):
        begun = 5 if position == len(NET.rows) - 1 else 0
        assert (cost.samples[0].forward, cost.samples[0].forward_spread) == (1 + position, 50)
        assert (cost.samples[0].backward, cost.samples[0].backward_spread) == (2 * (1 + position) + begun, 50)


@pytest.mark.parametrize(
    ("slow", "seconds", "passes"),
    [
        (0, 1e-3, 30),  # what else the machine does moves steps of milliseconds more than long ones
        (0, 0.04, 13),
        (0, 0.1, 5),
        (0, 3, 5),
        (5, 3, 11),  # as many that are not, and one more for the median
        (99, 3, 30),
    ],
)
def test_repeated_until_short_steps_are_known_and_disturbances_over(slow, seconds, passes, monkeypatch):
    """Unless the caller says how often: `slow` of the passes take twice as long as the step that is not watched."""
    taken = []

    def timed(*args, **kwargs):
        found = taken[0] if taken else TIME_LAYERS(*args, **kwargs)
        share = seconds / 2 / len(NET.rows) * (2 if len(taken) < slow else 1)
        taken.append(found)
        return replace(found, **{way: dict.fromkeys(getattr(found, way), share) for way in WAYS})

    monkeypatch.setattr(layer_timer, "time_layers", timed)
    monkeypatch.setattr(layer_timer, "whole_step", lambda *args, **kwargs: seconds)
    one = measure.profile(NET, batches(60), engine("native"), warmup=0)
    assert one.origin["repeats"] == [len(taken)] == [passes]
    assert one.origin["layers_over_whole"] == pytest.approx(2 if slow == 99 else 1)


@pytest.mark.parametrize(
    ("busy", "given", "kept", "again"),
    [
        (2, 3, 3, 2),
        (99, 3, 3, 3),  # as often as passes count, then the machine is taken as it is
        (99, None, 30, 30),  # steps of milliseconds: as many as are taken at most
        (0, 3, 3, 0),
    ],
)
def test_passes_under_other_load_are_taken_again(busy, given, kept, again, monkeypatch):
    """Profiles of a busy machine said nothing of it: each layer was as slow as what else was at work made it."""
    taken, first = [], []

    def timed(*args, **kwargs):
        found = first[0] if first else TIME_LAYERS(*args, **kwargs)
        first.append(found)
        taken.append(1e-3 if len(taken) >= busy else 1e-2)
        return replace(found, **{way: dict.fromkeys(getattr(found, way), taken[-1] / 100) for way in WAYS})

    monkeypatch.setattr(layer_timer, "time_layers", timed)
    monkeypatch.setattr(layer_timer, "waited_share", lambda before, after: 0.3 if taken[-1] == 1e-2 else 0.04)
    one = measure.profile(NET, batches(60), engine("native"), warmup=0, repeats=given)
    assert (one.origin["repeats"], one.origin["repeated_again"]) == ([kept], [again])
    assert one.costs["cpu"][0].samples[0].forward == (1e-4 if busy == 99 else 1e-5)
    assert one.origin["background_load"]["run_queue_wait_share"] == pytest.approx(0.3 if busy == 99 else 0.04)
    told = "while it was measured, its threads waited for a processor 30% of the time"
    assert any(told in text for text in one.warnings) == (busy == 99)


@pytest.mark.parametrize(("processors", "reading"), [(1, 3.0), (4, 0.0)])
def test_what_a_step_takes_beside_its_layers_is_measured(processors, reading, told_clock, monkeypatch):
    """Another thread reads ahead: on a processor of its own that costs a step nothing, where there is one."""

    def read(k):
        told_clock[0] += 3.0
        return batches(60)[0]

    def put(engine, batch, device):
        told_clock[0] += 0.5
        return tensor(engine, batch, device)

    def judged(*args, **kwargs):
        told_clock[0] += 0.25
        return loss(*args, **kwargs)

    monkeypatch.setattr(measure, "moment", lambda device: told_clock[0])
    monkeypatch.setattr(measure, "num_processors", lambda: processors)
    chosen = engine("native")
    tensor, loss = type(chosen).tensor, CrossEntropy.__call__
    monkeypatch.setattr(type(chosen), "tensor", put)
    monkeypatch.setattr(CrossEntropy, "__call__", judged)
    one = measure.profile(NET, batches(60), chosen, warmup=0, repeats=1, training=measure.Training(read=read))
    assert one.step_overheads == {"cpu": StepOverhead(0.5 + reading, 0.25, reading)}
    assert (one.origin["reading_seconds"], one.origin["input_seconds"]) == (3.0, 0.5)


def test_where_nobody_tells_of_other_load_passes_count_as_they_are(monkeypatch):
    monkeypatch.setattr(layer_timer, "waited_share", lambda before, after: None)
    one = measure.profile(NET, batches(60), engine("native"), warmup=0, repeats=2)
    assert (one.origin["repeats"], one.origin["repeated_again"]) == ([2], [0])
    assert one.origin["background_load"]["run_queue_wait_share"] is None


def test_a_profile_says_how_many_samples_a_minibatch_has() -> None:
    """What training has, where that is known: of few samples that are all alike, parts of a minibatch are measured."""
    own = measure.profile(NET, batches(60, 90, 120), engine("native"), warmup=0, repeats=1)
    assert own.batch_size == len(batches(90)[0])
    told = measure.Training(batch_size=12)
    assert measure.profile(NET, batches(60), engine("native"), warmup=0, repeats=1, training=told).batch_size == 12


def test_profile_of_a_model_on_real_clouds(shared_data, tmp_path, monkeypatch):
    monkeypatch.setattr(of_model, "_MEASURING_SECONDS", float("inf"))  # a busy machine measures all sizes, too
    said = []
    found = of_model.profile_model(
        "minkvgg11bn-narrow",
        shared_data / "modelnet10-sample" / "ModelNet10",
        voxel_size=0.05,
        batch_size=4,
        num_points=256,
        engine="native",
        repeats=1,
        progress=said.append,
    )
    measured = found.origin["measured_voxels"]
    assert len(measured) == len(said) >= 4 and measured[-1] >= 8 * measured[0]
    assert found.origin["sample_sizes"]["samples"] == sum(found.origin["sample_sizes"]["histogram"]) > 4
    assert measured == sorted(set(measured))
    assert all(measured[0] <= count <= measured[-1] for count in found.sizes)
    assert found.origin["batch_size"] == 4
    assert found.origin["engine"] == "native"
    assert found.origin["layers_over_whole"] > 0
    assert Profile.load(found.save(tmp_path / "p.json")) == found
    assert tuple(row[0] for row in found.voxels_by_stride) == found.sizes
    assert {len(row) for row in found.voxels_by_stride} == {6}  # five convolutions of stride 2


def test_the_shape_of_a_minibatch_is_its_voxels_at_each_stride():
    random = np.random.default_rng(0)
    clouds = [np.unique(random.integers(-20, 20, (count, 3)), axis=0) for count in (400, 90, 1)]
    batch = collate([Sample(torch.tensor(rows, dtype=torch.int32), torch.ones(len(rows), 1), 0) for rows in clouds])
    expected = [sum(len({tuple(row // 2**k) for row in rows}) for rows in clouds) for k in range(8)]
    assert of_model.shape(batch) == expected


class Clouds:
    """Clouds of given sizes: voxels along a line, two wide."""

    size_unit = "voxels"

    def __init__(self, sizes):
        self.sizes = dict(enumerate(sizes))

    def batch(self, indices):
        return collate([self._sample(self.sizes[index]) for index in indices])

    def _sample(self, size):
        rows = torch.arange(size, dtype=torch.int32)
        coordinates = torch.stack([rows % 2, rows // 2, torch.zeros_like(rows)], dim=1)
        return Sample(coordinates, torch.ones(size, 1), 0)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 16])
@pytest.mark.parametrize("varied", [0.0, 0.1, 1.0])
def test_minibatches_to_measure_on_cover_what_training_meets_and_a_factor_of_8(batch_size, varied):
    random = np.random.default_rng(0)
    clouds = Clouds(np.maximum(500, 5000 * np.exp(varied * random.standard_normal(200))).astype(int).tolist())
    batches = of_model.spread(clouds, clouds.sizes, batch_size=batch_size)
    sizes = [batch.size for batch in batches]
    assert sizes == sorted(set(sizes)) and 4 <= len(sizes) <= 12
    assert sizes[-1] >= 7.5 * sizes[0]
    training = [sum(random.choice(list(clouds.sizes.values()), batch_size)) for _ in range(300)]
    within = [sizes[0] <= size <= sizes[-1] for size in training]
    assert sum(within) >= 0.97 * len(within)
    assert {batch_size, 2 * batch_size} <= {len(batch) for batch in batches}
    assert all(b / a <= 3.2 for a, b in itertools.pairwise(sizes)), "no gap that nothing was measured in"


def test_parts_of_a_minibatch_that_a_network_cannot_take_are_left_out_aloud():
    """Batch norm over a single voxel, in a coarse layer, has no variance."""
    point = Sample(torch.zeros(1, 3, dtype=torch.int32), torch.ones(1, 1), 0)
    said, chosen = [], [collate([point]), *batches(70, 100)]
    training = measure.Training(sizes=(float(chosen[1].size),))
    found = measure.profile(NET, chosen, engine("native"), warmup=0, repeats=1, training=training, progress=said.append)
    assert found.origin["measured_voxels"] == [batch.size for batch in chosen[1:]]
    assert mentions(said[0], 1, "layer 'bn1_1'")
    with raises("batch_norm.too_few_voxels"):
        measure.profile(NET, chosen[:1], engine("native"), warmup=0, repeats=1, training=training)


def test_a_part_of_a_cloud_is_as_dense_as_the_whole():
    (whole,) = Clouds([1000]).batch([0]).samples()
    half = of_model.cropped(collate([whole, whole]), 0.5)
    assert half.voxel_counts.tolist() == [500, 500]
    for sample in half.samples():
        assert sample.coordinates[:, 1].max() == 249 and set(sample.coordinates[:, 0].tolist()) == {0, 1}
    labels = torch.arange(1000)
    (part,) = of_model.cropped(collate([replace(whole, label=labels)]), 0.25).samples()
    assert part.label.tolist() == list(range(250))


def test_measuring_ends_in_time_and_says_what_was_left_out():
    said, chosen = [], batches(70, 100, 200, 300)
    training = measure.Training(sizes=(float(chosen[1].size),), most_seconds=0.0)
    found = measure.profile(NET, chosen, engine("native"), warmup=0, repeats=1, training=training, progress=said.append)
    measured = found.origin["measured_voxels"]
    assert [sample.size for sample in found.costs["cpu"][0].samples] == measured and len(measured) == 2
    assert len(said) == len(measured) + 1 and found.origin["measuring_seconds"] > 0


@pytest.mark.parametrize(
    ("found", "more", "error"),
    [
        ([], {}, ("profiler.sizes_malformed", "[]", "voxels")),
        (batches(50, 50), {}, ("profiler.sizes_malformed",)),
        (batches(50), {"repeats": 0}, ("profiler.repeats_malformed", "0", "2")),
        (batches(50), {"device": "cuda:99"}, ("device.no_cuda",)),
        (batches(50), {"device": "gpu"}, ("device.malformed", "gpu")),
    ],
)
def test_bad_input(found, more, error):
    with raises(*error):
        measure.profile(NET, found, engine("native"), **more)
