"""What a file can hold: a surface or points. Every format's reader is `read(path) -> Mesh | Cloud`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError

POSITION = ("x", "y", "z")
NORMAL = ("nx", "ny", "nz")
COLOUR = ("red", "green", "blue")  # 0 to 255
INTENSITY = "intensity"
LABEL = "label"  # the column of the points' own classes
_MAX_DIGITS = 18  # of a count: what int64 holds; Python itself refuses words of thousands
_SAME = {  # what other writers call these columns
    **dict(zip(("normal_x", "normal_y", "normal_z"), NORMAL, strict=True)),
    **dict(zip(("r", "g", "b"), COLOUR, strict=True)),
    **dict(zip(("diffuse_red", "diffuse_green", "diffuse_blue"), COLOUR, strict=True)),
    "i": INTENSITY,
    "reflectance": INTENSITY,
    "remission": INTENSITY,
    "class": LABEL,
    "labels": LABEL,
    "scalar_label": LABEL,
    "semantic_label": LABEL,
}


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangulated surface: `vertices` float64 [V, 3], `faces` int64 [F, 3] (vertex indices).

    `labels` int64 [F], where known, holds the part that each face belongs to.
    """

    vertices: np.ndarray
    faces: np.ndarray
    labels: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points as measured: float64 [P, 3].

    `attributes` float32 [P, C] holds what else was measured, one column for each of `names` ("nx", "intensity", ...);
    `labels` int64 [P], where known, the class of each point.
    """

    points: np.ndarray
    attributes: np.ndarray | None = None
    names: tuple[str, ...] = ()
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: np.ndarray) -> "Cloud":
        """Return the chosen points with all that belongs to them."""
        return Cloud(
            self.points[rows],
            None if self.attributes is None else self.attributes[rows],
            self.names,
            None if self.labels is None else self.labels[rows],
        )


Reader = Callable[[Path], Mesh | Cloud]


def cloud_of(path: Path, columns: Mapping[str, np.ndarray]) -> Cloud:
    """Make a cloud of named columns, each [P]. Raises InputError without x, y, z, for NaN, or for fractional labels."""
    named = {_SAME.get(name.lower(), name.lower()): np.asarray(column) for name, column in columns.items()}
    missing = [axis for axis in POSITION if axis not in named]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)} among {', '.join(columns)}; expected x, y and z")
    with np.errstate(invalid="ignore", over="ignore"):  # damaged numbers are found and named below
        points = np.stack([named.pop(axis) for axis in POSITION], axis=1).astype(np.float64)
        labels = named.pop(LABEL, None)
        names = tuple(named)
        attributes = np.stack([named[name] for name in names], axis=1).astype(np.float32) if names else None
    check_finite(path, points, what="point")
    if attributes is not None:
        check_finite(path, attributes, what=f"{', '.join(names)} of point")
    return Cloud(points, attributes, names, None if labels is None else whole_labels(path, labels))


def whole_number(word: str) -> int | None:
    """Return the number that a header's word says; None where it is none from 0, or longer than any count is."""
    return int(word) if word.isdecimal() and len(word) <= _MAX_DIGITS else None


def whole_labels(path: Path, labels: np.ndarray) -> np.ndarray:
    """Return labels [P] as int64. Raises InputError, naming the first offender, where one is no whole number from 0."""
    values = labels.astype(np.float64)
    bad = np.flatnonzero(~((values >= 0) & (values < 2**63) & (values == np.floor(values))))
    if len(bad):
        raise InputError(f"{path}: label {bad[0]} is {labels[bad[0]]}, expected a whole number from 0; repair the file")
    return labels.astype(np.int64)


def read_bytes(path: Path, *, what: str) -> bytes:
    """Read a file a user named. Raises InputError in one line where it is missing, unreadable or empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected {what}; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected {what}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read as {what} ({error.strerror})") from None
    if not data.strip():
        raise InputError(f"{path}: empty, expected {what}; fetch the file again or remove it")
    return data


def check_finite(path: Path, rows: np.ndarray, *, what: str) -> None:
    """Raise InputError, naming the first offender, where a number in `rows` [N, C] is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise InputError(
            f"{path}: {what} {bad[0]} is {rows[bad[0]].tolist()} ({len(bad)} of {len(rows)} are NaN or infinite), "
            f"expected finite coordinates; repair or remove the file"
        )


def one_line(error: Exception) -> str:
    """Return what a library complained of, fit for one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
