"""A widget for HTML that escapes every string that is not `Html`, and tables in it that scroll within themselves.

What the page is sent keeps names with hyphens in one line each, and numbers with their units; `value` is what was
given.

`Messages` shows errors of widgets, as ipywidgets would hide exceptions of callbacks, and `Question` asks before an act.
"""

import functools
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ipywidgets
import traitlets

from ...errors import InputError, RunFailed
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


# Of text in a <pre>, which JupyterLab's own rule breaks within words.
WHOLE_WORDS = "white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"

Work = TypeVar("Work")


class Messages(HtmlView):
    """One line in red for what a user can mend; the whole traceback for what they cannot. Empty while all is well.

    What is held stays, whatever succeeds or fails meanwhile.
    """

    held = ""

    def hold(self, text: str) -> None:
        """Show an error until this is called again, without a text when it is mended."""
        self.held = sentence(text)
        self._show("")

    def say(self, text: str) -> None:
        """Show a sentence that is no error."""
        self._show(Html("<div style='padding:4px 0'>{}</div>").format(sentence(text)))

    def shown(self, act: Callable[..., Any]) -> Callable[..., None]:
        """Wrap a callback: what it raises is shown here, and a success clears what was shown."""

        @functools.wraps(act)
        def guarded(*arguments: Any, **options: Any) -> None:
            if self._succeeds(lambda: act(*arguments, **options)):
                self._show("")

        return guarded

    def telling(self, act: Callable[[], Any]) -> Callable[[Any], None]:
        """Wrap a click's callback: as `shown`, but what it shows here itself stays after a success."""
        told: list[str] = []

        def run() -> None:
            self.value = ""
            act()
            told[:] = [self.value]

        def guarded(_: Any) -> None:
            told.clear()
            self.shown(run)()
            if told:
                self.value = told[0]

        return guarded

    def watched(self, act: Callable[[], Any]) -> Callable[[], None]:
        """Wrap what is called again and again by itself: as `shown`, but its success clears only its own failure."""
        failed = False

        def guarded() -> None:
            nonlocal failed
            before, failed = failed, not self._succeeds(act)
            if before and not failed:
                self._show("")

        return guarded

    def failing(self, run: Callable[[Work], object]) -> Callable[[Work], None]:
        """Wrap what a thread runs: what it raises is shown, its success clears nothing."""

        def guarded(work: Work) -> None:
            self._succeeds(lambda: run(work))

        return guarded

    def _succeeds(self, act: Callable[[], Any]) -> bool:
        """Call `act`, and show what it raises."""
        try:
            act()
        except (InputError, RunFailed) as error:
            self.fail(str(error))
        except Exception:
            self.fail(traceback.format_exc())
        else:
            return True
        return False

    def fail(self, text: str) -> None:
        """Show an error until the next success."""
        told = sentence(text)
        self._show(_error(told) if told != self.held else "")

    def _show(self, latest: str) -> None:
        self.value = joined([_error(self.held), latest]) if self.held else latest


def _error(text: str) -> Html:
    style = f"{WHOLE_WORDS};margin:4px 0;padding:6px 8px;border-left:4px solid #D55E00;font-size:12px"
    return Html("<pre style='{}'>{}</pre>").format(style, text)


class Question:
    """A sentence with two buttons: act, or leave it. Hidden until it is asked; a click on a hidden one does nothing."""

    def __init__(self, messages: Messages, yes: ipywidgets.Button, no: ipywidgets.Button) -> None:
        self.told, self.yes, self.no = HtmlView(), yes, no
        self.widget = looks.HBox([self.told, yes, no], layout={"display": "none", "flex_flow": "row wrap"})
        self._act: Callable[[], None] | None = None
        yes.on_click(messages.telling(self._agreed))
        no.on_click(messages.shown(lambda _: self.withdraw()))

    def ask(self, text: str, act: Callable[[], None]) -> None:
        """Show the question; `act` is called if the answer is yes."""
        self.told.value, self._act = text, act
        looks.show(self.widget, on=True)

    @property
    def asked(self) -> bool:
        """Return whether the question waits for an answer."""
        return self._act is not None

    def withdraw(self) -> None:
        """Hide the question, and do nothing."""
        self._act = None
        looks.show(self.widget, on=False)

    def _agreed(self) -> None:
        act = self._act
        self.withdraw()
        if act is not None:
            act()
