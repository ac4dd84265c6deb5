"""Checks of a layer's input before it runs: its number of axes, its channels, its device."""

from typing import Any

from torch import nn

from ..errors import InputError
from ..networks.rows import Row
from .base import Engine


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
