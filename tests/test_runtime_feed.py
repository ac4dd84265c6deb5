"""What is fed: N stages equal one process for crops, mixing, samplers, views, and any number of reading processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from coded import raises
from runtime_jobs import Job, plan_of, run_jobs, same_training, settings, shapes
from test_data_examples_own import own
from test_data_scenes import scenes

from sparsepipe.data.examples import open_examples
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.runtime.workloads.reading import ReadOnce
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.plan import Plan, Stage

DRAWS = """
import os, torch
class Items:
    def __len__(self): return 12
    def __getitem__(self, index):
        if index == 11: os._exit(1) if BREAKS else None
        return torch.rand(3) + index, index % 3
def make(split): return Items()
"""


def test_any_number_of_processes_reads_the_same_minibatches(tmp_path: Path) -> None:
    opened = open_examples(own(tmp_path, DRAWS.replace("BREAKS", "False")), split="train", seed=4)
    order = [((3, 1), 0), ((5, 9), 2), ((0,), 1), ((3, 1), 0)]
    expected = [opened.batch(indices, epoch=epoch) for indices, epoch in order]
    for processes in (0, 1, 3):
        split = ReadOnce(opened, processes)
        futures = [split.begin(indices, epoch=epoch) for indices, epoch in order]
        for future, batch in zip(futures, expected, strict=True):
            assert torch.equal(future.result().inputs, batch.inputs) and torch.equal(
                future.result().target, batch.target
            )
        assert futures[0] is futures[3] and len(split) == 12
        with raises("dataset.sample_unknown", "12"):
            split.batch([12])


def test_a_reading_process_that_dies_is_named(tmp_path: Path) -> None:
    opened = open_examples(own(tmp_path, DRAWS.replace("BREAKS", "True")), split="train")
    with raises("data.reader_died", "num_workers"):
        ReadOnce(opened, 2).batch([11])


@pytest.mark.slow
def test_reading_processes_end_with_a_process_that_is_killed() -> None:
    script = """
    import os, time
    from sparsepipe.runtime.workloads.reading import ReadOnce
    class Pids(list):
        def batch(self, indices, *, epoch=0):
            time.sleep(0.2)
            return os.getpid()
    split = ReadOnce(Pids([0] * 9), 2)
    print(*{split.begin([k]).result() for k in range(3)}, flush=True)
    time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pids = [int(word) for word in rank.stdout.readline().split()]
        assert pids and rank.pid not in pids
        os.kill(rank.pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


SAMPLED = """
class Items(list):
    num_classes = 3
    MORE
def make(split): return Items([([float(k), 1.0], k % 3) for k in range(10)])
"""


def order_of(reference: str, **changes) -> Learning:
    body = "import torch\ndef make(): return torch.nn.Linear(2, 3)\n"
    net = own(Path(reference.partition(":")[0]).parent, body, "net")
    config = RunConfig(model=net, data=reference, batch_size=4, validate=False, seed=1, **changes)
    return Learning.open(config)


def test_a_sampler_decides_the_minibatches_of_an_epoch(tmp_path: Path) -> None:
    weighted = order_of(own(tmp_path, SAMPLED.replace("MORE", "weights = [0.0] * 9 + [1.0]")), sampler="weighted")
    assert {index for minibatch in weighted.order(0) for index in minibatch} == {9} and weighted.epoch_minibatches == 3
    by_class = order_of(own(tmp_path, SAMPLED.replace("MORE", "pass"), "b"), sampler="weighted")
    assert by_class.order(1) != by_class.order(0) == order_of(f"{tmp_path}/b.py:make", sampler="weighted").order(0)
    body = "sampler = [1, 1, 2]"
    assert order_of(own(tmp_path, SAMPLED.replace("MORE", body), "c")).order(0) == ((1, 1, 2),)
    grows = own(tmp_path, "def make(num_samples, seed, epoch): return list(range(5 + 5 * epoch))\n", "grows")
    run = order_of(f"{tmp_path}/b.py:make", sampler=grows, last_minibatch="keep")
    assert run.order(0) == ((0, 1, 2, 3), (4,))
    with raises("sampler.epochs_differ", "3 minibatches", "2"):
        run.order(1)
    goes_on = (
        "import random\nclass Draws(random.Random):\n    def __iter__(self): return iter(self.sample(range(10), 10))"
    )
    body = goes_on + SAMPLED.replace("MORE", "sampler = Draws(0)")
    with raises("sampler.not_repeatable"):
        order_of(own(tmp_path, body, "goes_on")).order(0)
    with raises("setting.sampler_and_order"):
        order_of(f"{tmp_path}/c.py:make", order="snake").order(0)
    with raises("setting.sampler_and_order"):
        RunConfig("a", "b", sampler="weighted", order="snake")


def test_an_iterable_keeps_its_order(tmp_path: Path) -> None:
    body = """
    import torch
    class Lines(torch.utils.data.IterableDataset):
        num_classes = 3
        def __len__(self): return 7
        def __iter__(self): return iter([([float(k), 0.0], k % 3) for k in range(7)])
    def make(split): return Lines()
    """
    reference = own(tmp_path, body)
    assert order_of(reference, last_minibatch="keep").order(3) == ((0, 1, 2, 3), (4, 5, 6))
    for changes in ({"order": "snake"}, {"sampler": "weighted"}):
        with raises("own_data.in_order"):
            order_of(reference, **changes).order(0)


@pytest.mark.slow
def test_stages_and_reading_processes_train_as_one_process_on_crops_and_draws(tmp_path: Path) -> None:
    rooms, objects = scenes(tmp_path / "rooms", counts=(400, 500, 300, 350)), shapes(tmp_path)
    crops = {
        "model": "minkunet14a-segmentation-narrow",
        "task": "segmentation",
        "features": ("colours",),
        "voxel_size": 0.2,
        "num_points": "all",
    }
    crops |= {"augmentation": "rotate-z+flip+colour-jitter+mix3d", "crop": "sphere:2.5,overlap=0.3", "validate": True}
    crops |= {"batch_size": 1, "epochs": 2, "views": 2, "metrics": ("point_mean_iou",), "best": "point_mean_iou"}
    draws = {"sampler": "weighted", "epochs": 2}
    jobs = []
    for name, data, changes in (("crops", rooms, crops), ("draws", objects, draws)):
        config = settings(data, **changes)
        for kind, ranks, workers in (("one", [[0]], 0), ("read", [[0]], 2), ("two", [[0], [1]], 2)):
            plan = plan_of(config.model, ranks, schedule="gpipe")
            jobs.append(Job(f"{name}-{kind}", plan, config.replace(num_workers=workers)))
    results = run_jobs(tmp_path, jobs)
    for name in ("crops", "draws"):
        same_training(results[f"{name}-one"], results[f"{name}-two"])
    validated = [results[f"crops-{kind}"].rows("epoch") for kind in ("one", "two")]
    assert validated[0][-1]["validation"] == validated[1][-1]["validation"]
    assert 0 < validated[0][-1]["validation"]["point_mean_iou"] < 1


RAGGED = """
import torch
from torch import nn

class Clouds:
    size_of = staticmethod(lambda item: len(item["coord"]))
    size_unit, inputs, target, loss = "points", ("coord", "feat", "offset"), "heights", "net.py:error"
    def __len__(self): return 9
    def __getitem__(self, index):
        coord = torch.rand(5 + 3 * (index % 4), 3)
        return {"coord": coord, "feat": torch.rand(len(coord), 2), "heights": coord[:, 2].max(), "name": str(index)}

def make(split): return Clouds()
def mixed(items):
    counts = torch.tensor([len(item["coord"]) for item in items])
    joined = {name: torch.cat([item[name] for item in items]) for name in ("coord", "feat")}
    return joined | {"offset": counts.cumsum(0), "heights": torch.stack([item["heights"] for item in items])}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 1)
    def forward(self, coord, feat, offset):
        rows = torch.relu(self.second(torch.relu(self.first(torch.cat([coord, feat], dim=1)))))
        sums = torch.cat([rows.new_zeros(1, 16), rows.cumsum(0)[offset - 1]])
        return self.last(torch.diff(sums, dim=0))[:, 0]

def net(): return Net()
def error(output, target): return ((output - target) ** 2).mean()
"""


@pytest.mark.slow
@pytest.mark.parametrize("collate", [None, "mixed"])
def test_ragged_minibatches_train_in_two_stages_as_in_one_process(tmp_path: Path, collate: str | None) -> None:
    file = tmp_path / "net.py"
    file.write_text(RAGGED.replace("net.py:error", f"{file}:error"))
    changes = {"collate": f"{file}:{collate}" if collate else None, "num_workers": 2 if collate else 0}
    config = settings(f"{file}:make", model=f"{file}:net", engine="auto", batch_size=2, epochs=2, **changes)
    ids = [layer.id for layer in layer_graph(resolve(config)).layers]
    one, two = (
        Plan(tuple(Stage(tuple(part), (rank,)) for rank, part in enumerate(parts)), schedule="gpipe")
        for parts in ([ids], [ids[: len(ids) // 2], ids[len(ids) // 2 :]])
    )
    results = run_jobs(tmp_path, [Job("one", one, config), Job("two", two, config)])
    same_training(results["one"], results["two"])
    assert len(results["one"].losses) == 8, "a last minibatch of one sample goes with the one before"
    assert all(row["points"] > row["samples"] for row in results["one"].rows("step"))
