"""Download one file: resumed where an earlier try ended, verified by size and SHA-256, whole or absent."""

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..util.io.fields import complaint
from ..util.io.files import sha256
from ..util.io.quantities import SIZE
from .manifests import RemoteFile

Progress = Callable[[str, int, int | None], None]  # (file name, bytes so far, bytes in all or None)

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60
_TRIES = 4  # in a row that bring nothing
_PAUSE_SECONDS = 1.0  # after the first of them, twice as long after each further one
_MOST_UNSTATED_BYTES = 8 * 2**30  # of a file whose manifest does not say how large it is
_MOST_DIGITS = 18  # of a length that a server states
_BROKEN = (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError)


def download(file: RemoteFile, folder: Path, progress: Progress | None = None) -> Path:
    """Return `folder`/`file.path`, downloaded and verified; what is there and verifies is not fetched again.

    Bytes gather in a file ending in .part, from whose end a later try continues where the server can. A connection that
    breaks is tried again. Raises InputError if it stays broken (the .part stays for next time), where size or
    SHA-256 differ, or if more than 8 GiB come of a file whose manifest states no size (nothing stays).
    """
    path = folder / file.path
    part = path.with_name(f"{path.name}.part")
    if path.is_file():
        if sha256(path) == file.sha256:
            return path
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    vain, failure = 0, None  # tries in a row that brought nothing
    while vain < _TRIES:
        if vain:
            time.sleep(_PAUSE_SECONDS * 2 ** (vain - 1))
        start = _size(part)
        whole = start > 0 and start == file.num_bytes
        failure = None if whole else _append(file, part, start, progress)
        if failure is None and _verified(file, part, resumed=start > 0):
            part.replace(path)
            return path
        vain = 0 if _size(part) > start else vain + 1
    raise InputError(
        "download.failed", f"{file.url}: cannot be downloaded ({failure}); repeat the command to resume the download"
    )


def _append(file: RemoteFile, part: Path, start: int, progress: Progress | None) -> str | None:
    """Fetch what is missing after `start` bytes. Return what went wrong, None if the end was reached."""
    request = urllib.request.Request(file.url)
    web = request.type in ("http", "https")
    if start and web:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            size = start if _continues(response, start) else 0
            total = _total(response, size)
            with part.open("ab" if size else "wb") as handle:
                while chunk := response.read(_CHUNK_BYTES):
                    size += len(chunk)
                    handle.write(chunk)
                    if progress is not None:
                        progress(file.path, size, file.num_bytes or total)
                    if size > _most(file):
                        break
                handle.flush()
                os.fsync(handle.fileno())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing after `start`: the .part is whole, or of another file
            return None
        if error.code < 500 and error.code not in (408, 429):
            raise InputError(
                "download.failed", f"{file.url}: cannot be downloaded ({complaint(error)}); check the manifest's URL"
            ) from None
        return complaint(error)
    except UnicodeError as error:  # a host that no name server knows how to spell
        raise InputError(
            "download.failed", f"{file.url}: cannot be downloaded ({complaint(error)}); check the manifest's URL"
        ) from None
    except _BROKEN as error:
        if not web:
            part.unlink(missing_ok=True)
            raise InputError(
                "download.failed",
                f"{file.url}: cannot be downloaded ({_reason(error)}); check the network, then try again",
            ) from None
        return _reason(error)
    if file.num_bytes is None and size > _MOST_UNSTATED_BYTES:
        part.unlink(missing_ok=True)
        raise InputError(
            "download.too_large",
            f"{file.url}: received more than {SIZE.shown(_MOST_UNSTATED_BYTES)}, the limit for files whose manifest "
            "gives no size; add the size to the manifest",
        )
    short = size < (total or 0) or (web and size < (file.num_bytes or 0))
    return f"received {size} of {file.num_bytes or total} bytes" if short else None


def _reason(error: Exception) -> str:
    return complaint(getattr(error, "reason", None) or error)


def _continues(response: Any, start: int) -> bool:
    """Return whether the server continues from `start`; one that cannot sends everything again."""
    return (
        start > 0 and response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
    )


def _total(response: Any, start: int) -> int | None:
    """Return the size of the whole file as the server states it."""
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() and len(length) <= _MOST_DIGITS else None


def _most(file: RemoteFile) -> int:
    """Return how many bytes of a file are taken at most."""
    return _MOST_UNSTATED_BYTES if file.num_bytes is None else file.num_bytes


def _verified(file: RemoteFile, part: Path, *, resumed: bool) -> bool:
    """Return whether the file is what its manifest says. A resumed one that is not is dropped, to be fetched again.

    Raises InputError, with both sides' numbers, if it was fetched in one go.
    """
    size = _size(part)
    found = sha256(part) if size == file.num_bytes or file.num_bytes is None else None
    if found == file.sha256:
        return True
    part.unlink(missing_ok=True)
    if resumed:
        return False
    if found is None:
        more = "or more " if size > (file.num_bytes or 0) else ""
        raise InputError(
            "download.size_differs", f"{file.url}: received {size} bytes {more}instead of {file.num_bytes}; try again"
        )
    raise InputError(
        "download.digest_differs", f"{file.url}: SHA-256 {found}, expected {file.sha256}; the file was discarded"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
