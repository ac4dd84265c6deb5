"""Running some layers of a network one after the other, whatever they are made of: what stages share."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from .base import LayerRow

PARTS_APART = 2**40  # what is added to a minibatch's number for each part of a split one, which draws differently


class Layers(Protocol):
    """Some layers of a network, in the order in which they run."""

    @property
    def table(self) -> Sequence[LayerRow]: ...

    def run_layer(self, row: Any, tensors: Mapping[str, Any], *, minibatch: int) -> dict[str, Any]:
        """Run one layer on its inputs among `tensors`; return its outputs by name."""
        ...


def run_layers(
    layers: Layers, alive: Mapping[str, Any], *, minibatch: int, keep: Collection[str] | None = None
) -> dict[str, Any]:
    """Run the layers on the values `alive` at the boundary before them.

    Returns every value passed in or produced here; with `keep`, only those it names, each of the others let go after
    its last use here.
    """
    tensors = dict(alive)
    for _ in layer_by_layer(layers, tensors, minibatch=minibatch, keep=keep):
        pass
    return tensors if keep is None else {name: tensor for name, tensor in tensors.items() if name in keep}


def layer_by_layer(
    layers: Layers, tensors: dict[str, Any], *, minibatch: int, keep: Collection[str] | None = None
) -> Iterator[LayerRow]:
    """Do what `run_layers` does, in `tensors` itself, and yield each layer once its outputs exist."""
    last_use = {name: place for place, row in enumerate(layers.table) for name in (*row.inputs, *row.outputs)}
    for place, row in enumerate(layers.table):
        tensors.update(layers.run_layer(row, tensors, minibatch=minibatch))
        if keep is not None:
            for name in {*row.inputs, *row.outputs}:
                if last_use[name] == place and name not in keep:
                    tensors.pop(name, None)
        yield row
