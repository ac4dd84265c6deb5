import importlib.util
import sys

import torch
from coded import raises

from sparsepipe import Plan, Stage
from sparsepipe.data import PointBatch
from sparsepipe.engines import engine
from sparsepipe.engines.subnetwork import Subnetwork
from sparsepipe.networks import network
from sparsepipe.records.formats.torch_pipelining import write_stage_modules

NETWORK = network("minkvgg11bn-narrow", num_classes=10)
IDS = tuple(row.id for row in NETWORK.rows)
PLAN = Plan((Stage(IDS[:9], (0,)), Stage(IDS[9:20], (1, 2)), Stage(IDS[20:], (3,))))


def load(folder):
    spec = importlib.util.spec_from_file_location(
        "written", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["written"] = module
    spec.loader.exec_module(module)
    return module


def cloud():
    points = torch.randint(0, 12, (300, 3), generator=torch.Generator().manual_seed(0))
    coordinates = torch.cat([torch.arange(300).remainder(2)[:, None], points], dim=1).unique(dim=0).int()
    return PointBatch(coordinates, torch.ones(len(coordinates), 1), torch.tensor([0, 1]))


def test_written_stages_compute_what_the_network_computes(tmp_path):
    write_stage_modules(PLAN, NETWORK, tmp_path / "written")
    native = engine("native")
    whole = Subnetwork(NETWORK, native, seed=0).eval()
    expected = native.rows(whole({"input": native.tensor(cloud())}, minibatch=0)[IDS[-1]])
    passed = native.tensor(cloud())
    for make in load(tmp_path / "written").STAGES:
        stage = make(native).eval()
        stage.load_state_dict({name: value for name, value in whole.state_dict().items() if name in stage.state_dict()})
        passed = stage(passed)
    torch.testing.assert_close(native.rows(passed), expected)


def test_a_plan_for_another_network_is_refused(tmp_path):
    with raises("plan.violations", "the plan cannot run", "in no stage"):
        write_stage_modules(PLAN, network("minkvgg16bn", num_classes=10), tmp_path)
    assert not list(tmp_path.iterdir())
