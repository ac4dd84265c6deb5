"""The engine of torch modules on plain tensors: nothing is sparse, so a tensor is its own features."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..data.examples import ExampleBatch
from ..errors import InputError
from ..networks.base import LayerRow
from ..networks.rows import Row
from .base import Feature, Parts


class PlainEngine:
    """Runs networks whose layers are torch modules; the member of `Engine` (base.py) without sparse tensors."""

    name = "torch"
    looks_voxels_up = False
    takes_points = False
    takes_examples = True
    shares_scenes = False
    divides_packets = False

    def layer(self, row: Row) -> nn.Module:
        """Raises InputError: rows of a table are layers of a sparse engine."""
        raise InputError(
            "engine.no_sparse_layers",
            f"layer {row.id!r}: engine {self.name!r} does not support sparse layers; use 'native' or 'minkowski'",
        )

    def tensor(self, batch: ExampleBatch, device: torch.device | str = "cpu") -> Any:
        """Put the inputs of a minibatch on a device, in the structure that the network's forward takes.

        Raises InputError for voxels, which a network of plain tensors cannot take.
        """
        if not isinstance(batch, ExampleBatch):
            raise InputError(
                "engine.no_clouds",
                "a network of plain torch modules cannot read point clouds; use a data set of images or texts, or a "
                "sparse network",
            )
        return on_device(batch.inputs, device)

    def split(self, tensors: Mapping[str, Tensor]) -> Parts:
        # A conjugate is a view whose bytes are not its numbers: what crosses is bytes.
        return Parts((), {name: Feature(each.resolve_conj().resolve_neg(), None) for name, each in tensors.items()})

    def join(self, parts: Parts) -> dict[str, Tensor]:
        return {name: feature.rows for name, feature in parts.features.items()}

    def features(self, tensor: Tensor) -> Tensor:
        return tensor

    def replace(self, tensor: Tensor, features: Tensor) -> Tensor:
        return features

    def dimension(self, tensor: Tensor) -> int:
        return max(0, tensor.dim() - 2)

    def map_bytes(self, tensor: Tensor) -> int:
        return 0

    def keeps_unseen(self, row: LayerRow) -> bool:
        return False

    def warm_up(
        self, subnetwork: Any, batch: Callable[[], Any], device: Any, *, half: torch.dtype | None = None
    ) -> int:
        return 0  # torch measures nothing

    def rows(self, output: Tensor) -> Tensor:
        return output


def on_device(inputs: Any, device: torch.device | str) -> Any:
    """Move every tensor of a tensor, tuple or dict of inputs to a device."""
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs)
