"""A coordinator's journal: every request that changed its state, so that another takes its place when it is killed.

control/coordinator.jsonl    first the run, the job's secret and the state so far, then a request a line, before it is
                             answered; once they are many, the state takes their place in one step; 0600
minibatches.jsonl            who took which minibatch, put it back, had it done; which attempts of pipelines there were
merges.jsonl                 contributions, merges, and who took the result of which
metrics.jsonl                rows of the whole run, as every record has them

The three are made from the journal: what a kill kept from them is written by the coordinator that takes over.

The state of a run of several pipelines as JSON, all of it, and the state again.

What JSON lacks is an object with one key "": what it is. Objects are written once, by the fields that they have, and
referred to where they come again. Only classes of this folder and of the rules are written, and made again.
"""

import importlib
import json
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from ...records.record_files import read_metrics
from ...util.io.files import cut_torn_row, read_rows, write_atomic, write_rows
from ...util.lazy_names import module_now
from ...values.replication import rule_from_json, rule_to_json
from ..reporting.metrics import began, last_recorded
from ..reporting.recorder import Lines
from ..wire.handshake import new_secret
from ..wire.messages import COORDINATOR
from .member import MERGES, METRICS, MINIBATCHES, REPLAN, Changes, Sums
from .messages import read_given
from .state import Request, RunOfPipelines, RunState

# Of the whole run: the checkpoint that it goes on from, for workers (pipeline_worker.py).
RESUME = Path("logs", "resume.json")


# What the record of a run of several pipelines keeps when the run continues from a checkpoint
def keep_rows(run_dir: Path, progress: Mapping[str, Any]) -> None:
    """Take from the metrics what will be done again, and say in each file of the record that the run continues from
    here.

    What happened to minibatches and merges stays: it did happen.
    """
    path = run_dir / METRICS
    cut_torn_row(path)
    rows = read_metrics(path) if path.exists() else []
    last = max((row.get("seconds", 0.0) for row in rows), default=0.0)
    resumed = {"event": "resume", "seconds": last, "minibatches": progress["done"]}
    write_rows(path, [*filter(_staying(progress), rows), resumed])
    for name in (MINIBATCHES, MERGES):
        cut_torn_row(run_dir / name)
        with (run_dir / name).open("ab") as handle:
            handle.write(_line({**resumed, "left": progress["left"]} if name == MINIBATCHES else resumed))


def has_rows_of(run_dir: Path, progress: Mapping[str, Any]) -> bool:
    """Return whether the metrics have each minibatch that is done.

    Of a host that was lost a checkpoint may have come here, and not the newest rows before it.
    """
    path = run_dir / METRICS
    rows = read_metrics(path, "step") if path.exists() else []
    return len({row["minibatch"] for row in filter(_staying(progress), rows)}) == int(progress["done"])


def recorded_pace(run_dir: Path) -> float:
    """Return the samples per second of the newest summary, for a run that has nothing left to do; 0 without."""
    path = run_dir / METRICS
    cut_torn_row(path)
    paces = [row["samples_per_second"] for row in read_metrics(path, "summary")] if path.exists() else []
    return next((pace for pace in reversed(paces) if pace), 0.0)


def recorded_replans(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of changes of pipelines' plans that the record has kept."""
    path = run_dir / METRICS
    return [dict(row) for row in read_metrics(path, REPLAN)] if path.exists() else []


def recorded_scores(run_dir: Path) -> list[dict[str, object]]:
    """Return the epochs that the record has kept and that were validated, with their scores."""
    path = run_dir / METRICS
    rows = read_metrics(path, "epoch") if path.exists() else []
    return [{name: row[name] for name in ("epoch", "minibatches", "validation")} for row in rows if row["validation"]]


def keep_nothing(run_dir: Path) -> None:
    """Take all minibatches from the metrics of a run that continues without a checkpoint: each is trained again."""
    path = run_dir / METRICS
    if not path.exists():
        return
    cut_torn_row(path)
    rows = read_metrics(path)
    if any(row["event"] == "step" for row in rows):
        longest = 1 + max(row["minibatch"] for row in rows if row["event"] == "step")
        keep_rows(run_dir, {"done": 0, "left": {0: list(range(longest))}, "epoch_minibatches": longest})


def epochs_closed(run_dir: Path, progress: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the epochs that need not be closed again: all but the newest that were wholly trained, and reported."""
    told = {row["epoch"] for row in read_rows(run_dir / METRICS) if row["event"] == "epoch"}
    return tuple(sorted(told | set(range(min(map(int, progress["left"]), default=0) - 1))))


def sums_of_epochs(run_dir: Path, closed: Collection[int]) -> dict[int, Sums]:
    """Return what the rows that were kept add up to, of each epoch that is still to be closed."""
    found: dict[int, Sums] = {}
    for row in read_metrics(run_dir / METRICS, "step"):
        if row["epoch"] not in closed:
            found.setdefault(row["epoch"], Sums()).add(row, now=row["seconds"])
    return found


def _staying(progress: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function of a row: whether what it describes is done, its minibatch or all of its epoch."""
    left = {int(epoch): frozenset(minibatches) for epoch, minibatches in progress["left"].items()}
    each = progress["epoch_minibatches"]
    first = min(left, default=progress["done"] // each)  # where none is named, as many as were trained whole

    def stays(row: Mapping[str, Any]) -> bool:
        if row["event"] == REPLAN:
            return bool(row["minibatch"] <= progress["done"])
        if row["event"] not in ("step", "epoch"):
            return bool(row["event"] == "resume")
        epoch = row["epoch"]
        if epoch not in left:  # before the first that is named all is done
            return bool(epoch < first)
        if row["event"] == "epoch":
            return not left[epoch]
        return row["minibatch"] - epoch * each not in left[epoch]

    return stays


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


_FOLDERS = ("sparsepipe.runtime.pipelines.", "sparsepipe.values.replication.")
_CONTAINERS: dict[str, type] = {one.__name__: one for one in (tuple, set, deque)}
_MAPPINGS: dict[str, type] = {one.__name__: one for one in (dict, Counter)}

_FILES = (MINIBATCHES, MERGES, METRICS)
_JOURNAL = "coordinator.jsonl"
_MOST_BYTES = 2**24  # of requests after a state: read and made again within a few seconds
_STATES = 4  # or so many times the bytes of that state, whose writing is to take little of the time
_READ_BYTES = 2**20


class Journal:
    """The journal of one launch, and the record's files that are made from it."""

    def __init__(self, run_dir: Path, head: Mapping[str, Any]) -> None:
        self.secret = bytes.fromhex(head["secret"])
        self._began = float(head["began"])
        self._path, self._head = _path(run_dir), head
        self._open()
        self._lines = {name: Lines(run_dir / name) for name in _FILES}
        self._num_rows = {name: _num_rows(run_dir / name) for name in _FILES}

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._room = max(_MOST_BYTES, _STATES * os.fstat(self._file).st_size)

    @classmethod
    def open(cls, run_dir: Path, launch: str, run: RunOfPipelines) -> tuple["Journal", RunState]:
        """Return the journal of a launch, and the state that it makes: that of `run` where the launch is new.

        Raises InputError if what an earlier run left to do does not belong to this one.
        """
        rows = _rows_of(run_dir, launch) or [_begin(run_dir, launch, run)]
        return cls.from_rows(run_dir, rows)

    @classmethod
    def from_rows(cls, run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> tuple["Journal", RunState]:
        """Make the journal's requests again, and write those rows of the record that they made and a kill kept."""
        head, *requests = rows
        state = from_json(head["state"]) if "state" in head else RunState(_run_of(head))
        for row in requests:
            apply(state, row)
        for name in _FILES:
            cut_torn_row(run_dir / name)
        journal = cls(run_dir, head)
        journal._catch_up(run_dir, state.changes, head["rows"])
        return journal, state

    def origin(self) -> float:
        """Return when the run began, on this machine's monotonic clock. One that resumes continues after its last
        row.
        """
        return time.monotonic() - (time.time() - self._began)

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a request that changed the state. Raises OSError if the disk takes no more."""
        data = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        self._room -= len(data)
        while data:
            data = data[os.write(self._file, data) :]

    def take_rows(self, changes: Changes, *, now: float) -> None:
        """Add to the record what has changed."""
        for name, row in changes.rows:
            self._add_row(name, row, now=now)
        changes.rows.clear()

    def _add_row(self, name: str, row: Mapping[str, Any], *, now: float) -> None:
        self._lines[name].add(json.dumps(row) + "\n", now=now)
        self._num_rows[name] += 1

    def shorten(self, state: RunState) -> None:
        """Put the state in the place of the requests that made it, once they are many; its rows were taken.

        Killed meanwhile, the journal is the one before or the one after.
        """
        if self._room > 0:
            return
        self.flush()  # who takes over writes the rows of requests alone
        head = {**self._head, "rows": self._num_rows, "state": to_json(state)}
        write_atomic(self._path, json.dumps(head, separators=(",", ":")) + "\n", make_folder=False, private=True)
        os.close(self._file)
        self._open()

    def flush(self) -> None:
        """Write what the record's files have not got yet."""
        for lines in self._lines.values():
            lines.flush()

    def close(self) -> None:
        for lines in self._lines.values():
            lines.close()
        os.close(self._file)

    def _catch_up(self, run_dir: Path, changes: Changes, before: Mapping[str, int]) -> None:
        """Write those rows that the coordinator before had not written when it was killed."""
        for name in _FILES:
            own = [row for file, row in changes.rows if file == name]
            written = _num_rows(run_dir / name) - before[name]
            for row in own[written:]:
                self._add_row(name, row, now=0.0)
        changes.rows.clear()
        self.flush()


def complete_record(run_dir: Path, launch: str) -> None:
    """Write those rows of the record that the coordinator of a launch had in its journal as it was killed.

    For a coordinator whose place no other takes: its run is over. Nothing is written where the journal is of another
    launch, or there is none.
    """
    if rows := _rows_of(run_dir, launch):
        journal, _ = Journal.from_rows(run_dir, rows)
        journal.close()


def apply(state: RunState, row: Mapping[str, Any]) -> None:
    """Make the request of a journal's row again. What was refused is refused again."""
    if row["call"] == "expire":
        state.expire(now=row["now"])
    elif row["call"] == "stop":
        state.stop(now=row["now"])
    else:
        given = read_given(row["call"], row["given"])
        with suppress(RuntimeError, ValueError):
            state.ask(Request(row["call"], row["pipeline"], row["rank"], row["attempt"], given), now=row["now"])


def _begin(run_dir: Path, launch: str, run: RunOfPipelines) -> dict[str, Any]:
    """Begin the journal of a launch, and have the record forget what the run is going to do again."""
    if run.progress is not None:
        pace = recorded_pace(run_dir)
        keep_rows(run_dir, run.progress)
        closed = epochs_closed(run_dir, run.progress)
        replans = tuple(recorded_replans(run_dir))
        run = replace(run, closed=closed, sums=sums_of_epochs(run_dir, closed), pace=pace, replans=replans)
        run = replace(run, scored=tuple(recorded_scores(run_dir)))
    for name in _FILES:
        cut_torn_row(run_dir / name)
    head = {
        "launch": launch,
        "secret": new_secret().hex(),
        "pipelines": run.num_pipelines,
        "rule": rule_to_json(run.rule) if run.rule else None,
        "seed": run.seed,
        "progress": run.progress,
        "closed": list(run.closed),
        "sums": {str(epoch): asdict(sums) for epoch, sums in run.sums.items()},
        "pace": run.pace,
        "replans": list(run.replans),
        "scored": list(run.scored),
        "began": began(run_dir) if (run_dir / "logs").is_dir() else time.time() - last_recorded(run_dir),
        "rows": {name: _num_rows(run_dir / name) for name in _FILES},
    }
    path = _path(run_dir)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    for stale in (path, run_dir / COORDINATOR):
        stale.unlink(missing_ok=True)
    write_atomic(path, json.dumps(head) + "\n", make_folder=False, private=True)
    return head


def _rows_of(run_dir: Path, launch: str) -> list[dict[str, Any]]:
    """Return the rows of a launch's journal, without a torn last one; none where the journal is of another launch."""
    path = _path(run_dir)
    cut_torn_row(path)
    rows = read_rows(path) if path.exists() else []
    return rows if rows and rows[0].get("launch") == launch else []


def _run_of(head: Mapping[str, Any]) -> RunOfPipelines:
    rule = rule_from_json(head["rule"]) if head["rule"] else None
    sums = {int(epoch): Sums(**told) for epoch, told in head.get("sums", {}).items()}
    return RunOfPipelines(
        head["pipelines"],
        rule,
        head["seed"],
        progress=head["progress"],
        closed=tuple(head["closed"]),
        sums=sums,
        pace=head.get("pace", 0.0),
        replans=tuple(head.get("replans", ())),
        scored=tuple(head.get("scored", ())),
    )


def _path(run_dir: Path) -> Path:
    return run_dir / "control" / _JOURNAL


def _num_rows(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as handle:
        return sum(part.count(b"\n") for part in iter(partial(handle.read, _READ_BYTES), b""))


def to_json(state: Any) -> Any:
    """Return a state as JSON has it. Raises TypeError for what no state is made of."""
    return _Writer().written(state)


def from_json(document: Any) -> Any:
    """Return the state that `to_json` gave. Raises ValueError for what it does not give."""
    return _Reader().read(document)


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by the identity of objects, which the state keeps alive

    def written(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self.written(item) for item in value]
        if kind in _CONTAINERS.values():
            items = [self.written(item) for item in value]
            return {"": kind.__name__, "items": sorted(items, key=json.dumps) if kind is set else items}
        if kind in _MAPPINGS.values():
            return {
                "": kind.__name__,
                "items": [[self.written(key), self.written(item)] for key, item in value.items()],
            }
        if kind is random.Random:
            return {"": "Random", "state": self.written(value.getstate())}
        name = f"{kind.__module__}:{kind.__qualname__}"
        if not name.startswith(_FOLDERS):
            raise TypeError(f"a state has {name}")
        if isinstance(value, Enum):
            return {"": "value", "class": name, "value": self.written(value.value)}
        if isinstance(value, tuple):
            return {"": "value", "class": name, "items": [self.written(item) for item in value]}
        if id(value) in self._numbers:
            return {"": "again", "number": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        return {"": "object", "class": name, "fields": {key: self.written(item) for key, item in vars(value).items()}}


class _Reader:
    def __init__(self) -> None:
        self._objects: list[Any] = []

    def read(self, document: Any) -> Any:
        if isinstance(document, list):
            return [self.read(item) for item in document]
        if not isinstance(document, dict):
            return document
        kind = document[""]
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self.read(item) for item in document["items"])
        if kind in _MAPPINGS:
            return _MAPPINGS[kind]({self.read(key): self.read(item) for key, item in document["items"]})
        if kind == "Random":
            made = random.Random()
            made.setstate(self.read(document["state"]))
            return made
        if kind == "again":
            return self._objects[document["number"]]
        found = _class(document["class"])
        if kind == "value":
            return found(*self.read(document["items"])) if "items" in document else found(self.read(document["value"]))
        made = object.__new__(found)
        self._objects.append(made)
        for key, item in document["fields"].items():
            object.__setattr__(made, key, self.read(item))  # frozen ones, too
        return made


def _class(name: str) -> Any:
    name = module_now(name)
    if not name.startswith(_FOLDERS):
        raise ValueError(f"a state has {name[:100]!r}")
    module, _, path = name.partition(":")
    return getattr(importlib.import_module(module), path)
