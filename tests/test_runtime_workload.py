"""Which samples a run's minibatches hold: each once an epoch, alike in voxels or in classes where asked."""

from collections import Counter

import numpy as np
import pytest

from sparsepipe.data import make_shapes
from sparsepipe.data.families import FAMILIES
from sparsepipe.engines import Subnetwork
from sparsepipe.errors import InputError
from sparsepipe.models import INPUT
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads.point_clouds import Workload


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("shapes"), num_train=8, num_test=1, families=list(FAMILIES)[:4])


def opened(shapes, **settings):
    settings = {"voxel_size": 0.05, "batch_size": 8, "engine": "native"} | settings
    config = RunConfig("minkvgg11bn-narrow", str(shapes), **settings)
    return Workload.open(config)


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


def test_segment_lengths_are_those_of_the_segments(shapes):
    """Every worker ran through all segments before the first minibatch: an hour for a billion epochs."""
    for settings, done in (({"epochs": 3}, 0), ({"epochs": 3}, 5), ({"minibatches": 10}, 0), ({"minibatches": 3}, 1)):
        workload = opened(shapes, **settings)
        for start in (done, workload.total_minibatches):
            assert workload.segment_lengths(start) == {count for _, _, count in workload.segments(start)}
    assert opened(shapes, epochs=10**15).segment_lengths(7) == {1, 4}


@pytest.mark.parametrize("last", ["keep", "merge", "drop"])
def test_a_last_minibatch_of_one_sample_trains_unless_it_is_kept(shapes, last):
    """32 samples in minibatches of 31 leave one, of which a coarse layer has one voxel: batch norm failed there."""
    workload = opened(shapes, last_minibatch=last, voxel_size=0.1, batch_size=31)
    assert workload.epoch_minibatches == len(workload.order(0))
    module = Subnetwork(workload.network, workload.engine, seed=0)
    batches = [workload.engine.tensor(workload.training.batch(indices)) for indices in workload.order(0)]
    if last == "keep":
        with pytest.raises(
            InputError, match=r"layer 'bn\w+' in minibatch 1: batch norm over 1 voxel: expected at least 2"
        ):
            for number, batch in enumerate(batches):
                module({INPUT: batch}, minibatch=number)
    else:
        assert [len(order) for order in workload.order(0)] == [32 if last == "merge" else 31]
        module({INPUT: batches[0]}, minibatch=0)
