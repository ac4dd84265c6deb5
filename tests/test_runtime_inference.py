"""Forwards alone: a split through the stages gives what the uncut network gives, row by row, in the data's order."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import mentions, raises
from pipeline_jobs import pipelines_of
from processes import ENOUGH
from runtime_jobs import NORMED, Job, plan_of, run_jobs, settings, shapes
from test_data_predicted_points import MAP, SIZE, scans
from torch.func import functional_call

from sparsepipe import Cluster, InputError, data, launch
from sparsepipe.engines import engine
from sparsepipe.engines.subnetwork import Subnetwork
from sparsepipe.launching.resuming import find_checkpoint
from sparsepipe.networks import network
from sparsepipe.runtime.plan_fit import PREDICTIONS, write_forward_only

PLANS = {"alone": [[0]], "replicas": [[0], [1, 2]], "three": [[0], [1], [2]]}
SEGMENTED = "minkunet14a-segmentation-narrow"
MODELS = {"classes": NORMED, "voxels": SEGMENTED}
ADDRESSES = {"classes": set(), "voxels": {"coordinates", "origin", "edge", "point_row", "point_offsets"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Both networks trained for an epoch by two stages, then run by every plan from that checkpoint."""
    folder = tmp_path_factory.mktemp("inference")
    clouds, jobs = shapes(folder), []
    for kind, model in MODELS.items():
        config = settings(clouds, model=model, task="segmentation" if model == SEGMENTED else None, validate=True)
        jobs.append(Job(kind, plan_of(model, [[0], [1]]), config))
        for name, ranks in PLANS.items():
            (folder / f"{kind}-{name}").mkdir()
            write_forward_only(folder / f"{kind}-{name}", folder / kind / "checkpoints" / "minibatch-00000005")
            adam = config.replace(optimizer="adam")  # what was trained by another optimizer is no matter
            jobs.append(Job(f"{kind}-{name}", plan_of(model, ranks), adam))
    tiles = scans(folder / "tiles", shift=MAP, broken=(3, 5))
    config = settings(tiles, model=SEGMENTED, task="segmentation", validate=True, voxel_size=SIZE, batch_size=2)
    plan = plan_of(SEGMENTED, [[0], [1]])
    jobs.append(Job("tiles", plan, config.replace(last_minibatch="keep")))
    for num_points in ("all", 40):
        (folder / f"tiles-{num_points}").mkdir()
        write_forward_only(folder / f"tiles-{num_points}", folder / "tiles" / "checkpoints" / "minibatch-00000001")
        jobs.append(Job(f"tiles-{num_points}", plan, config.replace(num_points=num_points)))
    found = run_jobs(folder, jobs)
    return {job.name: (job, found[job.name]) for job in jobs}


def predictions(result):
    with np.load(result.folder / PREDICTIONS) as found:
        return {name: found[name] for name in found.files}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", [name for name in PLANS if name != "alone"])
def test_every_plan_gives_what_one_process_gives_to_the_bit(runs, kind, name):
    one, other = (predictions(runs[f"{kind}-{plan}"][1]) for plan in ("alone", name))
    assert one.keys() == other.keys() == {"outputs", "predictions", "sample", "name"} | ADDRESSES[kind]
    for array in one:
        assert np.array_equal(one[array], other[array])
    assert not list(runs[f"{kind}-{name}"][1].folder.glob(".predictions*"))


def whole_network(job, trained):
    """Outputs and labels of the uncut network, a sample at a time, in the order of the data set's own voxels."""
    config = job.config
    facts = {"voxel_size": config.voxel_size, "num_points": config.num_points, "seed": 0, "task": config.task}
    dataset = data.load(config.data, split="test", **facts)
    net, native = network(config.model, num_classes=len(dataset.classes)), engine("native")
    module = Subnetwork(net, native, seed=0).eval()
    tensors = trained.tensors("weight") | trained.tensors("buffer")
    rows, labels = [], []
    for index in range(len(dataset)):
        batch = dataset.batch([index])
        with torch.no_grad():
            given = ({"input": native.tensor(batch)},)
            out = functional_call(module, tensors, given, {"minibatch": 0})[net.rows[-1].id]
        if batch.per_voxel:
            places = native.split({"out": out}).coordinate_sets[0].coordinates.tolist()
            found = dict(zip(map(tuple, places), native.features(out), strict=True))
            rows += [found[tuple(place)] for place in batch.coordinates.tolist()]
        else:
            rows += list(native.rows(out))
        labels += batch.labels.tolist()
    return torch.stack(rows).numpy(), np.array(labels)


@pytest.mark.parametrize("kind", MODELS)
def test_rows_are_the_uncut_networks_in_the_order_of_the_data(runs, kind):
    """Of whole samples and of voxels, which the engine keeps in an order of its own."""
    (_, trained), (job, result) = runs[kind], runs[f"{kind}-replicas"]
    found = predictions(result)
    rows, labels = whole_network(job, trained)
    np.testing.assert_allclose(found["outputs"], rows, rtol=1e-4, atol=1e-5)
    assert np.array_equal(found["predictions"], found["outputs"].argmax(axis=1))
    assert (np.diff(found["sample"]) >= 0).all() and set(found["sample"].tolist()) == set(range(9))
    (summary,) = result.rows("summary")
    hits = found["predictions"] == labels
    assert summary["validation"]["accuracy"] == pytest.approx(hits[labels >= 0].mean())
    assert summary["validation"]["loss"] == pytest.approx(trained.rows("epoch")[-1]["validation"]["loss"], rel=1e-6)


@pytest.mark.parametrize("num_points", ["all", 40])
def test_rows_of_voxels_say_which_points_of_the_files_they_are_of(runs, num_points):
    """Predictions of voxels could not be put back on the cloud."""
    job, result = runs[f"tiles-{num_points}"]
    found = predictions(result)
    classes = data.to_points(result.folder, job.config.data)
    assert found["name"].tolist() == list(classes) == [f"tile/test/{name}.txt" for name in "abc"]
    for sample, (name, given) in enumerate(classes.items()):
        points = np.loadtxt(Path(job.config.data) / name, skiprows=1)[:, :3]
        rows = found["point_row"][slice(*found["point_offsets"][sample : sample + 2])]
        middles = found["origin"][sample] + (found["coordinates"] + 0.5) * found["edge"][sample]
        used = rows >= 0
        assert len(rows) == len(points) == len(given)
        assert used.sum() == (len(points) - 2 if num_points == "all" else 40)
        assert (found["sample"][rows[used]] == sample).all()
        assert (np.abs(middles[rows[used]] - points[used]) <= SIZE / 2 + 1e-6).all()
        assert np.array_equal(given[used], found["outputs"][rows[used]].argmax(axis=1))
        assert ((given == data.IGNORED) == np.isnan(points).any(axis=1)).all()


def test_the_summary_has_pace_and_latency(runs):
    job, result = runs["classes-three"]
    (summary,) = result.rows("summary")
    assert (summary["samples"], summary["minibatches"]) == (9, 3) and summary["samples_per_second"] > 0
    latency = summary["latency_seconds"]
    assert 0 < latency["median"] <= latency["p95"]
    assert Path(summary["predictions"]) == result.folder / PREDICTIONS
    assert [stage["ranks"] for stage in summary["stages"]] == [[0], [1], [2]]
    assert all(0 < stage["busy_fraction"] <= 1.001 for stage in summary["stages"])
    assert not (result.folder / "checkpoints").exists() and not result.rows("step"), "nothing was trained"


def test_a_job_computes_outputs_from_a_run(runs, tmp_path):
    """By `launch`, from a run's newest checkpoint; what cannot go together is refused before anything starts.

    The plan is of several pipelines: the first computes, on its own devices.
    """
    job, trained = runs["classes"]
    (trained.folder / "plan.json").write_text(json.dumps(job.plan.to_json()))
    plan, several, told = plan_of(NORMED, [[0]]), pipelines_of(NORMED, [[1]], [[0], [2]], rule="all-reduce"), []
    given = {"cluster": Cluster.uniform(3), "tell": told.append}
    with launch(several, job.config, run_dir=tmp_path / "run", forward_only=trained.folder, **given) as running:
        summary = running.wait(timeout=ENOUGH)
    assert running.record.plan == several.local(0)
    assert len(told) == 1 and mentions(told[0], "2 pipelines", 1, "3 devices")
    with raises("plan.rank_not_in_cluster", "1", "1 device"):
        launch(several, job.config, run_dir=tmp_path / "few", forward_only=trained.folder, cluster=Cluster.uniform(1))
    assert running.state == "finished" and summary["checkpoint"].endswith("minibatch-00000005")
    with np.load(tmp_path / "run" / PREDICTIONS) as found:
        assert np.array_equal(found["outputs"], predictions(runs["classes-alone"][1])["outputs"])
    refused = [
        ({"forward_only": trained.folder, "resume": True}, job.config, "omit resume"),
        ({"forward_only": trained.folder, "launcher": "ssh"}, job.config, "needs a list of hosts"),
        ({"forward_only": tmp_path}, job.config, "checkpoint"),
        ({"forward_only": trained.folder}, job.config.replace(model=SEGMENTED), "layer"),
    ]
    for options, config, told in refused:
        with pytest.raises(InputError, match=told):
            launch(plan, config, run_dir=tmp_path / "refused", **options)
        assert not (tmp_path / "refused" / "plan.json").exists()


def test_a_run_without_a_checkpoint_is_told(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with raises("run.no_checkpoint"):
        find_checkpoint(tmp_path, plan_of(NORMED, [[0]]), settings(tmp_path))
