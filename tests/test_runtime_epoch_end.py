"""What follows an epoch: moving averages, the best checkpoint, early stopping, metrics and functions of the user's own.

The oracle is one process: any plan that flushes has its numbers, and so has a run that was interrupted and resumed.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from coded import raises
from own_networks import masked_pictures
from pipeline_jobs import pipelines_of, run_pipelines
from runtime_jobs import NORMED, Job, plan_of, run_jobs, same_training, settings, shapes
from test_runtime_modules import OWN
from test_runtime_modules import plan_of as module_plan
from test_runtime_modules import settings as module_settings

from sparsepipe.runtime.config import RunConfig
from sparsepipe.runtime.plan_fit import PREDICTIONS, write_forward_only
from sparsepipe.runtime.stages.network_stage import keep_in_float32
from sparsepipe.runtime.training_state.weights import MovingAverage
from sparsepipe.runtime.worker.epoch_end import BestEpoch
from sparsepipe.runtime.workloads.opening import check_best
from sparsepipe.runtime.workloads.resolved import resolve

pytestmark = pytest.mark.timeout(300)

CALLBACK = """
def on_epoch(end):
    changed = [weight.zero_() for weight in end.weights.values()]
    return {"names": len(changed), "loss": end.validation["loss"], "best": end.is_best, "epoch": end.epoch}

def seen(end):
    total = sum(float(weight.double().abs().sum()) for weight in end.weights.values())
    return {"total": total, "loss": end.validation["loss"], "best": end.is_best}

def fails(end):
    raise KeyError("no such score")
"""
PLANS = {
    "alone": ([[0]], "1f1b-flush"),
    "two": ([[0], [1]], "1f1b-flush"),
    "three": ([[0], [1], [2]], "gpipe"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three epochs under every plan, and under two stages in two parts, of two epochs and one."""
    folder = tmp_path_factory.mktemp("epoch_end")
    own = folder / "own.py"
    own.write_text(CALLBACK)
    config = settings(
        shapes(folder),
        model=NORMED,
        validate=True,
        epochs=3,
        ema=0.9,
        learning_rate=0.05,
        metrics=("f1", "auc", "confusion"),
        best="auc",
        keep_checkpoints=1,
        on_epoch=f"{own}:seen",
    )
    jobs = [
        Job(name, plan_of(NORMED, ranks, schedule=schedule, num_microbatches=2), config)
        for name, (ranks, schedule) in PLANS.items()
    ]
    two = plan_of(NORMED, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)
    jobs += [
        Job(f"part{epochs}", two, config.replace(epochs=epochs), resume=epochs > 2, folder="parts") for epochs in (2, 3)
    ]
    jobs.append(Job("changed", two, config.replace(on_epoch=f"{own}:on_epoch", ema=None)))
    jobs.append(Job("stops", two, config.replace(early_stopping=1, learning_rate=0.0, best="f1", on_epoch=None)))
    return run_jobs(folder, jobs), config


def _scores(result):
    return [row["validation"] for row in result.rows("epoch")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PLANS, "part3"])
def test_every_plan_has_the_numbers_of_one_process(runs, name):
    found, _ = runs
    one, other = found["alone"], found[name]
    same_training(one, other)
    for kind in ("ema:", "ema_updates:"):
        averages = one.tensors(kind)
        assert averages and averages.keys() == one.tensors("weight").keys()
        assert all(torch.equal(averages[key], tensor) for key, tensor in other.tensors(kind).items())
    assert _scores(one) == _scores(other), "to the bit"
    for event in ("confusion", "callback"):
        rows = [[{**row, "seconds": 0} for row in result.rows(event)] for result in (one, other)]
        assert rows[0] == rows[1] and len(rows[0]) == 3
    assert [row["best"] for row in one.rows("epoch")] == [row["best"] for row in other.rows("epoch")]
    assert sorted(path.name for path in (one.folder / "checkpoints").glob("minibatch-*")) == sorted(
        path.name for path in (other.folder / "checkpoints").glob("minibatch-*")
    )


@pytest.mark.slow
def test_averages_validate_and_the_best_checkpoint_stays(runs):
    """The moving averages are what is validated, called with and computed with; the weights are what is trained."""
    found, config = runs
    one, plain = found["two"], found["changed"]
    same_training(one, plain)
    assert not plain.tensors("ema:") and _scores(one) != _scores(plain)
    best = max(one.rows("epoch"), key=lambda row: row["validation"]["auc"])  # the first of those that are equal
    assert one.rows("summary")[-1]["best"] == best["best"]
    assert best["best"] == {
        "metric": "auc",
        "value": best["validation"]["auc"],
        "epoch": best["epoch"],
        "minibatches": best["minibatches"],
        "checkpoint": f"minibatch-{best['minibatches']:08d}",
    }
    kept = {path.name for path in (one.folder / "checkpoints").glob("minibatch-*")}
    assert kept == {f"minibatch-{count:08d}" for count in (best["minibatches"], 15)}
    assert [row["numbers"]["loss"] for row in one.rows("callback")] == [score["loss"] for score in _scores(one)]
    table = one.rows("confusion")[-1]["table"]
    right = sum(table[k][k] for k in range(3)) / sum(map(sum, table))
    assert right == pytest.approx(_scores(one)[-1]["accuracy"])


@pytest.mark.slow
def test_a_run_ends_once_no_validation_is_better(runs):
    """With a learning rate of 0 the second validation is like the first."""
    found, _ = runs
    result = found["stops"]
    assert [row["minibatches"] for row in result.rows("epoch")] == [5, 10]
    summary = result.rows("summary")[-1]
    assert summary["stopped_early"] and summary["minibatches"] == 10 and summary["best"]["epoch"] == 0


def test_the_moving_average_is_its_formula():
    weights = {"w": torch.zeros(3)}
    average = MovingAverage(weights, 0.5)
    expected = torch.zeros(3)
    for update in range(1, 8):
        weights["w"] = torch.full((3,), float(update))
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * weights["w"]
        average.update(weights)
        if update == 4:  # as a run that resumes
            state, average = average.state(), MovingAverage(weights, 0.5)
            average.load(state, weights)
    assert torch.allclose(average.version.tensors["w"], expected)


def test_scores_compare_by_their_kind():
    """Losses fall, others rise; what is not a number is no score; an unknown name is told with the known ones."""
    by_loss = BestEpoch(RunConfig("m", "d", early_stopping=2))
    assert [by_loss.compare(k, k, {"loss": loss}) for k, loss in enumerate([3.0, 2.0, None, 2.0])] == [1, 1, 0, 0]
    assert by_loss.is_over and by_loss.best.minibatches == 1 and by_loss.minibatches is None, "none was asked to stay"
    by_score = BestEpoch(RunConfig("m", "d", best="accuracy"))
    assert [by_score.compare(k, k, {"accuracy": x}) for k, x in enumerate([0.1, 0.3, 0.2])] == [1, 1, 0]
    assert not by_score.is_over and by_score.minibatches == 1
    with raises("setting.best_unknown", "mean_iou", "loss, accuracy"):
        BestEpoch(RunConfig("m", "d", best="miou")).compare(0, 5, {"loss": 1.0, "accuracy": 0.5, "samples": 3})


LABELS = """
import torch
class Items:
    num_classes, loss = 3, "classes"
    def __init__(self, split): self.split = split
    def __len__(self): return 4
    def __getitem__(self, i): return torch.ones(2), torch.tensor(i % 3 if self.split == "train" else -100)
def items(split): return Items(split)
"""


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"best": "auc", "metrics": ("auc",)}, "setting.best_unlabelled"),
        ({"best": "auc"}, "setting.best_unknown"),
        ({"best": "accuracy"}, ""),
        ({"best": "auc", "metrics": ("auc",), "validation_split": "train"}, ""),
    ],
)
def test_a_best_score_that_no_validation_has_is_refused_before_training(tmp_path, chosen, code):
    (tmp_path / "own.py").write_text(LABELS)
    run = resolve(RunConfig("own.py:net", f"{tmp_path / 'own.py'}:items", batch_size=2, **chosen))
    with raises(code) if code else nullcontext():
        check_best(run)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two epochs of pixels' classes under two plans, then outputs by three plans from one of the checkpoints."""
    folder = tmp_path_factory.mktemp("pictures")
    config = module_settings(
        model=f"{OWN}:masks",
        data=f"{OWN}:masked_pictures",
        loss="pixels",
        loss_args='{"num_classes": 3, "ignored": 255}',
        metrics=("f1", "auc", "confusion"),
        validate=True,
        epochs=2,
        ema=0.5,
        precision="bfloat16",
        float32_layers=("*Norm*",),
    )
    step = {"schedule": "1f1b-flush", "num_microbatches": 2}
    jobs = [Job(f"t{len(ranks)}", module_plan(config, ranks, **step), config) for ranks in ([[0]], [[0], [1]])]
    for name, ranks in {"p1": [[0]], "p2": [[0], [1]], "p3": [[0], [1, 2]]}.items():
        (folder / name).mkdir()
        write_forward_only(folder / name, folder / "t1" / "checkpoints" / "minibatch-00000008")
        jobs.append(Job(name, module_plan(config, ranks), config.replace(ema=None)))
    return run_jobs(folder, jobs)


@pytest.mark.slow
def test_images_are_judged_by_pixel_under_any_plan(pictures):
    """Losses, mean IoU and the other metrics are those of one process, and those of the recorded predictions."""
    assert pictures["t1"].losses == pytest.approx(pictures["t2"].losses, rel=1e-2), "gradients come in another layout"
    arrays = [np.load(pictures[name].folder / PREDICTIONS) for name in ("p1", "p2", "p3")]
    for name in arrays[0].files:
        assert all(np.array_equal(arrays[0][name], other[name]) for other in arrays[1:]), name
    assert {"outputs_aux", "outputs_mean", "predictions"} <= {*arrays[0].files}
    assert arrays[0]["outputs_aux"].shape == (7, 3, 6, 5) and arrays[0]["predictions"].shape == (7, 6, 5)
    scores = [pictures[name].rows("summary")[-1]["validation"] for name in ("p1", "p2", "p3")]
    assert scores[0] == scores[1] == scores[2] == _scores(pictures["t1"])[-1], "by moving averages, as validated"
    truth = np.stack([target.numpy() for _, target in masked_pictures("test")])
    known = truth != 255
    found, labels = arrays[0]["predictions"][known], truth[known]
    from sklearn import metrics as oracle  # here: it takes a second of whoever only collects tests

    assert scores[0]["mean_iou"] == pytest.approx(oracle.jaccard_score(labels, found, average="macro"))
    assert scores[0]["f1"] == pytest.approx(oracle.f1_score(labels, found, average="macro"))


def test_layers_of_a_type_compute_in_float32():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    keep_in_float32(layers, ("*Norm*",), torch.device("cpu"))
    seen = {}
    for place, layer in enumerate(layers):
        layer.register_forward_hook(lambda _, given, found, place=place: seen.update({place: (given[0], found)}))
    with torch.autocast("cpu", torch.bfloat16):
        layers(torch.randn(5, 4)).sum().backward()
    given, found = seen[1]
    assert (given.dtype, found.dtype, seen[2][1].dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    assert torch.equal(found, torch.nn.functional.layer_norm(given.float(), (8,)))
    assert all(weight.grad.dtype == torch.float32 for weight in layers.parameters())


@pytest.mark.slow
def test_pipeline_replicas_keep_the_best_epoch_and_end_early(tmp_path):
    """With a learning rate of 0 the second epoch is no better, whichever pipeline closes it."""
    own = tmp_path / "own.py"
    own.write_text(CALLBACK)
    config = settings(
        shapes(tmp_path),
        model=NORMED,
        validate=True,
        epochs=5,
        learning_rate=0.0,
        ema=0.9,
        best="accuracy",
        early_stopping=1,
        on_epoch=f"{own}:on_epoch",
    )
    plan = pipelines_of(NORMED, [[0]], [[1]], rule="local-sgd")
    result = run_pipelines(tmp_path / "run", plan, config)
    rows, summary = result.rows("epoch"), result.rows("summary")[-1]
    assert 2 <= len(rows) < 5 and summary["stopped_early"], rows
    assert rows[0]["best"] == summary["best"] and summary["best"]["epoch"] == 0
    kept = {path.name for path in (result.folder / "checkpoints").glob("minibatch-*")}
    assert summary["best"]["checkpoint"] in kept
    called = [row["numbers"]["epoch"] for k in (0, 1) for row in result.of(k).rows("callback")]
    assert sorted(called) == list(range(len(called))) and len(called) >= 2
