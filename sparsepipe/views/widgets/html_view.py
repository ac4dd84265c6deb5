"""A widget for HTML that escapes every string that is not `Html`, and tables in it that scroll within themselves.

What the page is sent keeps names with hyphens in one line each, and numbers with their units; `value` is what was
given.
"""

import re
from collections.abc import Mapping
from typing import Any

import ipywidgets
import traitlets

from ...values.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES
from ..markup import Html, joined, unbroken_within
from ..plots.theme import tied
from ..tables import SIDEWAYS, scrolling
from . import looks
from .looks import sentence


def explained(words: Mapping[str, str], *, schedules: bool = False) -> Html:
    """Return the list, closed until it is asked for; `schedules` adds every schedule and weight policy."""
    rows = dict(words)
    if schedules:
        rows |= {f"weights {name}": rules.summary for name, rules in WEIGHT_RULES.items()}
        rows |= {f"schedule {name}": rules.summary for name, rules in SCHEDULE_RULES.items()}
    row = Html("<dt style='font-weight:600'>{}</dt><dd style='margin:0 0 4px 16px'>{}</dd>")
    return Html(
        "<details style='font-size:12px;line-height:1.45;max-width:900px'><summary>Glossary</summary>"
        "<dl style='margin:4px 0'>{}</dl></details>"
    ).format(joined(row.format(word, sentence(text)) for word, text in rows.items()))


# No wider than its place, whatever its table is: a flex item would grow with it, and the page cut it off.
_WITHIN = f"{SIDEWAYS};width:0;min-width:100%"


def scrolled(table: Html, name: str) -> Html:
    """Return a table that scrolls within itself if it is wider than its place, with the pointer and with keys."""
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

    def static_picture(self) -> dict[str, str]:
        """The markup itself, if there is any."""
        return {"text/html": str(self.value)} if self.value else {}
