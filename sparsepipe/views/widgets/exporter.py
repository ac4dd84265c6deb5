"""The export button: writes the figures on screen as PDF, SVG and PNG, with their tables and provenance.

From the explorer's picture to a job, the plan is saved as a file that `sparsepipe train` takes, or on a launch board.
"""

import glob
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...values.plan import Plan
from ...values.profile import Profile
from ..markup import Html
from ..plots import COLUMN_WIDTHS, export
from . import looks
from .html_view import HtmlView, Messages
from .partition_view import PartitionView, SettledButton
from .pipelines_planning import PipelinesAnswer
from .planning import Answer
from .promised import MadeFor
from .run_settings import LaunchDrawer

Figures = Mapping[str, tuple[go.Figure, pd.DataFrame]]
_WIDTHS = {
    "7 in (two columns)": 7.0,
    **{f"{inches:g} in ({name})": inches for name, widths in COLUMN_WIDTHS.items() for inches in widths},
}


@dataclass(frozen=True)
class Export:
    """The figures to write, and the provenance of their numbers, taken at the same moment."""

    figures: Figures
    origin: Any


class Exporter:
    """Writes what `make` returns below `folder`; errors go to `messages`, paths next to the button."""

    def __init__(
        self,
        messages: Messages,
        folder: Path,
        make: Callable[[], Export],
        *,
        button: ipywidgets.Button | None = None,
    ) -> None:
        self.folder, self.make, self.blocked = folder, make, ""
        self.button = button or looks.Button()
        self.button.description, self.button.icon = "export", "download"
        self.width = looks.Dropdown(
            options=_WIDTHS,
            description="PDF",
            tooltip="width of the PDF",
            layout={"width": "210px"},
            style=looks.OWN_WIDTH,
        )
        self.told = HtmlView()
        self.button.on_click(messages.shown(lambda _: self.export()))
        chosen = looks.HBox([self.button, self.width], layout={"flex_flow": "row wrap"})
        self.widget = looks.VBox([chosen, self.told])
        self.block("")

    def block(self, reason: str) -> None:
        """Write nothing until this is called again without a reason."""
        self.blocked = reason
        with self.button.hold_sync():
            self.button.disabled = bool(reason)
            self.button.tooltip = reason or f"PDF, SVG, PNG, CSV and provenance in {self.folder}"

    def export(self) -> list[Path]:
        """Write every figure; returns the paths. Raises InputError if nothing can be written or drawn."""
        if self.blocked:  # a click in a cell is not held up by a disabled button
            raise InputError("export.blocked", f"nothing was exported: {self.blocked}")
        self.button.disabled, self.told.value = True, "Drawing…"
        written: list[Path] = []
        try:
            made = self.make()
            for name, (figure, table) in made.figures.items():
                stem = self.folder / name
                written += export(figure, stem, table=table, origin=made.origin, inches=self.width.value)
        finally:
            self.button.disabled = bool(self.blocked)
            names = dict.fromkeys(path.stem for path in written)
            self.told.value = f"Written to {self.folder}: {', '.join(names)}" if names else ""
        return written


_SMALL = Html("<div style='font-size:12px;line-height:1.4;overflow-wrap:anywhere'>{}</div>")
_SAVED = Html("Saved: <code>{}</code>; to train it: <code>{}</code>")
_APPLIED = Html("The job on the launch board prepares the switch to {}, saved as <code>{}</code>")
_OPENED = Html("{} is on the launch board, saved as <code>{}</code>")


class LaunchTarget(Protocol):
    """A place to launch a plan: a LaunchBoard."""

    drawer: LaunchDrawer

    def add(self, plan: Plan, name: str, *, made_for: MadeFor | None) -> Any: ...

    def replan(self, name: str | None, plan: Plan, *, called: str) -> Any: ...


class PlanSaver:
    """Buttons for what `answer` returns: `buttons` *save plan* and *launch ▸*, in `widget` *apply to the job*.

    Files are numbered, PLANNER-3-stages-001.json or PLANNER-2-pipelines-001.json, and none is overwritten. Without a
    `board` there is the first button alone.
    """

    def __init__(
        self,
        profile: Profile,
        view: PartitionView,
        messages: Messages,
        answer: Callable[[], Answer | PipelinesAnswer],
        *,
        folder: Path,
        board: LaunchTarget | None,
    ) -> None:
        self.profile, self.folder, self.board, self._answer = profile, folder, board, answer
        self.save_button = SettledButton(view, description="save plan", icon="save")
        self.launch_button = SettledButton(view, description="launch ▸")
        self.apply_button = SettledButton(view, description="apply to the job", icon="random")
        self.told = HtmlView()
        self.save_button.on_click(messages.shown(lambda _: self.save()))
        self.launch_button.on_click(messages.shown(lambda _: self.open()))
        self.apply_button.on_click(messages.shown(lambda _: self.apply()))
        self.buttons = [self.save_button, *([self.launch_button] if board is not None else [])]  # of the header
        self.widget = looks.VBox([*([self.apply_button] if board is not None else []), self.told])
        self.block("")

    def block(self, reason: str) -> None:
        """Save and launch nothing until this is called again without a reason."""
        for button, tip in (
            (self.save_button, f"save as a file in {self.folder} for sparsepipe train"),
            (self.launch_button, "save the plan, and choose epochs, learning rate and batch size before it starts"),
            (self.apply_button, "save the plan and switch the running job of the launch board to it"),
        ):
            with button.hold_sync():
                button.disabled, button.tooltip = bool(reason), reason or tip

    def save(self) -> Path:
        """Write the plan; returns the path. Raises InputError while there is no plan, or if it cannot be written."""
        answer = self._answer()
        path = self._write(answer.plan)
        model = self.profile.origin.get("model")
        command = ["sparsepipe", "train", str(path), *(["--model", str(model)] if model else []), "--data"]
        self.told.value = _SMALL.format(_SAVED.format(path, f"{shlex.join(command)} DATA"))
        return path

    def open(self) -> str:
        """Write the plan and show it on the launch board; returns its name there. Raises InputError as `save` does."""
        answer, board = self._answer(), self._board()
        path = self._write(answer.plan)
        board.add(answer.plan, path.stem, made_for=self._made_for(answer))
        board.drawer.open(path.stem)
        self.told.value = _SMALL.format(_OPENED.format(path.stem, path))
        return path.stem

    def apply(self) -> str:
        """Write the plan, and have the job that runs on the launch board switch to it; returns the plan's name.

        Raises InputError as `save` does, and if no job runs, several do, or the plan cannot be its.
        """
        answer, board = self._answer(), self._board()
        path = self._write(answer.plan)
        board.replan(None, answer.plan, called=path.stem)
        self.told.value = _SMALL.format(_APPLIED.format(path.stem, path))
        return path.stem

    def _board(self) -> LaunchTarget:
        if self.board is None:
            raise InputError(
                "explorer.no_board", "the explorer has no launch board; pass board=LaunchBoard({}, config, runs='runs')"
            )
        return self.board

    def _made_for(self, answer: Answer | PipelinesAnswer) -> MadeFor:
        """Return the settings for which the estimate is valid; none if boundaries are assumed compressed."""
        settings = answer.settings
        size = settings.batch_size or self.profile.batch_size or 0
        batch_size = size if settings.compression == 1 else 0
        return MadeFor(batch_size, settings.voxel_size, self.profile, answer.cluster)

    def _write(self, plan: Plan) -> Path:
        count, what = (len(plan.members), "pipeline") if plan.members else (len(plan.stages), "stage")
        parts = f"{count}-{what}{'s' if count > 1 else ''}"
        stem = f"{plan.planner.replace(' ', '-')}-{parts}"
        try:
            return plan.save(_free(self.folder, stem))
        except OSError as error:
            raise InputError(
                "out.unwritable", f"{error.filename}: the plan cannot be written ({error.strerror})"
            ) from None


def _free(folder: Path, stem: str) -> Path:
    """A name that does not exist yet: STEM-004.json after STEM-003.json."""
    numbers = [path.stem.removeprefix(f"{stem}-") for path in folder.glob(f"{glob.escape(stem)}-*.json")]
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return folder / f"{stem}-{last + 1:03d}.json"
