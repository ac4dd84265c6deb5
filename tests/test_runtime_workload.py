"""Which samples a run's minibatches hold: each once an epoch, alike in voxels or in classes where asked."""

from collections import Counter

import numpy as np
import pytest

from sparsepipe.data import make_shapes
from sparsepipe.data.families import FAMILIES
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workload import Workload


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("shapes"), num_train=8, num_test=1, families=list(FAMILIES)[:4])


def opened(shapes, **settings):
    config = RunConfig("minkvgg11bn-narrow", str(shapes), voxel_size=0.05, batch_size=8, engine="native", **settings)
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
