"""Files that travel in pieces between a run's record and the hosts: where they may go, and that they came whole."""

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ...errors import InputError
from ...runtime.wire.frames import MOST_PAYLOAD, Frame, FrameWriter
from ...util.io.files import open_regular, sha256

_PIECE = MOST_PAYLOAD // 2


def place(folder: Path, name: Any) -> Path:
    """Return where a file is in a folder, given its name there. Raises InputError for a name that leads elsewhere."""
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(name):
        raise InputError("agent.file_unknown", f"received the file {str(name)[:100]!r}, which does not belong to a run")
    return folder / path


def send_file(writer: FrameWriter, path: Path, name: str, *, kind: str = "file", **facts: Any) -> None:
    """Send a file whole, in pieces, with its SHA-256. Raises OSError."""
    digest = sha256(path)
    with open_regular(path) as handle:
        for piece, first, last in _pieces(handle):
            writer.send(kind, piece, name=name, first=first, last=last, sha256=digest, **facts)


def send_content(writer: FrameWriter, content: bytes, name: str) -> None:
    """Send what is to be the content of a small file."""
    digest = hashlib.sha256(content).hexdigest()
    for piece, first, last in _pieces(io.BytesIO(content)):
        writer.send("file", piece, name=name, first=first, last=last, sha256=digest)


class Arrivals:
    """Files on their way into a folder: each has its name there once it is whole, and as it was sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, frame: Frame) -> Path | None:
        """Take a piece; return the file if it was the last. Raises InputError if it is not what was sent.

        What has come of a file may be removed meanwhile, with a checkpoint that is given up: the rest is passed over.
        """
        path = place(self._folder, frame.head.get("name"))
        partial = path.with_name(f".{path.name}.arriving")
        try:
            if frame.head.get("first"):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial.write_bytes(frame.payload)
            else:
                with partial.open("r+b") as handle:  # which makes none
                    handle.seek(0, os.SEEK_END)
                    handle.write(frame.payload)
            if not frame.head.get("last"):
                return None
            digest = sha256(partial)
        except FileNotFoundError:
            return None
        if digest != frame.head.get("sha256"):
            partial.unlink()
            raise InputError("agent.file_damaged", f"{path}: changed in transfer (SHA-256 differs)")
        partial.replace(path)
        return path


def _pieces(handle: BinaryIO) -> Iterator[tuple[bytes, bool, bool]]:
    """Yield each piece, whether it is the first, and whether it is the last."""
    piece, first = handle.read(_PIECE), True
    while True:
        following = handle.read(_PIECE)
        yield piece, first, not following
        if not following:
            return
        piece, first = following, False
