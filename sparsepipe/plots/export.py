"""A figure on disk: the picture as PDF, SVG and PNG, its table as CSV, and where its numbers came from as JSON.

The same figure gives the same bytes: dates and random ids of the browser that draws it are taken out.
"""

import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio

from ..errors import InputError
from ..files import write_atomic, write_json
from ..record import Origin, RunRecord

FORMATS = ("pdf", "svg", "png")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_SCALE = 2  # pixels of the PNG for each of the figure's
# Inches of a column and of the text of common venues: what a PDF's width is chosen from.
COLUMN_WIDTHS = {"IEEE": (3.5, 7.16), "ACM": (3.33, 7.0), "ICML": (3.25, 6.75), "NeurIPS": (5.5,), "LNCS": (4.8,)}
INCHES = 7.0  # the text of a page with two columns, where nothing else is asked for
_CSS_INCH = 96  # pixels
_SMALLEST = 0.7  # a figure is drawn no smaller: its 13 pixels are then 6.8 points
_DATE = "D:20000101000000+00'00'"
_lock = threading.Lock()


@dataclass
class _Server:
    """One browser for all figures of this process; a forked child starts its own."""

    process: int | None = None
    drawn: dict[str, Any] = field(default_factory=dict)


_server = _Server()


def export(
    figure: go.Figure, stem: Path | str, *, table: pd.DataFrame, origin: Any, inches: float = INCHES
) -> list[Path]:
    """Write `<stem>.csv`, `.json`, `.pdf`, `.svg` and `.png`, each whole or not at all; returns their paths.

    `origin` says what the numbers came from: a mapping, an `Origin`, a run's record, or several of them. The PDF is
    `inches` wide; where that would make its text too small to read, the figure is laid out anew (see `fitted`).
    Raises InputError where the folder cannot be written to, and, after the table and the origin are written, where no
    Chromium is found to draw with.
    """
    stem = Path(stem)
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("csv", "json", *FORMATS)]
    try:
        write_atomic(paths[0], table.to_csv(index=False))
        write_json(paths[1], provenance(figure, stem.name, origin))
        if browser() is None:
            raise InputError(
                f"{stem}: no Chromium to draw PDF, SVG and PNG with, only the table and its origin were written; "
                "install it (Debian: apt install chromium) or name it in BROWSER_PATH"
            )
        printed, scale = fitted(figure, inches)
        drawn = {"pdf": (printed, scale), "svg": (figure, 1), "png": (figure, _SCALE)}
        for path, suffix in zip(paths[2:], FORMATS, strict=True):
            write_atomic(path, normalised(_drawn(drawn[suffix][0], suffix, drawn[suffix][1]), suffix))
    except OSError as error:
        raise InputError(
            f"{stem.parent}: cannot be written to ({error.strerror or error}); choose another folder"
        ) from None
    return paths


def fitted(figure: go.Figure, inches: float) -> tuple[go.Figure, float]:
    """(the figure, the scale to draw it at) for a PDF `inches` wide, its text never below 7 points or nearly so.

    A figure too wide for that is laid out narrower, its legend below. Raises InputError for less than 2 inches.
    """
    if not 2 <= inches <= 20:
        told = ", ".join(f"{name} {' or '.join(map(str, widths))}" for name, widths in COLUMN_WIDTHS.items())
        raise InputError(f"a figure {inches:g} inches wide: expected 2 to 20 ({told})")
    scale = inches * _CSS_INCH / figure.layout.width
    if scale >= _SMALLEST:
        return figure, scale
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    narrow = go.Figure(figure).update_layout(width=round(inches * _CSS_INCH / _SMALLEST), legend=below)
    rows = -(-sum(trace.showlegend is not False for trace in figure.data) // 2)
    margin = (figure.layout.margin.b or 56) + (18 * rows if figure.layout.showlegend is not False else 0)
    return narrow.update_layout(margin={"b": margin, "r": 24}, height=figure.layout.height + 18 * rows), _SMALLEST


def browser() -> str | None:
    """The Chromium that draws: BROWSER_PATH, else the first on PATH; None where there is none."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if Path(named).is_file() else None
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def keep_pictures() -> None:
    """Let the notebook that calls this keep a PNG beside each live figure, so that it shows where no plotly runs.

    Without a Chromium to draw it, notebooks keep the live figure alone.
    """
    if browser() is not None:
        warnings.filterwarnings("ignore", message="The kopts argument is ignored")  # said at every picture
        pio.renderers.default = "plotly_mimetype+png"


def live(figure: go.Figure) -> go.Figure:
    """The figure for a page: as wide as there is room. As it is where pictures are kept, which need a width."""
    if "png" in (pio.renderers.default or ""):
        return figure
    return go.Figure(figure).update_layout(width=None, autosize=True)


def provenance(figure: go.Figure, name: str, origin: Any) -> dict[str, Any]:
    """What made a figure: sources, commit, command, versions. No date of today: the same inputs give the same text."""
    here = Origin.here().to_json()
    title = re.sub(r"<br>", " · ", figure.layout.title.text or "")
    return {
        "figure": name,
        "title": re.sub(r"<[^>]*>", "", title),
        "command": here["command"],
        "commit": here["commit"],
        "versions": here["versions"],
        "sources": [_source(part) for part in _parts(origin)],
    }


def _parts(origin: Any) -> list[Any]:
    return list(origin) if isinstance(origin, Sequence) and not isinstance(origin, str) else [origin]


def _source(origin: Any) -> Any:
    if isinstance(origin, RunRecord):
        return {"run": origin.name, **origin.origin}
    if isinstance(origin, Origin):
        return origin.to_json()
    if isinstance(origin, Mapping):
        return dict(origin)
    if isinstance(origin, str | Path):
        return {"file": str(origin)}
    raise InputError(f"origin {origin!r} of a figure: expected a mapping, an Origin, a run's record or a file")


def normalised(data: bytes, suffix: str) -> bytes:
    """Take out what a browser adds anew each time: a PDF's dates, an SVG's ids. Lengths stay, as a PDF counts bytes."""
    if suffix == "pdf":
        return re.sub(
            rb"(/(?:Creation|Mod)Date \()[^)]*\)",
            lambda found: found[1] + _same_length(found[0], found[1]) + b")",
            data,
        )
    if suffix == "svg":
        text = data.decode()
        ids = dict.fromkeys(re.findall(r'id="(?:defs-|topdefs-|clip)([0-9a-f]{6})', text))
        for k, id in enumerate(ids):
            text = text.replace(id, f"{k:06d}")
        return text.encode()
    return data


def _same_length(whole: bytes, head: bytes) -> bytes:
    length = len(whole) - len(head) - 1
    return _DATE.encode()[:length].ljust(length, b"0")


def _drawn(figure: go.Figure, suffix: str, scale: float) -> bytes:
    """Draw with kaleido's server, started once: a browser takes seconds to start and a tenth of one to draw."""
    import kaleido

    with _lock:
        if _server.process != os.getpid():
            kaleido.start_sync_server(n=1, silence_warnings=True)
            _server.process = os.getpid()
        options = {
            "format": suffix,
            "width": figure.layout.width,
            "height": figure.layout.height,
            "scale": scale,
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"figure.{suffix}"
            kaleido.write_fig_sync(figure, str(path), opts=options)
            return path.read_bytes()


def close_browser() -> None:
    """End the browser, where this process started one. The next export starts another."""
    import kaleido

    with _lock:
        if _server.process == os.getpid():
            kaleido.stop_sync_server(silence_warnings=True)
            _server.process = None
