"""The drift of a run, by its record: of one that is over, and of one that continues."""

import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from ..launching.followed_job import Tail
from ..records import RunRecord
from ..runtime.pipelines.member import MINIBATCHES
from ..util.text.numbers import SIZE_UNITS
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.trace import Span, span_of
from .drift import Watch, factors_of
from .drift_file import Alarm, DriftFile, Standing
from .factors import Factors, LeftOutWork, left_out_of

_BYTES_AT_ONCE = 2**22
_LOOKS = 20  # after which nobody says any more who took a minibatch: it was before


# What a run's files say while they grow: new spans of its ranks, and the sizes of new minibatches
class RunRows:
    """Read the rows of a run since the last call. Ended and resumed runs are read in the same way.

    Malformed lines are skipped and counted in `damaged`. An incomplete last line is read later.
    """

    def __init__(self, folder: Path, *, units: tuple[str, ...] = SIZE_UNITS) -> None:
        """`units`: of the sizes wanted; the first of them that a row has counts."""
        self._folder, self._units = folder, units
        self._metrics = Tail(folder / "metrics.jsonl")
        self._left_out: list[LeftOutWork] = []
        self._ranks: dict[Path, _SpanTail] = {}

    @property
    def damaged(self) -> int:
        """Number of skipped lines."""
        return self._metrics.damaged + sum(tail.damaged for tail in self._ranks.values())

    def read(self) -> tuple[list[Span], dict[int, float]]:
        """Return new spans, those of each rank in the order of their ends, and sizes by minibatch."""
        sizes: dict[int, float] = {}
        while rows := self._metrics.read():
            sizes |= step_sizes(rows, self._units)
            self._left_out += left_out_of(rows)
        spans: list[Span] = []
        for path in sorted(self._folder.glob("trace-rank*.jsonl")):
            spans += self._ranks.setdefault(path, _SpanTail(path)).read()
        return spans, sizes

    def left_out(self) -> list[LeftOutWork]:
        """Return the times of ranks without stages that `read` has found since the last call."""
        found, self._left_out = self._left_out, []
        return found


class TakenMinibatches:
    """Minibatches that one of several pipelines has processed since creation, in order, counted from 0."""

    def __init__(self, run_dir: Path, pipeline: int) -> None:
        self._path, self._pipeline = run_dir / MINIBATCHES, pipeline
        self._place = self._path.stat().st_size if self._path.exists() else 0
        self._numbers: list[int] = []  # in the run
        self._own: dict[int, int] = {}
        self._of_all = 0  # the newest that any pipeline took
        self._num_taken = 0  # by all pipelines
        self.epoch_minibatches = 0  # until the run has begun

    def read(self) -> None:
        """Take what came since the last call."""
        if not self.epoch_minibatches or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            whole = _whole_lines(file.read())
        self._place += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
                if row["event"] == "taken":
                    first = row["epoch"] * self.epoch_minibatches
                    self._add(row["pipeline"], [first + minibatch for minibatch in row["minibatches"]])
            except (ValueError, KeyError, TypeError):  # damaged: told by those who read the record
                continue

    def _add(self, pipeline: int, numbers: list[int]) -> None:
        self._of_all, self._num_taken = max(self._of_all, *numbers), self._num_taken + len(numbers)
        for number in numbers if pipeline == self._pipeline else ():
            self._own[number] = len(self._numbers)  # one that was put back is trained anew
            self._numbers.append(number)

    def own(self, number: int) -> int | None:
        """Return how this pipeline counts a minibatch of the run; None of one that it did not take, as far as known."""
        return self._own.get(number)

    def number(self, own: int) -> int:
        """Return the number in the run of a minibatch that it counts so; of one to come the next that no one has."""
        return self._numbers[own] if 0 <= own < len(self._numbers) else self._of_all + 1

    def first_from(self, number: int) -> int:
        """Return how it counts the first of those that it took from minibatch `number` of the run on."""
        self.read()
        return 1 + max((own for each, own in self._own.items() if each < number), default=-1)

    def expected(self, total: int) -> int:
        """Return how many it takes of a run of so many, if its share of what is left is that of what was taken."""
        left = max(0, total - 1 - self._of_all)
        return len(self._numbers) + round(left * len(self._numbers) / max(1, self._num_taken))


class PipelineRows:
    """As `RunRows`, of one of several pipelines, its minibatches as it counts them."""

    def __init__(self, folder: Path, taken: TakenMinibatches) -> None:
        self._rows, self._taken = RunRows(folder), taken
        self._waiting: list[tuple[int, Span]] = []  # looks left, until it is known who took their minibatches
        self._sizes: dict[int, tuple[int, float]] = {}

    def read(self) -> tuple[list[Span], dict[int, float]]:
        """Return new spans, those of each rank in the order in which they ended, and sizes by minibatch."""
        spans, sizes = self._rows.read()
        self._taken.read()
        self._waiting += [(_LOOKS, span) for span in spans if span.minibatch >= 0]
        self._sizes |= {number: (_LOOKS, size) for number, size in sizes.items()}
        known = [
            span._replace(minibatch=own)
            for _, span in self._waiting
            if (own := self._taken.own(span.minibatch)) is not None
        ]
        found = {own: size for number, (_, size) in self._sizes.items() if (own := self._taken.own(number)) is not None}
        self._waiting = [(n - 1, s) for n, s in self._waiting if n > 1 and self._taken.own(s.minibatch) is None]
        self._sizes = {m: (n - 1, s) for m, (n, s) in self._sizes.items() if n > 1 and self._taken.own(m) is None}
        return known, found

    def left_out(self) -> list[LeftOutWork]:
        """Return nothing: none of its ranks is left out."""
        return []


def step_sizes(rows: list[dict[str, Any]], units: tuple[str, ...] = SIZE_UNITS) -> dict[int, float]:
    """Return the size of each minibatch that rows of metrics tell of, in the first of `units` that a row has."""
    found = {}
    for row in rows:
        if row["event"] == "step" and "minibatch" in row:
            if unit := next((unit for unit in units if unit in row), None):
                found[row["minibatch"]] = float(row[unit])
    return found


class _SpanTail:
    """Reads whole rows of one rank's spans as they come.

    If a shorter file took its place, as of a long run, it is read again, without the spans that were there before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._place, self._last = 0, float("-inf")  # and when the newest span ended
        self._known = float("-inf")  # until when spans of another file that stood here have been read
        self.damaged = 0

    def read(self) -> list[Span]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
        except OSError:
            return []
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return []
            if status.st_ino != self._inode or status.st_size < self._place:
                self._inode, self._place, self._known = status.st_ino, 0, self._last
            spans: list[Span] = []
            while whole := _whole_lines(os.pread(descriptor, _BYTES_AT_ONCE, self._place)):
                self._place += len(whole)
                spans += self._new(whole)
            return spans
        except OSError:
            return []
        finally:
            os.close(descriptor)

    def _new(self, data: bytes) -> list[Span]:
        spans = []
        for line in data.splitlines():
            try:
                row = json.loads(line)
                if "left_out" in row:
                    continue
                span = span_of(row)
            except (ValueError, RecursionError, TypeError):
                self.damaged += 1
                continue
            if span.end > self._known:
                spans.append(span)
        self._last = max([self._last, *(span.end for span in spans)])
        return spans


def _whole_lines(data: bytes) -> bytes:
    """The lines of some bytes that have an end; all of them where a single line is longer than that."""
    return data[: data.rfind(b"\n") + 1] or (data if len(data) == _BYTES_AT_ONCE else b"")


Found = tuple[Iterable[Span], Mapping[int, float], Iterable[LeftOutWork]]  # and sizes of minibatches by their numbers
Told = TypeVar("Told", Alarm, Standing)


class Watches:
    """Watch the ranks and links of a run of pipeline replicas. Each replica is compared with its own plan.

    Replicas have their own minibatches, and need not progress at the same speed. Ranks and links have their global
    numbers. Links between replicas, which are used for averages, are not watched. If a transfer waits at a port that
    another replica uses, this counts as time of its own link.
    """

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan, *, first_minibatch: int = 0) -> None:
        """`cluster`: the devices of all. `first_minibatch`: of several, spans of those before it, under another plan,
        are left out.

        Raises InputError if the plan is not one for the profile's network and the cluster's devices.
        """
        plan.check(profile.graph, cluster)
        self.cluster, self.alarms = cluster, list[Alarm]()
        self.watches = tuple(Watch(profile, cluster, own) for own in plan.pipelines)
        self._first, self._plan = first_minibatch, plan

    def follow(self, plan: Plan, *, first_minibatch: int) -> None:
        """Switch to another plan, from a minibatch on: see `Watch.follow`. Pipelines keep their ranks."""
        for watch, own, before in zip(self.watches, plan.pipelines, self._plan.pipelines, strict=True):
            if not self._plan.members or own != before:
                watch.follow(own, first_minibatch=first_minibatch)
        self._plan = plan

    def see(self, found: Sequence[Found]) -> list[Alarm]:
        """Process new spans and sizes of each pipeline, by its number, with the rank numbers of its own folder.

        Returns new alarms in time order.
        """
        alarms = []
        for k, (watch, (spans, sizes, left_out)) in enumerate(zip(self.watches, found, strict=True)):
            alarms += [self._named(k, one) for one in watch.see(self._among_all(k, spans), sizes, left_out)]
        alarms.sort(key=lambda one: one.seconds)
        self.alarms += alarms
        return alarms

    @property
    def factors(self) -> Factors:
        """Present slowdowns of all devices and links, as in `Watch.factors`.

        A rank is slow from the start if it is slower than the fastest rank of all pipelines.
        """
        ranks = {rank: series for watch in self.watches for rank, series in watch.ranks.items()}
        links = {pair: series for watch in self.watches for pair, series in watch.links.items()}
        return factors_of(self.cluster, ranks, links)

    @property
    def standings(self) -> tuple[Standing, ...]:
        """States as in `Watch.standings`, one pipeline after the other."""
        return tuple(self._named(k, one) for k, watch in enumerate(self.watches) for one in watch.standings)

    def _named(self, k: int, one: Told) -> Told:
        return replace(one, pipeline=k) if len(self.watches) > 1 else one

    def _among_all(self, k: int, spans: Iterable[Span]) -> Iterable[Span]:
        if len(self.watches) == 1:
            return spans
        among, ranks = self._plan.among_all, range(len(self._plan.pipelines[k].ranks))
        return (
            span._replace(rank=among(k, span.rank), peer=among(k, span.peer))
            for span in spans
            if span.minibatch >= self._first and span.rank in ranks
        )


def drift_of(record: RunRecord, profile: Profile | None = None, cluster: Cluster | None = None) -> Watches:
    """Detect lasting slowdowns of ranks and links from the trace of a run.

    Each pipeline replica is compared with its plan.

    Args:
        record: The run.
        profile: Profile of the network. Default: profile of the launch.
        cluster: Devices and links. Default: cluster of the launch.

    Returns:
        A `Watch` for each pipeline, with `alarms`, `standings` and `factors`.

    Raises:
        InputError: No profile or cluster, no trace, or a profile with another unit of size.
        DamagedRecord: A damaged file. The message names the row.

    Example:
        >>> try:
        ...     sp.monitoring.drift_of(sp.RunRecord.load(run_dir))
        ... except sp.InputError as error:  # launched without a profile
        ...     print(error.code)
        run.no_profile

    See also:
        guides/online_repartitioning, `monitoring.Watch`
    """
    profile, cluster = devices_of(record, profile, cluster)
    own = record.pipelines
    spans, rows = [one.trace().spans for one in own], [one.metrics("step") for one in own]
    sizes = [step_sizes(each, _units(profile)) for each in rows]
    if not any(spans) or not any(rows):
        raise InputError(
            "run.no_trace",
            f"{record.folder}: has no completed minibatches yet, which drift needs; try again later",
        )
    if not any(sizes):
        raise InputError(
            "run.size_unit_differs",
            f"{record.folder}: its steps have no size in {profile.size_unit}, the unit of the profile; give the "
            "profile of this model",
        )
    watch = _watches(record, profile, cluster)
    watch.see([*zip(spans, sizes, (left_out_of(one.metrics("left_out")) for one in own), strict=True)])
    if not any(one.rank is not None for one in watch.standings):
        raise InputError(
            "run.no_whole_minibatch",
            f"{record.folder}: no minibatch has a complete forward and backward in the trace",
        )
    return watch


def devices_of(record: RunRecord, profile: Profile | None, cluster: Cluster | None) -> tuple[Profile, Cluster]:
    """Return the profile and the cluster given, or those in the run's folder. Raises InputError if none are."""
    kept = record.folder / "profile.json", record.folder / "cluster.toml"
    if profile is None and not kept[0].exists() or cluster is None and not kept[1].exists():
        raise InputError(
            "run.no_profile",
            f"{record.folder}: was launched without a profile and a cluster to compare with; give {{profile}} and "
            f"{{cluster}}",
            setting={"profile": ..., "cluster": ...},
        )
    return profile or Profile.load(kept[0]), cluster or Cluster.load(kept[1])


class Follower:
    """Follow the drift of a running job: call `look` about every second, and once after its end.

    Results are written to drift.jsonl of the run, by one process at a time: the first that follows the run. Damaged
    lines of the run's files are skipped.
    """

    def __init__(self, record: RunRecord, profile: Profile | None = None, cluster: Cluster | None = None) -> None:
        """Raises InputError as `drift_of` does for such a run."""
        profile, cluster = devices_of(record, profile, cluster)
        self.record = record
        self._followed = len(_plans(record))
        self.watch = _watches(record, profile, cluster)
        self._rows = [RunRows(one.folder, units=_units(profile)) for one in record.pipelines]
        self._file = DriftFile(record.folder)

    def look(self) -> list[Alarm]:
        """Read what the run has written since the last call, and return new alarms."""
        found = [rows.read() for rows in self._rows]
        self._follow_plans()  # after the spans: a plan is written down before anybody trains under it
        left_out = (rows.left_out() for rows in self._rows)
        alarms = self.watch.see([(*new, times) for new, times in zip(found, left_out, strict=True)])
        self._file.add(alarms)
        return alarms

    def _follow_plans(self) -> None:
        try:
            plans = _plans(self.record)
            for first, plan in plans[self._followed :]:
                self.watch.follow(plan, first_minibatch=first)
            self._followed = len(plans)
        except InputError:
            return  # damaged now, or not for these devices: told by those who read it or would run it


def _plans(record: RunRecord) -> list[tuple[int, Plan]]:
    """The plans that a run follows, each with its first minibatch, 0 if no one wrote it down.

    If pipelines had other ranks or another rule, or other numbers, before it was resumed: those since.
    """
    plans: list[tuple[int, Plan]] = []
    for first, plan in record.plans:
        if plans and (plan.members or plans[-1][1].members) and _kept(plans[-1][1]) != _kept(plan):
            plans.clear()
        plans.append((first or 0, plan))
    return plans


def _kept(plan: Plan) -> object:
    """Return what several pipelines keep while they train: their ranks and their rule."""
    return [plan.ranks_of(k) for k in range(len(plan.pipelines))], plan.replication


def _watches(record: RunRecord, profile: Profile, cluster: Cluster) -> Watches:
    """Return what watches a run, and knows each of the plans that it has followed so far."""
    (first, plan), *others = _plans(record)
    watches = Watches(profile, cluster, plan, first_minibatch=first)
    for first, plan in others:
        watches.follow(plan, first_minibatch=first)
    return watches


def watch_of(record: RunRecord, profile: Profile, cluster: Cluster) -> Watch:
    """Return what watches a run of one pipeline, and knows each of the plans that it has followed so far."""
    return _watches(record, profile, cluster).watches[0]


def _units(profile: Profile) -> tuple[str, ...]:
    """The unit that sizes must be in; any where the profile's times do not depend on them."""
    return (profile.size_unit,) if profile.sized else SIZE_UNITS
