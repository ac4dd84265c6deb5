"""What to train and how: everything a run needs to know besides its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike, fspath
from typing import Annotated, Any

from ..data.labels import SEGMENTATION
from ..data.minibatch_sizes import KEEP, LAST_MINIBATCH, MERGE
from ..errors import InputError
from ..io.paths import expanded
from .settings import MANY, Choice, Flag, JsonObject, Named, Names, Number, Settings, Text, WholeNumber

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
            raise InputError(f"minibatches balanced by {self.balance} are shuffled: leave out balance, or shuffle")

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
            raise InputError(f"device {self.device!r} given, expected {' or '.join(DEVICES)}")


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
            raise InputError(f"not the settings of a run: {error}") from None
