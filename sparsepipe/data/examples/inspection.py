"""What a data set of examples holds, and what of it would stop a run: every sample read once."""

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import InputError, one_line
from ...util.text.numbers import number_of
from ..batch import PointBatch
from ..inspection import Fault, Twins
from ..labels import IGNORED
from ..reach import can_be_held, reach
from .base import ExampleBatch, ExampleDataset
from .collate import OFFSET, PADDING
from .opening import SPLITS, open_examples
from .texts.bert import PlainTextExamples

_TOGETHER = 32  # samples read at once
_MOST_SHOWN = 20  # of what is listed in the text


def info(source: str | Path, **options: Any) -> dict[str, Any]:
    """Describe a data set of examples, ready for JSON: splits, classes, shapes, sizes, facts that a network may ask.

    One sample of each split is read; of texts the vocabulary is made, or taken from the cache. `options` are those of
    `open_examples`. Raises InputError if a split cannot be opened.
    """
    opened = {split: open_examples(source, split=split, **options) for split in SPLITS}
    train = opened["train"]
    return {
        "name": train.origin["name"],
        "path": str(source),
        "synthetic": train.synthetic,
        "samples": sum(map(len, opened.values())),
        "splits": {split: len(dataset) for split, dataset in opened.items()},
        "classes": list(train.classes),
        "samples_by_class": _by_class(opened),
        "size_unit": train.size_unit,
        "sizes": {split: _range(dataset) for split, dataset in opened.items()},
        "facts": {name: value for name, value in train.facts.items() if isinstance(value, int | float | str)},
        "loss": train.loss,
        "example": _shapes(train.batch([0])),
        "missing": [
            {"class": name, "split": split}
            for name, counts in _by_class(opened).items()
            for split, count in counts.items()
            if not count
        ],
    }


@dataclass(frozen=True)
class SplitRead:
    """Results of reading one split."""

    samples: int = 0
    faulty: int = 0


@dataclass(frozen=True)
class ExampleReport:
    """The result of `check`. A run can use the data set where `faults` is empty."""

    name: str
    splits: dict[str, SplitRead]
    facts: Mapping[str, Any]
    faults: tuple[Fault, ...]
    across_splits: tuple[Twins, ...] = ()
    within_split: tuple[Twins, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON document; samples that are there twice in one split are counted alone."""
        document = {**asdict(self), "facts": dict(self.facts), "within_split": len(self.within_split)}
        return {"ok": not self.faults, **document}

    def __str__(self) -> str:
        lines = [f"{self.name}: {number_of(sum(split.samples for split in self.splits.values()), 'sample')}"]
        for name, split in self.splits.items():
            lines.append(
                f"{name}: {number_of(split.samples, 'sample')}"
                + (f", {split.faulty} that cannot be used" if split.faulty else "")
            )
        lines += [f"{name}: {value}" for name, value in self.facts.items()]
        lines += [
            f"warning: {twins.second} is identical to {twins.first}, so one sample is in two splits"
            for twins in self.across_splits[:_MOST_SHOWN]
        ]
        if len(self.across_splits) > _MOST_SHOWN:
            lines.append(
                f"warning: {number_of(len(self.across_splits) - _MOST_SHOWN, 'more sample')} in two splits, see --json"
            )
        if self.within_split:
            first = self.within_split[0]
            count = len(self.within_split)
            lines.append(
                f"note: {number_of(count, 'sample')} {'is' if count == 1 else 'are'} duplicated in their split, such "
                f"as {first.first} and {first.second}"
            )
        lines += [str(fault) for fault in self.faults] or ["no problems found"]
        return "\n".join(map(one_line, lines))


def check(source: str | Path, *, progress: Callable[[str], None] | None = None, **options: Any) -> ExampleReport:
    """Read every sample of both splits once, as minibatches, and report; without augmentation.

    Pieces of plain text, which are drawn again each epoch, are not looked for twice. `progress` receives how far it
    is, in words. Raises InputError for an option that there is not; what is wrong with the data is in the report.
    """
    tell = progress or (lambda line: None)
    reader = _ExampleReader(str(source), tell)
    splits = dict.fromkeys(SPLITS, SplitRead())
    facts: dict[str, Any] = {}
    for split in SPLITS:
        try:
            dataset = open_examples(source, split=split, **options)
            dataset.look()
            splits[split] = reader.read(dataset)
            facts = facts or dict(dataset.facts)
        except InputError as error:
            reader.note(str(error))
    return ExampleReport(
        str(source),
        splits,
        facts,
        tuple(reader.faults),
        tuple(twins for twins in reader.twins if twins.splits[0] != twins.splits[1]),
        tuple(twins for twins in reader.twins if twins.splits[0] == twins.splits[1]),
    )


class _ExampleReader:
    """Reads samples in their order and gathers what is wrong and what is there twice."""

    def __init__(self, source: str, tell: Callable[[str], None]) -> None:
        self.source, self.tell = source, tell
        self.faults: list[Fault] = []
        self.twins: list[Twins] = []
        self._first: dict[bytes, tuple[str, str]] = {}  # by what a sample holds: its name and split

    def note(self, text: str) -> None:
        """Gather a fault, once."""
        place, colon, problem = text.partition(": ")
        fault = Fault(place, problem) if colon else Fault(self.source, text)
        if fault not in self.faults:
            self.faults.append(fault)

    def read(self, dataset: ExampleDataset) -> SplitRead:
        """Read one split, so many samples at once, each time with the one before: they must go together."""
        faulty, before = 0, []  # type: int, list[int]
        for start in range(0, len(dataset), _TOGETHER):
            chosen = [*before, *range(start, min(start + _TOGETHER, len(dataset)))]
            bad = self._read(dataset, chosen, new=len(before))
            faulty += len(bad)
            before = [index for index in chosen if index not in bad][-1:]
            self.tell(
                f"{dataset.split}: {chosen[-1] + 1} of {len(dataset)} samples read, "
                f"{number_of(len(self.faults), 'fault')}"
            )
        return SplitRead(len(dataset), faulty)

    def _read(self, dataset: ExampleDataset, chosen: Sequence[int], *, new: int) -> set[int]:
        """Read samples together, and where that fails one by one; return those that cannot be read."""
        try:
            self._compare(dataset, chosen[new:], dataset.batch(chosen), skipped=new)
            return set()
        except InputError as error:
            together = str(error)
        bad = set()
        for index in chosen[new:]:
            try:
                self._compare(dataset, [index], dataset.batch([index]), skipped=0)
            except InputError as error:
                bad.add(index)
                self.note(str(error))
        if not bad:
            self.note(together)
        return bad

    def _compare(self, dataset: ExampleDataset, chosen: Sequence[int], batch: object, *, skipped: int) -> None:
        if isinstance(batch, PointBatch):
            for index, sample in zip(chosen, batch.samples()[skipped:], strict=True):
                limit = reach("auto", sample.coordinates.shape[1])
                if not can_be_held(sample, limit):
                    raise InputError(
                        "voxels.out_of_reach",
                        f"{dataset.name(index)}: its voxels exceed the engine's range of {limit} from 0; use a "
                        "larger voxel size",
                    )
        if not isinstance(batch, ExampleBatch) or isinstance(dataset, PlainTextExamples):
            return
        stacked = all(tensor.ndim and len(tensor) == batch.samples for tensor in _tensors(batch.inputs))
        stacked = stacked and not (isinstance(batch.inputs, Mapping) and OFFSET in batch.inputs)
        for row, index in enumerate(chosen, start=skipped):
            here = dataset.name(index), dataset.split
            digest = _digest(batch, row) if stacked else _digest(dataset.batch([index]), None)
            first = self._first.setdefault(digest, here)
            if first != here:
                self.twins.append(Twins(first[0], here[0], (first[1], here[1])))


def _digest(batch: ExampleBatch, row: int | None) -> bytes:
    """Hash what a sample holds, padding left away. `row`: of a stacked minibatch; None: it is the only sample."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in _tensors(batch.inputs):
        array = tensor.numpy() if row is None else tensor[row].numpy()
        if array.ndim and array.dtype.kind in "iub":
            filled = np.flatnonzero((array != PADDING) & (array != IGNORED))
            array = array[: filled[-1] + 1] if array.ndim == 1 and len(filled) else array
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def _tensors(parts: Any) -> Iterator[Tensor]:
    yield from (leaf for leaf in pytree.tree_leaves(parts) if isinstance(leaf, Tensor))


def _by_class(opened: Mapping[str, ExampleDataset]) -> dict[str, dict[str, int]]:
    classes = opened["train"].classes
    if not classes:
        return {}
    counts = {split: Counter(dataset.labels) for split, dataset in opened.items()}
    return {name: {split: counts[split][label] for split in opened} for label, name in enumerate(classes)}


def _range(dataset: ExampleDataset) -> dict[str, float]:
    sizes = dataset.sample_sizes()
    return {"least": min(sizes), "median": statistics.median(sizes), "most": max(sizes)}


def _shapes(batch: object) -> dict[str, Any]:
    """Describe one sample's inputs and target: types and shapes, the minibatch's axis left away."""
    if not isinstance(batch, ExampleBatch):
        return {}
    return {"inputs": _shape(batch.inputs), "target": _shape(batch.target)}


def _shape(parts: Any) -> Any:
    if isinstance(parts, Mapping):
        return {name: _shape(part) for name, part in parts.items()}
    if isinstance(parts, tuple | list):
        return [_shape(part) for part in parts]
    if not isinstance(parts, Tensor):
        return type(parts).__name__
    return f"{str(parts.dtype).removeprefix('torch.')} {list(parts.shape[1:])}"
