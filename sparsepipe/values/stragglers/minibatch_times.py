"""Minibatch times of a real job, as its workers reported them: a file whose slowness is played back."""

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import ClassVar, NamedTuple

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import expanded, read_text
from ...util.text.numbers import number_of

_TIMES = ("batch_time_norm", "batch_time")  # what the column of times is called


class Readings(NamedTuple):
    """Readings of one worker: `times[k]` is what a minibatch took from `steps[k]` on."""

    steps: tuple[int, ...]
    times: tuple[float, ...]


@dataclass(frozen=True)
class MinibatchTimes:
    """Ranks that are as much slower than the fastest as the workers of a recorded job were, minibatch by minibatch.

    The file is a table with a header, as Alibaba publishes (cluster-trace-gpu-v2020, mini-batch-time): columns
    `worker`, `time` (the number of a minibatch, a reading for every ten) and `batch_time_norm`, whose unit does not
    matter. Rank 0 has the times of the worker with the lowest number, rank 1 of the next; `workers=5+6+0` names one for
    each rank instead. The file's first `time` is minibatch 0, a reading holds until the next one, and after its last
    the file begins again. A minibatch takes as many times a rank's own seconds as its reading is of the lowest median
    of all workers in the file, or its own seconds where the reading is lower.

    A file with gaps is refused: readings of one worker further apart than one and a half times the usual, or a worker
    that begins later or ends earlier than the others by more than that.
    """

    name: ClassVar[str] = "trace"
    file: str
    workers: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.file, str) or set(self.file) & set(",;"):
            raise InputError(
                "straggler.file_malformed", f"straggler trace: file {shown(self.file)}: expected a path without , and ;"
            )
        self._chosen  # noqa: B018 - a file that cannot be played back is refused now

    @cached_property
    def _readings(self) -> Mapping[int, Readings]:
        return read_minibatch_times(self.file)

    @cached_property
    def _chosen(self) -> tuple[int, ...]:
        """The worker of each rank."""
        known = sorted(self._readings)
        if self.workers is None:
            return tuple(known)
        given = str(self.workers).split("+")
        chosen = tuple(int(word) if word.isascii() and word.isdigit() else -1 for word in given)
        if not set(chosen) <= set(known):
            raise InputError(
                "straggler.workers_malformed",
                f"straggler trace: workers {shown(self.workers)} given, expected numbers such as "
                f"{known[0]}+{known[-1]}, from the file's {number_of(len(known), 'worker')} {known[0]} to {known[-1]}",
            )
        return chosen

    @cached_property
    def _own(self) -> float:
        """Return the time of an undelayed minibatch, in the unit of the file."""
        return min(median(readings.times) for readings in self._readings.values())

    @cached_property
    def _extent(self) -> tuple[int, int]:
        """The first step, and how many there are."""
        first = min(readings.steps[0] for readings in self._readings.values())
        last = max(readings.steps[-1] for readings in self._readings.values())
        return first, last - first + _usual(self._readings)

    def delay(self, rank: int, minibatch: int, own_seconds: float, *, seed: str) -> float:
        first, count = self._extent
        steps, times = self._readings[self._chosen[rank]]
        row_index = max(bisect_right(steps, first + minibatch % count) - 1, 0)
        return own_seconds * max(times[row_index] / self._own - 1, 0.0)

    def kills(self, rank: int, minibatch: int) -> bool:
        return False

    def check(self, num_ranks: int) -> None:
        if num_ranks > len(self._chosen):
            raise InputError(
                "straggler.too_few_workers",
                f"straggler trace: {self.file} has times for {number_of(len(self._chosen), 'rank')}, but there are "
                f"{num_ranks} ranks; name a worker for each rank, repeated if needed: "
                f"workers={'+'.join(map(str, self._chosen[:2]))}+…",
                num_ranks=num_ranks,
            )

    def note(self) -> str:
        return f"ranks are as slow as the workers of {Path(self.file).name}"


def read_minibatch_times(path: Path | str) -> Mapping[int, Readings]:
    """Read each worker's minibatch times. Raises InputError in one line that names the file and what is wrong in it."""
    path = expanded(path)
    times_by_worker: dict[int, dict[int, float]] = {}
    table = csv.DictReader(io.StringIO(read_text(path, what="file of minibatch times")))
    try:
        column = _column(table.fieldnames or (), path)
        for row in table:
            where = f"{path}, line {table.line_num}"
            worker, step = (_whole(row[key], f"{where}: {key}") for key in ("worker", "time"))
            if step in times_by_worker.setdefault(worker, {}):
                raise InputError(
                    "minibatch_times.twice", f"{where}: worker {worker} has two times for {step}; expected one"
                )
            times_by_worker[worker][step] = _positive(row[column], f"{where}: {column}")
    except csv.Error as error:
        raise InputError(
            "minibatch_times.malformed", f"{path}, line {table.line_num}: not a table row ({error})"
        ) from None
    if not times_by_worker:
        raise InputError(
            "minibatch_times.empty", f"{path}: has no minibatch times; expected rows of worker, time and {column}"
        )
    readings = {w: Readings(*zip(*sorted(rows.items()), strict=True)) for w, rows in sorted(times_by_worker.items())}
    _refuse_gaps(readings, path)
    return readings


def _column(header: object, path: Path) -> str:
    names = list(header) if isinstance(header, list | tuple) else []
    times = [name for name in _TIMES if name in names]
    if not times or not {"worker", "time"} <= set(names):
        raise InputError(
            "minibatch_times.columns_unknown",
            f"{path}: has columns {shown(names)}; expected worker, time and {_TIMES[0]}",
        )
    return times[0]


def _whole(written: object, what: str) -> int:
    if isinstance(written, str) and written.isascii() and written.isdigit() and len(written) < 10:
        return int(written)
    raise InputError("minibatch_times.not_whole", f"{what} is {shown(written)}, expected a whole number")


def _positive(written: object, what: str) -> float:
    try:
        value = float(written) if isinstance(written, str) else math.nan
    except ValueError:
        value = math.nan
    if 0 < value < math.inf:
        return value
    raise InputError("minibatch_times.not_positive", f"{what} is {shown(written)}, expected a number above 0")


def _usual(readings: Mapping[int, Readings]) -> int:
    """Return the usual number of steps between two readings."""
    apart = [b - a for steps, _ in readings.values() for a, b in zip(steps, steps[1:], strict=False)]
    return round(median(apart)) if apart else 1


def _refuse_gaps(readings: Mapping[int, Readings], path: Path) -> None:
    most = 1.5 * _usual(readings)
    first = min(steps[0] for steps, _ in readings.values())
    last = max(steps[-1] for steps, _ in readings.values())
    for worker, (steps, _) in readings.items():
        for before, after in zip((first, *steps), (*steps, last), strict=True):
            if after - before > most:
                raise InputError(
                    "minibatch_times.gap",
                    f"{path}: worker {worker} has no reading from {before} to {after}, while others have one every "
                    f"{_usual(readings)}; add the missing rows, or remove this worker's rows",
                )
