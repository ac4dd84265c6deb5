"""Networks of MinkowskiEngine's own modules: the library orders voxels by what it computed before."""

import pytest
import torch
from coded import mentions
from runtime_jobs import Job, run_jobs
from torch import nn

from sparsepipe.data import PointBatch
from sparsepipe.networks.traced import trace, verify
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads.opening import open_task
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.plan import Plan, Stage

pytestmark = pytest.mark.filterwarnings("ignore:<class 'Minkowski:DeprecationWarning")
SAMPLES = 9


@pytest.fixture
def library(minkowski):
    import MinkowskiEngine

    return MinkowskiEngine


def clouds() -> PointBatch:
    draw = torch.Generator().manual_seed(0)
    places = torch.randint(0, 24, (60 * SAMPLES, 3), generator=draw)
    samples = torch.arange(SAMPLES).repeat_interleave(60)[:, None]
    rows = torch.unique(torch.cat([samples, places], 1), dim=0).int()
    return PointBatch(rows, torch.rand(len(rows), 1, generator=draw), torch.zeros(SAMPLES, dtype=torch.int64))


def strided(library, pool) -> nn.Module:
    torch.manual_seed(0)
    down = [
        library.MinkowskiConvolution(a, b, kernel_size=3, stride=2, dimension=3) for a, b in ((1, 4), (4, 8), (8, 8))
    ]
    layers = [layer for one in down for layer in (one, library.MinkowskiReLU())]
    return nn.Sequential(*layers, pool, library.MinkowskiLinear(8, 5))


def test_voxels_in_another_order_are_the_same_network(minkowski, library):
    """A stage that begins on a coarse grid orders the next one otherwise: it was said to be another network."""
    inputs = minkowski.tensor(clouds())
    network = trace(strided(library, library.MinkowskiGlobalMaxPooling()), inputs)
    for stages in (2, 3, 0):
        verify(network, inputs, engine=minkowski, stages=stages)


@pytest.mark.parametrize("kind", ["Max", "Avg", "Sum", ""])
def test_an_output_has_its_samples_rows(kind, minkowski, library):
    """Means and sums stood in rows of other samples, and labels beside an order of the library's."""
    batch = clouds()
    module = strided(library, getattr(library, f"MinkowskiGlobal{kind}Pooling")())
    changed = minkowski.correct(module)
    assert changed == ([] if kind == "Max" else ["6"]) and minkowski.correct(module) == []
    found = minkowski.rows(module(minkowski.tensor(batch)))
    pairs = [batch.take([k, k]) for k in range(SAMPLES)]  # a sample twice: one alone is not pooled by the library
    alone = torch.stack([minkowski.rows(module(minkowski.tensor(pair)))[0] for pair in pairs])
    torch.testing.assert_close(found, alone)


class Rows(nn.Module):
    """Returns the plain rows of its pooled tensor, which are multiplied, too: no engine can order them any more."""

    def __init__(self, library, pool):
        super().__init__()
        self.down, self.out = strided(library, pool)[:-1], nn.Linear(8, 5)

    def forward(self, x):
        return self.out(self.down(x).F)


@pytest.mark.parametrize("kind", ["Max", "Avg", "Sum"])
def test_plain_rows_of_a_pooled_tensor_are_those_of_the_samples(kind, minkowski, library):
    """They came in the order of a hash map, beside labels in another, and in yet another order behind a cut."""
    batch = clouds()
    module = Rows(library, getattr(library, f"MinkowskiGlobal{kind}Pooling")())
    minkowski.correct(module)
    found = module(minkowski.tensor(batch))
    pairs = [batch.take([k, k]) for k in range(SAMPLES)]
    alone = torch.stack([module(minkowski.tensor(pair))[0] for pair in pairs])
    torch.testing.assert_close(found, alone)
    inputs = minkowski.tensor(batch)
    network = trace(module, inputs)
    ids = [row.id for row in network.rows]
    for cut in (2, len(ids) - 1):
        verify(network, inputs, engine=minkowski, stages=[ids[:cut], ids[cut:]])


class Generative(nn.Module):
    """Skips of an encoder beside an upsampling that makes voxels of its own: two coordinate sets of one stride."""

    def __init__(self, library, joined):
        super().__init__()
        torch.manual_seed(0)
        convolution, options = library.MinkowskiConvolution, {"kernel_size": 2, "stride": 2, "dimension": 3}
        self.stem = convolution(1, 4, kernel_size=3, dimension=3)
        self.down = convolution(4, 4, **options)
        self.up = library.MinkowskiGenerativeConvolutionTranspose(4, 4, **options)
        self.back = library.MinkowskiConvolutionTranspose(4, 4, **options)
        self.on = convolution(4, 4, kernel_size=3, dimension=3)
        self.prune, self.pool = library.MinkowskiPruning(), library.MinkowskiGlobalMaxPooling()
        self.joined = joined

    def forward(self, x):
        skip = self.stem(x)
        coarse = self.down(skip)
        made = self.on(self.up(coarse))
        if self.joined == "union":
            return self.pool(skip + made)
        if self.joined == "upsampling to the encoder's":
            return self.pool(self.back(coarse) + skip) + self.pool(made)
        if self.joined == "two of its own":
            return self.pool(made + self.on(self.up(coarse))) + self.pool(skip)
        return self.pool(skip), self.pool(made)


@pytest.mark.parametrize("joined", ["union", "upsampling to the encoder's", "two of its own", "pooled alone"])
def test_coordinate_sets_of_one_stride_stay_apart_behind_a_cut(joined, minkowski, library):
    inputs = minkowski.tensor(clouds().take([0, 1, 2]))
    network = trace(Generative(library, joined), inputs)
    for stages in (2, 3, 0):
        verify(network, inputs, engine=minkowski, stages=stages)


def test_parts_know_whose_voxels_are_whose(minkowski, library):
    """As many voxels on both sides: features were exchanged for the other set's, and nobody noticed."""
    inputs = minkowski.tensor(clouds().take([0, 1, 2]))
    keep = torch.arange(len(inputs)) % 2 == 0
    prune = library.MinkowskiPruning()
    first, second = prune(inputs, keep), prune(inputs, keep.roll(1))
    assert first.tensor_stride == second.tensor_stride
    parts = minkowski.split({"first": first, "input": inputs, "second": second, "same": first})
    assert [one.family for one in parts.coordinate_sets] == [1, 0, 2]
    joined = minkowski.join(parts)
    for name, tensor in {"first": first, "second": second, "input": inputs, "same": first}.items():
        assert torch.equal(joined[name].C, tensor.C) and torch.equal(joined[name].F, tensor.F)
    assert joined["first"].coordinate_map_key == joined["same"].coordinate_map_key
    again = minkowski.split(joined)
    assert [one.family for one in again.coordinate_sets] == [1, 0, 2]


NET = """
import MinkowskiEngine as ME
from torch import nn

def build(in_channels, num_classes):
    down = ME.MinkowskiConvolution(in_channels, 4, kernel_size=3, stride=2, dimension=3)
    return nn.Sequential(down, ME.MinkowskiGlobalAvgPooling(), ME.MinkowskiLinear(4, num_classes))
"""
CUTS = {"one": (("0", "1", "2"),), "two": (("0",), ("1", "2"))}
FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 2}
SETTINGS = {"voxel_size": 0.2, "num_points": 100, "batch_size": 8, "learning_rate": 0.1, "threads": 1}


def test_a_file_with_a_network_of_it_is_opened(tmp_path, minkowski, capsys):
    (tmp_path / "net.py").write_text(NET)
    config = RunConfig(f"{tmp_path}/net.py:build", "digits", **SETTINGS)
    task = open_task(resolve(config))
    assert task.engine.name == "minkowski"
    assert [row.id for row in task.network.rows] == ["0", "1", "2"]
    assert mentions(capsys.readouterr().err, "net.py:build", 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_in_stages_as_in_one_process(tmp_path, minkowski):
    """Its output is sparse, in the library's order, which depends on the cut: losses get samples' rows."""
    (tmp_path / "net.py").write_text(NET)
    config = RunConfig(f"{tmp_path}/net.py:build", "digits", **SETTINGS, minibatches=12, validate=False)
    plans = {name: Plan(tuple(Stage(ids, (k,)) for k, ids in enumerate(cut)), **FLUSH) for name, cut in CUTS.items()}
    found = run_jobs(tmp_path / "runs", [Job(name, plan, config) for name, plan in plans.items()])
    one, two = (torch.tensor(found[name].losses) for name in CUTS)
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
