"""What to train and how: everything a run needs to know besides its plan. Each setting is one row of a table.

Its checks, its option, its control and its line on the page of settings come from that row (util/io/settings.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from os import PathLike, fspath
from typing import Any

from ..data.augmentation import AUGMENTATIONS, OF_IMAGES, is_combination
from ..data.crops import named_crop
from ..data.labels import TASKS
from ..data.minibatch_sizes import KEEP, LAST_MINIBATCH, MERGE
from ..data.order import ORDERS, SHUFFLE
from ..data.recipe import ALL, FEATURES, OCCUPANCY
from ..data.samplers import SAMPLERS
from ..engines import ENGINES
from ..errors import InputError
from ..networks.freezing import check_epochs
from ..networks.losses import LOSSES, METRICS
from ..records.run_progress import WorkloadFacts, workload_facts
from ..util.io.fields import MOST_MINIBATCHES, json_object, shown
from ..util.io.files import expanded
from ..util.io.functions import is_function, reference_to
from ..util.io.quantities import COUNT, SIZE, TIME, expected
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
from .learning_rate import LR_SCHEDULES, Arguments, LearningRate, check_arguments

OPTIMIZERS = ("sgd", "adam", "adamw", "lamb", "lion", "muon")
# Others by name, with their class of torch.optim.
TORCH_OPTIMIZERS = {
    "adadelta": "Adadelta",
    "adafactor": "Adafactor",
    "adagrad": "Adagrad",
    "adamax": "Adamax",
    "asgd": "ASGD",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "rprop": "Rprop",
}
PRECISIONS = ("float32", "bfloat16", "float16")
COMPRESSIONS = ("none", "zeros", "lossless", "bfloat16", "float16", "int8")
BUDGETS = ("batch_voxels", "batch_seconds", "batch_bytes")
BALANCES = ("voxels", "classes")
DEVICES = ("cpu", "cuda")
ON_LOST_HOST = ("replan", "wait")
REFUSE, SKIP, SPLIT, SPLIT_OR_SKIP = OVERSIZE = ("refuse", "skip", "split", "split-or-skip")
_SCORES = {"miou": "mean_iou", "point_miou": "point_mean_iou"}  # short names, which are taken too
_WEEK = 7 * 24 * 3600.0


@dataclass(frozen=True, repr=False)
class DataConfig(Settings):
    """Configure the network, the data set and the minibatches."""

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
            "data set: folder, name of a manifest, or path/data.py:function",
            unit="D",
        )
    )
    model_args: str | None = setting(
        None, JsonObject('{"width": 64}'), "arguments of the function that builds a torch module", unit="JSON"
    )
    data_args: str | None = setting(
        None,
        JsonObject('{"image_size": 64}'),
        "arguments of a data function, or options of an image or text data set",
        unit="JSON",
    )
    collate: str | None = setting(
        None,
        Text("'path/data.py:collate'"),
        "function that makes a minibatch of a data function's items",
        unit="F",
        words="the data set's collate_fn, else stacked or joined",
    )
    loss: str | None = setting(
        None,
        Choice(tuple(LOSSES), "path/loss.py:function", is_function),
        "loss function",
        unit="F",
        words="that of the data set",
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
        "maximum voxels per minibatch, instead of a number of samples; counted in the first epoch",
    )
    batch_seconds: float | None = setting(
        None,
        Amount(TIME),
        "maximum seconds per minibatch (forward and backward) on the slowest stage, from the profile",
        unit="S",
    )
    batch_bytes: float | None = setting(
        None,
        Amount(SIZE),
        "maximum activation memory per minibatch on one stage, from the profile",
        unit="BYTES",
    )
    num_points: int | str = setting(
        ALL,
        WholeNumber(1, word=ALL),
        "maximum number of points of a cloud, and number sampled from a mesh",
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
        None,
        Choice((*AUGMENTATIONS, *OF_IMAGES), "scans+flip", is_combination),
        "augmentation of the training split; those of clouds can be joined by +",
        unit="NAME[+NAME]",
    )
    crop: str | None = setting(
        None,
        Text("'sphere:radius=2,overlap=0.5'"),
        "part of a scene in metres, as cuboid:size=4, column:size=4 or sphere:radius=2: random in training, as many as "
        "cover the scene in evaluation",
        unit="KIND:OPTION=VALUE",
        words="whole scenes",
    )
    views: int = setting(
        1, WholeNumber(1, 64), "test-time augmentation: evaluated copies of each cloud, turned about z in equal steps"
    )
    sampler: str | None = setting(
        None,
        Choice(SAMPLERS, "path/data.py:sampler", is_function),
        "samples of an epoch, instead of each once: weighted draws by the data set's weights, else each class as often",
        unit="S",
    )
    shuffle: bool = setting(True, Flag(), "shuffling of the samples in each epoch", option="")
    balance: str | None = setting(
        None,
        Choice(BALANCES),
        "balance of minibatches: similar voxel counts (equal work for replicas), or similar class counts",
    )
    order: str = setting(
        SHUFFLE,
        Choice(ORDERS),
        "order of minibatches. shuffle: random; snake: windows sorted by size, alternately up and down; planned: "
        "nearly random, with neighbours of similar cost under the plan",
    )
    composition: str | None = setting(
        None, JsonObject('{"budget": 200000}'), "composition of minibatches, set at launch", option=""
    )
    last_minibatch: str = setting(
        MERGE,
        Choice(LAST_MINIBATCH),
        "smaller last minibatch of an epoch. keep: train it; merge: add a single sample to the previous minibatch, as "
        "batch norm needs several; drop: omit it",
    )
    validate: bool = setting(True, Flag(), "validation after each epoch", option="no_validation")
    validation_split: str = setting("test", Text("'test'"), "split for validation", unit="NAME")
    bleu_sentences: int = setting(64, WholeNumber(0), "number of sentences translated per checkpoint, for BLEU")
    cache: str | None = setting(
        None,
        Text("a folder, or 'off'"),
        "folder of prepared samples; off: no cache",
        unit="DIR",
        words="the user's cache",
    )

    def __post_init__(self) -> None:
        for name in ("data", "cache", "model", "loss", "collate", "sampler"):  # the latter may name a file's function
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
        if self.crop is not None:
            object.__setattr__(self, "crop", str(named_crop(self.crop)))
        if self.collate is not None and not is_function(self.collate):
            raise InputError(
                "setting.not_a_function",
                f"{{collate}} is {self.collate!r}, expected a function such as path/data.py:collate",
                setting="collate",
            )
        if self.sampler is not None and (self.is_composed or self.balance or not self.shuffle):
            raise InputError(
                "setting.sampler_and_order",
                "{sampler} determines the samples of an epoch and their order; omit it, or omit balance, budgets and "
                "order",
                setting="sampler",
            )
        if len(budgets := [name for name in BUDGETS if getattr(self, name) is not None]) > 1:
            text = f"{{{budgets[0]}}} and {{{budgets[1]}}} both limit a minibatch: give only one of them"
            raise InputError("setting.two_budgets", text, setting=dict.fromkeys(budgets))
        if self.is_composed and (self.balance or not self.shuffle):
            raise InputError(
                "setting.order_and_balance",
                f"{{{(budgets or ['order'])[0]}}} already draws at random and balances minibatches by size; omit it, "
                "or omit balance and the fixed order",
                setting=(budgets or ["order"])[0],
            )
        if self.balance and not self.shuffle:
            raise InputError(
                "setting.balance_and_shuffle",
                f"balancing by {self.balance} already shuffles minibatches; omit balance, or omit shuffle",
            )

    @property
    def is_composed(self) -> bool:
        """Return whether the sizes of samples determine the minibatches or their order."""
        return self.order != SHUFFLE or any(getattr(self, name) is not None for name in BUDGETS)

    @property
    def composition_asked(self) -> dict[str, object]:
        """Settings that determine `composition`."""
        return {name: getattr(self, name) for name in ("order", *BUDGETS)}


@dataclass(frozen=True, repr=False)
class OptimizerConfig(Settings):
    """Configure the length of the training, the optimizer and the learning rate.

    If `minibatches` is given, it determines the length of the run, and `epochs` is ignored.
    """

    epochs: int = setting(1, WholeNumber(1), "number of training epochs")
    accumulation: int | None = setting(
        None,
        WholeNumber(1, MOST_MINIBATCHES),
        "gradient accumulation: minibatches per weight update; of an asynchronous schedule rounds of the replicas",
        words="the plan's",
    )
    minibatches: int | None = setting(None, WholeNumber(1), "number of training minibatches, instead of epochs")
    optimizer: str = setting(
        "sgd",
        Choice((*OPTIMIZERS, *TORCH_OPTIMIZERS), "path/opt.py:Class", is_function),
        "optimizer",
        unit="O",
    )
    optimizer_args: str | None = setting(
        None,
        JsonObject('{"amsgrad": true}'),
        "arguments of an optimizer of torch.optim or of your own",
        unit="JSON",
    )
    parameter_groups: str | None = setting(
        None,
        JsonObject('{"*.bias": {"weight_decay": 0}, "head.*": {"learning_rate_factor": 10}}'),
        "settings of the weights that a pattern matches, by pattern; later patterns override earlier ones. Settings: "
        "learning_rate_factor, weight_decay, momentum, nesterov, betas, eps, optimizer, optimizer_args",
        unit="JSON",
    )
    decay_matrices_only: bool = setting(
        False, Flag(), "weight decay for weights of two or more dimensions only: none for biases and norms"
    )
    learning_rate: float = setting(0.01, Number(0, 1e300), "learning rate after the warm-up", unit="F")
    learning_rate_schedule: str = setting(
        "constant",
        Choice(tuple(LR_SCHEDULES), "path/schedule.py:function", is_function),
        "learning-rate schedule",
        unit="S",
    )
    schedule_args: str | None = setting(
        None,
        JsonObject('{"epochs": [30, 60]}'),
        "arguments of the schedule: epochs of milestones; rise, start and end of one-cycle; growth and least of "
        "cosine-restarts; patience and threshold of plateau; those of your own function",
        unit="JSON",
    )
    warmup_minibatches: int = setting(0, WholeNumber(0), "minibatches of linear learning-rate warm-up")
    learning_rate_decay: float = setting(
        0.1,
        Number(0, 1e300),
        "learning-rate factor of step, exponential, milestones and plateau; power of polynomial",
        unit="F",
    )
    decay_epochs: float = setting(
        30.0,
        Number(1e-06, 1000000000000000.0),
        "epochs between two learning-rate factors; first cycle of cosine-restarts",
    )
    momentum: float = setting(0.9, Number(0, 1), "momentum of sgd and muon", unit="F")
    nesterov: bool = setting(False, Flag(), "Nesterov momentum of sgd and muon")
    betas: tuple[float, ...] | None = setting(
        None,
        Several(Number(0, 1), "(0.9, 0.98)"),
        "decay rates of the moments of adam, adamw, lamb and lion",
        unit="F,F",
        words="0.9,0.999; of lion 0.9,0.99",
    )
    eps: float | None = setting(
        None,
        Number(0, 1),
        "term that keeps adam, adamw, lamb and muon from dividing by zero",
        unit="F",
        words="1e-8; of lamb 1e-6, of muon 1e-7",
    )
    weight_decay: float = setting(0.0, Number(0, 1e30), "weight decay", unit="F")
    clip_norm: float | None = setting(
        None,
        Number(0, 1e30, above=True),
        "maximum gradient norm of the network; asynchronous schedules clip each of n stages to NORM / sqrt(n)",
        unit="NORM",
        words="off",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.betas is not None:
            object.__setattr__(self, "betas", tuple(self.betas))  # JSON has lists
            if len(self.betas) != 2 or max(self.betas) == 1:
                raise InputError(
                    "setting.betas", f"{{betas}} is {self.betas}, expected two numbers below 1", setting="betas"
                )
        _ = self._groups  # refuses what is none
        check_arguments(self.learning_rate_schedule, json_object(self.schedule_args, "schedule_args"))

    @cached_property
    def _groups(self) -> tuple[tuple[str, Arguments], ...]:
        """The parameter groups: each pattern with its settings."""
        if self.parameter_groups is None:
            return ()
        groups = []
        for pattern, given in json_object(self.parameter_groups, "parameter_groups").items():
            where = f"parameter_groups {shown(pattern)}: "
            if not isinstance(given, dict):
                raise InputError(
                    "setting.group_malformed",
                    f'{where}{shown(given)}, expected an object of settings, such as "weight_decay": 0',
                    setting="parameter_groups",
                )
            if unknown := [name for name in given if name not in (*GROUP_SETTINGS, _FACTOR)]:
                raise InputError(
                    "setting.group_unknown",
                    f"{where}{expected(unknown[0], (*GROUP_SETTINGS, _FACTOR))}",
                    setting="parameter_groups",
                )
            if fault := Number(0, 1e30).fault(given.get(_FACTOR, 1.0)):
                raise InputError("setting.group_factor", f"{where}{_FACTOR} is {fault}", setting="parameter_groups")
            settings = {name: value for name, value in given.items() if name != _FACTOR}
            if isinstance(settings.get("optimizer_args"), dict):
                settings["optimizer_args"] = json.dumps(settings["optimizer_args"])
            try:
                OptimizerConfig(**settings)
            except InputError as error:
                raise error.within(where) from None
            groups.append((pattern, settings | ({_FACTOR: given[_FACTOR]} if _FACTOR in given else {})))
        return tuple(groups)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the parameter groups."""
        return tuple(pattern for pattern, _ in self._groups)

    def group_of(self, name: str, dimensions: int) -> tuple["OptimizerConfig", float]:
        """Return the settings of the group that a weight belongs to, and the factor on the learning rate.

        Args:
            name: The weight's name in the module's state_dict.
            dimensions: Its number of axes.
        """
        changes = {"weight_decay": 0.0} if self.decay_matrices_only and dimensions < 2 else {}
        for pattern, given in self._groups:
            if fnmatchcase(name, pattern):
                changes |= given
        factor = float(changes.pop(_FACTOR, 1.0))
        values = {item.name: getattr(self, item.name) for item in fields(OptimizerConfig)}
        settings = OptimizerConfig(**values | changes | {"parameter_groups": None})
        if settings.optimizer == "muon" and dimensions < 2:  # it steps matrices; AdamW's steps have the same size
            settings = replace(settings, optimizer="adamw")
        return settings, factor

    @property
    def rate(self) -> LearningRate:
        """The learning rate over the run."""
        return LearningRate(
            self.learning_rate,
            self.learning_rate_schedule,
            self.warmup_minibatches,
            self.learning_rate_decay,
            self.decay_epochs,
            json_object(self.schedule_args, "schedule_args"),
        )

    def total_minibatches(self, epoch_minibatches: int) -> int:
        """Return the number of minibatches of the run."""
        return self.epochs * epoch_minibatches if self.minibatches is None else self.minibatches


# What a parameter group may set, besides a factor on the learning rate.
GROUP_SETTINGS = ("optimizer", "optimizer_args", "weight_decay", "momentum", "nesterov", "betas", "eps")
_FACTOR = "learning_rate_factor"


@dataclass(frozen=True, repr=False)
class WeightsConfig(Settings):
    """Configure initial weights and frozen weights."""

    initial: str | None = setting(
        None,
        Text("'model.safetensors'"),
        "weights to start from: a safetensors file, a file of torch.save, a run or a checkpoint",
        unit="FILE",
        words="drawn from the seed",
    )
    allow_shape: bool = setting(
        False, Flag(), "weights of another shape than in the file of initial weights are drawn from the seed"
    )
    freeze: tuple[str, ...] = setting(
        (),
        Several(Text("'backbone.*'"), "('backbone.*',)"),
        "patterns of frozen weights: no gradient, no optimizer state. A batch norm whose running_mean matches "
        "keeps its statistics and normalizes with them. 'backbone.*@2': for the first 2 epochs",
        unit="PATTERN[,PATTERN]",
        words="none",
    )

    def __post_init__(self) -> None:
        if isinstance(self.freeze, list):
            object.__setattr__(self, "freeze", tuple(self.freeze))
        if isinstance(self.freeze, tuple):
            check_epochs([pattern for pattern in self.freeze if isinstance(pattern, str)])
        initial = self.initial
        if initial is not None and (isinstance(initial, PathLike) or str(initial).startswith("~")):
            object.__setattr__(self, "initial", fspath(expanded(initial)))
        super().__post_init__()


@dataclass(frozen=True, repr=False)
class NumericsConfig(Settings):
    """Configure the sparse-convolution backend, the random seed and the precision."""

    engine: str = setting(
        "auto",
        Text("'auto'", offered=tuple(ENGINES)),
        "sparse-convolution backend",
        words="native if it has machine code",
    )
    seed: int = setting(0, WholeNumber(0, 2**64), "random seed of initial weights, sampling and order")
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
        "initial loss scale of float16; halved on overflow, doubled after 2000 steps without overflow",
        unit="S",
    )
    synchronised_batch_norm: bool = setting(False, Flag(), "batch norm synchronized among the replicas of a stage")
    compression: str | None = setting(
        None,
        Choice(COMPRESSIONS),
        "encoding of activations at stage boundaries (zeros and lossless are exact)",
        words="lossless between hosts",
    )

    def __post_init__(self) -> None:
        if isinstance(self.float32_layers, list):
            object.__setattr__(self, "float32_layers", tuple(self.float32_layers))
        super().__post_init__()

    @property
    def workload(self) -> WorkloadFacts:
        """Return the workload of the workers with this engine: training, or emulation of a profile."""
        return workload_facts(self.engine)


@dataclass(frozen=True, repr=False)
class CheckpointConfig(Settings):
    """Configure when checkpoints are written, and how many are kept."""

    checkpoint_every: int = setting(1, WholeNumber(0), "epochs between checkpoints; 0: no checkpoints", unit="EPOCHS")
    keep_checkpoints: int = setting(2, WholeNumber(1), "number of newest checkpoints to keep")
    asynchronous_checkpoints: bool = setting(
        False, Flag(), "checkpoints written in the background, during the next epoch"
    )


@dataclass(frozen=True, repr=False)
class EvaluationConfig(Settings):
    """Configure the metrics of the validation, the best epoch, early stopping and callbacks."""

    metrics: tuple[str, ...] = setting(
        (),
        Several(Choice(METRICS, "path/file.py:function", is_function), "('f1', 'auc')"),
        "metrics of the validation in addition to those of the loss: F1, mean IoU, mean IoU of points by "
        "votes of crops and views, ROC AUC, confusion matrix, mean average precision of boxes",
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
    """Configure the device, memory, communication and timeouts of worker processes."""

    device: str = setting("cpu", Text("'cpu'", offered=DEVICES), "compute device")  # or cuda:1
    threads: int | None = setting(None, WholeNumber(1, 65536), "CPU threads of each process", words="shared evenly")
    memory_limit: float | None = setting(
        None,
        Amount(SIZE),
        "memory of each rank for weights and minibatches; larger minibatches recompute layers, by the profile",
        unit="BYTES",
        words="that of the device in the cluster",
    )
    oversize: str = setting(
        REFUSE,
        Choice(OVERSIZE),
        "action for what does not fit under the memory limit with all layers recomputed. refuse: end before the run "
        "starts; skip: train other samples in the place of too large ones; split: pass minibatches in parts, their "
        "gradients summed; split-or-skip: both",
    )
    fitting_sizes: str | None = setting(
        None, JsonObject('{"largest": 200000}'), "largest minibatch under the memory limit, set at launch", option=""
    )
    num_workers: int = setting(
        0, WholeNumber(0, 256), "processes that read minibatches ahead, for each rank that reads samples"
    )
    shared_memory: bool = setting(True, Flag(), "shared memory between processes of one host (otherwise sockets)")
    encrypt: bool = setting(False, Flag(), "TLS encryption between hosts")
    timeout_seconds: float = setting(300.0, Number(0.01, _WEEK), "maximum wait for another rank, in seconds", unit="S")
    max_restarts: int = setting(
        0, WholeNumber(0), "maximum number of restarts from the last checkpoint after a worker dies or hangs"
    )
    on_lost_host: str = setting(
        "replan",
        Choice(ON_LOST_HOST),
        "action after a node failure, with --max-restarts. replan: use the remaining hosts; wait: wait for the node",
    )
    # As --inject takes them (sparsepipe/values/stragglers), which may be given several times.
    stragglers: str | None = setting(
        None, Text("'slow:rank=1,factor=4'"), "injected stragglers", unit="KIND[:OPTION=VALUE,…]", option=""
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.memory_limit, str):
            object.__setattr__(self, "memory_limit", SIZE.read(self.memory_limit))
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
        "number of timed passes per layer",
        words="5, or up to 30 for short steps or until the layers add up to a step",
    )
    beside: int = setting(
        0, WholeNumber(0, 64), "number of other processes that run the same workload during profiling"
    )


PARTS: Mapping[str, type[Settings]] = {
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "weights": WeightsConfig,
    "numerics": NumericsConfig,
    "checkpoints": CheckpointConfig,
    "evaluation": EvaluationConfig,
    "processes": ProcessConfig,
}


# Python collects the fields of bases from the last to the first: model and data come first.
@dataclass(frozen=True, repr=False)
class RunConfig(
    ProcessConfig, EvaluationConfig, CheckpointConfig, NumericsConfig, WeightsConfig, OptimizerConfig, DataConfig
):
    """Configure a run: network, data, optimizer, weights, numerics, checkpoints, evaluation and processes.

    `batch_size` is the number of samples per minibatch; a step of a synchronous schedule has `num_microbatches`
    minibatches. Runs of one pipeline without replicas are bit-identical if `seed`, `threads` and versions are the same.

    Args:
        settings: Settings by name, listed below. `model` and `data` may be positional.

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
        """Parts of the configuration by name."""
        return {
            name: part(**{item.name: getattr(self, item.name) for item in fields(part)}) for name, part in PARTS.items()
        }

    @property
    def sampling(self) -> dict[str, object]:
        """Return the settings that determine the samples of a minibatch. They cannot change within an epoch."""
        names = ("batch_size", "last_minibatch", "seed", "shuffle", "balance", "order", "sampler")
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
        """Read the output of `to_json`. Raises InputError for an unknown or missing setting."""
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


@dataclass(frozen=True)
class FittingSizes:
    """Samples that fit under the memory limit, as `RunConfig.fitting_sizes` has it: decided at launch.

    `largest`: size of the largest minibatch; None: unknown. `left_out`: samples of the training split that do not fit.
    `names`: theirs. `part`: size of the largest part of a minibatch; larger minibatches are split. None: none is split.
    """

    largest: float | None = None
    left_out: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    part: float | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "FittingSizes":
        """Return what a launch has decided; of a run without a limit nothing."""
        if config.fitting_sizes is None or config.memory_limit is None:
            return cls()
        decided = json_object(config.fitting_sizes, "fitting_sizes")
        left_out, names = (tuple(decided.get(key, ())) for key in ("left_out", "names"))
        return cls(decided.get("largest"), left_out, names, decided.get("part"))


def without_profile(config: RunConfig) -> InputError:
    """Return the error of a budget that needs a profile, if there is none."""
    name = "batch_seconds" if config.batch_seconds is not None else "batch_bytes"
    return InputError(
        "order.budget_without_profile",
        f"{{{name}}} requires a profile of the network; give a {{profile}}, or use {{batch_voxels}}",
        setting=dict.fromkeys((name, "profile", "batch_voxels")),
    )


def limit_without_profile() -> InputError:
    """Return the error of a limit without what tells how much memory minibatches take."""
    return InputError(
        "memory.limit_without_profile",
        "{memory_limit} goes by the bytes of each layer in a profile of the network: give a {profile}",
        setting=dict.fromkeys(("memory_limit", "profile")),
    )


def check_limit_unit(profiled: str, unit: str) -> None:
    """Raise InputError if the sizes of a run's minibatches have another unit than those of its profile."""
    if profiled != unit:
        raise InputError(
            "memory.profile_of_other_unit",
            f"{{memory_limit}} goes by a profile that is measured in {profiled}, but samples are measured in {unit}; "
            "profile the network on these data",
            setting="memory_limit",
        )


RunConfig.__doc__ = f"{RunConfig.__doc__}\n{listed(RunConfig)}\n    "
