"""ipywidgets' controls that send few messages: their layouts and styles are shared, and a page receives them
once.

ipywidgets sends a control to the page when it is made, and then each change that a panel makes while it is put
together. These wait until they are shown, or are in a box that is; what is hidden in the box waits on.

Their tooltips are sentences, which begin with capitals.

A layout that is shared never changes. What is to be hidden is given another one: `show(control, on=False)`. A control
that is given a `Layout` or a style, and not settings of one, keeps it as its own.

Sentences on screen begin with capitals: messages, which a command line shows behind "error:", do not.

The code of a widget's page is files of this folder, read together as one module.
"""

import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ipywidgets
import traitlets
from ipywidgets.widgets.trait_types import TypedTuple

from ...planning import PLANNERS
from ...values.replication import RULES
from ...values.schedule_rules import SCHEDULE_RULES
from ..markup import Html, joined

_FIRST = re.compile(r"[a-z]+(?=[ ,;:.!?…]|$)")  # no path, file or name with other signs in it
_NAMES = {*PLANNERS, *SCHEDULE_RULES, *RULES}


def sentence(text: str) -> str:
    """Return text with a capital at its beginning, unless it begins with a name."""
    found = _FIRST.match(text)
    if found is None or found[0] in _NAMES:
        return text
    return text[0].upper() + text[1:]


def page_code(*names: str) -> str:
    """Return the text of these files, one after the other."""
    return "".join(Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8") for name in names)


OWN_WIDTH = {"description_width": "initial"}  # a style: the name beside a control is as wide as its text

_lock = threading.RLock()  # what is shown opens all that is in it
_shared: dict[tuple[type, frozenset[tuple[str, Any]]], "_Fixed"] = {}


class _Late(ipywidgets.Widget):
    """Values that the page receives when it is first shown, or something that holds it is, in the state that it has
    then.

    Its clicks and values are served while a cell runs: JupyterLab sends them to a thread alongside the one that runs
    cells, but ipykernel 7.4 takes them back to the thread that last spoke of the control, which for one that a cell has
    made is the cells' own.
    """

    def open(self) -> None:
        """Wait for `model_id`, by which the page and whatever holds this name it."""

    @property
    def model_id(self) -> Any:
        with _lock:
            if not self.comm:
                before = self.get_state()
                super().open()
                if hasattr(self.comm, "_reply_subshell_for"):
                    self.comm._reply_subshell_for = _as_sent
                # What another thread changed meanwhile was neither told with the rest nor sent.
                if late := [name for name, value in self.get_state().items() if value != before[name]]:
                    self.send_state(late)
            return super().model_id


def _as_sent(data: object, subshell: str | None) -> str | None:
    return subshell


class _Fixed(_Late):
    """A layout or style that raises AttributeError if it would be changed."""

    _made = False

    def settle(self) -> None:
        """From here on nothing changes it."""
        self._made = True

    def __setattr__(self, name: str, value: object) -> None:
        if self._made and name in type(self).class_trait_names(sync=True):
            raise AttributeError(
                f"{name}: many controls share this value; copy it before changing it, as widgets.looks.show does"
            )
        super().__setattr__(name, value)


@cache
def _fixed(kind: traitlets.MetaHasTraits) -> type[_Fixed]:
    return type(kind.__name__, (_Fixed, kind), {})


def shared(kind: traitlets.MetaHasTraits, settings: Mapping[str, Any]) -> _Fixed:
    """Return the one layout or style of these settings."""
    key = kind, frozenset(settings.items())
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = _fixed(kind)(**settings)
            found.settle()
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


class Control(_Late):
    """Takes settings of its `layout` and `style`, if it has one, and shares them with all that are given the same."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        for name in ("layout", "style"):
            trait = type(self).class_traits().get(name)
            if trait is not None and isinstance(given := settings.get(name, {}), Mapping):
                shows = {"display": ""} if name == "layout" else {}  # what `show` gives: one layout for both
                settings[name] = shared(trait.klass, shows | dict(given))
        super().__init__(*arguments, **settings)

    def _repr_mimebundle_(self, **given: Any) -> Any:
        self._model_id = self.model_id  # ipywidgets shows what the page knows already
        bundle = super()._repr_mimebundle_(**given)
        data, *metadata = bundle if isinstance(bundle, tuple) else (bundle,)
        if not data:
            return bundle
        data = {**self.static_picture(), **data}
        return (data, *metadata) if metadata else data

    def static_picture(self) -> dict[str, str]:
        """Return what an output shows of this without a kernel, by media type; empty if there is nothing to see."""
        return {}

    @traitlets.validate("tooltip")
    def _sentence(self, proposal: dict[str, Any]) -> str | None:
        return proposal["value"] and sentence(proposal["value"])


def _waits(child: ipywidgets.Widget) -> bool:
    """Return whether a child of a box was never shown and is still hidden, by `show`."""
    return child.comm is None and isinstance(child.layout, _Fixed) and child.layout.display == "none"


def _shown(children: tuple[ipywidgets.Widget, ...], box: "_Box") -> Any:
    return ipywidgets.widget_serialization["to_json"]([child for child in children if not _waits(child)], box)


class _Box(Control, ipywidgets.Box):
    """Leaves out what is hidden until it is shown for the first time, with whatever it holds."""

    children = TypedTuple(traitlets.Instance(ipywidgets.Widget)).tag(sync=True, to_json=_shown)

    def static_picture(self) -> dict[str, str]:
        """The first picture among what is not hidden; without one the text and the tables, one below the other."""
        visible = [child for child in self.children if getattr(child.layout, "display", "") != "none"]
        views = [view for child in visible if isinstance(child, Control) and (view := child.static_picture())]
        picture = next((view for view in views if any(kind.startswith("image/") for kind in view)), None)
        if picture is not None:
            return picture
        texts = [Html("<div>{}</div>").format(Html(view["text/html"])) for view in views if "text/html" in view]
        return {"text/html": str(joined(texts))} if texts else {}

    @traitlets.observe("children")
    def _await(self, change: dict[str, Any]) -> None:
        for child in change["new"]:
            if child.comm is None:
                child.observe(self._appeared, "layout")

    def _appeared(self, change: dict[str, Any]) -> None:
        child = change["owner"]
        with _lock:  # not while this box is told of without the child
            if self.comm is None or _waits(child):
                return
            child.unobserve(self._appeared, "layout")
            if child.comm is None:
                self.send_state("children")


class HBox(_Box, ipywidgets.HBox):
    pass


class VBox(_Box, ipywidgets.VBox):
    pass


class Button(Control, ipywidgets.Button):
    pass


class Dropdown(Control, ipywidgets.Dropdown):
    pass


class Text(Control, ipywidgets.Text):
    pass


class ToggleButton(Control, ipywidgets.ToggleButton):
    pass


class Label(Control, ipywidgets.Label):
    pass


class Checkbox(Control, ipywidgets.Checkbox):
    pass


class IntProgress(Control, ipywidgets.IntProgress):
    pass


class BoundedIntText(Control, ipywidgets.BoundedIntText):
    pass


class FloatText(Control, ipywidgets.FloatText):
    pass


class SelectMultiple(Control, ipywidgets.SelectMultiple):
    pass
