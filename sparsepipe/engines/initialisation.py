"""Initial parameters, which depend on (seed, layer id) alone: the same in every partition and every engine."""

import math

import torch
from torch import Tensor, nn

from ..derived.seeds import derived_seed
from ..models.rows import Row


def initialise(module: nn.Module, row: Row, seed: int) -> None:
    """Draw the parameters of one layer, as the networks that ours are compared with do.

    Convolutions: normal with variance 2 / fan-out (He et al., "Delving Deep into Rectifiers"), as MinkowskiEngine's
    examples and torchvision's VGG; the biases of sparse ones keep MinkowskiEngine's default, uniform within
    1 / sqrt(kernel volume x input channels), those of dense ones are 0. Transposed convolutions, which the examples
    leave alone, keep its default too: kernel and bias uniform within 1 / sqrt(kernel volume x output channels). Linear
    layers: torch's default, uniform within 1 / sqrt(input channels), in VGG also: torchvision's normal of deviation
    0.01 is meant for its widths alone, in a narrow network the signal would die out. Norms: scale 1, shift 0.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, row.id))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            bound = _bound(row, name)
            if bound:
                parameter.uniform_(-bound, bound, generator=generator)
            elif name in ("kernel", "weight") and row.kind.endswith("convolution"):
                parameter.normal_(0, math.sqrt(2 / _fan_out(parameter, row)), generator=generator)
            else:
                parameter.fill_(float(name.endswith("weight")))  # the scale of a norm; shifts, biases


def _bound(row: Row, name: str) -> float:
    """Return the bound of a parameter that is drawn uniformly; 0 for one that is not."""
    if row.kind == "linear":
        return 1 / math.sqrt(row.args["in_channels"])
    if row.kind == "transposed_convolution":
        return 1 / math.sqrt(row.kernel_volume * row.args["out_channels"])
    if row.kind == "convolution" and name == "bias":
        return 1 / math.sqrt(row.kernel_volume * row.args["in_channels"])
    return 0.0


def _fan_out(kernel: Tensor, row: Row) -> int:
    """Return the kernel volume times the output channels.

    Of a kernel of one matrix, [C_in, C_out], it is C_in: MinkowskiEngine's helper takes it for the weight of a linear
    layer, [C_out, C_in]. A mistake, but its networks start so, and ours are to start like them.
    """
    return row.args["in_channels"] if kernel.dim() == 2 else kernel.numel() // row.args["in_channels"]
