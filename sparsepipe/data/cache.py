"""Prepared samples on disk: arrays under the hash of all that decides them, so that an entry is right or absent."""

import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..files import write_atomic

_VERSION = 2  # of what is computed: raised when the same file and settings would give other arrays


class SampleCache:
    """A folder of NumPy archives that several processes may fill at once; it may be removed at any time.

    Entries appear whole or not at all. A damaged one counts as absent and is written anew. Where the folder cannot be
    written, a disk being full or the folder read-only, one warning says so and work goes on without.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._writable = True

    def load(self, key: str) -> dict[str, np.ndarray] | None:
        """Return the arrays kept under `key`, None where there are none."""
        try:
            content = _unsealed(self._path(key).read_bytes())
        except OSError:
            return None
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def save(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under `key`."""
        if not self._writable:
            return
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        try:
            write_atomic(self._path(key), _sealed(buffer.getvalue()))
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"{self.folder}: samples cannot be cached ({error.strerror or error}), going on without; "
                "free some space or name another folder",
                stacklevel=2,
            )

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npz"


def cache_key(paths: Sequence[Path], facts: Mapping) -> str:
    """Return the key of what the contents of files and JSON-ready facts decide."""
    digest = hashlib.sha256(json.dumps({"version": _VERSION, **facts}, sort_keys=True).encode())
    for path in paths:
        status = path.stat()
        digest.update(_content_digest(path, status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


def cache_folder(given: Path | str | None) -> Path | None:
    """Return the folder given, else the one SPARSEPIPE_CACHE names; None where neither does: nothing is cached then."""
    named = given or os.environ.get("SPARSEPIPE_CACHE")
    return Path(named) if named else None


def _sealed(content: bytes) -> bytes:
    """Return an entry: an archive, then its SHA-256, as an archive's own checksums leave its directory out."""
    return content + hashlib.sha256(content).digest()


def _unsealed(entry: bytes) -> bytes | None:
    """Return the archive in an entry, None where a byte of it differs from what was saved."""
    content = entry[: -hashlib.sha256().digest_size]
    return content if _sealed(content) == entry else None


@lru_cache(maxsize=64)  # one file may hold thousands of samples, asked for in a row or mixed with a few others
def _content_digest(path: Path, num_bytes: int, modified: int) -> bytes:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()
