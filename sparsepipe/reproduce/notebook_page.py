"""An executed notebook as a page: what its cells say, and what came out of them."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from ..display.html import OURS
from ..display.markup import Html, joined
from ..display.scrolling import scrolling
from .catalogue import exported_by
from .executed import Executed, outputs, shown, source, text_of
from .html_page import DOT, of_markdown, page, with_dark, with_links_to_pages

_PANEL = "if not headless:"  # what begins a cell that shows one: a batch leaves it out
_PNG = "image/png"
_SVG = "image/svg+xml"
_LIVE = "application/vnd.plotly.v1+json"
_COLOURS = re.compile(r"color|fill|stroke|background")
_OURS = str(Html("<div class='{}'").format(OURS))
_THUMBNAIL = re.compile(r"<img\b[^>]*\balt='([\w.-]+)'[^>]*>")
_CODES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal, in errors


def notebook_page(executed: Executed, *, index: str, vectors: Mapping[str, str] | None = None) -> str:
    """Return the page of an executed notebook; `index` is where the page of all figures is, as seen from it.

    `vectors`: the address of the SVG of each figure that was exported, which a dark page shows. Of a figure that was
    not exported the executed copy may keep one itself.
    """
    up = Html('<p class="soft"><a href="{}">all figures</a>{}executed copy of notebooks/{}.ipynb</p>')
    cells = joined(_cell(cell, vectors or {}) for cell in executed.cells)
    return page(
        executed.title, Html('<main class="notebook">{}{}</main>').format(up.format(index, DOT, executed.name), cells)
    )


def _cell(cell: Mapping[str, Any], vectors: Mapping[str, str]) -> Html:
    text = source(cell)
    if cell.get("cell_type") == "markdown":
        return of_markdown(text)
    if cell.get("cell_type") != "code":
        return Html("")
    code = Html("<pre><code>{}</code></pre>").format(text) if text.strip() else Html("")
    parts: list[Html] = []
    dark = iter(_vectors_of(cell, vectors))
    for is_said, same in groupby(outputs(cell), key=lambda output: output.get("output_type") == "stream"):
        together = list(same)
        parts += [_said(together)] if is_said else [_output(output, dark, vectors) for output in together]
    if not parts and text.startswith(_PANEL):
        parts.append(Html('<p class="soft">a panel, which JupyterLab shows where this cell is run</p>'))
    return code + joined(parts)


def _vectors_of(cell: Mapping[str, Any], vectors: Mapping[str, str]) -> list[str]:
    """The SVG of each picture of a cell, in order; none where it shows others than those that it exports."""
    names = exported_by(source(cell))
    pictures = [output for output in outputs(cell) if shown(output, _PNG)]
    return [vectors.get(name, "") for name in names] if len(names) == len(pictures) else [""] * len(pictures)


def _said(streams: Iterable[Mapping[str, Any]]) -> Html:
    """What a cell printed, its pieces joined as they follow each other."""
    return Html('<pre class="text">{}</pre>').format("".join(text_of(stream.get("text")) for stream in streams))


def _output(output: Mapping[str, Any], dark: Iterator[str], vectors: Mapping[str, str]) -> Html:
    """What an output shows, in the richest way that needs no script. `dark`: an SVG for each picture, or none."""
    if output.get("output_type") == "error":
        told = "\n".join(map(str, output.get("traceback") or [output.get("evalue", "")]))
        return Html('<pre class="text error">{}</pre>').format(_CODES.sub("", told))
    if picture := shown(output, _PNG):
        data = re.sub(r"[^A-Za-z0-9+/=]", "", picture)
        image = Html('<img alt="figure" src="data:image/png;base64,{}">').format(data)
        return Html("<p>{}</p>").format(with_dark(image, vector=next(dark) or _kept(output)))
    if markdown := shown(output, "text/markdown"):
        return scrolling(of_markdown(markdown), kind="answer", label="what the notebook says")
    if _LIVE in (output.get("data") or {}):
        return Html('<p class="soft">a live figure: JupyterLab draws it</p>')
    if "application/vnd.jupyter.widget-view+json" in (output.get("data") or {}):
        return Html('<p class="soft">a widget: JupyterLab shows it</p>')
    if markup := shown(output, "text/html"):
        ours = markup.startswith(_OURS)
        kind = "painted" if _COLOURS.search(markup) and not ours else "plain"
        told = with_links_to_pages(_with_dark_thumbnails(markup, vectors))
        shown_here = Html('<div class="{}">{}</div>').format(kind, told)
        return scrolling(shown_here, kind="shown", label="output of the cell")
    plain = shown(output, "text/plain")
    return Html('<pre class="text">{}</pre>').format(plain) if plain else Html("")


def _kept(output: Mapping[str, Any]) -> str:
    """The address of the SVG that an output keeps beside its picture; nothing where it has none for dark pages."""
    vector = shown(output, _SVG)
    dark = "prefers-color-scheme" in vector  # others, such as matplotlib's, are black on nothing
    return f"data:{_SVG};base64,{base64.b64encode(vector.encode()).decode()}" if dark else ""


def _with_dark_thumbnails(markup: str, vectors: Mapping[str, str]) -> Html:
    """HTML in which a picture that is named after an exported figure has that figure's SVG on a dark page."""
    return Html(_THUMBNAIL.sub(lambda one: str(with_dark(Html(one[0]), vector=vectors.get(one[1], ""))), markup))
