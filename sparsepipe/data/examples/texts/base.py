"""What every data set of texts is: without classes, measured, its targets words, its sizes tokens."""

from pathlib import Path

from ....errors import InputError


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
