"""Batch norm over two processes equals batch norm of all rows or grids in one, however they are shared out."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from coded import raises
from engine_clouds import close, random_batch
from runtime_jobs import run_ranks
from torch import nn

from sparsepipe.engines import Subnetwork, engine
from sparsepipe.errors import InputError
from sparsepipe.networks import INPUT, Network, Row
from sparsepipe.networks.batch_norm import GroupBatchNorm
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.replication.base import StatisticsGroup

CHANNELS = 5


def _rank(folder: Path, shares: tuple[int, ...], name: str, kind: str, place: str, rank: int) -> None:
    """Run the layer on this rank's rows of what is given, forward and backward."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    given = torch.load(folder / "given.pt")
    channels = {"channels": given["rows"].shape[1]}
    args = channels if kind == "batch_norm" else {**channels, "dimension": given["rows"].dim() - 2}
    net = Network("norm", (Row("bn", kind, (INPUT,), args),), 1, 1)
    module = Subnetwork(net, engine(name)).to(given["rows"].dtype)
    bn = module.get_submodule(place)
    with torch.no_grad():
        bn.weight.copy_(given["weight"])
        bn.bias.copy_(given["bias"])
    process = Process(rank, 2, torch.device("cpu"), 60)
    assert module.synchronise(StatisticsGroup(dist.group.WORLD, process)) == 1
    first, last = shares[rank : rank + 2]
    rows = given["rows"][first:last].clone().requires_grad_()
    for _ in range(2):
        output = module({INPUT: rows}, minibatch=0)["bn"]
    output.backward(given["gradient"][first:last])
    found = {"output": output.detach(), "rows": rows.grad, "weight": bn.weight.grad, "bias": bn.bias.grad}
    torch.save({**found, "state": module.state_dict()}, folder / f"found{rank}.pt")


DENSE = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@pytest.mark.parametrize(
    ("share", "name", "dimension"),
    [(6, "native", 0), (9, "native", 0), (0, "native", 0), (9, "minkowski", 0)] + [(6, "native", 2), (9, "native", 3)],
    ids=["equal", "unequal", "one without rows", "under minkowski", "of images", "of grids"],
)
def test_two_processes_equal_one(tmp_path, share, name, dimension):
    """`dimension` 0: rows [N, C]; else as many axes of dense grids."""
    try:
        engine(name)
    except InputError as error:
        pytest.skip(str(error))
    generator = torch.Generator().manual_seed(0)
    shape = (12, CHANNELS, *(4, 3, 2)[:dimension])
    given = {
        "rows": 10 + torch.randn(shape, generator=generator, dtype=torch.float64),
        "gradient": torch.randn(shape, generator=generator, dtype=torch.float64),
        "weight": torch.rand(CHANNELS, generator=generator, dtype=torch.float64),
        "bias": torch.rand(CHANNELS, generator=generator, dtype=torch.float64),
    }
    kind, place = ("dense_batch_norm", "bn") if dimension else ("batch_norm", "bn.bn")
    torch.save(given, tmp_path / "given.pt")
    run_ranks(_rank, 2, tmp_path, (0, share, 12), name, kind, place, logs=tmp_path, limit=120, more={})
    found = [torch.load(tmp_path / f"found{rank}.pt") for rank in (0, 1)]

    norm = DENSE.get(dimension, nn.BatchNorm1d)(CHANNELS).double()
    with torch.no_grad():
        norm.weight.copy_(given["weight"])
        norm.bias.copy_(given["bias"])
    rows = given["rows"].clone().requires_grad_()
    for _ in range(2):
        output = norm(rows)
    output.backward(given["gradient"])
    close(torch.cat([part["output"] for part in found]), output.detach(), 1e-12)
    close(torch.cat([part["rows"] for part in found]), rows.grad, 1e-12)
    for key in ("weight", "bias"):
        close(found[0][key] + found[1][key], getattr(norm, key).grad, 1e-12)
    for key, value in norm.state_dict().items():
        for part in found:
            close(part["state"][f"{place}.{key}"].double(), value.double(), 1e-12)
    assert all(torch.equal(found[0]["state"][key], found[1]["state"][key]) for key in found[0]["state"])


def test_without_a_group_it_is_torchs_own():
    net = Network("norm", (Row("bn", "batch_norm", (INPUT,), {"channels": 2}),), 2, 1)
    native = engine("native")
    module = Subnetwork(net, native)
    assert module.synchronise(None) == 1
    x = native.tensor(random_batch())
    expected = nn.BatchNorm1d(2)(x.features)
    assert torch.equal(module({INPUT: x}, minibatch=0)["bn"].features, expected)
    assert isinstance(module.get_submodule("bn.bn"), GroupBatchNorm)


@pytest.mark.parametrize("dimension", DENSE)
def test_a_dense_norm_without_a_group_is_torchs_own(dimension):
    norm = engine("native").layer(Row("bn", "dense_batch_norm", (INPUT,), {"channels": 2, "dimension": dimension}))
    expected = DENSE[dimension](2)
    grids = torch.randn(3, 2, *[4] * dimension, generator=torch.Generator().manual_seed(0))
    assert torch.equal(norm(grids), expected(grids))
    state = norm.state_dict()
    assert list(state) == list(expected.state_dict())
    assert all(torch.equal(state[key], value) for key, value in expected.state_dict().items())
    assert torch.equal(norm.eval()(grids), expected.eval()(grids))
    with raises("batch_norm.too_few_voxels"):
        norm.train()(torch.zeros(1, 2, *[1] * dimension))
