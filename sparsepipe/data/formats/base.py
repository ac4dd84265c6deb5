"""What a file can hold: a surface or points. Every format's reader is `read(path) -> Mesh | Cloud`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangulated surface: `vertices` float64 [V, 3], `faces` int64 [F, 3] (vertex indices)."""

    vertices: np.ndarray
    faces: np.ndarray


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points as measured: float64 [P, 3]."""

    points: np.ndarray


Reader = Callable[[Path], Mesh | Cloud]


def read_bytes(path: Path, *, what: str) -> bytes:
    """Read a file a user named. Raises InputError in one line where it is missing, unreadable or empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such {what}; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected {what}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read as {what} ({error.strerror})") from None
    if not data.strip():
        raise InputError(f"{path}: empty, expected {what}; fetch the file again or remove it")
    return data


def check_finite(path: Path, rows: np.ndarray, *, what: str) -> None:
    """Raise InputError, naming the first offender, where a coordinate in `rows` [N, 3] is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise InputError(
            f"{path}: {what} {bad[0]} is {rows[bad[0]].tolist()} ({len(bad)} of {len(rows)} are NaN or infinite), "
            f"expected finite coordinates; repair or remove the file"
        )
