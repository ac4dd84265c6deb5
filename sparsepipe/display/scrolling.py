"""A box that scrolls within itself where what it holds is wider than its place: by the pointer and by keys."""

from .markup import Html

SIDEWAYS = "overflow-x:auto"
_BOX = Html('<div {}="{}" tabindex="0" role="region" aria-label="{}">{}</div>')


def scrolling(content: Html, *, label: str, style: str = SIDEWAYS, kind: str = "") -> Html:
    """Return content in such a box, which whoever cannot see it hears called `label`.

    `style` has it scroll; on a page with a stylesheet that does so for a class, `kind` is that class in its place.
    """
    looks = (Html("class"), kind) if kind else (Html("style"), style)
    return _BOX.format(*looks, label, content)
