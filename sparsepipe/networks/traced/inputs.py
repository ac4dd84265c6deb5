"""What a forward takes: the tensors among its arguments by name, from an example of them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import InputError
from .values import flattened, is_constant, is_number, is_sparse, is_tensor, one_sample_more, written_path

ONLY = "input"  # the name of a network's input where it has one tensor


@dataclass(frozen=True)
class ForwardInputs:
    """The arguments of a forward: an example's structure, and the name of each tensor in it."""

    owner: str  # who is named in errors
    spec: pytree.TreeSpec
    names: tuple[str, ...]  # of each leaf; only tensors are inputs
    leaves: tuple[Any, ...]
    keywords: bool
    constants: dict[str, Any] = field(default_factory=dict)
    takes_dict: bool = False  # a dict is the forward's argument, not its keywords

    @classmethod
    def of(cls, owner: str, example: Any, forward: Callable[..., Any] | None = None) -> "ForwardInputs":
        """A dict holds the keywords of `forward`, or is its one argument if it takes no such keywords.

        Raises InputError for an example without a tensor, or with what is neither tensor nor plain value.
        """
        takes_dict = isinstance(example, dict) and forward is not None and _takes_dict(forward, example)
        arguments = _arguments(example, takes_dict)
        leaves, spec = flattened(arguments)  # copies: a forward may change them, and one may be there twice
        leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        names = tuple(_name(path[takes_dict:]) for path, _ in pytree.tree_flatten_with_path(arguments)[0])
        if not any(map(is_tensor, leaves)):
            raise InputError(
                "example.no_tensor",
                f"{owner}: the tracing example contains no tensor; give one with at least one tensor",
            )
        for name, leaf in zip(names, leaves, strict=True):
            if not (is_tensor(leaf) or is_number(leaf) or is_constant(leaf)):
                raise InputError(
                    "example.argument_kind",
                    f"{owner}: argument {name} is a {type(leaf).__name__}, expected tensors and numbers",
                )
        constants = {name: leaf for name, leaf in zip(names, leaves, strict=True) if not is_tensor(leaf)}
        if len(leaves) == 1 and not isinstance(example, dict):
            names = (ONLY,)
        return cls(owner, spec, names, tuple(leaves), isinstance(arguments, dict), constants, takes_dict)

    @property
    def tensors(self) -> dict[str, Any]:
        """Name → the example's tensor."""
        return {name: leaf for name, leaf in zip(self.names, self.leaves, strict=True) if is_tensor(leaf)}

    def arguments(self, tensors: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with these tensors instead of the example's."""
        leaves = [tensors.get(name, leaf) for name, leaf in zip(self.names, self.leaves, strict=True)]
        found = pytree.tree_unflatten(leaves, self.spec)
        return ((), found) if self.keywords else (found, {})

    def another(self, tensors: Mapping[str, Any]) -> "ForwardInputs":
        """Return the arguments of another minibatch: the same with other tensors."""
        own = {name: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for name, leaf in tensors.items()}
        return replace(
            self, leaves=tuple(own.get(name, leaf) for name, leaf in zip(self.names, self.leaves, strict=True))
        )

    def larger(self) -> "ForwardInputs":
        """Return the arguments of a minibatch of one sample more: the example's last one comes first, too."""
        sizes = [len(tensor) for tensor in self.tensors.values() if isinstance(tensor, Tensor) and tensor.dim()]
        found = {}
        for name, tensor in self.tensors.items():
            if is_sparse(tensor):
                found[name] = one_sample_more(tensor)
            elif tensor.dim() and 0 < len(tensor) == sizes[0]:
                found[name] = torch.cat([tensor[-1:], tensor])
        return self.another(found)

    def bind(self, given: Any) -> dict[str, Any]:
        """Name the tensors of a minibatch, which may leave out those that are not needed.

        Raises InputError for a plain value other than the example's: the network was traced with that.
        """
        if is_tensor(given) and self.names == (ONLY,):
            return {ONLY: given}
        arguments = _arguments(given, self.takes_dict)
        single = self.names == (ONLY,)
        found = {}
        for path, leaf in pytree.tree_flatten_with_path(arguments)[0]:
            name = ONLY if single else _name(path[self.takes_dict :])
            if is_tensor(leaf) and name in self.names and name not in self.constants:
                found[name] = leaf
            elif leaf is not None and not (is_tensor(leaf) and name not in self.names):
                if name not in self.constants or self.constants[name] != leaf:
                    expected = repr(self.constants[name]) if name in self.constants else "a tensor"
                    raise InputError(
                        "example.argument_differs",
                        f"{self.owner}: argument {name} is {leaf!r}, but it was traced with {expected}; trace the "
                        "module again",
                        name=name,
                    )
            elif is_tensor(leaf):
                raise InputError(
                    "example.argument_unknown",
                    f"{self.owner}: argument {name} did not exist when the module was traced",
                    name=name,
                )
        return found


def _arguments(given: Any, takes_dict: bool) -> tuple[Any, ...] | dict[str, Any]:
    """Return what a minibatch has as a forward's arguments, positional ones or keywords."""
    whole = takes_dict or not isinstance(given, tuple | dict) or hasattr(given, "_fields")
    return (given,) if whole else given


def _takes_dict(forward: Callable[..., Any], example: Mapping[str, Any]) -> bool:
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):  # of a forward in C
        return False
    return not _binds(signature, **example) and _binds(signature, example)


def _binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _name(path: Any) -> str:
    """Write a place in the arguments: "input:0", "input:batch.words"."""
    return f"{ONLY}:{written_path(path)}"
