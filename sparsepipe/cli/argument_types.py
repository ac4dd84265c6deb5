"""Types of command-line options: functions that argparse calls with an option's text."""

import json
from argparse import ArgumentTypeError
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.manifests import shipped
from ..errors import InputError
from ..formats.clusters import IN_SLURM
from ..io.fields import shown
from ..io.paths import expanded
from ..io.quantities import Quantity
from ..runtime.config import ALL

MANY = 10**15  # of what is only counted; the library says what of it makes sense


def whole(least: int, most: int = MANY) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, written 1000000 or 1e6."""

    def read(text: str) -> int:
        try:
            value = int(text) if len(text) < 100 else None
        except ValueError:
            value = _of_float(text)
        if value is None:
            raise ArgumentTypeError(f"{shown(text)} is not a whole number")
        if value < least:
            raise ArgumentTypeError(f"{value}: expected {least} or more")
        if value > most:
            raise ArgumentTypeError(f"{shown(value)}: expected {most} at most")
        return value

    return read


def _of_float(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) <= MANY else None


count = whole(1)


def count_or_all(text: str) -> int | str:
    """Read a whole number, 1 or more, or the word all."""
    return text if text == ALL else count(text)


def quantity(unit: Quantity) -> Callable[[str], float]:
    """Return what reads a number with a unit, such as 10GB/s."""

    def read(text: str) -> float:
        try:
            return unit.read(text)
        except InputError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def chrome_file(text: str) -> Path:
    """Read the path of a trace to write for Chrome and Perfetto, which open names that end in .json."""
    path = expanded(text)
    if path.suffix.lower() != ".json":
        raise ArgumentTypeError(
            f"{text}: expected a name that ends in .json (`sparsepipe trace export RUN --out FILE.html` writes "
            "a page of its own)"
        )
    return path


def cluster_file(text: str) -> Path:
    """Read the path of a cluster's file, or the name of one in data_manifests/clusters."""
    try:
        return shipped(text, "clusters", ".toml")
    except InputError:
        return expanded(text)  # refused by `known_cluster` where it is opened: other options' mistakes come first


def known_cluster(path: Path) -> Path:
    """Return the path that `cluster_file` read. Raises InputError, which lists the names there are, where there is no
    such file.
    """
    return path if str(path) == IN_SLURM else shipped(str(path), "clusters", ".toml")


def names(text: str) -> tuple[str, ...]:
    """Read names with commas between them."""
    return tuple(name.strip() for name in text.split(","))


def counts(text: str) -> tuple[int, ...]:
    """Read whole numbers, 1 or more, with commas between them."""
    return tuple(count(part.strip()) for part in text.split(","))


def positive(text: str) -> float:
    """Read a number that is finite and above 0."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{shown(text)} is not a number") from None
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text[:60]}: expected more than 0 and finite")
    return value


def value(text: str) -> Any:
    """Read a value as JSON or Python writes it: a number, true, None, a list; any other text is itself."""
    for read in (json.loads, literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text
