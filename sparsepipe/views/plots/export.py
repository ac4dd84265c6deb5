"""A figure on disk: the picture as PDF, SVG and PNG, its table as CSV, and where its numbers came from as JSON.

The same figure gives the same bytes: dates and random ids of the browser that draws it are taken out.

What a PDF says of itself: title, subject, keywords, in the place of what the browser wrote.

A PDF may be added to at its end: a new object of facts, and a table of where it is, which names the table before it
(ISO 32000-1, 7.5.6, "incremental updates"). Nothing before it moves, so that every offset in it stays right.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer

from ...errors import InputError
from ...records import Origin, RunRecord
from ...records.provenance import Provenance
from ...util.host.imports import ADDRESSES, left_out
from ...util.io.fields import shown
from ...util.io.files import expanded, read_text, write_atomic, write_json
from ..markup import Html, figure_text
from .chromium import NoPicture, browser, drawn
from .dark import dark_style
from .paper import INCHES, Paper
from .theme import MODEBAR, WIDTH, doubted, doubts_of, heading_of, in_place, with_held_up

_TRAILER = re.compile(rb"trailer\s*<<(.*?)>>\s*startxref\s*(\d+)\s*%%EOF\s*$", re.DOTALL)
_INFO = re.compile(rb"/Info (\d+) 0 R")
_END = re.compile(rb"trailer\s*<<(.*?)>>\s*startxref\s*(\d+)\s*%%EOF\s*$", re.DOTALL)
_TABLE = re.compile(rb"xref\n0 (\d+)\n((?:\d{10} \d{5} [fn][ \r]\n)+)")
_ROW = 20  # bytes of a row of the table
_MERGED = (b"/Type /XObject", b"/Type /Pattern")  # what is drawn alike whoever refers to it
_REFERENCE = re.compile(rb"\b(\d+) 0 R\b")
_FREE = b"0000000000 65535 f \n"  # of an object that is no more

FORMATS = ("pdf", "svg", "png")
_KEPT = "sparsepipe_png"  # the renderer of `keep_pictures`
_EXPORTED = "exported"  # in a figure's meta
_MOST_KEPT = 1_000_000  # bytes of an SVG in a notebook
_SCALE = 2  # pixels of the PNG for each of the figure's
_DATE = "D:20000101000000+00'00'"


def export(
    figure: go.Figure,
    stem: Path | str,
    *,
    table: pd.DataFrame,
    origin: object,
    inches: float = INCHES,
    paper: Paper | None = None,
) -> list[Path]:
    """Export a figure as `<stem>.csv`, `.json`, `.pdf`, `.svg` and `.png`, each complete or not at all.

    Args:
        figure: A plotly figure.
        stem: Path without a suffix.
        table: The figure's numbers.
        origin: Source of the numbers: a Provenance, a mapping, an `Origin`, a run's record, or several. The JSON has
            all of it; unreliable measurements are noted in the pictures' subtitle.
        inches: Width of the PDF in inches. If its text would be too small, the figure is laid out again.
        paper: Width, height, font and title of the figure on paper, instead of `inches`.

    Returns:
        The paths of the files.

    Raises:
        InputError: The folder is not writable.
        NoPicture: No Chromium can draw; table and JSON are written.

    Example:
        >>> table = sp.plots.timeline_table(trace)
        >>> try:
        ...     paths = sp.plots.export(sp.plots.timeline(trace), "timeline", table=table, origin={"made": "here"})
        ... except sp.plots.NoPicture:
        ...     pass
        >>> Path("timeline.csv").exists()
        True

    See also:
        guides/figures_for_a_paper, `plots.Paper`
    """
    stem = expanded(stem)
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("csv", "json", *FORMATS)]
    rests_on, sheet = described(figure, origin), paper or Paper(inches)
    rows, figure = table.to_csv(index=False), with_held_up(figure, rests_on.held_up)
    facts = provenance(doubted(figure, rests_on.doubts), stem.name, origin, table=rows)
    styled = sheet.styled(figure)
    printed, scale = sheet.printed(styled, rests_on.doubts)
    figure = doubted(styled, rests_on.doubts)
    try:
        stale = not paths[0].exists() or read_text(paths[0], what="table of a figure") != rows
        write_atomic(paths[0], rows)
        write_json(paths[1], facts)
        drawings = {"pdf": (printed, scale), "svg": (figure, 1), "png": (figure, _SCALE)}
        try:
            pictures = {suffix: normalised(drawn(one, suffix, by), suffix) for suffix, (one, by) in drawings.items()}
        except NoPicture as error:
            for path in paths[2:] if stale else ():
                path.unlink(missing_ok=True)  # it would show numbers that are not those of the table beside it
            raise NoPicture(
                error.code, f"{stem}: only the table and its provenance were written: {error}", **error.fields
            ) from None
        pictures["pdf"] = with_facts(without_repeats(pictures["pdf"]), _of_pdf(facts))
        pictures["svg"] = _for_dark_pages_too(pictures["svg"])
        for path, suffix in zip(paths[2:], FORMATS, strict=True):
            write_atomic(path, pictures[suffix])
    except OSError as error:
        raise InputError(
            "out.unwritable", f"{stem.parent}: cannot be written to ({error.strerror or error}); choose another folder"
        ) from None
    return paths


def _for_dark_pages_too(svg: bytes) -> bytes:
    """The SVG with a style for where dark pages are preferred; without one it is white in every theme, and readable."""
    style = f"<style>@media (prefers-color-scheme: dark) {{\n{dark_style(drawn=svg.decode())}\n}}</style>"
    return re.sub(rb"^<svg[^>]*>", lambda opened: opened[0] + style.encode(), svg, count=1)


def _of_pdf(facts: Mapping[str, Any]) -> dict[str, str]:
    """Metadata of the PDF, for copies without the JSON file."""
    version, rests_on = facts["versions"].get("sparsepipe", ""), facts["provenance"]
    told = f"provenance {rests_on['digest']}, table {facts['table_sha256'][:12]}, commit {facts['commit']}"
    doubts = f"; doubtful: {'; '.join(rests_on['doubts'])}" if rests_on["doubts"] else ""
    title = facts["title"].partition(" · doubtful:")[0] or facts["figure"]
    named = {"Title": title, "Subject": told + doubts, "Keywords": facts["figure"]}
    return named | {"Creator": f"sparsepipe {version}".strip(), "CreationDate": _DATE}


def keep_pictures() -> None:
    """Keep a PNG next to each live figure of the notebook that calls this, for viewers without plotly.

    Figures that are shown but not exported also get an SVG, which follows the dark mode of the page. Without a Chromium
    that can draw, notebooks keep only live figures, and one line reports it.

    Example:
        >>> sp.plots.keep_pictures()

    See also:
        guides/figures_for_a_paper
    """
    if browser() is not None:
        pio.renderers[_KEPT] = _KeptPicture()
        pio.renderers.default = f"plotly_mimetype+{_KEPT}"


def kept_picture(figure: go.Figure) -> dict[str, str]:
    """Return a figure's picture by media type if `keep_pictures` was called; empty if not, or if none can be drawn."""
    if _KEPT not in (pio.renderers.default or ""):
        return {}
    return _KeptPicture().to_mimebundle(figure.to_dict())


def as_exported(figure: go.Figure) -> go.Figure:
    """The figure, marked as one whose vectors lie on disk: what keeps its picture keeps no vectors of it."""
    meta = figure.layout.meta if isinstance(figure.layout.meta, dict) else {}
    return go.Figure(figure).update_layout(meta={**meta, _EXPORTED: True})


class _KeptPicture(MimetypeRenderer):
    """plotly's own "png", with the bound on time that all pictures here have; if there are no vectors on disk also
    an SVG, which goes with a dark page.
    """

    said: ClassVar[set[str]] = set()  # plotly copies a renderer at every picture

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        try:
            figure = go.Figure(fig_dict, skip_invalid=True)
            kept = {"image/png": base64.b64encode(drawn(figure, "png", 1)).decode()}
            if not (isinstance(figure.layout.meta, dict) and figure.layout.meta.get(_EXPORTED)):
                with suppress(NoPicture):  # the PNG is kept, which shows as much
                    svg = _for_dark_pages_too(normalised(drawn(figure, "svg", 1), "svg"))
                    kept |= {"image/svg+xml": svg.decode()} if len(svg) <= _MOST_KEPT else {}
            return kept
        except NoPicture as error:
            if str(error) not in self.said:
                print(f"no pictures were exported: {error}", flush=True)
            self.said.add(str(error))
            return {}


def provenance(figure: go.Figure, name: str, origin: object, *, table: str = "") -> dict[str, Any]:
    """Return where a figure comes from: sources, commit, command, versions; undated, so that it is reproducible."""
    here = Origin.here().to_json()
    return {
        "figure": name,
        "title": _title(figure),
        "table_sha256": hashlib.sha256(table.encode(errors="backslashreplace")).hexdigest(),
        "command": here["command"],
        "commit": here["commit"],
        "versions": here["versions"],
        "provenance": described(figure, origin).to_json(),
        "sources": [_source(part) for part in _parts(origin)],
    }


def _title(figure: go.Figure) -> str:
    """A figure's title, its note and what is doubtful, as they were given: wherever its lines end in the picture."""
    heading = heading_of(figure)
    if heading is None:
        return Html(str(figure.layout.title.text or "").replace("<br>", " · ")).striptags()
    parts = (heading.title, *(figure_text(note).striptags() for note in (*heading.notes, heading.doubt)))
    return " · ".join(filter(None, parts))


def described(figure: go.Figure, origin: object) -> Provenance:
    """Return a figure's provenance as one value, with what the figure itself found doubtful."""
    parts = _parts(origin)
    runs = [part for part in parts if isinstance(part, RunRecord)]
    known = [part for part in parts if isinstance(part, Provenance)]
    return reduce(or_, known, Provenance.of(runs=runs)).with_warnings(*doubts_of(figure))


def _parts(origin: object) -> list[Any]:
    return list(origin) if isinstance(origin, Sequence) and not isinstance(origin, str) else [origin]


def _source(origin: object) -> Any:
    if isinstance(origin, RunRecord):
        return {"run": origin.name, **origin.origin}
    if isinstance(origin, Origin):
        return origin.to_json()
    if isinstance(origin, Provenance):
        return {"provenance": origin.digest}
    if isinstance(origin, Mapping):
        return dict(origin)
    if isinstance(origin, str | Path):
        return {"file": str(origin)}
    raise InputError(
        "provenance.malformed",
        f"origin {shown(origin)} of a figure: expected a Provenance, a mapping, an Origin, a run record or a file",
    )


def normalised(data: bytes, suffix: str) -> bytes:
    """Take out what a browser adds again each time: a PDF's dates, an SVG's ids. Lengths stay, as a PDF counts
    bytes.
    """
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


def with_facts(data: bytes, facts: Mapping[str, str]) -> bytes:
    """Return the PDF with these facts, such as {"Title": …, "Subject": …}; others that it had are gone.

    A PDF whose end is not as Chromium writes it is returned as it is.
    """
    end = _TRAILER.search(data)
    info = _INFO.search(end[1]) if end else None
    if end is None or info is None:
        return data
    number = int(info[1])
    told = b"\n".join(b"/%s %s" % (key.encode("ascii"), _text(value)) for key, value in facts.items())
    start = len(data)
    added = b"%d 0 obj\n<<%s>>\nendobj\n" % (number, told)
    table = b"xref\n%d 1\n%010d 00000 n \ntrailer\n<<%s\n/Prev %s>>\n" % (number, start, end[1].strip(), end[2])
    return data + added + table + b"startxref\n%d\n%%%%EOF\n" % (start + len(added))


def _text(value: str) -> bytes:
    """A string of any letters, as PDF writes it: UTF-16 with its mark, in hexadecimal."""
    return b"<%s>" % ("\ufeff" + value).encode("utf-16-be", errors="replace").hex().encode("ascii")


def without_repeats(data: bytes) -> bytes:
    """Return the PDF with objects that are equal once, each with its old number (ISO 32000-1, 7.5.4).

    A PDF that is not as Chromium writes it is returned as it is.
    """
    end = _END.search(data)
    table = _TABLE.match(data, int(end[2])) if end and b"/Prev" not in end[1] else None
    if end is None or table is None or len(table[2]) != _ROW * int(table[1]):
        return data
    bodies = _bodies(data, table[2], int(end[2]))
    kept = _merged(bodies) if bodies else None
    if not kept or len(kept) == len(bodies):
        return data
    head = data[: data.index(next(iter(bodies.values())))]
    places, at = {}, len(head)
    for number, body in kept.items():
        places[number] = at
        at += len(body)
    rows = [b"%010d 00000 n \n" % places[k] if k in places else _FREE for k in range(1, int(table[1]))]
    ended = b"trailer\n<<%s>>\nstartxref\n%d\n%%%%EOF\n" % (end[1], at)
    return b"".join([head, *kept.values(), b"xref\n0 %s\n" % table[1], table[2][:_ROW], *rows, ended])


def _bodies(data: bytes, rows: bytes, table: int) -> dict[int, bytes]:
    """Each object by its number, from "1 0 obj" on, as they stand; none where one is not where the table says."""
    lines = [rows[at : at + _ROW] for at in range(_ROW, len(rows), _ROW)]
    places = {number: int(line[:10]) for number, line in enumerate(lines, start=1) if line[17:18] == b"n"}
    ordered = sorted(places, key=places.__getitem__)
    ends = [*(places[number] for number in ordered[1:]), table]
    bodies = {number: data[places[number] : stop] for number, stop in zip(ordered, ends, strict=True)}
    return bodies if all(body.startswith(b"%d 0 obj\n" % number) for number, body in bodies.items()) else {}


def _merged(bodies: Mapping[int, bytes]) -> dict[int, bytes] | None:
    """The objects without those that equal another; None if it is unknown what refers to them."""
    kept = dict(bodies)
    while True:
        first: dict[bytes, int] = {}
        instead: dict[int, int] = {}
        for number, body in kept.items():
            if any(kind in body[:64] for kind in _MERGED):
                own = first.setdefault(body.partition(b"\n")[2], number)
                if own != number:
                    instead[number] = own
        if not instead:
            return kept
        for number in instead:
            del kept[number]
        for number, body in kept.items():
            told, stream, rest = body.partition(b"stream\n")
            renamed = _referring(told, instead)
            if renamed != told and b"(" in told:
                return None  # a text of a reader's own might say "5 0 R"
            kept[number] = renamed + stream + rest


def _referring(told: bytes, instead: Mapping[int, int]) -> bytes:
    """Return what an object says, with the numbers of others in place of those that are gone."""
    return _REFERENCE.sub(lambda found: b"%d 0 R" % instead.get(int(found[1]), int(found[1])), told)


with left_out(ADDRESSES):  # which renderers bring by way of nbformat
    from plotly.io.base_renderers import NotebookRenderer, PlotlyRenderer

    for _renderer in ("plotly_mimetype", "notebook", "notebook_connected", "browser"):
        pio.renderers[_renderer].config = {**(pio.renderers[_renderer].config or {}), **MODEBAR}


def as_wide_as_the_page(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dict of a figure of this package without its width. Other figures are unchanged."""
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
