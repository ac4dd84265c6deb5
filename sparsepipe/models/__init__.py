"""Networks by name. Each family is one file holding a table of rows; `network` builds a member of one."""

from collections.abc import Callable
from functools import partial

from ..errors import InputError
from .minkvgg import BLOCKS, minkvgg
from .rows import INPUT, Network, Row

__all__ = ["INPUT", "NETWORKS", "Network", "Row", "network"]

_NARROW = 0.25  # the quick variants: a quarter of the channels

# name -> builder(name=, num_classes=, in_channels=)
NETWORKS: dict[str, Callable[..., Network]] = {
    f"minkvgg{depth}{norm}{narrow}": partial(minkvgg, depth, batch_norm=bool(norm), width=_NARROW if narrow else 1.0)
    for depth in BLOCKS
    for norm in ("", "bn")
    for narrow in ("", "-narrow")
}


def network(name: str, *, num_classes: int, in_channels: int = 1) -> Network:
    """Build a network by name, for example "minkvgg16bn". Raises InputError naming every known name."""
    if name not in NETWORKS:
        raise InputError(f"unknown model {name!r}, expected one of {', '.join(NETWORKS)}")
    if num_classes < 1 or in_channels < 1:
        raise InputError(
            f"model {name}: {num_classes} classes and {in_channels} input channels, expected at least 1 of each"
        )
    return NETWORKS[name](name=name, num_classes=num_classes, in_channels=in_channels)
