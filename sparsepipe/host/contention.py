"""Processes at work beside one that is measured.

The cores of a machine share caches, memory and often, two by two, their arithmetic units: one that is measured alone is
faster than each of several at work.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from .python_path import python_command, python_environment

_AT_WORK = "at work"


@contextmanager
def company(count: int, module: str, settings: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Have `count` processes run `python -m module` with `settings` (as JSON) while the block runs.

    The block gets their process ids and starts once all are at work. They end with it, and with this process, however
    that ends.
    Raises InputError for one that ends before, with what it said.
    """
    command = python_command(module, json.dumps(settings))
    others: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            # In a session of its own, where an interrupt of this process does not reach it.
            other = subprocess.Popen(
                command,
                env=python_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            others.append(other)
        for other in others:
            assert other.stdout is not None
            if (said := other.stdout.readline().strip()) != _AT_WORK:
                raise InputError(f"a process beside the one that is measured ended: {said or 'it said nothing'}")
        yield tuple(other.pid for other in others)
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.communicate()


def leave_with_who_asked() -> None:
    """In such a process: end as soon as nobody holds the other end of standard input."""
    threading.Thread(target=_wait_for_end, name="company", daemon=True).start()


def say_at_work() -> None:
    """In such a process: let the block start."""
    print(_AT_WORK, flush=True)


def _wait_for_end() -> None:
    sys.stdin.buffer.read()
    os._exit(0)
