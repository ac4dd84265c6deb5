"""What readers return: a `Mesh` or a `Cloud`. Every format's reader is `read(path, reading) -> Mesh | Cloud`."""

import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..labels import IGNORED
from .reading import AS_THEY_ARE, DROP, LEFT_OUT, Reading

POSITION = ("x", "y", "z")
NORMAL = ("nx", "ny", "nz")
COLOUR = ("red", "green", "blue")  # 0 to 255
INTENSITY = "intensity"
LABEL = "label"  # the column of the points' own classes
_MAX_DIGITS = 18  # of a count: what int64 holds; Python itself refuses words of thousands
SAME = {  # what other writers call these columns
    **dict(zip(("normal_x", "normal_y", "normal_z"), NORMAL, strict=True)),
    **dict(zip(("r", "g", "b"), COLOUR, strict=True)),
    **dict(zip(("rf", "gf", "bf"), COLOUR, strict=True)),  # CloudCompare's, 0 to 1
    **dict(zip(("diffuse_red", "diffuse_green", "diffuse_blue"), COLOUR, strict=True)),
    "i": INTENSITY,
    "reflectance": INTENSITY,
    "remission": INTENSITY,
    "class": LABEL,
    "labels": LABEL,
    "scalar_label": LABEL,
    "semantic_label": LABEL,
    "classification": LABEL,
    "scalar_classification": LABEL,
    "scalar_intensity": INTENSITY,
}


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangulated surface: `vertices` float64 [V, 3], `faces` int64 [F, 3] (vertex indices).

    `labels` int64 [F], where known, holds the part that each face belongs to. A file's polygons may have become several
    triangles each, or none: `polygons` int64 [F] says which of its `num_polygons` each triangle is a piece of.
    """

    vertices: np.ndarray
    faces: np.ndarray
    labels: np.ndarray | None = None
    polygons: np.ndarray | None = None
    num_polygons: int | None = None
    num_unmeasured: int = 0  # polygons left out, as a corner of theirs was not measured

    @property
    def num_unlabelled(self) -> int:
        """Count the faces declared to be of no class."""
        return 0 if self.labels is None else int((self.labels == IGNORED).sum())

    def with_labels(self, labels: np.ndarray) -> "Mesh":
        """Return the mesh with the label of each of the file's polygons; their triangles take it over.

        Raises InputError, without the file's name, where there are more or fewer.
        """
        expected = len(self.faces) if self.num_polygons is None else self.num_polygons
        _check_count(labels, expected, what="faces")
        return replace(self, labels=labels if self.polygons is None else labels[self.polygons])


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points as measured: float64 [P, 3].

    `attributes` float32 [P, C] holds what else was measured, one column for each of `names` ("nx", "intensity", ...),
    NaN where it was not; `labels` int64 [P], where known, the class of each point, IGNORED for none.
    `measured` bool [rows of the file] says which rows these points are, where some were left out; `rows` int64 [P]
    which row each is, where some of the others were taken.
    """

    points: np.ndarray
    attributes: np.ndarray | None = None
    names: tuple[str, ...] = ()
    labels: np.ndarray | None = None
    measured: np.ndarray | None = None
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.points)

    @property
    def file_rows(self) -> np.ndarray:
        """Return which of the file's points each is: int64 [P]."""
        if self.rows is not None:
            return self.rows
        return np.arange(len(self)) if self.measured is None else np.flatnonzero(self.measured)

    @property
    def num_unmeasured(self) -> int:
        """Count the file's points that were left out, as declared."""
        return 0 if self.measured is None else int((~self.measured).sum())

    @property
    def num_unlabelled(self) -> int:
        """Count the points declared to be of no class."""
        return 0 if self.labels is None else int((self.labels == IGNORED).sum())

    def take(self, rows: np.ndarray) -> "Cloud":
        """Return the chosen points with all that belongs to them."""
        return Cloud(
            self.points[rows],
            None if self.attributes is None else self.attributes[rows],
            self.names,
            None if self.labels is None else self.labels[rows],
            rows=self.file_rows[rows],
        )

    def with_labels(self, labels: np.ndarray) -> "Cloud":
        """Return the cloud with the label of each of the file's points, those left out among them.

        Raises InputError, without the file's name, where there are more or fewer.
        """
        _check_count(labels, len(self) if self.measured is None else len(self.measured), what="points")
        return replace(self, labels=labels if self.measured is None else labels[self.measured])


Reader = Callable[[Path, Reading], Mesh | Cloud]


def cloud_of(path: Path, columns: Iterable[tuple[str, np.ndarray]], reading: Reading = AS_THEY_ARE) -> Cloud:
    """Make a cloud of pairs (name, column [P]).

    Points whose coordinates are not finite are left out where that is declared. Further numbers may be NaN or infinite:
    they are kept as NaN, and matter to those who ask for them. Raises InputError that names the file without x, y, z,
    for two columns of one meaning, for points that were not measured, and for labels that are no whole numbers from 0.
    """
    named = _named(path, columns, reading)
    missing = [axis for axis in POSITION if axis not in named]
    if missing:
        raise InputError(
            f"{path}: no column {', '.join(missing)} among {', '.join(named) or 'none'}; expected x, y and z"
        )
    with np.errstate(invalid="ignore", over="ignore"):  # damaged numbers are found and named below
        points = np.stack([named.pop(axis) for axis in POSITION], axis=1).astype(np.float64)
        labels = named.pop(LABEL, None)
        names = tuple(named)
        attributes = np.stack([named[name] for name in names], axis=1).astype(np.float32) if names else None
    if attributes is not None:
        attributes = _scaled_colours(attributes, names, named, reading)
        attributes[~np.isfinite(attributes)] = np.nan
    measured = np.isfinite(points).all(axis=1)
    if not measured.all():
        check_measured(path, points, measured, reading, what="point")
        points, attributes, labels = (None if rows is None else rows[measured] for rows in (points, attributes, labels))
    whole = None if labels is None else whole_labels(path, labels, reading)
    return Cloud(points, attributes, names, whole, None if measured.all() else measured)


def check_measured(path: Path, rows: np.ndarray, measured: np.ndarray, reading: Reading, *, what: str) -> None:
    """Raise InputError, naming the first of `rows` [N, C] that is not `measured` [N], where it is not declared so."""
    bad = np.flatnonzero(~measured)
    if len(bad) and reading.unmeasured != DROP:
        raise InputError(
            f"{path}: {what} {bad[0]} is {rows[bad[0]].tolist()} ({len(bad)} of {len(rows)} are NaN or infinite), "
            f'expected finite numbers; "unmeasured": "{DROP}" in dataset.json leaves such out, or repair the file'
        )
    if len(bad) and len(bad) == len(rows):
        raise InputError(f"{path}: all {len(rows)} of its points are NaN or infinite; remove the file")


def _named(path: Path, columns: Iterable[tuple[str, np.ndarray]], reading: Reading) -> dict[str, np.ndarray]:
    """Return the columns under the names used here. Raises InputError where two that differ mean the same."""
    renamed = dict(reading.renamed)
    given = [(renamed.get(name, name).lower(), name, np.asarray(column)) for name, column in columns]
    own = {name for name, _, _ in given}
    named: dict[str, np.ndarray] = {}
    source: dict[str, str] = {}
    for name, word, column in given:
        if name == LEFT_OUT:
            continue
        meaning = SAME.get(name, name)
        if meaning in own and meaning != LABEL:
            meaning = name  # a column of that very name is there: this one is something else
        if meaning in named and not np.array_equal(named[meaning], column, equal_nan=column.dtype.kind == "f"):
            raise InputError(
                f"{path}: columns {source[meaning]!r} and {word!r} both mean {meaning!r} and differ; say which to "
                f'leave out in dataset.json, such as "columns": {{"{word}": "{LEFT_OUT}"}}, or repair the file'
            )
        if meaning not in named:
            named[meaning], source[meaning] = column, word
    return named


def _scaled_colours(
    attributes: np.ndarray, names: tuple[str, ...], columns: dict[str, np.ndarray], reading: Reading
) -> np.ndarray:
    """Bring colours to 0 to 255: from the declared range, else from that of shares of 1, or of 16 bits."""
    if not set(COLOUR) <= set(names):
        return attributes
    places = [names.index(name) for name in COLOUR]
    colours = attributes[:, places]
    if reading.colour_max is not None:
        attributes[:, places] = colours * (255 / reading.colour_max)
    elif all(columns[name].dtype.kind == "f" for name in COLOUR) and are_shares(colours):
        attributes[:, places] = colours * 255
    elif _are_of_16_bits(colours):
        attributes[:, places] = colours * (255 / 65535)
    return attributes


def are_shares(colours: np.ndarray) -> bool:
    """Whether colours are given from 0 to 1: all lie there, and some between. NaN says nothing."""
    known = colours[np.isfinite(colours)]
    return bool(len(known) and ((known >= 0) & (known <= 1)).all() and (known != np.floor(known)).any())


def _are_of_16_bits(colours: np.ndarray) -> bool:
    """Whether colours are whole numbers beyond 8 bits and within 16, as LAS files have them."""
    known = colours[np.isfinite(colours)]
    whole = bool(len(known)) and bool(((known >= 0) & (known <= 65535) & (known == np.floor(known))).all())
    return whole and bool(known.max() > 255)


def _check_count(labels: np.ndarray, expected: int, *, what: str) -> None:
    if len(labels) != expected:
        raise InputError(f"{len(labels)} labels, expected {expected}: one for each of its {what}")


def whole_number(word: str) -> int | None:
    """Return the number that a header's word says; None where it is none from 0, or longer than any count is."""
    return int(word) if word.isdecimal() and len(word) <= _MAX_DIGITS else None


def whole_labels(path: Path, labels: np.ndarray, reading: Reading = AS_THEY_ARE) -> np.ndarray:
    """Return labels [P] as int64, IGNORED for those declared to mean "not labelled".

    Raises InputError, naming the first offender, where another is no whole number from 0.
    """
    values = labels.astype(np.float64)
    ignored = np.isin(values, reading.ignore) if reading.ignore else np.zeros(values.shape, dtype=bool)
    bad = np.flatnonzero(~(ignored | ((values >= 0) & (values < 2**63) & (values == np.floor(values)))))
    if len(bad):
        raise InputError(
            f"{path}: label {bad[0]} is {labels[bad[0]]}, expected a whole number from 0; name the labels that mean "
            f'"not labelled" in dataset.json, such as "ignore": [-1], or repair the file'
        )
    return np.where(ignored, IGNORED, labels.astype(np.int64))


def read_bytes(path: Path, *, what: str) -> bytes:
    """Read a file a user named. Raises InputError in one line where it is missing, unreadable, empty or no file."""
    check_regular(path, what=what)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read as {what} ({error.strerror})") from None
    if not data.strip():
        raise InputError(f"{path}: empty, expected {what}; fetch the file again or remove it")
    return data


def check_regular(path: Path, *, what: str) -> int:
    """Return a file's bytes by its folder's word. Raises InputError where it is none: pipes and devices never end."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected {what}; check the path") from None
    except (OSError, ValueError) as error:  # a name that no file can have
        raise InputError(f"{path}: cannot be read as {what} ({one_line(error)})") from None
    if stat.S_ISDIR(facts.st_mode):
        raise InputError(f"{path}: is a folder, expected {what}")
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path}: is a pipe, a device or a socket, expected {what} as a regular file")
    return facts.st_size


def check_finite(path: Path, rows: np.ndarray, *, what: str) -> None:
    """Raise InputError, naming the first offender, where a number in `rows` [N, C] is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise InputError(
            f"{path}: {what} {bad[0]} is {rows[bad[0]].tolist()} ({len(bad)} of {len(rows)} are NaN or infinite), "
            f"expected finite coordinates; repair or remove the file"
        )


def one_line(error: Exception) -> str:
    """Return a library's error message as one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
