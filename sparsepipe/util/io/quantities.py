"""Quantities with units: read sizes, bandwidths and times ("24 GiB", "10 Gbit/s", "50 us"), write "12 GB/s".

One reader for whatever is typed, on the command line or into a widget. SI prefixes count by 1000, binary ones (Ki, Mi,
Gi) by 1024. What could be meant in two ways is refused with what to write instead.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from ...errors import InputError
from .fields import MOST, shown

_SI = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_BIG = {**{name: Fraction(10**power) for name, power in _SI.items()}, **{n: Fraction(2**p) for n, p in _BINARY.items()}}
_SMALL = {"": 0, "m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9}  # both Unicode characters that look like the micro sign
_LONGEST = 60  # characters; a number of thousands of digits is a slip, and slow to read
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(.*?)\s*")


@dataclass(frozen=True)
class Quantity:
    """Physical quantity of a number. `units`: suffix → multiple of the base unit."""

    name: str
    unit: str  # the base unit: "B/s"
    example: str
    units: Mapping[str, Fraction]
    doubtful: Mapping[str, str]  # what could be meant in two ways → what to write instead
    steps: tuple[tuple[str, float], ...]  # (unit, its size) that values are written in, the largest first
    zero: bool = False  # whether 0 is a value

    def read(self, text: str) -> float:
        """Return what `text` says, in the base unit. Raises InputError for anything but one number and its unit."""
        found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
        if found is None:
            raise InputError(
                "quantity.malformed",
                f"{shown(text)} is not a {self.name}, expected a number with its unit, such as {self.example}",
            )
        unit = " ".join(found[2].split())
        if unit in self.doubtful:
            raise InputError(
                "quantity.undecided",
                f"{shown(text)} is ambiguous as a {self.name}; write {self.doubtful[unit]}",
            )
        if unit not in self.units:
            raise InputError(
                "quantity.unit_unknown",
                f"{shown(text)}: {shown(unit)} is not a unit of {self.name}, expected a value such as {self.example}",
            )
        value = Fraction(found[1]) * self.units[unit]
        if not (self.zero and value == 0) and not 1 / MOST <= value <= MOST:
            least = "0 or more" if self.zero else "more than 0"
            raise InputError(
                "quantity.out_of_range", f"{text.strip()}: expected {least} and finite, such as {self.example}"
            )
        return float(value)

    def shown(self, value: float, digits: int = 4) -> str:
        """Write a value with the prefix that suits it: "12 GB/s"."""
        if value == float("inf"):
            return "no limit"
        if value == 0:
            return f"0 {self.unit}"
        for unit, size in self.steps:
            number = float(f"{value / size:.{digits}g}")
            if number >= 1:
                return f"{number:.{digits}g} {unit}" if number < 10**digits else f"{number:,.0f} {unit}"
        unit, size = self.steps[-1]
        return f"{value / size:.{digits}g} {unit}"

    def enough(self, value: float) -> str:
        """Write a round value that is no less: what a limit must be so that `value` fits."""
        if not 0 < value < float("inf"):
            return self.shown(value)
        step = Fraction(10) ** (math.floor(math.log10(value)) - 2)
        return self.shown(float(math.ceil(Fraction(value) / step) * step))


def _prefixed(prefixes: Mapping[str, Fraction], units: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {f"{prefix}{unit}": scale * size for prefix, scale in prefixes.items() for unit, size in units.items()}


def _steps(unit: str) -> tuple[tuple[str, float], ...]:
    prefixes = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
    return tuple((f"{prefix}{unit}", size) for prefix, size in prefixes)


_BYTE, _BIT, _ONE = Fraction(1), Fraction(1, 8), Fraction(1)
_PER_SECOND = {"": _ONE, "B/s": _BYTE, "Bps": _BYTE, "bit/s": _BIT, "bits/s": _BIT, "bps": _BIT}
_BYTES = {"": _ONE, "B": _BYTE, "bit": _BIT, "bits": _BIT}
_MILLI = {"m": "M for mega, as in 10 MB"}

BANDWIDTH = Quantity(
    "bandwidth",
    "B/s",
    "10 GB/s or 10 Gbit/s",
    {**_prefixed(_BIG, _PER_SECOND), "bytes/s": _BYTE},
    {
        **{f"{p}b/s": f"{p}B/s for bytes or {p}bit/s for bits" for p in _BIG},
        **{f"{p}B": f"{p}B/s, if it is per second" for p in _BIG},
        **_MILLI,
    },
    _steps("B/s"),
)
COUNT = Quantity("number", "", "200k or 1.5M", _BIG, {"m": "M for millions"}, _steps(""))
SIZE = Quantity(
    "size",
    "B",
    "24 GB or 24 GiB",
    {**_prefixed(_BIG, _BYTES), "bytes": _BYTE},
    {**{f"{p}b": f"{p}B for bytes or {p}bit for bits" for p in _BIG}, **_MILLI},
    _steps("B"),
)
TIME = Quantity(
    "time",
    "s",
    "50 us or 1 ms",
    {
        **{
            f"{p}{unit}": Fraction(10) ** power for p, power in _SMALL.items() for unit in ("s", "") if p != "m" or unit
        },
        "min": Fraction(60),
        "h": Fraction(3600),
    },
    {"m": "ms for milliseconds or min for minutes", "M": "ms for milliseconds or min for minutes"},
    (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    zero=True,
)


_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def meant(given: str, known: Iterable[str]) -> str | None:
    """Return the known word that a given one is nearest to, or begins; None if none is near."""
    words = list(known)
    if len(given.strip("-")) > 2 and (longer := [word for word in words if word.startswith(given)]):
        return longer[0]
    near = get_close_matches(given, words, n=1, cutoff=0.6)
    return near[0] if near else None


def expected(given: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant; if none is near, which there are."""
    names = list(known)
    near = meant(given, names)
    return f"did you mean {near!r}?" if near else f"expected some of {', '.join(sorted(names))}"


def keywords_of(*functions: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the functions' parameters that can be given by name."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    found = [one.name for each in functions for one in signature(each).parameters.values() if one.kind in kinds]
    return tuple(dict.fromkeys(found))


def check_keywords(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for the first of the `given` names that a call does not know."""
    names = set(known)
    for name in given:
        if name not in names:
            raise InputError("argument.unknown", f"{call} has no argument {shown(name)}: {expected(name, names)}")


def knows_its_keywords(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Have a public function raise InputError, which names it, for a keyword that it does not know."""
    known = frozenset(keywords_of(function))

    @wraps(function)
    def checked(*args: _Given.args, **given: _Given.kwargs) -> _Returned:
        if not known.issuperset(given):
            check_keywords(function.__qualname__, given, known)
        return function(*args, **given)

    return checked
