"""Runs whose ranks share each scene: losses, weights and validations of one process; what cannot share is refused."""

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from runtime_jobs import PLAIN, Job, plan_of, run_jobs, settings, shapes

from sparsepipe import launch
from sparsepipe.engines import engine
from sparsepipe.networks import network, traced
from sparsepipe.runtime.plan_fit import PREDICTIONS, write_forward_only
from sparsepipe.runtime.stages.scene_parts import check_shares_scenes

pytestmark = pytest.mark.slow


def shared(model, num_ranks, **options):
    plan = plan_of(model, [tuple(range(num_ranks))], **options)
    return replace(plan, stages=(replace(plan.stages[0], sharding="space"),))


def stages(model, **options):
    """Return a plan of three stages, of which the ranks of the second share scenes."""
    plan = plan_of(model, [(0,), (1, 2), (3,)], **options)
    first, second, last = plan.stages
    return replace(plan, stages=(first, replace(second, sharding="space"), last))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Voxels of shapes, alone and shared; steps with recomputation; classes of whole samples; a dense grid."""
    folder = tmp_path_factory.mktemp("space")
    data = shapes(folder)
    unet, vgg = "minkunet14a-segmentation-narrow", "minkvgg11bn-narrow"
    dense = "vgg11-3d-narrow"  # torch's float32 batch norm of whole grids rounds more than that of slabs
    weights = {"class_weights": [1.0 + k % 3 for k in range(23)]}
    # Dense enough: batch norms of a few deep voxels would make rounding errors large.
    config = settings(data, model=unet, task="segmentation", voxel_size=0.05, num_points=1000)
    config = replace(config, validate=True, metrics=("mean_iou",), clip_norm=1.0)
    weighed = replace(config, loss_args=json.dumps(weights))
    classes = replace(config, model=vgg, task=None, metrics=())
    gridded = replace(classes, model=dense, voxel_size=1 / 32)
    jobs = [
        Job("one", plan_of(unet, [(0,)]), config),
        Job("two", shared(unet, 2), config),
        Job("step", plan_of(unet, [(0,)], schedule="gpipe", num_microbatches=2), weighed),
        Job("step-two", shared(unet, 2, schedule="gpipe", num_microbatches=2, recompute=True), weighed),
        Job("stages", stages(unet, schedule="1f1b-flush", num_microbatches=2), weighed),
        Job("vgg", plan_of(vgg, [(0,)]), classes),
        Job("vgg-two", shared(vgg, 2, shares={0: (2, 1)}), classes),
        Job("dense", plan_of(dense, [(0,)]), gridded),
        Job("dense-two", shared(dense, 2, recompute=True), gridded),
    ]
    for name, plan in {"rows": jobs[0].plan, "rows-two": jobs[1].plan}.items():
        (folder / name).mkdir()
        write_forward_only(folder / name, folder / "one" / "checkpoints" / "minibatch-00000005")
        jobs.append(Job(name, plan, config))
    return run_jobs(folder, jobs)


@pytest.mark.parametrize(
    "pair",
    [("one", "two"), ("step", "step-two"), ("step", "stages"), ("vgg", "vgg-two"), ("dense", "dense-two")],
)
def test_ranks_that_share_scenes_train_as_one(runs, pair):
    one, two = (runs[name] for name in pair)
    # All empty cells of a grid are equal: where they are nearly 0, rounding rectifies all of them or none.
    tolerance = 1e-3 if "dense" in pair else 1e-5
    torch.testing.assert_close(torch.tensor(two.losses), torch.tensor(one.losses), rtol=1e-5, atol=0)
    for kind in ("weight", "buffer"):
        expected = one.tensors(kind)
        for name, tensor in two.tensors(kind).items():
            error = float((tensor.double() - expected[name].double()).abs().max())
            assert error <= tolerance * max(float(expected[name].double().abs().max()), 1.0), name
    (before,), (after,) = one.rows("epoch"), two.rows("epoch")
    for name in ("samples", "counted"):
        assert after["validation"][name] == before["validation"][name]
    assert after["validation"].keys() == before["validation"].keys()
    assert after["validation"]["loss"] == pytest.approx(before["validation"]["loss"], rel=1e-5)
    assert after["train"]["samples"] == before["train"]["samples"]
    assert after["sent_bytes"] > before["sent_bytes"] == 0


def test_rows_of_shared_scenes_come_together_in_the_order_of_the_data(runs):
    with np.load(runs["rows"].folder / PREDICTIONS) as one, np.load(runs["rows-two"].folder / PREDICTIONS) as two:
        assert one.keys() == two.keys()
        for name in one.keys() - {"outputs"}:
            assert np.array_equal(one[name], two[name]), name
        np.testing.assert_allclose(two["outputs"], one["outputs"], atol=1e-4 * np.abs(one["outputs"]).max())


def test_a_rank_that_dies_ends_the_job_in_one_line_and_leaves_no_process(tmp_path):
    """The other rank waits for its halo meanwhile. What was kept before goes on."""
    config = settings(shapes(tmp_path), epochs=1000, voxel_size=0.05)
    run = tmp_path / "run"
    job = launch(shared(PLAIN, 2), config, run_dir=run)
    pids = []

    def kill(row):
        if row["event"] == "epoch" and not pids:
            pids.extend(int((run / "logs" / f"rank{rank}.pid").read_text()) for rank in range(2))
            os.kill(pids[1], signal.SIGKILL)

    with raises("run.failed") as failed:
        job.wait(on_row=kill)
    assert len(str(failed.value).splitlines()) == 1
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)
    assert list((run / "checkpoints").glob("minibatch-*"))


def test_what_cannot_share_scenes_is_refused(minkowski):
    native, sparse, dense = engine("native"), "minkvgg11bn-narrow", "vgg11bn-3d-narrow"
    linear = traced.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    for code, net, chosen, cuts in (
        (None, sparse, native, [[0, 1]]),
        (None, dense, native, [[0, 1]]),
        (None, sparse, minkowski, [[0, 1]]),
        ("sharding.engine", sparse, engine("torch"), [[0, 1]]),
        ("sharding.stages", sparse, minkowski, [[0, 1], [2]]),
        ("sharding.grid", dense, native, [[0, 1], [2]]),
        ("sharding.layer", "ptv3-narrow", native, [[0, 1]]),
        ("sharding.network", linear, native, [[0, 1]]),
    ):
        table = network(net, num_classes=3) if isinstance(net, str) else net
        plan = plan_of(net if isinstance(net, str) else sparse, cuts)
        with raises(code) if code else nullcontext():
            check_shares_scenes(table, chosen, plan, own_loss=False)
