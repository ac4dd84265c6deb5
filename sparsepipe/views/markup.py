"""Escaping: names and messages out of files never act as HTML, as a figure's markup or as a terminal's control codes.

    Html("<b>{}</b>").format(name)    escapes what is filled in, but for other Html: the only way HTML is put together
    errors.one_line(name)             for terminals, tables of text and error messages
    markdown_text(name)               for the Markdown of notebooks

A `str` is text and an `Html` is markup: code that mixes them up shows a tag as text, and never runs one.

Names with hyphens are in one line each: `1f1b-flush` is no word to be broken behind its first half.
"""

import re
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup
from markupsafe import escape as _escape

from ..errors import one_line, visible

# MathJax typesets what stands between dollars, links included; plotly fills in %{…} where it stands in a hover text.
_ALSO = {"$": "&#36;", "{": "&#123;"}
_MARKDOWN = re.compile(r"[\\`*_\[\]()!|~]")


class Html(Markup):
    """A string of HTML or of a figure's markup. `format`, `join` and `+` escape the `str` that they bring in."""

    __slots__ = ()

    @classmethod
    def escape(cls, s: object, /) -> "Html":
        """Return HTML that shows a value as text; `Html` is returned unchanged."""
        if hasattr(s, "__html__"):
            return cls(s.__html__())
        escaped = str(_escape(visible(s)))
        for character, entity in _ALSO.items():
            escaped = escaped.replace(character, entity)
        return cls(escaped)


def joined(parts: Iterable[Any]) -> Html:
    """Join parts into one `Html`, escaping those that are text."""
    return Html("").join(parts)


def figure_text(text: object) -> Html:
    """Return a value as text of a plotly figure, which takes some tags for markup and $…$ for a formula.

    Quotes stay: they delimit attributes, and no attribute is made of it.
    """
    if hasattr(text, "__html__"):
        return Html(text.__html__())
    return Html(str(Html.escape(text)).replace("&#39;", "'").replace("&#34;", '"'))


def markdown_text(text: object) -> str:
    """Return a value as one line of Markdown that shows it as it is: no tag, link, emphasis, cell or formula."""
    escaped = str(Html.escape(one_line(text)))
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", escaped)


def unescaped(text: str) -> str:
    """Return text with its entities as the characters that they stand for: what `markdown_text` escaped."""
    return Markup(text).unescape()


# Its line may begin beside the mark of a message, which is 10 pixels wide.
WHOLE = Html("<span style='display:inline-block;max-width:calc(100% - 10px);overflow-wrap:anywhere'>{}</span>")
TIE = "\N{NO-BREAK SPACE}"  # no line ends there
# A name with hyphens within it, and what is tied to it by such spaces: beside a box a line would end.
_HYPHENS = re.compile(rf"((?:[^\s-]+{TIE})*[^\s-]+(?:-[^\s-]+)+(?:{TIE}[^\s-]+)*)")
_TAG_OR_NAME = re.compile(rf"<[^>]*>|(?:[^\s<>-]+{TIE})*[^\s<>-]+(?:-[^\s<>-]+)+(?:{TIE}[^\s<>-]+)*")


def unbroken(text: str, whole: Html = WHOLE) -> Html:
    """Return text whose names with hyphens are in one line each, as far as a line has room for them.

    `whole` is what becomes of such a name.
    """
    return joined(whole.format(part) if _HYPHENS.fullmatch(part) else part for part in _HYPHENS.split(text))


def unbroken_within(markup: str) -> str:
    """Return markup whose text is so; its tags stay as they are, and drawings and styles, which break no lines."""
    if "-" not in markup or "<svg" in markup or "<style" in markup:
        return markup
    return _TAG_OR_NAME.sub(_whole, markup)


def _whole(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("<") else str(WHOLE.format(Html(found[0])))
