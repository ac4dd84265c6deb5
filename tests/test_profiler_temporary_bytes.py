"""The bytes that a stage is estimated to hold at its fullest, against those that it holds: torch's own count."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_clouds import random_batch

from scripts.bench.sizes.stages import StagePeaks, equal_cuts, predicted_peaks
from sparsepipe import Profile
from sparsepipe.engines import engine
from sparsepipe.networks import network
from sparsepipe.networks.losses import CrossEntropy
from sparsepipe.profiling import layer_timer, measure
from sparsepipe.profiling.of_model import cropped
from sparsepipe.profiling.temporary_bytes import live_bytes, peak_bytes
from sparsepipe.runtime.config import RunConfig

CPU = torch.device("cpu")
SIZES = (0.5, 4.0)  # of the profiled minibatch


def test_what_is_alive_at_once_is_counted_also_within_an_operation() -> None:
    wide = torch.ones(1000, 100)

    def work(mark) -> None:
        kept = torch.ones(250)  # 1 kB
        mark("sum")
        (wide + wide).sum()  # 400 kB, and a number
        mark("rest")
        del kept

    parts = {part.name: part for part in live_bytes(work, device=CPU)}
    assert parts[""].most == parts[""].last == 1000
    assert 401_000 < parts["sum"].most < 401_200 and parts["sum"].last == 1000
    assert parts["rest"].last == 0
    operation = peak_bytes(lambda: torch.nn.functional.softplus(wide.t()).contiguous().sum().item(), device=CPU)
    assert operation >= 400_000


@pytest.fixture(scope="module")
def profiled() -> tuple[SimpleNamespace, Profile, list]:
    """A network, its profile at half to twice a minibatch, and minibatches of SIZES times it."""
    net, native = network("minkunet14a-narrow", num_classes=5), engine("native")
    whole = random_batch(channels=1, reach=40, num_points=3000, seed=1)
    at = {share: whole if share == 4 else cropped(whole, share / 4) for share in (0.5, 1.0, 2.0, 4.0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_timer, "waited_share", lambda before, after: 0.0)  # seconds are not looked at here
        found = measure.profile(net, [at[0.5], at[1.0], at[2.0]], native, warmup=0, repeats=1)
    training = SimpleNamespace(targets_are_labels=True)
    task = SimpleNamespace(network=net, engine=native, training=training, loss=CrossEntropy(5))
    return task, found, [at[share] for share in SIZES]


@pytest.mark.slow
def test_the_estimated_peak_of_a_stage_is_near_the_measured_one_at_other_sizes(profiled) -> None:
    task, found, batches = profiled
    count = 3
    plan = equal_cuts(found, count)
    settings = RunConfig(model=task.network.name, data="unused", learning_rate=0.01, momentum=0.9)
    for batch in batches:
        took = np.array(StagePeaks(task, plan, settings).measured(batch, minibatches=count + 1))
        off = np.array(predicted_peaks(found, plan, batch.size)) / took - 1
        assert np.abs(off).max() < 0.11, (batch.size, off)


@pytest.mark.slow
def test_neither_the_output_nor_its_gradient_stays_until_the_backward_is_done(profiled) -> None:
    _, found, _ = profiled
    assert all(sample.backward_left_bytes < sample.output_bytes / 2 for sample in found.costs["cpu"][-1].samples)


@pytest.mark.slow
def test_parts_of_what_is_kept_are_no_more_than_that(profiled) -> None:
    _, found, _ = profiled
    samples = [cost.samples[-1] for cost in found.costs["cpu"]]
    assert all(sample.kernel_map_bytes + sample.saved_input_bytes <= sample.saved_bytes for sample in samples)
    assert any(sample.saved_input_bytes for sample in samples)
    assert any(sample.forward_temporary_bytes for sample in samples)
    assert any(sample.backward_temporary_bytes > sample.output_bytes for sample in samples)


@pytest.mark.slow
def test_profiles_keep_temporaries_in_their_files_and_load_without_them(profiled, tmp_path) -> None:
    _, found, _ = profiled
    path = found.save(tmp_path / "profile.json")
    assert Profile.load(path) == found
    document = found.to_json()
    memory = {"kernel_map_bytes", "saved_input_bytes", "backward_left_bytes"}
    memory |= {"forward_temporary_bytes", "backward_temporary_bytes"}
    assert memory <= set(document["columns"])
    kept = [k for k, name in enumerate(document["columns"]) if name not in memory]
    document["columns"] = [document["columns"][k] for k in kept]
    document["costs"] = {
        kind: [[[sample[k] for k in kept] for sample in samples] for samples in layers]
        for kind, layers in document["costs"].items()
    }
    (tmp_path / "old.json").write_text(json.dumps(document))
    old = Profile.load(tmp_path / "old.json")
    assert old.to_json() == document
    assert all(sample.backward_temporary_bytes == 0 for cost in old.costs["cpu"] for sample in cost.samples)
    plan = equal_cuts(old, 2)
    assert all(peak > 0 for peak in predicted_peaks(old, plan, old.size()))
