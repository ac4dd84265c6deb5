"""What to train and how: everything a run needs to know besides its plan.

A group of settings: a frozen dataclass whose annotations say what each of its settings may be.

@dataclass(frozen=True, repr=False)
class Warmup(Settings):
    minibatches: Annotated[int, WholeNumber(0)] = 0
    scale: Annotated[float | None, Number(0, 1)] = None  # None only where the type has it
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from typing import Annotated, Any, Protocol, Self, get_args, get_type_hints

from ..data.labels import SEGMENTATION
from ..data.minibatch_sizes import KEEP, LAST_MINIBATCH, MERGE
from ..errors import InputError
from ..functions import is_function
from ..io.fields import json_object, shown
from ..io.keywords import expected
from ..io.paths import expanded

MANY = 10**15  # of anything that is counted: no run gets there, and floats still tell such numbers apart


class Kind(Protocol):
    """What a setting may be."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        """Raise InputError for a value of the wrong kind or size. Where a setting is `optional`, None never comes."""
        ...


@dataclass(frozen=True)
class Text:
    """A string that is not empty; `example` is what a message gives as one."""

    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if not isinstance(value, str) or not value or "\0" in value:
            raise InputError("setting.not_text", f"{name} is {_written(value)}, expected text such as {self.example}")


@dataclass(frozen=True)
class JsonObject:
    """A string that is a JSON object, such as `example`."""

    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        Text(f"'{self.example}', a JSON object").check(name, value, optional=optional)
        json_object(value, name, example=self.example)


@dataclass(frozen=True)
class Named:
    """One of `names`; where `own` is an example, a function of the user's own, too, which is known once imported."""

    names: tuple[str, ...]
    own: str = ""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        Text(f"'{self.names[0]}'").check(name, value, optional=optional)
        if value not in self.names and not (self.own and is_function(value)):
            also = f", or one's own as {self.own}" if self.own else ""
            raise InputError(
                "setting.not_a_choice", f"{name} is {_written(value)}: {expected(value, self.names)}{also}"
            )


@dataclass(frozen=True)
class Names:
    """A tuple of strings, each one of `names`."""

    names: tuple[str, ...]
    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise InputError(
                "setting.not_names", f"{name} are {_written(value)}, expected a tuple of names such as {self.example}"
            )
        if unknown := [item for item in value if item not in self.names]:
            raise InputError(
                "setting.name_unknown",
                f"{name} are {', '.join(value)}: no {shown(unknown[0])}, {expected(unknown[0], self.names)}",
                name=name,
            )


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if not isinstance(value, bool):
            raise InputError("setting.not_a_boolean", f"{name} is {_written(value)}, expected true or false")


@dataclass(frozen=True)
class WholeNumber:
    """A whole number from `least` to `most`, or where there is one the `word`."""

    least: int
    most: int = MANY
    word: str | None = None

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if self.word is not None and value == self.word:
            return
        word = f", or {self.word!r}" if self.word else ""
        if isinstance(value, bool) or not isinstance(value, int) or value < self.least:
            raise InputError(
                "setting.not_whole",
                f"{name} is {_written(value)}, expected a whole number of at least {self.least}{word}",
                name=name,
            )
        if value > self.most:
            raise InputError(
                "setting.not_whole",
                f"{name} is {_written(value)}, expected a whole number from {self.least} to {self.most}",
                name=name,
            )


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`; `above`: `least` itself is none of them."""

    least: float
    most: float
    above: bool = False

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and self.above and value == self.least:
            raise InputError(
                "setting.out_of_range",
                f"{name} is {value:g}, expected a number above {self.least:g}, at most {self.most:g}",
            )
        if not is_number or not self.least <= value <= self.most:
            raise InputError(
                "setting.out_of_range",
                f"{name} is {_written(value)}, expected a number from {self.least:g} to {self.most:g}",
                name=name,
            )


@dataclass(frozen=True)
class Choice:
    names: tuple[str, ...]

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if value not in self.names:
            known = ", ".join([*(["None"] if optional else []), *self.names])
            raise InputError("setting.not_a_choice", f"{name} is {_written(value)}, expected one of {known}")


@dataclass(frozen=True, repr=False)
class Settings:
    """Base of groups of settings: checks them by their annotations, and writes those that are not as by default."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        cls.known(settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, (kind, optional) in _kinds(type(self)).items():
            value = getattr(self, name)
            if value is not None or not optional:
                kind.check(name, value, optional=optional)

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that have no default, or another value than their default."""
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def diff(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """Return the settings in which `other` differs, by name: (the value here, the value there)."""
        pairs = {item.name: (getattr(self, item.name), getattr(other, item.name)) for item in fields(self)}
        return {name: (here, there) for name, (here, there) in pairs.items() if here != there}

    def replace(self, *groups: "Settings", **changes: Any) -> Self:
        """Return these settings with all those of `groups`, and then with `changes`, in the place of their own.

        Raises InputError for a setting that is unknown here, or outside its range.
        """
        given = {name: value for group in groups for name, value in group.to_json().items()}
        return type(self)(**self.to_json() | self.known(given | changes))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def known(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return `settings`. Raises InputError where one of them is none of these."""
        names = {item.name for item in fields(cls)}
        if unknown := sorted(set(settings) - names):
            raise InputError(
                "setting.unknown", f"unknown setting {shown(unknown[0])} of a run: {expected(unknown[0], names)}"
            )
        return dict(settings)

    def __repr__(self) -> str:
        """The call that makes these settings: what is as by default is left out."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.chosen.items())})"


def _kinds(group: type[Settings]) -> dict[str, tuple[Kind, bool]]:
    """The kind of each setting, and whether it may be None."""
    hints = get_type_hints(group, include_extras=True)
    annotated = {item.name: get_args(hints[item.name]) for item in fields(group)}
    return {name: (kind, type(None) in get_args(base)) for name, (base, kind) in annotated.items()}


def _written(value: Any) -> str:
    """Write a value in a line: those of Python's own simple types as they are, of others the type alone."""
    simple = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
    return " ".join(shown(value).split()) if simple else f"a {type(value).__name__}"


OPTIMIZERS = ("sgd", "adam", "adamw", "lamb")
LEARNING_RATE_SCHEDULES = ("constant", "step", "exponential", "polynomial", "cosine")
PRECISIONS = ("float32", "bfloat16", "float16")
COMPRESSIONS = ("none", "zeros", "lossless", "bfloat16", "float16", "int8")
BALANCES = ("voxels", "classes")
# What workers look up in files that bring torch, or read data: a name that none of them has is refused before that.
LOSSES = ("classes", "voxels", "tokens", "masked-words", "output")
AUGMENTATIONS = ("shapes", "scans", "shapes-in-cube", "resized-crop", "shift", "shift-flip")  # of clouds, of images
FEATURES = ("occupancy", "normals", "colours", "intensity")
DEVICES = ("cpu", "cuda")
ON_LOST_HOST = ("replan", "wait")
ALL = "all"  # of a cloud's points, as data.recipe has it
_WEEK = 7 * 24 * 3600.0


@dataclass(frozen=True, repr=False)
class DataConfig(Settings):
    """Which network learns from which samples, and how samples become minibatches."""

    model: Annotated[str, Text("'minkvgg11bn', or 'path/net.py:function'")]
    data: Annotated[str, Text("a folder, a manifest's name, or 'path/data.py:function'")]
    model_args: Annotated[str | None, JsonObject('{"width": 64}')] = None  # of a torch module's builder
    data_args: Annotated[str | None, JsonObject('{"image_size": 64}')] = None  # of a data set
    # by name, or 'path/loss.py:function'; None: the one that goes with the data
    loss: Annotated[str | None, Named(LOSSES, "path/loss.py:function")] = None
    loss_args: Annotated[str | None, JsonObject('{"label_smoothing": 0.1}')] = None
    voxel_size: Annotated[float, Number(0, 1, above=True)] = 0.02
    batch_size: Annotated[int, WholeNumber(1)] = 32  # samples of a minibatch
    # the most of a cloud, and those sampled from a mesh; all: every point of a cloud, 1,024 of a mesh
    num_points: Annotated[int | str, WholeNumber(1, word=ALL)] = ALL
    # classification or segmentation; None: what the model's name and the data say
    task: Annotated[str | None, Text("'classification'")] = None
    features: Annotated[tuple[str, ...], Names(FEATURES, "('occupancy',)")] = (
        "occupancy",
    )  # of each voxel: see data.recipe
    augmentation: Annotated[str | None, Named(AUGMENTATIONS)] = None  # of the training split, by name
    shuffle: Annotated[bool, Flag()] = True
    # minibatches of like voxel counts (so replicas get equal work) or of like class counts
    balance: Annotated[str | None, Choice(BALANCES)] = None
    # Of an epoch: keep; merge one of a single sample, which may be too small for batch norm, into the one before it; or
    # drop one that has fewer samples than the others. See data.sizes.
    last_minibatch: Annotated[str, Choice(LAST_MINIBATCH)] = MERGE
    validate: Annotated[bool, Flag()] = True  # after each epoch
    validation_split: Annotated[str, Text("'test'")] = "test"
    # translated after each epoch that ends in a checkpoint, for BLEU, where the data are pairs of sentences
    bleu_sentences: Annotated[int, WholeNumber(0)] = 64
    # folder for prepared samples; None: the user's own; off: none
    cache: Annotated[str | None, Text("a folder, or 'off'")] = None

    def __post_init__(self) -> None:
        for name in ("data", "cache", "model", "loss"):  # the latter may name a file's function
            value = getattr(self, name)
            if (isinstance(value, PathLike) and name in ("data", "cache")) or str(value).startswith("~"):
                object.__setattr__(self, name, fspath(expanded(value)))
        if self.num_points is None:  # as records wrote it
            object.__setattr__(self, "num_points", ALL)
        if isinstance(self.features, list):
            object.__setattr__(self, "features", tuple(self.features))
        super().__post_init__()
        if self.balance and not self.shuffle:
            raise InputError(
                "setting.balance_and_shuffle",
                f"minibatches balanced by {self.balance} are shuffled: leave out balance, or shuffle",
            )

    def of_clouds(self, split: str) -> dict[str, Any]:
        """Return how `data.load` opens a split of point clouds, but for its seed and its cache."""
        return {
            "voxel_size": self.voxel_size,
            "num_points": self.num_points,
            "task": self.task or (SEGMENTATION if SEGMENTATION in self.model else None),
            "features": self.features,
            "augmentation": self.augmentation if split == "train" else None,
        }


@dataclass(frozen=True, repr=False)
class OptimizerConfig(Settings):
    """How long the network learns, by which optimizer and at which learning rate.

    `minibatches`, where given, ends the run after so many, whatever `epochs` says.
    """

    epochs: Annotated[int, WholeNumber(1)] = 1
    minibatches: Annotated[int | None, WholeNumber(1)] = None
    optimizer: Annotated[str, Choice(OPTIMIZERS)] = "sgd"
    learning_rate: Annotated[float, Number(0, 1e300)] = 0.01
    learning_rate_schedule: Annotated[str, Choice(LEARNING_RATE_SCHEDULES)] = "constant"
    warmup_minibatches: Annotated[int, WholeNumber(0)] = 0  # of the learning rate, linear
    learning_rate_decay: Annotated[float, Number(0, 1e300)] = 0.1  # factor of step, exponential; power of polynomial
    decay_epochs: Annotated[float, Number(1e-6, 1e15)] = 30.0  # from one such factor to the next
    momentum: Annotated[float, Number(0, 1)] = 0.9  # of sgd
    weight_decay: Annotated[float, Number(0, 1e30)] = 0.0
    # of all gradients together; for schedules that flush
    clip_norm: Annotated[float | None, Number(0, 1e30, above=True)] = None

    def total_minibatches(self, epoch_minibatches: int) -> int:
        """Return after how many minibatches the run ends."""
        return self.epochs * epoch_minibatches if self.minibatches is None else self.minibatches


@dataclass(frozen=True, repr=False)
class NumericsConfig(Settings):
    """What the numbers are computed by, from which random seed, and how exactly."""

    engine: Annotated[str, Text("'auto'")] = "auto"
    seed: Annotated[int, WholeNumber(0, 2**64)] = 0
    precision: Annotated[str, Choice(PRECISIONS)] = "float32"  # 16 bits: autocast, weights stay float32
    # of float16: the first; halved when gradients overflow, doubled after 2000 good steps
    loss_scale: Annotated[float, Number(1, 2.0**64)] = 2.0**16
    # replicas of a stage share the statistics of a round's minibatches
    synchronised_batch_norm: Annotated[bool, Flag()] = False
    # of what crosses boundaries; None: lossless from a CPU through a socket
    compression: Annotated[str | None, Choice(COMPRESSIONS)] = None


@dataclass(frozen=True, repr=False)
class CheckpointConfig(Settings):
    """When training states are written, and how many stay."""

    checkpoint_every: Annotated[int, WholeNumber(0)] = 1  # epochs; 0: none
    keep_checkpoints: Annotated[int, WholeNumber(1)] = 2
    asynchronous_checkpoints: Annotated[bool, Flag()] = False  # written beside the next epoch, from a copy


@dataclass(frozen=True, repr=False)
class ProcessConfig(Settings):
    """What a worker process runs on, how it sends to others, and how long it waits for them."""

    device: Annotated[str, Text("'cpu'")] = "cpu"  # or cuda, cuda:1
    # of each worker; None: the cores shared evenly. How many cores there are is asked where it is launched.
    threads: Annotated[int | None, WholeNumber(1, 65_536)] = None
    # payloads between processes of one host; False: through sockets, as between hosts
    shared_memory: Annotated[bool, Flag()] = True
    # TLS between processes of several hosts; False: what they send to each other is in clear
    encrypt: Annotated[bool, Flag()] = False
    timeout_seconds: Annotated[float, Number(0.01, _WEEK)] = 300.0  # longest wait for another rank
    # from the last checkpoint, after a worker was killed or went silent
    max_restarts: Annotated[int, WholeNumber(0, MANY)] = 0
    # where a restart finds a host gone: on those left, planned anew for them, or once it is back
    on_lost_host: Annotated[str, Choice(ON_LOST_HOST)] = "replan"
    # ranks that are made slow or killed, as --straggler takes them (sparsepipe/stragglers); None: none is
    stragglers: Annotated[str | None, Text("'slow:rank=1,factor=4'")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device.split(":")[0] not in DEVICES:
            raise InputError("setting.device_unknown", f"device {self.device!r} given, expected {' or '.join(DEVICES)}")


PARTS: Mapping[str, type[Settings]] = {
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "numerics": NumericsConfig,
    "checkpoints": CheckpointConfig,
    "processes": ProcessConfig,
}


# Python collects the fields of bases from the last to the first: model and data come first.
@dataclass(frozen=True, repr=False)
class RunConfig(ProcessConfig, CheckpointConfig, NumericsConfig, OptimizerConfig, DataConfig):
    """Settings of a run: those of all five parts, each by its own name.

    What reads one part alone asks for that part in its signature, and takes the settings of a run or the part itself:

        config = RunConfig("minkvgg16bn", "modelnet10", batch_size=16, learning_rate=0.1)
        config.parts["optimizer"]                                   # OptimizerConfig(learning_rate=0.1)
        config.replace(OptimizerConfig(optimizer="adam"), seed=1)   # another optimizer with its defaults, and a seed

    - `voxel_size`: the edge of a voxel, as a share of a cloud's longest side (metres where the data say so)
    - `num_points`: "all" points of a cloud (1,024 sampled from a mesh), or a number, of clouds at most
    - `batch_size`: samples per minibatch; with a flush schedule per microbatch, of which `num_microbatches` of the plan
      make a step
    - `epochs`, or `minibatches` in all; `decay_epochs` and `checkpoint_every` are epochs, `warmup_minibatches`
      minibatches, `timeout_seconds` seconds
    - `optimizer`: "sgd", "adam", "adamw" or "lamb"; `learning_rate_schedule`: "constant", "step", "exponential",
      "polynomial" or "cosine"
    - `engine`: "auto", "native", "minkowski" or "torch"; `device`: "cpu" or "cuda"; `threads`: cores of each process
    - `seed`: of weights, order of samples, augmentation, dropout and stragglers. Runs of one pipeline without replicas
      are the same to the bit under the same seed, versions and `threads`; another number of threads, or replicas that
      sum gradients, add up in another order
    - `precision`: "float32", "bfloat16" or "float16"; `compression` of what crosses boundaries: "none", "zeros",
      "lossless" (both exact), "bfloat16", "float16" or "int8"
    - `balance`: None, "voxels" or "classes"; `last_minibatch`: "merge", "keep" or "drop"

    Raises InputError for a setting outside its range.
    """

    @property
    def parts(self) -> dict[str, Settings]:
        """The five parts by name."""
        return {
            name: part(**{item.name: getattr(self, item.name) for item in fields(part)}) for name, part in PARTS.items()
        }

    def __str__(self) -> str:
        """A line for each part, of the settings that are not as by default."""
        lines = []
        for name, part in self.parts.items():
            chosen = ", ".join(f"{key} {value!r}" for key, value in part.chosen.items())
            lines.append(f"{name:<{max(map(len, PARTS))}}  {chosen or 'as by default'}")
        return "\n".join(lines)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "RunConfig":
        """Read what `to_json` wrote. Raises InputError for a setting that is unknown or missing."""
        # Written before the setting was there: the last minibatch was trained as it was.
        document = {"last_minibatch": KEEP, **cls.known(document)}
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError("setting.malformed", f"not the settings of a run: {error}") from None
