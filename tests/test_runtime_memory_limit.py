"""Runs under a limit of memory: the same bits as without, what does not fit left out or refused, failures named."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from warnings import catch_warnings, simplefilter

import pytest
import torch
from coded import raises
from runtime_jobs import UNET, Job, plan_of, run_jobs, same_training, settings, shapes

from sparsepipe import Cluster, Plan, Profile, data
from sparsepipe.cli.launches import summary_text
from sparsepipe.engines import engine
from sparsepipe.launching.failure_cause import find_cause
from sparsepipe.launching.memory_need import check_limit_of_job, fitted_to_limit, need_of_job
from sparsepipe.launching.prepare import prepare
from sparsepipe.networks import network
from sparsepipe.profiling.measure import profile
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.config import FittingSizes
from sparsepipe.runtime.failures import OutOfMemory, work_path
from sparsepipe.runtime.stages.memory_limit import RankMemory
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.util.io.files import read_rows

CLOUDS = {"voxel_size": 0.05, "num_points": 1000}


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


@pytest.fixture(scope="module")
def measured(clouds: Path) -> Profile:
    """The network's profile, with a second type of device whose layers keep more."""
    split = data.load(clouds, split="train", **CLOUDS)
    batches = [split.batch(range(count)) for count in (1, 2, 5)]
    one = profile(network(UNET, num_classes=3), batches, engine("native"), repeats=1, device_type="lean")
    other = tuple(
        replace(cost, samples=tuple(replace(each, saved_bytes=1.5 * each.saved_bytes) for each in cost.samples))
        for cost in one.costs["lean"]
    )
    return replace(one, costs={**one.costs, "large": other})


def largest(config: RunConfig) -> float:
    sizes = resolve(config).data.training.sample_sizes()
    return float(sum(sorted(sizes)[-config.batch_size :]))


def tight(plan: Plan, profile: Profile, config: RunConfig, *, factor: float = 1.001) -> float:
    """Return a limit, above the least by a factor, under which the largest minibatch recomputes layers somewhere."""
    size, limits = largest(config), []
    for rank in plan.ranks:
        memory = RankMemory(plan, rank, profile, limit_bytes=1e12)
        limits += [memory.least_bytes(stage, size) for stage in plan.stages_of(rank)]
    limit = factor * max(limits)
    memories = {rank: RankMemory(plan, rank, profile, limit_bytes=limit) for rank in plan.ranks}
    chosen = [memory.enter(k, 0, size).segments for rank, memory in memories.items() for k in plan.stages_of(rank)]
    assert any(chosen), "the limit is no limit"
    return limit


def shared_scenes(model: str) -> Plan:
    plan = plan_of(model, [(0, 1)], shares={0: (2, 1)}, schedule="gpipe", num_microbatches=2)
    stage = replace(plan.stages[0], sharding="space", device_types=("lean", "large"))
    return replace(plan, stages=(stage,))


@pytest.fixture(scope="module")
def runs(clouds: Path, measured: Profile, tmp_path_factory) -> dict:
    """Each plan with and without a limit; one that is cut short and resumed; one that leaves a sample out."""
    folder = tmp_path_factory.mktemp("limited")
    config = settings(clouds, model=UNET, **CLOUDS)
    plans = {"one": plan_of(UNET, [[0]]), "two": plan_of(UNET, [[0], [1]]), "space": shared_scenes(UNET)}
    jobs = []
    for name, plan in plans.items():
        # Ranks that share scenes would choose different segments, each by its own type.
        factor = 1.1 if plan.stages[0].shares_scenes else 1.001
        limited = config.replace(memory_limit=tight(plan, measured, config, factor=factor))
        # A minibatch that fits with the plan's segments recomputes these.
        segmented = plan_of(UNET, [[0], [1]], segments={0: ((1, 4), (4, 6)), 1: ((0, 3),)})
        planned = segmented if name == "two" else plan
        jobs += [Job(name, plan, config), Job(f"{name}-limited", planned, limited)]
    cut = Job("cut", plans["one"], jobs[1].config.replace(minibatches=3))
    fitting = json.dumps({"largest": largest(config), "left_out": [2], "names": ["train/large"]})
    skipping = cut.config.replace(fitting_sizes=fitting, minibatches=2)
    jobs += [cut, replace(jobs[1], name="resumed", folder="cut", resume=True), Job("skipping", plans["one"], skipping)]
    # Minibatches of 4 in parts of 2 and less, under three kinds of schedules. Batch norms keep their statistics.
    plain = config.replace(freeze=("*running_mean",), minibatches=2)
    sizes = sorted(resolve(plain).data.training.sample_sizes())
    splitting = {"memory_limit": 1e9, "fitting_sizes": json.dumps({"largest": sum(sizes[-4:]), "part": 2 * sizes[-1]})}
    schedules = {"gpipe": {"num_microbatches": 2}, "1f1b": {}, "zero-bubble": {"num_microbatches": 2}}
    for name, options in schedules.items():
        plan = plan_of(UNET, [[0]] if name == "gpipe" else [[0], [1]], schedule=name, **options)
        jobs += [Job(f"plain-{name}", plan, plain), Job(f"split-{name}", plan, plain.replace(**splitting))]
    for job in jobs:
        if job.config.memory_limit is not None:
            measured.save(folder / (job.folder or job.name) / "profile.json")
            kinds = Cluster.uniform(2, device_type="lean").to_toml()
            (folder / (job.folder or job.name) / "cluster.toml").write_text(kinds)
    return run_jobs(folder, jobs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two", "space"])
def test_training_under_a_limit_has_the_same_bits(runs: dict, name: str) -> None:
    """In space, ranks of two types of devices choose the same segments, whose halos they exchange again."""
    same_training(runs[name], runs[f"{name}-limited"])


@pytest.mark.slow
def test_a_run_under_a_limit_resumes_bit_for_bit(runs: dict) -> None:
    same_training(runs["one"], runs["resumed"])


@pytest.mark.slow
def test_samples_that_are_left_out_are_in_the_summary(runs: dict) -> None:
    (summary,) = runs["skipping"].rows("summary")
    assert summary["left_out"] == {"samples": 1, "names": ["train/large"]}
    assert all(row["samples"] == 4 for row in runs["skipping"].rows("step"))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_split_minibatches_train_as_whole_ones(runs: dict, schedule: str) -> None:
    """But for rounding: one step of the optimizer for each minibatch, or each round of them, with all its samples."""
    whole, split = runs[f"plain-{schedule}"], runs[f"split-{schedule}"]
    assert split.losses == pytest.approx(whole.losses, rel=1e-5)
    for kind in ("weight", "velocity"):
        torch.testing.assert_close(split.tensors(kind), whole.tensors(kind), rtol=1e-4, atol=1e-6)
    for one, other in zip(whole.rows("step"), split.rows("step"), strict=True):
        assert other["split_into"] >= 2 and "split_into" not in one
        assert all(one[key] == other[key] for key in ("minibatch", "voxels", "samples", "counted", "learning_rate"))
    (summary,) = split.rows("summary")
    assert summary["train"]["split_minibatches"] == summary["train"]["minibatches"] == 2
    assert "2 minibatches" in summary_text(summary)


def test_ranks_that_share_scenes_choose_together_for_the_largest_part(measured: Profile) -> None:
    """Ranks that recompute different segments would wait for each other's halos for ever."""
    plan, size = shared_scenes(UNET), max(measured.typical_sizes)
    undivided = replace(plan, stages=(replace(plan.stages[0], ranks=(0,), shares=(1,), device_types=()),))
    whole = RankMemory(undivided, 0, measured, limit_bytes=1e12).least_bytes(0, size)
    least = RankMemory(plan, 0, measured, limit_bytes=1e12).least_bytes(0, size)
    assert 0.6 * whole < least < whole
    chosen = [RankMemory(plan, rank, measured, limit_bytes=1.1 * least).enter(0, 0, size).segments for rank in (0, 1)]
    assert chosen[0] == chosen[1] != ()


def launched(config: RunConfig, folder: Path, **given) -> RunConfig:
    """Prepare a run; return the settings that its workers get."""
    record, locks = prepare(plan_of(UNET, [[0]]), resolve(config), run_dir=folder, **given)
    for lock in locks:
        os.close(lock)
    return RunConfig.from_json(record.config)


def test_the_largest_sample_is_refused_or_left_out(clouds: Path, measured: Profile, tmp_path: Path) -> None:
    plan, config = plan_of(UNET, [[0]]), settings(clouds, model=UNET, batch_size=1, last_minibatch="keep", **CLOUDS)
    sizes = resolve(config).data.training.sample_sizes()
    memory = RankMemory(plan, 0, measured, limit_bytes=1e12)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    limit = memory.least_bytes(0, sizes[order[len(order) // 2]])
    config = config.replace(memory_limit=limit)
    with raises("memory.limit_without_profile"):
        launched(config, tmp_path / "none")
    with raises("memory.profile_of_other_unit"):
        launched(config, tmp_path / "unit", profile=replace(measured, size_unit="tokens"))
    with raises("memory.too_large") as caught:
        launched(config, tmp_path / "refused", profile=measured)
    assert sizes[caught.value.fields["sample"]] == max(sizes)
    fitting = FittingSizes.of(launched(config.replace(oversize="skip"), tmp_path / "run", profile=measured))
    assert fitting.left_out == tuple(k for k, size in enumerate(sizes) if memory.least_bytes(0, size) > limit) != ()
    assert fitting.largest == max(size for k, size in enumerate(sizes) if k not in fitting.left_out)
    none = config.replace(oversize="skip", memory_limit=0.99 * memory.least_bytes(0, min(sizes)))
    with raises("memory.too_large") as caught:
        launched(none, tmp_path / "none-fits", profile=measured)
    assert sizes[caught.value.fields["sample"]] == min(sizes)
    # A moving average of the weights takes memory, too.
    averaged = RankMemory.of_settings(plan, 0, measured, config.replace(ema=0.9), limit=1e12)
    assert averaged.weight_bytes > memory.weight_bytes
    with raises("memory.too_large"):
        launched(config.replace(ema=0.9, batch_size=1, minibatches=1, memory_limit=memory.least_bytes(0, max(sizes))),
                 tmp_path / "averaged", profile=measured)  # fmt: skip


@pytest.mark.slow
def test_minibatches_that_do_not_fit_are_split(
    clouds: Path, measured: Profile, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("sparsepipe.launching.memory_need._PARTS_TRIED", 8)
    plan, config = plan_of(UNET, [[0]]), settings(clouds, model=UNET, batch_size=16, last_minibatch="keep", **CLOUDS)
    sizes = resolve(config).data.training.sample_sizes()
    memory, whole = RankMemory(plan, 0, measured, limit_bytes=1e12), largest(config)
    alone, least = memory.least_bytes(0, max(sizes)), memory.least_bytes(0, whole, max(sizes))
    assert memory.least_bytes(0, whole, whole) == memory.least_bytes(0, whole) > 1.1 * least and least >= alone
    limited = config.replace(memory_limit=(least + memory.least_bytes(0, whole)) / 2)
    split = launched(limited.replace(oversize="split"), tmp_path / "split", profile=measured)
    assert "batch norm" in capsys.readouterr().err
    fitting = FittingSizes.of(split)
    assert not fitting.left_out and max(sizes) <= fitting.part < fitting.largest == whole
    assert fitting.part == int(fitting.part), "a part of 2.97 samples has 2"
    rank = RankMemory.of_settings(plan, 0, measured, split, limit=split.memory_limit)
    rank.open(0)
    assert rank.enter(0, 0, whole, fitting.part).segments and not rank.minibatches_beyond
    check_limit_of_job(tmp_path / "split", plan, split)
    with raises("memory.split_synchronised"):
        synchronised = limited.replace(oversize="split", synchronised_batch_norm=True)
        fitted_to_limit(plan_of(UNET, [[0, 1]]), resolve(synchronised), profile=measured, resumes=None, here=True)
    less = config.replace(memory_limit=0.99 * alone)
    with raises("memory.too_large") as caught:
        launched(less.replace(oversize="split"), tmp_path / "alone", profile=measured)
    assert sizes[caught.value.fields["sample"]] == max(sizes)


def test_a_run_without_a_profile_gets_a_limit_when_it_resumes(clouds: Path, measured: Profile, tmp_path: Path) -> None:
    """The profile that is given then is kept, and live plans are judged under the limit."""
    batch_size = measured.batch_size  # for which the profile tells what a plan needs
    plan, config = plan_of(UNET, [[0]]), settings(clouds, model=UNET, batch_size=batch_size, **CLOUDS)
    launched(config, tmp_path)
    least = RankMemory(plan, 0, measured, limit_bytes=1e12).least_bytes(0, largest(config))
    limited = config.replace(memory_limit=1.01 * least)
    with raises("memory.limit_without_profile"):
        launched(limited, tmp_path, resume=True)
    kept = launched(limited, tmp_path, resume=True, profile=measured)
    assert kept.memory_limit == limited.memory_limit and Profile.load(tmp_path / "profile.json") == measured
    launched(limited, tmp_path, resume=True)
    need, doubt = need_of_job(tmp_path, plan, kept)
    assert not doubt
    assert max(need) <= limited.memory_limit
    check_limit_of_job(tmp_path, plan, kept)
    less = kept.replace(memory_limit=0.99 * least)
    with raises("memory.too_large_for_plan"):
        check_limit_of_job(tmp_path, plan, less)


def test_what_memory_does_not_hold_is_named(clouds: Path, tmp_path: Path, monkeypatch) -> None:
    """Whether an allocation fails, or the system kills the process: with the minibatch, its size and its samples."""
    plan, config = plan_of(UNET, [[0]]), settings(clouds, model=UNET, batch_size=2, minibatches=1, **CLOUDS)
    notes = []

    def full(*_, **__):
        notes.append(work_path(tmp_path, 0).read_text())
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(NetworkStage, "backward", full)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, str(int(name != "RANK")))
    (tmp_path / "logs").mkdir()
    with pytest.raises(OutOfMemory) as caught:
        run(tmp_path, plan, config)
    names = [resolve(config).data.training.name(index) for index in range(18)]
    assert sum(name in str(caught.value) for name in names) == 2 and "minibatch 0" in str(caught.value)
    assert not work_path(tmp_path, 0).exists()
    work_path(tmp_path, 0).write_text(notes[0])
    cause = find_cause(tmp_path, plan, {0: -9}, killed="by the kernel")
    assert (cause.rank, cause.stage) == (0, 0)
    assert sum(name in cause.reason for name in names) == 2 and "minibatch 0" in cause.reason


_SHORT = """
import sys
from sparsepipe.launching.local import agent
agent.short_of_memory = lambda: "1 of 1,000 MB were left"
sys.exit(agent.main(["--run-dir", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_a_rank_killed_for_memory_is_named_and_resumes_with_a_smaller_limit(
    clouds: Path, measured: Profile, tmp_path: Path
) -> None:
    """A real run, of which a rank is killed as the system does when memory runs out."""
    config = settings(clouds, model=UNET, minibatches=40, **CLOUDS)
    memory = RankMemory(plan_of(UNET, [[0]]), 0, measured, limit_bytes=1e12)
    least = memory.least_bytes(0, largest(config))
    folder, command = tmp_path / "run", [sys.executable, "-c", _SHORT, tmp_path / "run"]
    launched(config.replace(memory_limit=2 * least), folder, profile=measured)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as launcher:
        while not [*folder.glob("checkpoints/*")] or "minibatch" not in work_path(folder, 0).read_text():
            assert launcher.poll() is None
            time.sleep(0.01)
        os.kill(int((folder / "logs/rank0.pid").read_text().split()[0]), signal.SIGKILL)
    status = json.loads((folder / "status.json").read_text())
    assert launcher.returncode and status["state"] == "failed" and (status["rank"], status["stage"]) == (0, 0)
    names = [resolve(config).data.training.name(index) for index in range(18)]
    assert sum(name in status["reason"] for name in names) >= 2 and "voxels" in status["reason"]
    with catch_warnings():
        simplefilter("ignore")  # it may start over, as it may have been killed before its first checkpoint
        assert launched(config.replace(memory_limit=1.01 * least), folder, resume=True).memory_limit == 1.01 * least
    subprocess.run([*command, "--resume"], check=True)
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert [row["minibatch"] for row in read_rows(folder / "metrics.jsonl") if row["event"] == "step"] == [*range(40)]
