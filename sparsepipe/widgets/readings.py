"""Parse and write the values of sliders that have no unit: whole numbers and plain numbers."""

from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError
from ..io.fields import MOST, shown


class Reading(Protocol):
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
