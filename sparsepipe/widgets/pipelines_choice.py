"""The partition explorer's controls for several pipelines: how many, the rule by which they average, who is slow."""

from typing import Any

from ..display.markup import Html
from ..io.options import option_values, written_value
from ..replication import RULES, parse_rule
from . import looks
from .controls import count_slider, dropdown, written
from .html_view import HtmlView
from .sentences import sentence
from .several import NOBODY, Several
from .straggler_picker import StragglerPicker

_RULE, _MOST_PIPELINES = "partial-reduce", 8
_EXAMPLE = "such as every=2"
_SMALL = Html("<div style='font-size:12px;line-height:1.4'>{}</div>")
_PINNED = "What is pinned is a plan of one pipeline: unpin cuts and devices to have several"


class PipelinesChoice:
    """`widget` is what to display, `picked` what it says: None for one pipeline, of which all else is hidden.

    `num_devices`: of the cluster given; the slider goes so far. `most` devices may be typed.
    """

    def __init__(self, *, num_devices: int, most: int) -> None:
        high = max(2, min(num_devices, _MOST_PIPELINES))
        tip = "copies of the network that train together, each on a part of the devices"
        self.slider = count_slider("pipelines", 1, low=1, high=high, most=most, tip=tip)
        self.rule = dropdown("rule", list(RULES), "how pipelines average their copies of the network")
        self.rule.value = _RULE
        tip = "option=value,… of the rule as --replication takes them, those that differ from its defaults; press Enter"
        self.options = written("its options", example=_EXAMPLE, tip=tip)
        self.straggler = StragglerPicker(pipelines=high, ranks=num_devices, most=most, kind=NOBODY)
        self.about, self.note = HtmlView(layout={"width": "330px"}), HtmlView(layout={"width": "330px"})
        self._rule, self._pinned = "", False  # the rule that is told about
        self.more = looks.VBox([self.rule, self.about, self.options, *self.straggler.controls])
        self.widget = looks.VBox([self.slider, self.note, self.more])
        self.follow(None, pinned=False)

    @property
    def controls(self) -> tuple[Any, ...]:
        """All whose value is a setting."""
        return self.slider, self.rule, self.options, *self.straggler.controls

    @property
    def picked(self) -> Several | None:
        count = 1 if self._pinned else self.slider.value
        if count == 1:
            return None
        options = self.options.value.strip()
        rule = f"{self.rule.value}:{options}" if options else self.rule.value
        return Several(int(count), rule, self.straggler.picked)

    def follow(self, change: Any, *, pinned: bool) -> None:
        """Offer what goes with what is picked, after a `change` if there was one.

        `pinned`: cuts or devices are kept, which are those of one pipeline.
        """
        if change is not None and change["owner"] is self.rule:  # the options were those of another rule
            self.options.value = ""
        self._pinned = self.slider.disabled = pinned
        self.note.value = _SMALL.format(_PINNED) if pinned else ""
        looks.show(self.more, on=self.picked is not None)
        if self.picked is None:  # a move costs nothing more then
            return
        if self._rule != self.rule.value:
            self._rule = self.rule.value
            self.options.disabled = not option_values(parse_rule(self.rule.value))
            self.options.placeholder = "none" if self.options.disabled else _EXAMPLE
            self.about.value = _SMALL.format(_about(self.rule.value))
        self.straggler.follow()


def _about(name: str) -> str:
    """What a rule averages, and its options as they are by default."""
    options = option_values(parse_rule(name))
    told = ", ".join(f"{option}={written_value(value)}" for option, value in options.items())
    summary, left = RULES[name].summary, " (none: left to the rule)" if None in options.values() else ""
    return f"{sentence(summary)}. " + (f"Options{left}: {told}" if told else "It has no options.")
