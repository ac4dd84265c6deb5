"""Which operations are layers of their own, and which are too small: those join the layer of a value they read."""

from typing import Any

import torch
from torch import Tensor, fx

from .copies import module_at
from .statements import Statement
from .values import is_number, is_tensor

VIEWS = frozenset(
    "getitem getattr view reshape transpose permute select slice narrow squeeze unsqueeze expand expand_as view_as "
    "T mT t contiguous chunk split split_with_sizes unbind unsafe_chunk unsafe_split movedim moveaxis swapaxes "
    "swapdims size shape stride numel unflatten detach alias _unsafe_view lift_fresh_copy sym_size sym_numel "
    "entry_at".split()
)
CASTS = frozenset("to type type_as float double half bfloat16 int long bool cpu _to_copy clone".split())
ARITHMETIC = frozenset(
    "add sub mul truediv div floordiv neg pow mod rsub radd rmul rtruediv eq ne lt le gt ge and or xor invert not "
    "logical_not logical_and logical_or bitwise_not masked_fill where abs clamp same_answer _assert".split()
)
MAKERS = frozenset(
    "arange zeros ones full empty eye linspace tensor as_tensor zeros_like ones_like full_like new_zeros new_ones "
    "new_full triu tril cumsum scalar_tensor index index_select gather".split()
)
OF_SPARSE = frozenset(["replace_feature"])  # of spconv's tensors: other numbers at the same places


def name_of(node: fx.Node) -> str:
    """Return the plain name of what a node does: "add" for operator.add, Tensor.add, torch.add and aten.add.Tensor."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = str(target._opname)
    name = target if isinstance(target, str) else str(getattr(target, "__name__", type(target).__name__))
    if name == "apply_function":
        return str(node.args[0].__name__)  # type: ignore[union-attr]
    return name.strip("_") if name.startswith("__") else name


def is_view(node: fx.Node) -> bool:
    """Return whether a node picks or turns what another holds: no work, no numbers of its own."""
    return node.op in ("call_function", "call_method") and name_of(node) in VIEWS


def is_small(node: fx.Node) -> bool:
    """Return whether a node is no layer: views, casts, arithmetic of one tensor with plain numbers, everything of
    numbers.
    """
    if node.op not in ("call_function", "call_method") or node.meta["draws"]:
        return False
    name = name_of(node)
    if name == "same_answer" or is_view(node):
        return True
    if not holds_tensors(node.meta["value"]):
        return True
    tensors = [source for source in node.all_input_nodes if holds_tensors(source.meta["value"])]
    return name in CASTS | MAKERS | OF_SPARSE or (name in ARITHMETIC and len(tensors) < 2)


def is_cheap(node: fx.Node) -> bool:
    """Return whether a node may be done again by every layer that reads it, if it reads nothing but inputs and
    constants.
    """
    if node.op not in ("call_function", "call_method") or node.meta["draws"]:
        return False
    return is_small(node) or name_of(node) in ARITHMETIC | CASTS | MAKERS | VIEWS


def holds_tensors(value: Any) -> bool:
    if is_tensor(value):
        return True
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return any(map(holds_tensors, value))
    return any(map(holds_tensors, value.values())) if isinstance(value, dict) else False


def of_numbers(node: fx.Node) -> bool:
    """Return whether a node's value is a number, or sizes."""
    value = node.meta["value"]
    return is_number(value) or isinstance(value, torch.Size)


def is_rectified(node: fx.Node, known: set[fx.Node], root: torch.nn.Module) -> bool:
    """Return whether the gradient of a node's value does not matter where that is zero: a ReLU, and max pools behind
    one.
    """
    if not isinstance(node.meta["value"], Tensor):
        return False
    if node.op == "call_module":
        module = module_at(root, str(node.target))
        if type(module) is torch.nn.ReLU:
            return True
        pools = (torch.nn.MaxPool1d, torch.nn.MaxPool2d, torch.nn.MaxPool3d, torch.nn.Flatten)
        return type(module) in pools and set(node.all_input_nodes) <= known
    name = name_of(node)
    if name == "relu":
        return True
    behind = name.startswith("max_pool") or (is_view(node) and name not in ("getattr", "expand", "expand_as"))
    return behind and len(node.all_input_nodes) == 1 and set(node.all_input_nodes) <= known


def reads_pairs(node: fx.Node) -> bool:
    """Return whether a node may read what spconv's layers found out about voxels, under any key."""
    names = (name_of(node), *node.args[1:2])
    return isinstance(node.target, Statement) or "find_indice_pair" in names or "indice_dict" in names
