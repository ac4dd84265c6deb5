"""Contention on purpose: processes that compute while another one is profiled, as a run's other workers will.

The cores of a machine share caches, memory and often, two by two, their arithmetic units: a process measured alone is
faster than each of several.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import InputError
from .imports import python_command, python_environment

_AT_WORK = "at work"


@contextmanager
def contending_processes(count: int, module: str, settings: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Run `count` processes `python -m module SETTINGS` (`settings` as JSON) while the `with` block runs.

    The block gets their process ids; see `processes_at_work`.
    """
    with processes_at_work(module, [settings] * count) as others:
        yield tuple(other.pid for other in others)


@contextmanager
def processes_at_work(
    module: str, settings: Sequence[Mapping[str, Any]], **environment: str
) -> Iterator[tuple[subprocess.Popen[str], ...]]:
    """Run a process `python -m module SETTINGS` for each of `settings` (as JSON) while the `with` block runs.

    The block starts once all of them have called `report_started`. They are killed at its end, and when this process
    dies, whatever kills it. `environment`: more variables for them.
    Raises InputError for a process that ends before it has started, with its last line.
    """
    others: list[subprocess.Popen[str]] = []
    try:
        for one in settings:
            # In a session of its own, where an interrupt of this process does not reach it.
            other = subprocess.Popen(
                python_command(module, json.dumps(one)),
                env=python_environment(**environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            others.append(other)
        for other in others:
            assert other.stdout is not None
            if (said := other.stdout.readline().strip()) != _AT_WORK:
                raise InputError(
                    "contention.process_ended",
                    f"a co-located process ended during the measurement: {said or 'it said nothing'}",
                )
        yield tuple(others)
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.communicate()


def exit_with_parent(hear: Callable[[str], None] = lambda word: None) -> None:
    """Called by a contending process: exit as soon as the parent, which holds the other end of stdin, is gone.

    `hear` is called, in another thread, with each line that the parent writes there.
    """
    threading.Thread(target=_wait_for_end, args=(hear,), name="parent watch", daemon=True).start()


def report_started() -> None:
    """Called by a contending process, once it computes: let the parent's `with` block start."""
    print(_AT_WORK, flush=True)


def _wait_for_end(hear: Callable[[str], None]) -> None:
    for line in sys.stdin:
        hear(line.strip())
    os._exit(0)
