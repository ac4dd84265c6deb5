"""What the strings of a run's settings mean: decided once, for launchers, workers and the profiler in the same way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...data.augmentation import named_augmentation
from ...data.crops import named_crop
from ...data.describing import check_split
from ...data.examples.recognising import is_examples
from ...data.folder import find, open_folder
from ...data.labels import SEGMENTATION
from ...data.layouts import DataFolder
from ...data.recipe import Recipe
from ...data.samplers import class_weights
from ...errors import InputError
from ...networks import is_table, network
from ...networks.losses import open_loss
from ...records.run_progress import WorkloadFacts
from ...util.io.fields import json_object
from ...util.io.functions import UserFunction, functions_of
from ...util.io.options import tell
from ..config import RunConfig

if TYPE_CHECKING:  # they bring torch, for which nobody who launches a table need wait
    from torch import nn

    from ...data.examples import ExampleDataset
    from ...networks.losses import Loss

_BALANCED = "balanced"  # as class weights: each class counts as much
_OF_RUNS = ("split", "seed", "cache", "augmentation", "collate")  # options of a data set that a run gives by itself


@dataclass(frozen=True, eq=False)
class RunData:
    """The data set that the settings of a run name. Each part is opened when it is first asked for, and once.

    Raises InputError then for data that do not exist, or not such as the settings ask for.
    """

    config: RunConfig

    @cached_property
    def has_examples(self) -> bool:
        """Return whether samples are images, texts or the user's own; else they are point clouds."""
        return is_examples(self.config.data)

    @cached_property
    def folder(self) -> DataFolder:
        """The files of point clouds. A data set that is made when it is first opened is made now."""
        return open_folder(find(self.config.data))

    @cached_property
    def training(self) -> "ExampleDataset":
        """The split that is trained on; point clouds offer the same as examples."""
        return self._open_split("train")

    @cached_property
    def validation(self) -> "ExampleDataset":
        """The split that is validated on, for runs that validate."""
        opened = self._open_split(self.config.validation_split)
        if opened.classes != self.training.classes:
            raise InputError(
                "dataset.splits_differ",
                f"{self.config.data}: the splits have different classes; correct the class lists",
            )
        return opened

    def check_clouds(self, splits: Iterable[str], *, engine: str, steps: tuple[int, ...] | None) -> None:
        """Raise InputError for the first point cloud of these splits that a run would refuse, without torch.

        `steps`: voxels by which the network can move clouds. See `data.soundness.check_split` for what it costs.
        """
        for split in splits:
            check_split(
                self.folder,
                split,
                recipe=self._recipe(split),
                task=self._task,
                engine=engine,
                steps=steps,
                cache=self.config.cache,
                tell=tell,
            )

    def _open_split(self, split: str) -> "ExampleDataset":
        config = self.config
        opened: ExampleDataset
        if self.has_examples:
            if of_clouds := [name for name in ("crop", "views") if name in config.chosen]:
                raise InputError(
                    "setting.of_clouds",
                    f"{{{of_clouds[0]}}} applies only to point cloud files, which {config.data} does not contain; "
                    "omit it, and crop or copy in the data function",
                    setting=of_clouds[0],
                )
            from ...data.examples import open_examples  # here: it brings torch

            options = json_object(config.data_args, "data_args")
            if taken := sorted(options.keys() & set(_OF_RUNS)):
                text = f"{{data_args}} has {taken[0]!r}, which the run sets itself; rename this argument"
                raise InputError("setting.data_args_reserved", text, setting="data_args")
            opened = open_examples(
                config.data,
                split=split,
                seed=config.seed,
                cache=config.cache,
                augmentation=self._augmentation(split),
                collate=config.collate,
                **options,
            )
        else:
            if config.collate is not None:
                raise InputError(
                    "dataset.no_collate",
                    f"{{collate}} given, but {config.data} contains point cloud files; use collate only with a data "
                    "function",
                    setting="collate",
                )
            from ...data.dataset import VoxelDataset  # here: it brings torch

            recipe = self._recipe(split)
            opened = VoxelDataset(self.folder, split, recipe=recipe, task=self._task, cache=config.cache)
        opened.look()
        return opened

    def _recipe(self, split: str) -> Recipe:
        config, augmentation = self.config, named_augmentation(self._augmentation(split))
        return Recipe(
            config.voxel_size,
            config.num_points,
            config.seed,
            config.features,
            augmentation,
            named_crop(config.crop),
            config.views,
        )

    def _augmentation(self, split: str) -> str | None:
        return self.config.augmentation if split == "train" else None

    @property
    def _task(self) -> str | None:
        return self.config.task or (SEGMENTATION if SEGMENTATION in self.config.model else None)


@dataclass(frozen=True, eq=False)
class ResolvedRun:
    """Network, data, loss and workload that the settings of a run name, and the unit of its minibatches' sizes.

    Each is decided when it is first asked for, and then stays. If `config` is replaced by other settings of the
    same network and data, what is open stays open.
    Raises InputError, if it is asked for, for what does not exist or does not fit.
    """

    config: RunConfig
    data: RunData
    module: "nn.Module | None" = None  # the network itself, in the place of one by name

    @property
    def workload(self) -> WorkloadFacts:
        """Work of the workers: training, or sleeping for profiled times."""
        return self.config.workload

    @cached_property
    def is_table(self) -> bool:
        """Return whether the network is a table of rows; else it is a torch module."""
        return self.module is None and is_table(self.config.model)

    @cached_property
    def functions(self) -> Mapping[str, UserFunction]:
        """The user's own functions by the settings that name them; those of metrics are metrics.0, metrics.1."""
        return functions_of(vars(self.config))

    @property
    def counts_classes(self) -> bool:
        """Return whether the loss weighs classes by how often they occur."""
        return json_object(self.config.loss_args, "loss_args").get("class_weights") == _BALANCED

    @cached_property
    def loss_args(self) -> dict[str, object]:
        """The arguments of the loss; of class weights that are to be balanced their numbers."""
        args = json_object(self.config.loss_args, "loss_args")
        if not self.counts_classes:
            return args
        training = self.data.training
        return args | {"class_weights": class_weights(training, int(training.facts["num_classes"]))}

    @cached_property
    def loss(self) -> "Loss":
        """The loss that the settings name, by default the one that goes with the data."""
        training = self.data.training
        return open_loss(self.config.loss or training.loss, facts=training.facts, args=self.loss_args)

    @property
    def size_unit(self) -> str:
        """Unit of a minibatch's size: one of SIZE_UNITS (util/text/numbers.py)."""
        return self.data.training.size_unit

    def check_clouds(self, splits: Iterable[str], *, engine: str) -> None:
        """Raise InputError for the first point cloud of these splits that a run would refuse, without torch."""
        steps = network(self.config.model, num_classes=2).coarsest_stride if self.is_table else None
        self.data.check_clouds(splits, engine=engine, steps=steps)


def resolve(config: RunConfig | ResolvedRun, module: "nn.Module | None" = None) -> ResolvedRun:
    """Return what the settings of a run, or of a profile, name; what is resolved already as it is.

    `module`: the network itself, in the place of one by name.
    """
    return config if isinstance(config, ResolvedRun) else ResolvedRun(config, RunData(config), module)
