"""Bytes of the tensors that each layer of a network saves for its backward, counted on one minibatch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engines.allocator import allocated_bytes
from ..networks.base import LayerRow


class Kept(NamedTuple):
    """Tensors that one layer keeps from its forward to its backward."""

    saved_bytes: int
    map_bytes: int = 0  # of them, kernel maps
    input_bytes: int = 0  # of them, outputs of other layers


def kept_bytes(subnetwork: Any, batch: Any, *, device: torch.device) -> tuple[dict[str, Kept], dict[str, Any]]:
    """Run a whole network forward; return the bytes that each layer keeps, and every value, those of the input too.

    A tensor that is kept is counted once, for the first layer that keeps it, weights left out; the kernel maps that a
    layer makes are counted for it.
    """
    tensors: dict[str, Any] = subnetwork.enter(subnetwork.engine.tensor(batch, device))
    count, saved = _Kept(subnetwork, tensors.values(), device), {}
    for row in subnetwork.table:
        with count.watching():
            values = subnetwork.run_layer(row, tensors, minibatch=0)
        tensors |= values
        saved[row.id] = count.by_layer(row, [tensors[name] for name in row.inputs], list(values.values()))
    return saved, tensors


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Kept:
    """Counts what layers save for backward as they run one after the other: each tensor once, for the first of them."""

    def __init__(self, subnetwork: Any, inputs: Iterable[Any], device: torch.device) -> None:
        self._engine, self._allocated = subnetwork.engine, allocated_bytes(device)
        self._counted = {_storage(tensor) for tensor in subnetwork.state_dict().values()}
        # Before the layer ran.
        self._there = {*self._counted, *(_storage(self._engine.features(input)) for input in inputs)}
        self._outputs: set[int] = set()  # of layers that ran
        self._map_bytes = self._num_bytes = self._input_bytes = self._new_bytes = self._before = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is saved while the `with` block runs one layer's forward."""
        self._num_bytes = self._input_bytes = self._new_bytes = 0
        self._before = self._allocated()
        with torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor):
            yield

    def by_layer(self, row: LayerRow, inputs: Sequence[Any], outputs: Sequence[Any]) -> Kept:
        """Return the bytes saved by the layer that just ran."""
        grown = self._allocated() - self._before
        maps = unseen = 0
        for output in outputs:
            self._meet(self._engine.features(output))
            grew = max(0, self._engine.map_bytes(output) - self._map_bytes)
            self._map_bytes += grew
            maps += grew
        if self._engine.keeps_unseen(row):
            unseen = max(0, grown - self._new_bytes)  # beyond the tensors that are known of
            for tensor in inputs:
                self._count(self._engine.features(tensor))
        self._outputs |= {_storage(self._engine.features(output)) for output in outputs}
        return Kept(self._num_bytes + maps + unseen, maps, self._input_bytes)

    def _count(self, tensor: Tensor) -> Tensor:
        self._meet(tensor)
        if _storage(tensor) not in self._counted:
            self._counted.add(_storage(tensor))
            self._num_bytes += tensor.untyped_storage().nbytes()
            self._input_bytes += tensor.untyped_storage().nbytes() * (_storage(tensor) in self._outputs)
        return tensor

    def _meet(self, tensor: Tensor) -> None:
        if _storage(tensor) not in self._there:
            self._there.add(_storage(tensor))
            self._new_bytes += tensor.untyped_storage().nbytes()
