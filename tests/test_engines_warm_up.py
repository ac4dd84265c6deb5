"""Every rank lets its engine measure before ranks first meet: one that measured in a minibatch would hold up all."""

import json
import os
import subprocess
import sys
from pathlib import Path

from runtime_jobs import NORMED, plan_of, settings, shapes

from sparsepipe.files import write_json

CODE = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from sparsepipe.engines.native import NativeEngine
from sparsepipe.plan import Plan
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.workloads.point_clouds import PointClouds

class Recording(NativeEngine):
    "The native engine, which tells what it is asked for, in order."
    def __init__(self):
        self.calls = []
    def warm_up(self, subnetwork, batch, device, *, half=None):
        self.calls.append(["warm_up", *subnetwork.layer_ids])
        assert batch().num_voxels > 0
        return super().warm_up(subnetwork, batch, device, half=half)
    def tensor(self, batch, device="cpu"):
        self.calls.append(["tensor"])
        return super().tensor(batch, device)
    def split(self, tensors):
        self.calls.append(["split"])
        return super().split(tensors)
    def join(self, parts):
        self.calls.append(["join"])
        return super().join(parts)

folder = Path(sys.argv[1])
given = json.loads((folder / "given.json").read_text())
config = RunConfig.from_json(given["config"])
engine = Recording()
run(folder, Plan.from_json(given["plan"]), config, workload=replace(PointClouds.open(config), engine=engine))
(folder / f"calls{os.environ['RANK']}.json").write_text(json.dumps(engine.calls))
os._exit(0)  # as a rank's own process ends: torch cannot always take a process group down with the interpreter
"""


def test_every_rank_warms_up_its_own_layers_before_the_first_exchange(tmp_path: Path) -> None:
    plan = plan_of(NORMED, [[0], [1]])
    config = settings(shapes(tmp_path), model=NORMED, minibatches=2)
    write_json(tmp_path / "given.json", {"plan": plan.to_json(), "config": config.to_json()})
    (tmp_path / "logs").mkdir()
    environment = {**os.environ, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "SPARSEPIPE_LAUNCH": "warm-up"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(tmp_path)],
            env={**environment, "RANK": str(rank)},
            cwd=Path(__file__).resolve().parent.parent,
        )
        for rank in (0, 1)
    ]
    try:
        assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for rank, stage in enumerate(plan.stages):
        first, *later = json.loads((tmp_path / f"calls{rank}.json").read_text())
        assert first == ["warm_up", *stage.layers]
        assert ["tensor" if rank == 0 else "join"] in later and ["warm_up", *stage.layers] not in later
