"""Networks of spconv's modules: repaired for CPUs, cut into stages, trained in two processes as in one."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from runtime_jobs import Job, run_jobs
from torch import nn

from sparsepipe import engines
from sparsepipe.data import PointBatch
from sparsepipe.errors import InputError
from sparsepipe.networks.traced import trace
from sparsepipe.networks.traced.verification import differences
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.transport.packet import FORWARD, Packet, decode, encode
from sparsepipe.runtime.workloads.opening import open_task
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.plan import Plan, Stage

pytest.importorskip("spconv", reason="spconv is not installed: pip install sparsepipe[spconv]")
ENGINE = engines.engine("spconv")

import spconv.pytorch as spconv  # noqa: E402  # once the engine has repaired it
import spconv_networks as networks  # noqa: E402
from spconv.core import ConvAlgo  # noqa: E402
from spconv.pytorch.core import ImplicitGemmIndiceData  # noqa: E402


def tensor(number: int = 200, *, samples: int = 2, extent: int = 24):
    places, features = networks.cloud(samples, number, extent=extent)
    return spconv.SparseConvTensor(features, places, [extent] * 3, samples)


def test_repaired_layers_are_dense_ones_where_every_voxel_is_there():
    """Forward, backward, biases in evaluation, dense()."""
    torch.manual_seed(0)
    full = torch.randn(2, 4, 5, 5, 5)
    places = torch.ones(2, 5, 5, 5).nonzero().int().contiguous()
    rows = full.movedim(1, -1).reshape(-1, 4).requires_grad_()
    layer = spconv.SubMConv3d(4, 6, 3, padding=1)
    nn.init.normal_(layer.bias)
    weight = layer.weight.movedim(-1, 1)  # [out, in, 3, 3, 3]
    expected = nn.functional.conv3d(full, weight, layer.bias, padding=1)
    for training in (True, False):
        found = layer.train(training)(spconv.SparseConvTensor(rows, places, [5] * 3, 2)).dense()
        torch.testing.assert_close(found, expected)
    layer.train()
    wanted = [rows, layer.weight]
    drawn = torch.randn_like(expected)
    ours = torch.autograd.grad(layer(spconv.SparseConvTensor(rows, places, [5] * 3, 2)).dense(), wanted, drawn)
    given = full.requires_grad_()
    theirs = torch.autograd.grad(nn.functional.conv3d(given, weight, padding=1), [given, layer.weight], drawn)
    torch.testing.assert_close(ours[0], theirs[0].movedim(1, -1).reshape(-1, 4))
    torch.testing.assert_close(ours[1], theirs[1])


def crossed(tensors):
    """Return tensors as another process has them."""
    parts = ENGINE.split(tensors)
    features = {name: each._replace(rows=each.rows.detach().clone()) for name, each in parts.features.items()}
    header, payload = encode(Packet(FORWARD, 0, 0, (), parts.coordinate_sets, tables=parts.tables))
    packet = decode(header, payload)
    return ENGINE.join(type(parts)(packet.coordinate_sets, features, packet.tables))


def test_several_threads_add_up_what_one_does():
    places = torch.unique(torch.randint(0, 24, (900, 3)), dim=0)
    indices = torch.cat([torch.zeros(len(places), 1), places], dim=1).int()
    layer, rows, threads = spconv.SubMConv3d(32, 32, 3), torch.randn(len(places), 32), torch.get_num_threads()
    found = []
    for count in (1, 4, 4, 4):
        torch.set_num_threads(count)
        found.append(layer(spconv.SparseConvTensor(rows, indices, [24] * 3, 1)).features.detach())
        assert torch.get_num_threads() == count
    torch.set_num_threads(threads)
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=1e-5, atol=1e-5)


def test_what_layers_found_out_about_voxels_crosses_once():
    layers = nn.Sequential(
        spconv.SubMConv3d(4, 4, 3, indice_key="fine"),
        spconv.SparseConv3d(4, 4, 3, stride=2, padding=1, indice_key="down"),
        spconv.SparseMaxPool3d(2, 2, indice_key="pool"),
    )
    fine = layers[0](tensor())
    coarse = layers[1:](fine)
    found = crossed({"coarse": coarse, "rows": coarse.features, "fine": fine})
    assert torch.equal(found["rows"], coarse.features)
    for name, sent in {"coarse": coarse, "fine": fine}.items():
        assert torch.equal(found[name].indices, sent.indices) and torch.equal(found[name].features, sent.features)
        assert (found[name].spatial_shape, found[name].batch_size) == (sent.spatial_shape, sent.batch_size)
        assert found[name].indice_dict.keys() == sent.indice_dict.keys()
    for key, sent in coarse.indice_dict.items():
        there = vars(found["coarse"].indice_dict[key])
        assert there.keys() == vars(sent).keys()
        for field, value in vars(sent).items():
            assert_equal(there[field], value)
    assert found["fine"].indice_dict["fine"] is found["coarse"].indice_dict["fine"]
    assert found["coarse"].indice_dict["down"].indices is found["fine"].indices


def test_pairs_as_gpus_have_them_cross_too():
    there = tensor()
    rows = len(there.indices)
    pairs = torch.arange(8 * rows, dtype=torch.int32).view(8, rows)
    splits = {name: [pairs[0].clone()] for name in ("pair_mask_fwd_splits", "pair_mask_bwd_splits")}
    splits |= {name: [pairs[1].long()] for name in ("mask_argsort_fwd_splits", "mask_argsort_bwd_splits")}
    sizes = {"ksize": [2] * 3, "stride": [2] * 3, "dilation": [1] * 3, "padding": [0] * 3}
    shapes = {"spatial_shape": [24] * 3, "out_spatial_shape": [12] * 3, "is_subm": False}
    masks = [np.array([3, 5], dtype=np.uint32)]
    there.indice_dict["a"] = ImplicitGemmIndiceData(
        there.indices, there.indices, pairs, pairs.flip(1), masks=masks, algo=ConvAlgo.MaskImplicitGemm,
        **splits, **sizes, **shapes,
    )  # fmt: skip
    found = vars(crossed({"x": there})["x"].indice_dict["a"])
    for name, value in vars(there.indice_dict["a"]).items():
        assert_equal(found[name], value)


def assert_equal(found, value):
    assert type(found) is type(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        assert found.dtype == value.dtype and (found == value).all()
    elif isinstance(value, list):
        for one, other in zip(found, value, strict=True):
            assert_equal(one, other)
    else:
        assert found == value


def test_pairs_of_a_crowded_grid_are_made_again():
    """They would be more bytes than gigabit Ethernet carries meanwhile; of a SparseConv they are sent always."""
    layers = [spconv.SubMConv3d(4, 4, 3, indice_key="fine"), spconv.SparseConv3d(4, 4, 3, indice_key="down")]
    crowded = nn.Sequential(*layers)(tensor(2000, extent=12))
    assert crowded.indice_dict.keys() == {"fine", "down"}
    there = crossed({"x": crowded})["x"]
    assert there.indice_dict.keys() == {"down"}
    last = spconv.SparseInverseConv3d(4, 4, 3, indice_key="down")
    again = spconv.SubMConv3d(4, 4, 3, indice_key="fine")
    assert torch.equal(again(last(there)).features, again(last(crowded)).features)


def test_voxels_below_zero_are_moved_by_whole_steps():
    coordinates = torch.tensor([[0, -70, 0, 3], [0, -69, 5, 200], [1, 1, 1, 1]], dtype=torch.int32)
    batch = PointBatch(coordinates, torch.rand(3, 1), torch.zeros(2, dtype=torch.int64))
    found = ENGINE.tensor(batch)
    assert found.indices[:, 1:].min() >= 0 and (found.indices - coordinates)[:, 1:].unique().tolist() == [0, 128]
    assert found.spatial_shape == [192, 64, 256] and found.batch_size == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", networks.FAMILIES)
def test_published_networks_are_the_same_in_stages(name):
    """Minibatches have another number of samples and voxels; what is in one layer is said."""
    torch.manual_seed(0)
    module, minibatches = networks.FAMILIES[name]()
    said: list[str] = []
    network = trace(module, minibatches[0], name=name, say=said.append)
    assert len(network.rows) > 35 and len(said) == {"SpUNet": 1, "SECOND": 0, "VoxelNeXt": 3}[name]
    ids = [row.id for row in network.rows]
    middle = len(ids) // 2
    for inputs, stages in zip(minibatches, ([ids[:middle], ids[middle:]], 5, 0), strict=True):
        for training in (True, False):
            found = differences(network, inputs, engine=ENGINE, stages=stages, training=training)
            assert not [each for each in found if each.relative > 1e-5], (stages, training)


def test_a_stage_is_sent_the_pairs_that_its_layers_read():
    layers = spconv.SparseSequential(
        spconv.SparseConv3d(4, 4, 2, 2, indice_key="a"),
        nn.ReLU(True),
        spconv.SubMConv3d(4, 4, 3, indice_key="b"),
        spconv.SparseConv3d(4, 4, 2, 2, indice_key="c"),
        spconv.SparseInverseConv3d(4, 4, 2, indice_key="c"),
        spconv.SubMConv3d(4, 4, 3, indice_key="b"),
        spconv.ToDense(),
    )
    inputs = tensor()
    network = trace(layers, inputs)
    stage = network.build(engine=ENGINE)
    values = stage(stage.enter(inputs), minibatch=0)
    read = {row.id: set(values[row.id].indice_dict) for row in network.rows[:-1]}
    assert read == {"0": set(), "1": set(), "2": {"b"}, "3": {"b", "c"}, "4": {"b"}, "5": set()}
    assert [row.id for row in network.rows] == ["0", "1", "2", "3", "4", "5", "6"]
    assert not differences(network, inputs, engine=ENGINE, stages=0)


def test_a_minibatch_without_voxels_is_refused_where_layers_would_be_left_out():
    network = trace(spconv.SparseSequential(spconv.SubMConv3d(4, 4, 1), nn.ReLU(), spconv.ToDense()), tensor())
    stage = network.build(engine=ENGINE)
    empty = spconv.SparseConvTensor(torch.empty(0, 4), torch.empty(0, 4, dtype=torch.int32), [4] * 3, 1)
    with pytest.raises(InputError) as caught:
        stage(stage.enter(empty), minibatch=0)
    assert caught.value.code == "module.decides_by_size"


FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 2}
SETTINGS = {"voxel_size": 0.2, "num_points": 100, "batch_size": 8, "learning_rate": 0.1, "threads": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_in_two_processes_as_in_one(tmp_path):
    guide = nbformat.read(Path(__file__).parent.parent / "notebooks" / "guides" / "own_network.ipynb", as_version=4)
    (code,) = (cell.source for cell in guide.cells if cell.source.startswith("%%writefile spconv_net.py"))
    (tmp_path / "net.py").write_text(code.partition("\n")[2])
    config = RunConfig(f"{tmp_path}/net.py:make", "digits", **SETTINGS, minibatches=12, validate=False)
    task = open_task(resolve(config))
    assert task.engine.name == "spconv"
    ids = [row.id for row in task.network.rows]
    cut = ids.index("down.1") + 1  # between a convolution and its inverse
    plans = {
        "one": Plan((Stage(tuple(ids), (0,)),), **FLUSH),
        "two": Plan((Stage(tuple(ids[:cut]), (0,)), Stage(tuple(ids[cut:]), (1,))), **FLUSH),
    }
    found = run_jobs(tmp_path / "runs", [Job(name, plan, config) for name, plan in plans.items()])
    assert found["one"].losses == found["two"].losses
