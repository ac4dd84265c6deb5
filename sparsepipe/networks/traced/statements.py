"""Statements of a forward that are one operation each: Python runs them as they stand, on tensors and a part of `self`.

`outlining.py` moves such statements into functions; here is what a recording and a stage do with them.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, NoReturn, Protocol

from torch import Tensor, fx, nn

from .values import clone_of

Uses = tuple[tuple[str | int, ...], ...]  # what code reads of `self`: ("blocks", 3) is self.blocks[3], () all of it


class StatementRecorder(Protocol):
    """Whoever records a forward."""

    def record_statement(
        self, function: FunctionType, values: dict[str, object], written: Sequence[str], uses: Uses, *, returns: bool
    ) -> object:
        """Record a call of a function that statements were moved to."""
        ...


RECORDER: ContextVar[StatementRecorder | None] = ContextVar("RECORDER", default=None)


class Call(ABC):
    """The target of an operation that runs Python as it stands. `called`: the path of the module that it calls."""

    called: str | None = None

    @property
    @abstractmethod
    def modules(self) -> tuple[str, ...]:
        """Paths of the modules that it may call."""

    @abstractmethod
    def run(self, args: Sequence[Any], module: Callable[[str], nn.Module]) -> Any:
        """Run it. `module` returns a module by path."""


@dataclass(frozen=True)
class Statement(Call):
    """A function that statements were moved to, with all that its arguments need but tensors.

    `names`: of the arguments that a node gives, in order; behind them come the tensors that `self` reads directly.
    """

    code: CodeType
    names: tuple[str, ...]
    constants: tuple[tuple[str, object], ...]  # arguments that are the same in every minibatch
    parts: tuple[tuple[str, str], ...]  # arguments that are modules, by path
    copied: frozenset[str]  # arguments that it writes into: it is given copies
    self_name: str  # the argument that is the module itself; "" if it needs none
    path: str  # of that module
    used: tuple[str, ...]  # what it calls of that module, by path within it
    tensors: tuple[str, ...]  # parameters and buffers of that module that it reads directly
    training: bool
    function: FunctionType = field(compare=False)
    owner: nn.Module = field(compare=False)

    __name__ = "statement"

    def __hash__(self) -> int:
        return hash(self.code)  # constants may be lists

    def __call__(self, *args: object) -> NoReturn:  # torch.fx takes nothing else for a function
        raise TypeError("a statement runs within a layer")

    @property
    def modules(self) -> tuple[str, ...]:
        inside = [f"{self.path}.{name}" if self.path else name for name in self.used]
        return tuple(dict.fromkeys([*inside, *(path for _, path in self.parts)]))

    def run(self, args: Sequence[Any], module: Callable[[str], nn.Module]) -> Any:
        given = list(args)
        values: dict[str, object] = dict(zip(self.names, given, strict=False))
        for name in self.copied & values.keys():
            value = values[name]
            values[name] = clone_of(value)
        values.update(self.constants)
        values.update({name: module(path) for name, path in self.parts})
        if self.self_name:
            tensors = dict(zip(self.tensors, given[len(self.names) :], strict=True))
            parts = {name: module(f"{self.path}.{name}" if self.path else name) for name in self.used}
            owner = values[self.self_name] = _partial(self.owner, parts, tensors, self.training)
            before = dict(vars(values[self.self_name]))
        result = self.function(**values)
        if self.self_name:
            after = vars(values[self.self_name])
            if changed := [name for name in after if name not in before or after[name] is not before[name]]:
                raise TypeError(f"a statement that is one layer changes self.{changed[0]}; register it as a buffer")
            if replaced := [name for name, now in owner._buffers.items() if now is not tensors.get(name)]:
                raise TypeError(f"a statement that is one layer replaces self.{replaced[0]}: change it in place")
        return result


def _partial(
    owner: nn.Module, parts: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], training: bool
) -> nn.Module:
    """Return an object like a module, with some of its parts and tensors alone. `parts`: by path within the module."""
    made = type(owner).__new__(type(owner))
    made.__dict__.update(owner.__dict__)
    made.__dict__["training"] = training
    for kind in ("_parameters", "_buffers"):
        held = {name: tensors[name] for name in getattr(owner, kind) if name in tensors}
        made.__dict__[kind] = held
    children: dict[str, nn.Module | None] = {}
    for name, child in owner._modules.items():
        inside = {path.partition(".")[2]: part for path, part in parts.items() if path.partition(".")[0] == name}
        if "" in inside:
            children[name] = inside[""]
        else:
            children[name] = _partial(child, inside, {}, training) if inside and child is not None else None
    made.__dict__["_modules"] = children
    return made


def run_statement(
    function: FunctionType, given: Mapping[str, object], written: Sequence[str], uses: Uses, returns: bool
) -> object:
    """Call a function that statements were moved to; have it recorded if a recording is under way.

    `given`: local variables where the statements stood, of which it writes into those in `written`; `returns`: it gives
    what the forward returns, not its variables by name. Called by the code that `outlining.py` makes.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = {name: given[name] for name in names if name in given}
    recorder = RECORDER.get()
    if recorder is None:
        return function(**values)
    return recorder.record_statement(function, values, written, uses, returns=returns)


def used_of(module: nn.Module, uses: Uses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts of a module that code needs, by path within it, and the tensors that the module has itself."""
    parts, tensors = dict[str, None](), dict[str, None]()
    waiting, seen = list(uses), set[str]()
    while waiting:
        path, part = list[str](), module
        for step in waiting.pop(0):
            children = part._modules
            key = (
                str(step % len(part))
                if isinstance(step, int) and isinstance(part, nn.ModuleList | nn.Sequential)
                else str(step)
            )
            if children.get(key) is None:
                if part is module:
                    waiting += _of_attribute(module, key, tensors, seen)
                break
            path.append(key)
            part = children[key]  # type: ignore[assignment]
        else:
            if not path:
                waiting += [(name,) for name, child in module._modules.items() if child is not None]
                tensors.update(dict.fromkeys([*module._parameters, *module._buffers]))
        if path:
            parts[".".join(path)] = None
    outer = [path for path in parts if not any(path.startswith(f"{other}.") for other in parts)]
    held = [name for name in tensors if {**module._parameters, **module._buffers}[name] is not None]
    return tuple(outer), tuple(held)


_ALL = frozenset("parameters named_parameters modules named_modules children named_children buffers state_dict".split())


def _of_attribute(module: nn.Module, name: str, tensors: dict[str, None], seen: set[str]) -> list[tuple[str, ...]]:
    """Note a tensor of a module; return what a method or property of it may read, by the names in its code."""
    if name in module._parameters or name in module._buffers:
        tensors[name] = None
    if name in seen:
        return []
    seen.add(name)
    if name in _ALL:
        return [()]
    attribute: Any = inspect.getattr_static(type(module), name, None)
    attribute = getattr(attribute, "fget", attribute)
    code = (
        getattr(inspect.unwrap(getattr(attribute, "__func__", attribute)), "__code__", None)
        if attribute is not None
        else None
    )
    return [(each,) for each in names_in(code)] if code is not None else []


def names_in(code: CodeType) -> list[str]:
    """Return the names in code and in what is within it."""
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in names_in(each)]
    return [*code.co_names, *inner]


def module_called(node: fx.Node) -> str | None:
    """Return the path of the module that an operation is the call of; None for a function or statements."""
    if node.op == "call_module":
        return str(node.target)
    return node.target.called if isinstance(node.target, Call) else None


def paths_called(node: fx.Node) -> tuple[str, ...]:
    """Return the paths of the modules that an operation calls, or may call."""
    if node.op == "call_module":
        return (str(node.target),)
    return node.target.modules if isinstance(node.target, Call) else ()
