"""Seeds and first values that depend only on (seed, layer id): every partition and every engine starts the same."""

import hashlib
import math

import torch
from torch import nn

from ..models.rows import Row


def derived_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2^63) for the given parts: the same on every machine and in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def initialise(module: nn.Module, row: Row, seed: int) -> None:
    """Draw the parameters of one layer.

    Convolutions: normal with variance 2 / (kernel volume x output channels) (He et al., "Delving Deep into Rectifiers",
    fan-out); linear layers: torch's default, uniform within 1 / sqrt(input channels); norms: scale 1, shift 0.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, row.id))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            first = torch.zeros(parameter.shape)
            if row.kind == "linear":
                bound = 1 / math.sqrt(row.args["in_channels"])
                first.uniform_(-bound, bound, generator=generator)
            elif name in ("kernel", "weight") and row.kind.endswith("convolution"):
                fan_out = parameter.numel() // row.args["in_channels"]
                first.normal_(0, math.sqrt(2 / fan_out), generator=generator)
            elif name.endswith("weight"):  # of a norm
                first.fill_(1)
            parameter.copy_(first)
