"""The keys of PipeDream's and SparsePipe's driver yml: what values each takes, and which mean nothing here, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...errors import InputError
from ...networks import MODULE_NETWORKS, NETWORKS
from ...util.io.fields import Check, flag, integer, number, one_of, shown, text

POINTS = 4096  # that SparsePipe draws of each cloud, times sample_ratio


@dataclass(frozen=True, slots=True)
class ModelType:
    """What networks of a model_type are called here, among which, and what its training script sets."""

    names: tuple[str, ...]
    networks: Mapping[str, Any]
    settings: Mapping[str, Any]


MODEL_TYPES: Mapping[str, ModelType] = {
    "Minkowski": ModelType(("mink{}",), NETWORKS, {"num_points": POINTS}),
    "point_cloud": ModelType(("{}-3d",), NETWORKS, {}),
    "image_classification": ModelType(("{}-images", "{}"), MODULE_NETWORKS, {}),
    "translation": ModelType(("{}",), MODULE_NETWORKS, {"optimizer": "adam"}),
}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "step": {"learning_rate_schedule": "step", "learning_rate_decay": 0.1, "decay_epochs": 30.0},
    "polynomial": {"learning_rate_schedule": "polynomial", "learning_rate_decay": 2.0},
    "exponential_decay": {"learning_rate_schedule": "exponential", "learning_rate_decay": 0.97},  # in all epochs
}


def _at_least_one(value: object, what: str) -> int:
    return integer(value, what, least=1)


def _anything(value: object, what: str) -> Any:
    return value


MEANT: Mapping[str, Check] = {
    "module": text,
    "data_dir": text,
    "config_file": text,
    "log_directory": text,
    "model_type": one_of(*MODEL_TYPES),
    "machines": _anything,  # read by machines.py
    "batch_size": _at_least_one,
    "learning_rate": number,
    "learning_rate_policy": one_of(*POLICIES),
    "weight_decay": number,
    "epochs": _at_least_one,
    "voxel_size": number,
    "sample_ratio": number,
    "no_input_pipelining": flag,
    "recompute": flag,
}
WITHOUT_MEANING: Mapping[str, str] = {
    "container": "workers are processes of the host itself",
    "distributed_backend": "ranks of a host share memory, others use sockets",
    "print_frequency": "the record has every minibatch",
    "verbose_frequency": "the record has every minibatch",
    "compress_activations": "PipeDream's runtime reads it neither; --compression says what is compressed",
    "compress_in_gpu": "PipeDream's runtime reads it neither; --compression says what is compressed",
    "translation_model": "model_type says it",
    "eval_batch_size": "validation has minibatches of batch_size",
    "lr_warmup": "--warmup-minibatches N says how long the rate rises",
    "synthetic_data": "data_dir is read; --data names other data",
    "macrobatch": "a plan of schedule 2bw accumulates so",
}


def checked_values(document: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of a driver file by their keys. Raises InputError for a key or a value that is none."""
    return {_key(key): _checked(key, value) for key, value in document.items()}


def _key(key: object) -> str:
    known = [*MEANT, *WITHOUT_MEANING]
    if key in known:
        return str(key)
    alike = get_close_matches(str(key), known, n=1)
    raise InputError(
        "driver.key_unknown",
        f"key {shown(key)} is none of a driver file's" + (f": is it {alike[0]}?" if alike else ": leave it out"),
    )


def _checked(key: str, value: object) -> Any:
    check: Callable[[Any, str], Any] = MEANT.get(key, _anything)
    return check(value, key)
