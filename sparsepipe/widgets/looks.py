"""ipywidgets' controls whose layouts and styles are shared: each control with its own sends two messages more.

Their tooltips are sentences, which begin with capitals.

A layout that is shared never changes. What is to be hidden is given another one: `show(control, on=False)`. A control
that is given a `Layout` or a style, and not settings of one, keeps it as its own.
"""

import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

import ipywidgets
import traitlets

from .sentences import sentence

_lock = threading.Lock()
_shared: dict[tuple[type, frozenset[tuple[str, Any]]], Any] = {}


class _Fixed:
    """A layout or style that raises AttributeError where it would be changed."""

    _made = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self._made and name in self.keys:  # type: ignore[attr-defined]  # of the layout or style, beside this class
            raise AttributeError(
                f"{name}: many controls share this; give one of them another, as widgets.looks.show does"
            )
        super().__setattr__(name, value)


@cache
def _fixed(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Fixed, kind), {})


def shared(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """Return the one layout or style of these settings."""
    key = kind, frozenset(settings.items())
    with _lock:
        found = _shared.get(key)
        if found is None or found.comm is None:  # closed with all widgets of the kernel
            found = _shared[key] = _fixed(kind)(**settings)
            found._made = True
        return found


def show(control: ipywidgets.DOMWidget, *, on: bool) -> None:
    """Show a control, or hide it; all else of its layout stays."""
    layout, wanted = control.layout, "" if on else "none"
    if (layout.display or "") == wanted:
        return
    if not isinstance(layout, _Fixed):
        layout.display = wanted
        return
    settings = {name: getattr(layout, name) for name in layout.keys if not name.startswith("_")}
    settings |= {"display": wanted}
    control.layout = shared(ipywidgets.Layout, {name: value for name, value in settings.items() if value is not None})


class Shares:
    """Takes settings of its `layout` and `style`, if it has one, and shares them with all that are given the same."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        for name in ("layout", "style"):
            trait = type(self).class_traits().get(name)  # type: ignore[attr-defined]  # of the control, beside this class
            if trait is not None and isinstance(given := settings.get(name, {}), Mapping):
                settings[name] = shared(trait.klass, given)
        super().__init__(*arguments, **settings)

    @traitlets.validate("tooltip")
    def _sentence(self, proposal: dict[str, Any]) -> str | None:
        return proposal["value"] and sentence(proposal["value"])


class HBox(Shares, ipywidgets.HBox):
    pass


class VBox(Shares, ipywidgets.VBox):
    pass


class Button(Shares, ipywidgets.Button):
    pass


class Dropdown(Shares, ipywidgets.Dropdown):
    pass


class Text(Shares, ipywidgets.Text):
    pass


class ToggleButton(Shares, ipywidgets.ToggleButton):
    pass


class Label(Shares, ipywidgets.Label):
    pass


class Checkbox(Shares, ipywidgets.Checkbox):
    pass


class IntProgress(Shares, ipywidgets.IntProgress):
    pass


class BoundedIntText(Shares, ipywidgets.BoundedIntText):
    pass


class FloatText(Shares, ipywidgets.FloatText):
    pass


class SelectMultiple(Shares, ipywidgets.SelectMultiple):
    pass
