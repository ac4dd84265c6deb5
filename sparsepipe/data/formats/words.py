"""Parse lines of text into numbers, all at once; if one is not a number, find its line for the message."""

import warnings
from pathlib import Path

import numpy as np

from ...errors import InputError


def numbers_of(path: Path, rows: list[tuple[int, bytes]], expected: int) -> np.ndarray:
    """Return all `expected` numbers of pairs (line number, line), float64. Raises InputError that names a bad line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns of a word that is no number
            numbers = np.fromstring(b" ".join(line for _, line in rows), dtype=np.float64, sep=" ")
    except (DeprecationWarning, ValueError):
        numbers = None
    if numbers is not None and len(numbers) == expected:
        return numbers
    for number, line in rows:
        for word in line.split():
            try:
                float(word)
            except ValueError:
                raise InputError(
                    "text.not_numbers", f"{path}:{number}: {shown(line)}, expected only numbers; repair the file"
                ) from None
    return np.array([float(word) for _, line in rows for word in line.split()])  # forms that Python alone reads


def shown(line: bytes) -> str:
    """Return the beginning of a line, fit for a message."""
    return repr(line[:40].decode("latin-1").strip())
