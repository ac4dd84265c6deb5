"""How Sphinx builds the site that scripts/docs/build.py has assembled; `-c` names this folder."""

import re
from typing import Any

import sparsepipe

project, author, version = "SparsePipe", "The sparsepipe authors", sparsepipe.__version__
copyright = f"2026, {author}. MIT licence"  # noqa: A001 - Sphinx's name
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "myst_nb"]
root_doc = "index"
html_theme, html_title = "furo", f"SparsePipe {version}"
html_copy_source = html_show_sourcelink = False  # each page's .md lies next to it
html_show_sphinx = html_show_search_summary = False  # summaries are fetched, which no page from disk may
html_static_path, html_css_files = ["site.css"], ["site.css"]

# Pages are read as GitHub shows them.
myst_enable_extensions = ["html_image", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = False
# The gallery's headings begin at level 3; a `!command` may go on in the next line, which no lexer knows.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
# Notebooks are shown as `sparsepipe reproduce` left them. Widgets need a kernel, so their text stands there.
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
nb_merge_streams = True
nb_render_markdown_format = "myst"  # of what cells show: with tables

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # they stand in the signature's place, and are long
autosummary_generate = False
napoleon_use_ivar = True  # fields that autodoc documents, too, are then no duplicates
napoleon_google_docstring, napoleon_numpy_docstring = True, False

_ITEM = re.compile(r"(- |\d+\. )")
_PAGE = re.compile(r"\b((?:guides|background)/\w+)")  # that a docstring points to
_SECTION = re.compile(r"(Args|Attributes|Examples?|Notes?|Raises|Returns|See also|Yields):")


def as_restructured_text(lines: list[str]) -> list[str]:
    """Return a docstring, which is plain text with `code`, lists and indented blocks, as Sphinx reads it."""
    written = list[str]()
    last = 0  # the indent of the last line that is not blank, and whether it begins an item of a list
    last_item = in_section = False
    block = None  # the indent of the block of code that lines belong to
    for line in lines:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        after_blank = not written or not written[-1]
        if not text:
            written.append("")
            continue
        if block is not None and indent < block:
            block = None
        item = bool(_ITEM.match(text))
        if block is None and after_blank and indent >= last + 4 and not item and _ends_with_colon(written):
            block = indent
        if indent == 0:
            in_section = bool(_SECTION.fullmatch(text))
        if block is not None or text.startswith((">>>", "...")) or in_section and indent == 0:
            written.append(line)
            continue
        nested = item and (not last_item or indent != last)
        if not after_blank and not in_section and (nested or indent < last or indent > last and not last_item):
            written.append("")
        written.append(_escaped(line))
        last, last_item = indent, item
    return written


def _ends_with_colon(written: list[str]) -> bool:
    """Whether a paragraph announces a block of code; its colon is doubled then."""
    number = next((number for number in range(len(written) - 1, -1, -1) if written[number]), None)
    if number is None or not written[number].endswith(":") or _SECTION.fullmatch(written[number].strip()):
        return False
    written[number] += ":"
    return True


def _escaped(line: str) -> str:
    """Return a line whose `code` is code, and whose other marks are plain characters."""
    parts = re.split(r"`+([^`]+)`+", line)
    return "".join(f"``{part}``" if number % 2 else _escaped_words(part) for number, part in enumerate(parts))


def _escaped_words(text: str) -> str:
    parts = _PAGE.split(text)
    return "".join(
        f":doc:`/notebooks/{part}`" if number % 2 else re.sub(r"([*|_])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def _docstring(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured_text(lines)


def setup(app: Any) -> None:
    """Let docstrings be written anew before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", _docstring, priority=400)
