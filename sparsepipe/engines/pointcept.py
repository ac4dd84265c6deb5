"""Weights of Pointcept's checkpoints under our names: PTv3, LitePT and SpUNet, as segmentors and as classifiers.

    backbone.enc.enc0.block0.cpe.0.weight  [C_out, 3, 3, 3, C_in]   →   enc0_block0_cpe_conv.kernel  [27, C_in, C_out]

    backbone.enc.enc0.block0.attn.qkv.bias [3 C]                    →   enc0_block0_attention.qkv.bias

Pointcept (https://github.com/Pointcept/Pointcept) trains on spconv, whose kernels have the last axis fastest.
"""

import re
from collections.abc import Mapping

from torch import Tensor

from ..networks.rows import Network, Row

# What a row's id looks like, and the path of the module that Pointcept has for it; the first pattern that matches.
_PATHS = tuple(
    (re.compile(pattern), path)
    for pattern, path in (
        (r"stem_(conv|norm)", r"embedding.stem.\1"),
        (r"enc(\d)_down_proj", r"enc.enc\1.down.proj"),
        (r"enc(\d)_down_norm", r"enc.enc\1.down.norm.0"),
        (r"dec(\d)_up_proj", r"dec.dec\1.up.proj.0"),
        (r"dec(\d)_up_norm", r"dec.dec\1.up.proj.1"),
        (r"dec(\d)_skip_proj", r"dec.dec\1.up.proj_skip.0"),
        (r"dec(\d)_skip_norm", r"dec.dec\1.up.proj_skip.1"),
        (r"(enc|dec)(\d)_block(\d+)_cpe_conv", r"\1.\1\2.block\3.cpe.0"),
        (r"(enc|dec)(\d)_block(\d+)_cpe_linear", r"\1.\1\2.block\3.cpe.1"),
        (r"(enc|dec)(\d)_block(\d+)_cpe_norm", r"\1.\1\2.block\3.cpe.2"),
        (r"(enc|dec)(\d)_block(\d+)_attention", r"\1.\1\2.block\3.attn"),
        (r"(enc|dec)(\d)_block(\d+)_mlp_(fc\d)", r"\1.\1\2.block\3.mlp.0.\4"),
        (r"(enc|dec)(\d)_block(\d+)_(norm\d)", r"\1.\1\2.block\3.\4.0"),
        (r"head", r"seg_head"),
        (r"conv_stem", r"conv_input.0"),
        (r"bn_stem", r"conv_input.1"),
        (r"conv_(up|down)(\d)", r"\1.\2.0"),
        (r"bn_(up|down)(\d)", r"\1.\2.1"),
        (r"conv_(enc|dec)(\d)_(\d+)_short", r"\1.\2.block\3.proj.0"),
        (r"bn_(enc|dec)(\d)_(\d+)_short", r"\1.\2.block\3.proj.1"),
        (r"(conv|bn)_(enc|dec)(\d)_(\d+)_(\d)", r"\2.\3.block\4.\1\5"),
        (r"conv_final", r"final"),
        (r"class1_linear", r"cls_head.0"),
        (r"class1_norm", r"cls_head.1"),
        (r"class2_linear", r"cls_head.4"),
        (r"class2_norm", r"cls_head.5"),
        (r"fc", r"cls_head.8"),
    )
)
_OUTER = re.compile(r"^(module\.)?(backbone\.)?")  # what a checkpoint's names begin with
_NAMES_OF_LITEPT = re.compile(r"\.conv\.(\d)\.")  # it calls what PTv3 calls cpe conv


def from_pointcept(state: Mapping[str, Tensor], network: Network) -> dict[str, Tensor]:
    """Rename the tensors of one of Pointcept's checkpoints, and lay kernels out as ours are.

    Args:
        state: A checkpoint's state_dict, of the whole model or of its backbone alone.
        network: A table of rows, such as `network("ptv3-segmentation", num_classes=13, in_channels=6)`.

    Returns:
        The tensors by our names, as `Subnetwork.load_state_dict` takes them. Those that the network does not have keep
        their names.

    Example:
        >>> from sparsepipe.networks import network
        >>> table = network("spunet34-segmentation", num_classes=2)
        >>> list(from_pointcept({"module.backbone.bn": None}, table))
        ['module.backbone.bn']
    """
    paths = {path: row for row in network.rows if (path := _path(row)) is not None}
    renamed = {}
    for name, tensor in state.items():
        module, _, tensor_name = _NAMES_OF_LITEPT.sub(r".cpe.\1.", _OUTER.sub("", name)).rpartition(".")
        row = paths.get(module) or paths.get(module.rpartition(".")[0])
        if row is None:
            renamed[name] = tensor
        elif row.kind.endswith("convolution"):
            renamed[f"{row.id}.{'kernel' if tensor_name == 'weight' else tensor_name}"] = _laid_out(tensor)
        else:
            inner = {"linear": "linear.", "batch_norm": "bn.", "layer_norm": "norm."}.get(row.kind)
            inner = f"{module.rpartition('.')[2]}." if inner is None else inner
            renamed[f"{row.id}.{inner}{tensor_name}"] = tensor
    return renamed


def _path(row: Row) -> str | None:
    """Return the path of Pointcept's module for a row with parameters."""
    if not row.num_parameters:
        return None
    return next((match.expand(path) for pattern, path in _PATHS if (match := pattern.fullmatch(row.id))), None)


def _laid_out(tensor: Tensor) -> Tensor:
    """Return a kernel [C_out, k, k, k, C_in] as [k^3, C_in, C_out]; a bias as [1, C]; others, which do not fit, as is.

    The numbers of a kernel of one offset are [C_in, C_out] already: spconv multiplies by them so, whatever shape it
    gives them.
    """
    if tensor.dim() == 1:
        return tensor.unsqueeze(0)
    if tensor.dim() != 5:
        return tensor
    if tensor.shape[1:4].numel() == 1:
        return tensor.reshape(tensor.shape[4], tensor.shape[0])
    return tensor.permute(3, 2, 1, 4, 0).flatten(0, 2)
