"""A button that writes the figures of what is on screen: PDF, SVG, PNG, their table and where they come from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from ..plots import COLUMN_WIDTHS, export
from .html_view import HtmlView
from .messages import Messages

Figures = Mapping[str, tuple[go.Figure, pd.DataFrame]]
_WIDTHS = {
    "PDF 7 in (two columns)": 7.0,
    **{f"PDF {inches:g} in ({name})": inches for name, widths in COLUMN_WIDTHS.items() for inches in widths},
}


class Exporter:
    """Writes what `make` returns below `folder`; errors go to `messages`, paths beside the button.

    `origin` says what the numbers come from.
    """

    def __init__(
        self, messages: Messages, folder: Path, make: Callable[[], Figures], origin: Callable[[], Any] | None = None
    ) -> None:
        self.folder, self.make, self.origin = folder, make, origin or dict
        self.button = ipywidgets.Button(
            description="export", icon="download", tooltip=f"PDF, SVG, PNG, CSV and provenance in {folder}"
        )
        self.width = ipywidgets.Dropdown(options=_WIDTHS, tooltip="how wide the PDF is", layout={"width": "190px"})
        self.told = HtmlView()
        self.button.on_click(messages.shown(lambda _: self.export()))
        chosen = ipywidgets.HBox([self.button, self.width], layout={"flex_flow": "row wrap"})
        self.widget = ipywidgets.VBox([chosen, self.told])

    def export(self) -> list[Path]:
        """Write every figure; returns the paths. Raises InputError where nothing can be written or drawn."""
        self.button.disabled, self.told.value = True, "drawing…"
        written: list[Path] = []
        try:
            origin = self.origin()  # once: of what is drawn now, whatever is chosen meanwhile
            for name, (figure, table) in self.make().items():
                written += export(figure, self.folder / name, table=table, origin=origin, inches=self.width.value)
        finally:
            self.button.disabled = False
            names = dict.fromkeys(path.stem for path in written)
            self.told.value = f"written to {self.folder}: {', '.join(names)}" if names else ""
        return written
