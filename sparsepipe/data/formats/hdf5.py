"""Point clouds in HDF5, many to a file, as modelnet40_ply_hdf5_2048 has them: data [S, P, 3], label [S, 1]."""

import errno
import io
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...util.io.fields import complaint
from .base import (
    LABEL,
    NORMAL,
    POSITION,
    Cloud,
    check_regular,
    cloud_of,
    is_packed,
    read_bytes,
    too_large,
    unreadable,
    whole_labels,
)
from .reading import AS_THEY_ARE, Reading, check_claim

_WHAT = "an HDF5 file of point clouds"
_MAX_KEPT_BYTES = 32 * 2**20  # of a file's arrays


def read_hdf5(path: Path, reading: Reading = AS_THEY_ARE, *, entry: int | None = None) -> Cloud:
    """Read cloud `entry` of a file: `data`, and `normal` [S, P, 3] and `pid` [S, P] (labels) where they exist.

    Raises InputError that names the file if it is damaged, its arrays do not match, or no entry was given for a file
    of several.
    """
    with _arrays(path) as arrays:
        count = len(arrays["data"])
        if entry is None and count > 1:
            raise InputError(
                "hdf5.several_clouds",
                f"{path}: contains {count} clouds, expected one; give the file's folder instead",
            )
        chosen = 0 if entry is None else entry
        if not 0 <= chosen < count:
            raise InputError(
                "hdf5.cloud_unknown",
                f"{path}: cloud {chosen} requested, but the file has {count}; use 0 to {count - 1}",
                chosen=chosen,
                count=count,
            )
        columns = dict(zip(POSITION, arrays["data"][chosen].T, strict=True))
        if "normal" in arrays:
            columns |= dict(zip(NORMAL, arrays["normal"][chosen].T, strict=True))
        if "pid" in arrays:
            columns[LABEL] = arrays["pid"][chosen]
    return cloud_of(path, columns.items(), reading)


def hdf5_labels(path: Path) -> np.ndarray:
    """Return the class of every cloud in the file: int64 [S].

    Raises InputError if there are none, or one is no whole number from 0.
    """
    with _opened(path) as arrays:
        if "label" not in arrays:
            raise InputError("hdf5.no_labels", f"{path}: has no array 'label', expected one class per cloud")
        labels = arrays["label"][...].reshape(-1)
    return whole_labels(path, labels)


@contextmanager
def _arrays(path: Path) -> Iterator[Mapping[str, Any]]:
    """Give the arrays of a small file from memory, those of a large one unread, which costs a millisecond each time."""
    whole = None
    if path.is_file():
        facts = path.stat()
        whole = _read_whole(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    if whole is not None:
        yield whole
        return
    with _opened(path) as arrays:
        yield arrays


@lru_cache(maxsize=4)
def _read_whole(path: Path, *of_this_version: int) -> Mapping[str, np.ndarray] | None:
    """Return a file's arrays in memory; None if they are too large."""
    with _opened(path) as arrays:
        if sum(array.nbytes for array in arrays.values()) > _MAX_KEPT_BYTES:
            return None
        found = {name: array[...] for name, array in arrays.items()}
    for array in found.values():
        array.setflags(write=False)  # whoever reads it next gets the same
    return found


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, Any]]:
    """Give the file's arrays, unread, once they hold numbers and their shapes agree."""
    import h5py  # here: a listing of data sets need not wait for it

    with hdf5_file(path, what=_WHAT) as file:
        links = {name: file.get(name, getlink=True) for name in ("data", "label", "normal", "pid")}
        linked = [name for name, link in links.items() if link is not None and not isinstance(link, h5py.HardLink)]
        if linked:  # never followed: it may lead to another file
            raise InputError(
                "hdf5.array_is_link", f"{path}: {linked[0]!r} is a link, expected an array in the file itself"
            )
        arrays = {name: file[name] for name, link in links.items() if link is not None}
        for name, array in arrays.items():
            if not isinstance(array, h5py.Dataset) or array.shape is None or array.dtype.kind not in "biuf":
                what = "a group" if isinstance(array, h5py.Group) else "without numbers"
                raise InputError(
                    "hdf5.array_malformed", f"{path}: {name!r} is {what}, expected an array of numbers; repair the file"
                )
            check_storage(path, name, array)
        _check(path, arrays, list(file))
        yield arrays


@contextmanager
def hdf5_file(path: Path, *, what: str) -> Iterator[Any]:
    """Open an HDF5 file, or one that gzip packed, to be read.

    It is opened without a lock where the disk has none, or another process holds it. Raises InputError that names the
    file and the cause, for whatever fails while it is open.
    """
    import h5py

    num_bytes = check_regular(path, what=what)
    source: Path | io.BytesIO = path
    if is_packed(path) or not num_bytes:
        source = io.BytesIO(read_bytes(path, what=what))
    busy = False
    try:
        try:
            file = h5py.File(source, "r")
        except OSError as error:
            if "unable to lock file" not in str(error):
                raise
            busy = _system_error(error) == errno.EAGAIN
            file = h5py.File(source, "r", locking=False)
        with file:
            yield file
    except InputError:
        raise
    except MemoryError:
        raise too_large(path) from None
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # h5py's
        cause = _system_error(error)
        if busy:
            raise InputError(
                "hdf5.locked",
                f"{path}: another process is writing the file ({complaint(error)}); close it there",
            ) from None
        if cause:
            raise unreadable(path, OSError(cause, os.strerror(cause)), what=what) from None
        if not h5py.is_hdf5(path):
            read_bytes(path, what=what)  # says what else it is
            raise InputError(
                "hdf5.malformed", f"{path}: not {what}: it lacks the HDF5 signature; check the file's format"
            ) from None
        raise InputError(
            "hdf5.damaged",
            f"{path}: {what} is damaged or truncated ({complaint(error)}); fetch or create the file again",
        ) from None


def _system_error(error: Exception) -> int | None:
    """Return the number of the system's error behind one of HDF5's, which may be in its words alone."""
    said = re.search(r"errno = (\d+)", str(error))
    return getattr(error, "errno", None) or (int(said[1]) if said else None) or None


def check_storage(path: Path, name: str, array: Any) -> None:
    """Raise InputError if an array lies in other files, was never written, or claims more than the file can hold."""
    num_bytes = array.file.id.get_filesize()
    if array.external or array.is_virtual:
        raise InputError(
            "hdf5.array_external",
            f"{path}: the values of {name!r} are in another file; copy them into this file",
        )
    what = f"array {name!r} {list(array.shape)}"
    check_claim(path, array.nbytes, num_bytes=num_bytes, what=what, packed=array.chunks is not None)
    if array.chunks is not None:
        chunk_bytes = math.prod(array.chunks) * array.dtype.itemsize
        check_claim(path, chunk_bytes, num_bytes=num_bytes, what=f"a chunk of {what}", packed=True)
    if array.nbytes and not array.id.get_storage_size():
        raise InputError("hdf5.never_written", f"{path}: {what} was never written; fetch the file again")


def _check(path: Path, arrays: dict[str, Any], names: list[str]) -> None:
    if "data" not in arrays:
        there = ", ".join(names)[:200] or "nothing"
        raise InputError("hdf5.no_points", f"{path}: contains {there}, expected an array 'data' of points [S, P, 3]")
    shape = arrays["data"].shape
    if len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise InputError(
            "hdf5.points_shape",
            f"{path}: array 'data' has shape {list(shape)}, expected points [S, P, 3] with S, P >= 1",
        )
    wanted = {"label": {(shape[0],), (shape[0], 1)}, "normal": {shape}, "pid": {shape[:2]}}
    for name, allowed in wanted.items():
        if name in arrays and arrays[name].shape not in allowed:
            raise InputError(
                "hdf5.array_shape",
                f"{path}: array {name!r} has shape {list(arrays[name].shape)}, expected {[*max(allowed, key=len)]} "
                f"because 'data' has shape {list(shape)}; repair the file",
            )
