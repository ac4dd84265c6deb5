"""Checkpoints are whole or absent, and what is damaged or another model's is refused by name."""

import json
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from coded import raises
from command_line import sparsepipe
from processes import ENOUGH
from runtime_jobs import NORMED, PLAIN, plan_of, settings, shapes

from sparsepipe import InputError, RunFailed, RunRecord
from sparsepipe.data import make_shapes
from sparsepipe.data.shapes import FAMILIES
from sparsepipe.launching import launch
from sparsepipe.launching.prepare import _changed
from sparsepipe.records import Origin
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.training_state import checkpoint
from sparsepipe.runtime.worker.run import run
from sparsepipe.values.plan import Plan, Stage


def _write(run_dir, minibatches: int, *, keep: int = 2) -> None:
    checkpoint.begin(run_dir, minibatches)
    for stage, layer in enumerate(("conv1", "conv2")):
        tensors = {f"weight:{layer}.kernel": torch.full((3,), float(stage)), f"buffer:{layer}.count": torch.tensor(7)}
        checkpoint.write_shard(run_dir, minibatches, f"stage{stage}", tensors)
    places = {"conv1": "stage0.safetensors", "relu": "stage0.safetensors", "conv2": "stage1.safetensors"}
    checkpoint.finish(run_dir, minibatches, keep=keep, layers=places, model="net")


def test_layers_are_read_whoever_wrote_them(tmp_path) -> None:
    _write(tmp_path, 12)
    found = checkpoint.latest(tmp_path)
    assert found.minibatches == 12
    found.check(model="net", layers=["relu", "conv2"])
    tensors = found.read(["relu", "conv2"])
    assert checkpoint.without_prefix(tensors, "weight:").keys() == {"conv2.kernel"}
    assert torch.equal(tensors["weight:conv2.kernel"], torch.ones(3))
    assert tensors["buffer:conv2.count"].item() == 7


def test_tensors_of_traced_layers_that_go_by_other_names_are_read(tmp_path) -> None:
    """A module that is called again holds its buffers in both stages; a module in one piece names no layer."""
    checkpoint.begin(tmp_path, 5)
    checkpoint.write_shard(
        tmp_path, 5, "stage0", {"buffer:norm.mean": torch.ones(2), "weight:conv.kernel": torch.ones(1)}
    )
    checkpoint.write_shard(
        tmp_path, 5, "stage1", {"buffer:norm.mean": torch.ones(2), "weight:other.kernel": torch.zeros(1)}
    )
    places = dict.fromkeys(("norm", "conv"), "stage0.safetensors") | dict.fromkeys(
        ("norm-2", "Net"), "stage1.safetensors"
    )
    checkpoint.finish(tmp_path, 5, keep=1, layers=places, model="net")
    found = checkpoint.latest(tmp_path)
    assert {"buffer:norm.mean", "weight:other.kernel"} <= found.read(["norm-2", "Net"]).keys()
    assert found.read(["conv"]).keys() == {"weight:conv.kernel"}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_itself_reads_it(tmp_path) -> None:
    import torch.distributed.checkpoint as dcp  # here: it takes a second of whoever only collects tests
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    _write(tmp_path, 12)
    weights = {"weight:conv1.kernel": torch.empty(3), "weight:conv2.kernel": torch.empty(3)}
    reader = HuggingFaceStorageReader(str(checkpoint.latest(tmp_path).folder))
    dcp.load(weights, storage_reader=reader, no_dist=True)
    assert weights["weight:conv1.kernel"].tolist() == [0, 0, 0] and weights["weight:conv2.kernel"].tolist() == [1, 1, 1]


def test_a_stage_without_tensors_has_no_file(tmp_path) -> None:
    checkpoint.begin(tmp_path, 5)
    checkpoint.write_shard(tmp_path, 5, "stage0", {})
    checkpoint.write_shard(tmp_path, 5, "stage1", {"weight:conv.kernel": torch.ones(2).expand(3, 2).t()})
    places = {"relu": "stage0.safetensors", "conv": "stage1.safetensors"}
    folder = checkpoint.finish(tmp_path, 5, keep=1, layers=places, model="net")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "stage1.safetensors"]
    assert checkpoint.load(folder).read(["relu"]) == {}
    assert checkpoint.load(folder).read(["relu", "conv"])["weight:conv.kernel"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_the_last_ones_are_kept(tmp_path) -> None:
    for minibatches in (5, 10, 15, 100):
        _write(tmp_path, minibatches)
    assert checkpoint.latest(tmp_path).minibatches == 100
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["minibatch-00000015", "minibatch-00000100"]


def test_one_that_was_never_finished_is_not_seen(tmp_path) -> None:
    _write(tmp_path, 5)
    checkpoint.begin(tmp_path, 10)
    checkpoint.write_shard(tmp_path, 10, "stage0", {"weight:conv1.kernel": torch.zeros(3)})
    assert checkpoint.latest(tmp_path).minibatches == 5
    _write(tmp_path, 10)
    assert checkpoint.latest(tmp_path).minibatches == 10


def test_a_manifest_that_was_edited_is_refused(tmp_path) -> None:
    """Another seed or batch size went unnoticed: only the shards had a checksum."""
    _write(tmp_path, 5)
    path = checkpoint.latest(tmp_path).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"seed": 7}))
    with raises("checkpoint.manifest_differs", "before it"):
        checkpoint.latest(tmp_path)
    path.write_text(json.dumps(dict(reversed(manifest.items()))))
    assert checkpoint.latest(tmp_path).minibatches == 5, "the order of keys and spaces is no matter"
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    assert checkpoint.latest(tmp_path).read(["conv1"]), "one that was written before there was a seal"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"minibatches": "5"}, ("number.not_whole", "minibatches", "5")),
        ({"layers": None}, ("value.not_an_object", "layers", "None")),
        ({"layers": {"conv1": "../../x.safetensors"}}, ("manifest.name_malformed",)),
        ({"files": {"a": {"bytes": -1}}}, ("number.not_whole", "bytes", "-1")),
        ({"files": {"a": {"sha256": "0"}}}, ("manifest.digest_malformed",)),
        ({"loss_scale": {"factor": 2.0, "colour": 1}}, ("manifest.key_unknown", "colour")),
        ({"format": "another"}, ("checkpoint.foreign",)),
    ],
)
def test_a_damaged_manifest_names_what_is_wrong(tmp_path, change, error) -> None:
    _write(tmp_path, 5)
    path = checkpoint.latest(tmp_path).folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with raises(*error):
        checkpoint.latest(tmp_path)
    for name in ("minibatches", "layers", "files"):
        _write(tmp_path, 5)
        manifest = json.loads(path.read_text())
        del manifest[name], manifest["sha256"]
        path.write_text(json.dumps(manifest))
        with raises("record.key_missing", name):
            checkpoint.latest(tmp_path)


def test_metrics_that_are_gone_or_damaged_are_said_before_a_run_goes_on(tmp_path) -> None:
    """It resumed with exit code 0, and the earlier losses were silently missing."""
    plan, config = Plan((Stage(("conv1", "relu", "conv2"), (0,)),)), RunConfig("net", "d")
    RunRecord.create(tmp_path, plan, config.to_json(), Origin())
    _write(tmp_path, 5)
    with pytest.warns(UserWarning, match="metrics.jsonl.*5 minibatches"):
        _changed(tmp_path, plan, config)
    (tmp_path / "metrics.jsonl").write_text('{"event": "step"}\n[]\n')
    with raises("json.row_malformed", "metrics.jsonl", number=2):
        _changed(tmp_path, plan, config)
    with raises("json.row_malformed", "metrics.jsonl", number=2):
        _changed(tmp_path, plan.with_schedule("gpipe"), config)
    assert len(RunRecord(tmp_path).plans) == 1, "nothing is changed"


def _killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the step-th file or folder to be removed or renamed be the last thing that is done."""
    left = [step]

    def counted(function: Callable) -> Callable:
        def call(*arguments, **options):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return function(*arguments, **options)

        return call

    for place, name in ((os, "unlink"), (os, "rmdir"), (os, "rename"), (os, "replace")):
        monkeypatch.setattr(place, name, counted(getattr(place, name)))


@pytest.mark.parametrize("again", [False, True])
def test_a_kill_at_any_step_leaves_whole_ones(again: bool, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one comes and an older one goes, or, where a run resumed, while one comes again in its own place."""
    steps, done = 0, False
    while not done:
        run_dir = tmp_path / str(steps)
        run_dir.mkdir()
        _write(run_dir, 5, keep=1)
        with monkeypatch.context() as patch:
            _killed_at(steps, patch)
            try:
                _write(run_dir, 5 if again else 10, keep=1)
                done = True
            except KeyboardInterrupt:
                pass
        found = checkpoint.latest(run_dir)
        assert found.minibatches in (5, 10), steps
        assert torch.equal(found.read(["conv2"])["weight:conv2.kernel"], torch.ones(3))
        for folder in (run_dir / "checkpoints").glob("minibatch-*"):
            checkpoint.load(folder).read(["conv1", "conv2"])
        for older in checkpoint.newest_first(run_dir):  # where the newest has not all of its rows
            older.read(["conv1", "conv2"])
        _write(run_dir, 15, keep=1)
        left = {path.name for path in (run_dir / "checkpoints").iterdir()}
        assert left - {".minibatch-00000005", ".minibatch-00000010"} == {"minibatch-00000015"}, steps
        steps += 1
    assert steps > 8


def test_none_yet(tmp_path) -> None:
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda path: path.unlink(), ("checkpoint.shard_missing", "stage1.safetensors")),
        (lambda path: path.write_bytes(path.read_bytes()[:-4]), ("checkpoint.shard_differs", "stage1.safetensors")),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x7f"), ("checkpoint.shard_differs",)),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, damage, error: tuple[str, ...]) -> None:
    _write(tmp_path, 5)
    damage(tmp_path / "checkpoints" / "minibatch-00000005" / "stage1.safetensors")
    found = checkpoint.latest(tmp_path)
    found.read(["conv1"])  # the other shard is sound
    with raises(*error):
        found.read(["conv2"])


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    _write(tmp_path, 5)
    found = checkpoint.latest(tmp_path)
    with raises("checkpoint.other_model", "net", model="other"):
        found.check(model="other", layers=["conv1"])
    with raises("checkpoint.layer_missing", "conv3", model="net"):
        found.check(model="net", layers=["conv1", "conv3"])


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path) -> None:
    folder = tmp_path / "checkpoints" / "minibatch-00000001"
    folder.mkdir(parents=True)
    with raises("file.not_found", "checkpoint's manifest"):
        checkpoint.latest(tmp_path)
    (folder / "manifest.json").write_text('{"format": "other"}')
    with raises("checkpoint.foreign"):
        checkpoint.latest(tmp_path)


# --- what a run that goes wrong leaves -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    return shapes(tmp_path_factory.mktemp("clouds"))


@pytest.mark.slow
def test_weights_that_the_last_update_destroys_are_not_kept(clouds, tmp_path) -> None:
    """The learning rate leaps at the last minibatch of the second epoch: its loss, like all before, is a number.

    The only checkpoint kept was replaced by one of NaN, or of weights too large to compute with.
    """
    nan = r"rank \d \(stage (\d)\): .*weight \w+\.kernel in stage \1 is not finite after minibatch 9 \(epoch 1\)"
    large = r"rank 1 \(stage 1\): .*the validation loss after epoch 1 is (nan|inf)"
    plan, jobs = plan_of(PLAIN, [[0], [1]], schedule="1f1b"), {}
    for factor, message in ((1e45, nan), (1e30, large)):
        leap = {"learning_rate_schedule": "step", "learning_rate_decay": factor, "decay_epochs": 9 / 5}
        config = settings(clouds, epochs=3, keep_checkpoints=1, validate=True, asynchronous_checkpoints=True, **leap)
        jobs[message] = launch(plan, config, run_dir=tmp_path / str(factor))
    for message, job in jobs.items():
        with pytest.raises(RunFailed, match=f"{message}; .*learning rate.*checkpoint"):
            job.wait(timeout=ENOUGH)
        losses = [row["loss"] for row in job.record.metrics("step")]
        assert len(losses) == 10 and max(losses) < 10
        (folder,) = (job.record.folder / "checkpoints").glob("minibatch-*")
        found = checkpoint.load(folder)
        assert found.minibatches == 5
        assert all(bool(tensor.isfinite().all()) for tensor in found.read(list(found.manifest["layers"])).values())


def test_a_bad_file_of_the_test_split_costs_no_epoch(tmp_path) -> None:
    """One was found after a whole trained epoch, of which nothing was kept: a run validates before it wrote."""
    clouds = shapes(tmp_path)
    bad = sorted(clouds.glob("*/test/*.off"))[-1]
    whole = bad.read_bytes()
    plan = plan_of(PLAIN, [[0]], schedule="1f1b-flush", num_microbatches=2)
    config = settings(clouds, validate=True, epochs=2, keep_checkpoints=1)
    folder = tmp_path / "run"
    RunRecord.create(folder, plan, config.to_json(), Origin.here())
    bad.write_bytes(b"")
    with raises("dataset.files_faulty", bad):
        run(folder, plan, config)  # before anything is trained
    assert not list((folder / "checkpoints").glob("minibatch-*"))
    bad.write_bytes(whole[: len(whole) // 2])
    for resume in (False, True):
        with raises("file.truncated", bad):
            run(folder, plan, config, resume=resume)
        assert checkpoint.latest(folder).minibatches == 5
    bad.write_bytes(whole)
    run(folder, plan, config, resume=True)
    record = RunRecord.load(folder)
    epochs = record.metrics("epoch")
    assert [row["minibatches"] for row in epochs] == [5, 10]
    assert all(0 <= row["validation"]["accuracy"] <= 1 for row in epochs)
    assert [row["minibatch"] for row in record.metrics("step")] == list(range(10))
    assert record.metrics("summary")[-1]["epochs"] == 2
    (kept,) = (folder / "checkpoints").glob("minibatch-*")
    assert checkpoint.load(kept).minibatches == 10


# --- what a checkpoint is not gone on from ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(clouds, tmp_path_factory):
    """A run that ended in its second epoch, of 5 minibatches of 4 samples each, the last of 2."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    plan, config = plan_of(PLAIN, [[0]], schedule="1f1b-flush", num_microbatches=2), settings(clouds, minibatches=8)
    RunRecord.create(folder, plan, config.to_json(), Origin.here())
    run(folder, plan, config)
    return folder, plan, config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch_size": 8},
            "batch_size is 8, but 4 in the checkpoint .*minibatch-00000008; resume with that value, or retrain",
        ),
        ({"seed": 1}, "seed is 1, but 0 in the checkpoint .*minibatch-00000008, 3 minibatches into an epoch; resume"),
        ({"shuffle": False}, "shuffle is False, but True in the checkpoint .*, 3 minibatches into an epoch; resume"),
        ({"balance": "classes"}, "balance is classes, but None in the checkpoint .*, 3 minibatches into an epoch"),
        (
            {"features": ("occupancy", "normals")},  # which one channel would be copied to, all four
            r"weight conv1_1.kernel has shape \(27, 1, 16\), but this run expects \(27, 4, 16\)",
        ),
        ({"optimizer": "adam"}, "the checkpoint has velocity of another optimizer, but this run uses adam"),
        ({"model": NORMED}, f"a checkpoint of '{PLAIN}', but this run trains '{NORMED}'"),
    ],
)
def test_other_minibatches_or_weights_are_refused_within_an_epoch(stopped, changes: dict, message: str) -> None:
    folder, plan, config = stopped
    config = replace(config, minibatches=20, **changes)
    with pytest.raises(InputError, match=message):
        run(folder, plan_of(config.model, [[0]], schedule=plan.schedule, num_microbatches=2), config, resume=True)
    assert checkpoint.latest(folder).minibatches == 8


@pytest.mark.parametrize(
    ("num_train", "families", "error"),
    [
        (7, 3, ("checkpoint.order_differs", "samples", "21", "18")),
        (6, 2, ("checkpoint.order_differs", "num_classes", "2", "3")),
    ],
)
def test_other_data_are_refused(stopped, tmp_path, num_train: int, families: int, error: tuple[str, ...]) -> None:
    folder, plan, config = stopped
    other = make_shapes(tmp_path / "other", num_train=num_train, num_test=1, families=sorted(FAMILIES)[:families])
    with raises(*error):
        run(folder, plan, replace(config, data=str(other), minibatches=20), resume=True)


def test_between_epochs_samples_may_be_drawn_otherwise(clouds, tmp_path) -> None:
    plan, config = plan_of(PLAIN, [[0]], schedule="1f1b-flush", num_microbatches=2), settings(clouds)
    (tmp_path / "logs").mkdir()
    run(tmp_path, plan, config)
    with raises("checkpoint.order_differs", "batch_size", "6", "4", name="batch_size"):
        run(tmp_path, plan, replace(config, epochs=2, batch_size=6), resume=True)
    run(tmp_path, plan, replace(config, epochs=2, seed=1, shuffle=False), resume=True)
    assert checkpoint.latest(tmp_path).minibatches == 10


def test_a_damaged_shard_is_refused_and_a_whole_one_gone_on_from(stopped) -> None:
    folder, plan, config = stopped
    shard = folder / "checkpoints" / "minibatch-00000008" / "stage0.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"\x7f")
    with raises("checkpoint.shard_differs", "stage0.safetensors"):
        run(folder, plan, replace(config, minibatches=10), resume=True)
    shard.write_bytes(whole)
    run(folder, plan, replace(config, minibatches=10), resume=True)
    assert checkpoint.latest(folder).minibatches == 10


@pytest.mark.slow
def test_the_command_line_says_in_one_line_what_is_not_gone_on_from(stopped) -> None:
    folder, _, _ = stopped
    before = (folder / "config.json").read_bytes()
    code, _, errors = sparsepipe("run", "--resume", folder, "--epochs", 5, "--batch-size", 8)
    assert (code, len(errors)) == (2, 1)
    assert "--batch-size is 8" in errors[0] and errors[0].endswith("[checkpoint.order_differs]")
    assert (folder / "config.json").read_bytes() == before, "what the next resume goes by"
