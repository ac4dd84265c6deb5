"""What to train and how: everything a run needs to know besides its plan. Each setting is one row of a table.

Its checks, its option, its control and its line on the page of settings come from that row (util/io/settings.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from typing import Any

from ..data.augmentation import AUGMENTATIONS, OF_IMAGES
from ..data.labels import TASKS
from ..data.minibatch_sizes import KEEP, LAST_MINIBATCH, MERGE
from ..data.order import ORDERS, SHUFFLE
from ..data.recipe import ALL, FEATURES, OCCUPANCY
from ..engines import ENGINES
from ..errors import InputError
from ..networks.losses import LOSSES, METRICS
from ..records.workload_facts import WorkloadFacts, workload_facts
from ..util.io.fields import MOST_MINIBATCHES, json_object
from ..util.io.files import expanded
from ..util.io.functions import is_function, reference_to
from ..util.io.quantities import COUNT, SIZE, TIME
from ..util.io.settings import (
    Amount,
    Choice,
    Flag,
    JsonObject,
    Number,
    Settings,
    Several,
    Text,
    WholeNumber,
    listed,
    row,
    setting,
)
from .training_state.learning_rate import LR_SCHEDULES, LearningRate

OPTIMIZERS = ("sgd", "adam", "adamw", "lamb")
PRECISIONS = ("float32", "bfloat16", "float16")
COMPRESSIONS = ("none", "zeros", "lossless", "bfloat16", "float16", "int8")
BUDGETS = ("batch_voxels", "batch_seconds", "batch_bytes")
BALANCES = ("voxels", "classes")
DEVICES = ("cpu", "cuda")
ON_LOST_HOST = ("replan", "wait")
_SCORES = {"miou": "mean_iou"}  # short names, which are taken too
_WEEK = 7 * 24 * 3600.0


@dataclass(frozen=True, repr=False)
class DataConfig(Settings):
    """Configure the network, the data set, and the composition of minibatches."""

    model: str = field(
        metadata=row(
            Text("'minkvgg11bn', or 'path/net.py:function'"),
            "network, such as minkvgg16bn or path/net.py:function",
            unit="M",
        )
    )
    data: str = field(
        metadata=row(
            Text("a folder, a manifest's name, or 'path/data.py:function'"),
            "data set: folder, manifest's name, or path/data.py:function",
            unit="D",
        )
    )
    model_args: str | None = setting(
        None, JsonObject('{"width": 64}'), "arguments of a torch module's builder", unit="JSON"
    )
    data_args: str | None = setting(
        None,
        JsonObject('{"image_size": 64}'),
        "options of an image or text data set, or of a data function",
        unit="JSON",
    )
    loss: str | None = setting(
        None,
        Choice(tuple(LOSSES), "path/loss.py:function", is_function),
        "loss function",
        unit="F",
        words="the data's own",
    )
    loss_args: str | None = setting(None, JsonObject('{"label_smoothing": 0.1}'), "arguments of the loss", unit="JSON")
    voxel_size: float = setting(
        0.02,
        Number(0, 1, above=True),
        "voxel edge, as a share of a cloud's longest side, or in metres if the data set is metric",
        unit="S",
    )
    batch_size: int = setting(32, WholeNumber(1), "samples per minibatch")
    batch_voxels: float | None = setting(
        None,
        Amount(COUNT),
        "voxels per minibatch, instead of a number of samples (with an augmentation: voxels of the first epoch)",
    )
    batch_seconds: float | None = setting(
        None,
        Amount(TIME),
        "seconds per minibatch, forward and backward, on the slowest stage by the profile",
        unit="S",
    )
    batch_bytes: float | None = setting(
        None,
        Amount(SIZE),
        "activation memory per minibatch, on the stage with most, by the profile",
        unit="BYTES",
    )
    num_points: int | str = setting(
        ALL,
        WholeNumber(1, word=ALL),
        "largest number of points of a cloud, and number sampled from a mesh",
        words="all; 1024 of a mesh",
    )
    task: str | None = setting(
        None, Text("'classification'", offered=TASKS), "learning task", words="by the model's name and the data"
    )
    features: tuple[str, ...] = setting(
        (OCCUPANCY,),
        Several(Choice(tuple(FEATURES)), "('occupancy',)"),
        "features of each voxel",
        unit="NAME[,NAME]",
    )
    augmentation: str | None = setting(
        None, Choice((*AUGMENTATIONS, *OF_IMAGES)), "augmentation of the training split", unit="NAME"
    )
    shuffle: bool = setting(True, Flag(), "shuffled samples: another order in each epoch", option="")
    balance: str | None = setting(
        None,
        Choice(BALANCES),
        "balanced minibatches: similar voxel counts (equal work for replicas), or similar class counts",
    )
    order: str = setting(
        SHUFFLE,
        Choice(ORDERS),
        "order of minibatches: random; windows sorted by size, up and down in turn; or near random, with neighbours of "
        "similar cost under the plan",
    )
    composition: str | None = setting(
        None, JsonObject('{"budget": 200000}'), "composition of minibatches; set at launch", option=""
    )
    last_minibatch: str = setting(
        MERGE,
        Choice(LAST_MINIBATCH),
        "smaller last minibatch of an epoch: keep it; merge it into the previous one if it is a single sample, for "
        "which batch norm may fail; or drop it",
    )
    validate: bool = setting(True, Flag(), "validation after each epoch", option="no_validation")
    validation_split: str = setting("test", Text("'test'"), "validated split", unit="NAME")
    bleu_sentences: int = setting(64, WholeNumber(0), "translated sentences per checkpoint, for BLEU")
    cache: str | None = setting(
        None, Text("a folder, or 'off'"), "folder of prepared samples; off: none", unit="DIR", words="the user's cache"
    )

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
        for name, kind in (("batch_voxels", COUNT), ("batch_seconds", TIME), ("batch_bytes", SIZE)):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, kind.read(value))
        if len(budgets := [name for name in BUDGETS if getattr(self, name) is not None]) > 1:
            text = f"{{{budgets[0]}}} and {{{budgets[1]}}} both limit a minibatch: give one of them"
            raise InputError("setting.two_budgets", text, setting=dict.fromkeys(budgets))
        if self.is_composed and (self.balance or not self.shuffle):
            raise InputError(
                "setting.order_and_balance",
                f"minibatches by {{{(budgets or ['order'])[0]}}} are drawn at random and balanced by size already: "
                "leave it out, or balance and the fixed order",
                setting=(budgets or ["order"])[0],
            )
        if self.balance and not self.shuffle:
            raise InputError(
                "setting.balance_and_shuffle",
                f"minibatches balanced by {self.balance} are shuffled: leave out balance, or shuffle",
            )

    @property
    def is_composed(self) -> bool:
        """Return whether sizes of samples decide which minibatches there are, or their order."""
        return self.order != SHUFFLE or any(getattr(self, name) is not None for name in BUDGETS)

    @property
    def composition_asked(self) -> dict[str, object]:
        """The settings that `composition` is decided by."""
        return {name: getattr(self, name) for name in ("order", *BUDGETS)}


@dataclass(frozen=True, repr=False)
class OptimizerConfig(Settings):
    """Configure the length of the training, the optimizer and the learning rate.

    `minibatches`, where given, ends the run after so many, whatever `epochs` says.
    """

    epochs: int = setting(1, WholeNumber(1), "training epochs")
    accumulation: int | None = setting(
        None,
        WholeNumber(1, MOST_MINIBATCHES),
        "gradient accumulation: minibatches per weight update; of an asynchronous schedule rounds of the replicas",
        words="the plan's",
    )
    minibatches: int | None = setting(None, WholeNumber(1), "length of the run in minibatches, instead of epochs")
    optimizer: str = setting("sgd", Choice(OPTIMIZERS), "optimizer")
    learning_rate: float = setting(0.01, Number(0, 1e300), "learning rate after the warm-up", unit="F")
    learning_rate_schedule: str = setting("constant", Choice(tuple(LR_SCHEDULES)), "learning-rate schedule")
    warmup_minibatches: int = setting(
        0, WholeNumber(0), "warm-up minibatches, over which the learning rate rises linearly"
    )
    learning_rate_decay: float = setting(
        0.1, Number(0, 1e300), "learning-rate factor of step and exponential, power of polynomial", unit="F"
    )
    decay_epochs: float = setting(30.0, Number(1e-06, 1000000000000000.0), "epochs between two learning-rate factors")
    momentum: float = setting(0.9, Number(0, 1), "momentum of sgd", unit="F")
    weight_decay: float = setting(0.0, Number(0, 1e30), "weight decay of the optimizer", unit="F")
    clip_norm: float | None = setting(
        None, Number(0, 1e30, above=True), "maximum gradient norm; synchronous schedules only", unit="NORM", words="off"
    )

    @property
    def rate(self) -> LearningRate:
        """The learning rate over the run."""
        return LearningRate(
            self.learning_rate,
            self.learning_rate_schedule,
            self.warmup_minibatches,
            self.learning_rate_decay,
            self.decay_epochs,
        )

    def total_minibatches(self, epoch_minibatches: int) -> int:
        """Return after how many minibatches the run ends."""
        return self.epochs * epoch_minibatches if self.minibatches is None else self.minibatches


@dataclass(frozen=True, repr=False)
class NumericsConfig(Settings):
    """Configure the sparse-convolution backend, the random seed and the precision."""

    engine: str = setting(
        "auto",
        Text("'auto'", offered=tuple(ENGINES)),
        "sparse-convolution backend",
        words="native where it has machine code",
    )
    seed: int = setting(0, WholeNumber(0, 2**64), "random seed of weights, samples and order")
    precision: str = setting(
        "float32", Choice(PRECISIONS), "compute precision (autocast); weights, losses and statistics stay in float32"
    )
    float32_layers: tuple[str, ...] = setting(
        (),
        Several(Text("'*Norm*'"), "('*Norm*', 'Softmax')"),
        "types of layers that compute in float32 under another precision: patterns of their classes, such as *Norm*",
        unit="TYPE[,TYPE]",
        words="none",
    )
    loss_scale: float = setting(
        2.0**16,
        Number(1, 2.0**64),
        "initial loss scale of float16; halved on overflow, doubled after 2000 good steps",
        unit="S",
    )
    synchronised_batch_norm: bool = setting(False, Flag(), "synchronized batch norm among the replicas of a stage")
    compression: str | None = setting(
        None,
        Choice(COMPRESSIONS),
        "encoding of activations at stage boundaries; zeros and lossless are exact",
        words="lossless through sockets",
    )

    def __post_init__(self) -> None:
        if isinstance(self.float32_layers, list):
            object.__setattr__(self, "float32_layers", tuple(self.float32_layers))
        super().__post_init__()

    @property
    def workload(self) -> WorkloadFacts:
        """Return what workers do with such an engine: they train, or sleep through a profile."""
        return workload_facts(self.engine)


@dataclass(frozen=True, repr=False)
class CheckpointConfig(Settings):
    """Configure when checkpoints are written, and how many are kept."""

    checkpoint_every: int = setting(1, WholeNumber(0), "epochs between checkpoints; 0: no checkpoints", unit="EPOCHS")
    keep_checkpoints: int = setting(2, WholeNumber(1), "number of newest checkpoints to keep")
    asynchronous_checkpoints: bool = setting(False, Flag(), "checkpoints written from a copy during the next epoch")


@dataclass(frozen=True, repr=False)
class EvaluationConfig(Settings):
    """Configure the metrics of the validation, and what follows from them after each epoch."""

    metrics: tuple[str, ...] = setting(
        (),
        Several(Choice(METRICS, "path/file.py:function", is_function), "('f1', 'auc')"),
        "metrics of the validation in addition to those of the loss: F1, mean IoU, ROC AUC, confusion matrix, mean "
        "average precision of boxes",
        unit="NAME[,NAME]",
        words="those of the loss",
    )
    ema: float | None = setting(
        None,
        Number(0, 1, above=True),
        "decay of the exponential moving average of the weights, such as 0.999; validation and predict use the average",
        unit="DECAY",
        words="off",
    )
    best: str | None = setting(
        None,
        Text("'mean_iou'"),
        "score of the validation whose best checkpoint is kept, such as accuracy or mean_iou",
        unit="NAME",
        words="not kept",
    )
    early_stopping: int | None = setting(
        None,
        WholeNumber(1),
        "validations without a better score after which the run ends; the score is that of best, or the loss",
        unit="EPOCHS",
        words="off",
    )
    on_epoch: str | None = setting(
        None,
        Text("'path/file.py:function'"),
        "function to call after each epoch with its scores and the weights",
        unit="path/file.py:function",
        words="none",
    )

    def __post_init__(self) -> None:
        if isinstance(self.metrics, list):
            object.__setattr__(self, "metrics", tuple(self.metrics))
        if self.on_epoch is not None and not isinstance(self.on_epoch, str) and callable(self.on_epoch):
            object.__setattr__(self, "on_epoch", reference_to(self.on_epoch, setting="on_epoch"))
        renamed = tuple(_SCORES.get(name, name) if isinstance(name, str) else name for name in self.metrics)
        object.__setattr__(self, "metrics", renamed)
        if isinstance(self.best, str):
            object.__setattr__(self, "best", _SCORES.get(self.best, self.best))
        super().__post_init__()


@dataclass(frozen=True, repr=False)
class ProcessConfig(Settings):
    """Configure the device of a worker process, its communication and timeouts."""

    device: str = setting("cpu", Text("'cpu'", offered=DEVICES), "compute device")  # or cuda:1
    threads: int | None = setting(None, WholeNumber(1, 65536), "CPU threads of each process", words="shared evenly")
    shared_memory: bool = setting(True, Flag(), "shared memory between processes of one host (else sockets)")
    encrypt: bool = setting(False, Flag(), "TLS encryption between hosts")
    timeout_seconds: float = setting(300.0, Number(0.01, _WEEK), "longest wait for another rank, in seconds", unit="S")
    max_restarts: int = setting(0, WholeNumber(0), "restarts from the last checkpoint when a worker dies or hangs")
    on_lost_host: str = setting(
        "replan",
        Choice(ON_LOST_HOST),
        "reaction to a failed node, with --max-restarts: repartition for the remaining hosts, or wait for the node",
    )
    # As --inject takes them (sparsepipe/values/stragglers), which may be given several times.
    stragglers: str | None = setting(
        None, Text("'slow:rank=1,factor=4'"), "injected stragglers", unit="KIND[:OPTION=VALUE,…]", option=""
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device.split(":")[0] not in DEVICES:
            raise InputError("setting.device_unknown", f"device {self.device!r} given, expected {' or '.join(DEVICES)}")


@dataclass(frozen=True, repr=False)
class ProfileConfig(Settings):
    """Configure the profiling of a network, beyond the settings of a run."""

    device_type: str | None = setting(
        None, Text("'fast'"), "name of the measured device type", unit="NAME", words="this device's name"
    )
    repeats: int | None = setting(
        None,
        WholeNumber(1, 1000),
        "timed passes per layer",
        words="5; up to 30 of short steps, or until the layers add up to a step",
    )
    beside: int = setting(0, WholeNumber(0, 64), "co-located processes that run the same workload during profiling")


PARTS: Mapping[str, type[Settings]] = {
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "numerics": NumericsConfig,
    "checkpoints": CheckpointConfig,
    "evaluation": EvaluationConfig,
    "processes": ProcessConfig,
}


# Python collects the fields of bases from the last to the first: model and data come first.
@dataclass(frozen=True, repr=False)
class RunConfig(ProcessConfig, EvaluationConfig, CheckpointConfig, NumericsConfig, OptimizerConfig, DataConfig):
    """Configure a run: network, data, optimizer, numerics, checkpoints, evaluation and processes.

    With a synchronous schedule `batch_size` counts the samples of a microbatch, of which the plan's `num_microbatches`
    make a step. Runs of one pipeline without replicas are reproducible to the bit with the same `seed`, versions and
    `threads`.

    Args:
        settings: The settings below, by name. `model` and `data` may be given by position.

    Raises:
        InputError: A setting outside its range.

    Example:
        >>> config = sp.RunConfig("minkvgg16bn", "modelnet10", batch_size=16, learning_rate=0.1)
        >>> config.replace(optimizer="adam", seed=1).optimizer
        'adam'
        >>> config.parts["optimizer"].learning_rate
        0.1

    See also:
        background/settings, `launch`
    """

    @property
    def parts(self) -> dict[str, Settings]:
        """The six parts by name."""
        return {
            name: part(**{item.name: getattr(self, item.name) for item in fields(part)}) for name, part in PARTS.items()
        }

    @property
    def sampling(self) -> dict[str, object]:
        """The settings that decide which samples a minibatch has: within an epoch they stay."""
        names = ("batch_size", "last_minibatch", "seed", "shuffle", "balance", "order")
        composition = self.composition if self.is_composed else None  # of a run before that was
        return {name: getattr(self, name) for name in names} | {"composition": composition}

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


@dataclass(frozen=True)
class Composition:
    """Budget and order of minibatches, as `RunConfig.composition` has it; see `data.compose`.

    `sizes` and `seconds`: of minibatches, and what each stage takes for them by the profile of the launch. `asked`: the
    settings that this was decided by. `unit`: of sizes and of the budget, such as "voxels".
    """

    budget: float | None = None
    stages: int = 1
    step: int = 1
    sizes: tuple[float, ...] = ()
    seconds: tuple[tuple[float, ...], ...] = ()
    asked: Mapping[str, object] | None = None
    unit: str = ""

    @classmethod
    def of(cls, config: RunConfig) -> "Composition":
        """Return what a launch has decided. Without one, as in a process of its own: one stage, the budget of voxels.

        Raises InputError for a budget that only a launch can decide.
        """
        if (decided := cls.decided(config)) is not None:
            return decided
        if config.batch_seconds is not None or config.batch_bytes is not None:
            raise without_profile(config)
        return cls(config.batch_voxels)

    @classmethod
    def decided(cls, config: RunConfig) -> "Composition | None":
        """Return what a launch decided of the settings as they are now; None if it decided nothing, or of others."""
        if config.composition is None or not config.is_composed:
            return None
        found = json_object(config.composition, "composition")
        known = cls(**{item.name: found[item.name] for item in fields(cls) if item.name in found})
        return known if known.asked in (None, config.composition_asked) else None


def without_profile(config: RunConfig) -> InputError:
    """Return the error of a budget that needs a profile, if there is none."""
    name = "batch_seconds" if config.batch_seconds is not None else "batch_bytes"
    return InputError(
        "order.budget_without_profile",
        f"{{{name}}} is a budget by a profile of the network: give a {{profile}}, or {{batch_voxels}}",
        setting=dict.fromkeys((name, "profile", "batch_voxels")),
    )


RunConfig.__doc__ = f"{RunConfig.__doc__}\n{listed(RunConfig)}\n    "
