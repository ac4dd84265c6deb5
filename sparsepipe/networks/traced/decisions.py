"""Which numbers Python may decide by while a forward is recorded: sizes, but that of the minibatch."""

import torch
from torch import Tensor, fx

from ...errors import InputError
from .operations import name_of, of_numbers
from .values import is_sparse


def same_answer(value: object, answer: bool, where: str) -> bool:
    """Check that Python would decide as it did when the network was recorded. Raises InputError if not."""
    if bool(value) is not answer:
        raise InputError(
            "module.decides_by_size",
            f"{where} decides by a size, which is now another: trace the network with such an example",
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


def _counts_voxels(node: object) -> bool:
    """Return whether a number is that of the rows of a sparse tensor, as spconv's SparseSequential asks for it."""
    chain = [node]
    for _ in range(3):  # row count, shape, indices or features, sparse tensor
        inner = chain[-1].args[0] if isinstance(chain[-1], fx.Node) and chain[-1].args else None
        chain.append(inner)
    count, shape, rows, tensor = chain
    if not (isinstance(tensor, fx.Node) and isinstance(count, fx.Node) and _axes(shape) == [0, 1]):  # type: ignore[arg-type]
        return False
    return count.args[1:] == (0,) and name_of(rows) == "getattr" and is_sparse(tensor.meta["value"])  # type: ignore[arg-type]


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
