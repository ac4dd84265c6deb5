"""Voxelized point clouds: a network, an engine and data sets, and which samples each minibatch holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from ... import data
from ...data.layouts import SEGMENTATION
from ...engines import Engine, engine
from ...errors import InputError
from ...losses import CrossEntropy, Loss, Segmentation, Tally
from ...models import Network, network
from ...plan import Plan
from ..config import RunConfig
from ..stages.network_stage import NetworkStage
from ..stages.position import Position


@dataclass(frozen=True, eq=False)
class PointClouds:
    """A network with an engine and data, of which a minibatch's size is its active voxels."""

    config: RunConfig
    network: Network
    engine: Engine
    training: data.VoxelDataset
    validation: data.VoxelDataset | None

    @classmethod
    def open(cls, config: RunConfig) -> "PointClouds":
        """Raises InputError for an unknown model or engine, and for a folder that is no data set."""
        task = config.task or (SEGMENTATION if SEGMENTATION in config.model else None)
        facts: dict[str, Any] = {
            "voxel_size": config.voxel_size,
            "num_points": config.num_points,
            "seed": config.seed,
            "task": task,
            "features": config.features,
            "cache": config.cache,
        }
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
            per_voxel=self.labels_are_read,
            compression=position.compression,
        )
        first = partial(self.training.batch, self.order(0)[0])
        self.engine.warm_up(runner.module, first, position.device, half=runner.half)
        return runner

    def check(self, plan: Plan) -> None:
        """Raise InputError where the plan is not one for this network."""
        plan.check(self.network.graph())

    def tally(self) -> Tally:
        return Tally(self.loss)

    @property
    def loss(self) -> Loss:
        return (Segmentation if self.labels_are_read else CrossEntropy)(self.num_classes)

    @property
    def model(self) -> str:
        return self.network.name

    @property
    def engine_name(self) -> str:
        return self.engine.name

    @property
    def synthetic(self) -> bool:
        return self.training.synthetic

    @property
    def size_unit(self) -> str:
        return "voxels"

    @property
    def num_classes(self) -> int:
        return self.network.num_classes

    @property
    def labels_are_read(self) -> bool:
        """Whether voxels have classes, which files say, not samples, whose folders do."""
        return self.training.task == SEGMENTATION

    @property
    def num_samples(self) -> int:
        return len(self.training)

    @property
    def epoch_minibatches(self) -> int:
        return len(data.sizes(len(self.training), self.config.batch_size, last=self.config.last_minibatch))

    @property
    def total_minibatches(self) -> int:
        return self.config.total_minibatches(self.epoch_minibatches)

    @lru_cache(maxsize=2)  # noqa: B019 - a workload lives as long as its process
    def order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Return the samples of each training minibatch of an epoch: the same on every rank.

        Balanced by voxels, every rank reads all samples once to count them.
        """
        config = self.config
        options: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "epoch": epoch}
        options["last"] = config.last_minibatch
        if config.balance == "voxels":
            return data.voxel_balanced_minibatches(self.training.voxel_counts().tolist(), **options)
        if config.balance == "classes":
            return data.class_balanced_minibatches(self.training.labels, **options)
        return data.minibatches(len(self.training), **options, shuffle=config.shuffle)

    def validation_order(self) -> tuple[tuple[int, ...], ...]:
        assert self.validation is not None
        return data.minibatches(len(self.validation), batch_size=self.config.batch_size, shuffle=False)

    def labels(self, samples: data.VoxelDataset, indices: Sequence[int], epoch: int) -> Tensor:
        """Return the classes of samples, int64 [B], without reading them; those of voxels [N] in the engine's order."""
        if not self.labels_are_read:
            return self._all_labels[samples.split][list(indices)]
        batch = samples.batch(indices, epoch=epoch)
        places = torch.arange(batch.num_voxels, dtype=torch.float32)[:, None]
        order = self.engine.features(self.engine.tensor(replace(batch, features=places)))[:, 0].long()
        return batch.labels[order]

    @cached_property
    def _all_labels(self) -> dict[str, Tensor]:
        splits = [samples for samples in (self.training, self.validation) if samples is not None]
        return {samples.split: torch.tensor(samples.labels, dtype=torch.int64) for samples in splits}
