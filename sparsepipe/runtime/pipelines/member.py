"""One pipeline as the coordinator knows it: its attempt, its ranks that exchange weights, its list of tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ...values.replication.base import pace
from .base import Holder, Kind, Task


class Phase(Enum):
    """Phase of a pipeline's attempt."""

    STARTING = "starting"  # has asked for no task yet
    LIVE = "live"
    GONE = "gone"  # one of its ranks ended, or all had nothing more to do


@dataclass
class Member:
    """Mutable state of a pipeline. A newer attempt begins with an empty list."""

    number: int
    attempt: int = 0
    phase: Phase = Phase.STARTING
    whole: int = 0  # minibatches of a unit; 0: it has not begun
    num_holders: int = 0
    holders: list[Holder] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    places: dict[int, list[int]] = field(default_factory=dict)  # task → minibatch at each place, of the latest tasks
    ended: set[int] = field(default_factory=set)  # tasks that have no more places
    done: set[tuple[int, int]] = field(default_factory=set)  # (task, place), of the latest tasks
    told: set[str] = field(default_factory=set)  # events that it has told of
    last_measured: int = -1  # the latest task of which it has said what it measured
    finished: bool = False  # it is past the run's last average
    units: int = 0  # taken, over all attempts
    held_up_since: float | None = None  # by the rule's bound

    # For the summary, over all attempts.
    minibatches: int = 0
    samples: float = 0.0
    busy_since: float = 0.0  # when its task began
    busy_until: float = 0.0  # when the latest minibatch of its task was done, or the rule's bound kept it no longer
    busy_seconds: float = 0.0  # of tasks before
    held_up_seconds: float = 0.0
    lost_since: float | None = None  # it died, and has not trained since: when the latest that was not lost was done
    dead_seconds: float = 0.0  # of earlier deaths, each until it trained again
    # Attempt → by how much stragglers held up its rank that they held up longest, until its latest task that ended.
    straggler_seconds: dict[int, float] = field(default_factory=dict)

    def die(self, *, now: float) -> None:
        """An attempt ends. Should another train, the pipeline's seconds ran on: what it had begun is lost.

        A task that trains nothing stands on no clock; if it dies in one, seconds are lost from then on.
        """
        if self.lost_since is None and self.current is not None:
            self.lost_since = self.busy_until if self.current.kind is Kind.TRAIN else now
        self.stop_clock()

    def restart(self, attempt: int) -> None:
        """Begin again, with another attempt."""
        self.attempt, self.phase, self.whole = attempt, Phase.STARTING, 0
        self.held_up_since, self.finished, self.last_measured = None, False, -1
        self.stop_clock()
        for kept in (self.holders, self.tasks, self.places, self.ended, self.done, self.told):
            kept.clear()

    def add(self, task: Task, *, now: float) -> Task:
        """Add a task to the list. Those before it are done."""
        self.stop_clock()
        self.tasks.append(task)
        if task.kind is Kind.TRAIN:
            self.busy_since = self.busy_until = now
            if self.lost_since is not None:
                self.dead_seconds += now - self.lost_since
                self.lost_since = None
        older = task.number - 2  # ranks may still ask for places of the task before
        self.places.pop(older, None)
        self.ended.discard(older)
        self.done = {place for place in self.done if place[0] > older}
        return task

    def stop_clock(self) -> None:
        """Count the task under way, up to its latest minibatch."""
        self.busy_seconds += self.busy_until - self.busy_since
        self.busy_since = self.busy_until

    def release(self, *, now: float, idle: bool) -> None:
        """Count for how long the rule's bound held it up until now, if it is `idle`: it has done all that it took.

        Ranks ask for minibatches ahead: until the last that they have is done nothing is lost.
        """
        assert self.held_up_since is not None
        if idle:
            self.held_up_seconds += now - max(self.held_up_since, self.busy_until)
        self.held_up_since, self.busy_until = None, now

    @property
    def current(self) -> Task | None:
        return self.tasks[-1] if self.tasks else None

    def count(self, samples: float, *, now: float) -> None:
        """Count a minibatch as done."""
        self.busy_until = now
        self.minibatches += 1
        self.samples += samples

    def facts(self, *, waited: float, for_others: float) -> dict[str, Any]:
        """Return its part of a run's summary. Its own pace leaves out the seconds that it `waited`, some `for_others`.

        Seconds are lost to the same causes as in a simulation (planning/simulator/outcome.py). Deaths are no cause
        there; its own pace leaves them out too.
        """
        busy = self.busy_seconds + self.busy_until - self.busy_since
        alone = busy - waited - self.held_up_seconds
        return {
            "minibatches": self.minibatches,
            "samples_per_second": pace(self.samples, busy + self.dead_seconds),
            "own_pace": pace(self.samples, alone),
            "lost_seconds": {
                "group": for_others,
                "exchange": waited - for_others,
                "bound": self.held_up_seconds,
                "straggler": sum(self.straggler_seconds.values()),
            },
        }


_KEPT = 64  # epochs, the latest


# What the minibatches of all pipelines add up to: loss, accuracy and pace of an epoch, the run's pace
@dataclass
class Sums:
    """Over the minibatches that are done, of an epoch or of the run."""

    loss: float = 0.0  # a mean times its samples
    counted: float = 0.0  # samples, or what else the loss is a mean over
    correct: float | None = None  # of these; None: nobody counts them
    samples: float = 0.0
    minibatches: int = 0
    first_samples: float = 0.0  # of the first minibatch that was done
    first: float | None = None  # seconds at which it was
    last: float = 0.0  # seconds at which the latest was
    split: int = 0  # minibatches that passed in parts

    def add(self, row: Mapping[str, Any], *, now: float) -> float:
        """Count a minibatch by its row: its "loss" is a mean over its "counted" (else "samples"), of which so many are
        "correct". Return its samples.
        """
        samples = _number(row, "samples", 0.0)
        counted = _number(row, "counted", samples)
        self.loss += _number(row, "loss", 0.0) * counted
        self.counted += counted
        if "correct" in row:
            self.correct = (self.correct or 0.0) + _number(row, "correct", 0.0)
        if self.first is None:
            self.first, self.first_samples = now, samples
        self.samples += samples
        self.minibatches += 1
        self.split += "split_into" in row
        self.last = now
        return samples

    @property
    def train(self) -> dict[str, float | None]:
        """Training part of an epoch's row, as in `EpochSoFar.train`."""
        scores = {"loss": self.loss / self.counted if self.counted else None}
        if self.correct is not None:
            scores["accuracy"] = self.correct / self.counted if self.counted else None
        counts = {"samples": self.samples, "counted": self.counted, "minibatches": self.minibatches}
        counts |= {"split_minibatches": self.split} if self.split else {}
        return scores | {name: int(count) for name, count in counts.items()}

    @property
    def pace(self) -> float:
        """Samples per second, from the first minibatch that was done to the last; 0 if there is but one."""
        if self.first is None or self.last <= self.first:
            return 0.0
        return (self.samples - self.first_samples) / (self.last - self.first)


class Tallies:
    """Sums over the rows of minibatches that are done."""

    def __init__(self, begun: Mapping[int, Sums] | None = None) -> None:
        """`begun`: what an earlier run has done of epochs that this one ends."""
        self._epochs = {epoch: replace(sums) for epoch, sums in (begun or {}).items()}
        self._run = Sums()

    def add(self, epoch: int, row: Mapping[str, Any], *, now: float) -> float:
        """Count a minibatch by its row (see `Sums.add`). Return its samples."""
        self._epochs.setdefault(epoch, Sums()).add(row, now=now)
        if len(self._epochs) > _KEPT:
            del self._epochs[min(self._epochs)]
        return self._run.add(row, now=now)

    def of_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the fields of an epoch's row that all its minibatches together make; none if it has none."""
        sums = self._epochs.get(epoch)
        return {"train": sums.train, "samples_per_second": sums.pace or self.pace} if sums else {}

    @property
    def latest(self) -> dict[str, Any]:
        """The same of the latest epoch."""
        return self.of_epoch(max(self._epochs, default=-1))

    @property
    def pace(self) -> float:
        """Samples per second of the run."""
        return self._run.pace


def _number(row: Mapping[str, Any], key: str, default: float) -> float:
    value = row.get(key, default)
    return float(value) if isinstance(value, int | float) else default


MINIBATCHES, MERGES, METRICS = "minibatches.jsonl", "merges.jsonl", "metrics.jsonl"
REPLAN = "replan"  # the event of a pipeline that goes on under another plan


class Changes:
    """Shared by all parts of a state. `now` is the time of what is asked, in seconds since the run began."""

    def __init__(self) -> None:
        self.version = 0
        self.now = 0.0
        self.rows: list[tuple[str, dict[str, Any]]] = []  # (file, row) since somebody took them out

    def note(self) -> None:
        """Something has changed."""
        self.version += 1

    def row(self, file: str, event: str, /, **facts: Any) -> None:
        """Something has changed that a file of the record describes, now."""
        self.version += 1
        facts = {key: value for key, value in facts.items() if key not in ("event", "seconds")}
        self.rows.append((file, {"event": event, "seconds": round(self.now, 6), **facts}))
