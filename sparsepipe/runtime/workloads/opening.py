"""Open what a run trains: a network by name and a data set, brought together. The profiler opens them in the same
way.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ... import data
from ...data.examples import ExampleDataset
from ...data.examples.own import OwnExamples
from ...data.folder import user_cache
from ...data.formats import Mesh
from ...data.labels import IGNORED
from ...data.predicted_points import POINT_METRIC, not_of_points
from ...data.reach import reach
from ...engines import AUTO, Engine, engine
from ...engines.subnetwork import frozen_network
from ...errors import InputError
from ...networks import network
from ...networks.base import AnyNetwork
from ...networks.losses import CrossEntropy, Loss, Segmentation, Tally
from ...networks.losses.classes import PixelCrossEntropy
from ...networks.losses.metrics import REPORTED, unknown_best
from ...networks.traced import verify
from ...util.derived import digest
from ...util.io.fields import json_object
from ...util.io.files import write_atomic
from ...util.io.functions import is_function, short_name
from ...util.io.options import tell
from ...values.plan import Plan
from .resolved import ResolvedRun

Dataset = ExampleDataset  # point clouds offer the same
_OF_PLAIN_MODULES = "torch"
_OF_SPARSE_MODULES = {"spconv.": "spconv", "Minkowski": "minkowski"}  # start of a class's module → engine


@dataclass(frozen=True, eq=False)
class LearningTask:
    """A network with the engine that runs it, the data that it learns from, and the loss that judges it."""

    network: AnyNetwork
    engine: Engine
    training: Dataset
    validation: Dataset | None
    loss: Loss


def open_task(run: ResolvedRun, *, phases: Collection[bool] = (True,), validates: bool | None = None) -> LearningTask:
    """Open what the settings of a run name.

    `phases`: whether it is to train (True), to evaluate (False), or both; see `trace`. With validation it evaluates:
    `validates`, what the settings say unless given.
    Raises InputError for an unknown model, engine or data set, and for a network that cannot take the data.
    """
    training = run.data.training
    validation = run.data.validation if (run.config.validate if validates is None else validates) else None
    if run.is_table:
        return _table_task(run, training, validation)
    return _module_task(run, training, validation, {*phases, False} if validation is not None else phases)


def check_settings(run: ResolvedRun) -> None:
    """Raise InputError, as `open_task` does, where the data are not what the settings ask of them.

    Of a torch module the training split and the loss have been opened for its layers: the other split is left.
    """
    if run.config.validate:
        _ = run.data.validation
        if POINT_METRIC in run.config.metrics:
            split = point_split(run.data.validation)
            if isinstance(split.folder.read(split.folder.split(split.split)[0]), Mesh):
                raise not_of_points(run.config.data)
    if run.is_table:
        _ = run.loss if run.config.loss or run.config.loss_args else run.data.training


def point_split(dataset: Dataset | None) -> data.VoxelDataset:
    """Return the split whose points have classes. Raises InputError if it has none, or no points."""
    clouds = dataset.clouds if isinstance(dataset, OwnExamples) else dataset
    if not isinstance(clouds, data.VoxelDataset) or clouds.targets_are_labels:
        raise not_of_points("the validation split")
    return clouds


def check_best(run: ResolvedRun) -> None:
    """Raise InputError if no validation of a run will report the score that `best` names.

    That is a score of another name, or of a metric that counts labelled items, if the split has none.
    """
    config, loss = run.config, run.loss
    best, of_metrics = config.best, {score for name in config.metrics for score in REPORTED.get(name, ())}
    if best is None:
        return
    if best in of_metrics:
        split = run.data.validation
        order = data.minibatches(len(split), batch_size=config.batch_size, shuffle=False)
        if not any(_has_labels(loss, split.batch(indices)) for indices in order):
            raise InputError(
                "setting.best_unlabelled",
                f"{{best}} is {best!r}, but nothing in split {config.validation_split} of {config.data} has a label; "
                "name another score, such as loss, or another {validation_split}",
                setting=dict.fromkeys(("best", "validation_split")),
            )
        return
    knows_all = isinstance(loss, CrossEntropy | Segmentation) and not any(map(is_function, config.metrics))
    scores = {**Tally(loss).report(), **dict.fromkeys(sorted(of_metrics))}
    translates = {"begin", "end"} <= run.data.validation.facts.keys()  # which adds its BLEU
    if knows_all and not translates and best not in scores:
        raise unknown_best(best, scores)


def _has_labels(loss: Loss, batch: Any) -> bool:
    """Return whether a metric counts an item of a minibatch. Of targets that are no classes nothing is known."""
    target = batch.labels if isinstance(batch, data.PointBatch) else batch.target
    target = loss.known(target) if isinstance(loss, PixelCrossEntropy) else target
    return not isinstance(target, Tensor) or bool((target != IGNORED).any())


def _table_task(run: ResolvedRun, training: Dataset, validation: Dataset | None) -> LearningTask:
    config = run.config
    if not _has_clouds(training):
        raise InputError(
            "model.of_clouds",
            f"model {config.model} needs point clouds, but {config.data} contains other data; choose another "
            "model or data set",
        )
    facts = training.facts
    net = network(config.model, num_classes=facts["num_classes"], in_channels=facts.get("in_channels", 1))
    chosen = engine(config.engine)
    if config.freeze:
        net = frozen_network(net, chosen, config.freeze)
    near = [_near_origin(split, net.coarsest_stride, chosen) for split in (training, validation)]
    return LearningTask(net, chosen, near[0], near[1], run.loss)


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
    run: ResolvedRun, training: Dataset, validation: Dataset | None, phases: Collection[bool]
) -> LearningTask:
    from ...networks.traced import trace
    from ...networks.traced.building import build_module, freeze

    config, module, facts = run.config, run.module, training.facts
    if module is None:
        args = json_object(config.model_args, "model_args")
        module = build_module(config.model, args, facts, seed=config.seed)
    if config.freeze:
        freeze(module, config.freeze)
    chosen = engine(_engine_for(module, config.engine, config.model))
    training, validation = (_near_origin(split, None, chosen) for split in (training, validation))
    batch = training.batch(first_samples(training))
    if not (chosen.takes_points if isinstance(batch, data.PointBatch) else chosen.takes_examples):
        has = "point clouds" if isinstance(batch, data.PointBatch) else "plain tensors"
        raise InputError(
            "model.of_other_data",
            f"model {config.model} consists of {chosen.name} modules, but {config.data} has {has}; `sparsepipe "
            "models` lists the data of each network",
        )
    name, num_classes = short_name(config.model), facts.get("num_classes", 0)
    if isinstance(batch, data.PointBatch) and (changed := chosen.correct(module)):  # type: ignore[attr-defined]
        tell(f"{name}: {', '.join(changed)} pools each sample separately, unlike the library's default")
    another = chosen.tensor(training.batch(other_samples(training)))
    options: dict[str, Any] = {"say": tell, "num_classes": num_classes, "another": another, "phases": phases}
    net = trace(module, chosen.tensor(batch), name=name, **options)
    return LearningTask(net, chosen, training, validation, run.loss)


def _engine_for(module: nn.Module, asked: str, model: str) -> str:
    """Return the engine of a module's layers. Raises InputError if another is asked for."""
    homes = {kind.__module__ for child in module.modules() for kind in type(child).__mro__}
    engines_of = (
        engine_of for start, engine_of in _OF_SPARSE_MODULES.items() if any(home.startswith(start) for home in homes)
    )
    name = next(engines_of, _OF_PLAIN_MODULES)
    if asked not in (AUTO, name):
        raise InputError(
            "engine.of_modules", f"engine {asked!r} requested, but {model} consists of {name} modules; omit the engine"
        )
    return name


_COMPARISON = 2  # counts up where more is compared: what passed before is compared again


def verify_once(task: LearningTask, plan: Plan, run: ResolvedRun) -> bool:
    """Compare the plan's stages with the network in one piece: outputs, gradients and buffers, training and not.

    On other samples than it was traced on, and on a single one where a minibatch of the run has one.
    What was compared before, the same code cut at the same places, is not compared again. Returns whether it was now.
    Raises InputError that names the first layer that differs.
    """
    config, stages = run.config, [stage.layers for stage in plan.stages]
    mark = user_cache() / "verified" / _digest(stages, run)
    if mark.exists():
        return False
    sizes = data.sizes(len(task.training), config.batch_size, last=config.last_minibatch)
    for samples in (other_samples(task.training), range(1)) if 1 in sizes else (other_samples(task.training),):
        inputs = task.engine.tensor(task.training.batch(samples))
        try:
            verify(task.network, inputs, engine=task.engine, stages=stages)  # type: ignore[arg-type]  # a traced one
        except InputError:
            raise
        except Exception:
            if len(samples) > 1:
                raise  # else the module takes no single sample, which the run says when it comes to it
    tell(f"{task.network.name}: it is the same network when cut into the stages of the plan ({len(stages)})")
    write_atomic(mark, "")
    return True


def _digest(stages: Sequence[Sequence[str]], run: ResolvedRun) -> str:
    """A name for what is compared: the code, what it is given, the example's form, the cuts, the library."""
    config, function = run.config, run.functions.get("model")
    code = function.sha256() if function else config.model
    given: list[object] = [config.model, config.model_args, config.data, config.data_args, *config.freeze]
    return digest([_COMPARISON, code, given, [list(stage) for stage in stages], str(torch.__version__)])
