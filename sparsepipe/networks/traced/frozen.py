"""Finds what a recording took from its own minibatch: lists of its length, tensors that were kept, what Python counts.

A forward is recorded twice in a row, on two minibatches. What differs is no property of the network, and what Python
changes meanwhile would stay as it was once the recording runs in Python's stead.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, GeneratorType
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from .containers import ContainerCall
from .recording import OF_MODULES, Recording, UnevenStatement
from .rows import name_of
from .statements import Statement, module_called
from .values import Structure, is_constant, is_tensor

_TORCH = "torch's generator"
_DEEPEST = 3  # structures inside structures that are looked into
_DATA = (int, float, complex, str, list, dict, set, deque, random.Random, np.random.Generator, np.random.RandomState)
_LONGEST = 1000  # of the lists and dicts outside of modules that are looked into


@dataclass(frozen=True)
class Divergence:
    """First difference between two recordings of a forward: innermost module, and operation."""

    path: str
    why: str
    node: fx.Node | None = None


def difference(first: Recording, again: Recording) -> Divergence | None:
    """Return where two recordings of a forward differ first; None if they do not.

    Raises UnevenStatement for a statement that gives another structure.
    """
    places: dict[fx.Node, int] = {}
    for number, (a, b) in enumerate(zip(first.nodes, again.nodes, strict=False)):
        places[a] = places[b] = number
        why = _other_node(a, b, places)
        if why:
            return Divergence(_common_path(a, b), why, b)
    if len(first.nodes) != len(again.nodes):
        longer = max(first.nodes, again.nodes, key=len)
        node = longer[min(len(first.nodes), len(again.nodes))]
        return Divergence(
            node.meta["path"],
            f"the forward calls {name_of(node)} a different number of times in another minibatch",
            node,
        )
    if first.output_spec != again.output_spec or _placed(first.outputs, places) != _placed(again.outputs, places):
        return Divergence("", "the forward returns another structure for another minibatch")
    return None


def _other_node(a: fx.Node, b: fx.Node, places: dict[fx.Node, int]) -> str:
    """Say how two operations at the same place differ; "" where they do not."""
    if a.op == b.op == "get_attr":
        return _other_state(a, b)
    if a.target != b.target and (statement := _shared_statement(a.target, b.target)) is not None:
        raise UnevenStatement(statement)
    if a.op != b.op or a.target != b.target or a.meta["path"] != b.meta["path"]:
        return (
            f"the forward calls {_call(b)} in one minibatch and {_call(a)} in another; replace the Python condition "
            "by tensor operations"
        )
    ours, theirs = _placed((a.args, a.kwargs), places), _placed((b.args, b.kwargs), places)
    if ours != theirs:
        if any(source.target is len for source in a.all_input_nodes):
            return "Python loops over a list that is as long as the minibatch"
        return (
            f"Python code passes {_call(a)} a number that changes between minibatches; register it as a buffer, or "
            "pass it to forward"
        )
    structures = Structure.of(a.meta["value"]), Structure.of(b.meta["value"])
    if None not in structures and structures[0] != structures[1]:
        if isinstance(a.target, Statement):
            raise UnevenStatement(a.target)
        return f"{_call(a)} returns a list as long as the minibatch"
    return ""


def _shared_statement(a: Any, b: Any) -> Statement | None:
    """Return the statement that both are, given containers; None if they are not."""
    if isinstance(a, ContainerCall) and isinstance(b, ContainerCall) and isinstance(a.inner, Statement):
        return a.inner if a.inner == b.inner else None
    return None


def _other_state(a: fx.Node, b: fx.Node) -> str:
    known = a.meta["registered"], b.meta["registered"]
    ours, theirs = a.meta["value"], b.meta["value"]
    if known == (True, True):
        return (
            "" if a.target == b.target else f"the forward reads {b.target} in one minibatch and {a.target} in another"
        )
    same = known == (False, False) and ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if same and (ours is theirs or torch.equal(ours, theirs)):
        return ""
    return "the forward reads a tensor from an earlier run that differs in each minibatch; register it as a buffer"


def _call(node: fx.Node) -> str:
    return module_called(node) or name_of(node)


def _placed(structure: Any, places: dict[fx.Node, int]) -> Any:
    """Return arguments with the number of each node in its place, and plain values as text: NaN is itself."""
    if isinstance(structure, fx.Node):
        return ("node", places.get(structure))
    if isinstance(structure, tuple | list):
        return [_placed(each, places) for each in structure]
    if isinstance(structure, dict):
        return {key: _placed(each, places) for key, each in structure.items()}
    if isinstance(structure, slice):
        return _placed((structure.start, structure.stop, structure.step), places)
    return repr(structure) if is_constant(structure) else _print(structure)


def _common_path(a: fx.Node, b: fx.Node) -> str:
    """Return the innermost module that both are in: the one whose Python went two ways."""
    shared = []
    for one, two in zip(str(a.meta["path"]).split("."), str(b.meta["path"]).split("."), strict=False):
        if one != two:
            break
        shared.append(one)
    return ".".join(shared)


class Watch:
    """Notices what Python changes: attributes that are no tensors, and numbers drawn by others than torch's modules."""

    def __init__(self, module: nn.Module) -> None:
        self._paths = {part: path for path, part in module.named_modules()}
        self._known: dict[nn.Module, dict[str, Any]] = {}
        self.note(self._paths)
        self.note_draws()

    def note(self, parts: Iterable[nn.Module]) -> None:
        """Take the attributes of modules, as they are now, for known."""
        self._known.update({part: _attributes(part) for part in parts})

    def note_draws(self) -> None:
        self._draws = _draws()

    def changed(self, parts: Iterable[nn.Module] | None = None) -> str:
        """Say what of modules, all by default, is another than when it was noted; "" if nothing is."""
        for part in self._paths if parts is None else parts:
            now, before = _attributes(part), self._known.get(part)
            if before is None or now == before:
                continue
            name = min(key for key in now.keys() | before.keys() if now.get(key) != before.get(key))
            place = ".".join(each for each in (self._paths.get(part, ""), name) if each)
            return f"Python code changes {place} in every minibatch; register it as a buffer, or pass it to forward"
        return ""

    def drawn(self, *, torch_too: bool = True) -> str:
        """Say whether somebody drew random numbers since they were noted; "" where not."""
        drew = [
            name for name, state in _draws().items() if state != self._draws[name] and (torch_too or name != _TORCH)
        ]
        return f"Python code draws random numbers from {drew[0]}; use torch.rand instead" if drew else ""


def outside(module: nn.Module) -> dict[str, Any]:
    """Return, by name, what a forward may change and no one gives back: of classes, globals that they read, iterators.

    Two of them, before and after a forward, are equal unless it did.
    """
    found: dict[str, Any] = {}
    for part in module.modules():
        found.update(
            {
                f"{type(part).__name__}.{name}": _print(value)
                for name, value in vars(part).items()
                if name not in OF_MODULES and isinstance(value, Iterator)
            }
        )
    for kind in {kind for part in module.modules() for kind in type(part).__mro__}:
        if kind.__module__.startswith(("torch.", "builtins", "Minkowski", "spconv.")):
            continue
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType):
                found[f"a default of {kind.__name__}.{name}"] = _print(value.__defaults__)
                known: Mapping[str, Any] = value.__globals__
                found.update({key: _print(known[key]) for key in value.__code__.co_names if _is_data(known.get(key))})
            elif _is_data(value):
                found[f"{kind.__name__}.{name}"] = _print(value)
    return found


def _is_data(value: Any) -> bool:
    return isinstance(value, Iterator) or (
        isinstance(value, _DATA) and not (hasattr(value, "__len__") and len(value) > _LONGEST)
    )


def _draws() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy.random": _print(np.random.get_state()),
        _TORCH: torch.get_rng_state().numpy().tobytes(),
    }


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: _print(value) for name, value in vars(part).items() if name not in OF_MODULES}


def _print(value: Any, depth: int = 0) -> Any:
    """Return what can be compared later: numbers and texts as they are, of tensors and what is unknown but the kind."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return type(value).__name__, repr(value)
    if isinstance(value, fx.Proxy | nn.Module) or is_tensor(value) or depth > _DEEPEST:
        return "tensor"
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.dtype != object else None
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return frame and (frame.f_lasti, _print(dict(frame.f_locals), depth + 1))
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return _print(value.__reduce__()[1:], depth + 1)  # where it is in what
    if isinstance(value, np.random.Generator):
        return _print(value.bit_generator.state, depth + 1)
    if isinstance(value, np.random.RandomState):
        return _print(value.get_state(), depth + 1)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, dict):
        return [(repr(key), _print(each, depth + 1)) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_print(each, depth + 1) for each in value]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and not isinstance(value, type):
        return type(value).__name__, _print(own, depth + 1)
    return type(value).__name__
