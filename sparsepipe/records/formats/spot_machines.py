"""Machines that a cloud gives and takes back: Bamboo's records of spot instances, read as counts over time.

Both formats of uclasystem/bamboo, `traces` (Thorpe et al., "Bamboo", NSDI 2023; `sparsepipe data fetch preemptions`):

    2040000,remove,node19         *-trace.csv: milliseconds, add or remove, the machine
    2021-12-11, 11:15:50, 54      gcloud/*.txt: date, time, how many machines there are
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import expanded, read_text

_EVENT, _READING = "2040000,remove,node19", "2021-12-11, 11:15:50, 54"
_EVENTS = ("add", "remove")
Row = tuple[str, list[str]]  # where it stands, and its fields


@dataclass(frozen=True)
class SpotMachines:
    """Number of machines over time: `counts[k]` from `seconds[k]` on until the next; the record ends with the last."""

    name: str
    seconds: tuple[float, ...]  # from 0, rising
    counts: tuple[int, ...]

    @property
    def duration(self) -> float:
        """Seconds that the record lasts."""
        return self.seconds[-1]

    @property
    def spans(self) -> Iterator[tuple[float, float, int]]:
        """(begin, end, machines), in seconds."""
        return zip(self.seconds, self.seconds[1:], self.counts, strict=False)

    @property
    def machine_seconds(self) -> float:
        """Of all machines together."""
        return sum((end - begin) * count for begin, end, count in self.spans)

    def absences(self, least: int) -> list[tuple[float, float]]:
        """Return when fewer than `least` machines were available: (begin, seconds), each as long as it lasts."""
        absences_found: list[tuple[float, float]] = []  # (begin, end)
        for begin, end, count in self.spans:
            if count < least:
                joined = bool(absences_found) and absences_found[-1][1] == begin
                absences_found.append((absences_found.pop()[0] if joined else begin, end))
        return [(begin, end - begin) for begin, end in absences_found]


def read_spot_machines(path: Path | str) -> SpotMachines:
    """Read a record in either format. Raises InputError in one line that names the file and what is wrong in it."""
    path = expanded(path)
    lines = read_text(path, what="record of machines").splitlines()
    rows = [(f"{path}, line {k}", [field.strip() for field in line.split(",")]) for k, line in enumerate(lines, 1)]
    rows = [(where, fields) for where, fields in rows if fields != [""]]
    if not rows:
        raise InputError("spot.empty", f"{path}: has no rows; expected rows such as {_EVENT!r} or {_READING!r}")
    of_events = any(fields[1:2] == [word] for _, fields in rows for word in _EVENTS)  # a head line is of neither kind
    counts = _from_events(rows) if of_events else _from_readings(rows)
    if len(counts) < 2:
        raise InputError(
            "spot.one_moment", f"{path}: contains only one point in time; expected machine counts over time"
        )
    first = next(iter(counts))
    return SpotMachines(path.stem, tuple(at - first for at in counts), tuple(counts.values()))


def _from_events(rows: Sequence[Row]) -> dict[float, int]:
    there: set[str] = set()
    counts_by_time: dict[float, int] = {}
    for where, fields in rows:
        if len(fields) != 3 or fields[1] not in _EVENTS or not fields[2]:
            raise InputError(
                "spot.event_malformed", f"{where}: {shown(','.join(fields))}, expected a row such as {_EVENT!r}"
            )
        at, machine = _whole(fields[0], f"{where}: milliseconds") / 1000, fields[2]
        if (fields[1] == "add") == (machine in there):
            was = "was there" if machine in there else "was not there"
            raise InputError("spot.event_impossible", f"{where}: {fields[1]} {shown(machine)}, which {was}")
        there ^= {machine}
        _put(counts_by_time, at, len(there), where)
    return counts_by_time


def _from_readings(rows: Sequence[Row]) -> dict[float, int]:
    counts_by_time: dict[float, int] = {}
    for where, fields in rows:
        try:
            at = datetime.strptime(" ".join(fields[:-1]), "%Y-%m-%d %H:%M:%S")
        except ValueError:
            raise InputError(
                "spot.reading_malformed", f"{where}: {shown(','.join(fields))}, expected a row such as {_READING!r}"
            ) from None
        _put(counts_by_time, (at - datetime.min).total_seconds(), _whole(fields[-1], f"{where}: machines"), where)
    return counts_by_time


def _put(found: dict[float, int], at: float, count: int, where: str) -> None:
    if found and at < next(reversed(found)):
        raise InputError("spot.out_of_order", f"{where}: is earlier than the previous row; sort the rows by time")
    found[at] = count


def _whole(written: str, what: str) -> int:
    if written.isascii() and written.isdigit() and len(written) < 16:
        return int(written)
    raise InputError("spot.not_whole", f"{what} is {shown(written)}, expected a whole number")
