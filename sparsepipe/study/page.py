"""figures/index.html: every figure with its caption, table, provenance, warnings and executed notebook.

It opens with four figures and what each says, then all of them, small. It is made of what lies on disk, so that it can
be written again at any time: after each notebook, too.

A page that opens from disk: its style is in it, it runs no scripts, and it asks no network.
"""

import base64
import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import mistune

from ..errors import InputError
from ..util.io.files import read_json, write_atomic
from ..util.text.numbers import number_of
from ..views import markup
from ..views.markup import Html, joined, unescaped
from ..views.plots.theme import BETWEEN, tied
from ..views.tables import scrolling
from ..views.values import OURS
from . import catalogue
from .catalogue import exported_by
from .executed import Executed, outputs, shown, source, text_of, warnings_of
from .notebook_job import NotebookJob

# Whatever stands in outputs of notebooks: no script runs, and nothing is fetched but pictures that lie beside the page.
_PAGE = Html(
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<title>{title}</title><style>{style}</style></head>\n<body>{body}</body></html>\n"
)

# An exported SVG is dark itself there: views/plots/dark.py.
_DARK_PICTURE = Html('<picture><source media="(prefers-color-scheme: dark)" srcset="{}">{}</picture>')
DOT = Html("{}").format(BETWEEN)  # between two links
_WHOLE = Html('<span class="name">{}</span>')
_LINK = re.compile(r"""(href=["'][^"':]*)\.ipynb(["'#])""")


class _Renderer(mistune.HTMLRenderer):
    def text(self, text: str) -> str:
        """Text, in which entities are the characters that they stand for: mistune would show them as they are."""
        return str(unbroken(tied(unescaped(text))))


_markdown = mistune.create_markdown(renderer=_Renderer(escape=True), plugins=["table"])


def page(title: str, body: Html) -> str:
    """Return a whole page."""
    style = Html((Path(__file__).parent / "page.css").read_text(encoding="utf-8"))
    return str(_PAGE.format(title=title, style=style, body=body))


def unbroken(text: str) -> Html:
    """Return text whose names with hyphens are in one line each, as far as a line has room for them."""
    return markup.unbroken(text, _WHOLE)


def of_markdown(text: str) -> Html:
    """Return Markdown as HTML; tags in it are shown as text, and a link that could run a script leads nowhere."""
    return with_links_to_pages(Html(_markdown(text)))


def with_links_to_pages(markup: Html) -> Html:
    """Return HTML whose links to notebooks lead to their pages, which lie alongside each other as the notebooks do."""
    return Html(_LINK.sub(r"\1.html\2", str(markup)))


def with_dark(image: Html, *, vector: str) -> Html:
    """Return an image that is drawn on white; on a dark page the exported SVG at `vector` stands in its place.

    Without that address it is white there, too.
    """
    return _DARK_PICTURE.format(vector, image) if vector else image


_PANEL = "if not headless:"  # what begins a cell that shows one: a batch leaves it out
_PNG = "image/png"
_SVG = "image/svg+xml"
_LIVE = "application/vnd.plotly.v1+json"
_COLOURS = re.compile(r"color|fill|stroke|background")
_OURS = str(Html("<div class='{}'").format(OURS))
_THUMBNAIL = re.compile(r"<img\b[^>]*\balt='([\w.-]+)'[^>]*>")
_CODES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal, in errors

PAGE = "index.html"
_ROWS = 40  # of a table that are shown; the file has all
_OPENING = ("throughput_by_devices", "mixed_devices", "waiting", "held_against")  # if they are there; else others
_MOST_OPENING = 4
_FILES = ("pdf", "svg", "png", "csv", "json")

_LINKED = Html('<a href="{}.{}">{}</a>')
_PICTURE = Html('<img loading="lazy" src="{}.png" alt="{}">')


def write_page(job: NotebookJob) -> Path:
    """Write the page of all figures and the pages of executed notebooks; returns the path of the first.

    Raises InputError if the folder cannot be written to.
    """
    sections, links, every = [], [], list[Executed]()
    for name in catalogue.by_number():
        executed = Executed.read(name, job.copy(name))
        if executed is None:
            continue
        _write_notebook(job, executed)
        sections.append(_section(job, executed))
        every.append(executed)
        links.append(Html('<li><a href="#{}">{}</a></li>').format(_anchor(name), executed.title))
    text = f"{len(sections)} of {len(catalogue.NOTEBOOKS)} notebooks have run here."
    head = Html(
        '<h1>Figures</h1><p class="soft">{} Each picture links to its vectors; tables and provenance unfold.{}</p>'
    )
    site = Html(' <a href="site/index.html">Guides and reference</a>.') if (job.out / "site" / PAGE).exists() else ""
    menu = Html('<nav aria-label="Notebooks"><ol>{}</ol></nav>').format(joined(links))
    parts = [head.format(text, site), _opening(job, every), _thumbnails(job, every), *sections]
    body = Html('<div class="page">{}<main>{}</main></div>').format(menu, joined(parts))
    path = job.out / PAGE
    _write(path, page("sparsepipe: figures", body))
    return path


def _opening(job: NotebookJob, every: Sequence[Executed]) -> Html:
    """Four figures, each of another notebook and with what it says in a sentence: the answer of that run."""
    answers = {figure: each for each in every for figure in job.exports[each.name] if each.sentence}
    figures, notebooks = list[Html](), set[str]()
    for figure in dict.fromkeys([*_OPENING, *answers]):
        if figure not in answers or answers[figure].name in notebooks or not (job.out / f"{figure}.png").exists():
            continue
        executed = answers[figure]
        notebooks.add(executed.name)
        drawn = with_dark(_PICTURE.format(figure, executed.title), vector=_vector(job.out, figure))
        link = Html('<a href="#figure-{}">{}</a>').format(figure, drawn)
        caption = Html("<figcaption><p>{}</p></figcaption>").format(unbroken(executed.sentence))
        figures.append(Html("<figure>{}{}</figure>").format(link, caption))
        if len(figures) == _MOST_OPENING:
            break
    return Html('<div class="figures opening">{}</div>').format(joined(figures)) if figures else Html("")


def _thumbnails(job: NotebookJob, every: Sequence[Executed]) -> Html:
    """All figures, small, each with a link to itself below."""
    cells = [
        Html('<a href="#figure-{0}">{1}<span>{0}</span></a>').format(
            figure, with_dark(_PICTURE.format(figure, ""), vector=_vector(job.out, figure))
        )
        for executed in every
        for figure in job.exports[executed.name]
        if (job.out / f"{figure}.png").exists()
    ]
    return Html('<div class="thumbnails">{}</div>').format(joined(cells)) if cells else Html("")


def _vector(folder: Path, figure: str) -> str:
    """The address of a figure's SVG; empty if there is none."""
    return f"{figure}.svg" if (folder / f"{figure}.svg").exists() else ""


def _section(job: NotebookJob, executed: Executed) -> Html:
    name = executed.name
    facts = {figure: _facts(job.out / f"{figure}.json") for figure in job.exports[name]}
    doubts = [doubt for fact in facts.values() for doubt in _doubts(fact)]
    warnings, anchor = list(dict.fromkeys([*warnings_of(job.report(name)), *doubts])), f"{_anchor(name)}-warnings"
    doubtful = {figure: _doubtful(_doubts(fact), warnings, anchor) for figure, fact in facts.items()}
    figures = [_figure(job.out, figure, fact, doubtful[figure]) for figure, fact in facts.items()]
    whole = Html('<a href="{}">executed notebook</a>').format(_link_of(name))
    raw = Html('<a href="{}">as .ipynb</a>').format(_relative(job.copy(name), job.out))
    ended = "" if job.has_ended(name) else "It did not run to its end."
    parts = [
        Html('<section id="{}"><h2>{}</h2>').format(_anchor(name), executed.title),
        Html('<p class="soft">{} {}</p>').format(DOT.join([whole, raw]), ended),
        _answer(executed),
        _warnings(warnings, anchor),
        Html('<div class="figures">{}</div></section>').format(joined(figures)),
    ]
    return joined(parts)


def _answer(executed: Executed) -> Html:
    if not executed.answer:
        return Html("")
    return scrolling(of_markdown(executed.answer), kind="answer", label=f"answer of {executed.name}")


def _warnings(texts: Iterable[str], anchor: str) -> Html:
    """All warnings of a notebook and its figures, each once; figures refer to them by number.

    They are folded: a link to what is in them opens them.
    """
    items = [Html("<li>{}</li>").format(unbroken(text)) for text in texts]
    if not items:
        return Html("")
    listed = Html('<ol id="{}">{}</ol>').format(anchor, joined(items))
    return Html('<details class="warnings"><summary>{}</summary>{}</details>').format(
        number_of(len(items), "warning"), listed
    )


def _doubtful(doubts: Iterable[str], warnings: Sequence[str], anchor: str) -> Html:
    """A badge for a figure whose numbers are doubtful; it unfolds to a link to the notebook's warnings."""
    numbers = sorted({warnings.index(text) + 1 for text in doubts})
    if not numbers:
        return Html("")
    told = f"warning{'s' if len(numbers) > 1 else ''} {_ranges(numbers)}"
    badge = Html('<details class="badge"><summary>⚠ doubtful</summary><a href="#{}">{} of this notebook</a></details>')
    return badge.format(anchor, told)


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers in a few words: "1, 3 to 6, 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _figure(folder: Path, name: str, facts: Mapping[str, Any], doubtful: Html) -> Html:
    there = [suffix for suffix in _FILES if (folder / f"{name}.{suffix}").exists()]
    if not there:
        return Html("")
    title = str(facts.get("title") or name).partition(" · doubtful:")[0]  # which the warnings above say whole
    target = next((suffix for suffix in ("svg", "png") if suffix in there), "")
    picture = Html('<p class="soft">No picture was drawn; the table is there.</p>')
    if "png" in there:
        drawn = with_dark(_PICTURE.format(name, title), vector=_vector(folder, name))
        picture = _LINKED.format(name, target, drawn)
    links = DOT.join(Html('<a href="{0}.{1}">{2}</a>').format(name, end, end.upper()) for end in there)
    return Html('<figure id="figure-{}">{}<figcaption>{}<p class="soft">{}</p>{}{}{}</figcaption></figure>').format(
        name,
        picture,
        _caption(title),
        DOT.join([name, links]),
        doubtful,
        _table(folder / f"{name}.csv", name),
        _provenance(facts),
    )


def _caption(title: str) -> Html:
    """A figure's title, and the facts of its note below it: see page.css for what stands between two of them."""
    whole, *facts = map(unbroken, title.split(" · "))
    items = joined(Html("<li>{}</li>").format(fact) for fact in facts)
    return Html("<p>{}</p>").format(whole) + (Html('<ul class="facts">{}</ul>').format(items) if facts else "")


def _table(path: Path, name: str) -> Html:
    if not path.exists():
        return Html("")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(islice(csv.reader(file), _ROWS + 2))
    if not rows:
        return Html("")
    more = Html('<p class="soft">the first {} rows; <a href="{}.csv">all of them</a></p>').format(_ROWS, name)
    head = Html("<tr>{}</tr>").format(joined(Html('<th scope="col">{}</th>').format(cell) for cell in rows[0]))
    body = joined(
        Html("<tr>{}</tr>").format(joined(Html("<td>{}</td>").format(cell) for cell in row))
        for row in rows[1 : _ROWS + 1]
    )
    whole = scrolling(Html("<table>{}{}</table>").format(head, body), kind="scroll", label=f"table of {name}")
    return Html("<details><summary>Table</summary>{}{}</details>").format(whole, more if len(rows) > _ROWS + 1 else "")


def _provenance(facts: Mapping[str, Any]) -> Html:
    provenance = _of_provenance(facts)
    data = provenance.get("data")
    told = {
        "digest": provenance.get("digest"),
        "data": data.get("name") if isinstance(data, Mapping) else None,
        "profiles": _digests(provenance, "profiles"),
        "clusters": _digests(provenance, "clusters"),
        "plans": _digests(provenance, "plans"),
        "settings": _settings(provenance.get("settings")),
        "runs": ", ".join(str(run.get("run")) for run in _objects(provenance, "runs")),
        "campaign": provenance.get("campaign"),
        "warnings": "; ".join(_further(facts)),
        "commit": facts.get("commit"),
        "command": " ".join(map(str, facts.get("command") or ())),
        "versions": ", ".join(f"{key} {value}" for key, value in (facts.get("versions") or {}).items()),
        "SHA-256 of the table": facts.get("table_sha256"),
    }
    rows = joined(Html("<dt>{}</dt><dd>{}</dd>").format(key, value) for key, value in told.items() if value)
    return Html("<details><summary>Provenance</summary><dl>{}</dl></details>").format(rows) if rows else Html("")


def _of_provenance(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    provenance = facts.get("provenance")
    return provenance if isinstance(provenance, Mapping) else {}


def _doubts(facts: Mapping[str, Any]) -> list[str]:
    """Doubts about the numbers of a figure, in a few words each."""
    doubts = _of_provenance(facts).get("doubts")
    return [str(text) for text in doubts] if isinstance(doubts, list) else []


def _further(facts: Mapping[str, Any]) -> list[str]:
    """The warnings of a figure's provenance that say more than its doubts, which the notebook's list has."""
    doubts, warnings = tuple(_doubts(facts)), _of_provenance(facts).get("warnings")
    return [str(text) for text in warnings if not str(text).startswith(doubts)] if isinstance(warnings, list) else []


def _digests(provenance: Mapping[str, Any], key: str) -> str:
    """Digests of values, each with what a reader looks for first."""
    digests = []
    for value in _objects(provenance, key):
        origin = found if isinstance(found := value.get("origin"), Mapping) else {}
        first = origin.get("model") or value.get("planner") or ""
        digests.append(" ".join(str(part) for part in (first, value.get("digest")) if part))
    return ", ".join(digests)


def _settings(value: object) -> str:
    return ", ".join(f"{key} = {each}" for key, each in value.items()) if isinstance(value, Mapping) else ""


def _objects(provenance: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    values = provenance.get(key)
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        facts_document = read_json(path)
    except InputError:
        return {}
    return facts_document if isinstance(facts_document, Mapping) else {}


def _write_notebook(job: NotebookJob, executed: Executed) -> None:
    """Write a notebook's page, unless it is younger than the executed copy."""
    path = job.out / _link_of(executed.name)
    if path.exists() and path.stat().st_mtime_ns > job.copy(executed.name).stat().st_mtime_ns:
        return
    vectors = {figure: job.out / f"{figure}.svg" for exported in job.exports.values() for figure in exported}
    links = {figure: _relative(vector, path.parent) for figure, vector in vectors.items() if vector.exists()}
    _write(path, notebook_page(executed, index=_relative(job.out / PAGE, path.parent), vectors=links))


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, text)
    except OSError as error:
        raise InputError(
            "out.unwritable", f"{path}: cannot be written ({error.strerror or error}); choose another folder"
        ) from None


def _link_of(name: str) -> str:
    return f"notebooks/{name}.html"


def _anchor(name: str) -> str:
    return name.replace("/", "-")


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


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
    """The SVG of each picture of a cell, in order; none if it shows others than those that it exports."""
    names = exported_by(source(cell))
    pictures = [output for output in outputs(cell) if shown(output, _PNG)]
    return [vectors.get(name, "") for name in names] if len(names) == len(pictures) else [""] * len(pictures)


def _said(streams: Iterable[Mapping[str, Any]]) -> Html:
    """Printed text of a cell, joined in order."""
    return Html('<pre class="text">{}</pre>').format("".join(text_of(stream.get("text")) for stream in streams))


def _output(output: Mapping[str, Any], dark: Iterator[str], vectors: Mapping[str, str]) -> Html:
    """An output as HTML without scripts. `dark`: an SVG for each picture, or none."""
    if output.get("output_type") == "error":
        text = "\n".join(map(str, output.get("traceback") or [output.get("evalue", "")]))
        return Html('<pre class="text error">{}</pre>').format(_CODES.sub("", text))
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
        text = with_links_to_pages(_with_dark_thumbnails(markup, vectors))
        shown_here = Html('<div class="{}">{}</div>').format(kind, text)
        return scrolling(shown_here, kind="shown", label="output of the cell")
    plain = shown(output, "text/plain")
    return Html('<pre class="text">{}</pre>').format(plain) if plain else Html("")


def _kept(output: Mapping[str, Any]) -> str:
    """The address of the SVG that an output keeps alongside its picture; nothing if it has none for dark pages."""
    vector = shown(output, _SVG)
    dark = "prefers-color-scheme" in vector  # others, such as matplotlib's, are black on nothing
    return f"data:{_SVG};base64,{base64.b64encode(vector.encode()).decode()}" if dark else ""


def _with_dark_thumbnails(markup: str, vectors: Mapping[str, str]) -> Html:
    """HTML in which a picture that is named after an exported figure has that figure's SVG on a dark page."""
    return Html(_THUMBNAIL.sub(lambda one: str(with_dark(Html(one[0]), vector=vectors.get(one[1], ""))), markup))
