"""Settings of a run: read as they were written, refused in one line where they make no sense."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from coded import raises

from sparsepipe import losses
from sparsepipe.data.augmentation import AUGMENTATIONS
from sparsepipe.data.examples.images import dataset as images
from sparsepipe.data.recipe import FEATURES
from sparsepipe.runtime import DataConfig, OptimizerConfig, ProcessConfig, RunConfig
from sparsepipe.runtime.config import PARTS


def test_settings_are_read_as_they_were_written() -> None:
    config = RunConfig("minkvgg16bn", "some/folder", epochs=3, minibatches=7, learning_rate=0.5)
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"batch_size": 0}, ("setting.not_whole", "batch_size", "0", "1")),
        ({"epochs": 1.5}, ("setting.not_whole", "epochs", "1.5")),
        ({"minibatches": 0}, ("setting.not_whole", "minibatches", "0")),
        ({"learning_rate": float("nan")}, ("setting.out_of_range", "learning_rate", "nan")),
        ({"momentum": 1.5}, ("setting.out_of_range", "momentum", "1.5", "0", "1")),
        ({"voxel_size": 0}, ("setting.out_of_range", "voxel_size", "0", "0")),
        ({"optimizer": "sdg"}, ("setting.not_a_choice", "optimizer", "sdg", "did you mean 'sgd'?")),
        ({"device": "tpu"}, ("setting.device_unknown", "tpu", "cpu or cuda")),
        ({"balance": "size"}, ("setting.not_a_choice", "balance", "size", "voxels, classes")),
        ({"balance": "voxels", "shuffle": False}, ("setting.balance_and_shuffle", "voxels")),
        ({"seed": True}, ("setting.not_whole", "seed", "True")),
        ({"seed": 2**65}, ("setting.not_whole", "seed", "36893488147419103232", "0", "18446744073709551616")),
        ({"epochs": 10**5000}, ("setting.not_whole", "epochs", "a number of thousands of digits", "1")),
        ({"learning_rate": float("inf")}, ("setting.out_of_range", "learning_rate", "inf", "0", "1e")),
        ({"weight_decay": float("inf")}, ("setting.out_of_range", "weight_decay", "inf")),
        ({"clip_norm": 0}, ("setting.out_of_range", "clip_norm", "0", "0")),
        ({"decay_epochs": 1e-300}, ("setting.out_of_range", "decay_epochs", "1e-300", "1e-06")),
        ({"timeout_seconds": 1e300}, ("setting.out_of_range", "timeout_seconds", "1e+300", "0.01", "604800")),
        ({"timeout_seconds": float("nan")}, ("setting.out_of_range", "timeout_seconds", "nan", "0.01", "604800")),
        ({"timeout_seconds": 0}, ("setting.out_of_range", "timeout_seconds", "0")),
        ({"timeout_seconds": -5}, ("setting.out_of_range", "timeout_seconds", "-5")),
        ({"last_minibatch": "lose"}, ("setting.not_a_choice", "last_minibatch", "lose", "keep, merge, drop")),
        ({"validate": 1}, ("setting.not_a_boolean", "validate", "1")),
        ({"engine": None}, ("setting.not_text", "engine", "None", "'auto'")),
        ({"device": 3}, ("setting.not_text", "device", "3", "'cpu'")),
        ({"optimizer": []}, ("setting.not_a_choice", "optimizer", "sgd")),
        ({"features": 5}, ("setting.not_names", "features", "5")),
        ({"features": [1]}, ("setting.not_names", "features", "1")),
        (
            {"features": ["ocupancy"]},
            ("setting.not_names", "features", "ocupancy", "did you mean 'occupancy'?"),
        ),
        ({"loss_args": "{"}, ("setting.not_json", "loss_args", '{"label_smoothing": 0.1}')),
        ({"model_args": "3"}, ("setting.not_json", "model_args", "3", '{"width": 64}')),
        ({"data_args": 3}, ("setting.not_json", "data_args", "3", "a JSON object")),
        (
            {"loss": "tokens_"},
            (
                "setting.not_a_choice",
                "loss",
                "tokens_",
                "did you mean 'tokens'?, or your own as path/loss.py:function",
            ),
        ),
        (
            {"loss": "xyzzy"},
            (
                "setting.not_a_choice",
                "loss",
                "xyzzy",
                "expected one of classes, voxels, pixels, tokens, masked-words, output, or your",
            ),
        ),
        ({"loss": 3}, ("setting.not_a_choice", "loss", "3", "classes")),
        ({"augmentation": "shape"}, ("setting.not_a_choice", "augmentation", "shape", "did you mean 'shapes'?")),
        (
            {"augmentation": "net.py:f"},
            ("setting.not_a_choice", "augmentation", "net.py:f", "expected one of shapes"),
        ),
        ({"learning_rte": 1}, ("setting.unknown", "learning_rte", "did you mean 'learning_rate'?")),
        ({"xyzzy": 1}, ("setting.unknown", "xyzzy", "expected some of accumulation, allow_shape")),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict, error: tuple[str, ...]) -> None:
    with raises(*error):
        RunConfig.from_json({"model": "minkvgg16bn", "data": "x"} | change)


def test_missing_settings_are_named() -> None:
    with raises("setting.malformed", "model"):
        RunConfig.from_json({"data": "x"})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()), "x"), ("setting.not_text", "model", "a Sequential")),
        (("minkvgg11bn", [1, 2, 3]), ("setting.not_text", "data", "[1, 2, 3]", "a folder")),
        (("minkvgg11bn", torch.zeros(2, 2)), ("setting.not_text", "data", "a Tensor")),
        (("", "x"), ("setting.not_text", "model")),
        (("minkvgg11bn", "a\0b"), ("setting.not_text", "data")),
    ],
)
def test_a_network_or_data_in_the_place_of_a_name_is_refused_in_one_line(
    arguments: tuple, error: tuple[str, ...]
) -> None:
    """They were taken without a word, and the run ended in a worker, or in JSON that cannot be written."""
    with raises(*error) as caught:
        RunConfig(*arguments)
    assert "\n" not in str(caught.value)


def test_folders_may_be_paths_and_features_a_list(tmp_path: Path) -> None:
    config = RunConfig("minkvgg11bn", tmp_path, cache=tmp_path, features=["normals"])  # type: ignore[arg-type]
    assert (config.data, config.cache, config.features) == (str(tmp_path), str(tmp_path), ("normals",))
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_settings_written_before_there_was_a_choice_keep_the_last_minibatch() -> None:
    """An epoch of such a run has as many minibatches as it had: its checkpoints are counted in them."""
    written = RunConfig("minkvgg11bn", "x").to_json()
    del written["last_minibatch"]
    assert RunConfig.from_json(written).last_minibatch == "keep"
    assert RunConfig("minkvgg11bn", "x").last_minibatch == "merge"


def test_every_setting_belongs_to_one_part() -> None:
    config = RunConfig("minkvgg11bn", "x", learning_rate=0.5, seed=3)
    names = [item.name for part in PARTS.values() for item in fields(part)]
    assert names == [item.name for item in fields(RunConfig)] == list(config.to_json())
    assert {k: v for part in config.parts.values() for k, v in part.to_json().items()} == config.to_json()
    assert config.parts["optimizer"] == OptimizerConfig(learning_rate=0.5) != OptimizerConfig()
    assert RunConfig("y", "y").replace(*config.parts.values()) == config


def test_settings_are_replaced_by_name_or_by_part() -> None:
    config = RunConfig("minkvgg11bn", "x", learning_rate=0.5, momentum=0.1, features=("normals",))
    adam = config.replace(OptimizerConfig(optimizer="adam"), seed=1)
    assert (adam.optimizer, adam.momentum, adam.seed, adam.features) == ("adam", 0.9, 1, ("normals",))
    assert config.replace(seed=1) == replace(config, seed=1) and config.seed == 0
    assert config.diff(adam) == {
        "optimizer": ("sgd", "adam"),
        "learning_rate": (0.5, 0.01),
        "momentum": (0.1, 0.9),
        "seed": (0, 1),
    }
    with raises("setting.unknown", "learning_rte"):
        config.replace(learning_rte=1)
    with raises("setting.not_whole", "-1", name="seed"):
        config.replace(seed=-1)


def test_settings_are_printed_by_part_and_without_defaults() -> None:
    config = RunConfig("minkvgg11bn", "x", epochs=3, device="cuda:1")
    assert str(config).splitlines() == [
        "data         model 'minkvgg11bn', data 'x'",
        "optimizer    epochs 3",
        "weights      as by default",
        "numerics     as by default",
        "checkpoints  as by default",
        "evaluation   as by default",
        "processes    device 'cuda:1'",
    ]
    assert repr(config) == "RunConfig(model='minkvgg11bn', data='x', epochs=3, device='cuda:1')"
    assert eval(repr(config)) == config


@pytest.mark.parametrize(
    ("part", "setting", "error"),
    [
        (OptimizerConfig, {"momentum": 2}, ("setting.out_of_range", "momentum", "2", "0", "1")),
        (ProcessConfig, {"device": "tpu"}, ("setting.device_unknown", "tpu", "cpu or cuda")),
        (ProcessConfig, {"threads": 0}, ("setting.not_whole", "threads", "0", "1")),
        (DataConfig, {"model": "m", "data": "d", "cache": ""}, ("setting.not_text", "cache", "a folder, or 'off'")),
    ],
)
def test_a_part_is_checked_on_its_own(part: type, setting: dict, error: tuple[str, ...]) -> None:
    with raises(*error):
        part(**setting)


def test_settings_know_every_loss_augmentation_and_feature() -> None:
    for name in losses.LOSSES:
        assert RunConfig("minkvgg11bn", "x", loss=name).loss == name
    for name in (*AUGMENTATIONS, *images.AUGMENTATIONS):
        assert RunConfig("minkvgg11bn", "x", augmentation=name).augmentation == name
    assert RunConfig("minkvgg11bn", "x", features=tuple(FEATURES)).features == tuple(FEATURES)
    own = RunConfig("minkvgg11bn", "x", loss="path/loss.py:function", augmentation=None)
    assert own.loss == "path/loss.py:function" and RunConfig("minkvgg11bn", "x").loss is None


def test_settings_say_all_points_or_a_number_and_read_what_records_have() -> None:
    config = RunConfig("minkvgg11bn", "x")
    assert config.num_points == "all" == json.loads(json.dumps(config.to_json()))["num_points"]
    assert RunConfig("minkvgg11bn", "x", num_points=None) == config == RunConfig("minkvgg11bn", "x", num_points="all")
    for recorded, meant in ((1024, 1024), (None, "all"), ("all", "all")):
        assert RunConfig.from_json(config.to_json() | {"num_points": recorded}).num_points == meant
    for wrong in (0, -1, 2.5, True, "none"):
        with raises("setting.not_whole", "1, or 'all'", name="num_points"):
            RunConfig("minkvgg11bn", "x", num_points=wrong)
