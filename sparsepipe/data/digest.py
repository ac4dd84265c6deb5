"""What a record says of a data set's files: a hash by which one knows them again."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import InputError
from ..util.io.files import read_whole

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
