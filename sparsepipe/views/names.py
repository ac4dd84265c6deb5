"""Names with hyphens in one line each: `1f1b-flush` is no word to be broken behind its first half."""

import re

from .markup import Html, joined

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
