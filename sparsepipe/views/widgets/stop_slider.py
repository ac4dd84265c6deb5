"""A slider over named values, with a readout into which other values can be typed.

ipywidgets' sliders move a value to their grid when they are displayed, keep a typed one within their range without a
word, and tell screen readers the place on the grid. Here the value is what was given, to the bit, until somebody moves
the slider; a value that is typed is read with its unit and gets a place of its own, or is refused in one line.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import anywidget
import traitlets

from ...errors import InputError
from ...util.io.fields import MOST, shown
from . import looks
from .looks import page_code, sentence


class SliderReading(Protocol):
    """Reads what is typed, writes what is shown. `read` raises InputError for what is no such value."""

    def read(self, text: str) -> float: ...

    def shown(self, value: float) -> str: ...


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `least` to `most`."""

    name: str
    least: int
    most: int

    def read(self, text: str) -> int:
        words = text.strip()
        if not (words.isascii() and words.isdigit() and len(words) < 10 and self.least <= int(words) <= self.most):
            raise InputError(
                "number.not_whole",
                f"{shown(text)}: expected a whole number for {self.name}, {self.least} to {self.most}",
            )
        return int(words)

    def shown(self, value: float) -> str:
        return f"{value:.0f}"


@dataclass(frozen=True)
class Plain:
    """Numbers without a unit, more than 0."""

    name: str

    def read(self, text: str) -> float:
        try:
            value = float(text) if "_" not in text else float("nan")
        except ValueError:
            value = float("nan")
        if not 1 / MOST <= value <= MOST:
            raise InputError(
                "number.out_of_range",
                f"{shown(text)}: expected a number of more than 0 for {self.name}, without a unit",
            )
        return value

    def shown(self, value: float) -> str:
        return f"{value:.6g}"


def _told(value: object, slider: "StopSlider") -> str:
    return slider.key(value)


def _meant(key: object, slider: "StopSlider") -> Any:
    return slider.of_key(str(key))


class StopSlider(looks.Control, anywidget.AnyWidget):
    """`value` is one of the stops; a value that is not among them, typed or assigned, becomes one.

    `named` are values with a name and no number, each with the number that it is placed behind: {None: ("as
    given", inf)}. `up_to` returns the stops that a new value brings with it. `refusal` says why what was typed last was
    not taken; assigning what `reading` would not read raises InputError.
    """

    _esm = page_code("names", "stop_slider")
    value = traitlets.Any().tag(sync=True, to_json=_told, from_json=_meant)
    stops: traitlets.List[list[str]] = traitlets.List().tag(sync=True)  # [key, text] in order
    given = traitlets.Unicode("").tag(sync=True)  # the key of the value to mark
    band: traitlets.List[str] = traitlets.List([]).tag(sync=True)  # the keys of the first and last stop that is shaded
    description = traitlets.Unicode("").tag(sync=True)
    tooltip = traitlets.Unicode("").tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)
    refusal = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        name: str,
        value: object,
        reading: SliderReading,
        *,
        stops: Iterable[float],
        named: Mapping[Any, tuple[str, float]] | None = None,
        up_to: Callable[[Any], Iterable[float]] | None = None,
        tooltip: str = "",
    ) -> None:
        self.reading, self.named, self._up_to = reading, dict(named or {}), up_to or (lambda value: [value])
        self._values: dict[str, Any] = {self.key(each): each for each in [*stops, *self.named]}
        look = {"width": "330px", "min_height": "28px"}
        super().__init__(description=name, tooltip=tooltip, value=value, given=self.key(value), layout=look)
        self.on_msg(self._asked)

    def key(self, value: Any) -> str:
        """The value as the page names it: no number is rounded on the way."""
        return repr(value if value in self.named else float(value))

    def of_key(self, key: str) -> Any:
        """The value of that name; the present one if there is none such."""
        return self._values.get(key, self.value)

    @property
    def text(self) -> str:
        """The value as the readout shows it."""
        return self._text(self.value)

    @property
    def max(self) -> float:
        """The largest stop."""
        largest: float = max(value for value in self._values.values() if value not in self.named)
        return largest

    @property
    def values(self) -> list[Any]:
        """The values of all stops, in order."""
        return list(self._values.values())

    def shade(self, values: Iterable[Any]) -> None:
        """Shade the stops from the first of these values to the last; none without values."""
        keys = [self.key(value) for value in values]
        self.band = [keys[0], keys[-1]] if keys else []

    def type(self, text: str) -> None:
        """Take what was typed into the readout. Raises InputError, and keeps the value, for what cannot be read."""
        words = " ".join(text.split())
        if words == self.text:  # the readout rounds: what was not changed stays as it is
            return
        named = {label: value for key, value in self._values.items() if (label := self._text(value)) == words}
        self.value = named[words] if words in named else self.reading.read(text)

    @traitlets.validate("value")
    def _stop(self, proposal: Any) -> Any:
        """Refuse a value that `reading` would refuse; add a stop for one that does not exist yet."""
        value = proposal["value"]
        if value not in self.named:
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InputError("number.not_a_number", f"{self.description}: {value!r} given, expected a number")
            if self.key(value) not in self._values and value != float("inf"):
                number = float(value)
                value = self.reading.read(repr(int(number) if number.is_integer() else number))
        if self.key(value) not in self._values or not self.stops:
            more = [value] if value in self.named or value == float("inf") else self._up_to(value)
            every = self._values | {self.key(each): each for each in more}
            self._values = dict(sorted(every.items(), key=lambda pair: self._place(pair[1])))
            self.stops = [[key, self._text(each)] for key, each in self._values.items()]
        return self._values[self.key(value)]

    @traitlets.observe("value")
    def _taken(self, _: object) -> None:
        self.refusal = ""

    def _place(self, value: Any) -> tuple[float, int]:
        return (self.named[value][1], 1) if value in self.named else (value, 0)

    def _text(self, value: Any) -> str:
        return self.named[value][0] if value in self.named else self.reading.shown(value)

    def _asked(self, _: object, content: object, __: object) -> None:
        if not isinstance(content, dict) or not isinstance(content.get("typed"), str):
            return
        try:
            self.refusal = ""
            self.type(content["typed"])
        except InputError as error:
            self.refusal = sentence(str(error))
        self.send({"read": True})  # the readout shows the value again, whether it is another or not
