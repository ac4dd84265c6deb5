"""Files that travel in pieces between a run's record and the hosts: where they may go, and that they came whole.

What a run writes on a host is followed: each look says what files have grown, or been replaced, since the last one.
"""

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

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


_LOOK_BYTES = 2**19
_LOG = ".log"
MOST_LOG_BYTES = 2**26  # of a log of a host that are kept in the record
_LEFT_OUT = f"\n[…] only {MOST_LOG_BYTES >> 20} MiB of this log are kept; the rest was discarded\n".encode()


class FileGrowth(NamedTuple):
    """Bytes that a file has more. `anew`: it is another file, which begins with them."""

    name: str
    data: bytes
    anew: bool
    more: bool  # of what was there at this look follows in the next one


class FolderMirror:
    """Follows the files of a folder that match any of `patterns`."""

    def __init__(self, folder: Path, patterns: tuple[str, ...]) -> None:
        self._folder, self._patterns = folder, patterns
        self._known: dict[str, tuple[int, int]] = {}  # inode, and how much of it was told

    def skip(self) -> None:
        """Take what is there now for known."""
        for path in self._paths():
            status = path.stat()
            self._known[path.relative_to(self._folder).as_posix()] = (status.st_ino, status.st_size)

    def changes(self) -> Iterator[FileGrowth]:
        """Yield what is new since the last call, of each file in order."""
        for path in self._paths():
            yield from self._growth(path)

    def _paths(self) -> list[Path]:
        return sorted({path for pattern in self._patterns for path in self._folder.glob(pattern)})

    def _growth(self, path: Path) -> Iterator[FileGrowth]:
        name = path.relative_to(self._folder).as_posix()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return  # gone again
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            inode, offset = self._known.get(name, (-1, 0))
            anew = inode != status.st_ino or status.st_size < offset
            offset = 0 if anew else offset
            end = min(status.st_size, MOST_LOG_BYTES + 1) if path.suffix == _LOG else status.st_size
            while offset < end or anew:
                data = os.pread(descriptor, min(_LOOK_BYTES, end - offset), offset)
                offset += len(data)
                self._known[name] = (status.st_ino, offset)
                yield FileGrowth(name, data, anew, offset < end and bool(data))
                anew = False
                if not data:
                    return
        finally:
            os.close(descriptor)


class Copy:
    """The other side: writes what has grown on a host. A file that is replaced is so in one step.

    A log is never replaced: one that begins again, as on another host, continues behind what was said before. A log is
    bounded, whatever a host prints.
    """

    def __init__(self) -> None:
        self._replacing: set[str] = set()

    def take(self, growth: FileGrowth, path: Path) -> None:
        """Write a growth to `path`. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.arriving")
        if growth.anew and path.suffix != _LOG:
            partial.unlink(missing_ok=True)
            self._replacing.add(growth.name)
        replaces = growth.name in self._replacing
        with (partial if replaces else path).open("ab") as handle:
            room = MOST_LOG_BYTES - handle.tell() if path.suffix == _LOG else len(growth.data)
            handle.write(growth.data[: max(0, room)])
            if 0 <= room < len(growth.data):
                handle.write(_LEFT_OUT)
        if replaces and not growth.more:
            self._replacing.discard(growth.name)
            partial.replace(path)
