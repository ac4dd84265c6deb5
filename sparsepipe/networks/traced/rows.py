"""The rows of a traced network: what each layer does in either mode, and what crosses between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from .values import Structure


@dataclass(frozen=True)
class Port:
    """A value that crosses between layers: how it is made of tensors, and their names."""

    node: fx.Node
    structure: Structure
    names: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """What a layer does in one mode."""

    steps: tuple[fx.Node, ...] = ()
    reads: tuple[Port, ...] = ()
    gives: tuple[Port, ...] = ()
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
    programs: Mapping[bool, Program]  # by whether it trains; a layer may be missing in one of both

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
    """How what a forward returns is made of values. A leaf is (structure, names), or what is always the same."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        found = [name for leaf in self.leaves if isinstance(leaf, Port) for name in leaf.names]
        return tuple(dict.fromkeys(found))

    def join(self, tensors: Mapping[str, Any]) -> Any:
        leaves = [
            leaf.structure.join(tensors[name] for name in leaf.names) if isinstance(leaf, Port) else leaf
            for leaf in self.leaves
        ]
        return pytree.tree_unflatten(leaves, self.spec)
