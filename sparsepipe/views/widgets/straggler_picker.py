"""Pickers for who is slow, of every explorer that simulates pipelines: presets, and a text as --inject takes it."""

from typing import Any

from ...util.io.quantities import TIME
from ..glossary import definition
from . import looks
from .controls import count_slider, dropdown, number_slider, written
from .several import JITTER, NOBODY, PIPELINE, SLOW, STOP, TYPED, HeldUp
from .stop_slider import StopSlider

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
_NAMES = ("pipeline", "rank", "factor", "chance", "seconds", "text")


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
        return self.kind, *(getattr(self, name) for name in _NAMES)

    @property
    def picked(self) -> HeldUp:
        """The straggler that the controls describe; unused controls are ignored."""
        return HeldUp(self.kind.value, **{name: getattr(self, name).value for name in _USED[self.kind.value]})

    def follow(self) -> None:
        """Show those controls alone that say something about what is picked."""
        for name in _NAMES:
            control, used = getattr(self, name), name in _USED[self.kind.value]
            control.disabled = not used
            looks.show(control, on=used)
