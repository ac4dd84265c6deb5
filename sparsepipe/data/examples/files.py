"""Files of a data set of examples: what a record says of them, and whether they are all there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..digest import files_digest, unreadable


def named_digest(files: Sequence[Path], root: Path) -> dict[str, str]:
    """Return `files_digest` of files by their names below `root`. Raises InputError for one that cannot be read."""
    once = tuple(dict.fromkeys(files))
    try:
        names = [(path.relative_to(root).as_posix(), path.stat().st_size) for path in once]
    except OSError as error:
        raise unreadable(error) from None
    return files_digest(once, names)


def check_indices(indices: Sequence[int], count: int, split: str) -> None:
    """Raise InputError if one of the samples asked for does not exist."""
    for index in indices:
        if not 0 <= index < count:
            raise InputError(
                "dataset.sample_unknown",
                f"sample {index} requested, but split {split} has {count}; use 0 to {count - 1}",
                index=index,
                split=split,
            )


def check_options(options: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise InputError for an option that a kind of data set does not have."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            "dataset.option_unknown",
            f"{what}: unknown option {', '.join(unknown)}, expected {', '.join(known) or 'none'}",
        )
