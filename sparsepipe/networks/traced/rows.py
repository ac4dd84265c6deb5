"""The rows of a traced network: what each layer does in either mode, and what crosses between them."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ...errors import InputError
from .copies import module_at
from .statements import Statement
from .values import Structure, features, is_number, is_tensor


@dataclass(frozen=True)
class LayerPort:
    """A value that crosses between layers: how it is made of tensors, and their names."""

    node: fx.Node
    structure: Structure
    names: tuple[str, ...]


@dataclass(frozen=True)
class LayerProgram:
    """Operations of a layer in one mode."""

    steps: tuple[fx.Node, ...] = ()
    reads: tuple[LayerPort, ...] = ()
    gives: tuple[LayerPort, ...] = ()
    state: Mapping[fx.Node, str] = field(default_factory=dict)  # its own parameters and buffers, by name
    constants: Mapping[fx.Node, str] = field(default_factory=dict)
    borrowed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # module → its parameter → value
    draws: bool = False

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        names = [name for port in self.reads for name in port.names]
        names += [value for own in self.borrowed.values() for value in own.values()]
        return tuple(dict.fromkeys(names))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for port in self.gives for name in port.names)


@dataclass(frozen=True)
class TracedRow:
    """One layer: the calls of a module and what goes with them, a function, or a parameter that several layers read."""

    id: str
    kind: str  # "Conv2d", "add", "parameter", "buffer"
    description: str
    num_parameters: int  # trained ones
    parameter_bytes: int
    keys: tuple[str, ...]  # of the module's state_dict, those that the layer has
    modules: tuple[str, ...]  # paths of the modules that it calls
    programs: Mapping[bool, LayerProgram]  # by whether it trains; a layer may be missing in one of both

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return self._both("inputs")

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return self._both("outputs")

    def _both(self, what: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for program in self.programs.values() for name in getattr(program, what)))


@dataclass(frozen=True)
class Result:
    """Structure of a forward's return value. A leaf is (structure, names), or a constant."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        found = [name for leaf in self.leaves if isinstance(leaf, LayerPort) for name in leaf.names]
        return tuple(dict.fromkeys(found))

    def join(self, tensors: Mapping[str, Any]) -> Any:
        leaves = [
            leaf.structure.join(tensors[name] for name in leaf.names) if isinstance(leaf, LayerPort) else leaf
            for leaf in self.leaves
        ]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class Length:
    """Allowed length of an axis. Axes of the same name have the same length."""

    name: str
    least: int
    most: int

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        if self.most == sys.maxsize:
            return f"at least {self.least}" if self.least else self.name
        return f"{self.least} to {self.most}"

    def agrees(self, length: int, lengths: dict[str, int]) -> bool:
        return self.least <= length <= self.most and lengths.setdefault(self.name, length) == length


@dataclass(frozen=True)
class Sizes:
    """Of each input, how long its axes may be; nothing if they may be anything."""

    owner: str
    axes: Mapping[str, tuple[Length, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, owner: str, recorded: Mapping[bool, Mapping[str, tuple[Length, ...]]]) -> "Sizes":
        """Take what all phases allow."""
        first, *others = recorded.values()
        axes = dict(first)
        for each in others:
            for name, lengths in each.items():
                axes[name] = tuple(
                    Length(one.name, max(one.least, two.least), min(one.most, two.most))
                    for one, two in zip(axes[name], lengths, strict=True)
                )
        return cls(owner, axes)

    def fixed(self, name: str, axis: int) -> bool:
        """Return whether an axis has to be as long as in the example."""
        return self.axes[name][axis].least == self.axes[name][axis].most

    def single(self, tensors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield an example with one of its lengths cut down to 1, for each that may be so short."""
        for name in sorted({each.name for axes in self.axes.values() for each in axes if each.least <= 1 < each.most}):
            found = dict(tensors)
            for key, axes in self.axes.items():
                for axis, length in enumerate(axes):
                    if length.name == name:
                        found[key] = found[key].narrow(axis, 0, 1)
            yield found

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raises InputError for tensors of sizes that the network was not recorded for."""
        lengths: dict[str, int] = {}
        for name, tensor in tensors.items():
            shape, expected = features(tensor).shape, self.axes.get(name)
            if expected is None:
                continue
            same = len(shape) == len(expected)
            if not same or not all(e.agrees(n, lengths) for e, n in zip(expected, shape, strict=True)):
                raise InputError(
                    "example.size_differs",
                    f"{self.owner}: {name} has sizes {list(shape)}, but the traced forward needs "
                    f"[{', '.join(map(str, expected))}]; trace it with an example of these sizes",
                    name=name,
                )


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


# Which operations are layers of their own, and which are too small: those join the layer of a value they read
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
