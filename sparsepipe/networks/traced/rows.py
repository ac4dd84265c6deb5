"""The rows of a traced network: what each layer does in either mode, and what crosses between them."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from ...errors import InputError
from .values import Structure, features


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
