"""A widget for a plotly figure, which is replaced as a whole; plotly.js is loaded once a page.

plotly's FigureWidget sends 5 MB with every instance and a message for every trace it changes, and breaks when two
threads change it. Here all views of a page share one copy of plotly.js: Jupyter serves it as a static file where its
folder can be written to, else the kernel sends it once.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, reduce
from pathlib import Path
from typing import Any

import anywidget
import plotly
import plotly.graph_objects as go
import traitlets

from ...util.io.files import write_atomic
from ..markup import Html
from ..plots.dark import GRID, LIGHT_INK, LIT, LIT_POINTS, LIT_SHADES, LIT_TEXT, LIT_TONES
from ..plots.export import kept_picture
from ..plots.theme import DOUBT, FONT, INK, MODEBAR, heading_of
from . import looks
from .looks import page_code

_SOURCE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_EXTENSION = "sparsepipe-plotly"
_NO_PICTURE = "Live figure without a stored picture: call sparsepipe.plots.keep_pictures() before it is shown."


def _page_code() -> str:
    """The code of a figure's page, with the colours and the font of all figures."""
    lit = LIT | LIT_SHADES | LIT_TONES | LIT_POINTS
    told = {"LIT": json.dumps(lit), "LIT_TEXT": json.dumps(LIT_TEXT)}
    told |= {"LIGHT_INK": LIGHT_INK, "GRID": GRID, "INK": INK, "DOUBT": DOUBT, "FONT": FONT}
    code = page_code("names", "svg_marks", "timeline", "plot_view")
    return reduce(lambda text, name: text.replace(f"@{name}@", told[name]), told, code)


class PlotView(looks.Control, anywidget.AnyWidget):
    """Show a figure; `show` replaces it. `clicked` contains the last clicked point: trace, position and custom data."""

    _esm = _page_code()
    _css = Path(__file__).with_name("explorer.css")
    figure = traitlets.Unicode("{}").tag(sync=True)  # JSON, with the `heading` that the page writes above it
    config = traitlets.Dict(MODEBAR).tag(sync=True)
    version = traitlets.Unicode(plotly.__version__).tag(sync=True)
    asset = traitlets.Unicode("").tag(sync=True)
    clicked = traitlets.Dict({}).tag(sync=True)

    def __init__(
        self,
        figure: go.Figure | None = None,
        *,
        scroll_zoom: bool = False,
        picture: Callable[[], str] | None = None,
        **settings: Any,
    ) -> None:
        """`picture`: what returns the figure as SVG without a browser, for outputs that are read without a kernel."""
        config = {**MODEBAR, "scrollZoom": scroll_zoom}
        super().__init__(asset=_served(), config=config, **settings)
        self._picture = picture
        self.on_msg(self._answer)
        if figure is not None:
            self.show(figure)

    def show(self, figure: go.Figure, *, timeline: Mapping[str, object] | None = None) -> None:
        """Replace the figure. `timeline`: `timelines` of view_model.py, which a page shows instead of the plot."""
        heading = heading_of(figure)
        told = json.dumps({"heading": heading and asdict(heading), "timeline": timeline})
        self.figure = f"{figure.to_json()[:-1]},{told[1:]}"  # one message: neither is drawn without the other

    def static_picture(self) -> dict[str, str]:
        """Picture of the figure after `plots.keep_pictures()`, or one that needs no browser; else title and note."""
        document = json.loads(self.figure)
        heading, _ = document.pop("heading", None), document.pop("timeline", None)
        if not document:
            return {}
        if picture := kept_picture(go.Figure(document, skip_invalid=True)):
            return picture
        if self._picture is not None:
            return {"image/svg+xml": self._picture()}
        lines = [heading["title"], *heading["notes"], heading["doubt"]] if heading else []
        text = Html("<br>").join(filter(None, [*lines, _NO_PICTURE]))
        return {"text/html": text}

    def on_click(self, act: Callable[[dict[str, Any]], None]) -> None:
        """Call `act` with each clicked point."""
        self.observe(lambda change: act(change["new"]), names="clicked")

    def _answer(self, _: object, content: object, __: object) -> None:
        if isinstance(content, dict) and content.get("want") == "plotly":
            self.send({"plotly": _SOURCE.read_text(encoding="utf-8")})


@cache
def _served() -> str:
    """Put plotly.js where Jupyter serves it from, once an environment; "" where that cannot be."""
    name = f"plotly-{plotly.__version__}.min.js"
    target = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / _EXTENSION / "static" / name
    try:
        if not target.exists() or target.stat().st_size != _SOURCE.stat().st_size:
            write_atomic(target, _SOURCE.read_bytes())
    except OSError:
        return ""
    return f"{_EXTENSION}/static/{name}"
