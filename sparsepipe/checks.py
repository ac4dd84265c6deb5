"""Numbers, names and lists as files give them: of the right kind and size, or refused in one line."""

from typing import Any

from .errors import InputError

MOST = 1e30  # seconds, bytes or voxels: sums and products of such numbers are still finite
MOST_DEVICES = 65_536  # a larger count is a slip of the hand, and would fill the memory


def number(value: Any, what: str) -> float:
    """Return `value` as a float, 0 or more and finite. Raises InputError that names `what`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
        return float(value)
    raise InputError(f"{what} = {shown(value)}: expected a finite number, 0 or more")


def integer(value: Any, what: str, *, least: int = 0, most: int = 10**9) -> int:
    """Return `value` if it is a whole number from `least` to `most`. Raises InputError that names `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{what} = {shown(value)}: expected a whole number, {least} to {most}")
    return value


def text(value: Any, what: str) -> str:
    """Return `value` if it is a string. Raises InputError that names `what`."""
    if not isinstance(value, str):
        raise InputError(f"{what} = {shown(value)}: expected a string")
    return value


def texts(value: Any, what: str) -> tuple[str, ...]:
    """Return the strings of a list. Raises InputError that names `what`."""
    if not isinstance(value, list):
        raise InputError(f"{what} = {shown(value)}: expected a list of strings")
    return tuple(text(item, what) for item in value)


def shown(value: Any, most: int = 60) -> str:
    """Write a value from a file in so few characters that a message stays one line."""
    try:
        written = repr(value)
    except ValueError:  # Python refuses to write a whole number of thousands of digits
        return "a number of thousands of digits"
    return written if len(written) <= most else f"{written[:most]}…"
