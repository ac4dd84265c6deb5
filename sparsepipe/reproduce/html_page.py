"""A page that opens from disk: its style is in it, it runs no scripts, and it asks no network."""

import re
from pathlib import Path

import mistune

from ..display import names
from ..display.markup import Html, unescaped
from ..plots.theme import BETWEEN, tied

# Whatever stands in outputs of notebooks: no script runs, and nothing is fetched but pictures that lie beside the page.
_PAGE = Html(
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<title>{title}</title><style>{style}</style></head>\n<body>{body}</body></html>\n"
)

# An exported SVG is dark itself there: plots/dark.py.
_PICTURE = Html('<picture><source media="(prefers-color-scheme: dark)" srcset="{}">{}</picture>')
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
    return names.unbroken(text, _WHOLE)


def of_markdown(text: str) -> Html:
    """Return Markdown as HTML; tags in it are shown as text, and a link that could run a script leads nowhere."""
    return with_links_to_pages(Html(_markdown(text)))


def with_links_to_pages(markup: Html) -> Html:
    """Return HTML whose links to notebooks lead to their pages, which lie beside each other as the notebooks do."""
    return Html(_LINK.sub(r"\1.html\2", str(markup)))


def with_dark(image: Html, *, vector: str) -> Html:
    """Return an image that is drawn on white; on a dark page the exported SVG at `vector` stands in its place.

    Without that address it is white there, too.
    """
    return _PICTURE.format(vector, image) if vector else image
