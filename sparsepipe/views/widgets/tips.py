"""What ipywidgets' controls do not show by themselves: tooltips of those with a name, knobs, arrows."""

from collections.abc import Iterator
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from . import looks


class Shown:
    """Has `widget`, which is what is displayed; display(it.widget) shows the same."""

    widget: ipywidgets.Widget

    def _repr_mimebundle_(self, **given: object) -> object:
        return self.widget._repr_mimebundle_(**given)


class Tips(looks.Control, anywidget.AnyWidget):
    """Shows nothing itself; `tips` are tooltips by the names of the controls next to it."""

    _esm = Path(__file__).with_name("tips.js")
    tips = traitlets.Dict({}).tag(sync=True)


def with_tips(root: ipywidgets.Box) -> ipywidgets.Box:
    """Return `root`, a whole panel, whose named controls now show their tooltips, and its sliders their knobs."""
    root.add_class("sp-panel")
    root.children = (*root.children, Tips(tips=dict(_told(root))))
    return root


def _told(widget: object) -> Iterator[tuple[str, str]]:
    name, tip = getattr(widget, "description", ""), getattr(widget, "tooltip", "")
    if name and tip and isinstance(widget, ipywidgets.DOMWidget):
        yield name, tip
    for child in getattr(widget, "children", ()):
        yield from _told(child)
