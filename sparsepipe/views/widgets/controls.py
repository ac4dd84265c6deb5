"""Labelled sliders, pickers and lines of text of one width.

Tips show what ipywidgets' controls do not by themselves: tooltips of those with a name, knobs, arrows. Pickers for who
is slow, of every explorer that simulates pipelines, have presets, and a text as --inject takes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from ...util.io.quantities import BANDWIDTH, SIZE, TIME
from ..glossary import definition
from . import looks
from .settings import JITTER, NOBODY, PIPELINE, SLOW, STOP, TYPED, HeldUp
from .stop_slider import Plain, StopSlider, Whole

_WIDE = {"width": "330px"}
_NAMES = {"description_width": "118px"}
_INF = float("inf")
# 24 preferred numbers a decade (IEC 60063): even steps, and no readout of them is rounded.
_E24 = "1 1.1 1.2 1.3 1.5 1.6 1.8 2 2.2 2.4 2.7 3 3.3 3.6 3.9 4.3 4.7 5.1 5.6 6.2 6.8 7.5 8.2 9.1".split()
_BANDWIDTHS = [*(float(f"{m}e{e}") for e in range(6, 12) for m in _E24), 1e12]
_MEMORY = [float(f"{m}e{e}") for e in range(7, 12) for m in (1, 1.5, 2, 3, 4, 6, 8)]
_LATENCIES = [0.0, *(float(f"{m}e{e}") for e in range(-7, -1) for m in (1, 2, 3, 5, 7))]

Named = Mapping[Any, tuple[str, float]]


def count_slider(name: str, value: int, *, low: int, high: int, most: int, tip: str) -> StopSlider:
    """Whole numbers from `low` to `high`; one up to `most` may be typed, and the slider then goes so far."""
    return StopSlider(
        name,
        value,
        Whole(name, low, most),
        stops=range(low, high + 1),
        up_to=lambda value: range(high + 1, value + 1),
        tooltip=tip,
    )


def bandwidth_slider(name: str, given: Iterable[float], tip: str) -> StopSlider:
    """Bytes per second, from the value given; None, "as given", if several are."""
    return _link_slider(name, given, BANDWIDTH, _BANDWIDTHS, tip)


def latency_slider(name: str, given: Iterable[float], tip: str) -> StopSlider:
    """Seconds, from the value given; None, "as given", if several are."""
    return _link_slider(name, given, TIME, _LATENCIES, tip)


def memory_slider(name: str, tip: str) -> StopSlider:
    """Bytes; 0 stands for the limits given."""
    return StopSlider(name, 0.0, SIZE, stops=_MEMORY, named={0.0: ("as given", _INF)}, tooltip=tip)


def number_slider(name: str, value: float, options: Iterable[float], tip: str) -> StopSlider:
    """Numbers without a unit; others than the options may be typed."""
    return StopSlider(name, value, Plain(name), stops=options, tooltip=tip)


def choice_slider(name: str, value: int, options: Iterable[int], *, most: int, tip: str) -> StopSlider:
    """Whole numbers that are far apart; others up to `most` may be typed."""
    return StopSlider(name, value, Whole(name, 1, most), stops=options, tooltip=tip)


def dropdown(name: str, options: object, tip: str) -> ipywidgets.Dropdown:
    return looks.Dropdown(options=options, description=name, layout=_WIDE, style=_NAMES, tooltip=tip)


def written(name: str, *, example: str, tip: str) -> ipywidgets.Text:
    """A line of text, taken when it is left or Enter is pressed."""
    return looks.Text(
        description=name, placeholder=example, tooltip=tip, continuous_update=False, layout=_WIDE, style=_NAMES
    )


def toggle(name: str, tip: str) -> ipywidgets.ToggleButton:
    return looks.ToggleButton(description=name, tooltip=tip, layout={"width": "160px"})


def folded(name: str, tip: str, content: ipywidgets.Box) -> ipywidgets.ToggleButton:
    """A button that shows `content`, which is hidden at first, and hides it again."""
    button = looks.ToggleButton(description=name, tooltip=tip, icon="caret-right")
    button.add_class("sp-fold-button")

    def follow(_: object = None) -> None:
        button.icon = "caret-down" if button.value else "caret-right"
        looks.show(content, on=button.value)

    button.observe(follow, names="value")
    follow()
    return button


def _link_slider(name: str, given: Iterable[float], reading: Any, stops: Iterable[float], tip: str) -> StopSlider:
    values = sorted(set(given))
    named: Named = {None: ("as given", values[-1])} if len(values) > 1 else {}
    told = f"{tip}; given: {' to '.join(dict.fromkeys(map(reading.shown, (values[0], values[-1]))))}"
    start = None if named else values[0]
    return StopSlider(name, start, reading, stops={*stops, *values}, named=named, tooltip=told)


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


_FACTORS = (1.5, 2, 3, 4, 6, 8, 16)
_CHANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_SECONDS = [float(f"{m}e{e}") for e in (-3, -2, -1, 0, 1) for m in (1, 2, 5)]
# What counts of each kind: the other controls are hidden.
_USED = {
    PIPELINE: ("pipeline", "factor"),
    SLOW: ("rank", "factor"),
    JITTER: ("chance", "seconds"),
    STOP: ("rank", "seconds"),
    TYPED: ("text",),
    NOBODY: (),
}
_PARTS = ("pipeline", "rank", "factor", "chance", "seconds", "text")


class StragglerPicker:
    """`controls` are what to display, `picked` is what they say.

    `pipelines` and `ranks`: how many their sliders offer; of ranks up to `most` may be typed, of pipelines as many.
    """

    def __init__(self, *, pipelines: int, ranks: int, most: int, kind: str = PIPELINE) -> None:
        self.kind = dropdown("straggler", list(_USED), definition("straggler"))
        self.kind.value = kind
        last = max(1, most - 1)
        tip = "pipeline whose ranks are all slow"
        self.pipeline = count_slider("slow pipeline", 0, low=0, high=max(1, pipelines - 1), most=last, tip=tip)
        tip = "rank that is slow or stops"
        self.rank = count_slider("slow rank", 0, low=0, high=max(1, ranks - 1), most=last, tip=tip)
        self.factor = number_slider("slowdown factor", 4.0, _FACTORS, "slowdown factor of slow ranks")
        self.chance = number_slider("chance", 0.1, _CHANCES, "probability that a rank sleeps in a minibatch")
        self.seconds = StopSlider(
            "sleeps, stops for", 0.1, TIME, stops=_SECONDS, tooltip="duration of a sleep or a stop (s)"
        )
        self.text = written(
            "custom straggler",
            example="slow:rank=0,factor=4,from=8;jitter:p=0.1,seconds=0.05",
            tip="straggler as KIND:option=value,… (like train --inject); separate several by semicolons; press Enter",
        )
        self.follow()

    @property
    def controls(self) -> tuple[Any, ...]:
        return self.kind, *(getattr(self, name) for name in _PARTS)

    @property
    def picked(self) -> HeldUp:
        """The straggler that the controls describe; unused controls are ignored."""
        return HeldUp(self.kind.value, **{name: getattr(self, name).value for name in _USED[self.kind.value]})

    def follow(self) -> None:
        """Show those controls alone that say something about what is picked."""
        for name in _PARTS:
            control, used = getattr(self, name), name in _USED[self.kind.value]
            control.disabled = not used
            looks.show(control, on=used)
