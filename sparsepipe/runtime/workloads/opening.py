"""Open what a run trains: a network by name and a data set, brought together. The profiler opens them alike."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ... import data
from ...data.examples import ExampleDataset, is_examples, open_examples
from ...data.reach import reach
from ...engines import AUTO, Engine, engine
from ...errors import InputError
from ...functions import short_name
from ...io.fields import json_object
from ...io.told import tell
from ...losses import Loss, open_loss
from ...models import is_table, network
from ...models.base import AnyNetwork
from ..config import DataConfig

Dataset = ExampleDataset  # point clouds offer the same
_OF_PLAIN_MODULES = "torch"
_OF_SPARSE_MODULES = "minkowski"


@dataclass(frozen=True, eq=False)
class LearningTask:
    """A network with the engine that runs it, the data that it learns from, and the loss that judges it."""

    network: AnyNetwork
    engine: Engine
    training: Dataset
    validation: Dataset | None
    loss: Loss


def open_task(
    config: DataConfig,
    *,
    engine_name: str,
    seed: int,
    module: nn.Module | None = None,
    phases: Collection[bool] = (True,),
) -> LearningTask:
    """Open what the settings name. `module`: the network itself, in the place of one by name.

    `phases`: whether it is to train (True), to evaluate (False), or both; see `trace`. With validation it evaluates.

    Raises InputError for an unknown model, engine or data set, and for a network that cannot take the data.
    """
    training, validation = _open_splits(config, seed)
    if module is None and is_table(config.model):
        return _table_task(config, engine_name, training, validation)
    phases = {*phases, False} if validation is not None else phases
    return _module_task(config, engine_name, seed, training, validation, module, phases)


def check_settings(config: DataConfig, *, seed: int) -> None:
    """Raise InputError, as `open_task` does, where the data are not what the settings ask of them.

    Of a torch module the training split and the loss have been opened for its layers: the other split is left.
    """
    if not is_table(config.model):
        if config.validate:
            _open_data(config, config.validation_split, seed).look()
        return
    training, _ = _open_splits(config, seed)
    if config.loss or config.loss_args:
        _loss_of(config, training)


def open_training(config: DataConfig, seed: int) -> Dataset:
    """Return the split that is trained on, without a network. Raises InputError for data that are not there."""
    return _open_data(config, "train", seed)


def _open_splits(config: DataConfig, seed: int) -> tuple[Dataset, Dataset | None]:
    """Return the split that is trained on and, where there is to be one, that for validation."""
    training = _open_data(config, "train", seed)
    validation = _open_data(config, config.validation_split, seed) if config.validate else None
    for dataset in (training, validation):
        if dataset is not None:
            dataset.look()
    if validation is not None and validation.classes != training.classes:
        raise InputError("dataset.splits_differ", f"{config.data}: the splits have different classes")
    return training, validation


def _open_data(config: DataConfig, split: str, seed: int) -> Dataset:
    if is_examples(config.data):
        augmentation = config.augmentation if split == "train" else None
        options = json_object(config.data_args, "data_args")
        if taken := sorted(options.keys() & {"split", "seed", "cache", "augmentation"}):
            text = f"{{data_args}} has {taken[0]!r}, which a run gives by itself; call it otherwise"
            raise InputError("setting.data_args_reserved", text, setting="data_args")
        return open_examples(
            config.data, split=split, seed=seed, cache=config.cache, augmentation=augmentation, **options
        )
    return data.load(config.data, split=split, seed=seed, cache=config.cache, **config.of_clouds(split))


def _table_task(config: DataConfig, engine_name: str, training: Dataset, validation: Dataset | None) -> LearningTask:
    if not _has_clouds(training):
        raise InputError(
            "model.of_clouds", f"model {config.model} takes point clouds, {config.data} has examples of other kinds"
        )
    facts = training.facts
    net = network(config.model, num_classes=facts["num_classes"], in_channels=facts.get("in_channels", 1))
    chosen = engine(engine_name)
    near = [_near_origin(split, net.coarsest_stride, chosen) for split in (training, validation)]
    return LearningTask(net, chosen, near[0], near[1], _loss_of(config, training))


def _has_clouds(dataset: Dataset) -> bool:
    return isinstance(dataset, data.VoxelDataset) or isinstance(dataset.batch(first_samples(dataset)), data.PointBatch)


def first_samples(dataset: Dataset) -> Sequence[int]:
    """Return the samples on which a network is traced: two, so that batch norm has a variance."""
    return one_minibatch(dataset, range(min(2, len(dataset))))


def other_samples(dataset: Dataset) -> Sequence[int]:
    """Return the samples on which a network is compared with its trace: three, and in another order."""
    return one_minibatch(dataset, range(min(3, len(dataset)))[::-1])


def one_minibatch(dataset: Dataset, indices: Sequence[int]) -> Sequence[int]:
    """Return these samples; of pictures of several sizes, which are no minibatch, the middle one as often."""
    return [indices[(len(indices) - 1) // 2]] * len(indices) if dataset.size_unit == "pixels" else indices


def _near_origin(dataset: Any, steps: tuple[int, ...] | None, chosen: Engine) -> Any:
    """Return a split whose clouds the engine can hold: others are refused with their file when they are read."""
    if not isinstance(dataset, data.VoxelDataset):
        return dataset
    return dataset.near_origin(steps, reach=reach(chosen.name, 3))


def _module_task(
    config: DataConfig,
    engine_name: str,
    seed: int,
    training: Dataset,
    validation: Dataset | None,
    module: nn.Module | None,
    phases: Collection[bool],
) -> LearningTask:
    from ...models.traced import trace
    from ...models.traced.building import build_module

    facts = training.facts
    if module is None:
        args = json_object(config.model_args, "model_args")
        module = build_module(config.model, args, facts, seed=seed)
    chosen = engine(_engine_for(module, engine_name, config.model))
    training, validation = (_near_origin(split, None, chosen) for split in (training, validation))
    batch = training.batch(first_samples(training))
    if isinstance(batch, data.PointBatch) != chosen.takes_points:
        has = "point clouds" if isinstance(batch, data.PointBatch) else "plain tensors"
        raise InputError(
            "model.of_other_data",
            f"model {config.model} is of {chosen.name} modules, but {config.data} has {has}; `sparsepipe models` says "
            "what each network takes",
        )
    name, num_classes = short_name(config.model), facts.get("num_classes", 0)
    if isinstance(batch, data.PointBatch) and (changed := chosen.correct(module)):  # type: ignore[attr-defined]
        tell(f"{name}: {', '.join(changed)} pools in the mode that keeps samples apart, unlike the library's default")
    another = chosen.tensor(training.batch(other_samples(training)))
    options: dict[str, Any] = {"say": tell, "num_classes": num_classes, "another": another, "phases": phases}
    net = trace(module, chosen.tensor(batch), name=name, **options)
    return LearningTask(net, chosen, training, validation, _loss_of(config, training))


def _engine_for(module: nn.Module, asked: str, model: str) -> str:
    """Return the engine of a module's layers. Raises InputError where another is asked for."""
    sparse = any(type(child).__module__.startswith("Minkowski") for child in module.modules())
    own = _OF_SPARSE_MODULES if sparse else _OF_PLAIN_MODULES
    if asked not in (AUTO, own):
        raise InputError(
            "engine.of_modules", f"engine {asked!r} asked, but {model} is made of {own} modules: leave out the engine"
        )
    return own


def _loss_of(config: DataConfig, dataset: Dataset) -> Loss:
    """Return the loss that the settings name, by default the one that goes with the data."""
    args = json_object(config.loss_args, "loss_args")
    return open_loss(config.loss or dataset.loss, facts=dataset.facts, args=args)
