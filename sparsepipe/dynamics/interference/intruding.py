"""Intruders beside a job, for measurements and demonstrations: one process for each processor they are to disturb."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import InputError
from ...fields import shown
from ...host.background_load import processors_of
from ...host.contention import processes_at_work
from .kinds import check_kind

_LOOK = 0.1  # seconds between two looks at whether all are done, and whether whoever asked is still there
MOST_SECONDS = 1e6


@dataclass(frozen=True)
class Intruder:
    """A process that disturbs one processor."""

    kind: str
    core: int
    process: subprocess.Popen[str]


@contextmanager
def intruding(
    kinds: Sequence[str], *, cores: Sequence[int], after: float = 0.0, seconds: float | None = None
) -> Iterator[tuple[Intruder, ...]]:
    """Run an intruder of each of `kinds` on each of `cores` while the `with` block runs.

    The block starts once all of them are ready. They wait `after` seconds, then compute for `seconds` (None: until the
    block ends). They are killed at its end, and when this process dies, whatever kills it.
    Raises InputError for unknown kinds, and for processors that this process may not use.
    """
    for kind in kinds:
        check_kind(kind)
    check_cores(cores)
    for name, value in (("after", after), ("seconds", seconds)):
        if value is not None and not 0 <= value <= MOST_SECONDS:
            raise InputError(f"{name} is {value:g} seconds, expected 0 to {MOST_SECONDS:g}")
    places = [(kind, core) for kind in kinds for core in cores]
    asked = [{"kind": kind, "core": core, "after": after, "seconds": seconds} for kind, core in places]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with processes_at_work(__package__, asked, **alone) as processes:
        yield tuple(Intruder(*place, process) for place, process in zip(places, processes, strict=True))


def check_cores(cores: Sequence[int]) -> None:
    """Raise InputError where a processor is none that this process may use, or none is given."""
    own = sorted(processors_of()) or list(range(os.cpu_count() or 1))
    missing = [core for core in cores if core not in own]
    if missing or not cores:
        told = f"cores {shown(list(cores))}" if cores else "no cores"
        raise InputError(f"{told} given, but this process may use {', '.join(map(str, own))}; choose among them")


def run_intruders(
    kind: str, *, cores: Sequence[int], after: float, seconds: float, say: Callable[[str], None]
) -> dict[int, int]:
    """Intrude once, to the end; return the steps made by processor.

    The intruders end early with whoever started this process. Raises InputError where one of them failed.
    """
    parent = os.getppid()
    with intruding([kind], cores=cores, after=after, seconds=seconds) as intruders:
        say(f"{kind} on {', '.join(map(str, cores))}: ready; begins in {after:g} s, for {seconds:g} s")
        while any(one.process.poll() is None for one in intruders):
            if os.getppid() != parent:
                raise InputError("who started the intruder is gone, and so is the intruder")
            time.sleep(_LOOK)
        return {one.core: _steps(one) for one in intruders}


def _steps(intruder: Intruder) -> int:
    assert intruder.process.stdout is not None
    told = intruder.process.stdout.read().split()
    if intruder.process.returncode != 0 or not told:
        raise InputError(f"an intruder on processor {intruder.core} ended with code {intruder.process.returncode}")
    return int(told[-1])
