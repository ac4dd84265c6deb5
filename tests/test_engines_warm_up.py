"""Every rank lets its engine measure before ranks first meet: one that measured in a minibatch would hold up all."""

import json
from dataclasses import replace
from pathlib import Path

from runtime_jobs import NORMED, plan_of, run_ranks, settings, shapes

from sparsepipe.engines.native import NativeEngine
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.values.plan import Plan


class Recording(NativeEngine):
    """The native engine, which tells what it is asked for, in order."""

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


def _rank(folder: Path, plan: Plan, config: RunConfig, rank: int) -> None:
    recording = Recording()
    opened = Learning.open(config)
    run(folder, plan, config, workload=replace(opened, task=replace(opened.task, engine=recording)))
    (folder / f"calls{rank}.json").write_text(json.dumps(recording.calls))


def test_every_rank_warms_up_its_own_layers_before_the_first_exchange(tmp_path: Path) -> None:
    plan = plan_of(NORMED, [[0], [1]])
    config = settings(shapes(tmp_path), model=NORMED, minibatches=2)
    (tmp_path / "logs").mkdir()
    more = {"GLOO_SOCKET_IFNAME": "lo", "SPARSEPIPE_LAUNCH": "warm-up"}
    run_ranks(_rank, 2, tmp_path, plan, config, logs=tmp_path, limit=240, more=more)
    for rank, stage in enumerate(plan.stages):
        first, *later = json.loads((tmp_path / f"calls{rank}.json").read_text())
        assert first == ["warm_up", *stage.layers]
        assert ["tensor" if rank == 0 else "join"] in later and ["warm_up", *stage.layers] not in later
