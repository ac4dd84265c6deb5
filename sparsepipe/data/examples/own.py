"""A data set of the user's own: a function, by name, that returns any map-style data set of torch's kind.

It is called with split="train" or "test" (and, where its parameters take them, seed=… and further options). What it
returns has `len()` and gives items `(inputs, target)`, or is an iterable of them (streams.py). Inputs are a tensor, a
tuple of tensors (forward's arguments in order) or a dict of them (by name); arrays and numbers become tensors. Items
are stacked; if they are sequences of unlike length they are padded with 0, classes with -100; other targets of unlike
length, such as boxes, become a tuple of tensors. An item may also be one dict, or a graph (collate.py). For clouds,
items are `sparsepipe.data.Sample`, or the function returns what `sparsepipe.data.load` gives: a minibatch is then a
PointBatch. A `collate` of the user's makes minibatches of items of any kind.

Optional attributes of the data set: `num_classes`, `classes`, `vocabulary_size`, `loss`, `synthetic`, `collate_fn`.
`facts` is a dict of further arguments of a network's builder. `targets` saves reading every item for its class.
`sizes` has the size of each sample, or `size_of` is a function of an item. `inputs` and `target` name entries of a
dict. `weights` and `sampler` choose samples (data/samplers.py). Costs grow with `size_unit`:
"samples" if not given, "points" of clouds as dicts, "tokens" of sequences that differ in length, "pixels" of pictures
that differ in size from minibatch to minibatch.
"""

import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ...errors import CODE_FAILURES, InputError
from ...util.derived import digest, sample_seed
from ...util.io.fields import complaint, shown
from ...util.io.functions import UserFunction
from ...util.text.numbers import SIZE_UNITS, number_of
from ..batch import PointBatch, Sample, collate
from ..dataset import VoxelDataset
from ..folder import check_indices
from ..labels import IGNORED
from .base import ExampleBatch
from .collate import (
    OFFSET,
    as_parts,
    as_target,
    collated,
    each_tensor,
    is_named,
    joined_items,
    mapped,
    named_entries,
    num_points,
    target_names,
    with_tensors,
)
from .streams import Stream, is_stream, with_generators

_DEFAULT_LOSS = "classes"
_MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False)
class OwnExamples:
    """One split of a user's data set, as `ExampleDataset`. Draws in its items repeat by seed, sample and epoch."""

    function: UserFunction
    split: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    collate: UserFunction | None = None  # makes a minibatch of items; None: the data set's `collate_fn`, if it has one

    def __post_init__(self) -> None:
        _ = self._dataset, self._make_minibatch  # functions that are not there are refused now
        if not len(self):
            raise InputError(
                "own_data.empty",
                f"{self.function}: its data set of split {self.split} is empty, expected at least one sample",
            )
        if self.size_unit not in SIZE_UNITS:
            raise InputError(
                "own_data.size_unit_unknown",
                f"{self.function}: unknown size_unit {shown(self.size_unit)}, expected one of {', '.join(SIZE_UNITS)}",
            )

    @cached_property
    def _dataset(self) -> Any:
        """Call the user's function. Raises InputError if it returns no data set."""
        made = self.function.load()
        given = {"split": self.split} | _accepted(made, {"seed": self.seed}) | dict(self.options)
        _check_arguments(self.function, made, given)
        dataset = self._call(lambda: made(**given), "")
        if isinstance(dataset, VoxelDataset):
            return dataset
        kind = type(dataset)
        if is_stream(dataset):
            return dataset
        if isinstance(dataset, str | bytes | Mapping) or not hasattr(kind, "__getitem__"):
            what = "None" if dataset is None else f"of type {kind.__name__}"
            raise InputError(
                "own_data.not_a_dataset",
                f"{self.function}: returns {what}, expected a data set with len() and items (inputs, target)",
            )
        if not hasattr(kind, "__len__"):
            raise InputError(
                "own_data.no_length",
                f"{self.function}: its data set has no len(), expected a map-style data set; add __len__ to "
                f"{kind.__name__}",
            )
        return dataset

    @property
    def clouds(self) -> VoxelDataset | None:
        """Return the split of `data.load` that the user's function returned, if it did."""
        return self._dataset if isinstance(self._dataset, VoxelDataset) else None

    @cached_property
    def _stream(self) -> Stream | None:
        """The items of an iterable, by number."""
        return Stream(self._dataset, f"{self.function}: {self.split}", self.seed) if is_stream(self._dataset) else None

    @property
    def in_order(self) -> bool:
        """Return whether items are read in the order in which an iterable gives them."""
        return self._stream is not None

    @cached_property
    def _make_minibatch(self) -> Callable[[list[Any]], Any] | None:
        """The user's function from items to a minibatch, None if there is none."""
        if self.collate is not None:
            return self.collate.load()
        given = None if isinstance(self._dataset, VoxelDataset) else self._attribute("collate_fn")
        if given is not None and not callable(given):
            raise InputError(
                "own_data.collate_malformed", f"{self.function}: its collate_fn is {shown(given)}, expected a function"
            )
        return given

    @cached_property
    def _length(self) -> int:
        counted = self._dataset if self._stream is None else self._stream
        return int(self._call(lambda: len(counted), "in len()"))

    @property
    def targets_are_labels(self) -> bool:
        """A target is whatever the data set gives."""
        return False

    def __len__(self) -> int:
        return self._length

    # --- items ---------------------------------------------------------------------------------------------------

    def _items(self, indices: Iterable[int], epoch: int = 0) -> Iterator[tuple[Any, Any] | Sample]:
        """Return items, one after the other; the global generators of random numbers are afterwards as before."""
        for index in indices:
            yield self._item(index, epoch)

    def _read(self, index: int, epoch: int = 0) -> Any:
        """Return an item as the data set gives it. Raises InputError that names the function and the item."""
        where = f"in item {index} of split {self.split}"
        if isinstance(self._dataset, VoxelDataset):
            return self._dataset.sample(index, epoch=epoch)
        if (stream := self._stream) is not None:
            return self._call(lambda: stream.item(index, epoch), where)
        return self._drawing(f"{index}:{epoch}", lambda: self._dataset[index], where)

    def _drawing(self, name: str, run: Callable[[], Any], where: str) -> Any:
        """Run code of the user's that may draw."""
        return with_generators(f"{self.split}:{name}", self.seed, lambda: self._call(run, where))

    def _item(self, index: int, epoch: int) -> tuple[Any, Any] | Sample:
        """Return an item as tensors, or a cloud. Raises InputError that names the function and the item."""
        item = self._read(index, epoch)
        return item if isinstance(item, Sample) else self._pair(index, item)

    def _pair(self, index: int, item: Any) -> tuple[Any, Any]:
        """Return inputs and target of an item as tensors."""
        name = f"{self.function}: item {index}:"
        if is_named(item):
            entries = joined_items([item], name)
            return entries, self._target_of(entries, name)
        if not isinstance(item, tuple | list) or len(item) != 2:
            count = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise InputError(
                "own_data.item_malformed",
                f"{self.function}: item {index} is a {type(item).__name__}{count}, expected (inputs, target), a dict "
                "with a target, or any item with a suitable `collate`",
            )
        inputs, target = item
        return as_parts(inputs, f"{name} inputs"), mapped(as_parts(target, f"{name} target"), as_target)

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch | PointBatch:
        """Read items as one minibatch, clouds as voxels.

        Raises InputError if they do not go together, or the user's code raises.
        """
        check_indices(indices, len(self), self.split)
        epoch = epoch if self.split == "train" else 0
        items = [self._read(index, epoch) for index in indices]
        if (make := self._make_minibatch) is not None:
            name = f"collate:{','.join(map(str, indices))}:{epoch}"
            reused = self._stream is not None or self.size_unit != "samples"  # a collate may change its own
            minibatch = self._drawing(
                name, lambda: make(deepcopy(items) if reused else items), f"in collate of split {self.split}"
            )
            return self._collated(minibatch, items, indices)
        clouds = [item for item in items if isinstance(item, Sample)]
        if clouds:
            if len(clouds) != len(items):
                raise InputError(
                    "own_data.kinds_differ",
                    f"{self.function}: a minibatch contains both clouds and tensors, expected only one kind",
                )
            return collate(clouds)
        if is_named(items[0]):
            return self._of_entries(joined_items(items, f"{self.function}: items"), items, indices)
        pairs = [self._pair(index, item) for index, item in zip(indices, items, strict=True)]
        inputs = collated([pair[0] for pair in pairs], f"{self.function}: inputs")
        target = collated([pair[1] for pair in pairs], f"{self.function}: targets", padding=IGNORED)
        return ExampleBatch(inputs, target, len(items), self._minibatch_size(items, indices, inputs))

    def _collated(self, minibatch: Any, items: Sequence[Any], indices: Sequence[int]) -> ExampleBatch | PointBatch:
        """Return what a `collate` made of items. Raises InputError if that is no minibatch."""
        if isinstance(minibatch, PointBatch):
            return minibatch
        if isinstance(minibatch, tuple | list) and len(minibatch) == 2:
            inputs, target = with_tensors(tuple(minibatch))
            size = self._minibatch_size(items, indices, inputs)
            return ExampleBatch(inputs, pytree.tree_map(_as_class, target), len(items), size)
        if is_named(minibatch):
            return self._of_entries(named_entries(minibatch), items, indices)
        raise InputError(
            "own_data.collate_malformed",
            f"{self.function}: its collate_fn returns a {type(minibatch).__name__}, expected (inputs, target), or a "
            "dict with a target",
        )

    def _of_entries(self, entries: dict[str, Any], items: Sequence[Any], indices: Sequence[int]) -> ExampleBatch:
        """Return a minibatch whose inputs are entries by name: those that the data set's `inputs` names, else all."""
        target = pytree.tree_map(_as_class, self._target_of(entries, f"{self.function}: minibatches"))
        names = _names(self._attribute("inputs"))
        if missing := [name for name in names if name not in entries]:
            raise InputError(
                "own_data.entry_missing",
                f"{self.function}: minibatches have {', '.join(entries)[:200]}, but `inputs` of the data set also "
                f"names {missing[0]}; correct one of them",
            )
        inputs = {name: entries[name] for name in names} if names else entries
        offset = entries.get(OFFSET)
        samples = len(offset) if isinstance(offset, torch.Tensor) else len(items)
        return ExampleBatch(inputs, target, samples, self._minibatch_size(items, indices, inputs))

    def _target_of(self, entries: Mapping[str, Any], what: str) -> Any:
        """Return the entry that is the target; a dict of them if the data set's `target` names several."""
        given = self._attribute("target")
        names = target_names(entries, _names(given), what)
        return entries[names[0]] if len(names) == 1 else {name: entries[name] for name in names}

    def _minibatch_size(self, items: Sequence[Any], indices: Sequence[int], inputs: object) -> int:
        """Return the size of a minibatch: points add up, tokens and pixels are padded to the largest sample's."""
        if self.size_unit == "samples":
            return len(indices)
        given = self._given_sizes
        sizes = None if given is None else [given[index] for index in indices]
        if sizes is None and self._size_function is not None:
            sizes = [self._size_of(index, item) for index, item in zip(indices, items, strict=True)]
        if self.size_unit in ("points", "voxels"):
            return sum(sizes or (self._size_of(index, item) for index, item in zip(indices, items, strict=True)))
        if sizes is not None:
            return len(indices) * max(sizes)
        first = next(leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
        return first.shape[0] * self._positions(first[0])

    def sample_sizes(self) -> Sequence[int]:
        """Return each sample's size, read once: the user's `sizes`, else the tokens or pixels of its first tensor."""
        return self._sizes

    @cached_property
    def _sizes(self) -> Sequence[int]:
        if self.size_unit == "samples":
            return (1,) * len(self)
        if self._given_sizes is not None:
            return self._given_sizes
        return tuple(self._size_of(index, self._read(index)) for index in range(len(self)))

    def _size_of(self, index: int, item: Any) -> int:
        """Return an item's size: what `size_of` says, the points of a cloud, else what its first tensor has."""
        if (size_of := self._size_function) is not None:
            size = self._call(lambda: int(size_of(item)), "in size_of")
            if size < 1:
                raise InputError(
                    "own_data.sizes_malformed",
                    f"{self.function}: size_of returns {size} for item {index}, expected 1 or more",
                )
            return int(size)
        if isinstance(item, Sample):
            return len(item)
        count = num_points(item)
        return self._positions(each_tensor(self._pair(index, item)[0])[0]) if count is None else max(count, 1)

    @cached_property
    def _size_function(self) -> Callable[[Any], Any] | None:
        """The `size_of` of the user's data set, None if there is none."""
        given = None if isinstance(self._dataset, VoxelDataset) else self._attribute("size_of")
        if given is not None and not callable(given):
            raise InputError(
                "own_data.sizes_malformed",
                f"{self.function}: its size_of is {shown(given)}, expected a function of an item",
            )
        return given

    def _positions(self, tensor: torch.Tensor) -> int:
        """Count a sample's tokens, of a tensor [tokens, …], or its pixels, of one [channels, height, width]."""
        sides = tensor.shape[1:] if self.size_unit == "pixels" else tensor.shape[:1]
        return max(math.prod(sides), 1)

    @cached_property
    def _given_sizes(self) -> tuple[int, ...] | None:
        """The `sizes` of the user's data set, None if there are none."""
        given = self._attribute("sizes")
        if given is None:
            return None
        sizes: tuple[int, ...] = self._call(lambda: tuple(int(size) for size in given), "in sizes")
        if len(sizes) != len(self) or min(sizes) < 1:
            raise InputError(
                "own_data.sizes_malformed",
                f"{self.function}: returns {len(sizes)} sizes (from {min(sizes, default=0)}) for "
                f"{number_of(len(self), 'sample')} of split {self.split}, expected one whole number of at least 1 "
                "per item",
            )
        return sizes

    # --- what a network and a record need to know ----------------------------------------------------------------

    @property
    def classes(self) -> tuple[str, ...]:
        names = self._attribute("classes")
        return () if names is None else self._call(lambda: tuple(map(str, names)), "in classes")

    @property
    def labels(self) -> tuple[int, ...]:
        """Each sample's class: `targets` of the user's data set, else read of every item, once."""
        return self._labels

    @cached_property
    def _labels(self) -> tuple[int, ...]:
        if isinstance(self._dataset, VoxelDataset):
            return self._dataset.labels
        given = self._attribute("targets")
        if isinstance(given, torch.Tensor | np.ndarray | list | tuple) and len(given) == len(self):
            found = as_parts(list(given) if isinstance(given, tuple) else given, f"{self.function}: targets")
            if isinstance(found, torch.Tensor) and found.ndim == 1 and not found.is_floating_point():
                return tuple(found.tolist())
        return tuple(self._label(index, item) for index, item in enumerate(self._items(range(len(self)))))

    def _label(self, index: int, item: tuple[Any, Any] | Sample) -> int:
        target = item.label if isinstance(item, Sample) else item[1]
        if isinstance(target, int):
            return target
        if not isinstance(target, torch.Tensor) or target.ndim or target.dtype != torch.int64:
            raise InputError(
                "own_data.no_class",
                f"{self.function}: item {index} has no class: its target is not a whole number",
                index=index,
            )
        return int(target)

    @property
    def synthetic(self) -> bool:
        return bool(self._attribute("synthetic"))

    @property
    def size_unit(self) -> str:
        given = self._attribute("size_unit")
        if given:
            return str(given)
        if isinstance(self._first, Sample):
            return "voxels"
        return "samples" if num_points(self._first) is None else "points"

    @cached_property
    def _first(self) -> Any:
        return self._read(0)

    @property
    def loss(self) -> str:
        return str(self._attribute("loss") or _DEFAULT_LOSS)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Properties from the user's data set, num_classes counted in the training split if it does not."""
        given = self._attribute("facts") or {}
        if not isinstance(given, Mapping):
            raise InputError(
                "own_data.facts_malformed",
                f"{self.function}: its facts are {shown(given)}, expected a dict of data properties for networks",
            )
        known = {str(name): value for name, value in given.items()}
        for name in ("num_classes", "vocabulary_size"):
            value = self._attribute(name)
            if value is not None:
                known.setdefault(name, int(value))
        if self.classes:
            known.setdefault("num_classes", len(self.classes))
        dear: dict[str, Callable[[], Any]] = {}
        if isinstance(self._first, Sample):
            known.setdefault("in_channels", int(self._first.features.shape[1]))
            dear["num_classes"] = self._counted_classes
        elif self._make_minibatch is None and not is_named(self._first):
            target = self._pair(0, self._first)[1]
            if isinstance(target, torch.Tensor) and not target.ndim and target.dtype == torch.int64:
                dear["num_classes"] = self._counted_classes
        return LazyFacts(known, dear)

    def _counted_classes(self) -> int:
        """Count classes as the highest target of the training split says, whichever split this is."""
        training = (
            self
            if self.split == "train"
            else OwnExamples(self.function, "train", self.seed, self.options, self.collate)
        )
        low, high = min(training.labels), max(training.labels)
        if low < 0 or high >= _MOST_CLASSES:
            raise InputError(
                "own_data.class_negative",
                f"{self.function}: targets range from {low} to {high}, expected class indices from 0; correct the "
                "targets, or define num_classes on the data set",
            )
        return high + 1

    @property
    def origin(self) -> dict[str, Any]:
        home = Path(self.function.home).name if self.function.is_file else self.function.home
        named = f"{home}:{self.function.name}"
        options: dict[str, Any] = {"options": digest(dict(self.options))} if self.options else {}
        if self.collate is not None:
            options["collate_sha256"] = self.collate.sha256()
        return {
            "name": named,
            "split": self.split,
            "samples": len(self),
            "classes": list(self.classes),
            "synthetic": self.synthetic,
            "seed": self.seed,
            "function": named,
            "sha256": self.function.sha256(),
            "sha256_of": f"the function's file{' and neighbours' if len(self.function.files()) > 1 else ''}",
            **options,
        }

    def name(self, index: int) -> str:
        return f"{self.split}/{index}"

    def look(self) -> None:
        """Read the first item: what the user's own code needs is not known here."""
        _ = self._first

    @property
    def weights(self) -> Any:
        """The `weights` of the user's data set, one for each sample; None if there are none."""
        return None if isinstance(self._dataset, VoxelDataset) else self._attribute("weights")

    def drawn(self, epoch: int) -> tuple[int, ...] | None:
        """Return the samples of an epoch as the `sampler` of the user's data set draws them, None if it has none."""
        sampler = None if isinstance(self._dataset, VoxelDataset) else self._attribute("sampler")
        if sampler is None:
            return None
        set_epoch, generator = (getattr(sampler, name, None) for name in ("set_epoch", "generator"))

        def draw() -> tuple[int, ...]:
            if callable(set_epoch):
                set_epoch(epoch)
            if isinstance(generator, torch.Generator):  # as torch's samplers have: it would go on where it stopped
                generator.manual_seed(sample_seed(self.seed, f"{self.split}:generator:{epoch}") % 2**63)
            return tuple(int(index) for index in sampler)

        indices: tuple[int, ...] = self._drawing(f"sampler:{epoch}", draw, "in its sampler")
        return indices

    # --- the user's code -----------------------------------------------------------------------------------------

    def _attribute(self, name: str) -> Any:
        return self._call(lambda: getattr(self._dataset, name, None), f"in {name}")

    def _call(self, run: Callable[[], Any], where: str) -> Any:
        """Run code of the user's. What it raises is reported in a line, with the place in its file."""
        try:
            return run()
        except InputError:
            raise
        except CODE_FAILURES as error:  # whatever the user's code raises
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f" {where}" if where else ""
            raise InputError(
                "own_data.raises",
                f"{self.function}: raises {type(error).__name__}{where} ({complaint(error)}), "
                f"{Path(frame.filename).name} line {frame.lineno}{self.function.neighbour(error)}",
            ) from error


def _accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the function's own parameters take of what is offered."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function without one
        return {}
    return {name: value for name, value in offered.items() if name in parameters}


def _check_arguments(named: UserFunction, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise InputError(
            "own_data.arguments_refused",
            f"{named}: cannot be called with {', '.join(given)} ({complaint(error)}); expected a function with an "
            "argument split",
        ) from None
    except ValueError:  # no signature to hold it to
        return


def _as_class(leaf: Any) -> Any:
    return as_target(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _names(given: Any) -> tuple[str, ...]:
    """Return names of entries that a data set gives: one as text, or several."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(map(str, given))


class LazyFacts(Mapping[str, Any]):
    """A mapping whose dear values are computed once, when they are asked for."""

    def __init__(self, known: Mapping[str, Any], dear: Mapping[str, Callable[[], Any]]) -> None:
        self._known = dict(known)
        self._dear = {name: compute for name, compute in dear.items() if name not in known}

    @property
    def dear(self) -> frozenset[str]:
        """Names of the values that are still to be computed."""
        return frozenset(self._dear.keys() - self._known)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known and name in self._dear:
            self._known[name] = self._dear[name]()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._dear})

    def __len__(self) -> int:
        return len(self._known.keys() | self._dear.keys())
