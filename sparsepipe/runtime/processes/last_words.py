"""Why a worker failed, said to its launcher through a pipe: the disk may be full, or the run's folder gone.

The launcher makes the pipe its standard output, which workers inherit; they send their own to a log.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

VARIABLE = "SPARSEPIPE_LAST_WORDS"  # set by a launcher that listens
_MOST_BYTES = 4096  # what a pipe takes as a whole, whoever else writes to it
_READ_BYTES = 65536


def keep_pipe() -> int:
    """Keep the way to the launcher before standard output becomes a log; -1 if no launcher listens."""
    return os.dup(1) if os.environ.pop(VARIABLE, None) else -1


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
        os.environ[VARIABLE] = "1"
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
