"""A widget for HTML that escapes every string that is not `Html`, and tables in it that scroll within themselves.

What the page is sent keeps names with hyphens in one line each, and numbers with their units; `value` is what was
given.
"""

import re
from typing import Any

import ipywidgets
import traitlets

from ..display.markup import Html
from ..display.names import unbroken_within
from ..display.scrolling import SIDEWAYS, scrolling
from ..plots.theme import tied
from . import looks

# No wider than its place, whatever its table is: a flex item would grow with it, and the page cut it off.
_WITHIN = f"{SIDEWAYS};width:0;min-width:100%"


def scrolled(table: Html, name: str) -> Html:
    """Return a table that scrolls within itself where it is wider than its place, with the pointer and with keys."""
    return scrolling(table, label=name, style=_WITHIN)


_TEXT = re.compile(r"(?:^|(?<=>))[^<>]+")  # between tags


def _tied_within(markup: str) -> str:
    """Return markup whose text has no line end between a number and its unit; drawings and styles stay as they are."""
    if "<svg" in markup or "<style" in markup:
        return markup
    return _TEXT.sub(lambda found: tied(found[0]), markup)


class HtmlView(looks.Control, ipywidgets.HTML):
    """Shows markup as such and any other string as the text that it is. The package's only use of ipywidgets.HTML."""

    value = traitlets.Unicode("").tag(sync=True, to_json=lambda value, _: unbroken_within(_tied_within(value)))

    @traitlets.validate("value")
    def _as_markup(self, proposal: dict[str, Any]) -> Html:
        return Html.escape(proposal["value"])
