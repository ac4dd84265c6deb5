"""Files of a data set of examples: what a record says of them, and whether they are all there."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..cache import SampleCache, cache_key

_MOST_HASHED_BYTES = 256 * 2**20  # contents are hashed up to here (about a second), names and sizes beyond


def files_digest(files: Sequence[Path], root: Path) -> dict[str, str]:
    """Hash the names below `root` and the contents of files; of a large data set names and sizes, and say which."""
    hashed = hashlib.sha256()
    try:
        sizes = {path: path.stat().st_size for path in dict.fromkeys(files)}
        whole = sum(sizes.values()) <= _MOST_HASHED_BYTES
        for path, num_bytes in sizes.items():
            hashed.update(f"{path.relative_to(root).as_posix()}\0{num_bytes}\0".encode(errors="surrogateescape"))
        for path in sizes if whole else ():
            hashed.update(path.read_bytes())
    except OSError as error:
        raise _unreadable(error) from None
    return {"sha256": hashed.hexdigest(), "sha256_of": "names, sizes and contents" if whole else "names and sizes"}


def sample_key(cache: SampleCache | None, files: Sequence[Path], facts: Mapping[str, Any]) -> str | None:
    """Return the key in the cache of what is made of files, None without one. Raises InputError for one unreadable."""
    if cache is None:
        return None
    try:
        return cache_key(files, facts)
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> InputError:
    return InputError(f"{error.filename}: cannot be read ({error.strerror}); check the data set's files")


def check_indices(indices: Sequence[int], count: int, split: str) -> None:
    """Raise InputError where one of the samples asked for is not there."""
    for index in indices:
        if not 0 <= index < count:
            raise InputError(f"sample {index} asked of {count} in split {split}; use 0 to {count - 1}")


def check_options(options: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise InputError for an option that a kind of data set does not have."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"{what}: no option {', '.join(unknown)}, expected {', '.join(known) or 'none'}")
