"""Signs of life: heartbeats in a shared file, last words of a rank that ends, and the lifeline to its parent."""

import json
import mmap
import os
import select
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.host.limits import limit_met

LAST_WORDS_VARIABLE = "SPARSEPIPE_LAST_WORDS"  # set by a launcher that listens
_MOST_BYTES = 4096  # what a pipe takes as a whole, whoever else writes to it
_READ_BYTES = 65536


def keep_pipe() -> int:
    """Keep the way to the launcher before standard output becomes a log; -1 if no launcher listens."""
    return os.dup(1) if os.environ.pop(LAST_WORDS_VARIABLE, None) else -1


def say(pipe: int, document: Mapping[str, Any]) -> None:
    """Say it; without its traceback, which may be longer than what a pipe takes at once."""
    line = json.dumps({key: value for key, value in document.items() if key != "traceback"}).encode() + b"\n"
    if pipe >= 0 and len(line) <= _MOST_BYTES:
        with suppress(OSError):  # the launcher was killed
            os.write(pipe, line)


class Listener:
    """The launcher's side: takes what workers say, and keeps it by rank until it is asked for."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._own = os.dup(1)
        os.dup2(writing, 1)
        os.close(writing)
        os.environ[LAST_WORDS_VARIABLE] = "1"
        self._begun = b""
        self._said: list[dict[str, Any]] = []

    def said(self) -> list[dict[str, Any]]:
        """Return what was said so far, in order. To be asked often, before the pipe is full."""
        for line in self._lines():
            with suppress(ValueError):  # what else is printed where workers start
                found = json.loads(line)
                if isinstance(found, dict) and "rank" in found and "message" in found:
                    self._said.append(found)
        return list(self._said)

    def forget(self) -> None:
        """Forget it all: another attempt begins."""
        self.said()
        self._said.clear()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The launcher's own, which are nothing to workers."""
        return self._own, self._reading

    def close(self) -> None:
        """Have standard output back. No one is listened to any more."""
        os.dup2(self._own, 1)
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _lines(self) -> Iterator[bytes]:
        with suppress(BlockingIOError):
            while data := os.read(self._reading, _READ_BYTES):
                *whole, self._begun = (self._begun + data).split(b"\n")
                yield from whole


LIFELINE_VARIABLE = "SPARSEPIPE_LIFELINE"
_TERMINATED = 143  # what a shell says of a process ended by SIGTERM


class Lifeline:
    """The pipe that the environment names, opened. If it is gone, so is who held it: this process ends at once."""

    def __init__(self) -> None:
        self.descriptor = -1  # where the environment names none
        if path := os.environ.get(LIFELINE_VARIABLE):
            try:
                # Not blocking: where the writer is gone already, a blocking open would wait for ever.
                self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except FileNotFoundError:
                os._exit(_TERMINATED)

    def look(self, seconds: float) -> None:
        """Return after so many seconds, or end this process as soon as no one holds the writing end."""
        told = [self.descriptor] if self.descriptor >= 0 else []
        if select.select(told, [], [], seconds)[0]:
            os._exit(_TERMINATED)


def watch() -> None:
    """Have a thread end this process as soon as no one holds the writing end of the pipe that the environment names."""
    lifeline = Lifeline()
    if lifeline.descriptor >= 0:
        threading.Thread(target=_wait_for_end, args=(lifeline.descriptor,), name="lifeline", daemon=True).start()


def _wait_for_end(descriptor: int) -> None:
    try:
        if os.read(descriptor, 1) == b"":
            os._exit(_TERMINATED)
    except BlockingIOError:
        os.set_blocking(descriptor, True)
        os.read(descriptor, 1)
    os._exit(_TERMINATED)


def mapped_file(path: Path, size: int) -> mmap.mmap:
    """Map the file, filled with zeros if it is new.

    Raises OSError if its disk has no room for it, and InputError if it cannot be shared in memory there.
    """
    with path.open("ab+") as handle:
        missing = size - os.fstat(handle.fileno()).st_size
        handle.write(bytes(max(0, missing)))  # on a full disk this raises; to write to the map would be SIGBUS
        handle.truncate(size)  # others may have added as much at the same time
        try:
            return mmap.mmap(handle.fileno(), size)
        except OSError as error:
            if limit_met(error):
                raise
            raise InputError(
                "disk.not_mappable",
                f"{path}: its disk does not support shared memory mappings ({error.strerror}); choose a run folder on "
                "another disk, or mount it with support for mmap (9p: -o cache=mmap; FUSE: without -o direct_io)",
            ) from None


_RECORD = struct.Struct("=qqqq")  # kind, minibatch, peer, since (time.monotonic_ns)
_KINDS = (
    *("starting", "forward", "backward", "weights", "update"),
    *("wait", "average", "load", "evaluate", "checkpoint", "meet"),
)
_WAITS = ("wait",)  # for one peer
_MEETS = ("average", "meet")  # for several


@dataclass(frozen=True)
class Whereabout:
    """One rank's doing: since when, for which minibatch, and for a wait, for whom."""

    rank: int
    kind: str
    minibatch: int
    peer: int
    seconds: float

    def __str__(self) -> str:
        minibatch = f" of minibatch {self.minibatch}" if self.minibatch >= 0 else ""
        return f"rank {self.rank} has been in {self.kind}{minibatch} for {self.seconds:.1f} s"


class Heartbeats:
    """The file, mapped. Writing to it costs about a microsecond."""

    def __init__(self, path: Path, world_size: int, rank: int, *, here: Collection[int] = ()) -> None:
        """`here`: the ranks of this host, where those of others are not."""
        path.parent.mkdir(exist_ok=True)
        self._map = mapped_file(path, world_size * _RECORD.size)
        self._rank, self._here = rank, sorted(here or range(world_size))
        self.tell("starting")

    def tell(self, kind: str, minibatch: int = -1, peer: int = -1) -> None:
        """Say what this rank begins."""
        now = time.monotonic_ns()
        _RECORD.pack_into(self._map, self._rank * _RECORD.size, _KINDS.index(kind), minibatch, peer, now)

    def of(self, rank: int) -> Whereabout:
        kind, minibatch, peer, since = _RECORD.unpack_from(self._map, rank * _RECORD.size)
        return Whereabout(rank, _KINDS[kind], minibatch, peer, (time.monotonic_ns() - since) / 1e9)

    def find_straggler(self, peer: int) -> Whereabout | None:
        """Follow who waits for whom, from the rank that is waited for (-1: for several), to one that does not wait.

        If all of them wait, one has been stopped while it did: the one that has waited longest.
        """
        chain: list[Whereabout] = []
        elsewhere = peer >= 0 and peer not in self._here
        while peer in self._here and peer not in {self._rank, *(found.rank for found in chain)}:
            found = self.of(peer)
            if found.kind in _MEETS:
                return self._absent()
            if found.kind not in _WAITS:
                return found
            chain.append(found)
            peer = found.peer
            elsewhere = peer >= 0 and peer not in self._here
        if elsewhere:
            return None
        return max(chain, key=_seconds) if chain else self._absent()

    def _absent(self) -> Whereabout | None:
        """Return the rank that keeps the others waiting: the one that has been longest at something else."""
        others = [self.of(rank) for rank in self._here if rank != self._rank]
        busy = [other for other in others if other.kind not in _WAITS + _MEETS]
        return max(busy or others, key=_seconds, default=None)


def _seconds(found: Whereabout) -> float:
    return found.seconds
