"""What every network offers, a table of rows or a traced torch module: layers, what they read and give, a graph.

A *value* is what one layer gives and others read: a tensor, dense or sparse. It has a name. A layer of a table gives
one value, of its own name; a traced layer may give several.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..values.graph import LayerGraph
from . import MODULE_NETWORKS, NETWORKS, network
from .classification import minkfcnn, minkpointnet, minkresnet, minkvgg, vgg
from .minkunet import minkunet, spunet
from .point_transformer import point_transformer
from .rows import Network


class LayerRow(Protocol):
    """One layer of a network."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str:
        """Return the kind of the layer, such as "relu" or "Conv2d"."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that it reads."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that it gives."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def num_parameters(self) -> int:
        """Parameters that are trained."""
        ...


class AnyNetwork(Protocol):
    """A network that can be profiled, planned for, cut and run."""

    @property
    def name(self) -> str: ...

    @property
    def num_classes(self) -> int:
        """Classes that its output distinguishes; 0 if unknown."""
        ...

    @property
    def rows(self) -> Sequence[LayerRow]:
        """Its layers in topological order."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that a minibatch brings."""
        ...

    @property
    def direct_inputs(self) -> tuple[str, ...]:
        """Inputs that each stage reads from the samples itself. They never cross a stage boundary."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that the loss takes: the last stage gives them."""
        ...

    @property
    def differentiable(self) -> frozenset[str]:
        """The values that a gradient comes back for: those behind a trained parameter."""
        ...

    @property
    def rectified(self) -> frozenset[str]:
        """The values whose gradient does not matter where they are zero: of a ReLU, and of max pools behind one."""
        ...

    def alive(self, before: Collection[str], *, training: bool = True) -> tuple[str, ...]:
        """Return the values that cross the boundary behind the layers `before`, in one order, each once.

        Those given before it, and inputs that are not direct, that are read behind it; outputs given before it too.
        """
        ...

    def graph(self) -> LayerGraph:
        """Return the layer graph: one layer a row, an edge from each layer that gives what another reads."""
        ...


def direct_reads(network: AnyNetwork, rows: Iterable[LayerRow], *, last: bool) -> set[str]:
    """Return the inputs that a stage of these layers takes from the samples itself; the last one for the result too."""
    read = {name for row in rows for name in row.inputs}.union(network.outputs if last else ())
    return read.intersection(network.direct_inputs)


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


_FAMILIES: Mapping[Callable[..., Network], str] = {
    minkvgg: "VGG on sparse voxels",
    minkresnet: "residual network on sparse voxels",
    minkunet: "U-Net on sparse voxels",
    spunet: "residual U-Net on sparse voxels, as Pointcept's",
    point_transformer: "attention along curves and convolutions on sparse voxels",
    minkfcnn: "convolutions of four strides read together",
    minkpointnet: "linear layers on each voxel",
    vgg: "VGG on a dense grid",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A network that can be named: `kind` is "table", a table of rows, or "module", a torch module."""

    name: str
    kind: str
    takes: str  # "clouds", "images 224 x 224"
    summary: str


def catalogue(text: str = "") -> tuple[Entry, ...]:
    """Return the networks whose names contain `text`, tables first."""
    tables = (Entry(name, "table", *_described(builder)) for name, builder in NETWORKS.items() if text in name)
    modules = (
        Entry(name, "module", chosen.takes, chosen.summary) for name, chosen in MODULE_NETWORKS.items() if text in name
    )
    return (*tables, *modules)


def table_parameters(name: str, *, num_classes: int) -> int:
    """Return the number of parameters of a table of rows on clouds with one feature a voxel."""
    return sum(row.num_parameters for row in network(name, num_classes=num_classes).rows)


def _described(builder: Callable[..., Network]) -> tuple[str, str]:
    """Return what a table takes and what it is, from its builder and the arguments that are set."""
    assert isinstance(builder, partial)
    given: Mapping[str, Any] = builder.keywords
    takes = "clouds"
    if "size" in given:
        takes += f" on {' x '.join([str(given['size'])] * given['dimension'])} cells"
    notes = [_FAMILIES[builder.func]]
    if given.get("batch_norm"):
        notes.append("with batch norm")
    if given.get("per_voxel"):
        notes.append("classes of each voxel")
    if given.get("width", 1.0) < 1.0:
        notes.append("a quarter of the channels")
    return takes, ", ".join(notes)
