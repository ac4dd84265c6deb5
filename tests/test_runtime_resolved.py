"""What settings mean is decided once: no process of a run opens its data set twice, whoever asks for it there."""

import os
from collections import Counter

import pytest
from runtime_jobs import PLAIN, plan_of, settings, shapes

from sparsepipe.cli import main
from sparsepipe.data import folder as folders
from sparsepipe.launching import launch
from sparsepipe.launching.prepare import prepare
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.replication import parse_rule

CODE = """
import os
import torch

def items(split):
    with open(os.environ["OPENED"], "a") as file:
        file.write(f"{os.getpid()} {split}\\n")
    return [(torch.full((4,), float(k % 2)), k % 2) for k in range(12)]

def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Settings of the user's own network and data, whose every opening is written down."""
    (tmp_path / "own.py").write_text(CODE)
    monkeypatch.setenv("OPENED", str(tmp_path / "opened"))
    names = {"model": f"{tmp_path / 'own.py'}:network", "data": f"{tmp_path / 'own.py'}:items"}
    return RunConfig(**names, loss="classes", batch_size=4, threads=1, seed=7)


def two_stages(config, *, ranks=(0, 1)):
    first, *rest = [layer.id for layer in layer_graph(resolve(config)).layers]
    return Plan((Stage((first,), ranks[:1]), Stage(tuple(rest), ranks[1:])), schedule="1f1b-flush", num_microbatches=2)


def opened(tmp_path):
    return Counter((tmp_path / "opened").read_text().splitlines())


@pytest.mark.slow
def test_launcher_and_workers_open_the_data_once_each(tmp_path, own):
    plan = two_stages(own)
    (tmp_path / "opened").unlink()
    with launch(plan, own, run_dir=tmp_path / "run") as job:
        job.wait()
    assert set(opened(tmp_path).values()) == {1}
    processes = {int(line.split()[0]) for line in opened(tmp_path)}
    assert len(processes) == 3 and os.getpid() in processes


def test_a_launcher_of_several_pipelines_opens_the_data_once(tmp_path, own):
    plans = [two_stages(own, ranks=ranks) for ranks in ((0, 1), (2, 3))]
    (tmp_path / "opened").unlink()
    plan = Plan.together(plans, parse_rule("all-reduce"))
    _, locks = prepare(plan, resolve(own), run_dir=tmp_path / "run")
    for lock in locks:
        os.close(lock)
    assert opened(tmp_path) == {f"{os.getpid()} train": 1, f"{os.getpid()} test": 1}


def test_point_clouds_are_listed_once_for_all_splits(tmp_path, monkeypatch):
    config = settings(shapes(tmp_path), validate=True, loss="classes")
    listed, list_folder = [], folders.list_folder
    monkeypatch.setattr(folders, "list_folder", lambda path: listed.append(path) or list_folder(path))
    _, locks = prepare(plan_of(PLAIN, [[0], [1]]), resolve(config), run_dir=tmp_path / "run")
    for lock in locks:
        os.close(lock)
    assert len(listed) == 1
    workload = Learning.open(config)
    assert len(listed) == 2 and workload.validation is not None
    assert workload.size_unit == resolve(config).size_unit == "voxels"


@pytest.mark.slow
def test_the_command_line_lists_point_clouds_once(tmp_path, monkeypatch):
    clouds = shapes(tmp_path)
    plan_of(PLAIN, [[0], [1]]).save(tmp_path / "plan.json")
    listed, list_folder = [], folders.list_folder
    monkeypatch.setattr(folders, "list_folder", lambda path: listed.append(path) or list_folder(path))
    names = ["run", str(tmp_path / "plan.json"), "--model", PLAIN, "--data", str(clouds), "--loss", "classes"]
    settings_of_run = ["--voxel-size", "0.12", "--batch-size", "4", "--threads", "1", "--minibatches", "2"]
    assert main([*names, *settings_of_run, "--run-dir", str(tmp_path / "run")]) == 0
    assert len(listed) == 1


def test_what_settings_name_is_decided_by_their_strings(own):
    run = resolve(own)
    assert set(run.functions) == {"model", "data"} and not run.is_table
    assert run.data.has_examples and run.workload.trains
    table = resolve(RunConfig("minkvgg11", "digits", engine="replay"))
    assert table.is_table and not table.functions and not table.data.has_examples and not table.workload.trains
