"""Networks by name: tables of rows, which `network` builds, and torch modules. Nothing here brings torch."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from ..errors import InputError
from ..util.io.functions import is_function
from ..util.lazy_names import lazy_names
from .classification import BLOCKS, LEVELS, minkfcnn, minkpointnet, minkresnet, minkvgg, vgg
from .images import IMAGE_NETWORKS
from .minkunet import DECODERS, minkunet, spunet
from .point_transformer import SHAPES, point_transformer
from .rows import INPUT, ModuleNetwork, Network, Row
from .texts import TEXT_NETWORKS

__all__ = ["INPUT", "MODULE_NETWORKS", "NETWORKS", "ModuleNetwork", "Network", "Row", "is_table", "network"]

_WIDTHS = {"": 1.0, "-narrow": 0.25}  # the quick variants have a quarter of the channels
_NORMS = {"": False, "bn": True}
_GRIDS = {"": (2, 32), "-3d": (3, 32), "-3d-64": (3, 64)}  # axes, cells along each
_HEADS = {"": False, "-segmentation": True}
_PATCH_SIZES = {"": 1024, "-narrow": 128}
_DROP_PATHS = {"": 0.3, "-narrow": 0.1}

# name -> builder(name=, num_classes=, in_channels=)
NETWORKS: dict[str, Callable[..., Network]] = {
    **{
        f"minkvgg{depth}{norm}{narrow}": partial(minkvgg, depth, batch_norm=_NORMS[norm], width=_WIDTHS[narrow])
        for depth in BLOCKS
        for norm in _NORMS
        for narrow in _WIDTHS
    },
    **{
        f"minkresnet{depth}{narrow}": partial(minkresnet, depth, width=_WIDTHS[narrow])
        for depth in LEVELS
        for narrow in _WIDTHS
    },
    **{
        f"minkunet{depth}{variant}{head}{narrow}": partial(
            minkunet, depth, variant, per_voxel=_HEADS[head], width=_WIDTHS[narrow]
        )
        for depth, variant in DECODERS
        for head in _HEADS
        for narrow in _WIDTHS
    },
    **{
        f"spunet34{head}{narrow}": partial(spunet, per_voxel=_HEADS[head], width=_WIDTHS[narrow])
        for head in _HEADS
        for narrow in _WIDTHS
    },
    **{
        f"{shape}{head}{narrow}": partial(
            point_transformer,
            shape,
            per_voxel=_HEADS[head],
            width=_WIDTHS[narrow],
            patch_size=_PATCH_SIZES[narrow],
            drop_path=_DROP_PATHS[narrow],
        )
        for shape in SHAPES
        for head in _HEADS
        for narrow in _WIDTHS
    },
    **{f"minkfcnn{narrow}": partial(minkfcnn, width=_WIDTHS[narrow]) for narrow in _WIDTHS},
    **{f"minkpointnet{narrow}": partial(minkpointnet, width=_WIDTHS[narrow]) for narrow in _WIDTHS},
    **{
        f"vgg{depth}{norm}{grid}{narrow}": partial(
            vgg, depth, dimension=_GRIDS[grid][0], size=_GRIDS[grid][1], batch_norm=_NORMS[norm], width=_WIDTHS[narrow]
        )
        for depth in BLOCKS
        for norm in _NORMS
        for grid in _GRIDS
        for narrow in _WIDTHS
    },
}

# name -> where it is built: networks that are torch modules
MODULE_NETWORKS: dict[str, ModuleNetwork] = IMAGE_NETWORKS | TEXT_NETWORKS


def is_table(name: str) -> bool:
    """Return whether a model's name is that of a table of rows; else it is of a torch module, ours or the user's own.

    Raises InputError for a name that is neither, naming what is like it.
    """
    if name in NETWORKS:
        return True
    if name in MODULE_NETWORKS or is_function(name):
        return False
    raise InputError("model.unknown", _unknown(name))


def _unknown(name: str) -> str:
    alike = get_close_matches(name, [*NETWORKS, *MODULE_NETWORKS], n=6, cutoff=0)
    return (
        f"unknown model {name!r}, is it {', '.join(alike)}? `sparsepipe models` lists all; a module of your own is "
        "named net.py:function, after its file (in a notebook, %%writefile net.py writes one)"
    )


def network(name: str, *, num_classes: int, in_channels: int = 1) -> Network:
    """Build a network by name, for example "minkvgg16bn". Raises InputError naming what is like it."""
    if name not in NETWORKS:
        raise InputError("model.unknown", _unknown(name))
    if num_classes < 1 or in_channels < 1:
        raise InputError(
            "model.below_one",
            f"model {name}: {num_classes} classes and {in_channels} input channels given, expected at least 1 of each",
            num_classes=num_classes,
        )
    return NETWORKS[name](name=name, num_classes=num_classes, in_channels=in_channels)


__getattr__, __dir__ = lazy_names(globals(), {}, folders=("traced",))
