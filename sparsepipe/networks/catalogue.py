"""What there is to choose from: every network by name, with what it takes and what it is. Brings no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import MODULE_NETWORKS, NETWORKS, network
from .classification import minkfcnn, minkpointnet, minkresnet, minkvgg, vgg
from .minkunet import minkunet, spunet
from .point_transformer import point_transformer
from .rows import Network

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
