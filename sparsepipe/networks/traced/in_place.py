"""Operations in place, recorded as ones that are not: a value that crossed must not change, others may hold it too."""

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .recording import CannotBeTraced

_OPERATORS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.ipow: operator.pow,
    operator.imatmul: operator.matmul,
    operator.imod: operator.mod,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}


_OF_MEMORY = frozenset("resize_ resize_as_ set_ apply_ map_ map2_".split())  # no operations on values


def out_of_place(
    kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any], bool]:
    """Return target and arguments of the same without changing anything, and whether it would have changed the first.

    Raises CannotBeTraced if torch has no such function.
    """
    if kwargs.get("out") is not None:
        raise CannotBeTraced("module.writes_into_out", f"{_name(target)} writes into out=")
    if kind == "call_method":
        return _method(target, args, kwargs)
    if kind != "call_function":
        return target, args, kwargs, False
    if target in (operator.setitem, operator.delitem):
        raise CannotBeTraced("module.writes_into_part", "the forward writes into a part of a tensor")
    if target in _OPERATORS:
        return _OPERATORS[target], args, kwargs, True
    if isinstance(target, torch._ops.OpOverload):
        return _overload(target, args, kwargs)
    name = _name(target)
    if name.endswith("_") and not name.endswith("__") and target not in (operator.and_, operator.or_, operator.not_):
        homes = [home for home in (torch, nn.functional) if getattr(home, name, None) is target]
        found = next((getattr(home, name[:-1]) for home in homes if hasattr(home, name[:-1])), None)
        if found is None:
            raise CannotBeTraced("module.works_in_place", f"{name} supports only in-place use")
        return found, args, kwargs, True
    return _with_flags(target, args, kwargs)


def _method(target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, bool]:
    if target == "__setitem__":
        raise CannotBeTraced("module.writes_into_part", "the forward writes into a part of a tensor")
    if (
        target.startswith("__i")
        and target.endswith("__")
        and hasattr(Tensor, f"__{target[3:]}")
        and target[3:] != "nt__"
    ):
        if target not in ("__invert__", "__index__", "__int__"):
            return f"__{target[3:]}", args, kwargs, True
    if not target.endswith("_") or target.endswith("__"):
        return target, args, kwargs, False
    if target in _OF_MEMORY or not callable(getattr(Tensor, target[:-1], None)):
        raise CannotBeTraced("module.works_in_place", f"{target} supports only in-place use")
    return target[:-1], args, kwargs, True


def _overload(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, bool]:
    """ATen's: its schema says what it changes."""
    schema = target._schema
    names = [argument.name for argument in schema.arguments]
    if "sparse" in names and names.index("sparse") < len(args):  # a gradient: see _with_flags
        args = tuple(False if name == "sparse" else each for name, each in zip(names, args, strict=False))
    if not schema.is_mutable or not target._opname.endswith("_"):
        return target, args, kwargs, False
    known = target.namespace == "aten" and target._opname not in _OF_MEMORY
    packet = getattr(torch.ops.aten, target._opname[:-1], None) if known else None
    # By its arguments: pow_.Scalar is pow.Tensor_Scalar, while pow.Scalar is of a number to a tensor.
    wanted = _arguments(schema)
    for name in packet.overloads() if packet is not None else ():
        found = getattr(packet, name)
        if _arguments(found._schema) == wanted:
            return found, args, kwargs, True
    raise CannotBeTraced("module.works_in_place", f"{target} supports only in-place use")


def _arguments(schema: torch.FunctionSchema) -> list[tuple[str, Any]]:
    return [(str(each.type), each.default_value) for each in schema.arguments]


def _with_flags(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any, Any, bool]:
    """F.relu(x, True) and the like; F.embedding(…, sparse=True), whose gradient no stage can exchange or average."""
    if not str(getattr(target, "__module__", "")).startswith("torch."):
        return target, args, kwargs, False
    try:
        bound = inspect.signature(target).bind(*args, **kwargs)
    except (ValueError, TypeError):  # builtins have no signature
        return target, args, kwargs, False
    set_flags = [flag for flag in ("inplace", "sparse") if bound.arguments.get(flag) is True]
    if not set_flags:
        return target, args, kwargs, False
    bound.arguments.update(dict.fromkeys(set_flags, False))
    return target, bound.args, bound.kwargs, "inplace" in set_flags


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target))
