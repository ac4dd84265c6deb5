"""Cache of prepared samples on disk: the key is a hash of everything that determines a sample's arrays."""

import fcntl
import hashlib
import json
import os
import stat
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from ..util.io.files import expanded, open_lock, read_whole, sealed, sha256, unsealed, write_atomic
from .folder import unreadable, user_cache

NO_CACHE = "off"
_LIMIT_BYTES = 10 * 2**30  # of the user's own folder; one that was named is the user's to clear
_LOOK_AGAIN_BYTES = 2**28  # written by this process: others write too, so what is left is looked up from time to time
_MOST_ENTRY_BYTES = 2**36
_LOOK_SECONDS = 0.02  # between two looks whether it is done
_TO_MAKE_SECONDS = 600.0  # for another process to make an entry; then this one makes it, too
_IN_USE_SECONDS = 24 * 3600.0  # to remove what an epoch is still to read would spare nothing


class SampleCache:
    """A folder of safetensors files that several processes may fill at once; it may be removed at any time.

    Entries appear whole or not at all. A damaged one counts as absent and is written again, as is what is a link, a
    pipe or another user's file: others may be able to write to the folder. With a limit (bytes) the entries not used
    for longest make room, but none that was used within a day. If nothing more can be kept, that being so, a disk
    full or the folder read-only, one warning says so and work continues without.
    """

    def __init__(self, folder: Path | str, *, limit: int | None = None) -> None:
        self.folder = expanded(folder)
        self._limit = limit
        self._left = 0  # bytes that may be written before the folder is looked at again
        self._writable = True
        self._patience = _TO_MAKE_SECONDS

    def load(self, key: str) -> dict[str, np.ndarray] | None:
        """Return the arrays kept under `key`, None if there are none."""
        path = self._path(key)
        try:
            content = unsealed(read_whole(path, own=True, most=_MOST_ENTRY_BYTES))
            arrays = None if content is None else safetensors.load(content)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None
        if arrays is not None:
            with suppress(OSError):  # removed meanwhile
                os.utime(path, follow_symlinks=False)
        return arrays

    def save(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under `key`."""
        if not self._writable:
            return
        entry = sealed(safetensors.save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
        try:
            if self._has_room(len(entry)):
                path = self._path(key)
                if path.exists() and not path.is_file():  # whoever writes to a pipe waits for a reader
                    path.unlink()
                write_atomic(path, entry, synced=False)  # one that lost its power counts as damaged
            else:
                assert self._limit is not None
                self._stop(f"{self._limit / 2**30:g} GiB of it were used today")
        except OSError as error:
            self._stop(error.strerror or str(error))

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Hold an entry for this process, for what is dear to make: others wait, then find it.

        No one waits if nothing can be written, or for more than ten minutes: whoever holds it may be stopped.
        """
        path = self._path(key).with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = open_lock(path, own=True)
        except OSError:
            yield
            return
        with handle:
            held = self._waited_for(handle.fileno())
            try:
                yield
            finally:
                if held:
                    with suppress(OSError):
                        path.unlink()

    def _waited_for(self, lock: int) -> bool:
        """Wait for a lock; False if it is not available. A process that waited for one in vain waits for no other."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self._patience = 0.0
                    return False
                time.sleep(_LOOK_SECONDS)
            except OSError:  # a disk without locks
                return False

    def _has_room(self, num_bytes: int) -> bool:
        """Return whether an entry of `num_bytes` may be written, after removing entries that were not used for long."""
        if self._limit is None:
            return True
        if self._left < num_bytes:
            step = max(min(_LOOK_AGAIN_BYTES, self._limit // 4), num_bytes)
            self._left = min(self._limit - self._shrunk(self._limit - step), step)
        self._left -= num_bytes
        return self._left >= 0

    def _shrunk(self, aim: int) -> int:
        """Remove entries, those not used for longest first, until `aim` bytes are left; return how many are."""
        entries = []
        for path in self.folder.glob("*/*"):
            with suppress(OSError):  # removed meanwhile
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and not path.parent.is_symlink():  # what a link leads to is not ours
                    entries.append((status.st_mtime, status.st_size, path))
        left = sum(size for _, size, _ in entries)
        for used, size, path in sorted(entries):
            if left <= aim or used > time.time() - _IN_USE_SECONDS:
                break
            path.unlink(missing_ok=True)
            left -= size
        return left

    def _stop(self, why: str) -> None:
        self._writable = False
        warnings.warn(
            f"{self.folder}: samples cannot be cached ({why}), so the run continues without a cache; free disk "
            f"space, or set SPARSEPIPE_CACHE to another folder or to {NO_CACHE}",
            stacklevel=1,  # one place, so that it is said once, however many caches are opened
        )

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"


def cache_key(paths: Sequence[Path], facts: Mapping[str, object]) -> str:
    """Return the key of a sample: a hash of its files' contents, of JSON-ready facts and of this package's code."""
    digest = hashlib.sha256(json.dumps({"code": _code_digest(), **facts}, sort_keys=True).encode())
    for path in paths:
        status = path.stat()
        digest.update(_content_digest(path, status.st_size, status.st_mtime_ns).encode())
    return digest.hexdigest()


def sample_key(cache: SampleCache | None, files: Sequence[Path], facts: Mapping[str, object]) -> str | None:
    """Return the key in the cache of what is made of files, None without one. Raises InputError for one unreadable."""
    if cache is None:
        return None
    try:
        return cache_key(files, facts)
    except OSError as error:
        raise unreadable(error) from None


def open_cache(given: Path | str | None) -> SampleCache | None:
    """Return the cache in the folder given, else in the one SPARSEPIPE_CACHE names, else in the user's own.

    None if `off` is given or said there, and for a user without a home, as in some containers.
    """
    named = str(given or os.environ.get("SPARSEPIPE_CACHE") or "")
    if named == NO_CACHE:
        return None
    if named:
        return SampleCache(named)
    with suppress(RuntimeError):
        return SampleCache(user_cache() / "samples", limit=_LIMIT_BYTES)
    return None


@lru_cache(maxsize=4096)  # one file may hold thousands of samples, asked for in any order beside those of others
def _content_digest(path: Path, num_bytes: int, modified: int) -> str:
    return sha256(path)


@lru_cache(maxsize=1)
def _code_digest() -> str:
    """Hash this package's code: no version to raise by hand when it comes to prepare samples otherwise."""
    place = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*.py")):
        digest.update(f"{path.relative_to(place).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
