"""The schemas of a run record's files: which fields they have, and of what type; checked as they are read.

What is damaged is refused in one line that names the file (and the row); unknown fields are left as they are, so that
records of other versions open. A missing field raises when it is used (`fields.Fields`).

What a user writes about a run, tags and a note, is in a file of its own alongside what the run wrote.
Rows of metrics are given as flat tables: one column for each number, whatever it was nested in.

Rows of a run's metrics as flat tables: one column for each number, whatever it was nested in.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedRecord, InputError
from ..util.io.fields import (
    Check,
    Fields,
    each,
    fields,
    flag,
    integer,
    maybe,
    measured,
    number,
    one_of,
    real,
    text,
    texts,
)
from ..util.io.files import read_json, read_numbered_rows, write_json
from ..util.text.numbers import SIZE_UNITS

if TYPE_CHECKING:
    import pandas as pd

_MOST = 10**15  # of minibatches, epochs, voxels: a setting may ask for so many


def _count(value: Any, what: str) -> int:
    return integer(value, what, most=_MOST)


HOSTS = "hosts.toml"  # the cluster that a run was launched on, where that is beyond one host
STATES = ("started", "running", "finished", "stopped", "failed", "refused", "cancelled")
_DEEPEST = 40  # objects and lists within each other: far more than we write, far less than Python's own limit
_MOST_ID = 2**31 - 1  # of processes

STATUS = fields(
    {
        "state": one_of(*STATES),
        "reason": text,
        "guard": lambda value, what: integer(value, what, most=_MOST_ID),
        "launcher": lambda value, what: integer(value, what, most=_MOST_ID),
        "exit_code": lambda value, what: integer(value, what, least=-255, most=255),
        "rank": maybe(integer),
        "stage": maybe(integer),
        "code": maybe(text),
        "lasting": flag,
        "time": real,
        "commands": each(text),
        "went_on": each(text),
    }
)
CONFIG = fields(
    {
        **dict.fromkeys(
            ("model", "data", "engine", "optimizer", "device", "precision", "last_minibatch", "order"), text
        ),
        **dict.fromkeys(
            ("task", "compression", "balance", "augmentation", "composition", "collate", "crop", "sampler"), maybe(text)
        ),
        "fitting_sizes": maybe(text),
        **dict.fromkeys(("batch_voxels", "batch_seconds", "batch_bytes"), maybe(real)),
        "batch_size": lambda value, what: integer(value, what, least=1, most=_MOST),
        "epochs": lambda value, what: integer(value, what, least=1, most=_MOST),
        "minibatches": maybe(_count),
        "seed": lambda value, what: integer(value, what, most=2**64),
    }
)
ORIGIN = fields(
    {
        "command": each(text),
        "commit": maybe(text),
        "versions": fields({}, others=text),
        "machine": text,
        "created": text,
        "facts": fields({}),
        "campaign": maybe(text),
    }
)
CLOCK = fields({"started": real})


def _share_or_bytes(value: Any, what: str) -> Any:
    """Numbers of a stage's summary besides its ranks: numbers, where the name says so."""
    return real(value, what) if what.endswith(("_fraction", "_bytes")) else value


def _rate(value: Any, what: str) -> float:
    """A learning rate: of any size, as schedules with a factor above 1 leave no number out."""
    return value if isinstance(value, float) else real(value, what)


_SCORES = fields({"samples": number}, others=maybe(measured))  # loss, accuracy and the like
_STAGE = fields({"stage": integer, "ranks": each(integer)}, others=_share_or_bytes)
_COMMON: Mapping[str, Check] = {
    "seconds": real,
    "epoch": _count,
    "minibatch": _count,
    "minibatches": _count,
    "epoch_minibatches": lambda value, what: integer(value, what, least=1, most=_MOST),
    "loss": maybe(measured),  # None: nothing counted
    "counted": number,
    **dict.fromkeys(SIZE_UNITS, number),
    "learning_rate": _rate,
    "samples_per_second": number,
    "sent_bytes": number,
    "train": _SCORES,
    "validation": maybe(_SCORES),
    "best": fields({"metric": text, "value": measured, "epoch": _count, "minibatches": _count, "checkpoint": text}),
    "stopped_early": flag,
    "table": each(each(number)),  # the confusion matrix of an epoch, label by row
    "numbers": fields({}, others=measured),  # that a function on_epoch returned
    "validated_pipelines": each(_count),  # whose weights were validated: of several, the mean of theirs
    "stages": each(_STAGE),
    # Of a change of the plan, and of a summary all of them.
    **dict.fromkeys(("moved_bytes", "usual_seconds"), number),
    "predicted_gain_seconds": maybe(number),
    "pause_seconds": real,
    "reason": text,
    "parts": fields({}, others=real),
    "replans": each(fields({"minibatch": _count, "pause_seconds": real, "moved_bytes": number}, others=None)),
    "load": maybe(fields({}, others=maybe(real))),
    "split_into": _count,  # parts of a minibatch that did not fit under the memory limit whole
    "left_out": fields({"samples": _count, "names": each(text)}),  # too large for the memory limit
}
# In a step's row "samples" and the like are of one minibatch; a summary counts its epochs.
MERGES = fields(
    {"event": text, "seconds": real, "merge": _count, "pipeline": _count, "distance": number, "applied": flag}
)
DRIFTS = fields(
    {
        "event": text,
        "minibatch": _count,
        "began": _count,
        "rank": integer,
        "link": each(integer),
        "pipeline": integer,
        "recovered": flag,
        "factor": number,
        "before": number,
        "seconds": real,
    }
)
METRICS = fields(
    {
        **_COMMON,
        "event": text,
        "epochs": _count,
        "engine": text,
        "model": text,
        "schedule": text,
        "planner": text,
        "run_dir": text,
        "synthetic": flag,
        "loss_scale": number,
        # Of a rank that the plan leaves out: what it took over the work that it is timed on.
        "rank": integer,
        "probe_seconds": number,
    }
)


def read_fields(path: Path, check: Callable[[object, str], Fields], *, what: str) -> Fields:
    """Read a JSON object of a record. Raises DamagedRecord that names the file if it is not what it should be."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for
            raise InputError("file.not_regular", f"{path}: is not a file, expected a {what}; move it elsewhere")
        document = read_json(path, what=what)
        if not isinstance(document, dict):
            raise InputError("json.not_an_object", f"{path}: expected a {what} as a JSON object")
        if _depth(document) > _DEEPEST:
            raise InputError("json.too_deep", f"{path}: nested too deeply for a {what}; create the file again")
        return check(document, str(path))
    except InputError as error:
        raise DamagedRecord(error.code, str(error), **error.fields) from None


def read_beside(path: Path) -> tuple[str, ...]:
    """Read the names of the runs that ran alongside this one. Raises DamagedRecord if they are no list of names."""
    try:
        return texts(read_json(path, what="list of runs"), f"{path}: runs")
    except InputError as error:
        raise DamagedRecord(error.code, str(error), **error.fields) from None


def read_metrics(path: Path, event: str | None = None) -> list[Fields]:
    """Read rows of metrics, those of one `event` where it is named: the others are not even parsed.

    Raises DamagedRecord that names file and row if one of those rows is damaged.
    """
    return _read_events(path, event, METRICS)


def read_merges(path: Path, event: str | None = None) -> list[Fields]:
    """Read rows of merges between pipelines, those of one `event` where it is named. Raises as `read_metrics` does."""
    return _read_events(path, event, MERGES)


def read_drifts(path: Path, event: str | None = None) -> list[Fields]:
    """Read rows of what was found to drift, those of one `event` where it is named. Raises as `read_metrics` does."""
    return _read_events(path, event, DRIFTS)


def _read_events(path: Path, event: str | None, checked: Callable[[Any, str], Fields]) -> list[Fields]:
    try:
        rows = read_numbered_rows(path, wanted=_others_left_out(event) if event else None)
        rows_found = [checked(row, f"{path}:{line_number}") for line_number, row in rows]
    except InputError as error:
        raise DamagedRecord(error.code, str(error), **error.fields) from None
    return [row for row in rows_found if row["event"] == event or event is None]


def _others_left_out(event: str) -> Callable[[bytes], bool]:
    """A filter that passes rows of an event, and rows whose first letters do not show their event."""
    start, own_event = b'{"event": "', f'{{"event": "{event}"'.encode()
    return lambda line: line.startswith(own_event) or not line.startswith(start)


def _depth(document: Any) -> int:
    """Depth of nested objects and lists."""
    depth, level = 0, [document]
    while level:
        level = [
            item
            for part in level
            for item in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
        ]
        depth += 1
    return depth


LABELS = "labels.json"
_MOST_OF_A_NOTE = 10_000  # characters of a note


@dataclass(frozen=True)
class Labels:
    """Short words to find a run by, and a sentence on it."""

    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, folder: Path) -> "Labels":
        """Read those of a run's folder; none if nothing was written. Raises DamagedRecord for a damaged file."""
        path = folder / LABELS
        if not path.exists():
            return cls()
        try:
            document = read_json(path, what="run's labels")
            if not isinstance(document, dict) or not isinstance(document.get("note", ""), str):
                raise InputError("labels.not_tags", f"{path}: expected an object with tags and a note")
            return cls(tuple(texts(document.get("tags", []), f"{path}: tags")), document.get("note", ""))
        except InputError as error:
            raise DamagedRecord(error.code, str(error), **error.fields) from None

    @classmethod
    def read(cls, tags: str, note: str) -> "Labels":
        """Take what was typed: tags with commas or spaces between. Raises InputError for a note that is too long."""
        if len(note) > _MOST_OF_A_NOTE:
            raise InputError(
                "labels.note_too_long", f"the note has {len(note)} characters, expected at most {_MOST_OF_A_NOTE}"
            )
        return cls(tuple(dict.fromkeys(tags.replace(",", " ").split())), " ".join(note.split()))

    def write(self, folder: Path) -> None:
        """Write them alongside what the run wrote."""
        write_json(folder / LABELS, {"tags": list(self.tags), "note": self.note}, make_folder=False)


EVENTS = ("step", "epoch", "stage")


def flat_frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return one row for each of `rows`; of {"train": {"loss": 1}} the column is "train.loss". Lists are left out."""
    import pandas as pd  # here: it takes a second to come

    return pd.DataFrame([dict(_flat(row)) for row in rows])


def stage_frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return one row for each stage of each of `rows` that has stages: epochs and summaries."""
    import pandas as pd

    facts = [
        {key: row[key] for key in ("event", "epoch", "seconds") if key in row} | dict(_flat(stage))
        for row in rows
        for stage in row.get("stages") or ()
        if isinstance(stage, Mapping)
    ]
    return pd.DataFrame(facts)


def _flat(row: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif not isinstance(value, list | tuple):
            yield name, value
