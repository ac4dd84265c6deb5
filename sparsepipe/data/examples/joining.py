"""Minibatches that are not stacked: items as dicts joined along their points or nodes, and what a `collate` returns.

Two kinds of items are joined one below the other. Point clouds as dicts, as Pointcept has them:

    {coord [3, 3], segment [3]}, {coord [2, 3], segment [2]}  ─►  {coord [5, 3], segment [5], offset [2] = 3, 5}

and graphs that say by `__cat_dim__` and `__inc__` how they are joined, as PyTorch Geometric's Data: nodes below each
other, edges counted on, `batch` and `ptr` added. Other dicts are stacked, or padded, by their entries.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import InputError
from ...util.io.fields import shown
from ..labels import IGNORED
from .collate import as_parts, as_target, collated

OFFSET = "offset"  # of a minibatch of clouds: where each sample's points end, int64 [samples]
_POINTS = "coord"
_TARGETS = ("segment", "category", "labels", "label", "target", "y")  # entries that are usually one
_UNNUMBERED = (str, bytes, type(None))  # entries, such as a scene's name, that no network takes


def is_named(item: object) -> bool:
    """Return whether an item is a dict of entries, or a graph that can be written as one: not a pair."""
    return isinstance(item, Mapping) or hasattr(item, "to_dict")


def is_graph(item: object) -> bool:
    """Return whether an item says itself how its entries are joined."""
    return hasattr(item, "__cat_dim__") and hasattr(item, "__inc__") and hasattr(item, "to_dict")


def num_points(item: Any) -> int | None:
    """Count the points of a cloud, or the nodes of a graph; None for an item of neither kind."""
    if is_graph(item):
        return int(item.num_nodes)
    if not isinstance(item, Mapping):
        return None
    offset = item.get(OFFSET)
    if isinstance(offset, Tensor | np.ndarray | list | int) and len(ends := torch.as_tensor(offset).reshape(-1)):
        return int(ends[-1])
    points = item.get(_POINTS)
    return len(points) if isinstance(points, Tensor | np.ndarray) else None


def joined_items(items: Sequence[Any], what: str) -> dict[str, Any]:
    """Return items side by side as one dict of tensors.

    Raises InputError, which begins with `what`, if their entries differ, or are no numbers.
    """
    if is_graph(items[0]):
        return _joined_graphs(items, what)
    named = [_entries(item, what) for item in items]
    if any(entries.keys() != named[0].keys() for entries in named):
        raise InputError(
            "sample.names_differ",
            f"{what} have different names in one minibatch, expected {', '.join(named[0])} in every sample",
        )
    counts = [num_points(item) for item in items]
    if None in counts:
        target = target_names(named[0], (), what)
        stacked = {}
        for name in named[0]:
            padding = {"padding": IGNORED} if name in target else {}
            stacked[name] = collated([entries[name] for entries in named], f"{what}[{name!r}]", **padding)
        return stacked
    if 0 in counts:
        raise InputError("sample.no_points", f"{what}: a cloud has no points, expected at least one; leave it out")
    joined: dict[str, Any] = {}
    for name, first in named[0].items():
        if name == OFFSET:
            continue
        rows = [entries[name] if first.ndim else entries[name][None] for entries in named]
        shapes = {(row.dtype, row.shape[1:]) for row in rows}
        if len(shapes) > 1:
            two = " and ".join(sorted(f"{dtype} [N, {list(shape)}]" for dtype, shape in shapes)[:2])
            raise InputError(
                "sample.shapes_differ",
                f"{what}[{name!r}] have types and shapes {two} in one minibatch, expected the same type and width",
            )
        joined[name] = torch.cat(rows)
    ends = []
    for entries, count in zip(named, counts, strict=True):
        sample_ends = entries[OFFSET].reshape(-1).long() if OFFSET in entries else torch.empty(0)
        if _POINTS in entries and len(entries[_POINTS]) != count:
            raise InputError(
                "sample.offset_differs",
                f"{what} have {len(entries[_POINTS])} points, but their offset ends at {count}; make both equal",
            )
        ends.append(sample_ends if len(sample_ends) else torch.tensor([count]))
    begins = accumulate((int(end[-1]) for end in ends[:-1]), initial=0)
    return joined | {OFFSET: torch.cat([end + begin for end, begin in zip(ends, begins, strict=True)])}


def target_names(entries: Mapping[str, Any], given: Sequence[str], what: str) -> tuple[str, ...]:
    """Return which entries are the target: those given, else the one that is usually called so.

    Raises InputError, which begins with `what`, if an entry is missing.
    """
    names = tuple(given) or tuple(name for name in _TARGETS if name in entries)[:1]
    if not names or not set(names) <= entries.keys():
        expected = ", ".join(given) or f"one of {', '.join(_TARGETS)}, or the data set's `target` to name it"
        raise InputError(
            "sample.no_target", f"{what} have {', '.join(entries)[:200]}, expected {expected} among them", given=given
        )
    return names


def with_tensors(value: Any) -> Any:
    """Return what a `collate` returned with its arrays as tensors; lists, tuples and dicts stay."""
    return pytree.tree_map(lambda leaf: torch.from_numpy(_as_torch_has(leaf)) if _is_numbers(leaf) else leaf, value)


def named_entries(value: Any) -> dict[str, Any]:
    """Return the entries of a minibatch that is a dict, or a graph: without texts and missing entries."""
    entries = value if isinstance(value, Mapping) else value.to_dict()
    return {str(name): entry for name, entry in with_tensors(dict(entries)).items() if not _is_text(entry)}


def _is_numbers(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"


def _as_torch_has(array: np.ndarray) -> np.ndarray:
    """Return an array without backward strides, in the machine's byte order: a copy only if need be."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _is_text(entry: object) -> bool:
    if isinstance(entry, list | tuple):
        return bool(entry) and all(isinstance(each, _UNNUMBERED) for each in entry)
    return isinstance(entry, _UNNUMBERED) or (isinstance(entry, np.ndarray) and entry.dtype.kind in "US")


def _entries(item: Any, what: str) -> dict[str, Tensor]:
    """Return an item's numbers by name, as tensors."""
    if not isinstance(item, Mapping):
        raise InputError(
            "sample.kinds_differ", f"{what} mix dicts with other types in one minibatch; use only one type"
        )
    entries = {name: entry for name, entry in item.items() if not _is_text(entry)}
    if not entries or not all(isinstance(name, str) for name in entries):
        raise InputError("sample.dict_keys", f"{what} are dicts with keys {shown(list(item))}, expected named numbers")
    return {name: as_target(_part(entry, f"{what}[{name!r}]")) for name, entry in entries.items()}


def _part(entry: Any, what: str) -> Tensor:
    part = as_parts(entry, what)
    if not isinstance(part, Tensor):
        raise InputError("sample.not_numbers", f"{what} is a {type(entry).__name__}, expected a tensor or an array")
    return part


def _joined_graphs(items: Sequence[Any], what: str) -> dict[str, Any]:
    """Join graphs as they say, with the graph that each node is of, and where each graph's nodes begin."""
    if not all(map(is_graph, items)):
        raise InputError(
            "sample.kinds_differ", f"{what} mix graphs with other types in one minibatch; use only one type"
        )
    rows: dict[str, list[Tensor]] = {}
    steps: dict[str, Any] = {}
    for item in items:
        for name, entry in item.to_dict().items():
            if _is_text(entry):
                continue
            part = _part(entry, f"{what}[{name!r}]")
            axis = item.__cat_dim__(name, entry)
            moved = part + steps.get(name, 0) if not part.is_floating_point() and part.dtype != torch.bool else part
            rows.setdefault(name, []).append(moved[None] if axis is None or not part.ndim else moved)
            steps[name] = steps.get(name, 0) + item.__inc__(name, entry)
    if lacking := [name for name, parts in rows.items() if len(parts) != len(items)]:
        raise InputError(
            "sample.names_differ",
            f"{what} have different names in one minibatch: {lacking[0]} is missing in some samples",
        )
    first = items[0]
    axes = {name: first.__cat_dim__(name, parts[0]) or 0 if parts[0].ndim else 0 for name, parts in rows.items()}
    counts = torch.tensor([int(item.num_nodes) for item in items])
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    joined = {name: torch.cat(parts, dim=axes[name]) for name, parts in rows.items()}
    return joined | {"batch": torch.repeat_interleave(torch.arange(len(items)), counts), "ptr": ends}
