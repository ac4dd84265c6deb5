"""Calls that are given dicts with methods, such as Pointcept's `Point`, or dicts that they fill: one operation each.

    point = Point(batch)                   point: {feat: a, order: b, batch: c}
    point = attention(point)       →       attention(a, b, c) → (d,)        # reads three entries, makes one
                                           point: {feat: d, order: b, batch: c}

The operation is given the tensors and numbers that the call reads, and gives those that it makes. The container is
built again in the stage that runs the call, so an entry crosses a stage boundary only if a later stage reads it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .statements import Call, Statement
from .values import is_constant, is_number, is_tensor


def is_record(value: object) -> bool:
    """Return whether a value is a dict of a class of its own that pytree does not know, and holds all in its entries.

    Attributes of the object itself may be numbers and words.
    """
    kind = type(value)
    if not issubclass(kind, dict) or kind is dict or kind in pytree.SUPPORTED_NODES:
        return False
    return all(is_constant(each) or is_number(each) for each in _attributes(value).values())


def _attributes(value: object) -> dict[str, Any]:
    return getattr(value, "__dict__", {}) if type(value) is not dict else {}


def holds_record(value: object) -> bool:
    """Return whether a value is a record, or a tuple, list or dict with one."""
    if is_record(value):
        return True
    if type(value) in (tuple, list):
        return any(map(holds_record, value))  # type: ignore[call-overload]
    return type(value) is dict and any(map(holds_record, value.values()))


@dataclass(frozen=True)
class Leaf:
    """A tensor or a number that crosses a boundary, by its index."""

    number: int


@dataclass(frozen=True)
class Fixed:
    """A value that is equal in every minibatch."""

    value: Any


@dataclass(frozen=True)
class Held:
    """A container, by its number: it may be in several places."""

    number: int


@dataclass(frozen=True)
class Row:
    """A tuple."""

    entries: tuple[Any, ...]


@dataclass(frozen=True)
class Contents:
    """Contents of a dict or list. `keys`: None for a list; `attributes`: further attributes of the object."""

    kind: type[Any]
    keys: tuple[Any, ...] | None
    entries: tuple[Any, ...]
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Form:
    """Structure of a value: containers and leaves."""

    root: Any
    contents: tuple[Contents, ...]


@dataclass
class Reader:
    """Takes a value apart. `objects`: containers that are known before, in order."""

    objects: list[Any] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)

    def form(self, value: object) -> Form:
        """Take a value apart; its leaves come behind those that are there."""
        self._numbers = {id(each): i for i, each in enumerate(self.objects)}
        root, contents = self._entry(value), list[Contents]()
        while len(contents) < len(self.objects):  # it grows
            contents.append(self._contents(self.objects[len(contents)]))
        return Form(root, tuple(contents))

    def _entry(self, value: object) -> Any:
        kind = type(value)
        if kind is dict or kind is list or is_record(value):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.objects)
                self.objects.append(value)
            return Held(self._numbers[id(value)])
        if kind is tuple:
            return Row(tuple(map(self._entry, value)))  # type: ignore[call-overload]
        if is_constant(value) and not isinstance(value, fx.Proxy):
            return Fixed(value)
        self.leaves.append(value)
        return Leaf(len(self.leaves) - 1)

    def _contents(self, value: Any) -> Contents:
        if isinstance(value, list):
            return Contents(list, None, tuple(map(self._entry, value)))
        attributes = tuple(sorted(_attributes(value).items()))
        return Contents(type(value), tuple(value), tuple(map(self._entry, dict.values(value))), attributes)


def built(form: Form, leaves: Sequence[Any], objects: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
    """Return a value made of leaves, and its containers. `objects`: those that exist, which are filled again."""
    made = [*objects, *(_empty(each) for each in form.contents[len(objects) :])]

    def value(entry: Any) -> Any:
        if isinstance(entry, Leaf):
            return leaves[entry.number]
        if isinstance(entry, Held):
            return made[entry.number]
        return tuple(map(value, entry.entries)) if isinstance(entry, Row) else entry.value

    for each, contents in zip(made, form.contents, strict=True):
        entries = list(map(value, contents.entries))
        if contents.keys is None:
            each[:] = entries
        else:
            dict.clear(each)  # past methods of its class: they would do more than hold entries
            dict.update(each, zip(contents.keys, entries, strict=True))
        if contents.attributes:
            vars(each).update(contents.attributes)
    return value(form.root), made


def _empty(contents: Contents) -> Any:
    kind: Any = contents.kind
    return kind.__new__(kind)


class Unread:
    """Stands where a container has an entry that the call did not read on the example, and which is not sent."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError(f"the forward reads {name} of an entry that it did not read during tracing")


class _Reads(TorchFunctionMode):
    """Notes which tensors something is computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in pytree.tree_leaves((args, kwargs)):
            if isinstance(each, Tensor):
                self.tensors[id(each)] = each
        return function(*args, **(kwargs or {}))


class _Whole(int):
    """A whole number that is known again."""


class _Real(float):
    """A real number that is known again."""


def _marked(leaf: Any) -> Any:
    return _Whole(leaf) if type(leaf) is int else _Real(leaf) if type(leaf) is float else leaf


def _plain(leaf: Any) -> Any:
    return int(leaf) if type(leaf) is _Whole else float(leaf) if type(leaf) is _Real else leaf


@dataclass(eq=False)
class ContainerCall(Call):
    """A call of a module, or of a statement, with containers among its arguments.

    On the example (`learned` is None) it finds out what the call reads and what it makes.
    """

    inner: "str | Statement"  # the path of a module, or a statement
    given: Form  # of (args, kwargs), or of a statement's arguments
    num_leaves: int
    sent: tuple[int, ...] | None = None  # leaves that the call is given
    learned: "tuple[Form, tuple[int | None, ...]] | None" = (
        None  # of what comes of it; its leaves: the given one, or new
    )

    __name__ = "statement"  # of a module's call the path counts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContainerCall):
            return NotImplemented
        return (self.inner, self.given, self.sent, self.learned) == (
            other.inner, other.given, other.sent, other.learned,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash(self.inner)

    def __call__(self, *args: object) -> NoReturn:  # torch.fx takes nothing else for a function
        raise TypeError("a call with containers runs within a layer")

    @property
    def called(self) -> str | None:  # type: ignore[override]  # known from the start
        return self.inner if isinstance(self.inner, str) else None

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.inner,) if isinstance(self.inner, str) else self.inner.modules

    def run(self, args: Sequence[Any], module: Callable[[str], nn.Module]) -> tuple[Any, ...]:
        """Return what the call makes. `args`: the leaves that it is given."""
        if self.learned is None:
            return self._learn(args, module)
        leaves: list[Any] = [Unread()] * self.num_leaves
        for number, leaf in zip(self.sent or (), args, strict=True):
            leaves[number] = leaf
        value, objects = built(self.given, leaves)
        result = self._call(value, module)
        reader = Reader(objects)
        form = reader.form(result)
        expected, origin = self.learned
        if form != expected:
            raise TypeError(f"the forward returns other entries than during tracing: {_difference(form, expected)}")
        for number, (leaf, before) in enumerate(zip(reader.leaves, origin, strict=True)):
            if before is not None and not _is_same(leaf, leaves[before]):
                raise TypeError(f"the forward changes {_name(form, number)}, which was unchanged during tracing")
        return tuple(leaf for leaf, before in zip(reader.leaves, origin, strict=True) if before is None)

    def _learn(self, args: Sequence[Any], module: Callable[[str], nn.Module]) -> tuple[Any, ...]:
        leaves = list(map(_marked, args))
        value, objects = built(self.given, leaves)
        with _Reads() as reads:
            result = self._call(value, module)
        reader = Reader(objects)
        form = reader.form(result)
        number = {id(leaf): i for i, leaf in reversed(list(enumerate(leaves))) if type(leaf) is not bool}
        self.learned = form, tuple(number.get(id(leaf)) for leaf in reader.leaves)
        self.sent = tuple(i for i, leaf in enumerate(leaves) if _is_read(leaf, reads.tensors))
        return tuple(
            _plain(leaf) for leaf, before in zip(reader.leaves, self.learned[1], strict=True) if before is None
        )

    def _call(self, value: Any, module: Callable[[str], nn.Module]) -> Any:
        if isinstance(self.inner, str):
            args, kwargs = value
            return module(self.inner)(*args, **kwargs)
        return self.inner.run(value, module)


def _is_read(leaf: Any, tensors: Mapping[int, Tensor]) -> bool:
    if is_tensor(leaf) and not isinstance(leaf, Tensor):
        return any(id(each) in tensors for each in _held_tensors(leaf))
    return id(leaf) in tensors if isinstance(leaf, Tensor) else True


def _held_tensors(value: Any) -> Iterator[Tensor]:
    yield from (each for each in vars(value).values() if isinstance(each, Tensor))


def _is_same(leaf: Any, before: Any) -> bool:
    """Return whether what came of a call is what it was given; a copy of a tensor is, such as that of contiguous()."""
    if isinstance(leaf, Tensor) and isinstance(before, Tensor):
        return leaf is before or (leaf.dtype == before.dtype and torch.equal(leaf, before))
    return leaf is before or (is_number(leaf) and is_number(before) and leaf == before)


def _name(form: Form, number: int) -> str:
    """Return the key of a leaf."""
    pairs = (pair for each in form.contents for pair in zip(each.keys or (), each.entries, strict=False))
    return next((str(key) for key, entry in pairs if entry == Leaf(number)), "a value")


def _difference(found: Form, expected: Form) -> str:
    """Name the entries that are in one of two forms alone."""
    keys = [{key for each in form.contents for key in each.keys or ()} for form in (found, expected)]
    odd = sorted(map(str, keys[0] ^ keys[1]))
    return ", ".join(odd) or "a list is as long as the minibatch, or a value has another type"
