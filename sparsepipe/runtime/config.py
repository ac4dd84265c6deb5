"""What to train and how: everything a run needs to know besides its plan."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from typing import Any

from ..data.order import KEEP, LAST_MINIBATCH, MERGE
from ..errors import InputError
from ..fields import shown

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
    # Of an epoch: keep; merge one of a single sample, which may be too small for batch norm, into the one before it; or
    # drop one that has fewer samples than the others. See data.sizes.
    last_minibatch: str = MERGE
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
        for name in ("data", "cache"):
            if isinstance(getattr(self, name), PathLike):
                object.__setattr__(self, name, fspath(getattr(self, name)))
        if isinstance(self.features, list):
            object.__setattr__(self, "features", tuple(self.features))
        for name in _TEXTS:
            _require_text(name, getattr(self, name))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {_told(getattr(self, name))}, expected true or false")
        for name, (least, most) in _WHOLE_NUMBERS.items():
            if getattr(self, name) is not None or name not in _MAY_BE_NONE:
                _require_integer(name, getattr(self, name), least, most)
        for name, bounds in _NUMBERS.items():
            if getattr(self, name) is not None or name not in _MAY_BE_NONE:
                _require_number(name, getattr(self, name), *bounds)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} is {_told(getattr(self, name))}, expected one of {', '.join(map(str, known))}"
                )
        if not isinstance(self.features, tuple) or not all(isinstance(name, str) for name in self.features):
            raise InputError(f"features are {_told(self.features)}, expected a tuple of names such as ('occupancy',)")
        if self.balance and not self.shuffle:
            raise InputError(f"minibatches balanced by {self.balance} are shuffled: leave out balance, or shuffle")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise InputError(f"device {self.device!r} given, expected cpu or cuda")

    def total_minibatches(self, epoch_minibatches: int) -> int:
        """Return after how many minibatches the run ends."""
        return self.epochs * epoch_minibatches if self.minibatches is None else self.minibatches

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "RunConfig":
        """Read what `to_json` wrote. Raises InputError for a setting that is unknown or missing."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise InputError(f"unknown setting {unknown[0]!r} of a run, expected some of {', '.join(sorted(known))}")
        # Written before the setting was there: the last minibatch was trained as it was.
        document = {"last_minibatch": KEEP, **document}
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError(f"not the settings of a run: {error}") from None


_MANY = 10**15  # of anything that is counted: no run gets there, and floats still tell such numbers apart
_WEEK = 7 * 24 * 3600.0
_WHOLE_NUMBERS = {  # setting: (least, most)
    "batch_size": (1, _MANY),
    "num_points": (1, _MANY),
    "epochs": (1, _MANY),
    "minibatches": (1, _MANY),
    "warmup_minibatches": (0, _MANY),
    "seed": (0, 2**64),
    "threads": (1, 65_536),  # how many cores there are is asked where it is launched
    "checkpoint_every": (0, _MANY),
    "keep_checkpoints": (1, _MANY),
    "max_restarts": (0, _MANY),
}
_NUMBERS = {  # setting: (least, most, whether the least itself is one of them)
    "voxel_size": (0, 1, False),
    "learning_rate": (0, 1e300, True),
    "learning_rate_decay": (0, 1e300, True),
    "decay_epochs": (1e-6, 1e15, True),
    "momentum": (0, 1, True),
    "weight_decay": (0, 1e30, True),
    "clip_norm": (0, 1e30, False),
    "loss_scale": (1, 2.0**64, True),
    "timeout_seconds": (0.01, _WEEK, True),
}
_MAY_BE_NONE = frozenset({"minibatches", "threads", "num_points", "clip_norm", "task", "augmentation", "cache"})
_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "optimizer": OPTIMIZERS,
    "learning_rate_schedule": LEARNING_RATE_SCHEDULES,
    "precision": PRECISIONS,
    "compression": COMPRESSIONS,
    "balance": BALANCES,
    "last_minibatch": LAST_MINIBATCH,
}
_TEXTS = {  # setting: an example
    "model": "'minkvgg11bn', of sparsepipe.models.NETWORKS",
    "data": "a folder, or a manifest's name",
    "engine": "'auto'",
    "device": "'cpu'",
    "validation_split": "'test'",
    "task": "'classification'",
    "augmentation": "'shapes'",
    "cache": "a folder, or 'off'",
}
_FLAGS = (
    "synchronised_batch_norm",
    "shared_memory",
    "shuffle",
    "validate",
    "asynchronous_checkpoints",
)


def _told(value: Any) -> str:
    """Write a value in a line: those of Python's own simple types as they are, of others the type alone."""
    simple = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
    return " ".join(shown(value).split()) if simple else f"a {type(value).__name__}"


def _require_text(name: str, value: Any) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if not isinstance(value, str) or not value or "\0" in value:
        raise InputError(f"{name} is {_told(value)}, expected text such as {_TEXTS[name]}")


def _require_integer(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {_told(value)}, expected a whole number of at least {least}")
    if value > most:
        raise InputError(f"{name} is {_told(value)}, expected a whole number from {least} to {most}")


def _require_number(name: str, value: Any, least: float, most: float, closed: bool) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and value == 0 < most and not closed:
        raise InputError(f"{name} is 0, expected a number above 0, at most {most:g}")
    if not number or not least <= value <= most:
        raise InputError(f"{name} is {_told(value)}, expected a number from {least:g} to {most:g}")
