"""The protocol of sparse engines: layers, sparse tensors, and their plain parts, which cross stage boundaries."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..networks.base import LayerRow
from ..networks.batch_norm import Group
from ..networks.rows import Row


class CoordinateSet(NamedTuple):
    tensor_stride: tuple[int, ...]  # distance between neighbouring voxels along each axis
    coordinates: Tensor  # int32 [N, 1 + D], batch index first
    # Which voxels it comes from: 0, the minibatch's own; others are generated, pruned or united ones. Sets of one
    # stride are the same within a family alone.
    family: int = 0
    # The engine's coordinate manager that made it, with its kernel maps: for later stages of this process. Never sent.
    manager: object = None


class Feature(NamedTuple):
    rows: Tensor  # [N, C]; dense tensors keep their own shape
    coordinate_set: int | None  # index into Parts.coordinate_sets; None: a dense tensor, rows in batch order


@dataclass(frozen=True)
class Parts:
    """Named tensors taken apart into plain ones: each distinct coordinate set once, then the features of each name.

    `tables`: what else an engine needs to put them together, in a form of its own; a gradient is of none.
    """

    coordinate_sets: tuple[CoordinateSet, ...]
    features: Mapping[str, Feature]
    tables: tuple[Tensor, ...] = ()


class TableWriter:
    """Writes `Parts.tables` of two: facts (JSON, as uint8), and the integers that they refer to by start and end."""

    def __init__(self) -> None:
        self._integers: list[Tensor] = []
        self._num_integers = 0

    def add(self, integers: Tensor) -> list[int]:
        """Append integers; return their start and their end."""
        self._integers.append(integers.reshape(-1))
        start = self._num_integers
        self._num_integers += integers.numel()
        return [start, self._num_integers]

    def tables(self, facts: object) -> tuple[Tensor, Tensor]:
        document = bytearray(json.dumps(facts).encode())
        integers = torch.cat(self._integers) if self._integers else torch.empty(0, dtype=torch.int32)
        return torch.frombuffer(document, dtype=torch.uint8), integers


class SceneGroup(Group, Protocol):
    """The processes that share scenes, in the order of their parts."""

    @property
    def part(self) -> int:
        """The number of this process's part, from 0."""
        ...

    @property
    def num_parts(self) -> int: ...

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send `sent[p]` rows to each part p, one after the other in `rows`; return the rows received, by part."""
        ...


class Engine(Protocol):
    """A library of sparse layers. Its tensors are opaque to all other code.

    Engines agree on outputs, gradients and state_dicts: kernels are [K, C_in, C_out] (K = 1: [C_in, C_out]), offsets
    run with the first spatial axis fastest, odd kernels centred and even ones from 0 to k - 1. The order of a tensor's
    rows is the engine's own; after global pooling rows are dense [B, C] in batch order in every engine.
    """

    name: str
    takes_points: bool  # whether a minibatch may be a PointBatch of voxels
    takes_examples: bool  # whether it may be an ExampleBatch of plain tensors
    looks_voxels_up: bool  # whether a layer finds voxels of its output that no tensor it reads lies on
    shares_scenes: bool  # whether several devices may compute a scene together, a part each: see `part` of native
    divides_packets: bool  # whether such devices may have a stage behind or before others: see `divide` of native

    def layer(self, row: Row) -> nn.Module:
        """Build the module of one row, parameters not yet seeded. A dropout module also takes `seed=` when called.

        The module raises InputError for a tensor whose axes, channels or device are not its own.
        """
        ...

    def tensor(self, batch: Any, device: torch.device | str = "cpu") -> Any:
        """Put a minibatch, a PointBatch, on a device as this engine's sparse tensor; plain tensors: an ExampleBatch.

        Raises InputError for coordinates the engine cannot hold; PointBatch has already refused duplicates and gaps.
        """
        ...

    def split(self, tensors: Mapping[str, Any]) -> Parts:
        """Take tensors of one minibatch apart; features keep their place in the autograd graph."""
        ...

    def join(self, parts: Parts) -> dict[str, Any]:
        """Put parts together in one fresh coordinate manager, so that tensors still share coordinates.

        Rows keep the order they came in, and the tensors in `parts.features` are themselves the features: a caller who
        needs the gradient calls `requires_grad_()` on them before joining and reads `.grad` after the backward pass.
        `join` then `split` gives the same parts.
        """
        ...

    def features(self, tensor: Any) -> Tensor:
        """Return the feature rows of a tensor."""
        ...

    def replace(self, tensor: Any, features: Tensor) -> Any:
        """Return a tensor with other features on the same coordinates and in the same coordinate manager."""
        ...

    def dimension(self, tensor: Any) -> int:
        """Return the number of spatial axes of a tensor, sparse or dense grid [B, C, size, ...]; 0 for dense rows."""
        ...

    def map_bytes(self, tensor: Any) -> int:
        """Return the bytes of the kernel maps that were made so far in this minibatch, and of what stays with them.

        They stay until the minibatch's backward is done. 0 for a dense tensor, and where the engine does not tell.
        """
        ...

    def keeps_unseen(self, row: LayerRow) -> bool:
        """Return whether a layer keeps for its backward what autograd does not know of: its inputs, and what it
        made.
        """
        ...

    def warm_up(
        self, subnetwork: Any, batch: Callable[[], Any], device: Any, *, half: torch.dtype | None = None
    ) -> int:
        """Measure now what the engine else measures as it trains; return how many layers ran.

        `subnetwork` is this rank's part of a network, `batch` reads a minibatch of the whole network's input where one
        is needed, `half` is the type of autocast, if any.
        """
        ...

    def rows(self, output: Any) -> Tensor:
        """Return the dense [B, C] rows of a globally pooled output. Raises InputError for a sparse tensor."""
        ...


def checked(module: nn.Module, row: Row, engine: Engine) -> nn.Module:
    """Return the module of a row, which from now on refuses a tensor that does not fit it.

    Its calls raise InputError, which names the layer, what it got and what it needs: torch's own words and
    MinkowskiEngine's are about matrices and about places in their sources.
    """
    article = "an" if row.kind[0] in "aeiou" else "a"
    channels = row.args.get("in_channels", row.args.get("channels"))

    def check(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        tensor = inputs[0]
        rows, meets = engine.features(tensor), f"meets {article} {row.kind}"
        if row.dimension is not None and (axes := engine.dimension(tensor)) != row.dimension:
            raise InputError(
                "layer.dimension",
                f"layer {row.id!r}: a tensor of {axes} spatial axes {meets} of {row.dimension}: see the row's "
                "dimension",
                layer=row.id,
                axes=axes,
                dimension=row.dimension,
            )
        if channels is not None and rows.shape[1] != channels:
            raise InputError(
                "layer.channels",
                f"layer {row.id!r}: a tensor with {rows.shape[1]} channels {meets} with {channels} input channels",
                layer=row.id,
                channels=channels,
            )
        parameter = next(module.parameters(), None)
        if parameter is not None and parameter.device != rows.device:
            raise InputError(
                "layer.device",
                f"layer {row.id!r}: a tensor on {rows.device} {meets} on {parameter.device}: move one to the other",
            )

    module.register_forward_pre_hook(check)
    return module


class SeededDropout(nn.Module):
    """Drop activations with a probability and scale the rest by 1 / (1 - probability); identity in evaluation.

    CPUs and GPUs draw from generators of their own: between the two kinds of device the mask differs.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def drop(self, rows: Tensor, seed: int, *, among: tuple[int, Tensor, int] | None = None) -> Tensor:
        """Return rows with what is dropped set to zero.

        `among`: of how many rows the mask is drawn, which of them these are, and their axis, if others have the rest.
        """
        if not self.training or self.probability == 0:
            return rows
        keep = 1 - self.probability
        generator = torch.Generator(device=rows.device).manual_seed(seed)
        if among is None:
            return rows * self.mask_of(rows).bernoulli_(keep, generator=generator).div_(keep)
        count, numbers, axis = among
        room = rows.new_empty(*rows.shape[:axis], count, *rows.shape[axis + 1 :])
        mask = self.mask_of(room).bernoulli_(keep, generator=generator).div_(keep)
        return rows * mask.index_select(axis, numbers)

    def mask_of(self, rows: Tensor) -> Tensor:
        """Return room for the mask of rows [N, C]: a number for each activation."""
        return torch.empty_like(rows)


class SeededDropPath(SeededDropout):
    """Drop whole rows likewise (Huang et al., "Deep Networks with Stochastic Depth"), as timm's DropPath does."""

    def mask_of(self, rows: Tensor) -> Tensor:
        return rows.new_empty(len(rows), *[1] * (rows.dim() - 1))
