"""What a run's settings name, opened: the network, the engine, the data sets, and who visits which sample when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from ... import data
from ...data.layouts import SEGMENTATION
from ...engines import Engine, engine
from ...errors import InputError
from ...models import Network, network
from ...plan import Plan
from ..config import RunConfig
from ..stages.network_stage import StageRunner
from ..stages.position import Position


@dataclass(frozen=True, eq=False)
class Workload:
    """A network with an engine and data. Every rank opens it alike; files are read by the first stage alone."""

    config: RunConfig
    network: Network
    engine: Engine
    training: data.VoxelDataset
    validation: data.VoxelDataset | None

    @classmethod
    def open(cls, config: RunConfig) -> "Workload":
        """Raises InputError for an unknown model or engine, and for a folder that is no data set."""
        task = config.task or (SEGMENTATION if SEGMENTATION in config.model else None)
        facts = {"voxel_size": config.voxel_size, "num_points": config.num_points, "seed": config.seed, "task": task}
        facts |= {"features": config.features, "cache": config.cache}
        training = data.load(config.data, split="train", augmentation=config.augmentation, **facts)
        validation = data.load(config.data, split=config.validation_split, **facts) if config.validate else None
        for dataset in (training, validation):
            if dataset is not None:
                dataset.look()
        if validation is not None and validation.classes != training.classes:
            raise InputError(f"{config.data}: the splits have different classes")
        net = network(config.model, num_classes=len(training.classes), in_channels=training.in_channels)
        steps = net.coarsest_stride
        validation = validation.near_origin(steps) if validation is not None else None
        return cls(config, net, engine(config.engine), training.near_origin(steps), validation)

    def runner(self, plan: Plan, position: Position) -> StageRunner:
        """Return what runs this rank's layers, warmed up: its kernels are chosen before the ranks first meet."""
        options = {"config": self.config, "device": position.device, "per_voxel": self.per_voxel}
        options["compression"] = position.compression
        runner = StageRunner(self.network, self.engine, plan, position.stage, **options)
        first = partial(self.training.batch, self.order(0)[0])
        self.engine.warm_up(runner.module, first, position.device, half=runner.half)
        return runner

    def check(self, plan: Plan) -> None:
        """Raise InputError where the plan is not one for this network."""
        plan.check(self.network.graph())

    @property
    def per_voxel(self) -> bool:
        """Whether voxels have classes, not samples."""
        return self.training.task == SEGMENTATION

    @property
    def num_samples(self) -> int:
        """Samples of the training split."""
        return len(self.training)

    @property
    def epoch_minibatches(self) -> int:
        return len(data.sizes(len(self.training), self.config.batch_size, last=self.config.last_minibatch))

    @property
    def total_minibatches(self) -> int:
        return self.config.total_minibatches(self.epoch_minibatches)

    def segments(self, done: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yield (epoch, first, count) of what is still to be trained when `done` minibatches are: an epoch at most."""
        while done < self.total_minibatches:
            epoch, first = divmod(done, self.epoch_minibatches)
            count = min(self.epoch_minibatches - first, self.total_minibatches - done)
            yield epoch, first, count
            done += count

    def segment_lengths(self, done: int = 0) -> set[int]:
        """Return the counts that `segments` yields, at most three, however many epochs are left to train."""
        left, whole = self.total_minibatches - done, self.epoch_minibatches
        first = min(left, -done % whole or whole)
        return {count for count in (first, whole if left - first >= whole else 0, (left - first) % whole) if count > 0}

    @lru_cache(maxsize=2)  # noqa: B019 - a workload lives as long as its process
    def order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Return the samples of each training minibatch of an epoch: the same on every rank.

        Balanced by voxels, every rank reads all samples once to count them.
        """
        config = self.config
        options: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "epoch": epoch}
        options["last"] = config.last_minibatch
        if config.balance == "voxels":
            return data.voxel_balanced_minibatches(self.training.voxel_counts(), **options)
        if config.balance == "classes":
            return data.class_balanced_minibatches(self.training.labels, **options)
        return data.minibatches(len(self.training), **options, shuffle=config.shuffle)

    def validation_order(self) -> tuple[tuple[int, ...], ...]:
        assert self.validation is not None
        return data.minibatches(len(self.validation), batch_size=self.config.batch_size, shuffle=False)

    def labels(self, dataset: data.VoxelDataset, indices: Sequence[int], epoch: int) -> Tensor:
        """Return the classes of samples, int64 [B], without reading them; those of voxels [N] in the engine's order."""
        if not self.per_voxel:
            return self._all_labels[dataset.split][list(indices)]
        batch = dataset.batch(indices, epoch=epoch)
        places = torch.arange(batch.num_voxels, dtype=torch.float32)[:, None]
        order = self.engine.features(self.engine.tensor(replace(batch, features=places)))[:, 0].long()
        return batch.labels[order]

    @cached_property
    def _all_labels(self) -> dict[str, Tensor]:
        datasets = [dataset for dataset in (self.training, self.validation) if dataset is not None]
        return {dataset.split: torch.tensor(dataset.labels, dtype=torch.int64) for dataset in datasets}
