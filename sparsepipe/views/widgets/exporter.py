"""The export button: writes the figures on screen as PDF, SVG and PNG, with their tables and provenance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ..plots import COLUMN_WIDTHS, export
from . import looks
from .html_view import HtmlView
from .messages import Messages

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
