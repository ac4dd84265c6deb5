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
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}


def is_operator_in_place(target: Any) -> bool:
    return target in _OPERATORS if callable(target) else False


def out_of_place(
    kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any], bool]:
    """Return target and arguments of the same without changing anything, and whether it would have changed the first.

    Raises CannotBeTraced where torch has no such function.
    """
    if kwargs.get("out") is not None:
        raise CannotBeTraced(f"{_name(target)} writes into out=")
    if kind == "call_method":
        return _method(target, args, kwargs)
    if kind != "call_function":
        return target, args, kwargs, False
    if target in (operator.setitem, operator.delitem):
        raise CannotBeTraced("it writes into a part of a tensor")
    if target in _OPERATORS:
        return _OPERATORS[target], args, kwargs, True
    if isinstance(target, torch._ops.OpOverload):
        return _overload(target, args, kwargs)
    name = _name(target)
    if name.endswith("_") and not name.endswith("__"):
        found = getattr(torch, name[:-1], None) or getattr(nn.functional, name[:-1], None)
        if found is None:
            raise CannotBeTraced(f"{name} works in place alone")
        return found, args, kwargs, True
    return _flag(target, args, kwargs)


def _method(target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, bool]:
    if target == "__setitem__":
        raise CannotBeTraced("it writes into a part of a tensor")
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
    if not callable(getattr(Tensor, target[:-1], None)):
        raise CannotBeTraced(f"{target} works in place alone")
    return target[:-1], args, kwargs, True


def _overload(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, bool]:
    """ATen's: its schema says what it changes."""
    if not target._schema.is_mutable or not target._opname.endswith("_"):
        return target, args, kwargs, False
    packet = getattr(torch.ops.aten, target._opname[:-1], None)
    found = getattr(packet, target._overloadname, None) if packet is not None else None
    if found is None or target.namespace != "aten":
        raise CannotBeTraced(f"{target} works in place alone")
    return found, args, kwargs, True


def _flag(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, bool]:
    """F.relu(x, True) and the like."""
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):  # builtins tell no signature
        return target, args, kwargs, False
    if "inplace" not in signature.parameters:
        return target, args, kwargs, False
    bound = signature.bind(*args, **kwargs)
    if not bound.arguments.get("inplace"):
        return target, args, kwargs, False
    bound.arguments["inplace"] = False
    return target, bound.args, bound.kwargs, True


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target))
