"""Put the parts of examples side by side: stacked where they are identical, padded along the first axis where they are
not.

A part is a tensor; inputs and targets may be one part, a tuple of them or a dict of them.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
