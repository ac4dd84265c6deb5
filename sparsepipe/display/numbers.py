"""Numbers for people: one that somebody gave as it was given, those of one column or figure with as many decimals."""

from collections.abc import Callable, Iterable
from math import floor, log10

Form = Callable[[float], str]
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def as_given(value: float) -> str:
    """Return a number as somebody wrote it, "0.0078125"; with three digits where it has more than people write."""
    short = f"{value:g}"
    return short if float(short) == value else f"{value:.3g}"


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
