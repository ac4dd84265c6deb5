"""Read the events of one rank from a torch.profiler trace (Kineto's JSON, gzipped or not) as a stream.

The file is decoded event by event, so memory holds a window of the text and a few numbers for each operator and kernel:

    ProfilerStep#7 ├──────────────────────────────────────────────┤     user_annotation
    thread         ├ aten::mm ┤├ gloo:all_reduce ┤   ├ aten::add_ ┤    cpu_op, user_annotation
    stream             ├ kernel ┤├ ncclDevKernel_AllReduce ┤           kernel, launched by a cuda_runtime call

A file has a bounded size, number of events and size of each event, before and after unpacking: see the constants.
"""

import codecs
import gzip
import json
import math
import os
import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...util.io.fields import complaint, shown
from ...util.io.files import open_regular
from ...values.trace import SPAN_KINDS

Json = Any  # a value of a file

_MOST_FILE_BYTES = 2**32  # unpacked
_MOST_EVENTS = 20_000_000
_MOST_EVENT_CHARACTERS = 2**24
_MOST_THREADS = 100_000
_MOST_MARKS = 4_000_000
_MOST_WORLD = 2**20  # ranks of a job
_MOST_MICROSECONDS = 1e17  # 3,000 years: a float tells 16 µs apart there, and 0.25 µs in this century
_MOST_FILES = 4096
_CHUNK = 2**22
_PATTERN = re.compile(r"[*?\[]")
_ENDINGS = (".json", ".json.gz")
_SKIPPED = re.compile(r"[\s,]*")
_SPACE = re.compile(r"\s*")

_OPERATORS = {"cpu_op", "Operator", "operator"}
_KERNELS = {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "privateuse1_runtime"}
_COMMUNICATION = re.compile(r"(?:gloo|nccl|mpi|ucc|hccl|xccl):")
_COMMUNICATION_KERNEL = re.compile(r"(?:nccl|rccl|mscclKernel)", re.IGNORECASE)
# In these operators, as in those of the autograd engine around others, a rank may wait.
_WAITS = re.compile(r"wait_tensor|::barrier|monitored_barrier|RegisterPostBackward")
_BACKWARD = "autograd::engine::evaluate_function"


def trace_files(path: Path) -> list[Path]:
    """Return the files of a path: a file, a folder with one for each rank, or a pattern such as "rank*.json.gz".

    Raises InputError if there are none.
    """
    if path.is_dir():
        files = sorted(
            file for file in path.iterdir() if file.name.endswith(_ENDINGS) and not file.name.startswith(".")
        )
        files = [file for file in files if ".pt.trace.json" in file.name] or files
        if not files:
            raise InputError(
                "trace.no_files", f"{path}: no .json and no .json.gz; expected a torch.profiler trace of each rank"
            )
    elif _PATTERN.search(str(path)) and not path.exists():
        parts = path.parts
        first = next(k for k, part in enumerate(parts) if _PATTERN.search(part))
        files = sorted(Path(*parts[:first]).glob(str(Path(*parts[first:]))))
        if not files:
            raise InputError("trace.no_files", f"{path}: no file matches; expected torch.profiler traces")
    else:
        files = [path]
    if len(files) > _MOST_FILES:
        raise InputError("trace.too_many_files", f"{path}: {len(files):,} files, expected at most {_MOST_FILES:,}")
    return files


def is_packed(path: Path) -> bool:
    """Return whether a file is gzipped."""
    with path.open("rb") as handle:
        return handle.read(2) == b"\x1f\x8b"


class Mark(NamedTuple):
    """A named interval of a thread (or stream), in seconds."""

    name: str
    start: float
    end: float
    thread: int


class IssuedCall(NamedTuple):
    """A collective operation, a send or a receive as a thread issued it or a device ran it, in seconds."""

    name: str  # such as all_reduce, send, recv
    start: float
    end: float
    thread: int
    group: str  # name of the process group; "" unknown
    ranks: str  # of the group, as the profiler wrote them; "" unknown
    peer: int  # of a send or a receive; -1 unknown
    elements: int
    correlation: int  # with the call that launched a kernel; -1 none


@dataclass(eq=False)
class Intervals:
    """Intervals in seconds as columns, each with a thread and a number that links it with another, -1: none.

    The number of a kernel is that of its launch, the number of an operator that of its backward.
    """

    starts: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[float]" = field(default_factory=lambda: array("d"))
    threads: "array[int]" = field(default_factory=lambda: array("i"))
    links: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start: float, end: float, thread: int, link: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.threads.append(thread)
        self.links.append(link)

    def columns(self) -> "Columns":
        """Return them in the order of their starts."""
        starts = np.array(self.starts)
        order = np.argsort(starts, kind="stable")
        threads, links = np.array(self.threads, dtype=np.intc), np.array(self.links, dtype=np.int64)
        return Columns(starts[order], np.array(self.ends)[order], threads[order], links[order])


class Columns(NamedTuple):
    """Intervals in the order of their starts: starts and ends in seconds, threads, and links (see Intervals)."""

    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    threads: NDArray[np.intc]
    links: NDArray[np.int64]

    def between(self, begin: float, end: float) -> "Columns":
        """Return those that start from `begin` on and before `end`."""
        part = slice(*np.searchsorted(self.starts, (begin, end)).tolist())
        return Columns(self.starts[part], self.ends[part], self.threads[part], self.links[part])


@dataclass(eq=False)
class RankFacts:
    """Say whose trace a file is.

    Attributes:
        path: The file.
        rank: Number of the rank. -1: the file does not say it.
        world_size: Ranks of the job. 0: the file does not say it.
        origin: Seconds since 1970 at which the times of the file are 0.
        groups: Process group's name → its ranks.
    """

    path: Path
    rank: int = -1
    world_size: int = 0
    origin: float = 0.0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(eq=False)
class RankEvents:
    """Hold the events of one rank's trace.

    Attributes:
        facts: Whose they are.
        marks: Annotations of users and of torch, without communication.
        issued: Communication as threads issued it, by annotations such as "gloo:all_reduce".
        described: The same by "record_param_comms", which has groups and peers.
        kernels_of_communication: The same as a device ran it.
        operators: Operators of all threads.
        backward: Operators of the autograd engine, around those that it runs.
        kernels: Kernels and copies without those of communication.
        launches: Calls of the device's runtime.
    """

    facts: RankFacts
    marks: list[Mark] = field(default_factory=list)
    issued: list[IssuedCall] = field(default_factory=list)
    described: list[IssuedCall] = field(default_factory=list)
    kernels_of_communication: list[IssuedCall] = field(default_factory=list)
    operators: Intervals = field(default_factory=Intervals)
    backward: Intervals = field(default_factory=Intervals)
    kernels: Intervals = field(default_factory=Intervals)
    launches: Intervals = field(default_factory=Intervals)


class _TextWindow:
    """The text of a file of which the part around one position is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = open_regular(path)
        except OSError as error:
            raise InputError("trace.unreadable", f"{path}: {error.strerror}; expected a torch.profiler trace") from None
        self.packed = self._handle.peek(2)[:2] == b"\x1f\x8b"
        self._bytes: Json = gzip.GzipFile(fileobj=self._handle) if self.packed else self._handle
        if not self.packed and os.fstat(self._handle.fileno()).st_size > _MOST_FILE_BYTES:
            self.close()
            raise self._too_large()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._count = 0
        self.text, self.at, self.ended = "", 0, False
        self.waited = 0  # characters read since a value was decoded

    def _too_large(self) -> InputError:
        return InputError(
            "trace.too_large",
            f"{self.path}: larger than {_MOST_FILE_BYTES >> 30} GiB unpacked; profile fewer steps (schedule(active=…))",
        )

    def close(self) -> None:
        self._handle.close()

    def read_more(self) -> bool:
        """Append the next part of the file. Raises InputError if too much text was left unread, or it is damaged."""
        if self.ended:
            return False
        self.waited += _CHUNK
        if self.waited > _MOST_EVENT_CHARACTERS:
            raise InputError(
                "trace.event_too_large",
                f"{self.path}: no event ends within {_MOST_EVENT_CHARACTERS >> 20} MiB; "
                "expected a torch.profiler trace",
            )
        try:
            content = self._bytes.read(_CHUNK)
        except (EOFError, OSError, zlib.error) as error:
            reason = "ends too early" if isinstance(error, EOFError) else complaint(error)
            raise InputError(
                "trace.damaged", f"{self.path}: damaged gzip ({reason}); copy it again, or profile again"
            ) from None
        self._count += len(content)
        if self._count > _MOST_FILE_BYTES:
            raise self._too_large()
        self.ended = not content
        self.text = self.text[self.at :] + self._decoder.decode(content, final=self.ended)
        self.at = 0
        return True

    def character(self, skipped: re.Pattern[str] = _SPACE) -> str:
        """Return the next character behind what is skipped, and stand on it; "" at the end of the file."""
        while True:
            match = skipped.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.read_more():
                return ""

    def truncated(self, where: str) -> InputError:
        return InputError(
            "trace.damaged",
            f"{self.path}: no valid JSON {where}; it may be cut off: expected a torch.profiler trace, profile again",
        )


def _values(window: _TextWindow, what: str) -> Json:
    """Decode the value on which the window stands, and pass it."""
    scan = json.JSONDecoder(strict=False).raw_decode
    while True:
        try:
            value, end = scan(window.text, window.at)
            if end < len(window.text) or window.ended:  # a number may go on in the next part
                window.at, window.waited = end, 0
                return value
        except ValueError:
            if window.ended:
                raise window.truncated(f"in {what}") from None
        window.read_more()


def _listed(window: _TextWindow) -> Iterator[Json]:
    """The members of the list on which the window stands."""
    window.at += 1
    scan, skipped, count = json.JSONDecoder(strict=False).raw_decode, _SKIPPED.match, 0
    while True:
        text, at, before = window.text, window.at, count
        try:
            while True:
                match = skipped(text, at)
                at = match.end() if match else at
                if at < len(text) and text[at] == "]":
                    window.at = at + 1
                    return
                event, at = scan(text, at)
                count += 1
                yield event
        except ValueError:
            window.at = at
            window.waited = 0 if count > before else window.waited
            if not window.read_more():
                raise window.truncated(f"behind event {count:,}") from None
        if count > _MOST_EVENTS:
            raise InputError(
                "trace.too_many_events", f"{window.path}: more than {_MOST_EVENTS:,} events; profile fewer steps"
            )


def _members(window: _TextWindow) -> Iterator[tuple[str, Json]]:
    """("", event) for each event, and (name, value) for each other member of the document."""
    first = window.character()
    if first == "[":
        yield from (("", event) for event in _listed(window))
        return
    if first != "{":
        raise InputError(
            "trace.foreign", f"{window.path}: no JSON object; expected a torch.profiler trace (.json or .json.gz)"
        )
    window.at += 1
    while True:
        character = window.character(_SKIPPED)
        if character == "}":
            return
        if character != '"':
            raise window.truncated("between its members")
        name = _values(window, "a member's name")
        if window.character() != ":":
            raise window.truncated(f"behind {shown(name)}")
        window.at += 1
        if window.character() == "[" and name == "traceEvents":
            yield from (("", event) for event in _listed(window))
        else:
            yield name, _values(window, shown(name))


def is_from_torch(path: Path) -> bool:
    """Return whether the first timed event of a file, gzipped or not, is none that sparsepipe wrote.

    A file without such an event, or that is no JSON, is left to the reader of sparsepipe's own traces.
    """
    window = _TextWindow(path)
    try:
        for name, event in _members(window):
            if name in ("schemaVersion", "distributedInfo", "deviceProperties"):
                return True
            if not name and isinstance(event, dict) and event.get("ph") == "X":
                return event.get("cat") not in SPAN_KINDS
    except (InputError, RecursionError):
        return window.packed
    finally:
        window.close()
    return False


def unpacked(path: Path) -> Json:
    """Return the document of a gzipped JSON file as a whole, within the bounds of a file."""
    window = _TextWindow(path)
    try:
        document: dict[str, Json] = {"traceEvents": []}
        for name, value in _members(window):
            document.setdefault(name, value) if name else document["traceEvents"].append(value)
        return document
    finally:
        window.close()


def read_rank(path: Path) -> RankEvents:
    """Return the events of one rank. Raises InputError in one line if the file is no torch.profiler trace."""
    window, reader = _TextWindow(path), _EventReader(RankEvents(RankFacts(path)))
    count = 0
    try:
        for name, value in _members(window):
            if name:
                reader.take_member(name, value)
            else:
                count += 1
                reader.take_event(value)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else complaint(error)
        raise InputError(
            "trace.event_malformed", f"{path}: event {count:,}: {reason}; expected a torch.profiler trace"
        ) from None
    except RecursionError:
        raise InputError("trace.foreign", f"{path}: nested too deep; expected a torch.profiler trace") from None
    finally:
        window.close()
    return reader.finished()


class _EventReader:
    """Sort events into the columns and lists of a rank."""

    def __init__(self, events: RankEvents) -> None:
        self._events, self._path = events, events.facts.path
        self._threads: dict[tuple[Json, Json], int] = {}

    def take_member(self, name: str, value: Json) -> None:
        """Read who the rank is, and which process groups it belongs to."""
        if name == "baseTimeNanoseconds" and isinstance(value, int | float) and 0 <= value < 1e20:
            self._events.facts.origin = float(value) / 1e9
        if name != "distributedInfo" or not isinstance(value, dict):
            return
        facts = self._events.facts
        facts.rank = _whole(value.get("rank"), _MOST_WORLD)
        facts.world_size = max(_whole(value.get("world_size"), _MOST_WORLD), 0)
        for group in value.get("pg_config") or ():
            if isinstance(group, dict) and isinstance(ranks := group.get("ranks"), list):
                facts.groups[str(group.get("pg_name"))[:80]] = tuple(_whole(rank, _MOST_WORLD) for rank in ranks)

    def take_event(self, event: Json) -> None:
        """Add one event."""
        if event["ph"] != "X" or (category := event.get("cat")) is None:
            return
        name = event["name"]
        is_operator = category in _OPERATORS
        is_kernel = not is_operator and category in _KERNELS
        if not (is_operator or is_kernel or category == "user_annotation" or category in _LAUNCHES):
            return
        start, seconds = event["ts"], event.get("dur", 0)
        if not (-_MOST_MICROSECONDS < start < _MOST_MICROSECONDS and 0 <= seconds < _MOST_MICROSECONDS):
            raise InputError(
                "trace.event_malformed",
                f"{self._path}: {shown(name)} starts at {shown(start)} and takes {shown(seconds)} µs; expected "
                "times in microseconds that do not run backwards",
            )
        start = start / 1e6
        end = start + seconds / 1e6
        key = event["pid"], event["tid"]
        thread = self._threads.get(key)
        if thread is None:
            thread = self._threads[key] = len(self._threads)
            if thread > _MOST_THREADS:
                raise InputError("trace.too_many_threads", f"{self._path}: more than {_MOST_THREADS:,} threads")
        arguments = event.get("args") or {}
        if is_operator:
            if name == "record_param_comms":
                self._listed(self._events.described, _call(name, start, end, thread, arguments))
            elif name.startswith(_BACKWARD):
                self._events.backward.add(start, end, thread, _whole(arguments.get("Sequence number"), 2**62))
            elif not _WAITS.search(name):
                self._events.operators.add(start, end, thread, _whole(arguments.get("Sequence number"), 2**62))
        elif is_kernel:
            if _COMMUNICATION_KERNEL.match(name):
                self._listed(self._events.kernels_of_communication, _call(name, start, end, thread, arguments))
            else:
                self._events.kernels.add(start, end, thread, _whole(arguments.get("correlation"), 2**62))
        elif category in _LAUNCHES:
            self._events.launches.add(start, end, thread, _whole(arguments.get("correlation"), 2**62))
        elif match := _COMMUNICATION.match(name):
            call = _call(name[match.end() :], start, end, thread, arguments)
            self._listed(self._events.issued, call)
        else:
            self._listed(self._events.marks, Mark(name[:200], start, end, thread))

    def _listed(self, marks: list[Json], mark: Json) -> None:
        marks.append(mark)
        if len(marks) > _MOST_MARKS:
            raise InputError(
                "trace.too_many_events", f"{self._path}: more than {_MOST_MARKS:,} annotations; profile fewer steps"
            )

    def finished(self) -> RankEvents:
        """Return the rank's events. Raises InputError if there are none."""
        events = self._events
        if not (events.operators.starts or events.kernels.starts or events.marks):
            raise InputError(
                "trace.foreign",
                f"{self._path}: no operators and no kernels; expected a torch.profiler trace",
            )
        return events


def _call(name: str, start: float, end: float, thread: int, arguments: dict[str, Json]) -> IssuedCall:
    collective = arguments.get("Collective name")
    peer = next((arguments[key] for key in ("Dst Rank", "Src Rank") if key in arguments), None)
    return IssuedCall(
        str(collective or name)[:80],
        start,
        end,
        thread,
        str(arguments.get("Process Group Name", ""))[:80],
        str(arguments.get("Process Group Ranks", ""))[:4000],
        _whole(peer, _MOST_WORLD),
        max(_whole(arguments.get("In msg nelems"), 2**62), 0),
        _whole(arguments.get("correlation"), 2**62),
    )


def _whole(value: object, most: int) -> int:
    """Return a whole number from 0 to `most`; -1 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return -1
    return int(value) if 0 <= value <= most else -1
