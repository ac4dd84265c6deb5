"""drift.jsonl in a run's folder: a row for each lasting change that was found while somebody followed the run."""

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from ..errors import InputError
from ..records import RunRecord
from .factors import Pair


@dataclass(frozen=True, slots=True)
class Alarm:
    """Lasting change of the speed of one rank, or of one link. `link` is a pair of ranks, the lower one first."""

    minibatch: int  # at which it was found
    began: int  # the minibatch at which it began, as far as can be told
    factor: float  # how many times as long as expected it takes since then
    before: float  # and took before
    rank: int | None = None
    link: Pair | None = None
    recovered: bool = False  # whether that is what it took before it was slow
    seconds: float = 0.0  # since the run began
    always: bool = False  # whether it has been so since its first minibatch, so that there is no before
    pipeline: int | None = None  # of several, whose rank or link it is

    @property
    def slower(self) -> bool:
        return self.factor > self.before

    def __str__(self) -> str:
        """A sentence: "rank 1 takes 2.0 times its profile's time since minibatch 120, 1.0 times before"."""
        if self.link is None:
            subject, own = f"rank {self.rank}", "its profile's time"
        else:
            subject, own = f"the link between ranks {self.link[0]} and {self.link[1]}", "the cluster's time"
        verb = "is back at" if self.recovered else "takes"
        subject += "" if self.pipeline is None else f" of pipeline {self.pipeline}"
        before = f", {self.before:.2g} times before" if self.began and not self.always else ""
        return f"{subject} {verb} {self.factor:.2g} times {own} since minibatch {self.began}{before}"

    def to_json(self) -> dict[str, Any]:
        """Return the row of drift.jsonl."""
        whose = _whose(self)
        numbers = {name: getattr(self, name) for name in ("minibatch", "began", "recovered")}
        times = {name: round(getattr(self, name), 4) for name in ("factor", "before", "seconds")}
        return {"event": "alarm", **whose, **numbers, **times}


@dataclass(frozen=True, slots=True)
class Standing:
    """State of one rank or one link, as a row of a table."""

    rank: int | None
    link: Pair | None
    factor: float
    minibatches: int  # that were measured
    since: int | None  # the minibatch at which its last lasting change began; None: there was none
    spikes: int  # times that it was slow, or quick, for fewer minibatches than make a change
    noise: float  # standard deviation of its ratio around its level, without outliers
    changed: bool = False  # whether it is not as usual, by its last alarm
    pipeline: int | None = None  # of several, whose rank or link it is

    @property
    def name(self) -> str:
        own = f"rank {self.rank}" if self.link is None else f"link {self.link[0]}-{self.link[1]}"
        return own if self.pipeline is None else f"pipeline {self.pipeline}, {own}"

    def to_json(self) -> dict[str, Any]:
        whose = _whose(self)
        facts = {name: getattr(self, name) for name in ("minibatches", "since", "spikes", "changed")}
        return {**whose, "factor": round(self.factor, 4), **facts, "noise": round(self.noise, 4)}


def _whose(one: Alarm | Standing) -> dict[str, Any]:
    own: dict[str, Any] = {"rank": one.rank} if one.link is None else {"link": list(one.link)}
    return own if one.pipeline is None else {"pipeline": one.pipeline, **own}


NAME = "drift.jsonl"


class DriftFile:
    """The drift.jsonl of a run, to which the first who opens it adds rows as long as it lives; others add none.

    An alarm that is there already, of somebody who followed the run before, is not added again. If a disk is full,
    or the folder not one's own, the run continues without.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._file, self._known = folder / NAME, -1, set[str]()
        self._lock = Lock()  # a thread for each pipeline adds alarms

    def add(self, alarms: Iterable[Alarm]) -> None:
        """Write alarms that are new."""
        rows = {_key(alarm.to_json()): alarm.to_json() for alarm in alarms}
        with self._lock:
            if not rows or not self._is_ours():
                return
            lines = [json.dumps(row) + "\n" for key, row in rows.items() if key not in self._known]
            self._known |= rows.keys()
            try:
                os.write(self._file, "".join(lines).encode())
            except OSError:
                self.close()

    def close(self) -> None:
        """Let others write."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _is_ours(self) -> bool:
        if self._file >= 0:
            return True
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._known = {_key(row) for row in RunRecord(self._path.parent).drift()}
        except (OSError, InputError):  # another's, or damaged: not to be made longer
            self.close()
        return self._file >= 0

    def __del__(self) -> None:
        self.close()


def _key(row: dict[str, object]) -> str:
    """Names an alarm: whose, and which minibatch it was found at."""
    return repr((row.get("rank"), row.get("link"), row.get("minibatch")))
