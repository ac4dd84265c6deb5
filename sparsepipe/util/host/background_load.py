"""Load by other processes while something is measured, as Linux reports it; elsewhere every share is unknown.

A time measured on a busy machine is longer than the same work takes on an idle one. Four shares show it: how long our
own threads waited in the run queue, how much of the processors other processes used, how much of them the hypervisor
gave to other machines, and how long the control group was held back by its quota.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..text.numbers import as_given
from .imports import python_command, python_environment

# From which share on a measurement is doubtful.
RUN_QUEUE_WAIT = 0.05  # times are longer by as much, half of what a profile's layers may differ from whole steps
STEAL = 0.05  # likewise
OTHER_CPU = 0.10  # below it stay a desktop and daemons; above it, others share caches, memory and arithmetic units
THROTTLED = 0.01  # a quota that holds back at all does so for milliseconds at a time
LEAST_SECONDS = 0.5  # processors' seconds are counted in hundredths: shares of less are too coarse to tell

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """Shares of time, from 0 to 1; None if the system does not say, or the time was too short to."""

    run_queue_wait_share: float | None = None  # of the time in which our threads could work: without a processor
    other_cpu_share: float | None = None  # of the processors that we may use: used by processes not ours
    steal_share: float | None = None  # of the same: given to other virtual machines
    throttled_share: float | None = None  # of the same: kept from us by the control group's quota
    threads_per_processor: float | None = None  # our own that compute; above 1 they wait for each other

    @property
    def crowded(self) -> bool:
        """Return whether our own threads are more than the processors: they wait for each other then, no other load."""
        return (self.threads_per_processor or 0) > 1

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> "BackgroundLoad":
        """Read what `to_json` gives. Shares that are not numbers become None, all of them if it is not an object."""
        told = document if isinstance(document, Mapping) else {}
        found = {item.name: told.get(item.name) for item in fields(cls)}
        return cls(**{name: float(share) for name, share in found.items() if isinstance(share, int | float)})

    def doubts(self) -> tuple[str, ...]:
        """Return clauses that say why a time measured under this load is doubtful; none where the machine was quiet.

        That our own threads wait for each other, if they are more than the processors, is a clause of its own.
        """
        waited = None if self.crowded else self.run_queue_wait_share
        told = (
            ("its threads waited for a processor {:.0%} of the time", waited, RUN_QUEUE_WAIT),
            ("other processes used {:.0%} of the processors", self.other_cpu_share, OTHER_CPU),
            ("the hypervisor gave {:.0%} of the processors to other machines", self.steal_share, STEAL),
            ("the control group's quota held back {:.0%} of the processors", self.throttled_share, THROTTLED),
        )
        found = [text.format(share) for text, share, most in told if share is not None and share > most]
        if (threads := self.threads_per_processor) and self.crowded:
            found.append(f"its processes had {as_given(threads)} threads per processor")
        return tuple(found)


def worst(loads: Iterable[BackgroundLoad]) -> BackgroundLoad:
    """Return the largest of each share over all `loads`; None for a share that is unknown in all of them."""
    loads = list(loads)
    known = {f.name: [s for load in loads if (s := getattr(load, f.name)) is not None] for f in fields(BackgroundLoad)}
    return BackgroundLoad(**{name: max(shares) for name, shares in known.items() if shares})


@dataclass(frozen=True, slots=True)
class Usage:
    """The system's counters of processor time at one moment, in seconds; None or empty if it has none."""

    at: float
    own: float  # that this process was on processors
    threads: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # thread → (ran, waited in the run queue)
    busy: float | None = None  # of the processors that this process may use, together
    stolen: float | None = None
    throttled: float | None = None

    @classmethod
    def now(cls) -> "Usage":
        busy, stolen = processor_seconds(processors_of())
        return cls(time.monotonic(), time.process_time(), thread_times(), busy, stolen, _throttled())


def load_between(start: Usage, end: Usage, *, ours: float | None = None) -> BackgroundLoad:
    """Return the load from one moment to another.

    `ours`: the seconds that our processes were on processors meanwhile; this one's own if not given.
    """
    wall = end.at - start.at
    processors = num_processors() * wall
    if wall < LEAST_SECONDS:
        return BackgroundLoad(waited_share(start.threads, end.threads))
    ours = end.own - start.own if ours is None else ours
    busy, stolen, throttled = (
        None if a is None or b is None else max(0.0, b - a)
        for a, b in ((start.busy, end.busy), (start.stolen, end.stolen), (start.throttled, end.throttled))
    )
    return BackgroundLoad(
        waited_share(start.threads, end.threads),
        None if busy is None else min(1.0, max(0.0, busy - ours) / processors),
        None if stolen is None else min(1.0, stolen / processors),
        None if throttled is None else min(1.0, throttled / processors),
    )


@dataclass
class Watch:
    """The load during a `with` block, known once the block has ended."""

    load: BackgroundLoad = BackgroundLoad()


@contextmanager
def watched(others: Collection[int] = ()) -> Iterator[Watch]:
    """Watch the load while the `with` block runs. `others`: ids of further processes that count as our own."""
    watch = Watch()
    before, start = {pid: cpu_seconds(pid) for pid in others}, Usage.now()
    try:
        yield watch
    finally:
        end = Usage.now()
        ours = end.own - start.own + sum(cpu_seconds(pid) - before[pid] for pid in others)
        watch.load = load_between(start, end, ours=ours)


def num_processors() -> int:
    """Return how many processors this process may use."""
    return len(processors_of()) or os.cpu_count() or 1


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process, all its threads together; 0 for a process that does not exist."""
    try:
        told = (_PROC / str(pid) / "stat").read_text()
        user, system = told.rpartition(")")[2].split()[11:13]  # a name in brackets comes before, with any characters
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def thread_times(pid: int | None = None) -> Mapping[str, tuple[float, float]]:
    """Return for each thread of a process (this one's) the seconds it ran and the seconds it waited for a processor.

    Empty if the system does not say, and for a process that is gone.
    """
    found = {}
    with suppress(OSError):
        for folder in (_PROC / (str(pid) if pid else "self") / "task").iterdir():
            with suppress(OSError, ValueError):  # a thread that has just ended
                ran, waited, _ = (folder / "schedstat").read_text().split()
                found[folder.name] = int(ran) / 1e9, int(waited) / 1e9
    return found


def processors_of(pid: int = 0) -> frozenset[int]:
    """Return the processors that a process (this one) may use; empty if the system does not say, or it is gone."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return frozenset()


def waited_share(start: Mapping[str, tuple[float, float]], end: Mapping[str, tuple[float, float]]) -> float | None:
    """Return the share of the time in which our threads could work that they waited for a processor.

    Threads that began in between count from then on, those that ended do not.
    """
    if not end:
        return None
    ran, waited = (sum(times[k] - start.get(id, (0.0, 0.0))[k] for id, times in end.items()) for k in (0, 1))
    return waited / (ran + waited) if ran + waited > 0 else 0.0


def processor_seconds(processors: Collection[int]) -> tuple[float | None, float | None]:
    """Return the seconds since boot that processors were busy together, and that the hypervisor gave away.

    None if the system does not say.
    """
    ticks, mine = os.sysconf("SC_CLK_TCK"), {f"cpu{k}" for k in processors}
    busy = stolen = 0
    try:
        for line in (_PROC / "stat").read_text().splitlines():
            name, *counts = line.split()
            if name in mine:
                user, nice, system, _, _, irq, softirq, steal = map(int, counts[:8])
                busy += user + nice + system + irq + softirq
                stolen += steal
    except (OSError, ValueError):
        return None, None
    return (busy / ticks, stolen / ticks) if mine else (None, None)


def _throttled() -> float | None:
    """Seconds of processors that this process's control group was held back by its quota."""
    with suppress(OSError, ValueError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = _CGROUP / "cpu" if controllers else _CGROUP
            for folder in (top / path.lstrip("/"), top):  # in a container its own group is the top of what it sees
                if (seconds := _throttled_in(folder / "cpu.stat")) is not None:
                    return seconds
    return None


def _throttled_in(path: Path) -> float | None:
    try:
        told = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        if "throttled_usec" in told:
            return int(told["throttled_usec"]) / 1e6
        return int(told["throttled_time"]) / 1e9 if "throttled_time" in told else None
    except (OSError, ValueError):
        return None


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
