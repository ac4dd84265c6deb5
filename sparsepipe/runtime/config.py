"""What to train and how: everything a run needs to know besides its plan."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import InputError

OPTIMIZERS = ("sgd", "adam", "adamw", "lamb")
PRECISIONS = ("float32", "bfloat16", "float16")
COMPRESSIONS = (None, "none", "zeros", "lossless", "bfloat16", "float16", "int8")
BALANCES = (None, "voxels", "classes")
LEARNING_RATE_SCHEDULES = ("constant", "step", "exponential", "polynomial", "cosine")


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run. `minibatches`, where given, ends the run after so many, whatever `epochs` says.

    With a flush schedule `batch_size` samples make a microbatch and the plan's `num_microbatches` of them a step.
    Raises InputError for a setting outside its range.
    """

    model: str
    data: str
    voxel_size: float = 0.02
    batch_size: int = 32
    num_points: int | None = 1024  # None: all
    task: str | None = None  # classification or segmentation; None: what the model's name and the data say
    engine: str = "auto"
    epochs: int = 1
    minibatches: int | None = None
    optimizer: str = "sgd"  # or adam, adamw, lamb
    learning_rate: float = 0.01
    learning_rate_schedule: str = "constant"  # or step, exponential, polynomial, cosine
    warmup_minibatches: int = 0  # of the learning rate, linear
    learning_rate_decay: float = 0.1  # the factor of step and exponential, the power of polynomial
    decay_epochs: float = 30.0  # from one such factor to the next
    momentum: float = 0.9  # of sgd
    weight_decay: float = 0.0
    synchronised_batch_norm: bool = False  # replicas of a stage share the statistics of a round's minibatches
    clip_norm: float | None = None  # of all gradients together; for schedules that flush
    precision: str = "float32"  # or bfloat16, float16 (loss scaled): autocast, weights stay float32
    loss_scale: float = 2.0**16  # of float16: the first; halved when gradients overflow, doubled after 2000 good steps
    compression: str | None = None  # of what crosses boundaries; None: lossless from a CPU through a socket
    shared_memory: bool = True  # payloads between processes of one host; False: through sockets, as between hosts
    seed: int = 0
    device: str = "cpu"
    threads: int | None = None  # of each worker; None: the cores shared evenly
    shuffle: bool = True
    balance: str | None = None  # minibatches of like voxel counts (so replicas get equal work) or of like class counts
    augmentation: str | None = None  # of the training split, by name
    features: tuple[str, ...] = ("occupancy",)  # of each voxel: see data.recipe
    cache: str | None = None  # folder for prepared samples; None: the user's own; off: none
    validate: bool = True  # after each epoch
    validation_split: str = "test"
    checkpoint_every: int = 1  # epochs; 0: none
    keep_checkpoints: int = 2
    asynchronous_checkpoints: bool = False  # written beside the next epoch, from a copy
    timeout_seconds: float = 300.0  # longest wait for another rank
    max_restarts: int = 0  # from the last checkpoint, after a worker was killed or went silent

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("epochs", 1),
            ("seed", 0),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 1),
            ("max_restarts", 0),
            ("warmup_minibatches", 0),
        ):
            _require_integer(name, getattr(self, name), least)
        for name in ("minibatches", "threads", "num_points"):
            if getattr(self, name) is not None:
                _require_integer(name, getattr(self, name), 1)
        for name, least, most in (
            ("learning_rate", 0, math.inf),
            ("momentum", 0, 1),
            ("weight_decay", 0, math.inf),
            ("learning_rate_decay", 0, math.inf),
            ("loss_scale", 1, 2.0**64),
            ("decay_epochs", 0, math.inf),
            ("voxel_size", 0, 1),
            ("timeout_seconds", 0, math.inf),
        ):
            _require_number(name, getattr(self, name), least, most)
        for name in ("voxel_size", "timeout_seconds", "decay_epochs"):
            if getattr(self, name) == 0:
                raise InputError(f"{name} is 0, expected a number above 0")
        if self.balance and not self.shuffle:
            raise InputError(f"minibatches balanced by {self.balance} are shuffled: leave out balance, or shuffle")
        if self.clip_norm is not None:
            _require_number("clip_norm", self.clip_norm, 0, math.inf)
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("learning_rate_schedule", LEARNING_RATE_SCHEDULES),
            ("precision", PRECISIONS),
            ("compression", COMPRESSIONS),
            ("balance", BALANCES),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(map(str, known))}")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise InputError(f"device {self.device!r} given, expected cpu or cuda")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "RunConfig":
        """Read what `to_json` wrote. Raises InputError for a setting that is unknown or missing."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise InputError(f"unknown setting {unknown[0]!r} of a run, expected some of {', '.join(sorted(known))}")
        listed = {"features": tuple(document["features"])} if "features" in document else {}
        try:
            return cls(**{**document, **listed})
        except TypeError as error:
            raise InputError(f"not the settings of a run: {error}") from None


def _require_integer(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}, expected a whole number of at least {least}")


def _require_number(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most or value != value:
        bound = f"from {least} to {most}" if most < math.inf else f"of at least {least}"
        raise InputError(f"{name} is {value!r}, expected a number {bound}")
