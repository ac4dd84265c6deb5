"""Networks that are tables of rows, on grids of images or on clouds: what trains one, in one piece and otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from sparsepipe import data
from sparsepipe.engines import Engine, Subnetwork, engine
from sparsepipe.networks import Network, network

from .images import ImageBatch, ImageEngine, of_images

DISTINCT = 8  # minibatches that repeat
Batch = Any  # an ImageBatch, a PointBatch or an ExampleBatch


@dataclass(frozen=True)
class TableCase:
    """One network on minibatches of one kind."""

    model: str
    batch_size: int
    engine: str = "native"
    images: bool = False  # dense 32 x 32 images rather than clouds
    voxel_size: float = 0.02
    num_points: int = 2048

    size_unit, loss_name, targets_are_labels = "voxels", "classes", True

    @property
    def in_parts(self) -> bool:
        """Whether torch's own schedules can cut its minibatches into micro-batches: not where they are sparse."""
        return self.images

    @property
    def facts(self) -> dict[str, Any]:
        return {"num_classes": 10, "in_channels": 3 if self.images else 1}

    def minibatches(self, folder: Path) -> list[Batch]:
        """Make the few minibatches of a case, the same in every process."""
        generator = torch.Generator().manual_seed(0)
        if self.images:
            return [
                ImageBatch(
                    torch.randn(self.batch_size, 3, 32, 32, generator=generator),
                    torch.randint(0, 10, (self.batch_size,), generator=generator),
                )
                for _ in range(DISTINCT)
            ]
        clouds = data.load(folder / "shapes", split="train", voxel_size=self.voxel_size, num_points=self.num_points)
        order = torch.randint(0, len(clouds), (DISTINCT, self.batch_size), generator=generator).tolist()
        batches = [clouds.batch(indices) for indices in order]
        return [replace(batch, labels=batch.labels % 10) for batch in batches]

    def network(self) -> Network:
        """Return the network, which takes what `minibatches` makes."""
        found = network(self.model, **self.facts)
        return of_images(found) if self.images else found

    def chosen_engine(self) -> Engine:
        return ImageEngine() if self.images else engine(self.engine)

    def whole(self) -> nn.Module:
        """Return a module from (minibatch, its number) to the loss."""
        return WholeTable(self)


class WholeTable(nn.Module):
    """A network in one piece, and its loss."""

    def __init__(self, case: TableCase) -> None:
        super().__init__()
        self.engine = case.chosen_engine()
        self.inner = Subnetwork(case.network(), self.engine).train()

    def forward(self, batch: Batch, number: int) -> Tensor:
        last = self.inner.network.rows[-1].id
        outputs = self.inner({"input": self.engine.tensor(batch)}, minibatch=number, keep=(last,))
        return functional.cross_entropy(self.engine.rows(outputs[last]), batch.labels)


def sequential(subnetwork: Subnetwork, ids: Sequence[str]) -> nn.Sequential:
    """Return dense layers as what torch's own schedules take."""
    rows = [row for row in subnetwork.table if row.id in set(ids)]
    return nn.Sequential(
        *(
            nn.Dropout(row.args["probability"]) if row.kind == "dropout" else subnetwork.get_submodule(row.id)
            for row in rows
        )
    )
