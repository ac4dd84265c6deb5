"""The list of runs: what each record says of its run, settings and metrics by column, and which runs are marked."""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anywidget
import ipywidgets
import pandas as pd
import traitlets

from ...errors import DamagedRecord, InputError
from ...launching.supervisor import GOING_ON
from ...records import RunRecord
from ...records.record_files import STATES, Labels
from ...util.io.files import expanded
from ...util.text.numbers import Form, alike, as_given, as_measured, number_of
from ..glossary import definitions
from ..markup import Html
from ..plots.table import strategy
from ..plots.theme import tied
from ..plots.throughput import pace_of
from ..tables import Table, of_numbers, table_html
from . import looks
from .html_view import HtmlView, Messages
from .promised import same_data

COLUMNS = (
    *("run", "state", "strategy", "samples/s", "accuracy", "epochs"),
    *("data", "engine", "model", "started", "tags", "note"),
)
LABELS = ("tags", "note")  # shown where a run has any
SETTINGS = (
    *("batch_size", "learning_rate", "learning_rate_schedule", "optimizer", "seed", "voxel_size"),
    *("precision", "compression", "device", "threads", "num_points"),
)
METRICS = (
    "predicted samples/s",
    "minibatches",
    "train loss",
    "validation loss",
    "train accuracy",
    "seconds",
    "campaign",
)

_HEADS = {
    "accuracy": "validation accuracy",
    "train loss": "training loss",
    "train accuracy": "training accuracy",
    "seconds": "time since launch (s)",
}

PACES = ("samples/s", "predicted samples/s")
_MEANINGS = definitions("samples/s")

_PARTS = ("columns", "heads", "meanings", "numbers", "rows")  # of the document, which is JSON
_ALWAYS = ("run", "state", "samples/s", "accuracy")  # shown next to the settings that differ
_IF_THEY_DIFFER = ("strategy", "data", "engine", "model")
_DIGITS = 4  # of the largest number of a column
_ENDED = set(STATES) - set(GOING_ON)

Stamp = tuple[Any, ...]  # of a run's files
Kept = dict[Path, tuple[Stamp, dict[str, Any]]]


def runs_table(folder: Path | str, *, more: tuple[str, ...] = (), kept: Kept | None = None) -> pd.DataFrame:
    """Return one row for each run in `folder`, the newest first. For an unreadable record, `state` contains the reason.

    `more` are further columns, of SETTINGS and METRICS. An unfinished run has the throughput so far. `kept` stores the
    rows of ended runs between calls; they are read again if one of their files changes.
    """
    rows = [
        _row_or_kept(path.parent, more, {} if kept is None else kept) for path in expanded(folder).glob("*/plan.json")
    ]
    table = pd.DataFrame(rows, columns=[*COLUMNS, *more])
    return table.sort_values(["started", "run"], ascending=False, ignore_index=True)


def head(column: str) -> str:
    """Heading of a column, as in figures and on the launch board."""
    return _HEADS.get(column, column.replace("_", " "))


def meaning(column: str) -> str:
    """Definition of a column's numbers; empty if its name says it."""
    return _MEANINGS.get(column, "")


def ordered(table: pd.DataFrame, column: str, *, descending: bool) -> pd.DataFrame:
    """The table sorted by a column: numbers by size, "75.0%" among them; texts after them, what is empty last."""
    if column not in table:
        return table
    cells = list(table[column])
    filled = [k for k, cell in enumerate(cells) if cell not in ("", None)]
    own = sorted(filled, key=lambda k: _key(cells[k]), reverse=descending)
    return table.iloc[[*own, *(k for k in range(len(cells)) if k not in set(filled))]].reset_index(drop=True)


def _key(cell: object) -> tuple[bool, float, str]:
    try:
        return False, float(str(cell).rstrip("%")), ""
    except ValueError:
        return True, 0.0, str(cell)


def _row_or_kept(folder: Path, more: tuple[str, ...], kept: Kept) -> dict[str, Any]:
    stamp = (more, *_stamp(folder))
    if folder in kept and kept[folder][0] == stamp:
        return kept[folder][1]
    row = _row(folder, more)
    if row["state"] in _ENDED:
        kept[folder] = stamp, row
    return row


def _stamp(folder: Path) -> Stamp:
    """Modification time and length of each file of a run."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return (object(),)  # like no other
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in found))


def _row(folder: Path, more: tuple[str, ...]) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((*COLUMNS, *more), "")
    row["run"] = folder.name
    try:
        row |= _labels(folder)
        record = RunRecord.load(folder)
        row |= {"state": record.status["state"], "strategy": strategy(record.plan)}
        row |= {"model": record.model, "data": record.origin.get("facts", {}).get("data", "")}
        row |= {"engine": record.config.get("engine", ""), "started": _started(str(record.origin.get("created", "")))}
        epochs, summary = record.metrics("epoch"), record.metrics("summary")
        row["epochs"] = len(epochs)
        if summary:
            row["engine"] = summary[-1].get("engine", "")
        if (pace := pace_of(record)) is not None:
            row["samples/s"] = float(pace)  # rounded where it is shown, once
        accuracy = (epochs[-1].get("validation") or {}).get("accuracy") if epochs else None
        row["accuracy"] = "" if accuracy is None else f"{accuracy:.1%}"
        row |= _asked(record, epochs, more)
    except (InputError, OSError) as error:
        row["state"] = f"cannot be read: {error}"
    return row


def differing_settings(records: Sequence[RunRecord], among: Sequence[int]) -> dict[str, list[object]]:
    """Each setting that differs between the runs at `among`, with its value in every run.

    Data, engine and model have their own columns.
    """
    configs = []
    for record in records:
        try:
            configs.append(dict(record.config))
        except DamagedRecord:
            configs.append({})
    names = [name for name in dict.fromkeys(name for config in configs for name in config) if name not in COLUMNS]
    values = {name: [config.get(name) for config in configs] for name in names}
    return {name: cells for name, cells in values.items() if len({json.dumps(cells[k]) for k in among}) > 1}


def deltas(table: pd.DataFrame, records: Sequence[RunRecord], baseline: int) -> dict[tuple[str, str], str]:
    """(run, column) → difference from the run at `baseline`: throughput in per cent, accuracy in points, losses.

    Runs on other data or minibatches have none.
    """
    differences = {}
    for k, record in enumerate(records):
        if k == baseline or not same_data(record, records[baseline]):
            continue
        for column, form in _DELTAS.items():
            if column in table and (text := form(table[column][k], table[column][baseline])):
                differences[record.name, column] = text
    return differences


def _relative(value: object, base: object) -> str:
    if isinstance(value, float) and isinstance(base, float) and base > 0:
        return f"{value / base - 1:+.0%}"
    return ""


def _points(value: object, base: object) -> str:
    texts = [str(cell).rstrip("%") for cell in (value, base)]
    return f"{float(texts[0]) - float(texts[1]):+.1f} points" if all(texts) else ""


def _difference(value: object, base: object) -> str:
    return f"{value - base:+.3f}" if isinstance(value, float) and isinstance(base, float) else ""


_DELTAS: Mapping[str, Callable[[object, object], str]] = {
    "samples/s": _relative,
    "accuracy": _points,
    "train loss": _difference,
    "validation loss": _difference,
}


def _started(created: str) -> str:
    """ "2026-11-27 17:18:29 UTC"; a day, or what is no time, as it was written."""
    try:
        time = datetime.fromisoformat(created)
    except ValueError:
        return created
    return created if time.tzinfo is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _labels(folder: Path) -> dict[str, str]:
    """Tags and note; why they cannot be read in the note's place, which says nothing of the run."""
    try:
        labels = Labels.of(folder)
    except InputError as error:
        return {"note": f"cannot be read: {error}"}
    return {"tags": " ".join(labels.tags), "note": labels.note}


def _asked(record: RunRecord, epochs: list[dict[str, Any]], more: tuple[str, ...]) -> dict[str, Any]:
    """The cells of the columns that were asked for besides; empty if the record does not tell."""
    told = {name: record.config.get(name) for name in more if name in SETTINGS}
    if set(more) & set(METRICS):
        last = epochs[-1] if epochs else {}
        estimate = getattr(record.plan, "estimate", None) if record.knows_samples else None
        predicted = None if estimate is None else record.config.get("batch_size", 0) / estimate.period_seconds
        train, validation = last.get("train") or {}, last.get("validation") or {}
        steps = record.metrics("step")
        told |= {
            "predicted samples/s": predicted,
            "minibatches": max((row["minibatch"] + 1 for row in steps), default=None),
            "train loss": train.get("loss"),
            "validation loss": validation.get("loss"),
            "train accuracy": train.get("accuracy"),
            "seconds": max((row["seconds"] for row in record.metrics()), default=None),
            "campaign": record.campaign,
        }
    return {name: "" if (cell := told.get(name)) is None else cell for name in more}


class RunsListing:
    """The runs below `folder` that have all words of the filter: `table` has them, `marks` lists them to be marked."""

    def __init__(self, folder: Path, messages: Messages) -> None:
        self.folder = folder
        self.filter = looks.Text(
            description="filter",
            placeholder="words to filter rows by",
            tooltip="shows only runs whose row contains all these words",
            layout={"width": "300px"},
            style=looks.OWN_WIDTH,
        )
        self.columns = looks.SelectMultiple(
            description="more columns",
            tooltip="additional columns: settings and metrics",
            options=[(head(name), name) for name in (*SETTINGS, *METRICS)],
            rows=3,
            layout={"width": "330px"},
            style=looks.OWN_WIDTH,
        )
        self.again = looks.Button(
            description="read again", icon="refresh", tooltip="reread the run folder", layout={"width": "120px"}
        )
        self.diff = looks.Checkbox(
            description="diff only",
            indent=False,
            tooltip="shows the settings that differ: between the runs marked, or between all listed",
            layout={"width": "auto"},
        )
        self.flag = looks.Button(
            description="set baseline",
            icon="flag",
            tooltip="compare the others with the marked run; again: clear the baseline",
            layout={"width": "130px"},
        )
        self.listed, self.marks = HtmlView(), RunsList()
        self.table, self.baseline = pd.DataFrame(), ""  # the run that the others are compared with
        self._kept: Kept = {}
        update = messages.shown(lambda _: self.update())
        self.flag.on_click(messages.shown(lambda _: self.set_baseline()))
        for chooser in (self.filter, self.columns, self.diff):
            chooser.observe(update, names="value")
        self.marks.observe(update, names="sort")
        self.marks.observe(messages.shown(self._marked), names="value")
        self.again.on_click(update)

    @property
    def rows(self) -> list[ipywidgets.Widget]:
        """Widgets to display: the button comes among those of the table."""
        choosers = [self.filter, self.columns, self.diff, self.flag]
        return [looks.HBox(choosers, layout={"flex_flow": "row wrap"}), self.marks, self.listed]

    @property
    def chosen(self) -> list[RunRecord]:
        """The marked records. Raises InputError if none is marked."""
        if not self.marks.value:
            raise InputError("runs.none_marked", "no run is marked; click one or more in the list")
        names = sorted(self.marks.value, key=lambda name: name != self.baseline)  # the baseline first
        return [RunRecord.load(self.folder / name) for name in names]

    def _marked(self, _: object) -> None:
        if self.diff.value:  # of the runs that are marked
            self.update()

    def set_baseline(self) -> None:
        """Compare the others with the marked run; clear the baseline if it is that run, or none is marked.

        Raises InputError if several are marked.
        """
        marked = [name for name in self.marks.value if name != self.baseline]
        if len(marked) > 1:
            raise InputError(
                "runs.several_baselines", f"{len(marked)} runs are marked, but only one can be the baseline; mark one"
            )
        self.baseline = marked[0] if marked else ""
        self.flag.description = "clear baseline" if self.baseline and not marked else "set baseline"
        self.update()

    def update(self) -> None:
        """Read the folder again, apply the filter, and sort."""
        table = runs_table(self.folder, more=tuple(self.columns.value), kept=self._kept)
        table = ordered(table, str(self.marks.sort["column"]), descending=bool(self.marks.sort["descending"]))
        words = self.filter.value.lower().split()
        text = [" ".join(map(str, row)).lower() for row in table.itertuples(index=False)]
        passing = [k for k, row in enumerate(text) if all(word in row for word in words)]
        self.table = table.iloc[passing].reset_index(drop=True)
        self.listed.value = _counted(len(self.table), self.folder, len(table))
        names = [str(name) for name in self.table.run]
        records = [RunRecord(self.folder / name) for name in names]
        shown = self.table.drop(columns=[name for name in LABELS if not any(self.table[name])])
        settings: tuple[str, ...] = SETTINGS
        if self.diff.value:
            marked = [k for k, name in enumerate(names) if name in self.marks.value]
            shown, settings = _differing(self.table, records, marked, more=tuple(self.columns.value))
        compared = deltas(self.table, records, names.index(self.baseline)) if self.baseline in names else {}
        self.marks.show(shown, settings=settings, compared=compared, baseline=self.baseline)


def _differing(
    table: pd.DataFrame, records: Sequence[RunRecord], marked: Sequence[int], *, more: tuple[str, ...]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The table with results and the settings that differ: between the runs at `marked` if they are several."""
    among = list(marked) if len(marked) > 1 else list(range(len(records)))
    differing = differing_settings(records, among)
    facts = [name for name in _IF_THEY_DIFFER if table[name].iloc[among].nunique() > 1]
    shown = table[[*_ALWAYS, *facts, *(name for name in more if name in METRICS)]].copy()
    for name, values in differing.items():
        shown[name] = ["" if value is None else value for value in values]
    return shown, tuple(differing)


def _counted(shown: int, folder: Path, total: int) -> Html:
    if not total:
        return Html("<i>No runs in {} yet: launch one</i>").format(folder)
    if not shown:
        return Html("<i>None of the {} runs has all these words</i>").format(total)
    return Html("{} of {} in {}").format(shown, number_of(total, "run"), folder)


class RunsList(looks.Control, anywidget.AnyWidget):
    """`options` are the runs listed, `value` those that are marked; `sort` is the column that a page's click chose."""

    _esm = Path(__file__).with_name("runs_list.js")
    document = traitlets.Unicode(json.dumps({**dict.fromkeys(_PARTS, []), "baseline": ""})).tag(sync=True)
    value = traitlets.Tuple(()).tag(sync=True)
    sort = traitlets.Dict({"column": "started", "descending": True}).tag(sync=True)
    options: tuple[str, ...] = ()

    def show(
        self,
        table: pd.DataFrame,
        *,
        settings: Collection[str] = (),
        compared: Mapping[tuple[str, str], str] = MappingProxyType({}),
        baseline: str = "",
    ) -> None:
        """List the runs of a table, whose first column is their names; marks of runs that are gone are dropped.

        `compared`: (run, column) → difference from the run `baseline`, written behind the number.
        Numbers of `settings` are written as they were given, paces with three digits, those of another column with as
        many decimals each.
        """
        columns = {name: list(table[name]) for name in table.columns}
        self.options = tuple(next(iter(columns.values())))
        told = [*columns.items()][1:]
        forms = [as_given if name in settings else as_measured if name in PACES else None for name, _ in told]
        cells = [_shown(own, form) for (_, own), form in zip(told, forms, strict=True)]
        numbers = [any(map(_is_number, own)) or of_numbers(cells[k]) for k, (_, own) in enumerate(told)]
        for (name, _), texts in zip(told, cells, strict=True):
            texts[:] = [
                f"{text} ({compared[run, name]})" if (run, name) in compared else text
                for run, text in zip(self.options, texts, strict=True)
            ]
        rows = [list(row) for row in zip(self.options, *cells, strict=True)]
        names = {"columns": list(columns), "heads": [*map(head, columns)], "meanings": [*map(meaning, columns)]}
        self.document = json.dumps({**names, "numbers": [False, *numbers], "rows": rows, "baseline": baseline})
        self.value = tuple(name for name in self.value if name in self.options)

    def static_picture(self) -> dict[str, str]:
        """The list as a table of HTML; empty without a run."""
        document = json.loads(self.document)
        listed = table_html(Table(document["heads"], document["rows"]), label="runs")
        return {"text/html": str(listed)} if document["rows"] else {}

    @traitlets.validate("value")
    def _listed(self, proposal: dict[str, Any]) -> tuple[str, ...]:
        """Each once; a page may still know of runs that are gone."""
        return tuple(dict.fromkeys(name for name in proposal["value"] if name in self.options))


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cells: Sequence[Any], form: Form | None) -> list[str]:
    """A column as text: four digits of its largest number; of words no line ends between a name and its count."""
    fractions = [cell for cell in cells if isinstance(cell, float)]
    form = form or alike(fractions, _DIGITS)
    return [form(cell) if _is_number(cell) and fractions else tied(str(cell)) for cell in cells]
