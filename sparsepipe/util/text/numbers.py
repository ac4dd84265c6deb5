"""Numbers for people: as given, measured ones in three digits, those of a figure or column with as many places each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil, floor, isclose, isfinite, log10
from typing import Any

import numpy as np

Form = Callable[[float], str]
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_BYTE_UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
_IN_SECONDS = 10.0  # from so many on a duration is told in seconds, below in milliseconds
_AXIS_IN_SECONDS = 1.0  # an axis that ends below is in milliseconds
_MANY_CELLS = 16  # along a side: of fewer the decimal number is as short, 0.125
_NO_GAP = 1e-9  # a share: what plans and bounds differ by where they are the same


def as_given(value: float) -> str:
    """Return a number as somebody wrote it, "0.0078125"; with three digits if it has more than people write."""
    short = f"{value:g}"
    written = abs(value) < 1e6 and isclose(float(short), value, rel_tol=1e-12)  # 7e-5 s are 69.99999999999999 µs
    return short if written else as_measured(value)


def voxel_size_text(size: float) -> str:
    """Return a voxel size to be read, not to be typed: "1/128" of a side that was halved so often or that has no
    short decimal number, else as given, "0.03".
    """
    cells = round(1 / size) if size > 0 else 0
    halved = cells >= _MANY_CELLS and not cells & (cells - 1)
    is_long = not isclose(float(f"{size:.3g}"), size, rel_tol=_NO_GAP)
    return f"1/{cells}" if isclose(cells * size, 1, rel_tol=_NO_GAP) and (halved or is_long) else as_given(size)


def as_measured(value: float) -> str:
    """Return a measured or predicted number with three digits, and all that stand before the point: "5.30", "1,234".

    Zeros are kept, for they are measured as the other digits are; 0 itself is "0". From 0.001 on, and below 10¹⁵, it
    has no exponent.
    """
    if not value or not isfinite(value):
        return f"{value}" if value else "0"
    mantissa, power = f"{value:.2e}".split("e")
    if not -3 <= int(power) < 15:
        return powered(float(f"{mantissa}e{power}"), 3)
    return f"{value:,.{max(0, 2 - int(power))}f}"


def alike(values: Iterable[float], digits: int) -> Form:
    """As many places after the point for all numbers of a figure or column as give the largest so many digits."""
    most = max((abs(value) for value in values if value == value), default=0.0)
    places = max(0, digits - 1 - floor(log10(most))) if most else 0

    def form(value: float) -> str:
        small = value and abs(value) < 0.5 * 10**-places
        return f"{value:.1g}" if small else f"{value:,.{places}f}"

    return form


def powered(value: float, digits: int = 2) -> str:
    """Return a number far from 1 as people write it, "8.6 × 10⁻⁸"; as it is from 0.001 to 1000, and 0."""
    if not value or 1e-3 <= abs(value) < 1e3:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa} × 10{str(int(power)).translate(_RAISED)}"


def at_most(value: float, digits: int = 3, *, places: int | None = None) -> float:
    """Return a number rounded up, for "at most" to be true of what is shown: to so many digits, or `places` after the
    point where those are fixed, as by ":.1%" (3 places). Of 0.1234 it is 0.124.
    """
    if not value or not isfinite(value):
        return value
    if places is None:
        places = digits - 1 - floor(log10(abs(value)))
    step = 10.0**-places
    return ceil(value / step - _NO_GAP) * step  # what a float adds to 0.07 is no more


def percent(share: float) -> str:
    """A measured share in three digits, "24.4%", "236%"; less than a thousandth of a per cent is reported as less."""
    if share and abs(share) < 1e-5:
        return "below 0.001%"
    return f"{as_measured(100 * share)}%"


def rate_text(rate: float, what: str = "samples") -> str:
    """A measured or predicted throughput: "1,397 samples/s"; of "minibatches" if no one knows how many samples one
    has.
    """
    return f"{as_measured(rate)} {what}/s"


def pace_text(row: Mapping[str, Any]) -> str:
    """The throughput in a row of a run's metrics, with its unit; empty if there is none."""
    rates = ((row.get(f"{what}_per_second"), what) for what in ("samples", "minibatches"))
    return next((rate_text(rate, what) for rate, what in rates if rate is not None), "")


def validation_text(row: Mapping[str, Any]) -> str:
    """Return the text on the validation in a row or summary: "validation accuracy 93.1%", or that nothing was
    labelled; of several pipelines also whose weights it is of. Empty without a validation, or if it has no accuracy.
    """
    scores: Mapping[str, Any] = row.get("validation") or {}
    if scores.get("counted") == 0 and scores.get("loss") is None:
        return "validation without labels: no loss, no accuracy"
    if (accuracy := scores.get("accuracy")) is None:
        return ""
    pipelines = list(row.get("validated_pipelines") or [])
    whose = f" (weights of pipeline {pipelines[0]})" if len(pipelines) == 1 else ""
    return f"validation accuracy {accuracy:.1%}{whose}"


def duration(seconds: float, unit: str | None = None) -> str:
    """A measured or predicted time: "5.30 ms", "1,034 ms", and "12.3 s" from ten seconds on; in `unit`, "ms" or "s",
    where the axis next to it has one.
    """
    unit = unit or ("s" if abs(seconds) >= _IN_SECONDS else "ms")
    return f"{as_measured(seconds if unit == 's' else seconds * 1e3)} {unit}"


def duration_or_none(seconds: float | None) -> str:
    """A time for a table: "–" if it is not known, or nothing is done, as by one replica that averages with none."""
    return duration(seconds) if seconds else "–"


def time_unit(most: float) -> tuple[str, float]:
    """The unit for an axis that ends at `most` seconds, and how many of it a second has: "ms" below a second."""
    return ("ms", 1e3) if most < _AXIS_IN_SECONDS else ("s", 1.0)


def gap_text(gap: float) -> str:
    """Return a plan's optimality gap as text, "3.4%": "0%" is provably optimal, "<0.1%" is not proven."""
    if gap < _NO_GAP:
        return "0%"
    return f"{gap:.1%}" if gap >= 0.0005 else "<0.1%"


def byte_unit(most: float) -> tuple[str, float]:
    """The unit for an axis that ends at `most` bytes, and its size in bytes."""
    return next(((unit, size) for unit, size in _BYTE_UNITS.items() if most >= size), ("B", 1.0))


def scaled_bytes(value: float, unit: str | None = None, *, form: Form = as_measured) -> str:
    """Bytes for people, "3.20 MB": in `unit` where an axis has one, else in the unit that suits the value; whole ones
    that somebody gave, such as a device's memory, by `as_given`.
    """
    unit = unit or byte_unit(value)[0]
    return f"{value:,.0f} B" if unit == "B" else f"{form(value / _BYTE_UNITS[unit])} {unit}"


class Printed:
    """A value that `print` shows as the views do. They stand above it, and are imported when it is first printed."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(import_module("sparsepipe.views").text(self, all_in="to_json() has all"))


def number_of(count: float, word: str, shown: str | Callable[[float], str] = "") -> str:
    """Return the count with its word, in the plural unless it is one; `shown` is how, as "," or `numbers.as_given`."""
    text = f"{count:{shown}}" if isinstance(shown, str) else shown(count)
    return f"{text} {word if count == 1 else plural(word)}"


def plural(word: str) -> str:
    """Return the plural of a regular word: "minibatches" of "minibatch", "boundaries" of "boundary", and "epochs"."""
    if word.endswith("epoch"):  # in which "ch" is a "k"
        return f"{word}s"
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def counted(names: Iterable[str]) -> str:
    """Return things by kind, as people write them: "2 × RTX + tv"; a kind's name may begin with a digit."""
    every = list(names)
    each = ((name, every.count(name)) for name in dict.fromkeys(every))
    return " + ".join(name if count == 1 else f"{count} × {name}" for name, count in each)


def listed(numbers: Iterable[int]) -> str:
    """ "0, 2 and 4"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


# The first of them that a row of metrics has is its size: samples are in each.
# Active voxels at a sparse network's input, points of clouds as they are, tokens of a text, and pixels of pictures of
# several sizes.
SIZE_UNITS = ("voxels", "points", "tokens", "pixels", "samples")


# Units of a minibatch's size (voxels, tokens, pixels, samples), with which costs grow; and how sure costs are
def size_words(unit: str) -> str:
    """Return a unit of size as figures and messages write it: "active voxels" are those that hold points."""
    return f"active {unit}" if unit == "voxels" else unit


EXTRAPOLATED = 1.005  # times beyond a measured size: less, and digits do not show it


@dataclass(frozen=True, slots=True)
class Certainty:
    """Of the seconds predicted for a minibatch of one size.

    `factor`: how many times the size is beyond the nearest measured one, 1 within the measured range. `share`: by which
    the seconds may be off, about one standard deviation.
    """

    factor: float = 1.0
    share: float = 0.0

    @property
    def extrapolated(self) -> bool:
        """Return whether the size is beyond what was measured, by more than digits show."""
        return self.factor > EXTRAPOLATED

    def __str__(self) -> str:
        """ "extrapolated 4 ×: ± 20%", or "± 3%" within the measured range."""
        share = f"± {100 * self.share:.0f}%"
        factor = f"{self.factor:,.0f}" if self.factor >= 100 else f"{self.factor:.3g}"  # no exponent: 2,050 ×
        return f"extrapolated {factor} ×: {share}" if self.extrapolated else share

    def to_json(self) -> dict[str, float]:
        """Return the JSON values for plan files and results."""
        return {"extrapolation": self.factor, "uncertainty": self.share}

    @staticmethod
    def beyond(*known: "Certainty | None") -> str:
        """Return what is said wherever times are predicted: "extrapolated 4 ×: ± 20%", of the worst of `known`.

        Empty if all sizes are within the measured range, and for times that do not depend on size.
        """
        worst = Certainty()
        for certainty in known:
            worst |= certainty or Certainty()
        return str(worst) if worst.extrapolated else ""

    def __or__(self, other: "Certainty") -> "Certainty":
        """Combine two certainties: the worse value of each field."""
        return Certainty(max(self.factor, other.factor), max(self.share, other.share))


_QUANTILES = {"least": 0.0, "1%": 0.01, "25%": 0.25, "median": 0.5, "75%": 0.75, "99%": 0.99, "most": 1.0}
_BINS = 12
_BARS = " ▁▂▃▄▅▆▇█"


def sizes_spread(sizes: Sequence[float]) -> dict[str, Any]:
    """Return quantiles of `sizes`, and how many lie in each of equal steps from least to most on a logarithmic axis.

    Raises ValueError without any.
    """
    values = np.maximum(np.asarray(sizes, dtype=float), 1.0)
    found = dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values())).tolist(), strict=True))
    low, high = found["least"], found["most"]
    edges = np.geomspace(low, high, _BINS + 1) if high > low else np.array([low, low + 1])
    edges[0], edges[-1] = low, max(high, low + 1)
    return {"samples": len(values), **found, "histogram": np.histogram(values, edges)[0].tolist()}


def spread_text(spread: Mapping[str, Any], unit: str) -> str:
    """Return "voxels of a sample: 1,700 ▂▅█▇▃▁ 50,000, median 6,200, 1% to 99% 1,900 to 41,000"."""
    most = max(spread["histogram"])
    bars = "".join(_BARS[-(-(len(_BARS) - 1) * count // most)] for count in spread["histogram"])
    of = {name: f"{spread[name]:,.0f}" for name in _QUANTILES}
    return (
        f"{unit} of a sample: {of['least']} |{bars}| {of['most']}, median {of['median']}, 25% to 75% {of['25%']} to "
        f"{of['75%']}, 1% to 99% {of['1%']} to {of['99%']}"
    )
