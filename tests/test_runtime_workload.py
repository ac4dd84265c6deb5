"""Which samples a run's minibatches hold: each once an epoch, alike in voxels or in classes where asked."""

from collections import Counter

import numpy as np
import pytest
from coded import raises

from sparsepipe.data import make_shapes
from sparsepipe.data.shapes import FAMILIES
from sparsepipe.engines import ENGINES, Subnetwork
from sparsepipe.networks import INPUT
from sparsepipe.records.run_progress import LEARNING, REPLAY, workload_facts
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.worker.epoch_parts import RunLength
from sparsepipe.runtime.workloads import WORKLOADS
from sparsepipe.runtime.workloads.learning import Learning


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("shapes"), num_train=8, num_test=1, families=list(FAMILIES)[:4])


def opened(shapes, **settings):
    settings = {"voxel_size": 0.05, "batch_size": 8, "engine": "native"} | settings
    config = RunConfig("minkvgg11bn-narrow", str(shapes), **settings)
    return Learning.open(config)


def test_replicas_get_equal_work(shapes):
    plain, balanced = opened(shapes), opened(shapes, balance="voxels")
    counts = balanced.training.voxel_counts()

    def spread(order):
        return np.ptp([counts[list(batch)].sum() for batch in order])

    order = balanced.order(0)
    assert sorted(sum(order, ())) == list(range(32))
    assert spread(order) < spread(plain.order(0)) / 4
    assert order == opened(shapes, balance="voxels").order(0) != balanced.order(1)


def test_classes_come_equally_often(shapes):
    workload = opened(shapes, balance="classes")
    for batch in workload.order(0):
        assert set(Counter(workload.training.labels[k] for k in batch).values()) == {2}
    assert len(workload.order(0)) == workload.epoch_minibatches


def test_the_counts_of_a_runs_parts_are_told_without_going_through_them(shapes):
    """Every worker ran through all parts before the first minibatch: an hour for a billion epochs."""
    for settings, done in (({"epochs": 3}, 0), ({"epochs": 3}, 5), ({"minibatches": 10}, 0), ({"minibatches": 3}, 1)):
        workload = opened(shapes, **settings)
        length = RunLength(workload.epoch_minibatches, workload.total_minibatches)
        for start in (done, workload.total_minibatches):
            parts = list(length.parts(start))
            assert length.counts(start) == {part.count for part in parts}
            assert start + sum(part.count for part in parts) == workload.total_minibatches
    assert RunLength(4, 4 * 10**15).counts(7) == {1, 4}


def test_what_a_replay_is_and_what_trains_is_told_by_facts():
    assert workload_facts("replay").source == "emulated" and not workload_facts("replay").trains
    assert {workload_facts(name).trains for name in ENGINES} == {True}
    assert {LEARNING.name, REPLAY.name} == set(WORKLOADS)


@pytest.mark.parametrize("last", ["keep", "merge", "drop"])
def test_a_last_minibatch_of_one_sample_trains_unless_it_is_kept(shapes, last):
    """32 samples in minibatches of 31 leave one, of which a coarse layer has one voxel: batch norm failed there."""
    workload = opened(shapes, last_minibatch=last, voxel_size=0.1, batch_size=31)
    assert workload.epoch_minibatches == len(workload.order(0))
    module = Subnetwork(workload.network, workload.engine, seed=0)
    batches = [workload.engine.tensor(workload.training.batch(indices)) for indices in workload.order(0)]
    if last == "keep":
        with raises("batch_norm.too_few_voxels", "layer 'bn", "in minibatch 1"):
            for number, batch in enumerate(batches):
                module({INPUT: batch}, minibatch=number)
    else:
        assert [len(order) for order in workload.order(0)] == [32 if last == "merge" else 31]
        module({INPUT: batches[0]}, minibatch=0)


def test_features_that_the_samples_have_not_are_refused(shapes):
    with raises("setting.not_names", "features", "colour"):
        opened(shapes, features=("colour", "size"))
