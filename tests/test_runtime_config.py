"""Settings of a run: read as they were written, refused in one line where they make no sense."""

import pytest

from sparsepipe import InputError
from sparsepipe.runtime import RunConfig


def test_settings_are_read_as_they_were_written() -> None:
    config = RunConfig("minkvgg16bn", "some/folder", epochs=3, minibatches=7, learning_rate=0.5)
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, expected a whole number of at least 1"),
        ({"epochs": 1.5}, "epochs is 1.5, expected a whole number"),
        ({"minibatches": 0}, "minibatches is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan, expected a number"),
        ({"momentum": 1.5}, "momentum is 1.5, expected a number from 0 to 1"),
        ({"voxel_size": 0}, "voxel_size is 0, expected a number above 0"),
        ({"optimizer": "sdg"}, "optimizer is 'sdg', expected one of sgd, adam, adamw, lamb"),
        ({"device": "tpu"}, "device 'tpu' given, expected cpu or cuda"),
        ({"balance": "size"}, "balance is 'size', expected one of None, voxels, classes"),
        ({"balance": "voxels", "shuffle": False}, "balanced by voxels are shuffled: leave out balance, or shuffle"),
        ({"seed": True}, "seed is True"),
        ({"learning_rte": 1}, "unknown setting 'learning_rte' of a run, expected some of "),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunConfig.from_json({"model": "minkvgg16bn", "data": "x"} | change)


def test_missing_settings_are_named() -> None:
    with pytest.raises(InputError, match="not the settings of a run: .*'model'"):
        RunConfig.from_json({"data": "x"})
