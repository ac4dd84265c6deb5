"""Stand-ins for values while a forward is recorded: they know the example's, and tell what does not depend on it."""

import dis
import inspect
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, fx

from ...errors import InputError
from .recording import OF_HOOKS, CannotBeTraced
from .rows import name_of, of_numbers
from .values import is_constant, is_of_spconv, is_tensor

_SAME_FOR_ALL = frozenset(  # methods whose answer has to do with the kind of tensor, not with its sizes or numbers
    "dim ndimension is_floating_point is_complex is_signed element_size get_device is_inference".split()
)
_READ_AS_MEMORY = (torch._C.StorageBase, torch.Generator)  # C code asks for the class, then reads the object's memory
_UNPACK = dis.opmap["UNPACK_SEQUENCE"]


class ValueProxy(fx.Proxy):
    """A value of the forward that is being recorded. Says that it is of the value's own class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        value = self.node.meta["value"]
        return type(self) if isinstance(value, _READ_AS_MEMORY) else type(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__fx"):
            raise AttributeError(name)
        value = self.node.meta["value"]
        found = getattr(value, name)
        if inspect.ismethod(found) or inspect.isbuiltin(found) or inspect.ismethoddescriptor(found):
            return _method(self, name, found)
        if is_tensor(value) and not is_of_spconv(value) and isinstance(found, bool | int):
            return found  # ndim, is_cuda, requires_grad; the batch size of spconv's tensors is each minibatch's
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __iter__(self) -> Iterator[Any]:
        value = self.node.meta["value"]
        if isinstance(value, dict):
            return iter(list(value))
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        code = frame.f_back.f_code.co_code
        if isinstance(value, torch.Size) or code[frame.f_back.f_lasti] == _UNPACK:  # a, b = tensor
            return iter([self._item(i) for i in range(len(value))])
        if isinstance(value, tuple | list):
            return iter([self._item(i) for i in range(self.tracer.expect_length(self))])  # type: ignore[attr-defined]
        if self.node.op == "get_attr" and self.node.meta["registered"]:  # as long in every minibatch
            return iter([self._item(i) for i in range(len(value))])
        raise CannotBeTraced("module.loops_over_rows", "Python code loops over the rows of a tensor")

    def _item(self, key: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.getitem, (self, key), {})

    def __len__(self) -> int:
        value = self.node.meta["value"]
        if isinstance(value, torch.Size | dict):
            return len(value)
        if isinstance(value, tuple | list):
            return self.tracer.expect_length(self)  # type: ignore[attr-defined, no-any-return]
        raise CannotBeTraced("module.counts_rows", "Python code uses the number of rows of a tensor")

    def __index__(self) -> int:
        raise CannotBeTraced("module.counts_numbers", "Python code uses a size as a number, such as a count of turns")

    def __int__(self) -> int:
        raise CannotBeTraced("module.counts_numbers", "Python code uses a tensor value or a size as a number")

    def __float__(self) -> float:
        raise CannotBeTraced("module.reckons_with_numbers", "Python code computes with a tensor value or a size")

    def __contains__(self, item: Any) -> bool:
        value = self.node.meta["value"]
        if isinstance(value, dict):
            return item in value
        raise CannotBeTraced("module.searches_numbers", "Python code searches for a value in a tensor")

    def keys(self) -> Any:
        return list(self.node.meta["value"].keys())

    @property
    def values(self) -> Any:
        """A method of dicts and of sparse tensors; what torch.max gives has a tensor of this name."""
        value = self.node.meta["value"]
        if isinstance(value, dict):
            return lambda: [self._item(key) for key in value]
        return ValueProxy.__getattr__(self, "values")

    def items(self) -> Any:
        return [(key, self._item(key)) for key in self.node.meta["value"]]

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("node", "tracer") and is_of_spconv(self.node.meta["value"]):
            raise CannotBeTraced("module.sets_attribute", f"the forward sets {name} of a sparse tensor")
        super().__setattr__(name, value)

    def __setitem__(self, place: Any, value: Any) -> None:
        raise CannotBeTraced("module.writes_into_part", "the forward writes into a part of a tensor")

    def __format__(self, how: str) -> str:
        return repr(self)


class TensorProxy(ValueProxy, Tensor):  # type: ignore[misc]  # a proxy's methods, not a tensor's
    """A tensor of the forward that is being recorded: a tensor for C code, too, but one without memory.

    Compiled functions that do not ask `__torch_function__` take whatever says that it is a tensor, and read its memory.
    This one raises at the first operation instead.
    """

    @staticmethod
    def __new__(cls, node: fx.Node, tracer: fx.Tracer) -> "TensorProxy":
        value = node.meta["value"]
        return Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=value.device)

    def __init__(self, node: fx.Node, tracer: fx.Tracer) -> None:
        fx.Proxy.__init__(self, node, tracer)  # Tensor's own takes no arguments

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise CannotBeTraced(
            "module.calls_compiled", f"a compiled function calls {function} on a traced tensor; do not compile it"
        )

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.node.meta["value"])

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_PROXIES or name in object.__getattribute__(self, "__dict__"):
            return object.__getattribute__(self, name)
        return ValueProxy.__getattr__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(Tensor, name):
            raise CannotBeTraced("module.sets_attribute", f"the forward sets {name} of a tensor")
        object.__setattr__(self, name, value)


_OF_PROXIES = frozenset((*dir(ValueProxy), "__torch_dispatch__"))
for _name in _OF_PROXIES & vars(object).keys() - {"__class__", "__doc__", "__init__", "__new__", "__getattribute__"}:
    if _name not in vars(TensorProxy):
        setattr(TensorProxy, _name, getattr(ValueProxy, _name))  # Tensor's own would come before object's
for _name in fx.graph.inplace_methods.keys() - {"setitem"}:
    _plain = getattr(ValueProxy, f"__{_name[1:].removesuffix('_')}__")
    setattr(TensorProxy, f"__{_name}__", _plain)  # x += y gives x another value: whoever else holds it keeps its own


def stand_in(node: fx.Node, tracer: fx.Tracer) -> ValueProxy:
    """Return the stand-in for what a node gave on the example."""
    return (TensorProxy if isinstance(node.meta["value"], Tensor) else ValueProxy)(node, tracer)


def _method(proxy: ValueProxy, name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    if name == "register_hook":  # gives no value that a layer could read, and what it does would be left out
        raise CannotBeTraced("module.of_hooks", OF_HOOKS)
    if name in _SAME_FOR_ALL and isinstance(proxy.node.meta["value"], Tensor):
        return found
    return lambda *args, **kwargs: proxy.tracer.create_proxy("call_method", name, (proxy, *args), kwargs)


def stands_for_itself(value: Any) -> bool:
    """Return whether what an operation gave is the same in every minibatch: a type, a device, None."""
    return is_constant(value) or isinstance(value, torch.finfo | torch.iinfo)


class SizeDecision(str):
    """The module that decides by whether two sizes are the same, as in `if mask.shape[0] != samples: mask.expand(…)`.

    `harmless`: where one of them is 1, the other answer leads to the same values, as tracing found.
    """

    harmless = False


OTHER_ANSWERS: ContextVar[list[SizeDecision] | None] = ContextVar("other_answers", default=None)  # they are not refused


def same_answer(value: object, answer: bool, where: str, *sizes: object) -> bool:
    """Check that Python would decide as it did when the network was recorded. Raises InputError if not.

    `sizes`: those that a `SizeDecision` compares.
    """
    if bool(value) is not answer:
        noted = OTHER_ANSWERS.get()
        if isinstance(where, SizeDecision) and 1 in sizes and (where.harmless or noted is not None):
            if noted is not None:
                noted.append(where)
            return answer
        raise InputError(
            "module.decides_by_size",
            f"{where} depends on a size that has changed; trace the network with an example of this size",
        )
    return answer


def decidable(node: fx.Node) -> bool:
    """Return whether a number comes from sizes alone, without that of the first axis, which is the minibatch's."""
    if isinstance(node.meta["value"], Tensor) or node.op not in ("call_function", "call_method"):
        return False
    name = name_of(node)
    if name in ("eq", "ne") and all(isinstance(each, fx.Node) and of_numbers(each) for each in node.args):
        return True  # two sizes of minibatches are the same in all of them, or in none
    if name in ("eq", "ne", "gt") and node.args[1] == 0 and _counts_voxels(node.args[0]):
        return True  # whether a minibatch has voxels at all
    if name == "size" and len(node.args) > 1:
        return _axis(node.args[0], node.args[1]) not in (0, None)
    if name == "getitem" and isinstance(node.args[0], fx.Node):
        axes, place = _axes(node.args[0]), node.args[1]
        return axes is not None and isinstance(place, int) and axes[place] != 0
    if isinstance(node.meta["value"], torch.Size):
        return 0 not in (_axes(node) or [0])
    sources = [source for source in node.all_input_nodes if source.op != "get_attr"]
    return bool(sources) and all(decidable(source) for source in sources)


def _counts_voxels(value: object) -> bool:
    """Return whether a number is `x.indices.shape[0]` of spconv's x, as its SparseSequential asks for it."""
    for key in (0, "shape", "indices"):
        if not isinstance(value, fx.Node) or value.args[1:2] != (key,):
            return False
        value = value.args[0]
    return isinstance(value, fx.Node) and is_of_spconv(value.meta["value"])


def _axis(tensor: object, axis: object) -> int | None:
    if not isinstance(tensor, fx.Node) or not isinstance(axis, int):
        return None
    return axis % len(tensor.meta["value"].shape)


def _axes(node: fx.Node) -> list[int] | None:
    """Return the axes whose sizes a value lists; None if it lists others."""
    if not isinstance(node.meta["value"], torch.Size):
        return None
    if name_of(node) in ("getattr", "size"):
        return list(range(len(node.meta["value"])))
    source, place = (*node.args, None, None)[:2]
    if name_of(node) == "getitem" and isinstance(source, fx.Node) and isinstance(place, slice):
        axes = _axes(source)
        plain = all(isinstance(each, int | None) for each in (place.start, place.stop, place.step))
        return axes[place] if axes is not None and plain else None
    return None
