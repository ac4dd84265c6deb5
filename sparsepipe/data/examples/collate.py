"""Put the parts of examples side by side: stacked if they are identical, otherwise padded along the first axis.

A part is a tensor; inputs and targets may be one part, a tuple of them or a dict of them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import InputError
from ...util.io.fields import shown
from ..labels import IGNORED

PADDING = 0  # of inputs; targets are padded with IGNORED, which counts for nothing


def as_parts(value: object, what: str) -> Any:
    """Return inputs or a target with arrays and numbers as tensors, in the same tuple or dict.

    Whole numbers become int64, real ones torch's default type; tensors stay as they are. Raises InputError, which
    begins with `what`, for what holds no numbers.
    """
    if isinstance(value, Mapping):
        if not value or not all(isinstance(name, str) for name in value):
            raise InputError(
                "sample.dict_keys",
                f"{what} is a dict with keys {shown(list(value))}, expected the names of forward's parameters",
            )
        return {name: _tensor(part, f"{what}[{name!r}]") for name, part in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and any(isinstance(part, Tensor) for part in value)):
        if not value:
            raise InputError("sample.tuple_empty", f"{what} is an empty tuple, expected tensors")
        return tuple(_tensor(part, f"{what}[{place}]") for place, part in enumerate(value))
    return _tensor(value, what)


def collated(samples: Sequence[Any], what: str, *, padding: int = PADDING) -> Any:
    """Put the parts of several samples side by side, the first axis of the result counting samples.

    If lengths along a part's first axis differ, and nothing else, the shorter ones are padded at their end. A target
    that cannot be padded, as its numbers are no classes (boxes, offsets), is a tuple of each sample's; in a dict then
    every entry is one. Raises InputError, which begins with `what`, where samples do not go together.
    """
    first = samples[0]
    if padding == IGNORED and _is_ragged(samples):
        return _of_each(samples, what)
    if isinstance(first, dict):
        if any(not isinstance(sample, dict) or sample.keys() != first.keys() for sample in samples):
            raise InputError(
                "sample.names_differ",
                f"{what} have different names in one minibatch, expected {', '.join(first)} in every sample",
            )
        return {name: _stacked([s[name] for s in samples], f"{what}[{name!r}]", padding) for name in first}
    if isinstance(first, tuple):
        if any(not isinstance(sample, tuple) or len(sample) != len(first) for sample in samples):
            raise InputError(
                "sample.tuples_differ",
                f"{what} are tuples of different lengths in one minibatch, expected {len(first)} tensors in each",
            )
        return tuple(_stacked([s[at] for s in samples], f"{what}[{at}]", padding) for at in range(len(first)))
    if not all(isinstance(sample, Tensor) for sample in samples):
        raise InputError(
            "sample.kinds_differ",
            f"{what} are one tensor in some samples, but several in others; use the same number in all",
        )
    return _stacked(samples, what, padding)


def each_tensor(parts: Any) -> tuple[Tensor, ...]:
    """Return the tensors of inputs or a target, in order."""
    if isinstance(parts, Tensor):
        return (parts,)
    return tuple(parts.values() if isinstance(parts, Mapping) else parts)


def mapped(parts: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return inputs or a target with each tensor changed."""
    if isinstance(parts, Tensor):
        return change(parts)
    if isinstance(parts, Mapping):
        return {name: change(part) for name, part in parts.items()}
    return tuple(change(part) for part in parts)


def as_target(target: Tensor) -> Tensor:
    """Return a target with whole numbers as int64, which losses over classes want."""
    whole = not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
    return target.long() if whole else target


def _tensor(value: object, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple | bool | Real | np.ndarray | np.generic):
        try:
            array = np.asarray(value)
        except ValueError:  # lists of unlike lengths
            raise InputError(
                "sample.lists_ragged", f"{what} is a list of lists of different lengths, expected a tensor or an array"
            ) from None
        if array.dtype.kind == "f":
            return torch.from_numpy(array.astype(np.float64)).to(torch.get_default_dtype())
        if array.dtype.kind in "iu" and array.size and array.dtype == np.uint64 and int(array.max()) >= 2**63:
            raise InputError(
                "sample.number_too_large", f"{what} holds {int(array.max())}, expected whole numbers below 2^63"
            )
        if array.dtype.kind in "iu":
            return torch.from_numpy(array.astype(np.int64))
        if array.dtype.kind == "b":
            return torch.from_numpy(array.copy())
    raise InputError(
        "sample.not_numbers", f"{what} is {_kind(value)}, expected numbers: a tensor, an array or a number"
    )


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"text ({shown(value, 40)})" if isinstance(value, str) else f"of type {type(value).__name__}"


def _stacked(parts: Sequence[Tensor], what: str, padding: int) -> Tensor:
    dtypes = list(dict.fromkeys(str(part.dtype).removeprefix("torch.") for part in parts))
    if len(dtypes) > 1:
        raise InputError(
            "sample.dtypes_differ", f"{what} have types {' and '.join(dtypes)} in one minibatch, expected the same type"
        )
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) == 1:
        return torch.stack(tuple(parts))
    two = sorted(shapes, key=lambda shape: (len(shape), shape))
    if len({shape[1:] for shape in shapes}) > 1 or () in shapes:
        raise InputError(
            "sample.shapes_differ",
            f"{what} have shapes {list(two[0])} and {list(two[-1])} in one minibatch, expected equal shapes beyond "
            "the first axis; resize or crop them in the data set",
        )
    longest = max(shape[0] for shape in shapes)
    padded = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), padding)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    return padded


def _is_ragged(samples: Sequence[Any]) -> bool:
    """Return whether targets hold numbers that are no classes, of unlike lengths: there is no padding for such."""
    if all(isinstance(sample, Tensor) for sample in samples):
        shapes = {tuple(sample.shape) for sample in samples}
        numbers = any(sample.is_floating_point() or sample.dtype == torch.bool for sample in samples)
        return numbers and len(shapes) > 1 and () not in shapes and len({shape[1:] for shape in shapes}) == 1
    if all(isinstance(sample, dict) for sample in samples):
        names = set.intersection(*(set(sample) for sample in samples))
        return any(_is_ragged([sample[name] for sample in samples]) for name in names)
    return False


def _of_each(samples: Sequence[Any], what: str) -> Any:
    """Return a tuple of the samples' tensors; of dicts a dict of such tuples."""
    if not isinstance(samples[0], dict):
        return tuple(samples)
    if any(sample.keys() != samples[0].keys() for sample in samples):
        raise InputError(
            "sample.names_differ",
            f"{what} have different names in one minibatch, expected the same names in all samples",
        )
    return {name: tuple(sample[name] for sample in samples) for name in samples[0]}


OFFSET = "offset"  # of a minibatch of clouds: where each sample's points end, int64 [samples]
_POINTS = "coord"
_TARGETS = ("segment", "category", "labels", "label", "target", "y")  # entries that are usually one
_UNNUMBERED = (str, bytes, type(None))  # entries, such as a scene's name, that no network takes


# Minibatches that are not stacked: items as dicts joined along their points or nodes, and what a `collate` returns
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
