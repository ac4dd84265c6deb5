"""The folder of a Ray that is started for one job: its sockets and logs, and the token that its processes ask for."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...io.files import write_atomic
from ..lock import hold, is_held

TOKEN = "token"
_LONGEST = 30  # characters of the folder for temporary files: names of sockets end after 107, Ray's own are long
_TOKEN_BYTES = 32


@contextmanager
def session_folder() -> Iterator[Path]:
    """Make a folder of this user's own, with a new token in it, to the end of the block.

    What was left by a process that was killed is removed first. Raises OSError.
    """
    place = Path(tempfile.gettempdir())
    place = place if len(str(place)) <= _LONGEST else Path("/tmp")
    _remove_stale(place)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(), dir=place))
    lock = hold(folder)  # closed by the kernel where this process is killed
    try:
        write_atomic(folder / TOKEN, secrets.token_hex(_TOKEN_BYTES), private=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_stale(place: Path) -> None:
    for folder in place.glob(f"{_prefix()}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and (folder / TOKEN).exists() and not is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"sparsepipe-ray-{os.getuid()}-"
