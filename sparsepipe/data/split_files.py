"""The files of a split: whether they are all there, and a hash by which a record knows them again."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..util.io.files import read_whole
from ..util.text.counting import number_of


def look_at(files: Iterable[Path], split: str) -> None:
    """Raise InputError if a file is empty or cannot be read, without reading any."""
    bad = []
    for path in dict.fromkeys(files):
        try:
            problem = "" if path.stat().st_size else "is empty"
            problem = problem or ("" if os.access(path, os.R_OK) else "cannot be read (no permission)")
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            bad.append(f"{path}: {problem}")
    if bad:
        more = (
            f" and {number_of(len(bad) - 1, 'more file')} {'is' if len(bad) == 2 else 'are'} so" if len(bad) > 1 else ""
        )
        raise InputError(
            "dataset.files_faulty",
            f"{bad[0]}{more}, in split {split}; repair or remove the files that `sparsepipe data check` lists",
            split=split,
        )


_MOST_HASHED_BYTES = 256 * 2**20  # contents are hashed up to here (about a second), names and sizes beyond


def files_digest(paths: Iterable[Path], names: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Hash names, each with its bytes, then the contents of files, each once; no contents of a large data set.

    It says which. Raises InputError for a file that cannot be read.
    """
    hashed = hashlib.sha256()
    for name, num_bytes in names:
        hashed.update(f"{name}\0{num_bytes}\0".encode(errors="surrogateescape"))
    once = dict.fromkeys(paths)
    try:
        whole = sum(path.stat().st_size for path in once) <= _MOST_HASHED_BYTES
        for path in once if whole else ():
            hashed.update(read_whole(path))
    except OSError as error:
        raise unreadable(error) from None
    return {"sha256": hashed.hexdigest(), "sha256_of": "names, sizes and contents" if whole else "names and sizes"}


def unreadable(error: OSError) -> InputError:
    """Return what to say of a data set's file that cannot be read."""
    return InputError(
        "file.unreadable", f"{error.filename}: cannot be read ({error.strerror}); check the data set's files"
    )


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
