"""What every data set of examples offers: minibatches of tensors, their sizes, and what a network needs to know.

One of texts has no classes, is measured, its targets are words, its sizes tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...errors import InputError


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """A minibatch of examples, padded if their lengths differ.

    `inputs` is what a network's forward takes: a tensor, a tuple of them (its arguments in order) or a dict of them
    (its arguments by name), the first axis of each counting samples. `target` is what the loss takes besides the
    output: a tensor, or a tuple or dict of tensors. `size` is what the minibatch's costs grow with, in the data set's
    `size_unit`: padding included, since it is computed too.
    """

    inputs: Any
    target: Any
    samples: int
    size: int

    def __len__(self) -> int:
        return self.samples


class ExampleDataset(Protocol):
    """One split of a data set of examples: map-style, read on demand, the same in every process that opens it.

    Point clouds (data.VoxelDataset) offer all of this too; their minibatches are PointBatches.
    """

    @property
    def split(self) -> str:
        """train, or test."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of a classification, a target is an index into them; else ()."""
        ...

    @property
    def labels(self) -> tuple[int, ...]:
        """Each sample's class. Raises InputError if samples have none."""
        ...

    @property
    def targets_are_labels(self) -> bool:
        """Return whether a minibatch's target is int64 [B], the `labels` of its samples, which are known without
        reading.
        """
        ...

    @property
    def synthetic(self) -> bool:
        """Return whether the examples were made, not measured."""
        ...

    @property
    def size_unit(self) -> str:
        """Return the unit of sizes, one of SIZE_UNITS (util/text/numbers.py)."""
        ...

    @property
    def loss(self) -> str:
        """The name of the loss that such data are usually trained with: one of sparsepipe.networks.losses.LOSSES."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return data properties for a network's builder: num_classes, in_channels, image_size, vocabulary_size, ..."""
        ...

    @property
    def origin(self) -> dict[str, Any]:
        """The origin of the examples and how they are made, for records: JSON-ready, without absolute paths."""
        ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the name of a sample in messages: the path of its file inside the data set, or its number."""
        ...

    def look(self) -> None:
        """Check that all files exist, without reading them. Raises InputError if one is not."""
        ...

    def sample_sizes(self) -> Sequence[int]:
        """Return the size of each sample without padding, in `size_unit`: minibatches are bucketed by it."""
        ...

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> Any:
        """Read samples as one minibatch: an ExampleBatch. `epoch` decides how they are augmented.

        Raises InputError that names a file that cannot be read, or samples that do not go together.
        """
        ...


class TextExamples:
    """The part of `ExampleDataset` that is the same for all texts."""

    root: Path
    pieces = "texts"  # what its samples are

    @property
    def classes(self) -> tuple[str, ...]:
        return ()

    @property
    def labels(self) -> tuple[int, ...]:
        raise InputError(
            "texts.no_classes",
            f"{self.root}: its {self.pieces} have no classes; use a data set with a folder per class",
        )

    @property
    def targets_are_labels(self) -> bool:
        """Targets are words, which are read."""
        return False

    @property
    def synthetic(self) -> bool:
        return False

    @property
    def size_unit(self) -> str:
        return "tokens"
