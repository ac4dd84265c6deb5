"""Networks of MinkowskiEngine's own modules: the library orders voxels by what it computed before."""

import pytest
import torch
from runtime_jobs import Job, run_jobs
from torch import nn

from sparsepipe.data import PointBatch
from sparsepipe.models.traced import trace, verify
from sparsepipe.plan import Plan, Stage
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads.opening import open_task

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
    task = open_task(config, engine_name="auto", seed=0)
    assert task.engine.name == "minkowski"
    assert [row.id for row in task.network.rows] == ["0", "1", "2"]
    assert "net.py:build: 1 pools in the mode that keeps samples apart" in capsys.readouterr().err


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
