"""Figures as cells show them: as wide as the page has room, their notes in lines for the narrowest page.

A figure keeps its own size as a value: what is exported, and the picture that a notebook keeps of it, have that.
"""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from ...util.host.left_out import ADDRESSES, left_out
from .theme import MODEBAR, WIDTH, in_place

with left_out(ADDRESSES):  # which renderers bring by way of nbformat
    from plotly.io.base_renderers import NotebookRenderer, PlotlyRenderer

    for _renderer in ("plotly_mimetype", "notebook", "notebook_connected", "browser"):
        pio.renderers[_renderer].config = {**(pio.renderers[_renderer].config or {}), **MODEBAR}


def as_wide_as_the_page(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure's dict without its width, if it is one of ours; any other stays as it is."""
    layout = document.get("layout") or {}
    if not isinstance(layout.get("meta"), Mapping) or "notes" not in layout["meta"]:
        return dict(document)
    shown = in_place(go.Figure(layout=layout), WIDTH).update_layout(width=None, autosize=True)
    return {**document, "layout": shown.to_dict()["layout"]}


class _Page(PlotlyRenderer):
    """plotly's own for JupyterLab, with figures of ours as wide as the cell."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, Any]:
        return super().to_mimebundle(as_wide_as_the_page(fig_dict))


class _Notebook(NotebookRenderer):
    """plotly's own for pages that need HTML, with figures of ours as wide as the cell."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, Any]:
        return super().to_mimebundle(as_wide_as_the_page(fig_dict))


for _renderer in ("plotly_mimetype", "jupyterlab", "nteract", "vscode"):
    pio.renderers[_renderer] = _Page(config=pio.renderers[_renderer].config)
pio.renderers["notebook"] = _Notebook(config=pio.renderers["notebook"].config)
if pio.renderers.default:
    pio.renderers.default = pio.renderers.default  # it holds the renderers themselves
