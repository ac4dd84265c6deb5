"""A checkpoint written by a thread: of its moment, whole or not there, and what goes wrong is not lost."""

import pytest
import torch
from processes import ENOUGH

from sparsepipe.runtime.failures import DeadlinePassed
from sparsepipe.runtime.training_state import checkpoint
from sparsepipe.runtime.training_state.async_checkpoint import Snapshots


def test_it_holds_the_tensors_of_its_moment(tmp_path) -> None:
    weight = torch.ones(1000)
    checkpoint.begin(tmp_path, 5)
    snapshots, made = Snapshots(tmp_path, timeout=ENOUGH), []
    snapshots.write(5, shards={"stage0": {"weight:a.kernel": weight}}, finish=({"stage0"}, lambda: made.append(True)))
    weight.zero_()  # the training goes on
    snapshots.wait()
    assert made == [True]
    checkpoint.finish(tmp_path, 5, keep=2, layers={"a": "stage0.safetensors"}, model="m")
    tensors = checkpoint.latest(tmp_path).read(["a"])
    assert torch.equal(tensors["weight:a.kernel"], torch.ones(1000))


def test_a_shard_that_cannot_be_written_is_told_where_it_is_waited_for(tmp_path) -> None:
    snapshots = Snapshots(tmp_path, timeout=ENOUGH)  # nobody made room for it
    snapshots.write(5, shards={"stage0": {"weight:a": torch.ones(1)}}, finish=None)
    with pytest.raises(Exception, match="No such file|minibatch-00000005"):
        snapshots.wait()


def test_a_shard_that_never_comes_is_named(tmp_path) -> None:
    checkpoint.begin(tmp_path, 5)
    snapshots = Snapshots(tmp_path, timeout=0.2)
    snapshots.write(5, shards={}, finish=({"stage0", "stage1"}, lambda: pytest.fail("it is not whole")))
    with pytest.raises(DeadlinePassed, match="stage0|took more than"):
        while True:
            snapshots.wait()
    assert checkpoint.latest(tmp_path) is None
