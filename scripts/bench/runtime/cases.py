"""The networks that are trained, each on minibatches of one kind that come again and again from memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sparsepipe import data
from sparsepipe.engines import Engine, engine
from sparsepipe.models import Network, network

from .images import ImageBatch, ImageEngine, of_images

SGD = {"lr": 0.001, "momentum": 0.9, "weight_decay": 1e-4}
_DISTINCT = 8  # minibatches that repeat
Batch = data.PointBatch | ImageBatch


@dataclass(frozen=True)
class Case:
    """One network on minibatches of one kind."""

    model: str
    batch_size: int
    engine: str = "native"
    images: bool = False  # dense 32 x 32 images rather than clouds
    voxel_size: float = 0.02
    num_points: int = 2048


CASES = {
    "vgg16": Case("vgg16", 32, images=True),
    "minkvgg16bn": Case("minkvgg16bn", 16),
    "minkvgg16bn-minkowski": Case("minkvgg16bn", 16, engine="minkowski"),
    "minkunet": Case("minkunet14a", 4),
}


class Repeated:
    """A data set in memory whose few minibatches come again and again, so that reading costs nobody anything."""

    split, synthetic, classes = "train", True, tuple("0123456789")
    loss, size_unit, targets_are_labels, facts = "classes", "voxels", True, {"num_classes": 10}

    def __init__(self, case: Case, batches: Sequence[Batch], num_minibatches: int) -> None:
        self.case, self.batches, self.num_minibatches = case, batches, num_minibatches
        self.labels = [int(label) for k in range(num_minibatches) for label in self.pick(k).labels]
        self.in_channels = case_network(case).in_channels

    def pick(self, minibatch: int) -> Batch:
        return self.batches[minibatch % len(self.batches)]

    def __len__(self) -> int:
        return self.case.batch_size * self.num_minibatches

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> Batch:
        return self.pick(indices[0] // self.case.batch_size)


def minibatches(case: Case, folder: Path) -> list[Batch]:
    """Make the few minibatches of a case, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    if case.images:
        return [
            ImageBatch(
                torch.randn(case.batch_size, 3, 32, 32, generator=generator),
                torch.randint(0, 10, (case.batch_size,), generator=generator),
            )
            for _ in range(_DISTINCT)
        ]
    clouds = data.load(folder / "shapes", split="train", voxel_size=case.voxel_size, num_points=case.num_points)
    order = torch.randint(0, len(clouds), (_DISTINCT, case.batch_size), generator=generator).tolist()
    batches = [clouds.batch(indices) for indices in order]
    return [replace(batch, labels=batch.labels % 10) for batch in batches]


def case_network(case: Case) -> Network:
    """Return the network of a case, which takes what `minibatches` makes."""
    found = network(case.model, num_classes=10, in_channels=3 if case.images else 1)
    return of_images(found) if case.images else found


def case_engine(case: Case) -> Engine:
    """Return the engine of a case."""
    return ImageEngine() if case.images else engine(case.engine)
