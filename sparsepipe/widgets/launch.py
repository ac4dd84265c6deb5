"""The launch board: a button for each plan, live curves while it trains, a cancel button, its end in words."""

import html
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets

from .. import plots
from ..errors import InputError, RunFailed
from ..launchers import Job, launch
from ..plan import Plan
from ..runtime.config import RunConfig
from .messages import Messages
from .plot_view import PlotView

_SECONDS = 0.4  # between two looks at the jobs


class LaunchBoard:
    """Launches plans under one configuration. `jobs` holds them by name; `widget` is what to display.

    One thread follows all jobs, and changes of widgets pass one lock. Display `widget` again after the page was closed.
    """

    def __init__(self, plans: Mapping[str, Plan], config: RunConfig, *, runs: Path | str) -> None:
        self.plans, self.config, self.runs = dict(plans), config, Path(runs)
        self.jobs: dict[str, Job] = {}
        self.messages = Messages()
        self.curves = PlotView()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._lines = {name: _Line(self, name) for name in self.plans}
        self.widget = ipywidgets.VBox([self.messages, *(line.widget for line in self._lines.values()), self.curves])

    def launch(self, name: str) -> Job:
        """Launch one plan in a new run folder. Raises InputError where it runs already or cannot."""
        with self._lock:
            if name in self.jobs and self.jobs[name].running:
                raise InputError(f"{name} is running already: cancel it first, or wait")
            self.jobs[name] = launch(self.plans[name], self.config, run_dir=self._new_folder(name))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._follow, name="launch board", daemon=True)
                self._thread.start()
            return self.jobs[name]

    def cancel(self, name: str) -> None:
        """End one job; its record stays."""
        if name in self.jobs:
            self.jobs[name].cancel()

    def update(self) -> None:
        """Show how all jobs stand now."""
        with self._lock:
            for name, job in self.jobs.items():
                self._lines[name].show(job)
            rows = {name: job.rows for name, job in self.jobs.items()}
            if any(row["event"] == "step" for found in rows.values() for row in found):
                self.curves.show(plots.progress(rows))

    def _follow(self) -> None:
        pause = threading.Event()
        look = self.messages.shown(self.update)
        while any(job.running for job in list(self.jobs.values())):
            look()
            pause.wait(_SECONDS)
        look()

    def _new_folder(self, name: str) -> Path:
        stem = f"{self.config.model}-{name}"
        number = max((int(path.name[-3:]) for path in self.runs.glob(f"{stem}-[0-9][0-9][0-9]")), default=0) + 1
        return self.runs / f"{stem}-{number:03d}"


class _Line:
    """One plan's buttons, progress and state."""

    def __init__(self, board: LaunchBoard, name: str) -> None:
        self.board, self.name = board, name
        narrow = ipywidgets.Layout(width="90px")
        self.start = ipywidgets.Button(description="launch", button_style="primary", layout=narrow, icon="play")
        self.stop = ipywidgets.Button(description="cancel", layout=narrow, disabled=True, icon="stop")
        self.progress = ipywidgets.IntProgress(max=1, layout=ipywidgets.Layout(width="180px"))
        self.state = ipywidgets.HTML("not launched")
        label = ipywidgets.HTML(f"<b>{html.escape(name)}</b>", layout=ipywidgets.Layout(width="130px"))
        self.start.on_click(board.messages.shown(self._start))
        self.stop.on_click(board.messages.shown(lambda _: board.cancel(name)))
        self.widget = ipywidgets.HBox([label, self.start, self.stop, self.progress, self.state])

    def _start(self, _: Any) -> None:
        self.start.disabled, self.stop.disabled = True, False
        self.state.value = "starting worker processes…"
        try:
            self.board.launch(self.name)
        except BaseException:
            self.start.disabled, self.stop.disabled = False, True
            self.state.value = "not launched"
            raise

    def show(self, job: Job) -> None:
        rows = job.rows
        done = sum(row["event"] == "step" for row in rows)
        epochs = [row for row in rows if row["event"] == "epoch"]
        per_epoch = epochs[0].get("minibatches", 0) if epochs else 0
        total = per_epoch * self.board.config.epochs
        self.progress.max, self.progress.value = max(total, done, 1), done
        if job.running:
            self.state.value = _running(rows, done, total, epochs)
            return
        self.start.disabled, self.stop.disabled = False, True
        self.state.value = _ended(job)


def _running(rows: Any, done: int, total: int, epochs: list[dict]) -> str:
    if not done:
        return "starting worker processes…"
    seconds = rows[-1]["seconds"]
    left = f", about {seconds / done * (total - done):.0f} s left" if total > done else ""
    accuracy = (epochs[-1].get("validation") or {}).get("accuracy") if epochs else None
    told = f", validation accuracy {accuracy:.1%}" if accuracy is not None else ""
    return f"minibatch {done}{f' of {total}' if total else ''}{told}{left}"


def _ended(job: Job) -> str:
    try:
        summary = job.wait(timeout=1)
    except (InputError, RunFailed) as error:
        return f"<span style='color:#D55E00'>{html.escape(str(error))}</span>"
    accuracy = (summary.get("validation") or {}).get("accuracy")
    told = f", validation accuracy {accuracy:.1%}" if accuracy is not None else ""
    return f"finished: {summary['samples_per_second']:.0f} samples/s{told}"
