"""Learning from data: any network, any data set, any loss, and which samples each minibatch holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ... import data
from ...data.examples.base import ExampleBatch
from ...data.examples.collate import OFFSET
from ...data.examples.own import OwnExamples
from ...data.predicted_points import POINT_METRIC, PointVotes, joined
from ...data.samplers import checked_indices, dealt, draw, repeated, split_by_size, substituted
from ...engines import Engine
from ...engines.allocator import return_freed_memory
from ...errors import InputError
from ...networks.base import AnyNetwork
from ...networks.freezing import matching
from ...networks.losses import Loss, Segmentation, Tally
from ...networks.losses.base import described, further_outputs, main_output
from ...networks.losses.classes import PixelCrossEntropy
from ...networks.losses.metrics import Measures
from ...networks.losses.of_users import UserLoss
from ...records.run_progress import LEARNING, WorkloadFacts
from ...util.derived import digest
from ...util.io.fields import json_object
from ...util.io.options import tell
from ...util.text.numbers import number_of
from ...values.plan import Plan
from ..config import BUDGETS, Composition, FittingSizes, RunConfig
from ..stages.base import Position
from ..stages.kept_tensors import HostMemory
from ..stages.memory_limit import RankMemory
from ..stages.network_stage import NetworkStage
from ..stages.scene_parts import check_shares_scenes
from ..training_state.checkpoint import Checkpoint, without_prefix
from ..training_state.checkpoint_folders import INITIAL
from ..training_state.initial_weights import InitialWeights, Match, StateNames, renamed
from ..training_state.parameter_groups import open_optimizer
from ..training_state.weights import validated_weights
from .base import Rows
from .opening import Dataset, LearningTask, open_task, point_split
from .reading import KEPT, ReadOnce
from .resolved import ResolvedRun, resolve

_BLEU = ("bleu", "bleu_sentences")  # of networks/losses/texts.py, which needs a package that other data do without


@dataclass(frozen=True, eq=False)
class Learning:
    """The workload that trains: the member of `Workload` (base.py) for point clouds, images, texts and all else."""

    config: RunConfig
    task: LearningTask
    run_dir: Path | None = None  # which has the weights that the run starts from
    facts: ClassVar[WorkloadFacts] = LEARNING

    @classmethod
    def open(cls, config: RunConfig, *, trains: bool = True, run_dir: Path | None = None) -> "Learning":
        """`trains`: unless the network is to compute outputs alone. `run_dir`: of a run that may start from weights.

        Raises InputError for an unknown model, engine or data set, and for a network that cannot take the data.
        """
        phases = (True,) if trains else (False,)
        if trains and config.memory_limit is not None and config.device == "cpu":
            return_freed_memory()
        return cls(config, open_task(resolve(config), phases=phases), run_dir if trains else None)

    @property
    def network(self) -> AnyNetwork:
        return self.task.network

    @property
    def engine(self) -> Engine:
        return self.task.engine

    @cached_property
    def training(self) -> Any:
        return self._shared(self.task.training)

    @cached_property
    def validation(self) -> Any:
        return self._shared(self.task.validation) if self.task.validation is not None else None

    def _shared(self, dataset: Dataset) -> Any:
        """Return a split that reads each minibatch once, where more than one thread asks for it, or processes read."""
        processes = self.reading_processes
        if processes and isinstance(dataset, OwnExamples) and dataset.in_order:
            tell(f"{self.config.data}: an iterable data set is read by one process only")
            processes = 1
        return ReadOnce(dataset, processes) if processes or not dataset.targets_are_labels else dataset

    @property
    def reading_processes(self) -> int:
        return self.config.num_workers

    def parts(self, samples: Any, indices: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the samples of each part in which a minibatch passes: by their sizes before augmentation."""
        if self._fitting.part is None or samples is not self.training:
            return (indices,)
        return split_by_size(indices, [self._sizes[index] for index in indices], self._fitting.part)

    @cached_property
    def _fitting(self) -> FittingSizes:
        return FittingSizes.of(self.config)

    @cached_property
    def _sizes(self) -> Sequence[int]:
        return self.task.training.sample_sizes()

    def begin_batch(self, samples: Any, indices: Sequence[int], epoch: int) -> Any:
        ahead = isinstance(samples, ReadOnce) and self.reading_processes
        return samples.begin(indices, epoch=epoch) if ahead else samples.batch(indices, epoch=epoch)

    def runner(self, plan: Plan, position: Position) -> NetworkStage:
        """Return what runs this rank's layers, warmed up: its kernels are chosen before the ranks first meet."""
        runner = NetworkStage(
            self.network,
            self.engine,
            plan,
            position.stage,
            config=self.config,
            device=position.device,
            loss=self.loss,
            per_voxel=self._of_voxels,
            compression=position.compression,
            scenes=position.scenes,
        )
        host = self._host(position.device)
        if (memory := self._memory(plan, position.rank, host)) is not None:
            runner.limit(memory, host)
        if self.config.patterns:
            matching(self.config.patterns, self.state_names.shapes, setting="parameter_groups")
        if self.config.initial is not None and self.run_dir is not None:
            self._initial_weights(self.run_dir / INITIAL).load_into(runner.module)
        if self.labels_are_read:
            steps = 2 * plan.num_microbatches if self.loss.items is not None and plan.updates_by_step else 0
            largest, part = self._fitting.largest, self._fitting.part
            parts = 2 * math.ceil(largest / part) if largest and part else 1
            self.training.keep((KEPT + steps) * parts - KEPT)
        first = partial(self.training.batch, self.order(0)[0])
        self.engine.warm_up(runner.module, first, position.device, half=runner.half)
        return runner

    @lru_cache(maxsize=1)  # noqa: B019 - a workload lives as long as its process
    def _memory(self, plan: Plan, rank: int, host: HostMemory | None) -> RankMemory | None:
        """Return what limits the memory of a rank: all of its stages under a plan share it."""
        return RankMemory.of_run(plan, rank, self.config, self.run_dir, size_unit=self.size_unit, host=host)

    @lru_cache(maxsize=1)  # noqa: B019 - a workload lives as long as its process
    def _host(self, device: torch.device) -> HostMemory | None:
        """Return the memory to which tensors of a GPU may move."""
        return HostMemory(device) if device.type == "cuda" else None

    @cached_property
    def state_names(self) -> StateNames:
        return StateNames.of_network(self.network, self.engine)

    @lru_cache(maxsize=1)  # noqa: B019 - a workload lives as long as its process
    def _initial_weights(self, path: Path) -> InitialWeights:
        return InitialWeights(path, self.network, self.state_names, allow_shape=self.config.allow_shape)

    def check(self, plan: Plan) -> None:
        """Raise InputError if the plan is not one for this network, or shares scenes that its layers need whole."""
        plan.check(self.network.graph())
        if any(stage.shares_scenes for stage in plan.stages):
            check_shares_scenes(self.network, self.engine, plan, own_loss=isinstance(self.loss, UserLoss))

    @property
    def score_names(self) -> tuple[str, ...]:
        count, split = self.config.bleu_sentences, self.task.validation
        translates = split is not None and {"begin", "end"} <= split.facts.keys() and hasattr(split, "decode")
        return _BLEU if count and translates else ()

    def scores(self, found: Checkpoint) -> dict[str, float | None]:
        """Return the BLEU of translations by the checkpoint's weights, where the data are pairs of sentences."""
        count, split = self.config.bleu_sentences, self.task.validation
        if not self.score_names or split is None:
            return {}
        from ...networks.losses.texts import bleu
        from ...networks.traced.building import build_module

        config = self.config
        args = json_object(config.model_args, "model_args")
        module = build_module(config.model, args, self.task.training.facts, seed=config.seed)
        held = found.read(list(found.manifest["layers"]))
        state = validated_weights(held) | without_prefix(held, "buffer:")
        module.load_state_dict(state, strict=False)  # a parameter with two names is there by one
        vocabulary: Any = split  # it writes words out
        return bleu(module, split, vocabulary=vocabulary, most_sentences=count)

    def tally(self) -> Tally:
        if not self.config.metrics:
            return Tally(self.loss)
        votes = PointVotes(point_split(self.task.validation)) if POINT_METRIC in self.config.metrics else None
        return Tally(self.loss, Measures(self.config.metrics, votes))

    @property
    def loss(self) -> Loss:
        return self.task.loss

    @property
    def model(self) -> str:
        return self.network.name

    @property
    def engine_name(self) -> str:
        return self.engine.name

    @property
    def synthetic(self) -> bool:
        return self.task.training.synthetic

    @property
    def size_unit(self) -> str:
        return self.task.training.size_unit

    @property
    def num_classes(self) -> int:
        return int(self.task.training.facts.get("num_classes", 0))

    @property
    def labels_are_read(self) -> bool:
        """Return whether targets are in the files: all but classes of whole samples, which their folders say."""
        return not self.task.training.targets_are_labels

    @property
    def _of_voxels(self) -> bool:
        """Return whether voxels have classes, which files say, not samples."""
        return isinstance(self.loss, Segmentation)

    @property
    def num_samples(self) -> int:
        return len(self.task.training)

    def sample_name(self, index: int) -> str:
        return self.task.training.name(index)

    @property
    def data_digest(self) -> str:
        splits = (self.task.training, self.task.validation)
        return digest([split.origin for split in splits if split is not None])

    @property
    def epoch_minibatches(self) -> int:
        if self._composition.budget is not None or self._draws:
            return len(self.order(0))  # all epochs have as many
        return len(data.sizes(self.num_samples, self.config.batch_size, last=self.config.last_minibatch))

    @property
    def mean_samples(self) -> float | None:
        """Samples of a mean minibatch under a budget: with n samples one weighs n over this, so that the gradients of
        an epoch add up to those of minibatches of equal numbers of samples.
        """
        if self._composition.budget is None:
            return None
        return self.num_samples / self.epoch_minibatches

    @cached_property
    def _composition(self) -> Composition:
        return Composition.of(self.config)

    @property
    def total_minibatches(self) -> int:
        return self.config.total_minibatches(self.epoch_minibatches)

    @lru_cache(maxsize=2)  # noqa: B019 - a workload lives as long as its process
    def order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Return the samples of each training minibatch of an epoch: the same on every rank.

        Others are trained in the place of those that the launch left out because they are too large.
        """
        minibatches, left_out = self._whole_order(epoch), self._fitting.left_out
        if not left_out:
            return minibatches
        return substituted(minibatches, left_out, num_samples=self.num_samples, seed=self.config.seed, epoch=epoch)

    def _whole_order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Return the samples of each training minibatch of an epoch if all of them fit into memory.

        If sizes decide, every rank reads all samples once to know theirs; sequences are bucketed: a minibatch holds
        those of like length, so that little of it is padding.
        """
        config, samples = self.config, self.task.training
        if isinstance(samples, OwnExamples) and samples.in_order:
            return self._in_order(samples)
        if self._draws:
            return self._dealt(epoch)
        if config.is_composed:
            return composed(config, samples, epoch=epoch)
        options: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "epoch": epoch}
        options["last"] = config.last_minibatch
        if config.balance == "voxels":
            return data.voxel_balanced_minibatches(samples.sample_sizes(), **options)
        if config.balance == "classes":
            return data.class_balanced_minibatches(samples.labels, **options)
        if samples.size_unit == "tokens" and config.shuffle:
            return data.bucketed_minibatches(samples.sample_sizes(), **options)
        return data.minibatches(self.num_samples, **options, shuffle=config.shuffle)

    @cached_property
    def _draws(self) -> bool:
        """Return whether a sampler says which samples an epoch visits: that of the settings, else the data set's."""
        samples = self.task.training
        return self.config.sampler is not None or (
            isinstance(samples, OwnExamples) and not samples.in_order and samples.drawn(0) is not None
        )

    def _dealt(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Return the minibatches of the samples that a sampler draws. Raises InputError if epochs differ in number."""
        config, samples = self.config, self.task.training
        name = config.sampler or f"the sampler of {config.data}"
        weights = samples.weights if isinstance(samples, OwnExamples) else None
        if config.sampler is not None:
            drawn = draw(config.sampler, samples, weights=weights, seed=config.seed, epoch=epoch)
        else:
            assert isinstance(samples, OwnExamples), "who else has a sampler of its own"
            if config.balance or config.is_composed:
                raise InputError(
                    "setting.sampler_and_order",
                    f"{name} determines the samples of an epoch and their order; omit balance, order and budgets, or "
                    "omit the data set's sampler",
                )
            drawn = repeated(lambda: checked_indices(samples.drawn(epoch) or (), len(samples), name), name)
        minibatches = dealt(drawn, batch_size=config.batch_size, last=config.last_minibatch)
        if epoch and len(minibatches) != len(self.order(0)):
            raise InputError(
                "sampler.epochs_differ",
                f"{name}: returns {number_of(len(minibatches), 'minibatch')} in epoch {epoch}, but "
                f"{len(self.order(0))} in epoch 0; return the same number in every epoch",
            )
        return minibatches

    def _in_order(self, samples: OwnExamples) -> tuple[tuple[int, ...], ...]:
        """Return the minibatches of an iterable data set, in its order. Raises InputError if another is asked."""
        config = self.config
        if config.balance or config.is_composed or config.sampler or self._fitting.left_out or self._fitting.part:
            raise InputError(
                "own_data.in_order",
                f"{config.data}: an iterable data set has a fixed order; omit sampler, balance, order, budgets and "
                "oversize, or add __getitem__ and __len__ to the data set",
            )
        options: dict[str, Any] = {"batch_size": config.batch_size, "last": config.last_minibatch}
        return data.minibatches(self.num_samples, **options, shuffle=False)

    def validation_order(self) -> tuple[tuple[int, ...], ...]:
        assert self.task.validation is not None
        size = self.config.batch_size if self.mean_samples is None else max(1, int(self.mean_samples))
        return data.minibatches(len(self.task.validation), batch_size=size, shuffle=False)

    def labels(self, samples: Any, indices: Sequence[int], epoch: int) -> Any:
        """Return the targets of samples: classes of clouds, int64 [B], without reading them; those of voxels [N] in the
        engine's order; else what the data set gives.
        """
        if not self.labels_are_read:
            return self._all_labels[samples.split][list(indices)]
        batch = samples.batch(indices, epoch=epoch)
        if not isinstance(batch, data.PointBatch) or not batch.per_voxel:
            loss = self.loss  # what it ignores, metrics ignore
            return loss.known(batch.target) if isinstance(loss, PixelCrossEntropy) else batch.target
        return batch.labels[self._voxel_order(batch)]

    def _voxel_order(self, batch: data.PointBatch) -> Tensor:
        """Return which of a minibatch's voxels each row of the engine's tensor is, int64 [N]."""
        places = torch.arange(batch.num_voxels, dtype=torch.float32)[:, None]
        return self.engine.features(self.engine.tensor(replace(batch, features=places)))[:, 0].long()

    def rows(self, samples: Any, indices: Sequence[int], output: Any) -> Rows:
        """Return the rows of samples, or of their voxels where these have classes, as the data set has them.

        Raises InputError for a network whose output has no row for each.
        """
        found, numbers = main_output(output).cpu(), torch.tensor(tuple(indices), dtype=torch.int64)
        batch = samples.batch(indices) if self._of_voxels or self.size_unit == "points" else None
        if isinstance(batch, ExampleBatch) and isinstance(batch.inputs, dict) and OFFSET in batch.inputs:
            return Rows(found, _samples_of_points(found, batch.inputs[OFFSET], numbers))
        if self._of_voxels and batch is not None:
            ordered = torch.empty_like(found)
            ordered[self._voxel_order(batch)] = found
            return Rows(ordered, numbers[batch.coordinates[:, 0].long()])
        if not found.dim() or len(found) != len(numbers):
            raise InputError(
                "model.row_count",
                f"the network returns {described(found)} for {number_of(len(numbers), 'sample')}; expected one row "
                "per sample",
            )
        found = found.movedim(1, -1) if isinstance(self.loss, PixelCrossEntropy) else found
        others = {name: each.cpu() for name, each in further_outputs(output, count=len(numbers)).items()}
        return Rows(found, numbers, others)

    def addresses(self) -> dict[str, Any]:
        """Return the names of the validation split's samples and, of voxels, their coordinates and their points."""
        split = self.task.validation
        assert split is not None
        names = {"name": np.array([split.name(index) for index in range(len(split))])}
        if not self._of_voxels:
            return names
        clouds = split.clouds if isinstance(split, OwnExamples) else split
        if isinstance(clouds, data.VoxelDataset):
            return names | joined([clouds.address(index) for index in range(len(clouds))])
        if split.size_unit == "points":
            return names
        voxels = [split.batch([index]).coordinates[:, 1:].numpy() for index in range(len(split))]
        return names | {"coordinates": np.concatenate(voxels)}

    @cached_property
    def _all_labels(self) -> dict[str, Tensor]:
        splits = [samples for samples in (self.task.training, self.task.validation) if samples is not None]
        return {samples.split: torch.tensor(samples.labels, dtype=torch.int64) for samples in splits}


def _samples_of_points(rows: Tensor, ends: Tensor, numbers: Tensor) -> Tensor:
    """Return the sample that each row of a minibatch of clouds with offsets is of: int64 [rows].

    Raises InputError for a network that gives neither a row for each point nor one for each sample.
    """
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).cpu()
    if len(rows) not in (len(counts), int(ends[-1])) or len(counts) != len(numbers):
        raise InputError(
            "model.row_count",
            f"the network returns {described(rows)} for {number_of(len(numbers), 'sample')} of {int(ends[-1])} "
            "points; expected a row per sample or per point",
        )
    return numbers if len(rows) == len(counts) else numbers.repeat_interleave(counts)


def check_training(run: ResolvedRun, initial: Mapping[str, Tensor]) -> Match | None:
    """Return how the initial weights of a run match its network; None without any.

    `initial`: the tensors of the file. Raises InputError for a pattern that matches nothing, for
    weights of another network, and for an optimizer or a schedule that fails.
    """
    task, config = open_task(run, validates=False), run.config
    names = StateNames.of_network(task.network, task.engine)
    matching(config.patterns, names.shapes, setting="parameter_groups")
    open_optimizer(config, {name: torch.empty(shape, device="meta") for name, shape in names.shapes.items()})
    first = config.warmup_minibatches  # which the run has, and its first epoch
    config.rate.at(first, epoch_minibatches=first + 1, total_minibatches=first + 1)
    if config.initial is None:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in renamed(initial, task.network).items()}
    return Match.of(shapes, names, where=config.initial, allow_shape=config.allow_shape)


def composed(config: RunConfig, samples: Dataset, *, epoch: int) -> tuple[tuple[int, ...], ...]:
    """Return the minibatches of an epoch that sizes decide. Raises InputError that names a sample beyond the budget."""
    found = Composition.of(config)
    if found.budget is not None and isinstance(samples, data.VoxelDataset) and samples.size_changes:
        name = next(name for name in BUDGETS if getattr(config, name) is not None)
        raise InputError(
            "order.sizes_change",
            f"{config.data}: random crops and mixed scenes have another size in each epoch, so minibatches keep to no "
            f"budget; omit {{{name}}} and give {{batch_size}}",
            setting=dict.fromkeys((name, "batch_size")),
        )

    def stage_seconds(sizes: data.order.Sizes) -> data.order.Sizes:
        return np.stack([np.interp(sizes, found.sizes, row) for row in found.seconds], axis=1)

    try:
        return data.compose(
            samples.sample_sizes(),
            batch_size=config.batch_size if found.budget is None else None,
            budget=found.budget,
            order=config.order,
            seed=config.seed,
            epoch=epoch,
            last=config.last_minibatch,
            stages=stage_seconds if found.seconds else found.stages,
            step=found.step,
        )
    except InputError as error:
        sample = error.fields.get("sample")
        raise error.within(f"{samples.name(sample)}: " if isinstance(sample, int) else "") from None
