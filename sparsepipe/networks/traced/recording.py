"""What one forward does, written down: its operations in order, each with what it gave on the example."""

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ...errors import CodedError
from .copies import module_at
from .rows import Length
from .statements import Call, Statement, paths_called
from .values import tensors_of

CONTAINERS = (  # of torch's own modules those that are looked into
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
)


OF_HOOKS = "the forward registers a gradient hook"
OF_TRANSFORMS = "the forward uses a transform of torch.func (vmap, grad, jvp, ...)"
_REGISTERED = ("_buffers", "_parameters", "_modules")
OF_MODULES = frozenset(vars(nn.Module()))  # attributes that every module has


Position = tuple[FunctionType, tuple[int, int]]  # a method, line and column


class CannotBeTraced(CodedError):
    """A forward does what a graph of operations cannot say."""


class StoppedModule(Exception):
    """A module's forward cannot be recorded, and it is too large to be one layer."""

    def __init__(self, path: str, why: str, positions: Sequence[Position], *, takes_object: bool = False) -> None:
        """`positions`: where it was in the module's methods, the innermost first; `takes_object`: such as a cache."""
        super().__init__(f"{path}: {why}")
        self.path, self.why, self.positions, self.takes_object = path, why, positions, takes_object


class UnevenStatement(Exception):
    """A statement that is one operation gives a list that is as long as the minibatch."""

    def __init__(self, statement: Statement) -> None:
        super().__init__("a statement gives a list that is as long as the minibatch")
        self.statement = statement


class ChangedModule(Exception):
    """A module's forward does something else in the minibatch after the one that was recorded."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


@dataclass
class Recording:
    """The operations of one forward in one mode.

    Of each node, `meta` has:

    value      what it gave on the example; dropped once layers are made
    path       the module in whose forward it is
    draws      whether it drew random numbers
    no_grad    whether it ran without gradients
    written    the nodes whose tensors it changed
    buffers    the buffers that it changed, by name
    positions  where it is in the methods of the module in whose forward it is
    """

    nodes: list[fx.Node]
    inputs: Mapping[str, fx.Node]
    outputs: list[Any]  # nodes, and what is the same in every minibatch
    output_spec: pytree.TreeSpec
    opaque: dict[str, str] = field(default_factory=dict)  # path of what could not be looked into → why
    statements: dict[str, str] = field(default_factory=dict)  # file and line of those that are one operation → why
    sizes: dict[str, tuple[Length, ...]] = field(default_factory=dict)  # of inputs, where Python may have read them


def is_leaf(module: nn.Module) -> bool:
    """Return whether a module is one layer as it is: torch's, MinkowskiEngine's, scripted ones, and those without
    parts.
    """
    home = type(module).__module__
    if isinstance(module, torch.jit.ScriptModule):
        return True
    if home.startswith(("torch.nn", "torch.ao")):
        return not isinstance(module, CONTAINERS)
    if home.startswith("Minkowski") and not home.startswith("MinkowskiEngine."):
        return True
    return next(module.children(), None) is None


def names_of(module: nn.Module) -> dict[int, str]:
    """Return the name of each parameter and buffer by its identity: the first of them for one that has several."""
    found: dict[int, str] = {}
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            found.setdefault(id(tensor), name)
    return found


@contextmanager
def put_back(module: nn.Module) -> Iterator[None]:
    """Undo what the block does to a module: its buffers, attributes, modes; torch's random numbers and transforms."""
    attributes = attributes_of(module)
    scripted = [(part, part.training) for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]
    values = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    undoing = _undoing([part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)])
    transforms = torch._C._functorch.get_dynamic_layer_stack_depth()
    with own_draws():
        try:
            yield
        finally:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(transforms)  # a vmap that was left midway
            restore(attributes)
            for part, training in scripted:
                part.training = training
            for undo in undoing:
                undo()
            with torch.no_grad():
                for buffer, value in values:
                    if buffer.shape != value.shape:
                        buffer.resize_(value.shape)
                    if buffer.layout != torch.strided or not torch.equal(buffer, value):
                        buffer.copy_(value)


def attributes_of(module: nn.Module) -> list[tuple[nn.Module, dict[str, Any], dict[str, dict[str, Any]]]]:
    """Return attributes, buffers, parameters and parts of each part, but for scripted ones: theirs are in C++."""
    return [
        (part, dict(part.__dict__), {name: dict(part.__dict__[name]) for name in _REGISTERED})
        for part in module.modules()
        if not isinstance(part, torch.jit.ScriptModule)
    ]


def _undoing(parts: list[nn.Module]) -> list[Callable[[], Any]]:
    """Return functions that give the lists, sets, dicts and generators that modules keep what they have now."""
    values = [value for part in parts for name, value in vars(part).items() if name not in OF_MODULES]
    found: dict[int, Callable[[], Any]] = {}
    while values:
        value = values.pop()
        if id(value) in found:
            continue
        if isinstance(value, list | set | dict | deque):
            found[id(value)] = partial(_refill, value, copy.copy(value))
            values += value.values() if isinstance(value, dict) else value
        elif isinstance(value, random.Random):
            found[id(value)] = partial(value.setstate, value.getstate())
        elif isinstance(value, np.random.Generator):
            found[id(value)] = partial(setattr, value.bit_generator, "state", value.bit_generator.state)
        elif isinstance(value, np.random.RandomState):
            found[id(value)] = partial(value.set_state, value.get_state())
        elif isinstance(value, torch.Generator):
            found[id(value)] = partial(value.set_state, value.get_state())
    return list(found.values())


def _refill(holder: Any, held: Any) -> None:
    holder.clear()
    (holder.extend if isinstance(holder, list | deque) else holder.update)(held)


@contextmanager
def own_draws(*, devices: Sequence[int] = ()) -> Iterator[None]:
    """Let the block draw random numbers, of torch, numpy and Python; their generators are as before afterwards.

    `devices`: numbers of the GPUs that may draw, too.
    """
    drawn = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def restore(attributes: list[tuple[nn.Module, dict[str, Any], dict[str, dict[str, Any]]]]) -> None:
    """Give modules the attributes, buffers, parameters and parts that they had."""
    for part, had, registered in attributes:
        part.__dict__.clear()
        part.__dict__.update(had)
        for name, values in registered.items():
            part.__dict__[name].clear()
            part.__dict__[name].update(values)


def run(node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], module: Callable[[str], nn.Module]) -> Any:
    """Do what a node says."""
    if node.op == "call_module":
        return module(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if isinstance(node.target, Call):
        return node.target.run(args, module)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def filled(argument: Any, value: Callable[[Any], Any]) -> Any:
    """Return an argument with values in the place of nodes, and of devices; containers are rebuilt, plain ones."""
    if isinstance(argument, fx.Node | torch.device):
        return value(argument)
    if isinstance(argument, tuple):
        items = [filled(each, value) for each in argument]
        return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
    if isinstance(argument, list):
        return [filled(each, value) for each in argument]
    if isinstance(argument, dict):
        return {key: filled(each, value) for key, each in argument.items()}
    if isinstance(argument, slice):
        return slice(*(filled(each, value) for each in (argument.start, argument.stop, argument.step)))
    return argument


def example_of(given: Any) -> Any:
    return given.meta["value"] if isinstance(given, fx.Node) else given


def observe(node: fx.Node, root: nn.Module, names: Mapping[int, str]) -> None:
    """Run a node on the example and write down what it gave, drew and changed. `names`: of the root's tensors."""
    args, kwargs = filled(node.args, example_of), filled(node.kwargs, example_of)
    read = [
        (source, tensor, tensor._version, _kept(source, tensor))
        for source in node.all_input_nodes
        for tensor in _counted(source)
    ]
    held = {
        path: {
            name: (buffer, buffer._version, buffer.clone())
            for name, buffer in module_at(root, path).named_buffers()
            if not torch.is_inference(buffer)
        }
        for path in paths_called(node)
    }
    drawn, of_python = torch.get_rng_state(), _drawn_by_python()
    value = run(node, args, kwargs, partial(module_at, root))
    node.meta["value"] = value
    node.meta["draws"] = not torch.equal(drawn, torch.get_rng_state()) or of_python != _drawn_by_python()
    node.meta["no_grad"] = not torch.is_grad_enabled()
    node.meta["written"] = {
        source
        for source, tensor, version, kept in read
        if tensor._version != version or (kept is not None and not _is_same(tensor, kept))
    }
    node.meta["buffers"] = set()
    for path, buffers in held.items():
        now = dict(module_at(root, path).named_buffers())
        for name, (buffer, version, kept) in buffers.items():
            if now.get(name) is not buffer or buffer._version != version or not _is_same(buffer, kept):
                node.meta["buffers"].add(names.get(id(buffer), f"{path}.{name}"))
    node.meta["storages"] = frozenset(
        tensor.untyped_storage()._cdata for tensor in tensors_of(value) if tensor.layout == torch.strided
    )


def _drawn_by_python() -> tuple[object, ...]:
    """Return where the generators of Python and numpy are."""
    of_numpy: Any = np.random.get_state()
    return random.getstate(), of_numpy[1].tobytes(), *of_numpy[2:]


def _kept(source: fx.Node, tensor: Tensor) -> Tensor | None:
    """Return a copy of a buffer: norms change theirs without counting it."""
    state = source.op == "get_attr" and not isinstance(tensor, nn.Parameter)
    return tensor.clone() if state and tensor.layout == torch.strided else None


def _is_same(tensor: Tensor, kept: Tensor) -> bool:
    if tensor.layout != torch.strided:  # which count their changes, all of them
        return True
    return tensor.shape == kept.shape and bool(((tensor == kept) | ((tensor != tensor) & (kept != kept))).all())


def _counted(node: fx.Node) -> list[Tensor]:
    """Return the tensors of a value that count how often they were changed."""
    return [tensor for tensor in tensors_of(node.meta["value"]) if not tensor.is_inference()]


def minkowski_functions() -> tuple[list[Any], list[Callable[..., Any]]]:
    """Return the places of MinkowskiEngine's functions and the functions, where somebody imported it; else nothing."""
    library = sys.modules.get("MinkowskiEngine")
    if library is None:
        return [], []
    places = [library, sys.modules["MinkowskiFunctional"]] if "MinkowskiFunctional" in sys.modules else [library]
    places += [module for name, module in list(sys.modules.items()) if name == "MinkowskiEngine.MinkowskiFunctional"]
    found = [value for place in places[1:] for value in vars(place).values() if type(value).__name__ == "function"]
    return places, [library.cat, *found]
