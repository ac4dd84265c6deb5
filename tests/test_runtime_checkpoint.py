"""Checkpoints are whole or absent, and what is damaged or another model's is refused by name."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from runtime_jobs import PLAIN, plan_of, settings, shapes
from torch.distributed.checkpoint import HuggingFaceStorageReader

from sparsepipe import InputError, RunFailed
from sparsepipe.launchers import launch
from sparsepipe.runtime import checkpoint


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


def test_torch_itself_reads_it(tmp_path) -> None:
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


def test_none_yet(tmp_path) -> None:
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "stage1.safetensors: this shard of the checkpoint is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4]), "stage1.safetensors: not the shard that was written"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x7f"), "not the shard that was written"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, damage, message: str) -> None:
    _write(tmp_path, 5)
    damage(tmp_path / "checkpoints" / "minibatch-00000005" / "stage1.safetensors")
    found = checkpoint.latest(tmp_path)
    found.read(["conv1"])  # the other shard is sound
    with pytest.raises(InputError, match=message):
        found.read(["conv2"])


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    _write(tmp_path, 5)
    found = checkpoint.latest(tmp_path)
    with pytest.raises(InputError, match="a checkpoint of 'net', this run trains 'other'"):
        found.check(model="other", layers=["conv1"])
    with pytest.raises(InputError, match="holds no layer 'conv3' of net; it is of another model"):
        found.check(model="net", layers=["conv1", "conv3"])


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path) -> None:
    folder = tmp_path / "checkpoints" / "minibatch-00000001"
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match="no such checkpoint's manifest"):
        checkpoint.latest(tmp_path)
    (folder / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a checkpoint of this project"):
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
        with pytest.raises(RunFailed, match=f"{message}; lower the learning rate, the last checkpoint is kept"):
            job.wait(timeout=120)
        losses = [row["loss"] for row in job.record.metrics("step")]
        assert len(losses) == 10 and max(losses) < 10
        (folder,) = (job.record.folder / "checkpoints").glob("minibatch-*")
        found = checkpoint.load(folder)
        assert found.minibatches == 5
        assert all(bool(tensor.isfinite().all()) for tensor in found.read(list(found.manifest["layers"])).values())
