"""Images as a network of images takes them, [B, C, height, width], from the data set to the first layer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsepipe.engines import Subnetwork
from sparsepipe.engines.allocator import keep_freed_memory
from sparsepipe.engines.native import NativeEngine
from sparsepipe.networks import INPUT, Network


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """A minibatch of images, float32 [B, C, height, width], and their classes, int64 [B]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    @property
    def target(self) -> Tensor:
        return self.labels

    @property
    def size(self) -> int:
        """Count the pixels, by which costs are kept."""
        return len(self.images) * self.images[0, 0].numel()


class ImageEngine(NativeEngine):
    """The layers that are dense under every engine, on images."""

    def __init__(self) -> None:
        keep_freed_memory()  # as every engine by name does

    def tensor(self, batch: ImageBatch, device: Any = "cpu") -> Tensor:
        return batch.images.to(device)

    def warm_up(
        self, subnetwork: Subnetwork, batch: Callable[[], ImageBatch], device: Any, *, half: torch.dtype | None = None
    ) -> int:
        return 0  # no layer here chooses among kernels


def of_images(network: Network) -> Network:
    """Return a network on grids without the layer that lays a cloud out on one: its first layer takes the grid itself.

    The first of the rows is that layer.
    """
    grid, *rows = network.rows
    if grid.kind != "dense_grid":
        raise ValueError(f"{network.name} begins with a {grid.kind}: expected a dense_grid")
    fed = [replace(row, inputs=tuple(INPUT if name == grid.id else name for name in row.inputs)) for row in rows]
    return replace(network, rows=tuple(fed))
