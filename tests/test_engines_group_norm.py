"""Batch norm over two processes equals batch norm of all rows or grids in one, however they are shared out."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_clouds import close, random_batch
from torch import nn

from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.batch_norm import GroupBatchNorm
from sparsepipe.errors import InputError
from sparsepipe.models import INPUT, Network, Row

CHANNELS = 5
CODE = """
import sys, torch, torch.distributed as dist
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.models import INPUT, Network, Row
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.replication.batch_norm import Replicas
folder, rank, first, last, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
kind, place = sys.argv[6], sys.argv[7]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
given = torch.load(f"{folder}/given.pt")
args = {"channels": given["rows"].shape[1]} | ({"dimension": given["rows"].dim() - 2} if kind != "batch_norm" else {})
net = Network("norm", (Row("bn", kind, (INPUT,), args),), 1, 1)
module = Subnetwork(net, engine(name)).to(given["rows"].dtype)
bn = module.get_submodule(place)
with torch.no_grad():
    bn.weight.copy_(given["weight"]); bn.bias.copy_(given["bias"])
process = Process(rank, 2, torch.device("cpu"), 60)
assert module.synchronise(Replicas(dist.group.WORLD, process)) == 1
rows = given["rows"][first:last].clone().requires_grad_()
for _ in range(2):
    output = module({INPUT: rows}, minibatch=0)["bn"]
output.backward(given["gradient"][first:last])
torch.save({"output": output.detach(), "rows": rows.grad, "weight": bn.weight.grad, "bias": bn.bias.grad,
            "state": module.state_dict()}, f"{folder}/found{rank}.pt")
del output
module.synchronise(None)  # a group that is held until the interpreter ends aborts it
dist.destroy_process_group()
"""


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
    bounds = [(0, share), (share, 12)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(tmp_path), str(rank), str(first), str(last), name, kind, place],
            cwd=Path(__file__).resolve().parent.parent,
        )
        for rank, (first, last) in enumerate(bounds)
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
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
    with pytest.raises(InputError, match="batch norm over 1 voxel: expected at least 2"):
        norm.train()(torch.zeros(1, 2, *[1] * dimension))
