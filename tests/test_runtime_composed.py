"""Minibatches composed by a budget and ordered for the plan: the law of the runtime, resuming, and what is refused."""

import json
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from coded import raises
from runtime_jobs import PLAIN, Job, plan_of, run_jobs, same_training, settings, shapes
from test_runtime_laws import CLOSE, FLUSH, TWO, trained
from test_runtime_modules import BERT
from test_runtime_modules import settings as texts
from test_runtime_targets import gradients

from sparsepipe.launching.prepare import prepare
from sparsepipe.planning.run_estimate import stage_costs
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.training_state.checkpoint import Checkpoint
from sparsepipe.runtime.worker.targets import TargetReader
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.cluster import Cluster
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.profile import Profile

pytestmark = pytest.mark.timeout(600)

ASYNCHRONOUS, PLANNED = {"schedule": "1f1b"}, {"order": "planned"}
# name -> (ranks of the stages, options of the plan, changes of the settings, what minibatches are composed for)
PLANS: dict[str, tuple] = {
    "snake, 3 stages": ([[0], [1], [2]], ASYNCHRONOUS, {"order": "snake", "batch_size": 2}, {}),
    "planned, 3 stages": ([[0], [1], [2]], ASYNCHRONOUS, {**PLANNED, "batch_size": 1, "epochs": 2}, {"stages": 3}),
    "budget, one process": ([[0]], ASYNCHRONOUS, {}, {"budget": 220}),
    "planned budget, 2 stages": ([[0], [1]], ASYNCHRONOUS, PLANNED, {"budget": 220, "stages": 2}),
    "planned budget, 2-1 of steps": ([[0, 1], [2]], FLUSH, PLANNED, {"budget": 220, "stages": 2, "step": 4}),
    "planned budget, steps of 2": ([[0], [1]], TWO, {**PLANNED, "epochs": 2}, {"budget": 220, "stages": 2, "step": 2}),
    "budget, unequal replicas": (
        [[0, 1]],
        {**ASYNCHRONOUS, "shares": {0: (2, 1)}},
        PLANNED,
        {"budget": 220, "step": 3},
    ),
}

LAWS = [name for name in PLANS if name != "planned budget, steps of 2"]


def _job(name: str, folder) -> Job:
    ranks, options, changes, composition = PLANS[name]
    changes = {"composition": json.dumps(composition), **changes}
    if "budget" in composition:
        changes["batch_voxels"] = composition["budget"]
    return Job(name.replace(" ", "-"), plan_of(PLAIN, ranks, **options), settings(folder, model=PLAIN, **changes))


@pytest.fixture(scope="module")
def laws(tmp_path_factory) -> dict[str, tuple[Job, object]]:
    folder = tmp_path_factory.mktemp("composed")
    clouds = shapes(folder)
    jobs = {name: _job(name, clouds) for name in LAWS}
    whole = jobs["resumed, whole"] = _job("planned budget, steps of 2", clouds)
    cut = jobs["resumed, first"] = replace(whole, name="cut", config=replace(whole.config, epochs=1, minibatches=2))
    jobs["resumed"] = replace(whole, name="cut-2", resume=True, folder=cut.name)
    results = run_jobs(folder, list(jobs.values()), limit=500)
    return {name: (job, results[job.name]) for name, job in jobs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_composed_minibatches_train_like_a_plain_loop(name: str, laws: Callable) -> None:
    job, result = laws[name]
    oracle = trained(job.plan, job.config)
    torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(oracle.losses), **CLOSE)
    weights = result.tensors("weight")
    for key, weight in oracle.all_weights().items():
        torch.testing.assert_close(weights[key], weight, **CLOSE, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.slow
def test_a_run_cut_short_within_an_epoch_goes_on_bit_for_bit(laws: Callable) -> None:
    (_, cut), (_, resumed), (_, whole) = (laws[f"resumed{rest}"] for rest in (", first", "", ", whole"))
    assert len(resumed.losses) == len(whole.losses) > 2
    assert cut.folder == resumed.folder
    same_training(resumed, whole)


def test_gradients_of_an_epoch_add_up_to_those_of_all_its_samples() -> None:
    composition = json.dumps({"budget": 6, "stages": 3})
    workload = Learning.open(texts(**BERT, order="planned", composition=composition))
    object.__setattr__(workload.task.training, "sample_sizes", lambda: [1, 2, 5] * 6)  # its own are all 1
    batches = dict(enumerate(workload.order(0)))
    assert len({len(samples) for samples in batches.values()}) > 1, "minibatches have unequal numbers of samples"
    assert workload.epoch_minibatches == len(batches) == len(workload.order(5))
    reader = TargetReader(workload, workload.training, batches.__getitem__)
    weights = [reader.read(m)[0].weights for m in batches]
    samples = [len(batches[m]) for m in batches]
    mean = sum(samples) / len(samples)
    assert weights == [
        (pytest.approx(count / mean),) * len(of_means) for count, of_means in zip(samples, weights, strict=True)
    ]
    for m in list(batches)[:2]:  # the weight reaches the gradient
        plain, _ = gradients(workload, batches[m])
        weighed, _ = gradients(workload, batches[m], reader.read(m)[0])
        for one, other in zip(plain, weighed, strict=True):
            torch.testing.assert_close(other, one * samples[m] / mean, rtol=1e-5, atol=1e-8)


def test_every_process_composes_the_same_epoch_from_sizes_in_the_cache(tmp_path) -> None:
    config = settings(shapes(tmp_path), batch_voxels=250, order="planned", cache=str(tmp_path / "cache"))
    first = Learning.open(config)
    counts = first.training.voxel_counts()
    for epoch in range(3):
        found = first.order(epoch)
        assert sorted(sample for samples in found for sample in samples) == list(range(18))
        assert max(counts[list(samples)].sum() for samples in found) <= 250
        assert len(found) == first.epoch_minibatches
    assert first.mean_samples == 18 / first.epoch_minibatches
    again = Learning.open(config)
    again.training.sample = None  # nothing is read: sizes are in the cache
    assert again.order(1) == first.order(1)


def test_a_launch_decides_what_minibatches_are_composed_for_and_a_resumed_run_keeps_it(tmp_path) -> None:
    config = settings(shapes(tmp_path), batch_voxels=250, order="planned", model=PLAIN)
    plan = plan_of(PLAIN, [[0], [1]], schedule="1f1b")
    record, locks = prepare(plan, resolve(config), run_dir=tmp_path / "run")
    _closed(locks)
    kept = RunConfig.from_json(record.config)
    composition = json.loads(kept.composition)
    assert (composition["budget"], composition["stages"], composition["step"]) == (250, 2, 1)
    order = Learning.open(kept).order(0)
    assert kept.batch_size == round(18 / len(order))
    other = plan_of(PLAIN, [[0], [1], [2]], schedule="1f1b")
    for given in (kept, config):  # as the record has it, and as the first launch was given it
        record, locks = prepare(other, resolve(given), run_dir=tmp_path / "run", resume=True)
        _closed(locks)
        assert RunConfig.from_json(record.config).sampling == kept.sampling
        assert Learning.open(RunConfig.from_json(record.config)).order(0) == order


@pytest.mark.parametrize("budget", [{"batch_seconds": 0.05}, {"batch_bytes": 4e6}])
def test_budgets_by_a_profile_hold_on_every_stage(budget: dict, tmp_path) -> None:
    profile = Profile.load("data_manifests/profiles/minkvgg11bn-narrow.json")
    layers = profile.graph.layers
    stages = (Stage(tuple(layer.id for layer in own), (k,)) for k, own in enumerate((layers[:9], layers[9:])))
    plan, cluster = Plan(tuple(stages), schedule="1f1b"), Cluster.uniform(2, device_type=profile.device_types[0])
    config = settings(shapes(tmp_path), model="minkvgg11bn-narrow", order="planned", **budget)
    record, locks = prepare(plan, resolve(config), run_dir=tmp_path / "run", profile=profile, cluster=cluster)
    _closed(locks)
    workload = Learning.open(RunConfig.from_json(record.config))
    composition = json.loads(record.config["composition"])
    counts = workload.training.voxel_counts()
    sizes = [counts[list(samples)].sum() for samples in workload.order(0)]
    costs = [stage_costs(plan, profile, cluster, some) for some in (sizes, [1.01 * composition["budget"]])]
    (most, above) = (found[0 if "batch_seconds" in budget else 1].max() for found in costs)
    assert most <= next(iter(budget.values())) < above, "as large as the budget allows, no larger"


def test_a_resume_names_what_differs_between_compositions(tmp_path) -> None:
    asked = {"order": "planned", "batch_voxels": None, "batch_bytes": None}
    drawn = {"budget": 5120.0, "unit": "voxels", "stages": 2, "seconds": [[0.1, 0.2]] * 33}
    before = {**drawn, "asked": asked | {"batch_seconds": 0.1}}
    kept = Checkpoint(tmp_path, {"minibatches": 3, "order": "planned", "composition": json.dumps(before)})
    kept.check_minibatches({"order": "planned", "composition": json.dumps(before)}, epoch_minibatches=4)
    longer = {**before, "budget": 10240.0, "asked": asked | {"batch_seconds": 0.2}}
    with raises("checkpoint.budget_differs", "5,120 voxels", "100 ms", "10,240 voxels", "200 ms"):
        kept.check_minibatches({"composition": json.dumps(longer)})
    deeper = {**before, "stages": 3, "seconds": [[0.1, 0.4]] * 33}
    with raises("checkpoint.order_differs", "stages 3, seconds up to 0.4", "stages 2, seconds up to 0.2") as refused:
        kept.check_minibatches({"order": "planned", "composition": json.dumps(deeper)}, epoch_minibatches=4)
    assert "unit" not in str(refused.value) and "[[" not in str(refused.value)


def _closed(locks) -> None:
    for lock in locks:
        os.close(lock)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"batch_voxels": 20}, "order.sample_above_budget"),
        ({"batch_seconds": 1.0}, "order.budget_without_profile"),
        ({"batch_bytes": "2GB"}, "order.budget_without_profile"),
    ],
)
def test_budgets_that_cannot_be_are_refused_before_anything_starts(tmp_path, changes: dict, code: str) -> None:
    config = settings(shapes(tmp_path), **changes)
    with raises(code):
        prepare(plan_of(PLAIN, [[0]], schedule="1f1b"), resolve(config), run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"batch_voxels": "0"}, "setting.not_an_amount"),
        ({"batch_voxels": -5}, "setting.not_an_amount"),
        ({"batch_bytes": "2 furlongs"}, "setting.not_an_amount"),
        ({"batch_seconds": True}, "setting.not_an_amount"),
        ({"batch_voxels": 5, "batch_seconds": 1}, "setting.two_budgets"),
        ({"batch_voxels": 5, "balance": "voxels"}, "setting.order_and_balance"),
        ({"order": "planned", "shuffle": False}, "setting.order_and_balance"),
        ({"order": "sorted"}, "setting.not_a_choice"),
    ],
)
def test_settings_of_composition(changes: dict, code: str) -> None:
    with raises(code):
        RunConfig("minkvgg11", "shapes", **changes)


def test_amounts_are_read_with_their_units() -> None:
    config = RunConfig("minkvgg11", "shapes", batch_voxels="200k")
    assert config.batch_voxels == 200_000
    assert RunConfig("minkvgg11", "shapes", batch_bytes="2GB").batch_bytes == 2e9
    assert RunConfig("minkvgg11", "shapes", batch_seconds="100ms").batch_seconds == pytest.approx(0.1)
    assert RunConfig.from_json(config.to_json()) == config
