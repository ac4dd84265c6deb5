"""Copies of a module's parts for a stage, under the names that they have in the module."""

import contextlib
import copy
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Branch(nn.Module):
    """A place in a tree of names."""


def copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copy a module with its parameters and buffers; what Python cannot copy, such as functions in C, is shared."""
    tried = dict(memo)  # a copy that fails leaves what it began
    if any(_slots(part) for part in module.modules()):
        return _by_parts(module, memo)  # Python's copies leave them out
    try:
        made = copy.deepcopy(module, tried)
    except Exception:  # whatever its parts say to it
        return _by_parts(module, memo)
    memo.update(tried)
    return made


def _by_parts(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    if id(module) in memo:
        return memo[id(module)]
    made = module.__class__.__new__(module.__class__)
    memo[id(module)] = made
    made.__dict__.update(module.__dict__)
    for slot in _slots(module):
        with contextlib.suppress(AttributeError):  # empty: the name is a parameter's
            slot.__set__(made, slot.__get__(module))
    made.__dict__["_parameters"] = {name: _tensor(each, memo) for name, each in module._parameters.items()}
    made.__dict__["_buffers"] = {name: _tensor(each, memo) for name, each in module._buffers.items()}
    made.__dict__["_modules"] = {
        name: each if each is None else _by_parts(each, memo) for name, each in module._modules.items()
    }
    return made


def _slots(module: nn.Module) -> list[Any]:
    """Return the descriptors of attributes that are not in a module's __dict__: MinkowskiEngine's have some."""
    return [
        found
        for kind in type(module).__mro__
        for name in kind.__dict__.get("__slots__", ())
        if inspect.ismemberdescriptor(found := kind.__dict__.get(name))
    ]


def _tensor(tensor: Tensor | None, memo: dict[int, Any]) -> Tensor | None:
    if tensor is None:
        return None
    if id(tensor) not in memo:
        with torch.no_grad():
            own = tensor.detach().clone()
        memo[id(tensor)] = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
    return memo[id(tensor)]


class Tree:
    """Fills a stage with copies of some modules, parameters and buffers of another module."""

    def __init__(self, stage: nn.Module, root: nn.Module) -> None:
        self.stage, self.root = stage, root
        self.memo: dict[int, Any] = {}
        self.whole: nn.Module | None = None  # the root itself as one layer

    def lend(self, tensors: Collection[Tensor]) -> None:
        """Leave these out of the copies: they come as values."""
        self.memo.update({id(tensor): tensor for tensor in tensors})

    def add_module(self, path: str) -> None:
        """Put a copy of the module at `path` where it is in the root."""
        module = module_at(self.root, path)
        made = copied(module, self.memo)
        for part in made.modules():
            if isinstance(part.__dict__.get("inplace"), bool):
                part.__dict__["inplace"] = False  # a stage's input must not change
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False  # gradients are exchanged, averaged and clipped as dense ones
        if not path:
            self._spread(made)
            return
        holder, _, name = path.rpartition(".")
        self._branch(holder)._modules[name] = made

    def _spread(self, made: nn.Module) -> None:
        """Have the stage and the copy of the root hold the same parts."""
        self.whole = made
        for kind in ("_parameters", "_buffers", "_modules"):
            self.stage.__dict__[kind].update(made.__dict__[kind])
            made.__dict__[kind] = self.stage.__dict__[kind]
        self.stage._non_persistent_buffers_set |= made._non_persistent_buffers_set

    def add_tensor(self, key: str) -> None:
        """Replace one parameter or buffer of the root by a copy."""
        holder, _, name = key.rpartition(".")
        source, target = module_at(self.root, holder), self._branch(holder)
        kind = "_parameters" if name in source._parameters else "_buffers"
        target.__dict__[kind][name] = _tensor(source.__dict__[kind][name], {})
        if name in source._non_persistent_buffers_set:
            target._non_persistent_buffers_set.add(name)

    def remove(self, key: str) -> None:
        """Take a parameter that is lent out of a copy."""
        holder, _, name = key.rpartition(".")
        (self.whole if self.whole is not None and not holder else self._branch(holder))._parameters[name] = None

    def _branch(self, path: str) -> nn.Module:
        here = self.stage
        for name in path.split(".") if path else ():
            if here._modules.get(name) is None:
                here._modules[name] = Branch()
            found = here._modules[name]
            assert found is not None
            here = found
        return here


def tensor_at(root: nn.Module, key: str) -> Tensor:
    """Return a parameter or buffer by name."""
    holder, _, name = key.rpartition(".")
    module: Any = root
    for part in holder.split(".") if holder else ():
        module = module._modules[part]
    found = module._parameters.get(name)
    return found if found is not None else module._buffers[name]


def module_at(root: nn.Module, path: str) -> nn.Module:
    """Return a submodule by path, whatever else the root calls so."""
    module: Any = root
    for part in path.split(".") if path else ():
        module = module._modules[part]
    return module


def lent_keys(borrowed: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [f"{path}.{name}" if path else name for path, own in borrowed.items() for name in own]


@contextlib.contextmanager
def other_weights(stage: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Have a stage hold other tensors as its parameters of these names, under all their names, while the block runs.

    Unlike `torch.func.functional_call` it finds a part under any name: "network" and "result" are the stage's own too.
    """
    own = {id(parameter): weights[name] for name, parameter in stage.named_parameters() if name in weights}
    places = [
        (part._parameters, name, parameter)
        for part in stage.modules()
        for name, parameter in part._parameters.items()
        if id(parameter) in own
    ]
    try:
        for parameters, name, parameter in places:
            parameters[name] = own[id(parameter)]  # type: ignore[assignment]  # no Parameter: a version of it
        yield
    finally:
        for parameters, name, parameter in places:
            parameters[name] = parameter
